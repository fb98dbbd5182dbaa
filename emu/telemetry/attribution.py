"""Attribution: where every picosecond of a call went, by name and in order of time, from a run's record.

From a call's end back along its critical path: the chunk that it waited for last, link by link, to the step that sent it; the
chunk that let that step run; and so on to the start of the call at the rank that the path comes from, or to this rank's own.

Law: the parts of a call follow each other without gaps from its submission to its completion.  Where the path begins after the
call was submitted here, what is before it is the lateness of the rank it comes from; where it begins earlier, it is cut.
A call that waited for the one before it in its communicator has that one's parts first.

Within one stretch, as from link to link, several causes are laid out in the order: credit, pause, queueing, serialisation,
retransmission, propagation, endpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from typing import Final, NamedTuple

from emu.errors import ConfigError
from emu.fabric.account import N_CARRIED, ORIGIN_PS, ORIGIN_RANK, Cause
from emu.fabric.recorder import Called, Chunk, Hop, Sent
from emu.telemetry.record import RunRecord

ORDER: Final = (
    Cause.CREDIT,
    Cause.PAUSE,
    Cause.QUEUEING,
    Cause.SERIALISATION,
    Cause.RETRANSMISSION,
    Cause.PROPAGATION,
    Cause.ENDPOINT,
)
_NOTHING: Final = (0,) * N_CARRIED


class Part(NamedTuple):
    """A part of a call's time.  ``place``: a link (its sending port), a rank's node, or what a late rank was doing;
    ``chunk``: the one that was on its way, None where none was."""

    begin_ps: int
    end_ps: int
    cause: Cause
    place: str
    chunk: Chunk | None

    @property
    def duration_ps(self) -> int:
        return self.end_ps - self.begin_ps


class _Point(NamedTuple):
    """A moment on a path: all that was spent by then, and where the time since the point before it went by."""

    time_ps: int
    account: tuple[int, ...]
    place: str
    chunk: Chunk | None


class Attribution:
    """What a record says about its calls."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self._sent: dict[Chunk, Sent] = {sent.chunk: sent for sent in record.sent}
        self._last = {one.chunk: (one.sequence, one.sending) for one in record.assembled}
        self._hops: defaultdict[Chunk, list[Hop]] = defaultdict(list)
        for hop in record.hops:
            if (hop.sequence, hop.sending) == self._last.get(hop.chunk, (0, 0)):
                self._hops[hop.chunk].append(hop)
        self._by_rank: defaultdict[int, list[Called]] = defaultdict(list)
        for call in record.calls:
            self._by_rank[call.rank].append(call)
        self._before: dict[tuple[int, int, int], Called] = {
            (call.rank, call.communicator, call.completed_ps): call for call in record.calls if call.number >= 0
        }

    def calls(self, rank: int) -> list[Called]:
        """A rank's calls, in order of submission.  Raises ConfigError where it has none."""
        if rank not in self._by_rank:
            there = ", ".join(map(str, sorted(self._by_rank))) or "none"
            raise ConfigError(f"rank {rank}: the record has no call of it; ranks with calls: {there}")
        return self._by_rank[rank]

    def parts(self, call: Called) -> tuple[Part, ...]:
        """The call's time, in order.  Raises ConfigError where events that it needs were left out of the record."""
        found: list[Part] = []
        current = call
        while True:
            begin_ps = max(current.started_ps, call.submitted_ps)
            found = _clipped(self._own_parts(current), begin_ps) + found
            if current.started_ps <= call.submitted_ps:
                return tuple(found)
            before = self._before.get((call.rank, call.communicator, current.started_ps))
            if before is None:
                raise self._incomplete(f"the call before {call.collective} {call.number} of rank {call.rank}")
            current = before

    def split_ps(self, call: Called) -> tuple[int, ...]:
        """The call's time by :class:`Cause`, exactly; an operation's own ``split_ps`` cuts in proportion."""
        totals = [0] * len(Cause)
        for part in self.parts(call):
            totals[part.cause] += part.duration_ps
        return tuple(totals)

    def saved_ps(self, call: Called) -> tuple[int, ...]:
        """By :class:`Cause`, what taking that cause alone away saves while all else stays: what the call spent on it, or less
        where another chunk that came to the rank would then be the last.

        Not in it: that others queue less then, which saves more; and paths that had met before they came here, which saves less.
        """
        spent = self.split_ps(call)
        left_ps = [call.completed_ps - part_ps for part_ps in spent]
        if call.end is not None:
            for chunk, hops in self._hops.items():
                if chunk[:2] == call.end[:2] and chunk.target_rank == call.rank:
                    late_ps = max(0, self._origin_ps(chunk) - call.started_ps)
                    for cause, part_ps in enumerate((*hops[-1].account, 0, late_ps, 0)):
                        left_ps[cause] = max(left_ps[cause], hops[-1].tail_ps - part_ps)
        return tuple(min(part_ps, max(0, call.completed_ps - its)) for part_ps, its in zip(spent, left_ps, strict=True))

    def _origin_ps(self, chunk: Chunk) -> int:
        """When the path began that led to the sending of a chunk."""
        sent = self._sent.get(chunk)
        while sent is not None and sent.trigger is not None:
            sent = self._sent.get(sent.trigger)
        return 0 if sent is None else sent.asked_ps

    def _incomplete(self, what: str) -> ConfigError:
        return ConfigError(
            f"the record lacks {what}; {self.record.n_left_out} events were left out of it: record fewer or smaller calls"
        )

    # -- the way back ----------------------------------------------------------------------------

    def _own_parts(self, call: Called) -> list[Part]:
        """From the start of the call to its completion."""
        points = self._path(call)
        origin_ps, origin_rank = call.account[ORIGIN_PS], call.account[ORIGIN_RANK]
        found = self._late(origin_rank, call, call.started_ps, origin_ps) if origin_ps > call.started_ps else []
        for before, after in pairwise(points):
            found += _stretch(before, after)
        return _clipped(found, call.started_ps)

    def _path(self, call: Called) -> list[_Point]:
        """The moments of the path to the call's end, from where it begins or from before the call's start here."""
        points = [_Point(call.completed_ps, call.account[:N_CARRIED], self.record.ends[call.rank], call.end)]
        chunk = call.end
        while chunk is not None and points[-1].time_ps > call.started_ps:
            sent = self._sent.get(chunk)
            hops = self._hops.get(chunk, [])
            if sent is None:
                raise self._incomplete(f"the sending of {describe(chunk)}")
            if len(points) == 1 and chunk.source_rank == call.rank:  # it had to leave, and no more
                points[-1] = points[-1]._replace(place=self.record.links[hops[0].link] if hops else points[-1].place)
            else:
                if not hops and chunk.source_rank != chunk.target_rank:
                    raise self._incomplete(f"the way of {describe(chunk)}")
                points += [_Point(hop.tail_ps, hop.account, self.record.links[hop.link], chunk) for hop in reversed(hops)]
            way = f"{self.record.ends[chunk.source_rank]} to {self.record.ends[chunk.target_rank]}"
            points.append(_Point(sent.time_ps, sent.account, way, chunk))
            points.append(_Point(sent.asked_ps, sent.asked_account, self.record.ends[chunk.source_rank], sent.trigger))
            chunk = sent.trigger
        if chunk is None:
            points.append(_Point(call.account[ORIGIN_PS], _NOTHING, "", None))
        return points[::-1]

    def _late(self, rank: int, call: Called, begin_ps: int, end_ps: int) -> list[Part]:
        """What the rank that the path comes from was doing until it started the call."""
        name = self.record.ends[rank]
        steps: list[tuple[int, int, str]] = []
        for computed in self.record.computed:
            if computed.rank == rank:
                steps.append((computed.begin_ps, computed.end_ps, f"{name}: computing"))
        for other in self._by_rank[rank]:
            if other.communicator != call.communicator or other.number != call.number:
                what = f"{name}: still in an earlier call, {other.collective} {_number(other)}"
                steps.append((other.submitted_ps, other.completed_ps, what))
        found: list[Part] = []
        at_ps = begin_ps
        edges = sorted({edge for step in steps for edge in step[:2] if begin_ps < edge < end_ps} | {end_ps})
        for edge_ps in edges:
            doing = next((what for begin, end, what in steps if begin <= at_ps and edge_ps <= end), f"{name}: had not called yet")
            if found and found[-1].place == doing:
                found[-1] = found[-1]._replace(end_ps=edge_ps)
            else:
                found.append(Part(at_ps, edge_ps, Cause.PEER_LATE, doing, None))
            at_ps = edge_ps
        return found


def describe(chunk: Chunk) -> str:
    """A chunk in words."""
    return f"chunk {chunk.chunk} of message {chunk.message} from rank {chunk.source_rank} to rank {chunk.target_rank}"


def _number(call: Called) -> str:
    return f"#{call.number}" if call.number >= 0 else f"#{-1 - call.number}"


def _stretch(before: _Point, after: _Point) -> list[Part]:
    """What the time from one point to the next went to."""
    spent: dict[Cause, int] = {cause: after.account[cause] - before.account[cause] for cause in ORDER if cause < N_CARRIED}
    spent[Cause.PROPAGATION] = after.time_ps - before.time_ps - sum(spent.values())
    found, at_ps = [], before.time_ps
    for cause in ORDER:
        if spent[cause]:
            found.append(Part(at_ps, at_ps + spent[cause], cause, after.place, after.chunk))
            at_ps += spent[cause]
    return found


def _clipped(parts: list[Part], begin_ps: int) -> list[Part]:
    """What of the parts is after ``begin_ps``."""
    first = bisect_left(parts, begin_ps + 1, key=lambda part: part.end_ps)
    kept = parts[first:]
    if kept and kept[0].begin_ps < begin_ps:
        kept[0] = kept[0]._replace(begin_ps=begin_ps)
    return kept
