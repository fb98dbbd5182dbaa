"""Recorder: what machines note down when a run is recorded: calls, computation, chunks and every hop of them.

Law: at most ``limit`` events are kept; ``n_left_out`` counts what came after, and whoever reads the notes must look at it.
Times are model ps.  Nothing here decides anything.  Accounts are noted as they stand (``fabric/account.py``): what an event
spent is the difference to the one before it on the path.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from emu.collectives.executor import Operation
from emu.fabric.account import N_CARRIED
from emu.fabric.frame import Frame
from emu.fabric.packet import Packet

MOST_EVENTS: Final = 400_000


class Chunk(NamedTuple):
    """Names a chunk of a message among all of a run."""

    communicator: int
    operation: int
    source_rank: int
    target_rank: int
    message: int
    chunk: int


class Sent(NamedTuple):
    """All of a chunk was at its rank's first link at ``time_ps``; a step asked for it at ``asked_ps``, because ``trigger``
    had come (None: because the call had started)."""

    chunk: Chunk
    trigger: Chunk | None
    asked_ps: int
    time_ps: int
    n_bytes: int
    asked_account: tuple[int, ...]
    account: tuple[int, ...]


class Hop(NamedTuple):
    """A chunk, or a packet of it, passed a link: its first byte left at ``start_ps``, head and tail are at the far end at
    ``head_ps`` and ``tail_ps``.  ``queued_bytes`` were then left in its queue (0 where chunks are fluids)."""

    chunk: Chunk
    sequence: int
    sending: int
    link: int
    start_ps: int
    head_ps: int
    tail_ps: int
    n_bytes: int
    queued_bytes: int
    account: tuple[int, ...]


class Assembled(NamedTuple):
    """A chunk was complete at its target with this packet."""

    chunk: Chunk
    sequence: int
    sending: int
    time_ps: int


class Called(NamedTuple):
    """One rank's call, complete.  ``end`` is the chunk that it waited for last, its own where that had to leave; None where
    it waited for none.  ``late_ns``: how much later than that its host saw it."""

    rank: int
    key: tuple[int, ...]
    communicator: int
    number: int
    collective: str
    algorithm: str
    dtype: str
    n_bytes: int
    submitted_ps: int
    started_ps: int
    completed_ps: int
    first_start_ps: int
    last_start_ps: int
    last_rank: int
    split_ps: tuple[int, ...]
    account: tuple[int, ...]
    end: Chunk | None
    late_ns: int


class Computed(NamedTuple):
    """Declared computation of a rank."""

    rank: int
    begin_ps: int
    end_ps: int


class Recorder:
    """The notes of one engine."""

    def __init__(self, limit: int = MOST_EVENTS) -> None:
        self.limit = limit
        self.n_events = 0
        self.n_left_out = 0
        self.calls: list[Called] = []
        self.computed: list[Computed] = []
        self.sent: list[Sent] = []
        self.hops: list[Hop] = []
        self.assembled: list[Assembled] = []
        self._asked: dict[Chunk, tuple[Chunk | None, int, tuple[int, ...]]] = {}

    def _has_room(self) -> bool:
        if self.n_events >= self.limit:
            self.n_left_out += 1
            return False
        self.n_events += 1
        return True

    def ask(self, frame: Frame, trigger: Frame | None, now_ps: int) -> None:
        """A step asks for a chunk to be sent."""
        enabler = None if trigger is None else chunk_of(trigger)
        self._asked[chunk_of(frame)] = enabler, now_ps, tuple(frame.account[:N_CARRIED])

    def send(self, frame: Frame) -> None:
        """A chunk is about to go to its first link; background traffic is asked for by nobody."""
        chunk = chunk_of(frame)
        account = tuple(frame.account[:N_CARRIED])
        enabler, asked_ps, before = self._asked.pop(chunk, (None, frame.head_ps, account))
        if self._has_room():
            self.sent.append(Sent(chunk, enabler, asked_ps, frame.tail_ps, frame.payload_bytes, before, account))

    def frame_hop(self, frame: Frame, link: int, start_ps: int) -> None:
        """A link has decided a chunk's way."""
        if self._has_room():
            account = tuple(frame.account[:N_CARRIED])
            times = start_ps, frame.head_ps, frame.tail_ps
            self.hops.append(Hop(chunk_of(frame), 0, 0, link, *times, frame.payload_bytes, 0, account))

    def packet_hop(self, packet: Packet, link: int, start_ps: int, queued_bytes: int) -> None:
        """A port has sent a packet."""
        if self._has_room():
            account = tuple(packet.account[:N_CARRIED])
            identity = chunk_of(packet.frame), packet.sequence, packet.sending
            times = start_ps, packet.head_ps, packet.tail_ps
            self.hops.append(Hop(*identity, link, *times, packet.payload_bytes, queued_bytes, account))

    def assemble(self, packet: Packet, now_ps: int) -> None:
        """A chunk is complete with this packet."""
        if self._has_room():
            self.assembled.append(Assembled(chunk_of(packet.frame), packet.sequence, packet.sending, now_ps))

    def compute(self, rank: int, begin_ps: int, end_ps: int) -> None:
        """A rank computes."""
        if self._has_room():
            self.computed.append(Computed(rank, begin_ps, end_ps))

    def call(self, rank: int, operation: Operation, late_ns: int) -> None:
        """A rank's call is complete."""
        call = operation.call
        if self._has_room() and operation.started_ps is not None and operation.completed_ps is not None:
            self.calls.append(
                Called(
                    rank=rank,
                    key=operation.key,
                    communicator=operation.communicator,
                    number=operation.number,
                    collective=call.collective,
                    algorithm=call.algorithm,
                    dtype=call.dtype,
                    n_bytes=call.count * call.itemsize,
                    submitted_ps=operation.submitted_ps,
                    started_ps=operation.started_ps,
                    completed_ps=operation.completed_ps,
                    first_start_ps=operation.first_start_ps,
                    last_start_ps=operation.last_start_ps,
                    last_rank=operation.last_rank,
                    split_ps=operation.split_ps,
                    account=tuple(operation.account),
                    end=None if operation.trigger is None else chunk_of(operation.trigger),
                    late_ns=late_ns,
                )
            )


def chunk_of(frame: Frame) -> Chunk:
    """What names it."""
    return Chunk(frame.communicator, frame.operation, frame.source_rank, frame.target_rank, frame.message, frame.chunk)
