"""Routers: shortest paths with ECMP, and dimension order on grids.

Law: a route depends on the graph, the router's seed, and (source, target, flow), on nothing
else.  Choices are integer hashes, so they are the same in every process and on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self, runtime_checkable

from emu.errors import ConfigError
from emu.keyed import mix
from emu.topologies.graph import NodeKind, Router, Topology

_FORWARDING_KINDS: Final = frozenset({NodeKind.SWITCH, NodeKind.NIC, NodeKind.CPU})
_MOST_LANE_BITS: Final = 3


@runtime_checkable
class SeededRouter(Router, Protocol):
    """A router whose choices can be drawn anew."""

    def with_seed(self, seed: int) -> Router: ...


class Adjacency:
    """A topology's graph in the form that routers walk, with what they have found out about it."""

    def __init__(self, topology: Topology, without: frozenset[int] = frozenset()) -> None:
        """``without``: links that are not to be used."""
        self.nodes = topology.nodes
        self.links = topology.links
        self.out = [[link for link in links if link not in without] for links in topology.out_links()]
        self.link_targets = [link.target for link in topology.links]
        self.parallel: dict[tuple[int, int], list[int]] = {}
        for index, link in enumerate(topology.links):
            if index not in without:
                self.parallel.setdefault((link.source, link.target), []).append(index)
        self._sources: list[list[int]] = [[] for _ in topology.nodes]
        for source, target in self.parallel:
            self._sources[target].append(source)
        self._is_end = [node.kind not in _FORWARDING_KINDS for node in topology.nodes]
        self._costs: dict[int, list[int]] = {}

    def costs(self, target: int) -> list[int]:
        """Per node the cost of the best way to ``target``, -1 where there is none.

        A cost is hops x nodes + endpoints crossed: fewest hops first, then fewest accelerators
        (or memories) used as switches.  One breadth-first search, O(links), kept.
        """
        found = self._costs.get(target)
        if found is None:
            found = self._costs[target] = self._search(target)
        return found

    def step_cost(self, to: int, target: int) -> int:
        """Cost of one hop onto node ``to`` on the way to ``target``."""
        return len(self.nodes) + (self._is_end[to] and to != target)

    def next_links(self, node: int, target: int) -> tuple[int, ...]:
        """The links out of ``node`` with which the best ways to ``target`` begin; none where there is no way."""
        costs, targets = self.costs(target), self.link_targets
        return tuple(
            link for link in self.out[node] if 0 <= costs[targets[link]] == costs[node] - self.step_cost(targets[link], target)
        )

    def _search(self, target: int) -> list[int]:
        costs = [-1] * len(self.nodes)
        costs[target] = 0
        frontier = [target]
        while frontier:
            reached: dict[int, int] = {}
            for node in frontier:
                cost = costs[node] + self.step_cost(node, target)
                for source in self._sources[node]:
                    if costs[source] < 0 and cost < reached.get(source, cost + 1):
                        reached[source] = cost
            for source, cost in reached.items():
                costs[source] = cost
            frontier = list(reached)
        return costs


class AdjacencyCache:
    """The adjacency of the topology last asked about.  Its pickles are empty: it costs little to refill."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Adjacency | None = None

    def of(self, topology: Topology) -> Adjacency:
        last = self._last
        if last is None or last.links is not topology.links or last.nodes is not topology.nodes:
            last = self._last = Adjacency(topology)
        return last

    def __reduce__(self) -> tuple[type[AdjacencyCache], tuple[()]]:
        return AdjacencyCache, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestPath:
    """Fewest links; among equals, a seeded hash at each node picks the next one (ECMP).

    The hash covers (seed, node, source, target, flow): switches hash apart from each other, so
    that choices do not polarise from tier to tier.  Accelerators forward, but a path through
    switches is preferred to an equally long one through them.  Not weighted by rate.
    """

    seed: int = 0
    spread: int = 1
    _cache: AdjacencyCache = field(default_factory=AdjacencyCache, repr=False, compare=False)

    def with_seed(self, seed: int) -> Self:
        return replace(self, seed=seed)

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``.  Raises ConfigError when there is no way."""
        graph = self._cache.of(topology)
        costs = graph.costs(target)
        if costs[source] < 0:
            names = topology.nodes[source].name, topology.nodes[target].name
            raise ConfigError(f"there is no way from {names[0]} to {names[1]}; add links that join them")
        targets = graph.link_targets
        path = []
        node = source
        while node != target:
            choices = graph.next_links(node, target)
            link = choices[0]
            if len(choices) > 1:
                link = choices[mix(self.seed, node, source, target, flow) % len(choices)]
            path.append(link)
            node = targets[link]
        return tuple(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionOrder:
    """Grids: correct the coordinates one dimension after the other, each by the shorter way round.

    Node i has the row-major coordinates of i in ``shape``.  With ``wrap`` each dimension is a
    ring (of two nodes: one cable).  In a ring of even size k > 2 both ways to the node k/2 away are
    equally long: ``spread`` = 2 to the number of such dimensions (at most 3 count) flows share
    them, flow bit d turning the way that the parity of the source's coordinate picks.  With
    chunks dealt evenly over the lanes, a uniform all-to-all loads every link of a ring dimension
    alike, with n k / 8 of its n (n - 1) messages: the bound 8 b / k per endpoint for links of rate b
    (Dally and Towles, Principles and Practices of Interconnection Networks, 2004, chapter 5).

    ``flow % spread`` is the lane and ``flow // spread`` the channel.  Parallel cables are picked by a seeded hash.
    """

    shape: tuple[int, ...]
    wrap: bool
    seed: int = 0
    _cache: AdjacencyCache = field(default_factory=AdjacencyCache, repr=False, compare=False)

    @property
    def spread(self) -> int:
        ties = sum(1 for size in self.shape if self._ties(size))
        return 1 << min(ties, _MOST_LANE_BITS)

    def with_seed(self, seed: int) -> Self:
        return replace(self, seed=seed)

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``; both are nodes of the grid."""
        graph = self._cache.of(topology)
        lane = flow % self.spread
        path = []
        node = source
        stride = math.prod(self.shape)
        for size in self.shape:
            stride //= size
            start = source // stride % size
            offset = target // stride % size - start
            step = 1 if offset > 0 else -1
            if self.wrap:
                ahead = offset % size
                step = 1 if 2 * ahead < size else -1
                if self._ties(size):
                    if 2 * ahead == size:
                        step = 1 if (start + lane) % 2 == 0 else -1
                    lane >>= 1
                offset = ahead if step > 0 else size - ahead
            for position in range(abs(offset)):
                here = (start + step * position) % size
                following = (here + step) % size
                neighbour = node + (following - here) * stride
                links = graph.parallel[node, neighbour]
                pick = mix(self.seed, node, source, target, flow) % len(links) if len(links) > 1 else 0
                path.append(links[pick])
                node = neighbour
        return tuple(path)

    def _ties(self, size: int) -> bool:
        return self.wrap and size > 2 and size % 2 == 0
