"""Port: the sending end of one directed link in a fabric with a ``switching``.

A packet cuts through: with wire bytes, when its turn comes at ``start``,

    head_out = start + first / rate + latency       first: one MTU and its header
    tail_out = start + bytes / rate + latency

and the wire is free again at start + bytes / rate.  At a switch its turn can come no earlier than lets its last
byte arrive in time, tail_in - (bytes - first) / rate, so that a faster link never runs dry within a packet.

Which queue goes next: strict classes before all others, the highest priority first; the others by deficit
round robin (Shreedhar and Varghese, SIGCOMM 1995).  A queue waits while it is paused, and where its class has credits,
while its first packet does not fit in what is left of them.  Within a queue order is kept: one packet that waits holds up
all behind it.

The port of an adapter has, beside its queues, a source of packets of its own: queue pairs that are asked for their
next packet only when it can go (``fabric/adapter.py``).  In a queue, what is forwarded goes before what is its own.

Impairments: capacity (throttle, flap, a lost plane) and delays as on any link.  A packet that a loss hits is gone, unless the
link repeats it (``link_retry``): then it and those behind it come one round trip of the link later.

Not modelled: preemption; the bandwidth of pauses and credits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from emu.fabric.capacity import WORK_PER_BYTE, Capacity
from emu.fabric.link import LinkStatistics
from emu.fabric.packet import Packet
from emu.impairments.base import BaseImpairment, FrameKey
from emu.keyed import mix
from emu.topologies.graph import Link
from emu.topologies.switching import Discipline, Switching

FOREVER_PS = 1 << 62
_MAX_CACHED_SIZES = 4096


class Wire(Protocol):
    """What a port asks of the engine."""

    def transmit(self, packet: Packet, link: int) -> None:
        """The packet is on its way: its head and tail are due at the far end as stamped."""
        ...

    def wake_port(self, link: int, time_ps: int) -> None:
        """Call the port's :meth:`Port.wake` at that time."""
        ...


class Source(Protocol):
    """Packets of a port's own, by queue."""

    def ready_ps(self, queue: int, now_ps: int) -> int:
        """When the next one can go: ``now_ps`` or before, later, or never (FOREVER_PS) until something happens."""
        ...

    def size_bytes(self, queue: int) -> int:
        """Payload of the one that would go now."""
        ...

    def take(self, queue: int, now_ps: int) -> Packet: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """Counters of one port and class (all its lanes).  Pauses are counted at the sender that they stop."""

    class_name: str
    packets: int
    payload_bytes: int
    pause_frames: int
    """Pause frames received, with the refreshes that keep a pause up."""
    pause_transitions: int
    """Times that the queue went from running to paused."""
    pause_ps: int
    """Time for which the queue was paused."""
    wait_ps: int
    """PortXmitWait: time for which a packet waited for credits or a pause while the wire was free."""
    marked_packets: int
    dropped_packets: int
    dropped_bytes: int
    trimmed_packets: int
    watchdog_events: int
    watchdog_packets: int
    """Packets that the watchdog dropped."""
    peak_queue_bytes: int


class PortCounters:
    """What is counted of one queue; plain ints on the hot path."""

    __slots__ = (
        "dropped_bytes", "dropped_packets", "marked", "packets", "pause_frames", "pause_ps", "pause_transitions",
        "payload_bytes", "peak_queue_bytes", "trimmed", "wait_ps", "watchdog_events", "watchdog_packets",
    )  # fmt: skip

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    packets: int
    payload_bytes: int
    pause_frames: int
    pause_transitions: int
    pause_ps: int
    wait_ps: int
    marked: int
    dropped_packets: int
    dropped_bytes: int
    trimmed: int
    watchdog_events: int
    watchdog_packets: int
    peak_queue_bytes: int


_TAKING = (-1, 0, 0)


class Port:
    """Queues, scheduler and wire of one directed link."""

    def __init__(
        self,
        *,
        link: Link,
        index: int,
        switching: Switching,
        wire: Wire,
        seed: int,
        impairments: tuple[tuple[BaseImpairment, int | None], ...] = (),
        release: Callable[[int, int, int, int], None] | None = None,
    ) -> None:
        """``release``: told (ingress link, queue held, bytes held, time) when a forwarded packet's last byte has left."""
        self.link = link
        self.index = index
        self.switching = switching
        self.wire = wire
        self.source: Source | None = None
        self.on_release = release
        n = switching.n_queues
        n_classes = len(switching.classes)
        self.queues: list[deque[Packet]] = [deque() for _ in range(n)]
        self.queued_bytes = [0] * n
        self.paused_until_ps = [0] * n
        self.paused_since_ps = [-1] * n
        self.counters = [PortCounters() for _ in range(n)]
        classes = [switching.classes[q % n_classes] for q in range(n)]
        self.credits: list[int | None] = [c.credit_bytes if c.discipline is Discipline.CREDIT else None for c in classes]
        self._strict = sorted((q for q in range(n) if classes[q].strict), key=lambda q: (-classes[q].priority, q))
        self._weighted = [q for q in range(n) if not classes[q].strict]
        self._weights = [c.weight for c in classes]
        self._deficit = [0] * n
        self._turn = 0
        self._lone = 0 if n == 1 else -1
        self._waiting_since_ps = [-1] * n
        self.free_ps = 0
        self._leaving: tuple[int, int, int] | None = None
        self._armed_ps = FOREVER_PS
        self._quantum = switching.quantum_bytes
        seeded = tuple((impairment, plane, mix(seed, number)) for number, (impairment, plane) in enumerate(impairments))
        self._capacity = Capacity(link=link, index=index, impairments=seeded)
        self._delays = tuple((impairment, own) for impairment, _, own in seeded if impairment.changes_delay)
        self._losses = tuple((impairment, own) for impairment, _, own in seeded if impairment.loses)
        self._is_plain = not any(i.changes_capacity or i.changes_delay or i.loses for i, _ in impairments)
        self._costs: dict[int, tuple[int, int, int]] = {}
        self._sent = 0
        self._last_head_ps = self._last_tail_ps = 0
        self.n_payload_bytes = 0
        self.wire_bytes = 0
        self.busy_ps = 0
        self.queued_ps = 0
        self.lost_packets = 0
        self.resent_bytes = 0

    # -- sizes -----------------------------------------------------------------------------------

    def cost(self, payload_bytes: int) -> tuple[int, int, int]:
        """(wire bytes, their time, the time of the first MTU) of a packet, without impairments."""
        found = self._costs.get(payload_bytes)
        if found is None:
            link = self.link
            n_bytes = wire_bytes(link, payload_bytes) if payload_bytes else max(self.switching.trim_bytes, link.header_bytes)
            first = min(n_bytes, link.mtu_bytes + link.header_bytes)
            rate = link.rate_bps
            if len(self._costs) >= _MAX_CACHED_SIZES:
                self._costs.clear()
            found = self._costs[payload_bytes] = (
                n_bytes,
                max(1, -(-n_bytes * WORK_PER_BYTE // rate)),
                max(1, -(-first * WORK_PER_BYTE // rate)),
            )
        return found

    # -- in --------------------------------------------------------------------------------------

    def enqueue(self, packet: Packet, now_ps: int) -> None:
        """Forward a packet when its turn comes."""
        queue = packet.queue
        self.queues[queue].append(packet)
        length = self.queued_bytes[queue] = self.queued_bytes[queue] + self.cost(packet.payload_bytes)[0]
        counters = self.counters[queue]
        if length > counters.peak_queue_bytes:
            counters.peak_queue_bytes = length
        if now_ps >= self.free_ps and self._leaving is None:
            self.go(now_ps)

    def pause(self, queue: int, stop: bool, now_ps: int, until_ps: int = FOREVER_PS) -> None:
        """A pause frame is obeyed from now on, or taken back."""
        counters = self.counters[queue]
        since = self.paused_since_ps[queue]
        if stop:
            counters.pause_frames += 1
            self.paused_until_ps[queue] = until_ps
            if since < 0:
                self.paused_since_ps[queue] = now_ps
                counters.pause_transitions += 1
            return
        self.paused_until_ps[queue] = 0
        if since >= 0:
            counters.pause_ps += now_ps - since
            self.paused_since_ps[queue] = -1
        if now_ps >= self.free_ps and self._leaving is None:
            self.go(now_ps)

    def grant(self, queue: int, n_bytes: int, now_ps: int) -> None:
        """Credits have come back."""
        credits = self.credits[queue]
        assert credits is not None
        self.credits[queue] = credits + n_bytes
        if now_ps >= self.free_ps and self._leaving is None:
            self.go(now_ps)

    def kick(self, now_ps: int) -> None:
        """The source has something new, or may send earlier than it said."""
        if now_ps >= self.free_ps and self._leaving is None:
            self.go(now_ps)

    def wake(self, now_ps: int) -> None:
        """The wire is free again, or the source's next packet may go."""
        if now_ps >= self._armed_ps:
            self._armed_ps = FOREVER_PS
        leaving = self._leaving
        if leaving is not None:
            if now_ps < self.free_ps:
                return
            self._leaving = None
            if self.on_release is not None and leaving[0] >= 0:
                self.on_release(*leaving, now_ps)
        if now_ps >= self.free_ps:
            self.go(now_ps)

    # -- out -------------------------------------------------------------------------------------

    def go(self, now_ps: int) -> None:
        """Send what is next, if anything can go now; else be woken when something can."""
        queue, later_ps = self._choose(now_ps)
        if queue < 0:
            if later_ps < self._armed_ps:
                self._arm(later_ps)
            return
        waiting = self.queues[queue]
        if waiting:
            packet = waiting.popleft()
            size = packet.payload_bytes
            n_bytes, duration_ps, first_ps = self.cost(size)
            self.queued_bytes[queue] -= n_bytes
        else:
            assert self.source is not None
            self._leaving = _TAKING  # what the source does now must not start another packet
            packet = self.source.take(queue, now_ps)
            packet.sent_ps = packet.head_ps = packet.tail_ps = now_ps
            size = packet.payload_bytes
            n_bytes, duration_ps, first_ps = self.cost(size)
        credits = self.credits[queue]
        if credits is not None:
            self.credits[queue] = credits - n_bytes
        self.queued_ps += now_ps - packet.head_ps
        counters = self.counters[queue]
        counters.packets += 1
        counters.payload_bytes += size
        self.n_payload_bytes += size
        self.wire_bytes += n_bytes
        self._sent += 1
        latency_ps = self.link.latency_ps
        if self._is_plain:
            self.busy_ps += duration_ps
            self.free_ps = end_ps = now_ps + duration_ps
            packet.head_ps = now_ps + first_ps + latency_ps
            packet.tail_ps = end_ps + latency_ps
            self._leaving = packet.ingress, packet.held_queue, packet.held_bytes
            self._arm(end_ps)
            self.wire.transmit(packet, self.index)
            return
        self._send_impaired(packet, n_bytes, now_ps)

    def _arm(self, time_ps: int) -> None:
        self._armed_ps = time_ps
        self.wire.wake_port(self.index, time_ps)

    def _choose(self, now_ps: int) -> tuple[int, int]:
        """(queue that goes now, or -1; when to look again)."""
        if self._lone == 0:
            ready_ps = self._ready_ps(0, now_ps)
            return (0, now_ps) if ready_ps <= now_ps else (-1, ready_ps)
        later_ps = FOREVER_PS
        for queue in self._strict:
            ready_ps = self._ready_ps(queue, now_ps)
            if ready_ps <= now_ps:
                return queue, now_ps
            later_ps = min(later_ps, ready_ps)
        weighted = self._weighted
        ready = []
        for queue in weighted:
            ready_ps = self._ready_ps(queue, now_ps)
            if ready_ps <= now_ps:
                ready.append(queue)
            else:
                later_ps = min(later_ps, ready_ps)
                if not self.queues[queue]:
                    self._deficit[queue] = 0
        if not ready:
            return -1, later_ps
        if len(ready) == 1:
            return ready[0], now_ps
        n = len(weighted)
        while True:
            queue = weighted[self._turn % n]
            if queue in ready:
                need = self.cost(self._next_bytes(queue))[0]
                if self._deficit[queue] >= need:
                    self._deficit[queue] -= need
                    return queue, now_ps
                self._deficit[queue] += self._weights[queue] * self._quantum
                if self._deficit[queue] >= need:
                    self._deficit[queue] -= need
                    return queue, now_ps
            self._turn += 1

    def _next_bytes(self, queue: int) -> int:
        waiting = self.queues[queue]
        if waiting:
            return waiting[0].payload_bytes
        return 0 if self.source is None else self.source.size_bytes(queue)

    def _ready_ps(self, queue: int, now_ps: int) -> int:
        """When the queue's next packet may go, FOREVER_PS until something else happens."""
        if self.queues[queue]:
            ready_ps = now_ps
        elif self.source is None:
            return FOREVER_PS
        else:
            ready_ps = self.source.ready_ps(queue, now_ps)
            if ready_ps > now_ps:
                return ready_ps
        paused_ps = self.paused_until_ps[queue]
        held = paused_ps > now_ps
        if held and paused_ps < FOREVER_PS:
            ready_ps = paused_ps
        elif held:
            ready_ps = FOREVER_PS
        else:
            credits = self.credits[queue]
            if credits is not None and credits < self.cost(self._next_bytes(queue))[0]:
                held = True
                ready_ps = FOREVER_PS
        since = self._waiting_since_ps[queue]
        if held:
            if since < 0:
                self._waiting_since_ps[queue] = now_ps
        elif since >= 0:
            self.counters[queue].wait_ps += now_ps - since
            self._waiting_since_ps[queue] = -1
        return ready_ps

    def _send_impaired(self, packet: Packet, n_bytes: int, now_ps: int) -> None:
        """The rule of :meth:`go` with what impairments add."""
        capacity, link = self._capacity, self.link
        capacity.forget(now_ps)
        start_ps = capacity.available(now_ps)
        first_ps = capacity.finish(start_ps, min(n_bytes, link.mtu_bytes + link.header_bytes))
        end_ps = capacity.finish(start_ps, n_bytes)
        self.busy_ps += end_ps - start_ps - capacity.down_ps
        if link.planes_bps:
            capacity.count_planes(start_ps, end_ps)
        key = FrameKey(self.index, 0, self._sent)
        delay_ps = sum(impairment.delay_ps(seed, key, start_ps) for impairment, seed in self._delays)
        lost = False
        attempt = 0
        while self._hits(key, attempt):
            self.lost_packets += 1
            if not self.switching.link_retry:
                lost = True
                break
            attempt += 1
            again_ps = capacity.available(end_ps + 2 * link.latency_ps)
            first_ps = capacity.finish(again_ps, min(n_bytes, link.mtu_bytes + link.header_bytes))
            end_ps = capacity.finish(again_ps, n_bytes)
            self.busy_ps += end_ps - again_ps - capacity.down_ps
            self.wire_bytes += n_bytes
            self.resent_bytes += n_bytes
        self.free_ps = end_ps
        self._leaving = packet.ingress, packet.held_queue, packet.held_bytes
        self._arm(end_ps)
        if lost:
            return
        self._last_head_ps = packet.head_ps = max(first_ps + delay_ps + link.latency_ps, self._last_head_ps)
        self._last_tail_ps = packet.tail_ps = max(end_ps + delay_ps + link.latency_ps, self._last_tail_ps)
        self.wire.transmit(packet, self.index)

    def _hits(self, key: FrameKey, attempt: int) -> bool:
        """Whether a loss hits this packet, at this attempt to send it over the link."""
        number = self._sent
        return any(loss.first_lost(seed, key, number, number + 1, attempt) is not None for loss, seed in self._losses)

    # -- what is known ---------------------------------------------------------------------------

    @property
    def holds_bytes(self) -> int:
        """Wire bytes in its queues."""
        return sum(self.queued_bytes)

    def depth_bytes(self) -> int:
        """Bytes waiting in all queues, and what of the packet on the wire counts as waiting: for balancing."""
        return sum(self.queued_bytes) + (self._quantum if self._leaving is not None else 0)

    def statistics(self) -> LinkStatistics:
        """As any link's."""
        return LinkStatistics(
            name=self.link.name,
            frames=self._sent,
            payload_bytes=self.n_payload_bytes,
            wire_bytes=self.wire_bytes,
            resent_bytes=self.resent_bytes,
            lost_packets=self.lost_packets,
            busy_ps=self.busy_ps,
            queued_ps=self.queued_ps,
            planes_bytes=(),
        )

    def queue_statistics(self, now_ps: int) -> tuple[QueueStatistics, ...]:
        """By class; what still lasts is counted up to ``now_ps``."""
        n_classes = len(self.switching.classes)
        found = []
        for number, traffic_class in enumerate(self.switching.classes):
            lanes = range(number, self.switching.n_queues, n_classes)
            counters = [self.counters[queue] for queue in lanes]
            pausing_ps = sum(now_ps - since for since in (self.paused_since_ps[q] for q in lanes) if since >= 0)
            waiting_ps = sum(now_ps - since for since in (self._waiting_since_ps[q] for q in lanes) if since >= 0)
            found.append(
                QueueStatistics(
                    class_name=traffic_class.name,
                    packets=sum(c.packets for c in counters),
                    payload_bytes=sum(c.payload_bytes for c in counters),
                    pause_frames=sum(c.pause_frames for c in counters),
                    pause_transitions=sum(c.pause_transitions for c in counters),
                    pause_ps=sum(c.pause_ps for c in counters) + pausing_ps,
                    wait_ps=sum(c.wait_ps for c in counters) + waiting_ps,
                    marked_packets=sum(c.marked for c in counters),
                    dropped_packets=sum(c.dropped_packets for c in counters),
                    dropped_bytes=sum(c.dropped_bytes for c in counters),
                    trimmed_packets=sum(c.trimmed for c in counters),
                    watchdog_events=sum(c.watchdog_events for c in counters),
                    watchdog_packets=sum(c.watchdog_packets for c in counters),
                    peak_queue_bytes=max(c.peak_queue_bytes for c in counters),
                )
            )
        return tuple(found)


def wire_bytes(link: Link, payload_bytes: int) -> int:
    """Payload and one header for every MTU of it, at least one."""
    return payload_bytes + max(1, -(-payload_bytes // link.mtu_bytes)) * link.header_bytes
