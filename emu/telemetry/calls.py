"""Calls: what the calls of some ranks came to, summed as they complete; once per call, never per frame.

Law: counts only grow, and go on over the runs of a session.  All times are model time.

What all ranks of a call know alike is counted by one of them, its witness: the root where there is one, else the first rank.
Arrivals (how far apart the ranks started the call, and who was last) are counted where the witness has heard from all others:
not after a broadcast or a scatter, whose root hears from nobody, and not for pairs of send and receive.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from emu.collectives.busbw import busbw_factor
from emu.collectives.call import n_counts_of
from emu.collectives.executor import Operation
from emu.telemetry.catalogue import BUCKETS_PS, MOST_CALL_SERIES, OTHER, size_class

LATE_SHARE: Final = 0.02
"""A call that its host completes later than this part of its duration is late."""
UNHEARD: Final = frozenset({"broadcast", "scatter", "send", "recv"})
"""Collectives of which no rank learns when all others started."""

Kind = tuple[str, str, str]
"""(collective, algorithm, size class)."""


@dataclass(slots=True)
class Histogram:
    """Observations by bucket, the last for all above the bounds, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_PS) + 1))
    sum: int = 0

    def observe(self, value: int) -> None:
        self.counts[bisect_left(BUCKETS_PS, value)] += 1
        self.sum += value

    def add(self, other: Histogram) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class LastCall(NamedTuple):
    """One rank's last call of a kind."""

    communicator: str
    members: tuple[int, ...]
    n_bytes: int
    bus_bytes: Fraction
    duration_ps: int


@dataclass(slots=True)
class OfKind:
    """Calls of one kind: durations by rank and call, and the last of them.

    ``last``: wall time (ns) at which it was seen, bytes of its bus bandwidth, duration in ps.
    """

    durations: Histogram = field(default_factory=Histogram)
    last: tuple[int, Fraction, int] = (0, Fraction(0), 0)


@dataclass(slots=True)
class Calls:
    """Counts of the calls of the ranks of one actor, or of several (:meth:`add`).

    ``completed`` and ``aborted`` by (collective, algorithm), ``n_bytes`` too; ``skews`` by collective; ``spent_ps`` by rank,
    then by cause; ``last_by_rank``: the last call of each rank and kind.
    """

    kinds: dict[Kind, OfKind] = field(default_factory=dict)
    completed: dict[tuple[str, str], int] = field(default_factory=dict)
    aborted: dict[tuple[str, str], int] = field(default_factory=dict)
    n_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    skews: dict[str, Histogram] = field(default_factory=dict)
    last_arrivals: dict[int, int] = field(default_factory=dict)
    spent_ps: dict[int, list[int]] = field(default_factory=dict)
    computed_ps: dict[int, int] = field(default_factory=dict)
    last_by_rank: dict[tuple[int, Kind], LastCall] = field(default_factory=dict)
    model_ps: int = 0
    """How far the ranks have got, over all runs: without what timers and acknowledgements take after them."""
    n_late: int = 0
    """Calls that a rank's host completed late, see :data:`LATE_SHARE`."""

    def complete(self, rank: int, operation: Operation, *, seen_ns: int, late_ns: int, dilation: float) -> None:
        """An operation of ``rank`` is complete; its host saw it at ``seen_ns``, and ``late_ns`` after it was due."""
        call = operation.call
        collective = call.collective
        n_bytes = size_bytes(operation)
        kind = self._admit((collective, call.algorithm, size_class(n_bytes)))
        assert operation.completed_ps is not None and operation.started_ps is not None
        duration_ps = operation.completed_ps - operation.started_ps
        counted = self.kinds[kind]
        counted.durations.observe(duration_ps)
        if 1000 * late_ns > LATE_SHARE * duration_ps * dilation:
            self.n_late += 1
        n_ranks = len(operation.members)
        bus_bytes = n_bytes * _factor(collective, n_ranks)
        counted.last = seen_ns, bus_bytes, duration_ps
        self.last_by_rank[rank, kind] = LastCall(operation.name, operation.members, n_bytes, bus_bytes, duration_ps)
        spent = self.spent_ps.get(rank)
        if spent is None:
            self.spent_ps[rank] = list(operation.split_ps)
        else:
            for cause, time_ps in enumerate(operation.split_ps):
                spent[cause] += time_ps
        if operation.number >= 0 and operation.position != (call.root or 0):
            return
        which = kind[:2]
        self.completed[which] = self.completed.get(which, 0) + 1
        self.n_bytes[which] = self.n_bytes.get(which, 0) + n_bytes
        if collective not in UNHEARD:
            skew_ps = operation.last_start_ps - operation.first_start_ps
            self.skews.setdefault(collective, Histogram()).observe(skew_ps)
            if skew_ps:
                self.last_arrivals[operation.last_rank] = self.last_arrivals.get(operation.last_rank, 0) + 1

    def abort(self, operation: Operation) -> None:
        """An operation was under way when its run failed."""
        if operation.number < 0 or operation.position == (operation.call.root or 0):
            call = operation.call
            which = self._admit((call.collective, call.algorithm, size_class(size_bytes(operation))))[:2]
            self.aborted[which] = self.aborted.get(which, 0) + 1

    def _admit(self, kind: Kind) -> Kind:
        """The kind itself while there is room for its series, else the one that stands for all others."""
        if kind not in self.kinds:
            if len(self.kinds) >= MOST_CALL_SERIES:
                kind = OTHER, OTHER, OTHER
            self.kinds.setdefault(kind, OfKind())
        return kind

    def copy(self) -> Calls:
        """As it is now, while the original goes on."""
        copied = Calls()
        copied.add(self)
        return copied

    def emptied(self) -> Calls:
        """Nothing counted yet, of the same kinds."""
        return Calls(kinds={kind: OfKind() for kind in self.kinds})

    def add(self, other: Calls) -> None:
        """Count what another actor counted; ``last`` is the later one's."""
        for kind, counted in other.kinds.items():
            admitted = self.kinds[self._admit(kind)]
            admitted.durations.add(counted.durations)
            admitted.last = max(admitted.last, counted.last)
        known = {kind[:2] for kind in self.kinds}
        for mine, its in (
            (self.completed, other.completed), (self.aborted, other.aborted), (self.n_bytes, other.n_bytes)
        ):  # fmt: skip
            for which, n in its.items():
                key = which if which in known else (OTHER, OTHER)
                mine[key] = mine.get(key, 0) + n
        for collective, skews in other.skews.items():
            self.skews.setdefault(collective, Histogram()).add(skews)
        for rank, n in other.last_arrivals.items():
            self.last_arrivals[rank] = self.last_arrivals.get(rank, 0) + n
        self.spent_ps.update({rank: list(spent) for rank, spent in other.spent_ps.items()})
        self.computed_ps.update(other.computed_ps)
        self.last_by_rank.update(other.last_by_rank)
        self.model_ps = max(self.model_ps, other.model_ps)
        self.n_late += other.n_late


def size_bytes(operation: Operation) -> int:
    """The size of a call as nccl-tests counts it; of an alltoallv what this rank sends or receives, if that is more."""
    call = operation.call
    if call.collective == "alltoallv":
        return max(sum(operation.send_counts), sum(operation.receive_counts)) * call.itemsize
    return call.count * call.itemsize * n_counts_of(call.collective, len(operation.members))


@lru_cache(maxsize=256)
def _factor(collective: str, n_ranks: int) -> Fraction:
    """busbw over algbw; 0 for a barrier."""
    if collective == "barrier":
        return Fraction(0)
    return busbw_factor("sendrecv" if collective in ("send", "recv") else collective, n_ranks)
