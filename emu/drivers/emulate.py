"""Emulate: wall time, one engine per actor, every hop over a socket.

Law: the machines decide *when*, this loop delivers *then*.  A frame is sent as soon
as its first byte leaves its link in model time, stamped with the times at which it
is due at the far end; an event is handled when the clock has reached it and
nothing that comes before it can still arrive (see ``floors``).  A late host is late
against the clock, never in the model: the model goes on from the due times.

Threads: the loop runs in one thread, which alone touches the machines, the sockets
and the floor page.  User threads only append to the runtime's inbox and wake the loop.

The clock is read once per cycle.
"""

from __future__ import annotations

import os
import select
from collections import deque
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np

from emu.clock import DilatedClock, wall_ns
from emu.drivers.engine import FOREVER_PS, Engine, ImpairmentTable
from emu.drivers.floors import FloorPage
from emu.drivers.placement import Placement
from emu.drivers.runtime import Runtime
from emu.errors import EmuError, WireError
from emu.fabric.frame import Frame
from emu.rank import Rank
from emu.topologies.graph import Topology
from emu.wire import FRAME, HEADER_BYTES, HELLO, INLINE_BYTES, Header, pack, pack_hello, unpack, unpack_hello, unpack_prefix

FIRST_POLL_S = 0.0001
LONGEST_POLL_S = 0.001
IDLE_S = 0.5


class Carrier(Protocol):
    """What carries bytes between actors: ``emu.transport.Transport``, or a fake."""

    descriptor: int

    def send(self, peer: int, header: bytes, payload: Any) -> bool: ...
    def receive(self) -> Any: ...
    def readable(self) -> bool: ...


@dataclass(slots=True)
class HostCounters:
    """What the host did to the run; the model never sees it."""

    largest_lateness_ps: int = 0
    order_violations: int = 0
    order_weight_ps: int = 0
    transport_backpressure: int = 0
    frames_sent: int = 0
    socket_payload_bytes: int = 0


class _PacedEngine(Engine):
    """An engine whose links end in other actors: frames leave when their first byte does."""

    def __init__(self, host: EmulatedHost, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._host = host
        self.served_ps: dict[int, int] = {}
        self.promises_ps: dict[int, int] = {}
        self.outgoing: list[tuple[int, int, Frame, int]] = []
        """(start, sequence, frame, link) of frames whose first byte has not left yet, a heap."""
        self.crowded: set[tuple[int, int]] = set()
        """Connections with more than half a window out: there a credit that comes late may matter."""
        self._outstanding: dict[tuple[int, int], int] = {}

    def inject(self, frame: Frame, now_ps: int) -> int | None:
        if frame.payload_bytes:
            self._count_out(frame.source_rank, frame.target_rank, frame.payload_bytes)
        return super().inject(frame, now_ps)

    def _count_out(self, source_rank: int, target_rank: int, n_bytes: int) -> None:
        key = (source_rank, target_rank)
        out = self._outstanding[key] = self._outstanding.get(key, 0) + n_bytes
        if 2 * out > self.window_bytes(source_rank, target_rank):
            self.crowded.add(key)
        else:
            self.crowded.discard(key)

    def forward(self, frame: Frame, link: int, start_ps: int) -> None:
        self.served_ps[link] = max(self.served_ps.get(link, 0), self.now_ps)
        frame.promise_ps = self.links[link].promise_ps(frame)
        self._sequence += 1
        heappush(self.outgoing, (start_ps, self._sequence, frame, link))

    def emit_until(self, limit_ps: int) -> None:
        """Send what is decided and whose first byte has left by ``limit_ps``: that needs nobody's promise any more."""
        outgoing = self.outgoing
        while outgoing and outgoing[0][0] <= limit_ps:
            start_ps, _, frame, link = heappop(outgoing)
            self._host.emit(frame, link, start_ps)

    def next_wakeup(self) -> int | None:
        """The earlier of the next event and the next frame to be sent."""
        calendar, outgoing = self.calendar, self.outgoing
        if not outgoing:
            return calendar[0][0] if calendar else None
        return min(outgoing[0][0], calendar[0][0]) if calendar else outgoing[0][0]

    def forward_credit(self, frame: Frame, now_ps: int) -> None:
        """Credits take the way back over the sockets too, without waiting in any queue."""
        if not frame.path:
            self._take_credit(frame)
            return
        frame.hop = 1
        self._host.emit(frame, frame.path[0], now_ps)

    def _take_credit(self, frame: Frame) -> None:
        key = (frame.target_rank, frame.source_rank)
        if frame.head_ps < self.now_ps and key in self.crowded:
            self._host.counters.order_violations += 1
            self._host.counters.order_weight_ps += self.now_ps - frame.head_ps
        self._count_out(*key, -frame.credit_bytes)
        self._at_connection(frame.head_ps, frame)

    def arrive(self, frame: Frame, link: int) -> None:
        """A frame came in over a socket."""
        if frame.credit_bytes:
            if frame.hop == len(frame.path):
                self._take_credit(frame)
                return
            remaining = frame.path[frame.hop :]
            frame.hop += 1
            passes_ps = frame.head_ps - sum(self.topology.links[index].latency_ps for index in remaining)
            self._sequence += 1
            heappush(self.calendar, (passes_ps, link, self._sequence, partial(self._host.emit, frame, remaining[0])))
            return
        last = frame.hop == len(frame.path)
        due_ps = frame.tail_ps if last else frame.head_ps
        if not last:
            served_ps = self.served_ps.get(frame.path[frame.hop], 0)
            if due_ps < served_ps:
                self._host.counters.order_violations += 1
                self._host.counters.order_weight_ps += served_ps - due_ps
        self._sequence += 1
        heappush(self.calendar, (due_ps, link, self._sequence, frame))


class EmulatedHost:
    """One actor's share of the fabric: engine, runtime, clock and loop."""

    def __init__(
        self,
        *,
        process: int,
        topology: Topology,
        placement: Placement,
        carrier: Carrier,
        session: int,
        payload: bool,
        user_time: str,
        choose_algorithm: Any,
        clock_offset_ns: int = 0,
    ) -> None:
        self.process = process
        self.topology = topology
        self.placement = placement
        self.carrier = carrier
        self.session = session
        self.clock_offset_ns = clock_offset_ns
        self.epoch = -1
        self.clock = DilatedClock(dilation=1.0, anchor_ns=0)
        self.counters = HostCounters()
        self.page: FloorPage | None = None
        self._payload = payload
        self._user_time = user_time
        self._choose = choose_algorithm
        self._hosted = frozenset(node for node, owner in enumerate(placement.owner) if owner == process)
        self._outward = {receiver: index for index, (sender, receiver, _) in enumerate(placement.channels) if sender == process}
        self._latency_ps = {index: latency for index, (_, _, latency) in enumerate(placement.channels)}
        inward = [latency for _, receiver, latency in placement.channels if receiver == process]
        self._inward_latency_ps = max(1, min(inward, default=1))
        self._lone_links = self._only_inputs(topology)
        self._slack_ps = min((link.latency_ps for link in topology.links), default=0) // 2
        self._target_of = [placement.owner[link.target] for link in topology.links]
        self._greeted: set[int] = set()
        self._backlog: deque[tuple[int, Frame, int, int]] = deque()
        self._published_ps = FOREVER_PS
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._stopping = False
        self._poll_s = FIRST_POLL_S
        self.fault: BaseException | None = None
        self.commands: deque[Any] = deque()
        self._build(0, {})

    @property
    def senders(self) -> set[int]:
        """Actors that send to this one."""
        return {sender for sender, receiver, _ in self.placement.channels if receiver == self.process}

    def _only_inputs(self, topology: Topology) -> frozenset[int]:
        """Links that are their node's only input: what they promise is all that the node must know."""
        inputs: dict[int, int] = {}
        for link in topology.links:
            inputs[link.target] = inputs.get(link.target, 0) + 1
        return frozenset(
            index for index, link in enumerate(topology.links) if link.target in self._hosted and inputs[link.target] == 1
        )

    def _build(self, seed: int, impairments: ImpairmentTable) -> None:
        self.engine = _PacedEngine(self, topology=self.topology, seed=seed, impairments=impairments, hosted=self._hosted)
        self.runtime = Runtime(
            self.engine,
            payload=self._payload,
            user_time=self._user_time,
            wake=self.wake,
            choose_algorithm=self._choose,
            dilation=self.clock.dilation,
        )
        self.runtime.on_hand_over = self._hand_over
        self.runtime.due_ns = self._due_ns if self.clock.dilation else None

    # -- control (any thread) ----------------------------------------------------------------------

    def wake(self) -> None:
        try:
            os.write(self._wake_writer, b"x")
        except BlockingIOError:
            return  # the pipe is full: the loop has plenty of reasons to wake

    def command(self, action: Any) -> None:
        """Have the loop's thread call ``action()``."""
        self.commands.append(action)
        self.wake()

    def greet(self) -> None:
        """Send HELLO to every actor this one sends to."""
        for peer in self._outward:
            if not self.carrier.send(peer, pack_hello(self.session, 0, self.process), None):
                raise WireError(f"actor {self.process} cannot reach actor {peer}")

    @property
    def greeted(self) -> bool:
        return self._greeted >= self.senders

    def halt(self) -> None:
        """Forget all events and touch the page no more, until ``begin``.  In the loop's thread."""
        self.page = None
        self.epoch = -1
        self._backlog.clear()
        self._build(0, {})

    def begin(self, *, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable, page: FloorPage | None) -> None:
        """A fresh model at time 0.  In the loop's thread."""
        self.epoch = epoch
        self.clock = DilatedClock(dilation=dilation, anchor_ns=self.now_ns())
        self.counters = HostCounters()
        self.page = page
        self._backlog.clear()
        self._build(seed, impairments)
        self._published_ps = -1
        self._publish()

    def admit(self, ranks: list[Rank], anchor_ns: int) -> None:
        """Ranks will run from model time ``cursor``; the clock reads it at ``anchor_ns``."""
        start_ps = ranks[0].cursor_ps if ranks else 0
        self.clock.anchor_ns = anchor_ns - int(start_ps * self.clock.dilation / 1000)
        self.runtime.admit(ranks)
        self._publish()

    def stop(self) -> None:
        self._stopping = True
        self.wake()

    def now_ns(self) -> int:
        """Wall time on the session's clock."""
        return wall_ns() - self.clock_offset_ns

    def _due_ns(self, model_ps: int) -> int:
        return self.clock.due_ns(model_ps) + self.clock_offset_ns

    # -- the loop ------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Until ``stop``; a fault ends the run on this actor's ranks and is kept for the session."""
        try:
            while not self._stopping:
                self._cycle()
        except BaseException as error:
            self.fault = error
            self.runtime.fail(error if isinstance(error, EmuError) else WireError(f"actor {self.process}: {error!r}"))
            raise

    def _cycle(self) -> None:
        now_ns = self.now_ns()
        self._drain()
        while self.commands:
            self.commands.popleft()()
        self.runtime.take_inbox()
        self._retry_backlog()
        engine, clock = self.engine, self.clock
        before = engine.events
        now_ps = clock.model_ps(now_ns)
        engine.interrupted = False
        top = engine.next_wakeup()
        if top is not None and top <= now_ps:
            if clock.dilation and now_ps - top > self.counters.largest_lateness_ps:
                self.counters.largest_lateness_ps = now_ps - top
            engine.emit_until(now_ps)
            self._run_promised(min(now_ps, self.runtime.floor_ps))
            if not engine.interrupted:
                engine.run(self._limit(now_ps))
            engine.emit_until(now_ps)
        self._publish()
        if engine.interrupted or self.runtime.inbox or self.commands or self.carrier.readable():
            return
        self._wait(now_ps, engine.events != before)

    def _limit(self, now_ps: int) -> int:
        """How far the calendar may be handled now."""
        if not self.clock.dilation:
            return FOREVER_PS
        limit_ps = min(now_ps, self.runtime.floor_ps)
        if self.page is None:
            return min(now_ps - self._slack_ps, limit_ps)
        calendar = self.engine.calendar
        if not calendar or calendar[0][0] > limit_ps:
            return -1
        return min(limit_ps, self.page.safe_until_ps(self.process, self._inward_latency_ps) - 1)

    def _run_promised(self, limit_ps: int) -> None:
        """Handle what needs nobody else's promise: arrivals at nodes with one input that its link's promise covers, and
        credits where no window is near its end."""
        engine = self.engine
        if engine.crowded or not self._lone_links or self.page is None or not self.clock.dilation:
            return
        while engine.calendar:
            due_ps, port, _, item = engine.calendar[0]
            if due_ps > limit_ps or type(item) is not Frame:
                return
            if not item.credit_bytes and (port not in self._lone_links or due_ps > engine.promises_ps.get(port, 0)):
                return
            engine.step()
            if engine.interrupted:
                return

    def _wait(self, now_ps: int, moved: bool) -> None:
        top = self.engine.next_wakeup()
        seconds = IDLE_S
        if self._backlog:
            seconds = FIRST_POLL_S
        elif top is not None:
            calendar, outgoing = self.engine.calendar, self.engine.outgoing
            due_ps = FOREVER_PS
            if calendar and calendar[0][0] <= self.runtime.floor_ps:
                due_ps = calendar[0][0] + (self._slack_ps if self.page is None else 0)
                if due_ps <= now_ps:
                    # It is time, but something that comes first may still be under way.
                    self._poll_s = FIRST_POLL_S if moved else min(LONGEST_POLL_S, self._poll_s * 1.5)
                    seconds = self._poll_s
                    due_ps = FOREVER_PS
            if outgoing:
                due_ps = min(due_ps, outgoing[0][0])
            if due_ps < FOREVER_PS:
                seconds = min(seconds, max(0.0, (self.clock.due_ns(due_ps) - self.now_ns()) / 1e9))
        if seconds <= 0:
            return
        readable, _, _ = select.select([self.carrier.descriptor, self._wake_reader], [], [], seconds)
        if self._wake_reader in readable:
            while True:
                try:
                    if len(os.read(self._wake_reader, 4096)) < 4096:
                        break
                except BlockingIOError:
                    break

    def _publish(self) -> None:
        """Say how far this actor has got: nothing it sends from now on is older than its floor."""
        page = self.page
        if page is None:
            return
        top = self.engine.next_wakeup()
        floor_ps = min(FOREVER_PS if top is None else top, self.runtime.floor_ps)
        for _, _, _, bound_ps in self._backlog:
            floor_ps = min(floor_ps, bound_ps)
        if floor_ps != self._published_ps:
            self._published_ps = floor_ps
            page.floors[self.process] = floor_ps
        page.progress[self.process] = self.engine.events

    # -- frames ----------------------------------------------------------------------------------------

    def emit(self, frame: Frame, link: int, now_ps: int) -> None:
        """Put a frame on the socket towards the link's far end."""
        peer = self._target_of[link]
        if self._backlog or not self._send(frame, link, peer, now_ps):
            self.counters.transport_backpressure += 1
            self._backlog.append((peer, frame, link, now_ps))

    def _retry_backlog(self) -> None:
        while self._backlog:
            peer, frame, link, bound_ps = self._backlog[0]
            if not self._send(frame, link, peer, bound_ps):
                return
            self._backlog.popleft()

    def _send(self, frame: Frame, link: int, peer: int, now_ps: int) -> bool:
        channel = self._outward[peer]
        page = self.page
        if page is not None:
            if not page.has_room(channel):
                return False
            page.record_send(channel, _event_ps(frame, now_ps))
        n_bytes = frame.payload_bytes
        header = pack(
            self.session,
            self.epoch,
            Header(
                link, channel, frame.source_rank, frame.target_rank, frame.hop, frame.flow, frame.route_flow, frame.head_ps,
                frame.tail_ps, frame.promise_ps, frame.communicator, frame.operation, frame.message, frame.chunk, n_bytes,
                frame.message_bytes, frame.digest, frame.credit_bytes, self.clock.anchor_ns,
            ),
        )  # fmt: skip
        payload = None
        if n_bytes and frame.payload is not None:
            payload = frame.payload
            if n_bytes <= INLINE_BYTES:
                header += payload.tobytes() if isinstance(payload, np.ndarray) else bytes(payload)
                payload = None
        if not self.carrier.send(peer, header, payload):
            if page is not None:
                page.sent[channel] -= 1
            return False
        self.counters.frames_sent += 1
        self.counters.socket_payload_bytes += n_bytes
        return True

    def _drain(self) -> None:
        """Take in what has arrived.  The floor is lowered before the frames are counted as taken."""
        counts: dict[int, int] = {}
        engine = self.engine
        for data, payload in self.carrier.receive():
            kind, epoch = unpack_prefix(data, self.session)
            if kind == HELLO:
                self._greeted.add(unpack_hello(data))
                continue
            if kind != FRAME or epoch != self.epoch:
                continue
            header = unpack(data)
            if header.anchor_ns > self.clock.anchor_ns:
                self.clock.anchor_ns = header.anchor_ns
            frame = Frame(
                engine.path(header.source_rank, header.target_rank, header.route_flow),
                source_rank=header.source_rank,
                target_rank=header.target_rank,
                flow=header.flow,
                route_flow=header.route_flow,
                payload_bytes=header.payload_bytes,
                head_ps=header.head_ps,
                communicator=header.communicator,
                operation=header.operation,
                message=header.message,
                chunk=header.chunk,
                message_bytes=header.message_bytes,
                digest=header.digest,
                credit_bytes=header.credit_bytes,
                payload=data[HEADER_BYTES:] if payload is None and len(data) > HEADER_BYTES else payload,
            )
            frame.hop = header.hop
            frame.tail_ps = header.tail_ps
            engine.promises_ps[header.link] = header.promise_ps
            engine.arrive(frame, header.link)
            counts[header.channel] = counts.get(header.channel, 0) + 1
        if counts and self.page is not None:
            self._publish()
            for channel, count in counts.items():
                self.page.taken[channel] += count

    def _hand_over(self, rank: Rank, cursor_ps: int, handed_ns: int) -> None:
        """Re-anchor when the user's Python took wall time until ``handed_ns``, by no more than it took.

        Until then nobody could pass the rank's cursor.  What is late beyond that is the host's doing, and stays late.
        """
        clock = self.clock
        if not clock.dilation:
            return
        late_ns = handed_ns - self.clock_offset_ns - clock.due_ns(cursor_ps)
        if late_ns > 0:
            clock.anchor_ns += min(late_ns, max(0, handed_ns - rank.accounted_ns))
        rank.accounted_ns = handed_ns


def _event_ps(frame: Frame, now_ps: int) -> int:
    """When a frame sent at ``now_ps`` becomes an event at its receiver, or a bound for it."""
    if frame.credit_bytes:
        return now_ps
    return frame.tail_ps if frame.hop == len(frame.path) else frame.head_ps
