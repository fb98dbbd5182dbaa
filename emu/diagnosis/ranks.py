"""Ranks: who is late, computes slowly, takes in slowly, or stood still.

Lateness and computation stand out where their mean over some calls in a row exceeds the median rank's by a share of the step and
by more than chance.  Over many calls that is a late rank or slow compute; over few alone, and by far, the rank was stopped.  A
rank at whose interface data lay while it took in nothing was stopped, whatever else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Final

from emu.diagnosis.finding import Cause, Evidence, Suspicion, confidence
from emu.diagnosis.limits import Limits
from emu.diagnosis.steps import Steps
from emu.diagnosis.windows import Window
from emu.telemetry.observation import RankSeen
from emu.units import PS_PER_SECOND, format_rate, format_time

TO_STANDARD_DEVIATION: Final = 1.4826
"""Of a normal distribution, over its median absolute deviation."""


def suspect_ranks(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """Every rank with something wrong."""
    idled = {rank.rank: [step.idled_more_ps.get(rank.rank, 0) for step in steps.steps] for rank in steps.seen.ranks}
    computed = {rank.rank: [step.computed_more_ps.get(rank.rank, 0) for step in steps.steps] for rank in steps.seen.ranks}
    kinds = (Cause.LATE_RANK, idled, _deviation_ps(idled)), (Cause.SLOW_COMPUTE, computed, _deviation_ps(computed))
    for rank in steps.seen.ranks:
        events = [(cause, _Stretch.of(more[rank.rank], steps, limits), deviation) for cause, more, deviation in kinds]
        stopped = _stuck(steps, rank, limits)
        if stopped is not None:
            yield stopped
        for cause, stretch, deviation_ps in events:
            enough = min(limits.repeats_share * len(steps.steps), limits.repeats_enough)
            lasts = len(stretch.more_ps) >= max(limits.repeats, enough)
            limit_ps = stretch.limit_ps(steps, limits, deviation_ps) * (1 if lasts else limits.once_factor)
            if stretch.mean_ps > limit_ps and (lasts or stopped is None):
                yield _stands_out(steps, rank, cause if lasts else Cause.STOPPED_RANK, stretch, limit_ps)
        receiver = steps.windows.tell(partial(_slow_receiver, limits, rank))
        if receiver is not None:
            yield receiver


class _Stretch:
    """The calls in a row in which a rank stands out most: those with the largest sum of what is above the least lateness."""

    def __init__(self, first: int, more_ps: list[int]) -> None:
        self.first = first
        self.more_ps = more_ps
        self.mean_ps = sum(more_ps) // max(1, len(more_ps))

    @staticmethod
    def of(more_ps: list[int], steps: Steps, limits: Limits) -> _Stretch:
        """Kadane's maximum sum of a row."""
        least_ps = limits.late_share * steps.mean_ps
        best, best_sum = (0, 0), 0.0
        first, total = 0, 0.0
        for number, value in enumerate(more_ps):
            if total <= 0:
                first, total = number, 0.0
            total += value - least_ps
            if total > best_sum:
                best, best_sum = (first, number + 1), total
        return _Stretch(best[0], more_ps[best[0] : best[1]])

    def limit_ps(self, steps: Steps, limits: Limits, deviation_ps: float) -> float:
        """What the mean of so many calls does not exceed by chance."""
        by_chance_ps = limits.late_deviations * deviation_ps / math.sqrt(max(1, len(self.more_ps)))
        return max(limits.late_share * steps.mean_ps, by_chance_ps)


def _deviation_ps(more_ps: dict[int, list[int]]) -> float:
    """The standard deviation of what is normal, from the median of absolute deviations."""
    every = [abs(value) for values in more_ps.values() for value in values]
    return TO_STANDARD_DEVIATION * statistics.median(every) if every else 0.0


def name(rank: RankSeen) -> str:
    """As findings have it."""
    return f"rank {rank.rank} ({rank.node})"


def _stands_out(steps: Steps, rank: RankSeen, cause: Cause, stretch: _Stretch, limit_ps: float) -> Suspicion:
    its = steps.steps[stretch.first : stretch.first + len(stretch.more_ps)]
    metric = "began a call" if cause is Cause.LATE_RANK else "computed before a call"
    return Suspicion(
        cause=cause,
        component=name(rank),
        evidence=Evidence(
            metric=f"{metric}, in {len(its)} of {len(steps.steps)} calls",
            value=f"{format_time(stretch.mean_ps)} {'late' if cause is Cause.LATE_RANK else 'more'}",
            expected=f"as the median rank, within {format_time(int(limit_ps))}",
            begin_ps=its[0].median_start_ps,
            end_ps=its[-1].end_ps,
        ),
        lost_ps=steps.waited_for_ps(rank.rank),
        confidence=confidence(stretch.mean_ps, limit_ps),
        in_transfer=False,
    )


def _stuck(steps: Steps, rank: RankSeen, limits: Limits) -> Suspicion | None:
    limit_ps = limits.late_share * steps.mean_ps
    intake = steps.windows.whole.intakes.get(rank.rank)
    if intake is None or intake.stuck_ps <= limit_ps:
        return None
    return Suspicion(
        cause=Cause.STOPPED_RANK,
        component=name(rank),
        evidence=Evidence(
            metric="data lay there and none was taken in",
            value=format_time(intake.stuck_ps),
            expected="0 s",
            begin_ps=steps.begin_ps,
            end_ps=steps.end_ps,
        ),
        lost_ps=intake.stuck_ps,
        confidence=confidence(intake.stuck_ps, limit_ps),
    )


def _slow_receiver(limits: Limits, rank: RankSeen, window: Window) -> Suspicion | None:
    intake = window.intakes.get(rank.rank)
    if intake is None or not intake.busy_ps:
        return None
    usual_bps = min(rank.line_rate_bps, rank.drain_rate_bps or rank.line_rate_bps)
    taken_bps = 8 * intake.busy_bytes * PS_PER_SECOND // intake.busy_ps
    missing = 1 - taken_bps / usual_bps
    if missing <= limits.drain_share:
        return None
    return Suspicion(
        cause=Cause.SLOW_RECEIVER,
        component=name(rank),
        evidence=window.evidence("taken in, while data waited", format_rate(taken_bps), format_rate(usual_bps)),
        lost_ps=intake.busy_ps - 8 * intake.busy_bytes * PS_PER_SECOND // usual_bps,
        confidence=confidence(missing, limits.drain_share),
    )
