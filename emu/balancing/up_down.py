"""up_down: up*/down* routing; every way first goes up an order of the nodes, then down, never up again.

Nodes are ordered by their hops from the roots, then by index; up is nearer to the roots.  At a node that the target
can be reached from going only down, a packet goes down, by the fewest hops; else up, towards the nearest such node.  Of
equally good links a keyed hash of the flow picks one.

Law: links wait for each other's buffers only up to up, up to down and down to down; so never in a cycle, and neither
pauses nor credits can deadlock on any graph.  Price: ways may be longer than the shortest, and the roots are crowded.

Source: Schroeder et al., "Autonet: a high-speed, self-configuring local area network using point-to-point links", IEEE JSAC
9(8), 1991.  Not modelled: a new order after a link went down; packets wait until it is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from emu.balancing.base import Parameters, Place, View, check_parameters, text_parameter
from emu.errors import ConfigError
from emu.keyed import mix
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.tiers import Same, distances, tiers

FAR = 1 << 40

KEEPS_FLOWS_TOGETHER: Final = True


class Order:
    """Which links lead up, and the next links from everywhere to everywhere."""

    def __init__(self, topology: Topology, roots: tuple[int, ...]) -> None:
        self.topology = topology
        height = distances(topology, roots)
        self._rank = [(height[node], node) for node in range(len(topology.nodes))]
        self.up: list[list[int]] = [[] for _ in topology.nodes]
        self.down: list[list[int]] = [[] for _ in topology.nodes]
        for index, link in enumerate(topology.links):
            (self.up if self._rank[link.target] < self._rank[link.source] else self.down)[link.source].append(index)
        self._lowest_first = sorted(range(len(topology.nodes)), key=self._rank.__getitem__, reverse=True)
        self._next: dict[int, list[tuple[int, ...]]] = {}

    def next_links(self, node: int, target: int) -> tuple[int, ...]:
        """Links to take from ``node``; none where ``target`` is out of reach."""
        found = self._next.get(target)
        if found is None:
            found = self._next[target] = self._find(target)
        return found[node]

    def _find(self, target: int) -> list[tuple[int, ...]]:
        links = self.topology.links
        n = len(self.topology.nodes)
        falls = [FAR] * n
        falls[target] = 0
        for node in self._lowest_first:
            falls[node] = min([falls[node], *(1 + falls[links[link].target] for link in self.down[node])])
        costs = [FAR] * n
        chosen: list[tuple[int, ...]] = [()] * n
        for node in reversed(self._lowest_first):
            costs[node] = falls[node]
            onward, ahead = self.down[node], falls
            if falls[node] >= FAR:
                onward, ahead = self.up[node], costs
                costs[node] = min([FAR, *(1 + costs[links[link].target] for link in onward)])
            if node != target and costs[node] < FAR:
                chosen[node] = tuple(link for link in onward if 1 + ahead[links[link].target] == costs[node])
        return chosen

    def joins_all(self) -> bool:
        """Whether every rank reaches every other."""
        ranks = self.topology.ranks
        return all(self.next_links(a, b) for b in ranks for a in ranks if a != b)


@lru_cache(maxsize=8)
def order_of(fabric: Same, names: str) -> Order:
    """The order under the named roots; by default the highest switches where these join all ranks, else a central switch."""
    topology = fabric.topology
    if names:
        index = {node.name: number for number, node in enumerate(topology.nodes)}
        for name in names.split():
            if name not in index:
                raise ConfigError(f"balancing 'up_down': roots: {topology.name} has no node {name!r}; name some of its nodes")
        order = Order(topology, tuple(index[name] for name in names.split()))
        if not order.joins_all():
            raise ConfigError(
                f"balancing 'up_down': roots = {names!r} leave ranks of {topology.name} without a way; name one root"
            )
        return order
    tier = tiers(topology)
    order = Order(topology, tuple(node for node, height in enumerate(tier) if height == max(tier)))
    return order if order.joins_all() else Order(topology, (_centre(topology),))


def _centre(topology: Topology) -> int:
    """The switch (where there is none, the node) that is farthest from no node by the fewest hops."""
    switches = [node for node, what in enumerate(topology.nodes) if what.kind is NodeKind.SWITCH]
    return min(switches or range(len(topology.nodes)), key=lambda node: (max(distances(topology, (node,))), node))


class UpDown:
    """The order, and a hash."""

    def __init__(self, place: Place, order: Order) -> None:
        self._order = order
        self._node = place.node
        self._seed = place.seed
        self._ranks = place.topology.ranks

    def choose(
        self,
        candidates: Sequence[int],
        *,
        source_rank: int,
        target_rank: int,
        flow: int,
        sequence: int,
        lane: int,
        view: View,
        now_ps: int,
    ) -> tuple[int, int]:
        links = self._order.next_links(self._node, self._ranks[target_rank])
        return links[mix(self._seed, self._node, source_rank, target_rank, flow) % len(links) if len(links) > 1 else 0], lane


def build(place: Place, parameters: Parameters) -> UpDown:
    """``roots``: names of nodes; left out, the highest switches, or one in the middle."""
    check_parameters("up_down", parameters, "roots")
    return UpDown(place, order_of(Same(place.topology), text_parameter("up_down", parameters, "roots")))
