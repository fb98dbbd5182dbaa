"""Queue pairs: the two ends of a stream of packets between two ranks.

The sender cuts chunks into packets, of a quantum with their protocol's flags, numbers them, keeps what is not acknowledged where
its class recovers losses, and sends again what is asked for.  The receiver says which packets count.

    go back N           the receiver takes packets in order; at a gap it asks once, and everything from there on comes again
                        (InfiniBand and RoCE adapters; Mittal et al., "Revisiting network support for RDMA", SIGCOMM 2018)
    selective repeat    the receiver takes packets in any order and asks for each that is missing

Law: every byte of every chunk counts exactly once, whatever is lost, trimmed, doubled or out of order on the way.

Not modelled: answers (acknowledgements, CNPs) take no bandwidth and are never lost.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from emu.congestion.base import SenderControl
from emu.fabric.frame import Frame
from emu.fabric.packet import Packet
from emu.fabric.waits import Waits
from emu.protocols.flags import data_bytes, flagged_bytes
from emu.topologies.switching import Recovery


class Segment(NamedTuple):
    """What a packet carries; ``flagged_bytes`` with its flags, as they are on their way."""

    frame: Frame
    offset_bytes: int
    n_bytes: int
    flagged_bytes: int
    is_last: bool


class SendQueuePair:
    """The sender's end.  ``index`` numbers the queue pairs between two ranks in one class."""

    __slots__ = (
        "_acknowledged", "_offset", "_quantum", "_resend", "_sendings", "_sent", "_unsent", "chunks", "control", "deadline_ps",
        "entropy", "granted_chunks", "index", "is_acknowledged", "n_chunks", "next_sequence", "outstanding_bytes", "peer",
        "pending", "queue", "recovery", "resent_bytes", "resent_packets", "silent_timeouts", "started_chunks", "ticket",
        "timeouts", "timer_set", "unacked", "waits",
    )  # fmt: skip

    def __init__(
        self,
        *,
        peer: int,
        index: int,
        queue: int,
        entropy: int,
        control: SenderControl,
        is_acknowledged: bool,
        recovery: Recovery,
        quantum_bytes: int,
    ) -> None:
        """``is_acknowledged``: whether the receiver's half of the control answers every packet."""
        self.peer = peer
        self.index = index
        self.queue = queue
        self.entropy = entropy
        self.control = control
        self.is_acknowledged = is_acknowledged
        self.recovery = recovery
        self._quantum = quantum_bytes
        self.waits = Waits()
        self.chunks: deque[Frame] = deque()
        self._offset = 0
        self.next_sequence = 0
        self.unacked: dict[int, Segment] = {}
        self._sent = 0
        self._acknowledged = 0
        self._resend: deque[int] = deque()
        self._sendings: dict[int, int] = {}  # of what is unacked and was sent again: how often
        self._unsent: set[int] = set()  # of what is unacked: to go again, or pending; the rest is outstanding
        self.outstanding_bytes = 0
        self.pending: tuple[int, Segment, Packet] | None = None
        self.ticket = 0
        self.deadline_ps = 0
        self.timer_set = False
        self.n_chunks = 0
        self.started_chunks = 0
        self.granted_chunks = 0
        self.resent_packets = 0
        self.resent_bytes = 0
        self.timeouts = self.silent_timeouts = 0

    @property
    def keeps(self) -> bool:
        """Whether what is sent is kept until it is acknowledged."""
        return self.recovery is not Recovery.NONE

    @property
    def is_again(self) -> bool:
        """Whether the packet that is ready went before."""
        return self.pending is not None and self.pending[0] < self._sent

    def hears_nothing(self) -> str:
        """Why no answer can wake a control that waits for one; empty where one can."""
        if not self.is_acknowledged:
            return "but its receiver does not acknowledge packets; return a time, or True from ReceiverControl.acknowledges"
        return "" if self.outstanding_bytes else "with 0 B outstanding, so that no answer can wake it; return a time then"

    def submit(self, frame: Frame, now_ps: int) -> None:
        """A chunk to send, after those before it."""
        self.waits.submit(frame, now_ps)
        self.chunks.append(frame)
        self.n_chunks += 1

    def prepare(self, now_ps: int) -> Packet | None:
        """The next packet, made ready; None when nothing is to be sent.  It stays the next until :meth:`take`."""
        if self.pending is not None:
            return self.pending[2]
        while self._resend:
            sequence = self._resend.popleft()
            segment = self.unacked.get(sequence)
            if segment is not None:
                return self._packet(sequence, segment, now_ps)
        if not self.chunks:
            return None
        frame = self.chunks[0]
        if self._offset == 0 and self.control.asks and self.started_chunks >= self.granted_chunks:
            return None
        if self._offset == 0:
            self.started_chunks += 1
        n_bytes = min(data_bytes(self._quantum, frame.flag_every_bytes), frame.payload_bytes - self._offset)
        is_last = self._offset + n_bytes >= frame.payload_bytes
        segment = Segment(frame, self._offset, n_bytes, flagged_bytes(n_bytes, frame.flag_every_bytes), is_last)
        sequence = self.next_sequence
        self.next_sequence += 1
        if is_last:
            self.chunks.popleft()
            self._offset = 0
        else:
            self._offset += n_bytes
        if self.keeps:
            self.unacked[sequence] = segment
            self._unsent.add(sequence)
        return self._packet(sequence, segment, now_ps)

    def _packet(self, sequence: int, segment: Segment, now_ps: int) -> Packet:
        frame, offset, n_bytes, _, _ = segment
        payload = None
        if frame.payload is not None and n_bytes:
            payload = frame.payload.reshape(-1).view(np.uint8)[offset : offset + n_bytes]
        packet = Packet(
            frame,
            queue_pair=self.index,
            queue=self.queue,
            sequence=sequence,
            offset_bytes=offset,
            payload_bytes=n_bytes,
            entropy=self.entropy,
            sent_ps=now_ps,
            payload=payload,
        )
        self.pending = sequence, segment, packet
        return packet

    def take(self, now_ps: int) -> tuple[Packet, bool]:
        """(the prepared packet, whether it ends a chunk for the first time): it goes now."""
        assert self.pending is not None
        sequence, segment, packet = self.pending
        self.pending = None
        self.ticket += 1
        first_time = sequence >= self._sent
        if not first_time:
            self.resent_packets += 1
            self.resent_bytes += segment.flagged_bytes
            packet.sending = self._sendings[sequence] = self._sendings.get(sequence, 0) + 1
        self._sent = max(self._sent, sequence + 1)
        self._unsent.discard(sequence)
        self.outstanding_bytes += segment.flagged_bytes
        packet.account = self.waits.take(segment.frame, sequence, now_ps, keeps=self.keeps)
        self.control.sent(now_ps, segment.flagged_bytes)
        return packet, segment.is_last and first_time

    # -- answers -------------------------------------------------------------------------------

    def acknowledged(self, before: int, selective: int, n_bytes_come: int = 0) -> int:
        """Everything below ``before``, and ``selective`` (or -1), has come.  Returns the bytes that are new in this.

        ``n_bytes_come``: the payload that is answered; it counts where nothing is kept.
        """
        if not self.keeps:
            self.outstanding_bytes = max(0, self.outstanding_bytes - n_bytes_come)
            return n_bytes_come
        n_bytes = 0
        for sequence in range(self._acknowledged, before):
            if sequence in self.unacked:
                n_bytes += self._forget(sequence)
        self._acknowledged = max(self._acknowledged, before)
        if selective in self.unacked:
            n_bytes += self._forget(selective)
        return n_bytes

    def _forget(self, sequence: int) -> int:
        """It has come.  Returns its bytes."""
        self.silent_timeouts = 0
        self._sendings.pop(sequence, None)
        self.waits.forget(sequence)
        n_bytes = self.unacked.pop(sequence).flagged_bytes
        if sequence in self._unsent:
            self._unsent.discard(sequence)
            if self.pending is not None and self.pending[0] == sequence:
                self.pending = None
                self.ticket += 1
        else:
            self.outstanding_bytes -= n_bytes
        return n_bytes

    def missing(self, sequence: int) -> int:
        """The receiver lacks ``sequence``.  Returns the bytes that are taken for lost."""
        if self.recovery is Recovery.GO_BACK_N:
            self.acknowledged(sequence, -1)
            return self._again([s for s in self.unacked if s >= sequence])
        return self._again([sequence]) if sequence in self.unacked else 0

    def timed_out(self) -> int:
        """Nothing has come back for too long: all that is kept goes again.

        ``silent_timeouts`` counts those since the last new acknowledgement.
        """
        self.timeouts += 1
        self.silent_timeouts += 1
        return self._again(list(self.unacked))

    def _again(self, sequences: list[int]) -> int:
        """Queue what has been sent of ``sequences`` to go again, before anything new."""
        if self.pending is not None:
            self.pending = None
            self.ticket += 1
        n_bytes = 0
        for sequence in sequences:
            if sequence not in self._unsent:
                self._unsent.add(sequence)
                n_bytes += self.unacked[sequence].flagged_bytes
        self._resend = deque(sorted(self._unsent))
        self.outstanding_bytes -= n_bytes
        return n_bytes


class ReceiveQueuePair:
    """The receiver's end: which packets count, and what is answered."""

    __slots__ = (
        "_asked", "_highest", "_looked_at", "_out_of_order", "_reorder", "expected", "gap_asked", "n_duplicates",
        "n_out_of_sequence", "recovery", "since_ack",
    )  # fmt: skip

    def __init__(self, *, recovery: Recovery, reorder_packets: int) -> None:
        self.recovery = recovery
        self._reorder = reorder_packets
        self.expected = 0
        self._out_of_order: set[int] = set()
        self._asked: set[int] = set()
        self._highest = -1
        self._looked_at = 0
        self.gap_asked = False
        self.since_ack = 0
        self.n_out_of_sequence = 0
        self.n_duplicates = 0

    def take(self, sequence: int) -> bool:
        """Whether a packet counts: it is new, and its recovery can use it."""
        if self.recovery is Recovery.NONE:
            return True
        if sequence < self.expected or sequence in self._out_of_order:
            self.n_duplicates += 1
            return False
        if sequence > self.expected:
            self.n_out_of_sequence += 1
            if self.recovery is Recovery.GO_BACK_N:
                return False
            self._out_of_order.add(sequence)
            self._highest = max(self._highest, sequence)
            return True
        self._highest = max(self._highest, sequence)
        self._asked.discard(sequence)
        self.expected += 1
        self.gap_asked = False
        while self.expected in self._out_of_order:
            self._out_of_order.discard(self.expected)
            self._asked.discard(self.expected)
            self.expected += 1
        return True

    def asks_for(self) -> list[int]:
        """Sequences to ask for now; each is asked for once, here or as a trimmed header."""
        if self.recovery is Recovery.GO_BACK_N:
            if self.gap_asked:
                return []
            self.gap_asked = True
            return [self.expected]
        begin, end = max(self.expected, self._looked_at), self._highest - self._reorder + 1
        self._looked_at = max(begin, end)
        return [s for s in range(begin, end) if s not in self._out_of_order and s not in self._asked]

    def trimmed(self, sequence: int) -> bool:
        """Whether a trimmed header tells of something to ask for; each time that it comes without its payload."""
        if self.recovery is Recovery.GO_BACK_N:
            self.gap_asked = self.gap_asked or sequence == self.expected
            return sequence == self.expected
        if sequence < self.expected or sequence in self._out_of_order:
            return False
        self._asked.add(sequence)
        return True


class Reassembly:
    """A chunk that is coming in."""

    __slots__ = ("missing_bytes", "payload")

    def __init__(self, frame: Frame, *, payload: bool) -> None:
        self.missing_bytes = frame.payload_bytes
        self.payload = np.empty(frame.payload_bytes, np.uint8) if payload and frame.payload_bytes else None

    def put(self, packet: Packet) -> bool:
        """Take a packet's bytes; whether the chunk is complete."""
        if self.payload is not None and packet.payload is not None:
            end = packet.offset_bytes + packet.payload_bytes
            self.payload[packet.offset_bytes : end] = np.frombuffer(packet.payload, np.uint8)
        self.missing_bytes -= packet.payload_bytes
        return self.missing_bytes <= 0

    def data(self) -> memoryview | None:
        """The chunk's bytes, of no type yet: an array would be taken for one of the call's."""
        return None if self.payload is None else self.payload.data
