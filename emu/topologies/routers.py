"""Routers: shortest paths with ECMP, and dimension order on grids.

Law: a route depends on the graph, the router's seed, and (source, target, flow), on nothing
else.  Choices are integer hashes, so they are the same in every process and on every machine.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
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
    """A topology's graph in the form that routers walk, with what they have found out about it.

    Ends (accelerators, memories) that hang on switches only are reached through those, their *gates*: one search for each switch
    serves all ends behind it, and ends with a single neighbour are left out of it, as no way leads through them.
    """

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
        self._is_end = [node.kind not in _FORWARDING_KINDS for node in topology.nodes]
        sources: list[list[int]] = [[] for _ in topology.nodes]
        for source, target in self.parallel:
            sources[target].append(source)
        self._gates = [tuple(found) if found and self._hangs(node, found) else (node,) for node, found in enumerate(sources)]
        leaf = [gates[0] != node and len(gates) == 1 for node, gates in enumerate(self._gates)]
        self._onward = [[link for link in links if not leaf[self.link_targets[link]]] for links in self.out]
        self._sources = [[source for source in found if not leaf[source]] for found in sources]
        self._leaf = leaf
        self._costs: dict[int, array[int]] = {}
        self._next: dict[tuple[int, int], tuple[int, ...]] = {}

    def _hangs(self, node: int, sources: list[int]) -> bool:
        """Whether an end is joined to switches only, to the same ones both ways."""
        if not self._is_end[node] or any(self._is_end[source] for source in sources):
            return False
        return {self.link_targets[link] for link in self.out[node]} == set(sources)

    def cost(self, node: int, target: int) -> int:
        """Cost of the best way from ``node`` to ``target``, -1 where there is none.

        A cost is hops x nodes + endpoints crossed: fewest hops first, then fewest accelerators
        (or memories) used as switches.  One breadth-first search for each gate, O(links), kept.
        """
        if node == target:
            return 0
        hops = 0
        if self._leaf[node]:
            node, hops = self._gates[node][0], 1
            if node == target:
                return len(self.nodes)
        gates = self._gates[target]
        found = self._nearest(node, gates)
        return -1 if found < 0 else found + (hops + (gates[0] != target)) * len(self.nodes)

    def next_links(self, node: int, target: int) -> tuple[int, ...]:
        """The links out of ``node`` with which the best ways to ``target`` begin; none where there is no way."""
        if node == target:
            return ()
        gates = self._gates[target]
        if gates[0] == target:
            return self._nearer(node, gates)
        if node in gates:
            return tuple(self.parallel[node, target])
        if len(gates) > 1:
            return self._nearer(node, gates)
        key = node, gates[0]
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = self._nearer(node, gates)
        return found

    def _nearer(self, node: int, gates: tuple[int, ...]) -> tuple[int, ...]:
        """The links out of ``node`` with which the best ways to the nearest of ``gates`` begin."""
        targets = self.link_targets
        if self._leaf[node]:
            return tuple(self.out[node]) if self._nearest(self._gates[node][0], gates) >= 0 else ()
        here = self._nearest(node, gates)
        if len(gates) == 1:
            costs, before, onto_end = self._toward(gates[0]), here - len(self.nodes), self._is_end
            return tuple(
                [
                    link
                    for link in self._onward[node]
                    if 0 <= costs[to := targets[link]] == before - (onto_end[to] and to != gates[0])
                ]
            )
        return tuple(
            link
            for link in self._onward[node]
            if 0 <= self._nearest(targets[link], gates) == here - self._step_cost(targets[link], gates[0])
        )

    def _step_cost(self, to: int, goal: int) -> int:
        """Cost of one hop onto node ``to`` on the way to ``goal``."""
        return len(self.nodes) + (self._is_end[to] and to != goal)

    def _nearest(self, node: int, gates: tuple[int, ...]) -> int:
        """Cost from ``node`` to the nearest of ``gates``, -1 where there is no way."""
        if len(gates) == 1:
            return self._toward(gates[0])[node]
        return min((found for gate in gates if (found := self._toward(gate)[node]) >= 0), default=-1)

    def _toward(self, goal: int) -> array[int]:
        """Per node the cost of the best way to ``goal``, -1 where there is none and for ends with one neighbour."""
        found = self._costs.get(goal)
        if found is None:
            found = self._costs[goal] = self._search(goal)
        return found

    def _search(self, goal: int) -> array[int]:
        costs = array("q", [-1]) * len(self.nodes)
        costs[goal] = 0
        frontier = [goal]
        while frontier:
            reached: defaultdict[int, set[int]] = defaultdict(set)
            for node in frontier:
                reached[costs[node] + self._step_cost(node, goal)].update(self._sources[node])
            frontier = []
            for cost in sorted(reached):
                found = [source for source in reached[cost] if costs[source] < 0]
                for source in found:
                    costs[source] = cost
                frontier += found
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


def check_way(graph: Adjacency, source: int, target: int) -> None:
    """Raises ConfigError where there is no way."""
    if graph.cost(source, target) < 0:
        names = graph.nodes[source].name, graph.nodes[target].name
        raise ConfigError(f"there is no way from {names[0]} to {names[1]}; add links that join them")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestPath:
    """Fewest links; among equals, a seeded hash at each node picks the next one (ECMP).

    The hash covers (seed, node, source, target, flow): switches hash apart from each other, so
    that choices do not polarise from tier to tier.  Accelerators forward, but a path through
    switches is preferred to an equally long one through them.  Not weighted by rate.  The source deals the ``spread`` lanes of
    a connection over its links in turn, as an adapter of several ports does.
    """

    seed: int = 0
    spread: int = 1
    _cache: AdjacencyCache = field(default_factory=AdjacencyCache, repr=False, compare=False)

    def with_seed(self, seed: int) -> Self:
        return replace(self, seed=seed)

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``.  Raises ConfigError when there is no way."""
        graph = self._cache.of(topology)
        check_way(graph, source, target)
        targets = graph.link_targets
        path = []
        node = source
        while node != target:
            choices = graph.next_links(node, target)
            link = choices[0]
            if len(choices) > 1:
                call, lane = divmod(flow, self.spread) if node == source else (flow, 0)
                link = choices[(mix(self.seed, node, source, target, call) + lane) % len(choices)]
            path.append(link)
            node = targets[link]
        return tuple(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DModK(ShortestPath):
    """Fewest links; among equals, the target's number and the lane pick the next one: static routes of a fat tree.

    The digits of target x ``spread`` + lane choose, one at each node, to the base of how many nodes come next, and what is left
    of target and lane choose among parallel cables.  Targets that follow each other so use different ways, at the first level and
    then at the next, and no shift of all ranks by the same distance loads an uplink twice where there are as many as ranks
    (Zahavi, "Fat-tree routing and node ordering providing contention free traffic for MPI global collectives", 2012).

    ``flow % spread`` is the lane.  The seed changes nothing.  With a ``switching`` its balancing chooses instead.
    """

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``.  Raises ConfigError when there is no way."""
        graph = self._cache.of(topology)
        check_way(graph, source, target)
        targets = graph.link_targets
        lane = flow % self.spread
        key = target * self.spread + lane
        lanes_left = self.spread
        path = []
        node = source
        while node != target:
            choices = graph.next_links(node, target)
            if len(choices) > 1:
                onward = tuple(dict.fromkeys(map(targets.__getitem__, choices)))
                node_next = onward[key % len(onward)]
                key //= len(onward)
                lanes_left = max(1, lanes_left // len(onward))
                choices = tuple(link for link in choices if targets[link] == node_next)
            link = choices[(key // lanes_left + lane * len(choices) // self.spread) % len(choices)]
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

    ``first``: the grid's first node.  Where it is not 0, the grid is one of routers, and node i below it hangs on router i.
    """

    shape: tuple[int, ...]
    wrap: bool
    seed: int = 0
    first: int = 0
    _cache: AdjacencyCache = field(default_factory=AdjacencyCache, repr=False, compare=False)

    @property
    def spread(self) -> int:
        ties = sum(1 for size in self.shape if self.ties(size))
        return 1 << min(ties, _MOST_LANE_BITS)

    def with_seed(self, seed: int) -> Self:
        return replace(self, seed=seed)

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``; both are nodes of the grid, or hang on such."""
        graph = self._cache.of(topology)
        lane = flow % self.spread
        here, there = self.router_of(source), self.router_of(target)
        path = [] if here == source or source == target else [graph.parallel[source, here][0]]
        node = here
        stride = math.prod(self.shape)
        for size in self.shape:
            stride //= size
            start = (here - self.first) // stride % size
            offset = (there - self.first) // stride % size - start
            step = 1 if offset > 0 else -1
            if self.wrap:
                ahead = offset % size
                step = 1 if 2 * ahead < size else -1
                if self.ties(size):
                    if 2 * ahead == size:
                        step = 1 if (start + lane) % 2 == 0 else -1
                    lane >>= 1
                offset = ahead if step > 0 else size - ahead
            for position in range(abs(offset)):
                passed = (start + step * position) % size
                following = (passed + step) % size
                neighbour = node + (following - passed) * stride
                links = graph.parallel[node, neighbour]
                pick = mix(self.seed, node, source, target, flow) % len(links) if len(links) > 1 else 0
                path.append(links[pick])
                node = neighbour
        if there != target != source:
            path.append(graph.parallel[there, target][0])
        return tuple(path)

    def router_of(self, node: int) -> int:
        """The node of the grid that ``node`` is, or hangs on."""
        return node if node >= self.first else self.first + node

    def ties(self, size: int) -> bool:
        """Whether some nodes of a dimension of this size are as far one way round as the other."""
        return self.wrap and size > 2 and size % 2 == 0
