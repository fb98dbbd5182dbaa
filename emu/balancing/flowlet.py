"""flowlet: a flow keeps its link while its packets follow closely, and picks anew after a gap.

Law: two packets of a flow at most ``gap_ps`` apart at a node take the same link while it is a candidate; so with a gap longer
than the difference between the ways, order is kept.  A link is picked by load (CONGA) or by a keyed draw (LetFlow).

Source: Alizadeh et al., "CONGA", SIGCOMM 2014; Vanini et al., "Let it flow", NSDI 2017.  Adapters that pace in hardware
leave few gaps: then this is least-loaded, or ECMP, once per flow.
"""

from __future__ import annotations

from collections.abc import Sequence

from emu.balancing.adaptive import least_deep
from emu.balancing.base import Parameters, Place, View, check_parameters, int_parameter
from emu.errors import ConfigError
from emu.keyed import mix

DEFAULT_GAP_PS = 100_000_000
"""100 us; CONGA's default is 500 us at 10 Gbit/s, LetFlow's 50 to 500 us."""
PICKS = ("load", "hash")


class Flowlet:
    """Per flow: its link, when its last packet came, and how many flowlets it has had."""

    def __init__(self, place: Place, *, gap_ps: int, by_load: bool) -> None:
        self._seed = place.seed
        self._node = place.node
        self._gap_ps = gap_ps
        self._by_load = by_load
        self._flows: dict[int, tuple[int, int, int]] = {}

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
        link, last_ps, number = self._flows.get(flow, (-1, now_ps, 0))
        if now_ps - last_ps > self._gap_ps or link not in candidates:
            number += 1
            key = (self._node, flow, number)
            if self._by_load:
                link = least_deep(candidates, view, self._seed, *key)
            else:
                link = candidates[mix(self._seed, *key) % len(candidates)]
        self._flows[flow] = link, now_ps, number
        return link, lane


def build(place: Place, parameters: Parameters) -> Flowlet:
    """``gap_ps``: the gap, ps.  ``pick``: "load" (default) or "hash"."""
    check_parameters("flowlet", parameters, "gap_ps", "pick")
    pick = parameters.get("pick", "load")
    if pick not in PICKS:
        raise ConfigError(f"balancing 'flowlet': pick = {pick!r}; use {' or '.join(PICKS)}")
    gap_ps = int_parameter("flowlet", parameters, "gap_ps", DEFAULT_GAP_PS, least=0)
    return Flowlet(place, gap_ps=gap_ps, by_load=pick == "load")
