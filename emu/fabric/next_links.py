"""NextLinks: which links lead nearer to a target, without those that are known to be down.

A link is known to be down at t when it was down at t - ``reroute_ps``, and known to be up again likewise: the time of
detecting it and of telling everybody, who all learn it at once.  0 is never.  An outage is what impairments leave no capacity.

Law: a pure function of (node, target, time).  What it offers lies on a shortest way in the graph without the links known to be
down; where that has no way the links of the whole graph are offered, and packets wait for the link.  While what is known
stays, every step leads nearer, so that nothing goes round for ever.

With another router than shortest path, its own links are kept where one of its ways is whole; what is offered is then followed
to the target before it is used, and a router whose ways disagree from hop to hop is refused.  Not modelled: nodes that learn it
one after the other; deadlocks that detours bring to a grid whose order of dimensions was free of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from emu.errors import ConfigError
from emu.fabric.capacity import Capacity, Seeded, seeded, with_another, with_one_more
from emu.impairments.base import BaseImpairment
from emu.topologies.graph import Topology
from emu.topologies.routers import Adjacency, ShortestPath
from emu.units import FOREVER_PS

_MOST_TABLES = 64

Impairments = Mapping[int, tuple[tuple[BaseImpairment, int | None], ...]]
"""By link: (impairment, plane or None)."""


class _Table:
    """What is offered while the same links are known to be down."""

    __slots__ = ("down", "graph", "links")

    def __init__(self, topology: Topology, down: frozenset[int]) -> None:
        self.down = down
        self.graph = Adjacency(topology, down)
        self.links: dict[tuple[int, int], tuple[int, ...]] = {}


class NextLinks:
    """The candidates of every node, by what is known of its fabric."""

    def __init__(self, topology: Topology, *, seed: int, impairments: Impairments, reroute_ps: int) -> None:
        self.topology = topology
        self.reroute_ps = reroute_ps
        self._seed = seed
        self._own = {index: seeded(placed, seed) for index, placed in impairments.items()}
        self._capacities: dict[int, Capacity] = {}
        for index, own in self._own.items():
            if reroute_ps and any(impairment.changes_capacity for impairment, _, _ in own):
                self._capacities[index] = Capacity(link=topology.links[index], index=index, impairments=own)
        self._whole = self._table = _Table(topology, frozenset())
        self._tables = {self._whole.down: self._whole}
        self._since_ps, self._until_ps = (0, reroute_ps) if self._capacities else (0, FOREVER_PS)

    def impair(self, link: int, impairment: BaseImpairment, plane: int | None) -> int:
        """One more impairment of a link.  Returns its place."""
        own = with_one_more(self._own.get(link, ()), impairment, plane, self._seed)
        self._install(link, own)
        return len(own) - 1

    def replace(self, link: int, place: int, impairment: BaseImpairment) -> None:
        """Another impairment in that place."""
        self._install(link, with_another(self._own[link], place, impairment))

    def _install(self, link: int, own: Seeded) -> None:
        self._own[link] = own
        if self.reroute_ps:
            self._capacities[link] = Capacity(link=self.topology.links[link], index=link, impairments=own)
            self._since_ps = self._until_ps = 0  # to be learnt anew

    def of(self, node: int, target_rank: int, now_ps: int) -> tuple[int, ...]:
        """Links of ``node`` towards the rank, in order of index; at least one.

        Raises ConfigError where they may lead round in a circle.
        """
        if not self._since_ps <= now_ps < self._until_ps:
            self._learn(now_ps)
        key = node, target_rank
        found = self._table.links.get(key)
        if found is None:
            if isinstance(self.topology.router, ShortestPath):
                self._table.links[key] = self._find(node, self.topology.ranks[target_rank])
            else:
                self._follow(node, target_rank)
            found = self._table.links[key]
        return found

    def _follow(self, node: int, target_rank: int) -> None:
        """Keep what every node on the ways from ``node`` to the rank offers.  Raises ConfigError for a circle."""
        topology, known = self.topology, self._table.links
        target = topology.ranks[target_rank]
        found = {node: self._find(node, target)}
        way = {node: iter(found[node])}
        while way:
            here = next(reversed(way))
            link = next(way[here], None)
            if link is None:
                del way[here]
                known[here, target_rank] = found[here]
                continue
            there = topology.links[link].target
            if there in way:
                circle = " -> ".join(topology.nodes[place].name for place in [*list(way)[list(way).index(there) :], there])
                raise ConfigError(
                    f"the router of {topology.name} sends packets for {topology.nodes[target].name} round in a circle, {circle}:"
                    " where switching decides hop by hop, the rest of a way must be a way of each node on it"
                )
            if there != target and (there, target_rank) not in known:
                found[there] = self._find(there, target)
                way[there] = iter(found[there])

    def down(self, now_ps: int) -> frozenset[int]:
        """Links that are known to be down."""
        if not self._since_ps <= now_ps < self._until_ps:
            self._learn(now_ps)
        return self._table.down

    def avoided_ps(self, link: int, begin_ps: int, end_ps: int) -> int | None:
        """When, after ``begin_ps`` and before ``end_ps``, the link becomes known to be down; None if it does not."""
        capacity = self._capacities.get(link)
        time_ps: int | None = max(begin_ps + 1, self.reroute_ps)
        while capacity is not None and time_ps is not None and time_ps < end_ps:
            is_up, until_ps = capacity.is_up(time_ps - self.reroute_ps)
            if not is_up:
                return time_ps
            time_ps = None if until_ps is None else until_ps + self.reroute_ps
        return None

    def _learn(self, now_ps: int) -> None:
        """Turn to the stretch of time that holds ``now_ps``."""
        then_ps = now_ps - self.reroute_ps
        if then_ps < 0:
            self._since_ps, self._until_ps, self._table = 0, self.reroute_ps, self._whole
            return
        down = set()
        until_ps = FOREVER_PS
        for link, capacity in self._capacities.items():
            is_up, holds_ps = capacity.is_up(then_ps)
            if not is_up:
                down.add(link)
            if holds_ps is not None:
                until_ps = min(until_ps, holds_ps + self.reroute_ps)
        self._since_ps, self._until_ps = now_ps, until_ps
        known = frozenset(down)
        table = self._tables.get(known)
        if table is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables = {self._whole.down: self._whole}
            table = self._tables[known] = _Table(self.topology, known)
        self._table = table

    def _find(self, node: int, target: int) -> tuple[int, ...]:
        topology, table = self.topology, self._table
        router = topology.router
        if not isinstance(router, ShortestPath):
            ways = [topology.route(node, target, lane) for lane in range(max(1, router.spread))]
            whole = [way for way in ways if table.down.isdisjoint(way)]
            if whole or table.graph.cost(node, target) < 0:
                return tuple(sorted({way[0] for way in whole or ways}))
        return table.graph.next_links(node, target) or self._whole.graph.next_links(node, target)
