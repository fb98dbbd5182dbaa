"""Layout: how the ranks of a communicator lie on the fabric, as far as algorithms ask.

Law: a pure function of topology and members, worked out when it is asked for; equal requests get the same object, so that a
schedule made for it is found again.  Ranks are positions in the communicator; the n-th and further participants are
switches, in the order of :attr:`Layout.switches`.

NCCL's words: a *node* is a host, and rail j joins the j-th accelerators of all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import islice
from math import prod
from typing import NamedTuple

from emu.topologies.graph import NodeKind, Topology
from emu.topologies.routers import DimensionOrder
from emu.topologies.tiers import Same

Rings = tuple[tuple[int, ...], ...]
MOST_TREES = 8
"""Switch trees among which a collective's blocks are dealt."""


class SwitchTree(NamedTuple):
    """A switch that combines and multicasts, over ranks (positions) and further switches."""

    switch: int
    """Its participant number."""
    children: tuple[SwitchTree | int, ...]


class Layout:
    """``n_ranks`` ranks; without a topology each is a node of its own and no switch takes part."""

    def __init__(self, n_ranks: int, topology: Topology | None = None, members: tuple[int, ...] = ()) -> None:
        self.n_ranks = n_ranks
        self._topology = topology
        self._members = members

    @cached_property
    def nodes(self) -> Rings:
        """Ranks by host, in order of their first ranks."""
        found: dict[str | int, list[int]] = {}
        for rank in range(self.n_ranks):
            host = "" if self._topology is None else self._topology.nodes[self._place(rank)].host
            found.setdefault(host or rank, []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    @property
    def rails(self) -> Rings:
        """The j-th ranks of all nodes, for each j; none where nodes differ in size."""
        sizes = {len(node) for node in self.nodes}
        return tuple(zip(*self.nodes, strict=True)) if len(sizes) == 1 else ()

    @cached_property
    def axes(self) -> tuple[Rings, ...]:
        """Dimensions, each as the rings that it falls into: a torus' own, else the nodes and the rails.  None of size 1."""
        topology = self._topology
        if topology is not None and isinstance(topology.router, DimensionOrder):
            shape = topology.router.shape
            whole = self._members == topology.ranks == tuple(range(prod(shape)))
            return tuple(_grid_axes(shape, self.n_ranks)) if whole else ()
        return tuple(axis for axis in (self.nodes, self.rails) if axis and len(axis[0]) > 1) if self.rails else ()

    @property
    def torus_axes(self) -> tuple[Rings, ...]:
        """The dimensions of a whole torus or ring, in which the last of each ring is joined to the first; else none."""
        router = None if self._topology is None else self._topology.router
        return self.axes if isinstance(router, DimensionOrder) and router.wrap else ()

    @cached_property
    def switches(self) -> tuple[int, ...]:
        """Addresses of the switches that may take part: see :attr:`emu.topologies.graph.Topology.addresses`."""
        topology = self._topology
        if topology is None or topology.switching is not None:
            return ()
        return tuple(range(topology.n_ranks, len(topology.addresses)))

    @property
    def cannot(self) -> str:
        """Why no switch takes part, for messages; empty where some may."""
        if self._topology is not None and self._topology.switching is not None:
            return "this fabric has switching, where packets are not combined"
        return "" if self.switches else "no switch of this fabric has multicast = true"

    @cached_property
    def node_trees(self) -> tuple[tuple[SwitchTree, ...], ...]:
        """Per node the equally good switch trees over its ranks."""
        return tuple(self._trees(node) for node in self.nodes)

    @cached_property
    def rail_trees(self) -> tuple[tuple[SwitchTree, ...], ...]:
        """Per rail the equally good switch trees over its ranks."""
        return tuple(self._trees(rail) for rail in self.rails)

    def _place(self, rank: int) -> int:
        assert self._topology is not None
        return self._topology.ranks[self._members[rank]]

    def _trees(self, ranks: tuple[int, ...]) -> tuple[SwitchTree, ...]:
        """The first few trees of the least depth, of those the ones with the fastest slowest link; empty where there are none."""
        topology = self._topology
        if topology is None or not self.switches:
            return ()
        nearer = self._switches_from(self._place(ranks[0]))
        for depth in sorted(set(nearer.values())):
            roots = (root for root, distance in nearer.items() if distance == depth)
            trees = (self._tree(root, depth, ranks) for root in roots)
            found = list(islice((tree for tree in trees if tree is not None), MOST_TREES))
            if found:
                fastest = max(rate_bps for rate_bps, _ in found)
                return tuple(tree for rate_bps, tree in found if rate_bps == fastest)
        return ()

    def _switches_from(self, place: int) -> dict[int, int]:
        """Combining switches that are reached through such, and how far they are."""
        return {node: hops for node, (hops, _, _) in self._walk(place, self.n_ranks).items() if self._combines(node)}

    def _combines(self, node: int) -> bool:
        assert self._topology is not None
        return self._topology.nodes[node].multicast

    def _walk(self, start: int, most_hops: int) -> dict[int, tuple[int, int, int]]:
        """Node -> (combining switches on the way, node before it, rate of the link), over combining switches and adapters."""
        topology = self._topology
        assert topology is not None
        out = _out_links(Same(topology))
        found = {start: (0, start, 0)}
        frontier = [start]
        while frontier:
            reached = []
            for node in frontier:
                hops, _, _ = found[node]
                passes = node == start or self._combines(node) or topology.nodes[node].kind is NodeKind.NIC
                for index in out[node] if passes and hops <= most_hops else ():
                    link = topology.links[index]
                    if link.target not in found:
                        found[link.target] = (hops + self._combines(link.target), node, link.rate_bps)
                        reached.append(link.target)
            frontier = reached
        return found

    def _tree(self, root: int, depth: int, ranks: tuple[int, ...]) -> tuple[int, SwitchTree] | None:
        """(Rate of the slowest link, tree) over the ranks, or None where one is further than ``depth`` switches away."""
        topology = self._topology
        assert topology is not None
        walk = self._walk(root, depth)
        children: dict[int, dict[int, int | None]] = {root: {}}
        slowest = 0
        for rank in ranks:
            node = self._place(rank)
            if node not in walk or walk[node][0] >= depth:
                return None
            child, is_rank = node, True
            while child != root:
                _, parent, rate_bps = walk[child]
                slowest = min(slowest or rate_bps, rate_bps)
                while parent != root and not self._combines(parent):
                    parent = walk[parent][1]
                known = parent in children
                children.setdefault(parent, {})[child] = rank if is_rank else None
                if known:
                    break
                child, is_rank = parent, False
        number = {node: self.n_ranks + place for place, node in enumerate(topology.addresses[topology.n_ranks :])}

        def grown(switch: int) -> SwitchTree:
            below = children[switch].items()
            return SwitchTree(number[switch], tuple(grown(child) if rank is None else rank for child, rank in below))

        return slowest, grown(root)


def flat(n_ranks: int) -> Layout:
    """Ranks of which nothing is known."""
    return _flat(n_ranks)


def known(n_ranks: int, layout: Layout | None) -> Layout:
    """The layout, or one of which nothing is known where it is of another number of ranks or none is given."""
    return flat(n_ranks) if layout is None or layout.n_ranks != n_ranks else layout


def layout_of(topology: Topology, members: tuple[int, ...]) -> Layout:
    """The layout of these ranks of the topology."""
    return _layout(Same(topology), members)


@lru_cache(maxsize=256)
def _flat(n_ranks: int) -> Layout:
    return Layout(n_ranks)


@lru_cache(maxsize=256)
def _layout(same: Same, members: tuple[int, ...]) -> Layout:
    return Layout(len(members), same.topology, members)


@lru_cache(maxsize=4)
def _out_links(same: Same) -> list[list[int]]:
    return same.topology.out_links()


def _grid_axes(shape: tuple[int, ...], n_ranks: int) -> Iterator[Rings]:
    stride = n_ranks
    for size in shape:
        stride //= size
        if size > 1:
            firsts = (rank for rank in range(n_ranks) if rank // stride % size == 0)
            yield tuple(tuple(first + place * stride for place in range(size)) for first in firsts)
