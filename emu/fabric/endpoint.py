"""Endpoint: the end of the fabric at one rank.

Law: what a rank sends over a connection leaves in order, and no more than the
connection's window is on its way and not yet consumed.  A connection is a peer and a
communicator, and its collectives are apart from its sends and receives, so that
none of them can fill the window that another needs.  Credits are part of the
model: the receiver returns them as it consumes (a quarter window at a time, so
that they are few), they reach the sender after the latency of the way back, and
they use no bandwidth.  A chunk that does not fit goes when less than a quarter
window is out, which may all be consumed without a credit: so at most the window,
or a quarter of it and one chunk, is out.  A sender far faster than its receiver holds a
bounded amount of memory, and the model knows it as NCCL's slots do.

An endpoint with a drain rate takes bytes in at that rate from when their head is
here, one chunk after the other, whoever sent them.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from emu.collectives.executor import Operation
from emu.collectives.reduce import Array
from emu.fabric.frame import Frame
from emu.units import duration_ps

CHANNEL_STRIDE = 64
"""Flows are numbered (source rank * n + target rank) * CHANNEL_STRIDE + channel."""


class Network(Protocol):
    """What an endpoint asks of the engine that hosts it."""

    def inject(self, frame: Frame, now_ps: int) -> int | None:
        """Hand a frame to its first link; returns when its last byte leaves, None where ``Endpoint.left`` will tell."""
        ...

    def path(self, source_rank: int, target_rank: int, route_flow: int) -> tuple[int, ...]: ...
    def spread(self) -> int: ...
    def window_bytes(self, source_rank: int, target_rank: int) -> int: ...
    def send_credit(self, frame: Frame, n_bytes: int, now_ps: int) -> None:
        """Return ``n_bytes`` of credit to the sender of ``frame``, for its connection."""
        ...

    def call_at(self, time_ps: int, rank: int, action: Any) -> None: ...
    def operation_finished(self, rank: int, operation: Operation, now_ps: int) -> None: ...
    def mismatch(self, rank: int, frame: Frame, operation: Operation) -> None: ...


ConnectionKey = tuple[int, int, bool]
"""(peer, communicator, whether it carries sends and receives)."""


class Connection:
    """One side of a connection: bytes out and what waits for credit, or bytes consumed and credited."""

    __slots__ = ("blocked", "consumed_bytes", "credited_bytes", "frames", "outstanding_bytes", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.outstanding_bytes = 0
        self.frames = 0
        self.blocked: deque[tuple[Frame, Operation]] = deque()
        self.consumed_bytes = 0
        self.credited_bytes = 0

    def has_room(self, n_bytes: int) -> bool:
        """Whether a chunk may go: it fits, or all that is out may have been consumed already."""
        return self.outstanding_bytes + n_bytes <= self.window_bytes or 4 * self.outstanding_bytes < self.window_bytes


class Endpoint:
    """Connections, operations and unexpected messages of one rank."""

    def __init__(self, *, rank: int, n_ranks: int, network: Network, drain_rate_bps: int | None = None) -> None:
        self.rank = rank
        self.n_ranks = n_ranks
        self.network = network
        self.drain_rate_bps = drain_rate_bps
        self.drain_free_ps = 0
        self.outgoing: dict[ConnectionKey, Connection] = {}
        self.incoming: dict[ConnectionKey, Connection] = {}
        self.operations: dict[tuple[int, ...], Operation] = {}
        self.unexpected: dict[tuple[int, ...], list[Frame]] = {}
        self.leaving: dict[Frame, Operation] = {}
        self.last: dict[int, Operation] = {}
        """The collective that was completed last, by communicator: nothing may come for it or for those before it."""

    # -- sending -------------------------------------------------------------------------------

    def hops(self, peer: int) -> int:
        """Links on the way to a rank."""
        return len(self.network.path(self.rank, peer, 0))

    def send(
        self, operation: Operation, peer: int, message: int, chunk: int, n_bytes: int, values: list[Array] | None, now_ps: int
    ) -> None:
        """Inject a chunk, or hold it until the window has room."""
        rank = self.rank
        key = (peer, operation.communicator, operation.number < 0)
        connection = self.outgoing.get(key)
        if connection is None:
            connection = self.outgoing[key] = Connection(self.network.window_bytes(rank, peer))
        channel = chunk % operation.channels
        spread = self.network.spread()
        route_flow = channel if spread == 1 else channel * spread + connection.frames % spread
        connection.frames += 1
        frame = Frame(
            self.network.path(rank, peer, route_flow),
            source_rank=rank,
            target_rank=peer,
            flow=(rank * self.n_ranks + peer) * CHANNEL_STRIDE + channel,
            route_flow=route_flow,
            payload_bytes=n_bytes,
            head_ps=now_ps,
            communicator=operation.communicator,
            operation=operation.number,
            message=message,
            chunk=chunk,
            message_bytes=n_bytes,
            digest=operation.call.digest,
            payload=values,
        )
        frame.traffic_class = operation.call.traffic_class
        if connection.blocked or not connection.has_room(n_bytes):
            operation.held += 1
            connection.blocked.append((frame, operation))
            return
        connection.outstanding_bytes += n_bytes
        if values is not None:
            frame.payload = operation.packed(values)
        left_ps = self.network.inject(frame, now_ps)
        if left_ps is None:
            operation.held += 1
            self.leaving[frame] = operation
        elif left_ps > operation.left_ps:
            operation.left_ps = left_ps

    def credit(self, key: ConnectionKey, n_bytes: int, now_ps: int) -> None:
        """The peer consumed ``n_bytes`` of what this rank sent, perhaps in a run that is over."""
        connection = self.outgoing.get(key)
        if connection is None:
            return
        connection.outstanding_bytes -= n_bytes
        while connection.blocked:
            frame, operation = connection.blocked[0]
            if not connection.has_room(frame.payload_bytes):
                return
            connection.blocked.popleft()
            connection.outstanding_bytes += frame.payload_bytes
            if frame.payload is not None:
                frame.payload = operation.packed(frame.payload)
            frame.head_ps = frame.tail_ps = now_ps
            left_ps = self.network.inject(frame, now_ps)
            if left_ps is None:
                self.leaving[frame] = operation
            else:
                operation.left_ps = max(operation.left_ps, left_ps)
                operation.released(now_ps)

    def left(self, frame: Frame, now_ps: int) -> None:
        """The last byte of a frame has left, where ``inject`` could not tell when it would."""
        operation = self.leaving.pop(frame, None)
        if operation is not None:
            operation.left_ps = max(operation.left_ps, now_ps)
            operation.released(now_ps)

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, frame: Frame, now_ps: int) -> None:
        """The last byte of a frame is here; a slow endpoint takes it in at its drain rate."""
        if frame.credit_bytes:
            self.credit((frame.source_rank, frame.communicator, frame.operation < 0), frame.credit_bytes, now_ps)
        elif self.drain_rate_bps is None:
            self._deliver(frame, now_ps)
        else:
            begin_ps = max(frame.head_ps, self.drain_free_ps)
            self.drain_free_ps = max(now_ps, begin_ps + duration_ps(frame.payload_bytes, self.drain_rate_bps))
            self.network.call_at(self.drain_free_ps, self.rank, lambda at_ps: self._deliver(frame, at_ps))

    def _deliver(self, frame: Frame, now_ps: int) -> None:
        key = operation_key(frame.communicator, frame.operation, frame.source_rank)
        operation = self.operations.get(key)
        if operation is None:
            last = self.last.get(frame.communicator)
            if last is not None and 0 <= frame.operation <= last.number:
                self.network.mismatch(self.rank, frame, last)
            self.unexpected.setdefault(key, []).append(frame)
        elif operation.call.digest != frame.digest or (operation.receive_counts and not operation.expects(frame)):
            self.network.mismatch(self.rank, frame, operation)
        else:
            operation.receive(frame, now_ps)

    def consumed(self, frame: Frame, now_ps: int) -> None:
        """A step took the frame: its bytes are free again at the sender once the credit is there."""
        n_bytes = frame.payload_bytes
        if not n_bytes:
            return
        key = (frame.source_rank, frame.communicator, frame.operation < 0)
        connection = self.incoming.get(key)
        if connection is None:
            connection = self.incoming[key] = Connection(self.network.window_bytes(frame.source_rank, self.rank))
        connection.consumed_bytes += n_bytes
        due = connection.consumed_bytes - connection.credited_bytes
        if due * 4 >= connection.window_bytes:
            connection.credited_bytes = connection.consumed_bytes
            self.network.send_credit(frame, due, now_ps)

    def forget(self) -> None:
        """A run begins: its communicators are new, and the connections of those before are used no more."""
        self.outgoing.clear()
        self.incoming.clear()
        self.leaving.clear()
        self.last.clear()

    # -- operations ----------------------------------------------------------------------------

    def start(self, operation: Operation, now_ps: int) -> None:
        """Begin an operation; what arrived for it before is taken now."""
        self.operations[operation.key] = operation
        early = self.unexpected.pop(operation.key, ())
        operation.start(now_ps)
        for frame in early:
            if operation.call.digest != frame.digest or not operation.expects(frame):
                self.network.mismatch(self.rank, frame, operation)
                return
            operation.receive(frame, now_ps)

    def finished(self, operation: Operation, now_ps: int) -> None:
        """An operation is complete at ``now_ps`` (which may be later than the event that decided it)."""
        self.operations.pop(operation.key, None)
        if operation.number >= 0:
            self.last[operation.communicator] = operation
        self.network.operation_finished(self.rank, operation, now_ps)


def operation_key(communicator: int, number: int, source_rank: int) -> tuple[int, ...]:
    """Collectives are found by (communicator, number); pairs of send and recv (negative numbers) by their sender too."""
    return (communicator, number) if number >= 0 else (communicator, number, source_rank)
