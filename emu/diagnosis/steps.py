"""Steps: the calls of an observation, with all ranks of each side by side.

For each rank and call three times are told apart: what it computed since its call before, the *gap* in which it did neither, and
what the call took.  What a rank's gap or computation has over the median of all ranks is its own.  A call is *late* from the
median of the ranks' starts to the last; what is after that is its *transfer*, to be compared with what the fabric gives.

Where calls overlap (``async_op``) a gap cannot be seen, and counts as none.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from emu.diagnosis.windows import Windows
from emu.telemetry.observation import Expected, Kind, Observation
from emu.telemetry.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call.  By rank: when it began, which is after the call before it where it waited for that; and how much more than the
    median it computed and idled before.  ``is_queued``: some rank had made it before the call before it was over."""

    kind: Kind
    expected: Expected | None
    start_ps: dict[int, int]
    computed_more_ps: dict[int, int]
    idled_more_ps: dict[int, int]
    end_ps: int
    is_queued: bool

    @property
    def median_start_ps(self) -> int:
        return int(statistics.median_low(self.start_ps.values()))

    @property
    def last_start_ps(self) -> int:
        return max(self.start_ps.values())

    @property
    def last_rank(self) -> int:
        return max(self.start_ps, key=lambda rank: (self.start_ps[rank], -rank))

    @property
    def wait_ps(self) -> int:
        """From the median rank's start to the last's, as far as the last one's own doing goes: another part of it may be that
        the call before came to its end later there."""
        last = self.last_rank
        own_ps = self.computed_more_ps[last] + self.idled_more_ps[last]
        return max(0, min(self.last_start_ps - self.median_start_ps, own_ps))

    @property
    def transfer_ps(self) -> int:
        return self.end_ps - self.last_start_ps

    @property
    def more_ps(self) -> int:
        """What the transfer takes beyond the expected; less than 0 where it takes less.  A barrier is there to wait."""
        return self.transfer_ps - self.expected_ps if self.expected_ps else 0

    @property
    def expected_ps(self) -> int:
        """What the transfer is expected to take; 0 where that is not known."""
        return 0 if self.expected is None or self.kind.collective == "barrier" else self.expected.time_ps


class Steps:
    """All collective calls of an observation that all its ranks have completed.  ``n_partial``: that some of them have."""

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        calls = _calls(seen)
        self.steps = _steps(calls, {one.kind: one for one in seen.expected}, _Busy(seen))
        self.n_partial = len(calls) - len(self.steps)
        self._spans_ps = [
            (min(one.started_ps for one in by_rank.values()), max(one.completed_ps for one in by_rank.values()))
            for by_rank in calls.values()
        ]
        self.windows = Windows(seen)
        self.begin_ps = min((timing.submitted_ps - timing.computed_ps for timing in seen.timings), default=0)
        self.end_ps = max((timing.completed_ps for timing in seen.timings), default=seen.elapsed_ps)

    @cached_property
    def mean_ps(self) -> int:
        """Of a step, computation included."""
        return self.length_ps // max(1, len(self.steps))

    @cached_property
    def length_ps(self) -> int:
        """Of all runs, without the rest between them."""
        return sum(spans_ps(self.seen.timings))

    @cached_property
    def wait_ps(self) -> int:
        return sum(step.wait_ps for step in self.steps)

    @cached_property
    def more_ps(self) -> int:
        """Of all transfers.  Calls that queue may overlap, so that one takes more and the next as much less."""
        rows: list[int] = []
        for step in self.steps:
            if step.is_queued and rows:
                rows[-1] += step.more_ps
            else:
                rows.append(step.more_ps)
        return sum(max(0, more_ps) for more_ps in rows)

    @cached_property
    def expected_ps(self) -> int:
        """Of all transfers."""
        return sum(step.expected_ps for step in self.steps)

    def n_open(self, time_ps: int) -> int:
        """Calls that were under way then."""
        return sum(begin_ps < time_ps < end_ps for begin_ps, end_ps in self._spans_ps)

    def waited_for_ps(self, rank: int) -> int:
        """What the others waited for a rank in the calls that it was the last to start."""
        return sum(step.wait_ps for step in self.steps if step.last_rank == rank)


def spans_ps(timings: Iterable[Timing]) -> list[int]:
    """How long each run took."""
    return [end_ps - begin_ps for begin_ps, end_ps in runs_ps(timings)]


def runs_ps(timings: Iterable[Timing]) -> list[tuple[int, int]]:
    """When each run began and ended: by communicator, the first rank's beginning and the last one's end."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for one in timings:
        begin_ps = one.submitted_ps - one.computed_ps
        begins[one.communicator] = min(begins.get(one.communicator, begin_ps), begin_ps)
        ends[one.communicator] = max(ends.get(one.communicator, 0), one.completed_ps)
    return [(begin_ps, ends[communicator]) for communicator, begin_ps in begins.items()]


def kind_of(timing: Timing, members: tuple[int, ...]) -> Kind:
    """What was called."""
    return Kind(
        collective=timing.collective,
        algorithm=timing.algorithm,
        root=timing.root,
        channels=timing.channels,
        chunk_bytes=timing.chunk_bytes,
        protocol=timing.protocol,
        size_bytes=timing.size_bytes,
        members=members,
    )


def _calls(seen: Observation) -> dict[tuple[int, int], dict[int, Timing]]:
    """Timings by rank, by communicator and number.  Those of one rank alone are no call between ranks."""
    found: dict[tuple[int, int], dict[int, Timing]] = {}
    for timing in seen.timings:
        if timing.number >= 0 and timing.n_ranks > 1:
            found.setdefault((timing.communicator, timing.number), {})[timing.rank] = timing
    return found


class _Busy:
    """When each rank was last in another call."""

    def __init__(self, seen: Observation) -> None:
        self._ended: dict[int, list[Timing]] = {}
        for timing in seen.timings:  # which are in order of completion
            self._ended.setdefault(timing.rank, []).append(timing)

    def until_ps(self, one: Timing, before: Timing | None) -> int:
        """When the rank of ``one`` was last through with a call, before it made this one: the one before it, or what it did in
        between, sends and receives and the calls of other groups."""
        ended = self._ended[one.rank]
        least_ps = 0 if before is None else before.completed_ps
        for number in range(bisect_right(ended, one.submitted_ps, key=lambda its: its.completed_ps) - 1, -1, -1):
            other = ended[number]
            if other.completed_ps <= least_ps:
                break
            if before is not None or other.communicator == one.communicator:
                return other.completed_ps
        return least_ps


def _steps(calls: dict[tuple[int, int], dict[int, Timing]], expected: dict[Kind, Expected], busy: _Busy) -> tuple[Step, ...]:
    found = []
    for (communicator, number), by_rank in calls.items():
        first = next(iter(by_rank.values()))
        if len(by_rank) < first.n_ranks:
            continue
        before = calls.get((communicator, number - 1), {})
        computed, idled = _between(before, by_rank, busy) if number == 0 or len(before) == len(by_rank) else ({}, {})
        kind = kind_of(first, tuple(sorted(by_rank)))
        found.append(
            Step(
                kind=kind,
                expected=expected.get(kind),
                start_ps={rank: one.started_ps for rank, one in by_rank.items()},
                computed_more_ps=_more(computed) or dict.fromkeys(by_rank, 0),
                idled_more_ps=_more(idled) or dict.fromkeys(by_rank, 0),
                end_ps=max(one.completed_ps for one in by_rank.values()),
                is_queued=any(one.started_ps > one.submitted_ps for one in by_rank.values()),
            )
        )
    return tuple(sorted(found, key=lambda step: step.end_ps))


def _between(before: dict[int, Timing], by_rank: dict[int, Timing], busy: _Busy) -> tuple[dict[int, int], dict[int, int]]:
    """What each rank computed, and idled, from the call before, or the beginning of its run, to this one."""
    computed = {rank: one.computed_ps - (before[rank].computed_ps if rank in before else 0) for rank, one in by_rank.items()}
    idled = {
        rank: max(0, one.submitted_ps - computed[rank] - busy.until_ps(one, before.get(rank))) for rank, one in by_rank.items()
    }
    return computed, idled


def _more(by_rank: dict[int, int]) -> dict[int, int]:
    """Than the median rank."""
    usual = int(statistics.median_low(by_rank.values())) if by_rank else 0
    return {rank: value - usual for rank, value in by_rank.items()}
