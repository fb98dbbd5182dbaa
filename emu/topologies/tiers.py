"""Tiers: how far above the accelerators a node is, for policies that look at the whole graph."""

from __future__ import annotations

from functools import lru_cache

from emu.topologies.graph import Topology


class Same:
    """A topology as a key of a cache: equal only to itself, so that it need not be hashed link by link."""

    __slots__ = ("topology",)

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def __hash__(self) -> int:
        return id(self.topology.links)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Same)
            and other.topology.links is self.topology.links
            and other.topology.nodes is self.topology.nodes
            and other.topology.ranks is self.topology.ranks
        )


def tiers(topology: Topology) -> tuple[int, ...]:
    """Per node the hops from the nearest rank: 0 for ranks, 1 for leaf switches, 2 for what joins those."""
    return distances(topology, topology.ranks)


def link_tiers(topology: Topology) -> tuple[int, ...]:
    """Per link the tier of its upper end, 1 where it joins ranks."""
    return _link_tiers(Same(topology))


@lru_cache(maxsize=4)
def _link_tiers(same: Same) -> tuple[int, ...]:
    tier = tiers(same.topology)
    return tuple(max(1, tier[link.source], tier[link.target]) for link in same.topology.links)


def distances(topology: Topology, sources: tuple[int, ...]) -> tuple[int, ...]:
    """Per node the hops from the nearest of ``sources``, -1 where there is no way."""
    out = topology.out_links()
    found = [-1] * len(topology.nodes)
    for source in sources:
        found[source] = 0
    frontier = list(sources)
    while frontier:
        reached = []
        for node in frontier:
            for index in out[node]:
                target = topology.links[index].target
                if found[target] < 0:
                    found[target] = found[node] + 1
                    reached.append(target)
        frontier = reached
    return tuple(found)
