"""Cases: what a campaign plays, drawn from a seed: a fabric, a workload with ordinary jitter, and nothing, one or two faults.

Law: a case is data, and the same for the same seed.  Severities are a fixed list by cause.  Of three runs one is healthy; a fifth
of all carry two faults, which hit different things and end no run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from emu.diagnosis.finding import Cause

SEVERITIES: Final[dict[Cause, tuple[float, ...]]] = {
    Cause.SLOW_LINK: (0.9, 0.75, 0.5, 0.25),  # of the rate that is left
    Cause.LONG_LINK: (0.5, 2, 10),  # times its latency, added
    Cause.LOSSY_LINK: (1e-4, 1e-3, 1e-2),  # of packets
    Cause.FLAPPING_LINK: (0.1, 0.3, 0.5),  # of the time down
    Cause.LINK_DOWN: (0.05, 0.2, 0.5),  # of a step
    Cause.CONGESTED_PORT: (0.5, 1.0),  # of the line, by each of two or three senders
    Cause.BACKGROUND: (0.2, 0.5, 1.0),  # of the line
    Cause.LATE_RANK: (0.02, 0.05, 0.1, 0.2, 0.5),  # of a step
    Cause.SLOW_COMPUTE: (0.02, 0.05, 0.1, 0.2, 0.5),  # of a step
    Cause.SLOW_RECEIVER: (0.9, 0.75, 0.5, 0.25),  # of the line
    Cause.STOPPED_RANK: (0.05, 0.2, 0.5),  # of a step
    Cause.DEAD_RANK: (1,),
    Cause.MISMATCH: (1,),
    Cause.ALGORITHM: (1,),
    Cause.RANK_ORDER: (1,),
}
"""Fixed before any limit was set."""

ENDING: Final = frozenset({Cause.DEAD_RANK, Cause.MISMATCH})
"""End the run."""
CONFIGURED: Final = frozenset({Cause.ALGORITHM, Cause.RANK_ORDER})
"""Hold from the start, in what was chosen."""
HOSTS: Final = frozenset({Cause.PROCESS_STOPPED, Cause.OVERLOADED})
"""Are the host's, and only emulations have them."""
HEALTHY_SHARE: Final = 1 / 3
DOUBLE_SHARE: Final = 1 / 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """``settings`` as for ``--set``; what is played on it by collective, in bytes."""

    name: str
    settings: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int], ...]
    weight: float = 1.0
    has_jitter: bool = False
    """Whether the delays of its links vary a little."""

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{key}={value}" for key, value in self.settings)))


def _sizes(n_bytes: int, *collectives: str) -> tuple[tuple[str, int], ...]:
    return tuple((collective, n_bytes) for collective in collectives)


_SMALL: Final = _sizes(1 << 20, "all_reduce", "all_gather", "reduce_scatter", "alltoall") + _sizes(1 << 22, "all_reduce")
_LARGE: Final = _sizes(1 << 20, "all_reduce", "all_gather")
_PACKETS: Final = _sizes(1 << 19, "all_reduce", "all_gather", "alltoall")

RING: Final = Fabric(name="ring", settings=(("ranks", "8"),), sizes=_SMALL)
"""Where the order of ranks matters,"""
WIDE: Final = Fabric(name="star", settings=(("ranks", "16"),), sizes=_SMALL, has_jitter=True)
"""and the choice of an algorithm."""
FABRICS: Final = (
    Fabric(name="star", settings=(("ranks", "8"),), sizes=_SMALL, weight=2, has_jitter=True),
    WIDE,
    Fabric(name="star", settings=(("ranks", "64"),), sizes=_LARGE, weight=0.25),
    Fabric(name="torus", settings=(("shape", "4x2"),), sizes=_SMALL, has_jitter=True),
    Fabric(name="torus", settings=(("shape", "4x4"),), sizes=_SMALL, weight=2),
    Fabric(name="torus", settings=(("shape", "4x4x4"),), sizes=_LARGE, weight=0.25),
    Fabric(
        name="clos",
        settings=(("leaves", "2"), ("spines", "2"), ("accelerators_per_leaf", "4")),
        sizes=_SMALL,
        has_jitter=True,
    ),
    Fabric(name="clos", settings=(("leaves", "4"), ("spines", "4"), ("accelerators_per_leaf", "8")), sizes=_LARGE, weight=0.5),
    Fabric(name="star", settings=(("ranks", "8"), ("switching", "roce-pfc")), sizes=_PACKETS, weight=0.5),
    Fabric(name="star", settings=(("ranks", "8"), ("switching", "infiniband")), sizes=_PACKETS, weight=0.4, has_jitter=True),
    Fabric(
        name="clos",
        settings=(("leaves", "4"), ("spines", "2"), ("accelerators_per_leaf", "4"), ("switching", "infiniband")),
        sizes=_PACKETS,
        weight=0.5,
    ),
    Fabric(
        name="clos",
        settings=(("leaves", "2"), ("spines", "2"), ("accelerators_per_leaf", "4"), ("switching", "ultra-ethernet")),
        sizes=_PACKETS,
        weight=0.5,
    ),
)
"""Switch, torus and leaf-spine of 8 to 64 ranks; without and with switching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fault to come.  ``place`` is drawn again where it does not fit, and means a component once the fabric is known."""

    cause: Cause
    severity: float
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run.  ``compute_share`` of the time of a call is computed before each, and varies by chance where ``has_jitter``.
    Faults begin after ``onset`` iterations."""

    seed: int
    fabric: Fabric
    collective: str
    algorithm: str
    size_bytes: int
    compute_share: float
    has_jitter: bool
    faults: tuple[Planned, ...] = field(default=())
    n_iterations: int = 7
    onset: int = 2

    @property
    def is_shuffled(self) -> bool:
        """Whether its ranks are in no order."""
        return any(fault.cause is Cause.RANK_ORDER for fault in self.faults)


def draw(seed: int, fabrics: tuple[Fabric, ...] = FABRICS, causes: tuple[Cause, ...] = tuple(SEVERITIES)) -> Case:
    """The case of a seed."""
    chance = random.Random(seed)
    fabric = chance.choices(fabrics, [one.weight for one in fabrics])[0]
    collective, size_bytes = chance.choice(fabric.sizes)
    algorithm = "auto"
    kind = chance.random()
    faults: tuple[Planned, ...] = ()
    if kind > HEALTHY_SHARE:
        faults = (_plan(chance, causes),)
        if kind > 1 - DOUBLE_SHARE:
            lasting = tuple(cause for cause in causes if cause not in ENDING | CONFIGURED)
            first, second = chance.sample(lasting, 2)
            faults = _plan(chance, (first,)), _plan(chance, (second,))
    if faults and faults[0].cause is Cause.ALGORITHM:
        fabric = WIDE
        collective, algorithm, size_bytes = "all_reduce", "ring", 1 << 14
    if faults and faults[0].cause is Cause.RANK_ORDER:
        fabric = RING
        collective, algorithm, size_bytes = "all_reduce", "ring", 1 << 20
    return Case(
        seed=seed,
        fabric=fabric,
        collective=collective,
        algorithm=algorithm,
        size_bytes=size_bytes,
        compute_share=chance.uniform(0.3, 1.0),
        has_jitter=chance.random() < 0.5,
        faults=faults,
    )


def _plan(chance: random.Random, causes: tuple[Cause, ...]) -> Planned:
    cause = chance.choice(causes)
    return Planned(cause=cause, severity=chance.choice(SEVERITIES[cause]), place=chance.getrandbits(32))
