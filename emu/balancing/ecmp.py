"""ecmp: a seeded hash of the flow picks one of the equal links; a flow keeps it.

Source: RFC 2992 (equal-cost multipath by hash).  Law: k equal flows over n links share them as k balls thrown into n
bins do, so flows collide however many links there are.  Where the candidates change, flows are dealt anew by the
number of them (hash modulo n).  More queue pairs per connection are more, smaller balls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emu.balancing.base import Parameters, Place, View, check_parameters
from emu.keyed import mix

KEEPS_FLOWS_TOGETHER: Final = True


class Ecmp:
    """Switches hash apart from each other, so that choices do not polarise from tier to tier."""

    def __init__(self, place: Place) -> None:
        self._seed = place.seed
        self._node = place.node
        self._chosen: dict[tuple[int, int], int] = {}

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
        key = (flow, len(candidates))
        index = self._chosen.get(key)
        if index is None:
            index = self._chosen[key] = mix(self._seed, self._node, source_rank, target_rank, flow) % len(candidates)
        return candidates[index], lane


def build(place: Place, parameters: Parameters) -> Ecmp:
    """No parameters."""
    check_parameters("ecmp", parameters)
    return Ecmp(place)
