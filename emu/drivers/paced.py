"""Paced: engines of one actor each, whose links end in other actors, or in the same one: every hop crosses a socket.

Law: what an engine sends tells its receiver all that the model knows of it, with the model time at which it becomes an event
there; so that the event is the simulator's, at the same place in the calendar.

:class:`Paced` is what all of them share; :class:`PacedEngine` has the fluid chunks of a fabric without ``switching``, and
``paced_packets.py`` the packets of one with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from emu.clock import DilatedClock
from emu.drivers.engine import Engine
from emu.drivers.placement import Placement
from emu.errors import WireError
from emu.fabric.frame import Frame
from emu.units import FOREVER_PS
from emu.wire import FRAME, HEADER_BYTES, Header, PacketHeader, pack, unpack

_RECIPE_BYTES: Final = 4
"""Before a recipe stands its length, in so many bytes; both behind the header of a frame to a switch that combines."""


@dataclass(slots=True)
class HostCounters:
    """What the host did to the run; the model never sees it."""

    largest_lateness_ps: int = 0
    order_violations: int = 0
    order_weight_ps: int = 0
    transport_backpressure: int = 0
    frames_sent: int = 0
    socket_payload_bytes: int = 0


class Outlet(Protocol):
    """What a paced engine asks of its host, and knows of it."""

    session: int
    epoch: int
    clock: DilatedClock
    counters: HostCounters
    placement: Placement

    def channel(self, peer: int) -> int:
        """The number of the channel to an actor."""
        ...

    def emit(self, peer: int, message: bytes, payload: Any, n_bytes: int, due_ps: int, now_ps: int) -> None:
        """Send ``message`` with ``n_bytes`` of payload (None where there is no data): an event there at ``due_ps`` or later."""
        ...


class Paced(Engine):
    """An engine whose frames, credits at least, come and go over sockets."""

    settles = 0
    """How long before a running rank's cursor the events end that need not wait for its user code, ps."""

    def __init__(self, host: Outlet, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._host = host
        self._target_of = [host.placement.owner[link.target] for link in self.topology.links]

    # -- for the loop ----------------------------------------------------------------------------

    def next_departure_ps(self) -> int | None:
        """When the next frame that is decided already will leave, None when there is none."""
        return None

    def first_due_ps(self, hold_ps: int) -> int:
        """When the host must act at the latest: an event waits for ``hold_ps``, a frame for nothing."""
        event_ps = self.calendar[0][0] + hold_ps if self.calendar else FOREVER_PS
        leaves_ps = self.next_departure_ps()
        return event_ps if leaves_ps is None else min(event_ps, leaves_ps)

    def emit_until(self, limit_ps: int) -> None:
        """Send what is decided and leaves by ``limit_ps``: that needs nobody's promise any more."""

    def run_promised(self, limit_ps: int, lone_links: frozenset[int]) -> None:
        """Handle what needs no promise but those that came with frames.  ``lone_links``: each is the only input of its node."""

    def take(self, kind: int, data: Any, payload: Any) -> tuple[int, int]:
        """A message of the model came in over a socket.  Returns its channel and the sender's anchor."""
        if kind != FRAME:
            raise WireError(f"a message of kind {kind} reached an engine that knows none such")
        header, account = unpack(data)
        frame = self._frame_of(header, header.payload_bytes, header.head_ps)
        frame.credit_bytes = header.credit_bytes
        frame.account = account
        begin = HEADER_BYTES
        if frame.target_rank >= self._n_ranks and not frame.credit_bytes:
            begin += _RECIPE_BYTES
            end = begin + int.from_bytes(data[HEADER_BYTES:begin], "little")
            frame.recipe, begin = bytes(data[begin:end]), end
        frame.payload = data[begin:] if payload is None and len(data) > begin else payload
        frame.hop = header.hop
        frame.tail_ps = header.tail_ps
        frame.promise_ps = header.promise_ps
        self._arrive(frame, header.link)
        return header.channel, header.anchor_ns

    def _frame_of(self, header: Header | PacketHeader, payload_bytes: int, head_ps: int) -> Frame:
        """The chunk that a message is, or is a part of, without its data."""
        return Frame(
            self.path(header.source_rank, header.target_rank, header.route_flow),
            source_rank=header.source_rank,
            target_rank=header.target_rank,
            flow=header.flow,
            route_flow=header.route_flow,
            payload_bytes=payload_bytes,
            head_ps=head_ps,
            communicator=header.communicator,
            operation=header.operation,
            message=header.message,
            chunk=header.chunk,
            message_bytes=header.message_bytes,
            digest=header.digest,
            flag_every_bytes=header.flag_every_bytes,
        )

    # -- frames ----------------------------------------------------------------------------------

    def _emit_frame(self, frame: Frame, link: int, now_ps: int) -> None:
        """Put a frame on the socket towards the link's far end."""
        host = self._host
        peer = self._target_of[link]
        header = Header(
            link, host.channel(peer), frame.source_rank, frame.target_rank, frame.hop, frame.flow, frame.route_flow,
            frame.head_ps, frame.tail_ps, frame.promise_ps, frame.communicator, frame.operation, frame.message, frame.chunk,
            frame.payload_bytes, frame.flag_every_bytes, frame.message_bytes, frame.digest, frame.credit_bytes,
            host.clock.anchor_ns,
        )  # fmt: skip
        due_ps = now_ps if frame.credit_bytes else self.due_ps(frame)
        message = pack(host.session, host.epoch, header, frame.account)
        if frame.recipe:
            message += len(frame.recipe).to_bytes(_RECIPE_BYTES, "little") + frame.recipe
        host.emit(peer, message, frame.payload, frame.payload_bytes, due_ps, now_ps)

    def _arrive(self, frame: Frame, link: int) -> None:
        """A frame came in: a credit, which takes the way back without waiting in any queue."""
        if frame.hop == len(frame.path):
            self._take_credit(frame)
            return
        remaining = frame.path[frame.hop :]
        frame.hop += 1
        self._pass_on(frame.head_ps, remaining, link, partial(self._emit_frame, frame, remaining[0]))

    def _pass_on(self, due_ps: int, remaining: tuple[int, ...], link: int, action: Any) -> None:
        """Have what came by ``link`` and is due at ``due_ps``, ``remaining`` links from here, sent on at its time."""
        self._sequence += 1
        heappush(self.calendar, (due_ps - self.delay_ps(remaining), link, self._sequence, action))

    def forward_credit(self, frame: Frame, now_ps: int) -> None:
        """Credits take the way back over the sockets too."""
        if not frame.path:
            self._take_credit(frame)
            return
        frame.hop = 1
        self._emit_frame(frame, frame.path[0], now_ps)

    def _take_credit(self, frame: Frame) -> None:
        """A credit is at its end."""
        self._at_connection(self._not_past(frame.head_ps), frame)

    def _not_past(self, due_ps: int) -> int:
        """``due_ps``, or now where events after it have been handled already: that is counted, and can be without a page only."""
        if due_ps >= self.now_ps:
            return due_ps
        self._count_violation(self.now_ps - due_ps)
        return self.now_ps

    def _count_violation(self, weight_ps: int) -> None:
        self._host.counters.order_violations += 1
        self._host.counters.order_weight_ps += weight_ps


class PacedEngine(Paced):
    """Fluid chunks: a frame leaves when its first byte does."""

    def __init__(self, host: Outlet, **keywords: Any) -> None:
        super().__init__(host, **keywords)
        self.served_ps: dict[int, int] = {}
        self.promises_ps: dict[int, int] = {}
        self.outgoing: list[tuple[int, int, Frame, int]] = []
        """(start, sequence, frame, link) of frames whose first byte has not left yet, a heap."""
        self.crowded: set[tuple[int, int]] = set()
        """Connections with more than half a window out: there a credit that comes late may matter."""
        self._outstanding: dict[tuple[int, int], int] = {}

    def inject(self, frame: Frame, now_ps: int) -> int | None:
        if frame.payload_bytes:
            self._count_out(frame.source_rank, frame.target_rank, frame.flagged_bytes)
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
        if self.recorder is not None:
            self.recorder.frame_hop(frame, link, start_ps)
        self._sequence += 1
        heappush(self.outgoing, (start_ps, self._sequence, frame, link))

    def emit_until(self, limit_ps: int) -> None:
        outgoing = self.outgoing
        while outgoing and outgoing[0][0] <= limit_ps:
            start_ps, _, frame, link = heappop(outgoing)
            self._emit_frame(frame, link, start_ps)

    def next_wakeup(self) -> int | None:
        """The earlier of the next event and the next frame to be sent."""
        calendar, outgoing = self.calendar, self.outgoing
        if not outgoing:
            return calendar[0][0] if calendar else None
        return min(outgoing[0][0], calendar[0][0]) if calendar else outgoing[0][0]

    def next_departure_ps(self) -> int | None:
        return self.outgoing[0][0] if self.outgoing else None

    def run_promised(self, limit_ps: int, lone_links: frozenset[int]) -> None:
        """Arrivals at nodes with one input that its link's promise covers, and credits where no window is near its end."""
        if self.crowded or not lone_links:
            return
        while self.calendar:
            due_ps, port, _, item = self.calendar[0]
            if due_ps > limit_ps or type(item) is not Frame:
                return
            if not item.credit_bytes and (port not in lone_links or due_ps > self.promises_ps.get(port, 0)):
                return
            self.step()
            if self.interrupted:
                return

    def _take_credit(self, frame: Frame) -> None:
        key = (frame.target_rank, frame.source_rank)
        if frame.head_ps < self.now_ps and key in self.crowded and self._lacked_credit(frame):
            self._count_violation(self.now_ps - frame.head_ps)
        self._count_out(*key, -frame.credit_bytes)
        self._at_connection(frame.head_ps, frame)

    def _lacked_credit(self, credit: Frame) -> bool:
        """Whether anything waits for the credit: while the window had room, it did not matter that its rank had run ahead."""
        end = self.endpoints.get(credit.target_rank)
        if end is None:
            return True
        connection = end.outgoing.get((credit.source_rank, credit.communicator, credit.operation < 0))
        return connection is not None and bool(connection.blocked)

    def _arrive(self, frame: Frame, link: int) -> None:
        self.promises_ps[link] = frame.promise_ps
        if frame.credit_bytes:
            super()._arrive(frame, link)
            return
        last = frame.hop == len(frame.path)
        due_ps = self.due_ps(frame)
        if not last:
            served_ps = self.served_ps.get(frame.path[frame.hop], 0)
            if due_ps < served_ps:
                self._count_violation(served_ps - due_ps)
        self._sequence += 1
        heappush(self.calendar, (due_ps, link, self._sequence, frame))
