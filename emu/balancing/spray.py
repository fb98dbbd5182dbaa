"""spray: the packets of a flow take the equal links in turn, from a keyed start.

Law: of n packets of a flow that pass a node, every one of k links gets n / k, rounded up or down.  Packets overtake each
other; what puts them together again counts bytes (``reorder_packets`` says when a gap is taken for a loss).

Source: Dixit et al., "On the impact of packet spraying in data center networks", INFOCOM 2013; the Ultra Ethernet
specification's entropy values, one after the other.  Not modelled: entropy values that are given up after marks.
"""

from __future__ import annotations

from collections.abc import Sequence

from emu.balancing.base import Parameters, Place, View, check_parameters
from emu.keyed import mix


class Spray:
    """The next turn of each flow."""

    def __init__(self, place: Place) -> None:
        self._seed = place.seed
        self._node = place.node
        self._turns: dict[int, int] = {}

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
        n = len(candidates)
        if n == 1:
            return candidates[0], lane
        turn = self._turns.get(flow)
        if turn is None:
            turn = mix(self._seed, self._node, source_rank, target_rank, flow)
        self._turns[flow] = turn + 1
        return candidates[turn % n], lane


def build(place: Place, parameters: Parameters) -> Spray:
    """No parameters."""
    check_parameters("spray", parameters)
    return Spray(place)
