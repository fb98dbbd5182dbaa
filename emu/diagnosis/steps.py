"""Steps: the calls of an observation, with all ranks of each side by side.

For each rank and call three times are told apart: what it computed since its call before, the *gap* in which it did neither, and
what the call took.  What a rank's gap or computation has over the median of all ranks is its own.  A call is *late* from the
median of the ranks' starts to the last; what is after that is its *transfer*, to be compared with what the fabric gives.

Where calls overlap (``async_op``) a gap cannot be seen, and counts as none.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from emu.telemetry.observation import Expected, Kind, Observation
from emu.telemetry.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call.  By rank: when it began, which is after the call before it where it waited for that; and how much more than the
    median it computed and idled before."""

    kind: Kind
    expected: Expected | None
    start_ps: dict[int, int]
    computed_more_ps: dict[int, int]
    idled_more_ps: dict[int, int]
    end_ps: int

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
        """What the transfer takes beyond the expected."""
        return max(0, self.transfer_ps - self.expected.time_ps) if self.expected is not None else 0


class Steps:
    """All collective calls of an observation that all its ranks have completed."""

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.steps = _steps(seen)
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
        return sum(step.more_ps for step in self.steps)

    @cached_property
    def expected_ps(self) -> int:
        """Of all transfers."""
        return sum(step.expected.time_ps for step in self.steps if step.expected is not None)

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


def _steps(seen: Observation) -> tuple[Step, ...]:
    expected = {one.kind: one for one in seen.expected}
    by_call: dict[tuple[int, int], dict[int, Timing]] = {}
    for timing in seen.timings:
        if timing.number >= 0:
            by_call.setdefault((timing.communicator, timing.number), {})[timing.rank] = timing
    found = []
    for (communicator, number), by_rank in by_call.items():
        first = next(iter(by_rank.values()))
        if not 2 <= first.n_ranks <= len(by_rank):
            continue
        before = by_call.get((communicator, number - 1), {})
        computed = {rank: one.computed_ps - (before[rank].computed_ps if rank in before else 0) for rank, one in by_rank.items()}
        idled = {
            rank: max(0, one.submitted_ps - computed[rank] - (before[rank].completed_ps if rank in before else 0))
            for rank, one in by_rank.items()
        }
        kind = kind_of(first, tuple(sorted(by_rank)))
        found.append(
            Step(
                kind=kind,
                expected=expected.get(kind),
                start_ps={rank: one.started_ps for rank, one in by_rank.items()},
                computed_more_ps=_more(computed),
                idled_more_ps=_more(idled),
                end_ps=max(one.completed_ps for one in by_rank.values()),
            )
        )
    return tuple(sorted(found, key=lambda step: step.end_ps))


def _more(by_rank: dict[int, int]) -> dict[int, int]:
    usual = int(statistics.median_low(by_rank.values()))
    return {rank: value - usual for rank, value in by_rank.items()}
