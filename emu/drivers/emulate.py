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

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable
from threading import Event, Lock
from typing import Any, Protocol

import numpy as np

from emu.clock import DilatedClock, wall_ns
from emu.drivers.blocked import Blocked
from emu.drivers.engine import ImpairmentTable, impaired
from emu.drivers.floors import FloorPage
from emu.drivers.paced import HostCounters, Paced, PacedEngine
from emu.drivers.paced_packets import PacedPacketEngine
from emu.drivers.placement import Placement
from emu.drivers.runtime import Runtime
from emu.errors import ConfigError, EmuError, WireError
from emu.fabric.recorder import Recorder
from emu.faults.spec import Injection
from emu.rank import Rank
from emu.telemetry.snapshot import Meter, Snapshot
from emu.topologies.graph import Topology
from emu.units import FOREVER_PS
from emu.wire import HELLO, INLINE_BYTES, pack_hello, unpack_hello, unpack_prefix

FIRST_POLL_S = 0.0001
LONGEST_POLL_S = 0.001
IDLE_S = 0.5


class Carrier(Protocol):
    """What carries bytes between actors: ``emu.transport.Transport``, or a fake."""

    descriptor: int

    def send(self, peer: int, header: bytes, payload: Any) -> bool: ...
    def receive(self) -> Any: ...
    def readable(self) -> bool: ...


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
        self.meter = Meter()
        self.on_killed: Callable[[int, int], None] | None = None
        """What a fault that kills a rank does; None: the run fails."""
        self.is_recording = False
        """Whether what happens is noted, from the next ``begin`` on."""
        self.page: FloorPage | None = None
        self._payload = payload
        self._user_time = user_time
        self._choose = choose_algorithm
        self._hosted = frozenset(node for node, owner in enumerate(placement.owner) if owner == process)
        self._outward = {receiver: index for index, (sender, receiver, _) in enumerate(placement.channels) if sender == process}
        self._latency_ps = {index: latency for index, (_, _, latency) in enumerate(placement.channels)}
        inward = [latency for _, receiver, latency in placement.channels if receiver == process]
        self._inward_latency_ps = max(1, min(inward, default=1))
        self._lone_links = self._only_inputs(topology) if topology.switching is None else frozenset()
        self._hold_ps = self._slack_ps = min((link.latency_ps for link in topology.links), default=0) // 2
        """How long after its time an event is handled: the slack, or 0 where floors keep the order."""
        self._greeted: set[int] = set()
        self._backlog: deque[tuple[int, bytes, Any, int, int, int]] = deque()
        """Arguments of :meth:`emit`, of what a socket or the page has no room for yet."""
        self._published_ps = FOREVER_PS
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._wake_lock = Lock()
        self._wake_open = True
        self._stopping = self._looping = self._resting = False
        self._poll_s = FIRST_POLL_S
        self.fault: BaseException | None = None
        self.ended = Event()
        """Set when the loop is over; ``fault`` says why, if it was not told to stop."""
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
        topology = self.topology
        common: dict[str, Any] = {"topology": topology, "seed": seed, "impairments": impairments, "hosted": self._hosted}
        self.engine: Paced = (
            PacedEngine(self, **common)
            if topology.switching is None
            else PacedPacketEngine(self, payload=self._payload, **common)
        )
        self.runtime = Runtime(
            self.engine,
            payload=self._payload,
            user_time=self._user_time,
            wake=self.wake,
            choose_algorithm=self._choose,
            dilation=self.clock.dilation,
            calls=self.meter.calls,
        )
        if self.is_recording:
            self.engine.recorder = Recorder()
        if self.on_killed is not None:
            self.engine.on_killed = self.on_killed
        self.runtime.on_hand_over = self._hand_over
        self.runtime.due_ns = self._due_ns if self.clock.dilation else None

    # -- control (any thread) ----------------------------------------------------------------------

    def wake(self) -> None:
        with self._wake_lock, contextlib.suppress(BlockingIOError):  # a full pipe: the loop has plenty of reasons to wake
            if self._wake_open:
                os.write(self._wake_writer, b"x")

    def _close_wake(self) -> None:
        with self._wake_lock:
            if self._wake_open:
                self._wake_open = False
                os.close(self._wake_reader)
                os.close(self._wake_writer)

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
        self._keep_counts()
        self._build(0, {})

    def begin(
        self,
        *,
        epoch: int,
        dilation: float,
        seed: int,
        impairments: ImpairmentTable,
        page: FloorPage | None,
        faults: tuple[Injection, ...] = (),
    ) -> None:
        """A fresh model at time 0.  In the loop's thread.  Raises ConfigError where nothing would keep packets in order."""
        if page is None and not dilation and self.topology.switching is not None:
            raise ConfigError(
                "dilation 0 on several hosts: nothing keeps packets in order there; give a dilation above 0, or use one host"
            )
        self.epoch = epoch
        self._resting = False
        self.clock = DilatedClock(dilation=dilation, anchor_ns=self.now_ns())
        self._keep_counts()
        self.meter.impaired = impaired(self.topology, impairments, self._hosted)
        self.page = page
        self._hold_ps = self._slack_ps if page is None else 0
        self._backlog.clear()
        self._build(seed, impairments)
        for fault in faults:
            self.engine.injector.inject(fault, 0)
        self._published_ps = -1
        self._publish()

    def _keep_counts(self) -> None:
        """The engine goes; what it counted stays."""
        self.meter.keep(self.engine, self.counters)
        self.counters = HostCounters()

    def snapshot(self) -> Snapshot:
        """What was counted since the session began.  In the loop's thread."""
        return self.meter.snapshot(self.engine, self.counters, dilation=self.clock.dilation)

    def admit(self, ranks: list[Rank], start_ps: int, anchor_ns: int) -> None:
        """A run begins at model time ``start_ps``, with these ranks here; the clock reads it at ``anchor_ns``."""
        self._resting = False
        self.clock.anchor_ns = anchor_ns - int(start_ps * self.clock.dilation / 1000)
        self.runtime.admit(ranks)
        self._publish()

    def rest(self) -> None:
        """The run is over on every actor: what is still under way, which nobody waits for, goes on unpaced until ``admit``.

        Without a page only the pace keeps order, and stays.  In the loop's thread.
        """
        self._resting = self.page is not None

    def present_ps(self) -> int:
        """Model time now, in the loop's thread: what the clock reads in a run, and after all that was handled."""
        paced = self.clock.dilation and not self._resting and not self.runtime.finished_all()
        return max(self.engine.untouched_ps, self.clock.model_ps(self.now_ns()) if paced else 0)

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        if not self._looping:
            self._close_wake()

    def now_ns(self) -> int:
        """Wall time on the session's clock."""
        return wall_ns() - self.clock_offset_ns

    def _due_ns(self, model_ps: int) -> int:
        return self.clock.due_ns(model_ps + self._hold_ps) + self.clock_offset_ns

    # -- the loop ------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Until ``stop``; a fault ends the run on this actor's ranks and is kept for the session."""
        self._looping = True
        try:
            while not self._stopping:
                self._cycle()
        except BaseException as error:
            self.fault = error
            self.runtime.fail(error if isinstance(error, EmuError) else WireError(f"actor {self.process}: {error!r}"))
            raise
        finally:
            self._close_wake()
            self.ended.set()

    def _cycle(self) -> None:
        now_ns = self.now_ns()
        self._drain()
        while self.commands:
            self.commands.popleft()()
        self.runtime.take_inbox()
        self._retry_backlog()
        engine, clock = self.engine, self.clock
        before = engine.events
        now_ps = FOREVER_PS if self._resting else clock.model_ps(now_ns)
        engine.interrupted = False
        top = engine.next_wakeup()
        if top is not None and top <= now_ps:
            late_ps = now_ps - engine.first_due_ps(self._hold_ps)
            if late_ps >= 0 and clock.dilation and not self._resting:
                self.counters.largest_lateness_ps = max(self.counters.largest_lateness_ps, late_ps)
                self.meter.late(int(late_ps * clock.dilation / 1000))
            engine.emit_until(now_ps)
            if self._lone_links and self.page is not None and clock.dilation:
                engine.run_promised(min(now_ps, self._floor_ps()), self._lone_links)
            if not engine.interrupted:
                engine.run(self._limit(now_ps))
            engine.emit_until(now_ps)
            if engine.failure is not None:
                self._give_up(engine.failure)
        self._publish()
        if engine.interrupted or self.runtime.inbox or self.commands or self.carrier.readable():
            return
        self._wait(now_ps, engine.events != before)

    def _give_up(self, failure: EmuError) -> None:
        """End the run on this actor; where none of its ranks is left to be told, the loop ends, of which the session hears."""
        if self.runtime.failed is not None:
            return
        if self.runtime.finished_all():
            raise failure
        self.runtime.fail(failure)

    def blocked(self, *, for_ever: bool) -> Blocked:
        """What holds back the ports of hosted nodes.  In the loop's thread."""
        return self.engine.blocked(for_ever=for_ever) if isinstance(self.engine, PacedPacketEngine) else Blocked()

    def _floor_ps(self) -> int:
        """How far the calendar may be handled while user code runs."""
        return self.runtime.floor_ps - self.engine.settles

    def _limit(self, now_ps: int) -> int:
        """How far the calendar may be handled now."""
        if not self.clock.dilation and not self.engine.settles:
            return FOREVER_PS
        limit_ps = min(now_ps, self._floor_ps())
        if self.page is None:
            return min(now_ps - self._hold_ps, limit_ps)
        calendar = self.engine.calendar
        if not calendar or calendar[0][0] > limit_ps:
            return -1
        return min(limit_ps, self.page.safe_until_ps(self.process, self._inward_latency_ps) - 1)

    def _wait(self, now_ps: int, moved: bool) -> None:
        top = self.engine.next_wakeup()
        seconds = IDLE_S
        if self._backlog:
            seconds = FIRST_POLL_S
        elif top is not None:
            calendar, leaves_ps = self.engine.calendar, self.engine.next_departure_ps()
            due_ps = FOREVER_PS
            if calendar and calendar[0][0] <= self._floor_ps():
                due_ps = calendar[0][0] + self._hold_ps
                if due_ps <= now_ps:
                    # It is time, but something that comes first may still be under way.
                    self._poll_s = FIRST_POLL_S if moved else min(LONGEST_POLL_S, self._poll_s * 1.5)
                    seconds = self._poll_s
                    due_ps = FOREVER_PS
            if leaves_ps is not None:
                due_ps = min(due_ps, leaves_ps)
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
        for _, _, _, _, _, sent_ps in self._backlog:
            floor_ps = min(floor_ps, sent_ps)
        if floor_ps != self._published_ps:
            self._published_ps = floor_ps
            page.floors[self.process] = floor_ps
        page.progress[self.process] = self.engine.activity()

    # -- messages --------------------------------------------------------------------------------------

    def channel(self, peer: int) -> int:
        """The number of the channel to an actor."""
        return self._outward[peer]

    def emit(self, peer: int, message: bytes, payload: Any, n_bytes: int, due_ps: int, now_ps: int) -> None:
        """Put a message on the socket to an actor; there it becomes an event at ``due_ps``, or later."""
        if payload is not None and n_bytes <= INLINE_BYTES:
            message += payload.tobytes() if isinstance(payload, np.ndarray) else bytes(payload)
            payload = None
        if self._backlog or not self._send(peer, message, payload, n_bytes, due_ps):
            self.counters.transport_backpressure += 1
            self._backlog.append((peer, message, payload, n_bytes, due_ps, now_ps))

    def _retry_backlog(self) -> None:
        while self._backlog:
            peer, message, payload, n_bytes, due_ps, _ = self._backlog[0]
            if not self._send(peer, message, payload, n_bytes, due_ps):
                return
            self._backlog.popleft()

    def _send(self, peer: int, message: bytes, payload: Any, n_bytes: int, due_ps: int) -> bool:
        page = self.page
        if page is not None:
            channel = self._outward[peer]
            if not page.has_room(channel):
                return False
            page.record_send(channel, due_ps)
        if not self.carrier.send(peer, message, payload):
            if page is not None:
                page.sent[channel] -= 1
            return False
        self.counters.frames_sent += 1
        self.counters.socket_payload_bytes += n_bytes
        return True

    def _drain(self) -> None:
        """Take in what has arrived.  The floor is lowered before the messages are counted as taken."""
        counts: dict[int, int] = {}
        engine, clock = self.engine, self.clock
        for data, payload in self.carrier.receive():
            kind, epoch = unpack_prefix(data, self.session)
            if kind == HELLO:
                self._greeted.add(unpack_hello(data))
                continue
            if epoch != self.epoch:
                continue
            channel, anchor_ns = engine.take(kind, data, payload)
            if anchor_ns > clock.anchor_ns:
                clock.anchor_ns = anchor_ns
            counts[channel] = counts.get(channel, 0) + 1
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
