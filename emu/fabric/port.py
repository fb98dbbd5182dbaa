"""Port: the sending end of one directed link in a fabric with a ``switching``.

A packet cuts through: with wire bytes (its payload with its protocol's flags, and headers), when its turn comes at ``start``,

    head_out = start + first / rate + latency       first: one MTU and its header
    tail_out = start + bytes / rate + latency

and the wire is free again at start + bytes / rate.  At a switch its turn can come no earlier than lets its last
byte arrive in time, tail_in - (bytes - first) / rate, so that a faster link never runs dry within a packet.

Which queue goes next: ``fabric/scheduler.py``.  A queue waits while it is paused (``fabric/pausing.py``), and where its class
has credits, while its first packet does not fit in what is left of them.  Within a queue order is kept: one packet that
waits holds up all behind it.  Only a switch has a watchdog: an adapter's queues are those of its queue pairs.

The port of an adapter has, beside its queues, a source of packets of its own: queue pairs that are asked for their
next packet only when it can go (``fabric/adapter.py``).  In a queue, what is forwarded goes before what is its own.

Impairments: capacity (throttle, flap, a lost plane) and delays as on any link.  A packet of which a loss hits an MTU is
gone as a whole: of packets of n MTUs a share of 1 - (1 - P)^n, so that results depend on the quantum where there is loss; with
quantum = MTU the loss is P.  A link that repeats (``link_retry``) loses nothing: the packet and those behind it come one round
trip of the link later.  The credits of a lost packet are free again at once, as InfiniBand's absolute credit counts make up for
what never came.

Not modelled: preemption; the bandwidth of pauses and credits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from emu.fabric.account import RETRANSMISSION, SERIALISATION
from emu.fabric.blocking import Blocking
from emu.fabric.capacity import WORK_PER_BYTE
from emu.fabric.counters import DelayCounts, PortCounters, QueueStatistics, summed
from emu.fabric.impairable import Impairable
from emu.fabric.link import LinkStatistics
from emu.fabric.packet import Packet
from emu.fabric.pausing import Pausing
from emu.fabric.scheduler import Scheduler
from emu.impairments.base import BaseImpairment, FrameKey
from emu.topologies.graph import Link
from emu.topologies.switching import Discipline, Switching
from emu.units import FOREVER_PS

_MAX_CACHED_SIZES: Final = 4096
_TRIMMED: Final = -1
"""Stands for the payload of a trimmed packet where costs are kept."""
_TAKING: Final = (-1, 0, 0)
"""On the wire while the source is asked for a packet: what it does then must not start another."""


class Wire(Protocol):
    """What a port asks of the engine."""

    def transmit(self, packet: Packet, link: int) -> None:
        """The packet is on its way: its head and tail are due at the far end as stamped."""
        ...

    def wake_port(self, link: int, time_ps: int) -> None:
        """Call the port's :meth:`Port.wake` at that time."""
        ...

    def stalled(self, link: int, now_ps: int, end_ps: int) -> None:
        """The link is down for a while between now and ``end_ps``, and holds a packet until then."""
        ...


class Source(Protocol):
    """Packets of a port's own, by queue."""

    def ready_ps(self, queue: int, now_ps: int) -> int:
        """When the next one can go: ``now_ps`` or before, later, or never (FOREVER_PS) until something happens."""
        ...

    def size_bytes(self, queue: int) -> int:
        """Payload, with its flags, of the one that would go now."""
        ...

    def take(self, queue: int, now_ps: int) -> Packet: ...


class Port(Impairable):
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
        delay_counts: DelayCounts | None = None,
    ) -> None:
        """``delay_counts``: where delays are counted;
        ``release``: told (ingress link, queue held, bytes held, time) when a forwarded packet's last byte has left."""
        self.link = link
        self.index = index
        self.switching = switching
        self.wire = wire
        self.source: Source | None = None
        self.on_release = release
        n = switching.n_queues
        self.queues: list[deque[Packet]] = [deque() for _ in range(n)]
        self.queued_bytes = [0] * n
        self.counters = [PortCounters() for _ in range(n)]
        self.pausing = Pausing(link, switching, self.counters)
        self.paused_since_ps = self.pausing.since_ps
        """Per queue since when it is paused, -1 where it is not."""
        classes = [switching.class_of(queue) for queue in range(n)]
        self.credits: list[int | None] = [c.credit_bytes if c.discipline is Discipline.CREDIT else None for c in classes]
        self._scheduler = Scheduler(switching)
        self._is_lone = n == 1
        self.blocking = Blocking(switching, self.counters)
        self.free_ps = 0
        self._leaving: tuple[int, int, int] | None = None
        self._armed_ps = FOREVER_PS
        self._quantum = switching.quantum_bytes
        super().__init__(link=link, index=index, seed=seed, impairments=impairments)
        self._costs: dict[int, tuple[int, int, int]] = {}
        self._sent = 0
        self._last_tail_ps = 0
        self.n_payload_bytes = 0
        self.wire_bytes = 0
        self.busy_ps = 0
        self.queued_ps = 0
        self.delay_counts = DelayCounts() if delay_counts is None else delay_counts
        self.delayed_ps = 0
        self.stalled_ps = 0
        self.lost_packets = 0
        self.resent_bytes = 0

    # -- sizes -----------------------------------------------------------------------------------

    def cost(self, flagged_bytes: int, trimmed: bool = False) -> tuple[int, int, int]:
        """(wire bytes, their time, the time of the first MTU) of a packet, without impairments."""
        key = _TRIMMED if trimmed else flagged_bytes
        found = self._costs.get(key)
        if found is None:
            link = self.link
            n_bytes = wire_bytes(link, flagged_bytes, self.switching.trim_bytes if trimmed else 0)
            first = min(n_bytes, link.mtu_bytes + link.header_bytes)
            rate = link.rate_bps
            if len(self._costs) >= _MAX_CACHED_SIZES:
                self._costs.clear()
            found = self._costs[key] = (
                n_bytes,
                max(1, -(-n_bytes * WORK_PER_BYTE // rate)),
                max(1, -(-first * WORK_PER_BYTE // rate)),
            )
        return found

    # -- in --------------------------------------------------------------------------------------

    def enqueue(self, packet: Packet, now_ps: int) -> None:
        """Forward a packet when its turn comes."""
        queue = packet.queue
        if self.pausing.in_storm[queue]:
            self._discard(packet, now_ps)
            return
        self.queues[queue].append(packet)
        packet.blocked_ps = self.blocking.total_ps(queue, now_ps)
        length = self.queued_bytes[queue] = self.queued_bytes[queue] + self.cost(packet.flagged_bytes, packet.trimmed)[0]
        counters = self.counters[queue]
        if length > counters.peak_queue_bytes:
            counters.peak_queue_bytes = length
        if self._leaving is None and now_ps >= self.free_ps:
            self.go(now_ps)

    def withdraw(self, now_ps: int) -> list[Packet]:
        """Take back what waits here, in order within each queue; the packet on the wire stays."""
        withdrawn = [packet for waiting in self.queues for packet in waiting]
        for queue, waiting in enumerate(self.queues):
            waiting.clear()
            self.queued_bytes[queue] = 0
            self.blocking.end(queue, now_ps)
        return withdrawn

    def pause(self, queue: int, stop: bool, now_ps: int) -> None:
        """A pause frame is obeyed from now on, or taken back."""
        pausing = self.pausing
        if stop:
            check_ps = pausing.stop(queue, now_ps, self.free_ps)
        else:
            check_ps = pausing.resume(queue, now_ps)
            self.kick(now_ps)
        if check_ps is not None and self.source is None:
            self.wire.wake_port(self.index, check_ps)

    def _discard(self, packet: Packet, now_ps: int) -> None:
        """The watchdog drops a packet."""
        self.counters[packet.queue].watchdog_packets += 1
        if self.on_release is not None:
            self.on_release(packet.ingress, packet.held_queue, packet.held_bytes, now_ps)

    def grant(self, queue: int, n_bytes: int, now_ps: int) -> None:
        """Credits have come back."""
        credits = self.credits[queue]
        assert credits is not None
        self.credits[queue] = credits + n_bytes
        self.kick(now_ps)

    def kick(self, now_ps: int) -> None:
        """The source has something new, or may send earlier than it said."""
        if self._leaving is None and now_ps >= self.free_ps:
            self.go(now_ps)

    def wake(self, now_ps: int) -> None:
        """The wire is free again, the source's next packet may go, or the watchdog looks."""
        if now_ps >= self._armed_ps:
            self._armed_ps = FOREVER_PS
        if self.pausing.watchdog is not None and self.source is None:
            for queue in self.pausing.check(now_ps):
                waiting = self.queues[queue]
                while waiting:
                    self._discard(waiting.popleft(), now_ps)
                self.queued_bytes[queue] = 0
                self.blocking.end(queue, now_ps)
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
        if self._is_lone:
            queue, later_ps = 0, self._ready_ps(0, now_ps)
            if later_ps > now_ps:
                queue = -1
        else:
            queue, later_ps = self._scheduler.choose(now_ps, self._ready_ps, self._next_bytes)
        if queue < 0:
            if later_ps < self._armed_ps:
                self._arm(later_ps)
            return
        waiting = self.queues[queue]
        if waiting:
            packet = waiting.popleft()
            n_bytes, duration_ps, first_ps = self.cost(packet.flagged_bytes, packet.trimmed)
            self.queued_bytes[queue] -= n_bytes
            self.blocking.charge(packet, duration_ps, first_ps, now_ps)
        else:
            assert self.source is not None
            self._leaving = _TAKING  # what the source does now must not start another packet
            packet = self.source.take(queue, now_ps)
            packet.sent_ps = packet.head_ps = packet.tail_ps = now_ps
            n_bytes, duration_ps, first_ps = self.cost(packet.flagged_bytes)
            packet.account[SERIALISATION] += duration_ps
        credits = self.credits[queue]
        if credits is not None:
            self.credits[queue] = credits - n_bytes
        waited_ps = now_ps - packet.head_ps
        self.queued_ps += waited_ps
        counters = self.counters[queue]
        counters.packets += 1
        counters.payload_bytes += packet.payload_bytes
        self.n_payload_bytes += packet.payload_bytes
        self.wire_bytes += n_bytes
        self._sent += 1
        latency_ps = self.link.latency_ps
        if self._is_plain:
            self.busy_ps += duration_ps
            self.free_ps = end_ps = now_ps + duration_ps
            packet.head_ps = now_ps + first_ps + latency_ps
            packet.tail_ps = end_ps + latency_ps
            self.delay_counts.count(waited_ps + first_ps + latency_ps, first_ps + latency_ps)
            self._leaving = packet.ingress, packet.held_queue, packet.held_bytes
            self._arm(end_ps)
            self.wire.transmit(packet, self.index)
            return
        self._send_impaired(packet, n_bytes, now_ps)

    def _arm(self, time_ps: int) -> None:
        self._armed_ps = time_ps
        self.wire.wake_port(self.index, time_ps)

    def _next_bytes(self, queue: int) -> int:
        """Wire bytes of the queue's next packet."""
        waiting = self.queues[queue]
        if waiting:
            return self.cost(waiting[0].flagged_bytes, waiting[0].trimmed)[0]
        assert self.source is not None
        return self.cost(self.source.size_bytes(queue))[0]

    def _ready_ps(self, queue: int, now_ps: int) -> int:
        """When the queue's next packet may go, FOREVER_PS until something else happens."""
        if not self.queues[queue]:
            ready_ps = FOREVER_PS if self.source is None else self.source.ready_ps(queue, now_ps)
            if ready_ps > now_ps:
                self.blocking.end(queue, now_ps)
                return ready_ps
        credits = self.credits[queue]
        if self.paused_since_ps[queue] >= 0 or (credits is not None and credits < self._next_bytes(queue)):
            self.blocking.begin(queue, now_ps)
            return FOREVER_PS
        self.blocking.end(queue, now_ps)
        return now_ps

    def _send_impaired(self, packet: Packet, n_bytes: int, now_ps: int) -> None:
        """The rule of :meth:`go` with what impairments add."""
        capacity, link = self._capacity, self.link
        capacity.forget(now_ps)
        start_ps = capacity.available(now_ps)
        first_ps = capacity.finish(start_ps, min(n_bytes, link.mtu_bytes + link.header_bytes))
        pass_end_ps = end_ps = capacity.finish(start_ps, n_bytes)
        packet.account[SERIALISATION] += end_ps - now_ps - self.cost(packet.flagged_bytes, packet.trimmed)[1]
        self.busy_ps += end_ps - start_ps - capacity.down_ps
        self.stalled_ps += start_ps - now_ps + capacity.down_ps
        if link.planes_bps:
            capacity.count_planes(start_ps, end_ps)
        key = FrameKey(self.index, 0, self._sent - 1)
        delay_ps = sum(impairment.delay_ps(seed, key, start_ps) for impairment, seed in self._delays)
        self.delayed_ps += delay_ps
        lost = False
        attempt = 0
        again_ps = start_ps
        while self._is_lost(packet, attempt, again_ps):
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
        if start_ps > now_ps or capacity.down_ps:
            self.wire.stalled(self.index, now_ps, end_ps)
        if lost:
            credits = self.credits[packet.queue]
            if credits is not None:
                self.credits[packet.queue] = credits + n_bytes
            return
        packet.account[RETRANSMISSION] += end_ps - pass_end_ps
        # A delay may not let a packet overtake: its head comes after the tail before it.
        head_ps = max(first_ps + delay_ps + link.latency_ps, self._last_tail_ps + 1)
        least_ps = self.cost(packet.flagged_bytes, packet.trimmed)[2] + link.latency_ps
        self.delay_counts.count(head_ps - packet.head_ps, least_ps)
        packet.head_ps = head_ps
        packet.tail_ps = self._last_tail_ps = max(end_ps + delay_ps + link.latency_ps, packet.head_ps)
        self.wire.transmit(packet, self.index)

    def _is_lost(self, packet: Packet, attempt: int, start_ps: int) -> bool:
        """Whether a loss hits any of the packet's MTUs, at this attempt to send it over the link, which starts then.

        MTUs are numbered within their queue pair, so that a packet that is sent again is the same one and not a new one.
        """
        if not self._losses:
            return False
        mtu_bytes = self.link.mtu_bytes
        begin = packet.sequence * -(-self._quantum // mtu_bytes)
        end = begin + max(1, -(-packet.flagged_bytes // mtu_bytes))
        key = FrameKey(self.index, packet.entropy, packet.sequence)
        tries = (packet.sending << 16) + attempt
        return any(
            loss.loses_at(start_ps) and loss.first_lost(seed, key, begin, end, tries) is not None for loss, seed in self._losses
        )

    # -- what is known ---------------------------------------------------------------------------

    @property
    def decided_ps(self) -> int:
        return self.free_ps

    @property
    def is_busy(self) -> bool:
        """Whether a packet is on its wire."""
        return self._leaving is not None

    def is_held_back(self, queue: int) -> bool:
        """Whether a packet waits in the queue that a pause or missing credits keep back."""
        if not self.queues[queue]:
            return False
        credits = self.credits[queue]
        return self.paused_since_ps[queue] >= 0 or (credits is not None and credits < self._next_bytes(queue))

    def is_watched(self, queue: int) -> bool:
        """Whether a watchdog ends the pause that holds the queue back."""
        return self.pausing.watchdog is not None and self.source is None and self.paused_since_ps[queue] >= 0

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
            latency_ps=self._sent * self.link.latency_ps + self.delayed_ps,
            stalled_ps=self.stalled_ps,
            n_outages=self._capacity.n_outages,
        )

    def queue_statistics(self, now_ps: int) -> tuple[QueueStatistics, ...]:
        """By class; what still lasts is counted up to ``now_ps``."""
        n_classes = len(self.switching.classes)
        found = []
        for number, traffic_class in enumerate(self.switching.classes):
            lanes = range(number, self.switching.n_queues, n_classes)
            found.append(
                summed(
                    traffic_class.name,
                    [self.counters[queue] for queue in lanes],
                    pauses=[self.pausing.lasting(queue, now_ps) for queue in lanes],
                    waits_ps=[self.blocking.lasting_ps(queue, now_ps) for queue in lanes],
                )
            )
        return tuple(found)


def wire_bytes(link: Link, flagged_bytes: int, trim_bytes: int = 0) -> int:
    """A packet on the wire: payload with flags, one header for every MTU of both; without payload a header, and at least a byte.

    ``trim_bytes``: what is left of a packet at least where it was trimmed; 0 for all others.
    """
    if not flagged_bytes:
        return max(trim_bytes, link.header_bytes, 1)
    return link.wire_bytes(flagged_bytes)
