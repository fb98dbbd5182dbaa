"""A row of the table: what was measured, what the model says, and what the comparison is worth.

The verdict says whether the host kept pace: ``ok`` when the stopwatch is within 2 % of
the model and the weight of order violations is at most 1 % of the model's time, else
``degraded``, as it is where an actor's process was stopped.  There is none (``-``) where nothing was paced: unpaced
(dilation 0) or simulated.  Degraded rows are printed, marked, and left out of averages.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from emu.collectives import busbw
from emu.telemetry.congestion import CongestionReport, merged

MAX_LATE: Final = 0.02
MAX_ORDER_WEIGHT: Final = 0.01


class Verdict(StrEnum):
    """In order of badness."""

    NONE = "-"
    OK = "ok"
    DEGRADED = "degraded"


def judge(*, late: float | None, order_weight: float, was_stopped: bool = False) -> Verdict:
    """The verdict on one loop.  ``late`` is measured / model - 1, None where nothing was paced."""
    if late is None:
        return Verdict.NONE
    kept = abs(late) <= MAX_LATE and order_weight <= MAX_ORDER_WEIGHT and not was_stopped
    return Verdict.OK if kept else Verdict.DEGRADED


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The out-of-place or the in-place half of a row.  Times are of one operation.

    ``measured_ps`` is the stopwatch over the dilation, or just the stopwatch where nothing is paced (dilation 0:
    the speed of this host's data path); None under simulate.  ``n_wrong`` is
    None where it is not applicable.  ``order_weight`` is the model time by which order violations
    held frames back, over the loop's.  ``iteration_ps`` has the model's times of the single iterations;
    ``p5_ps`` and ``p95_ps`` are over seeds.  ``spent_ps``: what the loop's time went to, by
    :class:`emu.fabric.account.Cause`, summed over ranks and seeds.  ``congestion``: what ports and adapters counted in the whole
    loop (summed over seeds); None on a fabric without switching.  ``stopped_s``: actors whose processes were stopped, and for
    how long.
    """

    measured_ps: int | None
    model_ps: int
    late: float | None
    verdict: Verdict
    n_wrong: int | None
    algorithm: str
    chunk_bytes: int | None
    dilation: float | None
    seed: int
    order_violations: int
    order_weight: float
    transport_backpressure: int
    largest_lateness_ps: int
    wire_bytes_per_rank_max: int
    protocol: str = ""
    """What the kernels used, where the fabric has an endpoint."""
    iteration_ps: tuple[int, ...] = ()
    spent_ps: tuple[int, ...] = ()
    method: str = ""
    """How it was found, where that is not by running the loop."""
    p5_ps: int | None = None
    p95_ps: int | None = None
    congestion: CongestionReport | None = None
    stopped_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_ps(self) -> int:
        """The table's ``time``: measured, or the model's under simulate."""
        return self.model_ps if self.measured_ps is None else self.measured_ps

    @property
    def unpaced(self) -> bool:
        """Order was not kept, so the model's time means nothing."""
        return self.dilation == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size.  ``op`` is ``none`` and ``root`` -1 where the collective has none."""

    collective: str
    n_ranks: int
    size_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Side
    in_place: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.out_of_place, self.in_place

    @property
    def verdict(self) -> Verdict:
        """The worse of the two sides."""
        order = list(Verdict)
        return max((side.verdict for side in self.sides), key=order.index)

    @property
    def stopped_s(self) -> dict[str, float]:
        """Actors whose processes were stopped in either half, and for how long."""
        return {name: sum(side.stopped_s.get(name, 0.0) for side in self.sides) for side in self.sides for name in side.stopped_s}

    @property
    def late(self) -> float | None:
        """The larger deviation of the two sides."""
        lates = [side.late for side in self.sides if side.late is not None]
        return max(lates, key=abs) if lates else None

    @property
    def n_wrong(self) -> int:
        """Wrong elements on both sides."""
        return sum(side.n_wrong or 0 for side in self.sides)

    def algbw_gb_per_s(self, side: Side) -> float:
        """Decimal."""
        return float(busbw.algbw_gb_per_s(self.size_bytes, side.time_ps))

    def busbw_gb_per_s(self, side: Side) -> float:
        """Decimal."""
        return float(busbw.busbw_gb_per_s(self.collective, self.size_bytes, self.n_ranks, side.time_ps))


def average_busbw_gb_per_s(rows: Sequence[Row]) -> float | None:
    """nccl-tests' average: over all out-of-place and in-place values, but for degraded rows; None when none is left."""
    values = [row.busbw_gb_per_s(side) for row in rows if row.verdict is not Verdict.DEGRADED for side in row.sides]
    return statistics.fmean(values) if values else None


def percentile(values: Sequence[int], percent: int) -> int:
    """Nearest rank: the smallest value that at least ``percent`` % of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def over_seeds(rows: Sequence[Row]) -> Row:
    """One row from the same row under several seeds: medians of times, their p5 and p95; wrong elements and violations
    are summed, verdict and lateness are the worst."""
    first = rows[0]
    if len(rows) == 1:
        return first
    return replace(
        first,
        out_of_place=_side_over_seeds([row.out_of_place for row in rows]),
        in_place=_side_over_seeds([row.in_place for row in rows]),
    )


def _side_over_seeds(sides: Sequence[Side]) -> Side:
    first = sides[0]
    measured = [side.measured_ps for side in sides if side.measured_ps is not None]
    lates = [side.late for side in sides if side.late is not None]
    wrong = [side.n_wrong for side in sides if side.n_wrong is not None]
    times = [side.time_ps for side in sides]
    order = list(Verdict)
    return replace(
        first,
        measured_ps=round(statistics.median(measured)) if measured else None,
        model_ps=round(statistics.median(side.model_ps for side in sides)),
        late=max(lates, key=abs) if lates else None,
        verdict=max((side.verdict for side in sides), key=order.index),
        n_wrong=sum(wrong) if wrong else None,
        dilation=max((side.dilation for side in sides if side.dilation is not None), default=None),
        order_violations=sum(side.order_violations for side in sides),
        order_weight=max(side.order_weight for side in sides),
        transport_backpressure=sum(side.transport_backpressure for side in sides),
        largest_lateness_ps=max(side.largest_lateness_ps for side in sides),
        wire_bytes_per_rank_max=max(side.wire_bytes_per_rank_max for side in sides),
        iteration_ps=tuple(time for side in sides for time in side.iteration_ps),
        spent_ps=tuple(map(sum, zip(*(side.spent_ps for side in sides), strict=True))),
        p5_ps=percentile(times, 5),
        p95_ps=percentile(times, 95),
        congestion=merged(side.congestion for side in sides if side.congestion is not None),
    )
