"""PacedPacketEngine: the packets of one actor, each hop of which crosses a socket, and what travels against them.

    packet                     to the actor of its link's far end, as soon as it is decided; an event when its head is there (at
                               its target: its tail), at its link's place in the calendar
    pause, credit of a link    to the actor of the link's near end, over the channel of the way back
    answer from rank to rank   from actor to actor over the links of its way; an event at its end alone

Law: the calendar is the simulator's.  What is sent at t is an event elsewhere a link's latency later at the earliest, at least
1 ps, as the floors need; and messages of one channel stay in order, so that equal places in the calendar keep theirs.
A rank's user code may submit at its cursor, and what else is there at that time waits until it has: ``settles``.

Not kept: order between hosts that share no page of floors.  There an event that comes after later ones were handled is
handled at once, and counted as a violation of the order.
"""

from __future__ import annotations

from functools import partial
from heapq import heappush
from typing import Any

from emu.drivers.paced import Outlet, Paced
from emu.drivers.packet_engine import PacketEngine
from emu.fabric.packet import Notice, NoticeKind, Packet
from emu.wire import (
    NOTICE,
    PACKET,
    PACKET_BYTES,
    NoticeHeader,
    PacketHeader,
    pack_notice,
    pack_packet,
    unpack_notice,
    unpack_packet,
)


class PacedPacketEngine(Paced, PacketEngine):
    """Ports, switches and adapters of one actor."""

    settles = 1

    def __init__(self, host: Outlet, **keywords: Any) -> None:
        super().__init__(host, **keywords)
        self._source_of = [host.placement.owner[link.source] for link in self.topology.links]

    # -- packets ---------------------------------------------------------------------------------

    def transmit(self, packet: Packet, link: int) -> None:
        self._note(packet, link)
        host = self._host
        frame = packet.frame
        peer = self._target_of[link]
        header = PacketHeader(
            link, host.channel(peer), frame.source_rank, frame.target_rank, frame.flow, frame.route_flow, frame.communicator,
            frame.operation, frame.message, frame.chunk, frame.payload_bytes, frame.flag_every_bytes, frame.message_bytes,
            frame.digest, frame.traffic_class, packet.queue_pair, packet.queue, packet.marked, packet.trimmed, packet.sequence,
            packet.sending, packet.offset_bytes, packet.payload_bytes, packet.entropy, packet.sent_ps, packet.head_ps,
            packet.tail_ps, host.clock.anchor_ns,
        )  # fmt: skip
        due_ps = self._due_ps(packet, link)
        message = pack_packet(host.session, host.epoch, header, packet.account)
        host.emit(peer, message, packet.payload, packet.payload_bytes, due_ps, self.now_ps)

    def take(self, kind: int, data: Any, payload: Any) -> tuple[int, int]:
        if kind == PACKET:
            return self._take_packet(data, payload)
        if kind == NOTICE:
            return self._take_notice(data)
        return super().take(kind, data, payload)

    def _take_packet(self, data: Any, payload: Any) -> tuple[int, int]:
        header, account = unpack_packet(data)
        frame = self._frame_of(header, header.chunk_bytes, header.sent_ps)
        frame.traffic_class = header.traffic_class
        packet = Packet(
            frame,
            queue_pair=header.queue_pair,
            queue=header.queue,
            sequence=header.sequence,
            offset_bytes=header.offset_bytes,
            payload_bytes=header.payload_bytes,
            entropy=header.entropy,
            sent_ps=header.sent_ps,
            payload=data[PACKET_BYTES:] if payload is None and len(data) > PACKET_BYTES else payload,
            account=account,
        )
        packet.head_ps, packet.tail_ps = header.head_ps, header.tail_ps
        packet.marked, packet.trimmed, packet.sending = header.marked, header.trimmed, header.sending
        self._arrives(packet, header.link, self._not_past(self._due_ps(packet, header.link)))
        return header.channel, header.anchor_ns

    # -- notices ---------------------------------------------------------------------------------

    def forward_notice(self, notice: Notice, port: int, due_ps: int) -> None:
        """Send a notice on its way: to the sender of its link, or over the first link towards its rank."""
        if notice.link >= 0:
            self._emit_notice(notice, port, due_ps, self._source_of[notice.link], 0, due_ps, self.now_ps)
            return
        path = self._way(port)
        if path:
            self._emit_along(notice, port, due_ps, path, 0, self.now_ps)
        else:
            super().forward_notice(notice, port, due_ps)

    def _way(self, port: int) -> tuple[int, ...]:
        """The links that an answer takes, by its place in the calendar."""
        from_rank, to_rank = divmod(port - self._answers, self.topology.n_ranks)
        return self.path(from_rank, to_rank, 0)

    def _emit_along(self, notice: Notice, port: int, due_ps: int, path: tuple[int, ...], hop: int, now_ps: int) -> None:
        """Send a notice over ``path[hop]``."""
        there_ps = due_ps - self.delay_ps(path[hop + 1 :])
        self._emit_notice(notice, port, due_ps, self._target_of[path[hop]], hop + 1, there_ps, now_ps)

    def _emit_notice(self, notice: Notice, port: int, due_ps: int, peer: int, hop: int, there_ps: int, now_ps: int) -> None:
        host = self._host
        header = NoticeHeader(
            host.channel(peer), hop, notice.kind, notice.marked, notice.link, notice.queue, notice.source_rank,
            notice.target_rank, notice.queue_pair, notice.value, notice.n_bytes, notice.selective, notice.echo_ps, port, due_ps,
            host.clock.anchor_ns,
        )  # fmt: skip
        host.emit(peer, pack_notice(host.session, host.epoch, header), None, 0, there_ps, now_ps)

    def _take_notice(self, data: Any) -> tuple[int, int]:
        header = unpack_notice(data)
        port, due_ps, hop = header.port, header.due_ps, header.hop
        notice = Notice(
            NoticeKind(header.kind),
            value=header.value,
            link=header.link,
            queue=header.queue,
            source_rank=header.source_rank,
            target_rank=header.target_rank,
            queue_pair=header.queue_pair,
            echo_ps=header.echo_ps,
            marked=header.marked,
            n_bytes=header.n_bytes,
            selective=header.selective,
        )
        path = self._way(port) if hop else ()
        if hop < len(path):
            pass_on = partial(self._emit_along, notice, port, due_ps, path, hop)
            self._pass_on(due_ps, path[hop:], path[hop - 1], pass_on)
        else:
            self._sequence += 1
            heappush(self.calendar, (self._not_past(due_ps), port, self._sequence, notice))
        return header.channel, header.anchor_ns
