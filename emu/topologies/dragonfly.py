"""dragonfly: switches in full-mesh groups, groups in a full mesh by their long cables.

Law: two accelerators of one switch are two links apart, of one group three, of different groups at most five: local, global,
local between the switches of a minimal way (Kim et al., "Technology-driven, highly-scalable dragonfly topology", ISCA 2008).
The long cables of a group are dealt over its switches and over the other groups evenly (:mod:`emu.topologies.circulant`).

Routes are the shortest ones, by ECMP; detours over a third group (Valiant) are not taken.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final, Self

from pydantic import Field, model_validator

from emu.parameters import RateBps, TimePs
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.circulant import circulant
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import ShortestPath

_MOST_CABLES: Final = 262144


class Parameters(LinkParameters):
    """``rate`` is an accelerator's; ``latency`` is that of each cable, with the switch behind it."""

    groups: int = Field(default=4, ge=1, le=512)
    """Number of groups."""
    switches_per_group: int = Field(default=4, ge=1, le=512)
    """Switches in each group, each cabled to all others of it."""
    accelerators_per_switch: int = Field(default=2, ge=1, le=256)
    """Accelerators on each switch."""
    global_cables: int = Field(default=2, ge=1, le=1024)
    """Cables between each two groups."""
    local_rate: RateBps | None = None
    """Rate of a cable between two switches of a group; left out, rate."""
    global_rate: RateBps | None = None
    """Rate of a cable between two groups; left out, rate."""
    local_latency: TimePs | None = None
    """One way latency of a cable within a group; left out, latency."""
    global_latency: TimePs | None = None
    """One way latency of a cable between groups; left out, latency."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        per_group = self.switches_per_group * (self.accelerators_per_switch + (self.switches_per_group - 1) // 2)
        n_cables = self.groups * per_group + self.groups * (self.groups - 1) // 2 * self.global_cables
        if n_cables > _MOST_CABLES:
            raise ValueError(f"groups, switches and accelerators make {n_cables} cables; use at most {_MOST_CABLES}")
        return self


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. and switches s0.., both in order of group."""
    groups, per_group = parameters.groups, parameters.switches_per_group
    cabling = Cabling(parameters)
    accelerators = cabling.accelerators(groups * per_group * parameters.accelerators_per_switch)
    switches = cabling.switches(groups * per_group)
    for number, accelerator in enumerate(accelerators):
        cabling.cable(accelerator, switches[number // parameters.accelerators_per_switch])
    for group in range(groups):
        for a, b in combinations(switches[group * per_group : (group + 1) * per_group], 2):
            cabling.cable(a, b, rate_bps=parameters.local_rate, latency_ps=parameters.local_latency)
    pairs: dict[tuple[int, int], int] = {}
    for group, port, other, back in circulant(groups, (groups - 1) * parameters.global_cables):
        pair = switches[group * per_group + port % per_group], switches[other * per_group + back % per_group]
        pairs[pair] = pairs.get(pair, 0) + 1
    for (a, b), n_parallel in pairs.items():
        cabling.cable(a, b, rate_bps=parameters.global_rate, latency_ps=parameters.global_latency, n_parallel=n_parallel)
    return cabling.topology(
        "dragonfly",
        f"{groups} groups x {per_group} switches x {parameters.accelerators_per_switch} accelerators",
        ShortestPath(),
        structure=Structure(bisection_bps=_bisection_bps(parameters)),
        nesting=(groups, per_group),
    )


def _bisection_bps(parameters: Parameters) -> int | None:
    """Between the lower and the upper half of the groups, where they can be halved."""
    half, odd = divmod(parameters.groups, 2)
    if odd:
        return None
    crossing_bps = half * half * parameters.global_cables * (parameters.global_rate or parameters.rate)
    return min(crossing_bps, half * parameters.switches_per_group * parameters.accelerators_per_switch * parameters.rate)
