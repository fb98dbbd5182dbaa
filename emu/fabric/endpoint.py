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

Faults (``fabric/condition.py``) put off what its rank does: calls begin late, and while it is stopped nothing is consumed
or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from emu.collectives.executor import Operation, Values
from emu.fabric.account import CREDIT, ENDPOINT
from emu.fabric.background import FIRST_COMMUNICATOR, BackgroundFlow
from emu.fabric.capacity import WORK_PER_BYTE
from emu.fabric.condition import Condition
from emu.fabric.connection import Connection
from emu.fabric.frame import Frame
from emu.fabric.pace import Pace
from emu.fabric.recorder import Recorder
from emu.protocols.flags import FLAG_EVERY_BYTES
from emu.units import FOREVER_PS

CHANNEL_STRIDE = 64
"""Flows are numbered :func:`flow_number` + channel."""


class Network(Protocol):
    """What an endpoint asks of the engine that hosts it."""

    recorder: Recorder | None

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
    def cancel(self, action: Any, after_ps: int) -> None: ...
    def killed(self, rank: int, now_ps: int) -> None:
        """The rank would act, and is dead."""
        ...

    def operation_finished(self, rank: int, operation: Operation, now_ps: int) -> None: ...
    def mismatch(self, rank: int, frame: Frame, operation: Operation) -> None: ...


ConnectionKey = tuple[int, int, bool]
"""(peer, communicator, whether it carries sends and receives)."""


class Endpoint:
    """Connections, operations and unexpected messages of one rank."""

    def __init__(self, *, rank: int, n_ranks: int, network: Network, drain_rate_bps: int | None = None) -> None:
        self.rank = rank
        self.n_ranks = n_ranks
        self.network = network
        self.drain = Pace(drain_rate_bps)
        """Of bytes that come in; work is as in ``fabric/capacity.py``."""
        self.stuck_ps = 0
        """Time for which something lay here and, as the rank was stopped, nothing was taken in."""
        self._stuck_until_ps = 0
        self.condition = Condition()
        self.is_admitted = False
        self.flows: dict[int, BackgroundFlow] = {}
        """Background traffic from here, by communicator."""
        self.n_steps = 0
        """Calls begun, and chunks delivered to them: what a run that goes on has ever more of."""
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
        self, operation: Operation, peer: int, message: int, chunk: int, block: int, n_bytes: int, values: Values, now_ps: int
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
            flow=flow_number(rank, peer, self.n_ranks) + channel,
            route_flow=route_flow,
            payload_bytes=n_bytes,
            head_ps=now_ps,
            communicator=operation.communicator,
            operation=operation.number,
            message=message,
            chunk=chunk,
            message_bytes=n_bytes,
            digest=operation.call.digest,
            flag_every_bytes=FLAG_EVERY_BYTES[operation.call.protocol],
            payload=values,
            account=operation.account[:],
        )
        frame.traffic_class = operation.call.traffic_class
        if peer >= self.n_ranks:
            frame.recipe = operation.recipe
        if self.network.recorder is not None:
            self.network.recorder.ask(frame, operation.trigger, now_ps)
        self._ask(frame, operation, connection, block, now_ps)

    def _ask(self, frame: Frame, operation: Operation, connection: Connection, block: int, now_ps: int) -> None:
        """An operation wants a chunk of this block on its way: at once here, see :mod:`emu.fabric.device`."""
        self._offer(frame, operation, connection, now_ps)

    def _offer(self, frame: Frame, operation: Operation, connection: Connection, now_ps: int) -> None:
        if connection.blocked or not connection.has_room(frame.flagged_bytes):
            operation.held += 1
            connection.blocked.append((frame, operation))
            return
        connection.outstanding_bytes += frame.flagged_bytes
        if frame.payload is not None:
            frame.payload = operation.packed(frame.payload)
        left_ps = self.network.inject(frame, now_ps)
        if left_ps is None:
            operation.held += 1
            self.leaving[frame] = operation
        elif left_ps > operation.left_ps:
            operation.leaves(frame, left_ps)

    def worked(self, operation: Operation, chunk: int, block: int, copied_bytes: int, reduced_bytes: int, now_ps: int) -> None:
        """A step wrote to the rank's own memory, or reduced: at no cost here, see :mod:`emu.fabric.device`."""

    def credit(self, key: ConnectionKey, n_bytes: int, now_ps: int) -> None:
        """The peer consumed ``n_bytes`` of what this rank sent, perhaps in a run that is over."""
        connection = self.outgoing.get(key)
        if connection is None:
            return
        connection.outstanding_bytes -= n_bytes
        while connection.blocked:
            frame, operation = connection.blocked[0]
            if not connection.has_room(frame.flagged_bytes):
                return
            connection.blocked.popleft()
            connection.outstanding_bytes += frame.flagged_bytes
            if frame.payload is not None:
                frame.payload = operation.packed(frame.payload)
            frame.account[CREDIT if now_ps > frame.tail_ps else ENDPOINT] += now_ps - frame.tail_ps
            frame.head_ps = frame.tail_ps = now_ps
            left_ps = self.network.inject(frame, now_ps)
            if left_ps is None:
                self.leaving[frame] = operation
            else:
                operation.leaves(frame, left_ps)
                operation.released(now_ps)

    def left(self, frame: Frame, now_ps: int) -> None:
        """The last byte of a frame has left, where ``inject`` could not tell when it would."""
        operation = self.leaving.pop(frame, None)
        if operation is not None:
            operation.leaves(frame, now_ps)
            operation.released(now_ps)

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, frame: Frame, now_ps: int) -> None:
        """The last byte of a frame is here; a slow endpoint takes it in at its drain rate."""
        drain = self.drain
        if frame.credit_bytes:
            self._credited(frame, now_ps)
        elif drain.base is None and not drain.limits:
            self._deliver(frame, now_ps)
        else:
            begin_ps = max(frame.head_ps, drain.done_ps)
            drained_ps = drain.done_ps = max(now_ps, drain.finish(begin_ps, frame.flagged_bytes * WORK_PER_BYTE))
            if drain.base is None and drained_ps == now_ps:  # its limits do not hold now
                self._deliver(frame, now_ps)
                return
            frame.account[ENDPOINT] += drained_ps - now_ps
            self.network.call_at(drained_ps, self.rank, lambda at_ps: self._deliver(frame, at_ps))

    def _is_put_off(self, action: Callable[[int], None], now_ps: int) -> int:
        """Whether a fault keeps the rank from acting now, and for how long: then it does so later, or never."""
        acts_ps = self.condition.acts_ps(now_ps)
        if acts_ps >= FOREVER_PS:
            self.network.killed(self.rank, now_ps)
        elif acts_ps > now_ps:
            self.network.call_at(acts_ps, self.rank, action)
        return acts_ps - now_ps

    def _credited(self, frame: Frame, now_ps: int) -> None:
        flow = self.flows.get(frame.communicator)
        if flow is not None:
            flow.credit(frame.credit_bytes, now_ps)
        elif self.condition.is_well or not self._is_put_off(lambda at_ps: self._credited(frame, at_ps), now_ps):
            self.credit((frame.source_rank, frame.communicator, frame.operation < 0), frame.credit_bytes, now_ps)

    def _deliver(self, frame: Frame, now_ps: int) -> None:
        if not self.condition.is_well and (off_ps := self._is_put_off(lambda at_ps: self._deliver(frame, at_ps), now_ps)):
            frame.account[ENDPOINT] += off_ps
            if now_ps + off_ps < FOREVER_PS:
                self.stuck_ps += max(0, now_ps + off_ps - max(now_ps, self._stuck_until_ps))
                self._stuck_until_ps = max(self._stuck_until_ps, now_ps + off_ps)
            return
        if frame.communicator >= FIRST_COMMUNICATOR:
            self.consumed(frame, now_ps)
            return
        self.n_steps += 1
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
        n_bytes = frame.flagged_bytes
        if not n_bytes:
            return
        key = (frame.source_rank, frame.communicator, frame.operation < 0)
        connection = self.incoming.get(key)
        if connection is None:
            connection = self.incoming[key] = Connection(self.network.window_bytes(frame.source_rank, self.rank))
        due_bytes = connection.consume(n_bytes)
        if due_bytes:
            self.network.send_credit(frame, due_bytes, now_ps)

    def admit(self, now_ps: int) -> None:
        """A run begins: its communicators are new, and the connections of those before are used no more."""
        self.outgoing.clear()
        self.incoming = {key: found for key, found in self.incoming.items() if key[1] >= FIRST_COMMUNICATOR}
        self.leaving.clear()
        self.last.clear()
        self.is_admitted = True
        for flow in self.flows.values():
            flow.admit(now_ps)

    def rest(self, now_ps: int) -> None:
        """The rank's part of the run ends: so does its background traffic, until the next."""
        self.is_admitted = False
        for flow in self.flows.values():
            flow.rest(now_ps)

    # -- operations ----------------------------------------------------------------------------

    def start(self, operation: Operation, now_ps: int) -> None:
        """Begin an operation, at once where no fault makes the rank late; what arrived for it before is taken then."""
        if self.condition.is_well:
            self._begin(operation, now_ps)
            return
        begins_ps = self.condition.begins_ps(now_ps)
        if begins_ps > now_ps:
            operation.submitted_ps = begins_ps  # also where it waited for the call before it: its rank came later still
            self.network.call_at(begins_ps, self.rank, lambda at_ps: self._begin(operation, at_ps))
        else:
            self._begin(operation, now_ps)

    def _begin(self, operation: Operation, now_ps: int) -> None:
        if not self.condition.is_well and (off_ps := self._is_put_off(lambda at_ps: self._begin(operation, at_ps), now_ps)):
            operation.submitted_ps = now_ps + off_ps
            return
        self.n_steps += 1
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


def flow_number(source: int, target: int, n_ranks: int) -> int:
    """Of the first channel between two addresses; those of switches are apart, so that ranks' do not depend on them."""
    if source < n_ranks and target < n_ranks:
        return (source * n_ranks + target) * CHANNEL_STRIDE
    return ((1 << 46) + (source << 23) + target) * CHANNEL_STRIDE
