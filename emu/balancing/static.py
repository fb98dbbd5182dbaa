"""static: D-mod-K, the destination alone picks the link; what InfiniBand's subnet managers compute for fat trees.

With k candidates and W the product of the numbers of uplinks on the tiers below the node,

    link = candidates[(target // W) mod k]

Law: all flows to one target take one way down the tree, and shift permutations load every link alike.  Blind to load.

Source: Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat trees", 2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from emu.balancing.base import Parameters, Place, View, check_parameters
from emu.topologies.tiers import Same, tiers

KEEPS_FLOWS_TOGETHER: Final = True


class Static:
    """No state."""

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor

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
        return candidates[target_rank // self._divisor % len(candidates)], lane


@lru_cache(maxsize=4)
def _divisors(fabric: Same) -> tuple[int, ...]:
    """Per node the product of the numbers of uplinks on the tiers below; the least where its children differ."""
    topology = fabric.topology
    tier = tiers(topology)
    parents: list[set[int]] = [set() for _ in topology.nodes]
    n_uplinks = [0] * len(topology.nodes)
    for link in topology.links:
        if tier[link.target] > tier[link.source]:
            parents[link.source].add(link.target)
            n_uplinks[link.source] += 1
    divisors = [0] * len(topology.nodes)
    for node in sorted(range(len(topology.nodes)), key=lambda node: (tier[node], node)):
        divisors[node] = divisors[node] or 1
        for parent in parents[node]:
            product = divisors[node] * n_uplinks[node]
            divisors[parent] = min(divisors[parent], product) if divisors[parent] else product
    return tuple(divisors)


def build(place: Place, parameters: Parameters) -> Static:
    """No parameters."""
    check_parameters("static", parameters)
    return Static(_divisors(Same(place.topology))[place.node])
