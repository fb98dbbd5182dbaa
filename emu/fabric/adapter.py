"""Adapter: the network interface of one rank, in a fabric with a ``switching``.

Out: chunks are dealt over queue pairs; a port asks for the next packet when its wire is free, and the queue pairs that may
send take turns.  In: packets are put together again, acknowledged, and drained at the endpoint's rate from a
receive buffer, which pauses its sender (``pause``), withholds credits (``credit``) or drops (``drop``) when it fills up.
A stuck adapter (``pause_storm``) pauses all that may send to it for a while; what comes nevertheless is taken in.

Law: a chunk is delivered once, when all its bytes are here and drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from emu.congestion.base import ReceiverControl, SenderControl
from emu.errors import ConfigError
from emu.fabric.account import ENDPOINT, SERIALISATION
from emu.fabric.admission import Admission, QueuePairKey
from emu.fabric.capacity import WORK_PER_BYTE
from emu.fabric.counters import AdapterStatistics
from emu.fabric.frame import Frame
from emu.fabric.lineup import PortSource
from emu.fabric.pace import Pace
from emu.fabric.packet import Notice, NoticeKind, Packet
from emu.fabric.pausing import Pauser
from emu.fabric.port import Port, wire_bytes
from emu.fabric.queue_pair import Reassembly, ReceiveQueuePair, SendQueuePair
from emu.fabric.switch import Switch
from emu.topologies.graph import Link
from emu.topologies.switching import MOST_QUEUE_PAIRS, Discipline, Recovery, Switching, TrafficClass
from emu.units import FOREVER_PS

ACK_EVERY = 4
"""Packets between acknowledgements, where only recovery needs them."""


class Plane(Protocol):
    """What an adapter asks of the engine."""

    def notify_link(self, notice: Notice, now_ps: int) -> None: ...
    def notify_rank(self, notice: Notice, to_rank: int, from_rank: int, now_ps: int) -> None:
        """Send a word from rank to rank."""
        ...

    def call_rank(self, rank: int, time_ps: int, action: Callable[[int], None]) -> None: ...
    def deliver(self, frame: Frame, packet: Packet, now_ps: int) -> None:
        """A chunk is complete, with this packet."""
        ...

    def left(self, frame: Frame, now_ps: int) -> None:
        """The last byte of a chunk leaves now for the first time."""
        ...

    def timed_out(self, rank: int, pair: SendQueuePair) -> None:
        """A retransmission timer of the rank ran out: perhaps nothing moves any more."""
        ...

    def control(self, traffic_class: TrafficClass, source_rank: int, target_rank: int) -> tuple[SenderControl, ReceiverControl]:
        """A fresh pair of halves; each side keeps its own."""
        ...


class Adapter:
    """Queue pairs, receive buffer and admission of one rank."""

    def __init__(
        self,
        *,
        rank: int,
        names: Sequence[str],
        switching: Switching,
        switch: Switch,
        ingress: dict[int, Link],
        plane: Plane,
        drain_rate_bps: int | None,
        payload: bool,
        pause_storm: tuple[int, int] | None = None,
    ) -> None:
        """``names``: of all ranks' nodes."""
        self.rank = rank
        self.name = names[rank]
        self._names = names
        self.switching = switching
        self.switch = switch
        self.plane = plane
        self.drain = Pace(drain_rate_bps)  # work is as in fabric/capacity.py
        self._payload = payload
        self._ingress = ingress
        self.sources = {link: PortSource(self.take, port, switching.n_queues) for link, port in switch.ports.items()}
        for link, source in self.sources.items():
            switch.ports[link].source = source
        self.senders: dict[tuple[int, int, int], SendQueuePair] = {}
        self.receivers: dict[tuple[int, int, int], tuple[ReceiveQueuePair, ReceiverControl]] = {}
        self._dealt: dict[tuple[int, int], int] = {}
        self._assembling: dict[tuple[int, ...], tuple[Reassembly, Frame]] = {}
        self._received_bytes: dict[tuple[int, int], int] = {}
        limits = [plane.control(c, rank, rank)[1].admits for c in switching.classes]
        self._admissions = [None if limit is None else Admission(limit) for limit in limits]
        self.n_cnp_sent = self.n_cnp_received = self.n_marked = self.n_nacks = 0
        self.n_trimmed = self.n_discarded = self.n_pauses = self.peak_receive_bytes = self.n_accepted = 0
        self._xoff_bytes = max(0, switching.receive_buffer_bytes - switching.headroom_bytes)
        self._xon_bytes = max(0, self._xoff_bytes - switching.xon_offset_bytes)
        if pause_storm is not None:
            start_ps, lasts_ps = pause_storm
            plane.call_rank(rank, start_ps, self._get_stuck)
            plane.call_rank(rank, start_ps + lasts_ps, self._recover)

    # -- out -------------------------------------------------------------------------------------

    def send(self, frame: Frame, class_index: int, now_ps: int) -> None:
        """Send a chunk in a class, over the next of the queue pairs to its target."""
        peer = frame.target_rank
        n_pairs = self.switching.n_queue_pairs
        dealt = self._dealt.get((peer, class_index), 0)
        self._dealt[peer, class_index] = dealt + 1
        key = peer, class_index, dealt % n_pairs
        pair = self.senders.get(key)
        if pair is None:
            traffic_class = self.switching.classes[class_index]
            control, receiver = self.plane.control(traffic_class, self.rank, peer)
            pair = self.senders[key] = SendQueuePair(
                peer=peer,
                index=key[2],
                queue=class_index,
                entropy=((self.rank * len(self._names) + peer) * MOST_QUEUE_PAIRS + key[2]) * 8 + class_index,
                control=control,
                is_acknowledged=receiver.acknowledges,
                recovery=traffic_class.recovery,
                quantum_bytes=self.switching.quantum_bytes,
            )
        pair.submit(frame, now_ps)
        if pair.control.asks:
            request = Notice(
                NoticeKind.REQUEST,
                value=pair.n_chunks,
                queue=class_index,
                source_rank=self.rank,
                target_rank=peer,
                queue_pair=pair.index,
            )
            self.plane.notify_rank(request, peer, self.rank, now_ps)
        self.activate(pair, now_ps)

    def activate(self, pair: SendQueuePair, now_ps: int) -> None:
        """Line a queue pair up at the port of its next packet, unless it is in line already."""
        if pair.pending is not None:
            return
        packet = pair.prepare(now_ps)
        if packet is None:
            return
        self._line_up(pair, packet, now_ps)

    def _line_up(self, pair: SendQueuePair, packet: Packet, now_ps: int) -> None:
        ready_ps = pair.control.ready_ps(now_ps, pair.outstanding_bytes, packet.flagged_bytes)
        if ready_ps >= FOREVER_PS:
            if why := pair.hears_nothing():
                control = self.switching.classes[pair.queue].control
                raise ConfigError(f"congestion control {control} of {self.name}->{self._names[pair.peer]} says never {why}")
            pair.waits.held(now_ps, is_again=pair.is_again)
            return
        port = self.switch.egress(packet, now_ps)
        pair.waits.lined_up(port, packet.queue, ready_ps, now_ps, is_again=pair.is_again)
        self.sources[port.index].add(pair, packet.queue, ready_ps, now_ps)
        port.kick(now_ps)

    def take(self, pair: SendQueuePair, port: Port, now_ps: int) -> Packet:
        """The port sends the queue pair's packet now."""
        packet, ends_chunk = pair.take(now_ps)
        left_ps = pair.waits.busy_ps = now_ps + port.cost(packet.flagged_bytes)[1]
        if pair.keeps:
            self._start_timer(pair, now_ps)
        if ends_chunk:
            frame = packet.frame
            frame.account = packet.account[:]  # as of then; nobody needs that of its submission any more
            frame.account[SERIALISATION] += left_ps - now_ps
            self.plane.call_rank(self.rank, left_ps, lambda at_ps: self.plane.left(frame, at_ps))
        self.activate(pair, now_ps)
        return packet

    def _renew(self, pair: SendQueuePair, now_ps: int) -> None:
        """The control may allow more than it did, or there is something to send again."""
        if pair.pending is not None:
            pair.ticket += 1
            self._line_up(pair, pair.pending[2], now_ps)
        else:
            self.activate(pair, now_ps)

    def divert(self, now_ps: int) -> None:
        """Ways have changed: what is ready to go is lined up anew."""
        for pair in self.senders.values():
            if pair.pending is not None:
                self._renew(pair, now_ps)

    def _start_timer(self, pair: SendQueuePair, now_ps: int) -> None:
        pair.deadline_ps = now_ps + self.switching.classes[pair.queue].timeout_ps
        if not pair.timer_set:
            pair.timer_set = True
            self.plane.call_rank(self.rank, pair.deadline_ps, lambda at_ps: self._timer(pair, at_ps))

    def _timer(self, pair: SendQueuePair, now_ps: int) -> None:
        pair.timer_set = False
        if not pair.unacked:
            return
        if now_ps < pair.deadline_ps:
            pair.timer_set = True
            self.plane.call_rank(self.rank, pair.deadline_ps, lambda at_ps: self._timer(pair, at_ps))
            return
        pair.timed_out()
        pair.control.timed_out(now_ps)
        self._start_timer(pair, now_ps)
        self._renew(pair, now_ps)
        self.plane.timed_out(self.rank, pair)

    def answered(self, notice: Notice, now_ps: int) -> None:
        """A word from the other end of a queue pair is here."""
        class_index = notice.queue
        if notice.kind is NoticeKind.REQUEST:
            admission = self._admissions[class_index]
            assert admission is not None, "a sender asks where its receiver does not admit"
            self._grant(admission.request((notice.source_rank, class_index, notice.queue_pair)), now_ps)
            return
        pair = self.senders.get((notice.target_rank, class_index, notice.queue_pair))
        if pair is None:
            return
        control = pair.control
        match notice.kind:
            case NoticeKind.ACK:
                n_bytes = pair.acknowledged(notice.value, notice.selective, notice.n_bytes)
                if n_bytes:
                    pair.deadline_ps = now_ps + self.switching.classes[class_index].timeout_ps
                if pair.is_acknowledged:
                    control.acknowledged(now_ps, notice.n_bytes, now_ps - notice.echo_ps, notice.marked)
            case NoticeKind.NACK:
                lost = pair.missing(notice.value)
                if lost:
                    control.lost(now_ps, lost, trimmed=notice.marked)
            case NoticeKind.CNP:
                self.n_cnp_received += 1
                control.notified(now_ps)
            case NoticeKind.GRANT:
                pair.granted_chunks = max(pair.granted_chunks, notice.value)
        self._renew(pair, now_ps)

    # -- in --------------------------------------------------------------------------------------

    def receive(self, packet: Packet, link: int, now_ps: int) -> None:
        """The tail of a packet for this rank is here."""
        traffic_class = self.switching.class_of(packet.queue)
        trim_bytes = self.switching.trim_bytes if packet.trimmed else 0
        n_bytes = wire_bytes(self._ingress[link], packet.flagged_bytes, trim_bytes)
        if self.drain.is_unlimited(now_ps):
            self._drained(link, packet.queue, n_bytes, now_ps, buffered=False)
            self._accept(packet, now_ps)
            return
        queue = packet.queue
        held = self._received_bytes.get((link, queue), 0) + n_bytes
        if traffic_class.discipline is Discipline.DROP and held > self.switching.receive_buffer_bytes:
            self.n_discarded += 1
            return
        self._received_bytes[link, queue] = held
        self.peak_receive_bytes = max(self.peak_receive_bytes, held)
        if traffic_class.discipline is Discipline.PAUSE:
            assert held <= self._xoff_bytes + self.switching.headroom_bytes, "a lossless packet does not fit"
            if held > self._xoff_bytes:
                self._pause(link, queue, Pauser.RECEIVER, now_ps)
        drained_ps = self.drain.finish(max(now_ps, self.drain.done_ps), n_bytes * WORK_PER_BYTE)

        def drained(at_ps: int) -> None:
            packet.account[ENDPOINT] += at_ps - now_ps
            self._drained(link, queue, n_bytes, at_ps, buffered=True)
            self._accept(packet, at_ps)

        self.plane.call_rank(self.rank, drained_ps, drained)

    def _drained(self, link: int, queue: int, n_bytes: int, now_ps: int, *, buffered: bool) -> None:
        """Room in the receive buffer is free again."""
        if buffered:
            held = self._received_bytes[link, queue] = self._received_bytes[link, queue] - n_bytes
            if held <= self._xon_bytes:
                self.switch.pausers.go_on(link, queue, Pauser.RECEIVER, now_ps)
        self.switch.credits.free(link, queue, n_bytes, now_ps)

    def _pause(self, link: int, queue: int, pauser: Pauser, now_ps: int) -> None:
        if self.switch.pausers.stop(link, queue, pauser, now_ps):
            self.n_pauses += 1

    def _pausable(self) -> list[tuple[int, int]]:
        """(link, queue) of all senders that pauses can stop."""
        switching = self.switching
        queues = [q for q in range(switching.n_queues) if switching.class_of(q).discipline is Discipline.PAUSE]
        return [(link, queue) for link in self._ingress for queue in queues]

    def _get_stuck(self, now_ps: int) -> None:
        """A storm begins: everything that may be paused is, whatever the receive buffer holds."""
        for link, queue in self._pausable():
            self._pause(link, queue, Pauser.STUCK, now_ps)

    def _recover(self, now_ps: int) -> None:
        """The storm is over."""
        for link, queue in self._pausable():
            self.switch.pausers.go_on(link, queue, Pauser.STUCK, now_ps)

    def _accept(self, packet: Packet, now_ps: int) -> None:
        frame = packet.frame
        class_index = frame.traffic_class  # a trimmed header's queue may be another class's
        source = frame.source_rank
        key = source, class_index, packet.queue_pair
        found = self.receivers.get(key)
        if found is None:
            traffic_class = self.switching.classes[class_index]
            _, control = self.plane.control(traffic_class, source, self.rank)
            pair = ReceiveQueuePair(recovery=traffic_class.recovery, reorder_packets=self.switching.reorder_packets)
            found = self.receivers[key] = pair, control
        pair, control = found
        if packet.marked:
            self.n_marked += 1
        if control.notifies(now_ps, packet.marked):
            self.n_cnp_sent += 1
            self._answer(NoticeKind.CNP, key, now_ps)
        if packet.trimmed:
            self.n_trimmed += 1
            if pair.trimmed(packet.sequence):
                self.n_nacks += 1
                self._answer(NoticeKind.NACK, key, now_ps, value=packet.sequence, marked=True)
            return
        counts = pair.take(packet.sequence)
        if pair.recovery is not Recovery.NONE:
            self._acknowledge(packet, key, pair, counts, control, now_ps)
        elif control.acknowledges:
            self._answer_packet(packet, key, pair.expected, now_ps)
        if counts:
            self._assemble(packet, class_index, now_ps)

    def _acknowledge(
        self,
        packet: Packet,
        key: QueuePairKey,
        pair: ReceiveQueuePair,
        counts: bool,
        control: ReceiverControl,
        now_ps: int,
    ) -> None:
        for sequence in pair.asks_for() if packet.sequence > pair.expected else ():
            self.n_nacks += 1
            self._answer(NoticeKind.NACK, key, now_ps, value=sequence)
        pair.since_ack += 1
        ends = packet.offset_bytes + packet.payload_bytes >= packet.frame.payload_bytes
        selective = pair.recovery is Recovery.SELECTIVE_REPEAT
        if control.acknowledges or selective or ends or pair.since_ack >= ACK_EVERY or not counts:
            pair.since_ack = 0
            self._answer_packet(packet, key, pair.expected, now_ps, selective=packet.sequence if selective else -1)

    def _answer_packet(self, packet: Packet, key: QueuePairKey, expected: int, now_ps: int, selective: int = -1) -> None:
        self._answer(
            NoticeKind.ACK,
            key,
            now_ps,
            value=expected,
            marked=packet.marked,
            echo_ps=packet.sent_ps,
            n_bytes=packet.flagged_bytes,
            selective=selective,
        )

    def _answer(
        self,
        kind: NoticeKind,
        key: QueuePairKey,
        now_ps: int,
        *,
        value: int = 0,
        marked: bool = False,
        echo_ps: int = 0,
        n_bytes: int = 0,
        selective: int = -1,
    ) -> None:
        """A word to the sender of a queue pair that ends here."""
        source, class_index, queue_pair = key
        notice = Notice(
            kind,
            value=value,
            queue=class_index,
            source_rank=source,
            target_rank=self.rank,
            queue_pair=queue_pair,
            echo_ps=echo_ps,
            marked=marked,
            n_bytes=n_bytes,
            selective=selective,
        )
        self.plane.notify_rank(notice, source, self.rank, now_ps)

    def _grant(self, grants: Iterable[tuple[QueuePairKey, int]], now_ps: int) -> None:
        for key, granted in grants:
            self._answer(NoticeKind.GRANT, key, now_ps, value=granted)

    def _assemble(self, packet: Packet, class_index: int, now_ps: int) -> None:
        frame = packet.frame
        key = frame.source_rank, frame.communicator, frame.operation, frame.message, frame.chunk
        found = self._assembling.get(key)
        if found is None:
            found = self._assembling[key] = Reassembly(frame, payload=self._payload or frame.payload is not None), frame
        self.n_accepted += 1
        if not found[0].put(packet):
            return
        del self._assembling[key]
        whole = frame.arrived(found[0].data(), packet.account, now_ps)
        admission = self._admissions[class_index]
        if admission is not None:
            self._grant(admission.completed(), now_ps)
        self.plane.deliver(whole, packet, now_ps)

    # -- what is known ---------------------------------------------------------------------------

    def held_back(self, now_ps: int) -> list[str]:
        """The controls that keep a packet back now, by name and way."""
        return [
            f"{self.switching.classes[pair.queue].control} of {self.name}->{self._names[pair.peer]}"
            for pair in self.senders.values()
            if pair.pending is not None
            and pair.control.ready_ps(now_ps, pair.outstanding_bytes, pair.pending[2].flagged_bytes) > now_ps
        ]

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits to be sent, acknowledged, drained or completed."""
        waits = any(pair.chunks or pair.pending is not None or pair.unacked for pair in self.senders.values())
        return not (waits or any(self._received_bytes.values()) or self._assembling)

    def statistics(self) -> AdapterStatistics:
        """Counters so far."""
        senders = self.senders.values()
        receivers = [pair for pair, _ in self.receivers.values()]
        return AdapterStatistics(
            name=self.name,
            cnp_sent=self.n_cnp_sent,
            cnp_received=self.n_cnp_received,
            marked_packets=self.n_marked,
            out_of_sequence=sum(pair.n_out_of_sequence for pair in receivers),
            duplicates=sum(pair.n_duplicates for pair in receivers),
            nacks_sent=self.n_nacks,
            resent_packets=sum(pair.resent_packets for pair in senders),
            resent_bytes=sum(pair.resent_bytes for pair in senders),
            timeouts=sum(pair.timeouts for pair in senders),
            trimmed_packets=self.n_trimmed,
            discarded_packets=self.n_discarded,
            peak_receive_bytes=self.peak_receive_bytes,
            pauses_sent=self.n_pauses,
        )
