"""Switch: what a node does with packets that pass it, in a fabric with a ``switching``.

A packet that arrives is routed (``emu.balancing``), admitted to the buffer (``fabric/buffer.py``), marked by the length of
its egress queue, and queued at its port.  What does not fit is dropped or trimmed.  When its last byte has left, its
buffer is free: then a paused sender may go on, and a credit goes back.  Accelerators that forward (tori) do the same.

Law: packets in = packets out + dropped + held; a lossless class drops nothing, unless the watchdog does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from emu.balancing.base import Policy
from emu.errors import ConfigError
from emu.fabric.buffer import SharedBuffer
from emu.fabric.counters import PortCounters
from emu.fabric.credits import Credits
from emu.fabric.packet import Notice, Packet
from emu.fabric.pausing import Pauser, Pausers
from emu.fabric.port import Port, wire_bytes
from emu.keyed import mix
from emu.topologies.graph import Link
from emu.topologies.switching import Discipline, Switching


class Plane(Protocol):
    """What a node asks of the engine."""

    def notify_link(self, notice: Notice, now_ps: int) -> None:
        """Send a word to the sending end of ``notice.link``, over the way back."""
        ...

    def call_node(self, node: int, time_ps: int, action: Callable[[int], None]) -> None: ...

    def candidates(self, node: int, target_rank: int, now_ps: int) -> tuple[int, ...]:
        """Links that lead nearer to the rank's node, without those known to be down."""
        ...


class Switch:
    """Buffer, policy and ports of one node."""

    def __init__(
        self,
        *,
        node: int,
        name: str,
        switching: Switching,
        ports: dict[int, Port],
        ingress: dict[int, Link],
        policy: Policy,
        plane: Plane,
        seed: int,
    ) -> None:
        """``ports``: by link that leaves the node; ``ingress``: links that enter it."""
        self.node = node
        self.name = name
        self.switching = switching
        self.ports = ports
        self.policy = policy
        self.plane = plane
        self.seed = seed
        self.buffer = SharedBuffer(switching, list(ingress))
        self.pausers = Pausers(plane.notify_link)
        self._n_classes = len(switching.classes)
        self._n_lanes = switching.n_lanes
        self._ingress = ingress
        self._classes = [switching.class_of(queue) for queue in range(switching.n_queues)]
        self.credits = Credits(switching, ingress, plane.notify_link)
        self._trims_to = _trim_queues(switching)
        self._n_draws = 0
        for port in ports.values():
            port.on_release = self.released

    def depth_bytes(self, link: int) -> int:
        return self.ports[link].depth_bytes()

    def egress(self, packet: Packet, now_ps: int) -> Port:
        """The port that the packet leaves by; sets its queue, as a policy may change the lane."""
        frame = packet.frame
        candidates = self.plane.candidates(self.node, frame.target_rank, now_ps)
        n_classes = self._n_classes
        lane, number = divmod(packet.queue, n_classes)
        link, lane = self.policy.choose(
            candidates,
            source_rank=frame.source_rank,
            target_rank=frame.target_rank,
            flow=packet.entropy,
            sequence=packet.sequence,
            lane=lane,
            view=self,
            now_ps=now_ps,
        )
        if link not in self.ports or not 0 <= lane < self._n_lanes:
            raise ConfigError(self._no_port(link, lane))
        packet.queue = lane * n_classes + number
        return self.ports[link]

    def _no_port(self, link: int, lane: int) -> str:
        """That the policy chose what is not there."""
        place = f"balancing {self.switching.balancing!r} at {self.name}"
        if link not in self.ports:
            return f"{place} chose link {link!r}, which does not leave it; choose one of {', '.join(map(str, self.ports))}"
        return f"{place} chose lane {lane!r}; use 0 to {self.switching.n_lanes - 1}, or set more lanes"

    def receive(self, packet: Packet, link: int, now_ps: int) -> None:
        """The head of a packet is here, by ``link``."""
        arrived_in = packet.queue
        port = self.egress(packet, now_ps)
        egress_bytes, duration_ps, first_ps = port.cost(packet.flagged_bytes, packet.trimmed)
        held_bytes = self._held_bytes(packet, link)
        queue = packet.queue
        traffic_class = self._classes[queue]
        discipline = traffic_class.discipline
        counters = port.counters[queue]
        if discipline is Discipline.DROP and not self._admits(packet, port, link, arrived_in, egress_bytes, held_bytes):
            if not traffic_class.trims or packet.trimmed:
                _drop(packet, counters)
                return
            counters.trimmed += 1
            packet.trimmed = True
            packet.payload = None
            packet.payload_bytes = packet.flagged_bytes = 0
            packet.tail_ps = packet.head_ps  # the header is here; nothing is waited for
            packet.queue = queue = arrived_in = self._trims_to[queue]
            counters = port.counters[queue]
            egress_bytes, duration_ps, first_ps = port.cost(0, trimmed=True)
            held_bytes = self._held_bytes(packet, link)
            if not self._admits(packet, port, link, queue, egress_bytes, held_bytes):
                _drop(packet, counters)
                return
        packet.ingress = link
        packet.held_queue = arrived_in  # of the lane that it came by, whose sender is to be paused or granted credits
        packet.held_bytes = held_bytes
        if discipline is not Discipline.CREDIT and self.buffer.take(self.buffer.queues[link, arrived_in], held_bytes):
            self.pausers.stop(link, arrived_in, Pauser.BUFFER, now_ps)
        marking = traffic_class.marking
        if marking is not None and not packet.marked and not packet.trimmed:
            length = port.queued_bytes[queue]
            if length > marking.kmin_bytes and self._draws(length, queue):
                packet.marked = True
                counters.marked += 1
        ready_ps = packet.tail_ps - (duration_ps - first_ps)
        if ready_ps > now_ps:
            self.plane.call_node(self.node, ready_ps, lambda at_ps: port.enqueue(packet, at_ps))
        else:
            port.enqueue(packet, now_ps)

    def _held_bytes(self, packet: Packet, link: int) -> int:
        """What the packet takes of the buffer: its bytes on the link that it came by, as headroom and credits count them."""
        return wire_bytes(self._ingress[link], packet.flagged_bytes, self.switching.trim_bytes if packet.trimmed else 0)

    def _admits(self, packet: Packet, port: Port, link: int, arrived_in: int, egress_bytes: int, held_bytes: int) -> bool:
        """Whether a packet that may be dropped fits; a trimmed header needs room in the pool only."""
        before_bytes = 0 if packet.trimmed else port.queued_bytes[packet.queue]
        return self.buffer.admits(self.buffer.queues[link, arrived_in], before_bytes + egress_bytes, held_bytes)

    def divert(self, link: int, now_ps: int) -> None:
        """The link is routed around from now on: what waits for it goes another way, if there is one."""
        for packet in self.ports[link].withdraw(now_ps):
            self.egress(packet, now_ps).enqueue(packet, now_ps)

    def _draws(self, length_bytes: int, queue: int) -> bool:
        marking = self._classes[queue].marking
        assert marking is not None
        if length_bytes > marking.kmax_bytes:
            return True
        self._n_draws += 1
        pmax = marking.pmax
        above, over = length_bytes - marking.kmin_bytes, marking.kmax_bytes - marking.kmin_bytes
        return mix(self.seed, self.node, self._n_draws) * pmax.denominator * over < (pmax.numerator * above) << 64

    def released(self, link: int, queue: int, n_bytes: int, now_ps: int) -> None:
        """A packet that came by ``link`` has left: ``queue`` is the one it came in."""
        if self.credits.free(link, queue, n_bytes, now_ps):
            return
        held = self.buffer.queues[link, queue]
        self.buffer.release(held, n_bytes)
        if held.is_paused and self.buffer.may_resume(held):
            held.is_paused = False
            self.pausers.go_on(link, queue, Pauser.BUFFER, now_ps)

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.buffer.validate()
        self.credits.validate()


def _drop(packet: Packet, counters: PortCounters) -> None:
    counters.dropped_packets += 1
    counters.dropped_bytes += packet.payload_bytes


def _trim_queues(switching: Switching) -> list[int]:
    """Per queue the one that trimmed headers travel in: the highest strict class that may drop, or their own."""
    classes = switching.classes
    strict = [number for number, c in enumerate(classes) if c.strict and c.discipline is Discipline.DROP]
    if not strict:
        return list(range(switching.n_queues))
    highest = max(strict, key=lambda number: classes[number].priority)
    return [lane * len(classes) + highest for lane in range(switching.n_lanes) for _ in classes]
