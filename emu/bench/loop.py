"""The measured loop: what every rank runs for one cell of the table.

As nccl-tests does, the iterations are issued back to back and only the last is
waited for, so the time of one is pipelined time and not isolated latency.  A barrier
stands before the loop.  The calls are queued behind it.  The stopwatch starts when the end of the barrier is due and
stops where the driver sees the last call complete, so that neither issuing the calls nor waking the user's thread is
in the time, and a host that is late when it starts cannot gain by that.  Another barrier keeps those that end first
from checking while others are still at work; filling and checking are outside the stopwatch.

Out of place, the data of the last timed iteration is checked, and that the send
buffer is as it was.  In place, repeated sums would grow without end, so the timed
iterations carry zeros, and one more, untimed, is checked on fresh data.  Without
payload (``rank.payload`` false) no array is touched and nothing is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from emu.bench.data import Array, Segment, count_wrong, fill
from emu.bench.layout import NOT_IN_PLACE, Layout, layout
from emu.collectives.reduce import DTYPES
from emu.collectives.selection import is_choice

if TYPE_CHECKING:
    from emu.rank import Rank, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """One cell: a collective at one size, out of place or in place.  Counts are elements per buffer.  ``op`` is
    None where nothing is reduced, ``root`` -1 where there is none."""

    collective: str
    dtype: str
    op: str | None
    root: int
    send_count: int
    receive_count: int
    iterations: int
    warmup: int
    in_place: bool
    check: bool
    algorithm: str = "auto"
    channels: int = 1
    chunk_bytes: int | None = None

    @property
    def n_calls(self) -> int:
        """How often the collective runs in all, timed or not."""
        return self.warmup + self.iterations + (1 if self.checks_apart else 0)

    @property
    def checks(self) -> bool:
        """Whether results are checked at all: not where nccl-tests prints N/A."""
        return self.check and (self.truly_in_place or not self.in_place)

    @property
    def truly_in_place(self) -> bool:
        return self.in_place and self.collective not in NOT_IN_PLACE

    @property
    def checks_apart(self) -> bool:
        """Whether an extra iteration is run for the check alone."""
        return self.check and self.truly_in_place


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """One rank's loop.  ``wall_ns`` and ``model_ps`` span all timed iterations; ``iteration_ps`` has the model's
    time of each, from one completion to the next.  ``spent_ps`` is what the time up to the end of the last of them went to, by
    :class:`emu.fabric.account.Cause`.

    ``n_wrong`` is None where nothing was checked.
    """

    wall_ns: int
    model_ps: int
    iteration_ps: tuple[int, ...]
    n_wrong: int | None
    algorithm: str
    chunk_bytes: int | None
    protocol: str = ""
    spent_ps: tuple[int, ...] = ()


class _How(TypedDict):
    async_op: bool
    algorithm: str
    channels: int
    chunk_bytes: int | None


class _Buffers:
    """A rank's arrays for one plan.  Without payload they are one zero, seen ``n`` times."""

    def __init__(self, plan: LoopPlan, rank: Rank) -> None:
        self.plan = plan
        self.n_ranks = rank.world_size
        self.payload = rank.payload
        self.layout: Layout = layout(
            plan.collective,
            rank=rank.index,
            n_ranks=rank.world_size,
            root=plan.root,
            send_count=plan.send_count,
            receive_count=plan.receive_count,
        )
        n_sent, n_received = self.layout.n_sent, self.layout.n_received
        self.receives = self.layout.expected is not None
        if plan.truly_in_place and self.receives and n_sent:
            both = self._new(max(n_sent, n_received))
            self.send = both[self.layout.send_at : self.layout.send_at + n_sent]
            self.receive = both[self.layout.receive_at : self.layout.receive_at + n_received]
        else:
            self.send = self._new(n_sent)
            self.receive = self._new(n_received)

    def _new(self, count: int) -> Array:
        dtype = DTYPES[self.plan.dtype]
        return np.zeros(count, dtype) if self.payload else np.broadcast_to(np.zeros(1, dtype), count)

    def fill(self) -> None:
        """Fresh data to send."""
        if self.payload:
            fill(self.send, self.layout.sent, dtype=self.plan.dtype, n_ranks=self.n_ranks, op=self.plan.op)

    def clear_received(self) -> None:
        if self.payload:
            self.receive[...] = 0

    def count_wrong(self) -> int:
        """Wrong elements in what was received and, out of place, in what was sent."""
        n_wrong = self._wrong(self.receive, self.layout.expected or ())
        return n_wrong if self.plan.truly_in_place else n_wrong + self._wrong(self.send, self.layout.sent)

    def _wrong(self, buffer: Array, segments: tuple[Segment, ...]) -> int:
        return count_wrong(buffer, segments, dtype=self.plan.dtype, n_ranks=self.n_ranks, op=self.plan.op)


class _Pair:
    """A send and a receive that start together.  They do not queue, so they are waited for before the next pair is issued."""

    algorithm = "p2p"

    def __init__(self, sent: Work, received: Work) -> None:
        self._works = (sent, received)
        for work in self._works:
            work.wait()
        last = max(self._works, key=lambda work: work.completed_ps)
        self.completed_ps = last.completed_ps
        self.completed_ns = last.completed_ns
        self.due_ns = last.due_ns
        self.chunk_bytes = received.chunk_bytes
        self.protocol = received.protocol
        self.operations = last.operations

    def wait(self) -> int:
        return self.completed_ps


def _issue(rank: Rank, plan: LoopPlan, buffers: _Buffers) -> Work | _Pair:
    """Start the collective once, in stream order."""
    comm = rank.comm
    send, receive, op, root = buffers.send, buffers.receive, plan.op or "sum", plan.root
    how: _How = {
        "async_op": True,
        "algorithm": plan.algorithm,
        "channels": plan.channels,
        "chunk_bytes": plan.chunk_bytes,
    }
    match plan.collective:
        case "all_reduce":
            return comm.all_reduce(send, receive, op=op, **how)
        case "reduce_scatter":
            return comm.reduce_scatter(send, receive, op=op, **how)
        case "reduce":
            return comm.reduce(send, receive if buffers.receives else None, op=op, root=root, **how)
        case "all_gather":
            return comm.all_gather(send, receive, **how)
        case "broadcast":
            return comm.broadcast(send, receive, root=root, **how)
        case "gather":
            return comm.gather(send, receive if buffers.receives else None, root=root, **how)
        case "scatter":
            return comm.scatter(send, receive, root=root, **how)
        case "alltoall":
            return comm.alltoall(send, receive, **how)
        case "alltoallv":
            return comm.alltoallv(send, receive, buffers.layout.send_counts, buffers.layout.receive_counts, **how)
        case _:
            following, before = (rank.index + 1) % rank.world_size, (rank.index - 1) % rank.world_size
            cut = plan.channels, plan.chunk_bytes
            return _Pair(
                comm.send(send, following, async_op=True, channels=cut[0], chunk_bytes=cut[1]),
                comm.recv(receive, before, async_op=True, channels=cut[0], chunk_bytes=cut[1]),
            )


def run_loop(rank: Rank, plan: LoopPlan) -> LoopResult:
    """The rank function.  Raises what the communicator raises."""
    buffers = _Buffers(plan, rank)
    if not plan.truly_in_place:
        buffers.fill()
    for _ in range(plan.warmup):
        _issue(rank, plan, buffers).wait()
    if plan.checks and not plan.truly_in_place:
        buffers.clear_received()
    if not is_choice(plan.algorithm) and plan.collective != "sendrecv":
        rank.comm.prepare(plan.collective, algorithm=plan.algorithm, root=max(0, plan.root))
    rank.settle()
    barrier = rank.comm.barrier(async_op=True)
    if plan.collective == "sendrecv":  # sends do not queue behind a barrier
        barrier.wait()
    works = [_issue(rank, plan, buffers) for _ in range(plan.iterations)]
    works[-1].wait()
    rank.comm.barrier()
    ends_ps = [work.completed_ps for work in (barrier, *works)]
    if plan.checks_apart:
        buffers.clear_received()
        buffers.fill()
        _issue(rank, plan, buffers).wait()
    return LoopResult(
        wall_ns=works[-1].completed_ns - barrier.due_ns - _set_back_ns(rank, plan, barrier, works[-1]),
        model_ps=ends_ps[-1] - ends_ps[0],
        iteration_ps=tuple(later - earlier for earlier, later in pairwise(ends_ps)),
        n_wrong=buffers.count_wrong() if plan.checks and rank.payload else None,
        algorithm=works[-1].algorithm or plan.algorithm,
        chunk_bytes=works[-1].chunk_bytes,
        protocol=works[-1].protocol,
        spent_ps=works[-1].operations[-1].split_ps if works[-1].operations else (),
    )


def _set_back_ns(rank: Rank, plan: LoopPlan, start: Work, end: Work | _Pair) -> int:
    """By how much the clock was set back between two calls because a rank's thread had to wake to issue the next one: that is
    the user's time and not the host's lateness.  Calls that queue need nobody to wake, and a clock that moves tells on them."""
    dilation = rank.runtime.scale()
    if plan.collective != "sendrecv" or not dilation:
        return 0
    return end.due_ns - start.due_ns - int((end.completed_ps - start.completed_ps) * dilation / 1000)
