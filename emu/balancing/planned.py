"""planned: named ways for named pairs, as a traffic engineer or a scheduler that knows the job lays them.

    paths       "a0 s0 s1 s2 a2; a1 s1 s2 s3 a3": nodes from rank to rank, one way per line or between semicolons.  Of several
                ways of one pair each queue pair takes one by a keyed hash; so it does among parallel cables
    datelines   "s3->s0": links on which a packet moves to the next virtual lane, up to the last one of ``lanes``

Pairs without a way go by ECMP.  Law: a packet of a planned pair takes exactly its way, links down or not.

With ways that turn round a ring, buffers wait for each other in a cycle; a dateline on the ring breaks it, as the lane
beyond it waits for nothing before it (Dally and Seitz, "Deadlock-free message routing in multiprocessor
interconnection networks", IEEE ToC 36(5), 1987).  With one lane a dateline does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from emu.balancing.base import Parameters, Place, View, check_parameters, text_parameter
from emu.balancing.ecmp import Ecmp
from emu.errors import ConfigError
from emu.keyed import mix
from emu.topologies.graph import Topology

Way = tuple[int, ...]
"""Nodes from the source's to the target's."""

KEEPS_FLOWS_TOGETHER: Final = True


class Planned:
    """Per pair and way: the links to take from this node, and the lane on them."""

    def __init__(self, place: Place, ways: dict[tuple[int, int], list[Way]], datelines: frozenset[int]) -> None:
        self._seed = place.seed
        self._otherwise = Ecmp(place)
        topology = place.topology
        last_lane = topology.switching.n_lanes - 1 if topology.switching is not None else 0
        cables: dict[tuple[int, int], list[int]] = {}
        for index, link in enumerate(topology.links):
            cables.setdefault((link.source, link.target), []).append(index)
        self._hops: dict[tuple[int, int], list[tuple[tuple[int, ...], int] | None]] = {}
        for pair, planned in ways.items():
            hops = self._hops[pair] = []
            for way in planned:
                if place.node not in way[:-1]:
                    hops.append(None)
                    continue
                position = way.index(place.node)
                crossed = [cables[hop] for hop in pairwise(way[: position + 2])]
                lane = sum(1 for links in crossed if datelines.issuperset(links))
                hops.append((tuple(crossed[-1]), min(lane, last_lane)))

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
        ways = self._hops.get((source_rank, target_rank))
        hop = None if ways is None else ways[mix(self._seed, flow) % len(ways)]
        if hop is None:
            return self._otherwise.choose(
                candidates,
                source_rank=source_rank,
                target_rank=target_rank,
                flow=flow,
                sequence=sequence,
                lane=lane,
                view=view,
                now_ps=now_ps,
            )
        links, lane = hop
        return links[mix(self._seed, flow, links[0]) % len(links)], lane


def _read_ways(topology: Topology, text: str) -> dict[tuple[int, int], list[Way]]:
    index = {node.name: number for number, node in enumerate(topology.nodes)}
    rank_of = {node: rank for rank, node in enumerate(topology.ranks)}
    joined = {(link.source, link.target) for link in topology.links}
    ways: dict[tuple[int, int], list[Way]] = {}
    for line in text.replace(";", "\n").splitlines():
        names = line.split()
        if not names:
            continue
        for name in names:
            if name not in index:
                raise ConfigError(
                    f"balancing 'planned': path {line.strip()!r}: {topology.name} has no node {name!r}; name its nodes"
                )
        way = tuple(index[name] for name in names)
        if way[0] not in rank_of or way[-1] not in rank_of or len(set(way)) < max(2, len(way)):
            raise ConfigError(f"balancing 'planned': path {line.strip()!r} must lead from rank to rank and pass no node twice")
        for a, b in pairwise(way):
            if (a, b) not in joined:
                names_joined = f"{topology.nodes[a].name} to {topology.nodes[b].name}"
                raise ConfigError(
                    f"balancing 'planned': path {line.strip()!r}: no link from {names_joined}; take links that exist"
                )
        ways.setdefault((rank_of[way[0]], rank_of[way[-1]]), []).append(way)
    return ways


def _read_datelines(topology: Topology, text: str) -> frozenset[int]:
    index = {link.name: number for number, link in enumerate(topology.links)}
    for name in text.split():
        if name not in index:
            raise ConfigError(f"balancing 'planned': datelines: {topology.name} has no link {name!r}; write for example s3->s0")
    return frozenset(index[name] for name in text.split())


def build(place: Place, parameters: Parameters) -> Planned:
    """``paths`` and ``datelines``; see the module."""
    check_parameters("planned", parameters, "paths", "datelines")
    ways = _read_ways(place.topology, text_parameter("planned", parameters, "paths"))
    datelines = _read_datelines(place.topology, text_parameter("planned", parameters, "datelines"))
    return Planned(place, ways, datelines)
