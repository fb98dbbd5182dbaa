"""Finding: one thing that is wrong, where, how one sees it, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from emu.units import format_time


class Cause(StrEnum):
    """In words that operators use."""

    SLOW_LINK = "slow link"
    LONG_LINK = "long link"
    LOSSY_LINK = "lossy link"
    FLAPPING_LINK = "flapping link"
    LINK_DOWN = "link down"
    CONGESTED_PORT = "congested port"
    BACKGROUND = "background traffic"
    PAUSE_STORM = "pause storm"
    FEW_CREDITS = "few credits"
    LATE_RANK = "late rank"
    SLOW_COMPUTE = "slow compute"
    SLOW_RECEIVER = "slow receiver"
    STOPPED_RANK = "stopped rank"
    PROCESS_STOPPED = "process stopped"
    DEAD_RANK = "dead rank"
    MISMATCH = "mismatched collective"
    RANK_ORDER = "rank order unfit for the fabric"
    ALGORITHM = "algorithm unfit for the fabric"
    OVERLOADED = "emulator overloaded"
    UNKNOWN = "unknown"
    CONFLICTING = "conflicting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """``value`` of ``metric`` from ``begin_ps`` to ``end_ps``, where ``expected`` was to be expected."""

    metric: str
    value: str
    expected: str
    begin_ps: int
    end_ps: int

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.value}, expected {self.expected} ({format_time(self.begin_ps)} to {format_time(self.end_ps)})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``component``: a link by its name (source->target), a rank as ``rank 3 (a3)``, a node, a pair of nodes, a collective.

    ``share``: of the time that was lost, 0 to 1.  ``confidence``: 0.5 where a value is just at its limit, towards 1 beyond.
    """

    cause: Cause
    component: str
    evidence: Evidence
    share: float
    confidence: float
    flows: tuple[str, ...] = ()
    """Who meets at a congested port."""

    def __str__(self) -> str:
        flows = f"; {', '.join(self.flows)} meet there" if self.flows else ""
        return f"{self.cause}: {self.component}: {self.evidence}{flows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A finding before shares are known.  ``lost_ps``: time that it can account for, by itself; ``in_transfer``: on the way of
    data, rather than before a call begins."""

    cause: Cause
    component: str
    evidence: Evidence
    lost_ps: int
    confidence: float
    in_transfer: bool = True
    flows: tuple[str, ...] = ()


def confidence(value: float, limit: float) -> float:
    """0.5 at the limit, 0.9 at nine times of it."""
    return value / (value + limit) if value > 0 else 0.0
