"""adaptive: every packet takes the equal link with the least that waits for it; among equals a keyed draw.

Law: the chosen link is no deeper than any other candidate at that moment.  Only the node's own queues are seen, so
congestion farther on shows as late as it backs up to here.  Packets of a flow overtake each other.

Source: the adaptive routing of InfiniBand switches and of Spectrum-X as NVIDIA describes it (per packet, by egress
queue load).  Not modelled: grades of load, thresholds, and notices of remote congestion.
"""

from __future__ import annotations

from collections.abc import Sequence

from emu.balancing.base import Parameters, Place, View, check_parameters
from emu.keyed import mix


def least_deep(candidates: Sequence[int], view: View, seed: int, *key: int) -> int:
    """The candidate with the fewest bytes waiting; a draw by ``key`` among equals."""
    depths = [view.depth_bytes(link) for link in candidates]
    least = min(depths)
    best = [link for link, depth in zip(candidates, depths, strict=True) if depth == least]
    return best[0] if len(best) == 1 else best[mix(seed, *key) % len(best)]


class Adaptive:
    """No state but the queues of the node."""

    def __init__(self, place: Place) -> None:
        self._seed = place.seed
        self._node = place.node

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
        if len(candidates) == 1:
            return candidates[0], lane
        return least_deep(candidates, view, self._seed, self._node, flow, sequence), lane


def build(place: Place, parameters: Parameters) -> Adaptive:
    """No parameters."""
    check_parameters("adaptive", parameters)
    return Adaptive(place)
