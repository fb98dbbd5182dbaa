"""LinkMachine: when the bytes of a chunk leave a link, and when they are due at its far end.

A chunk is a fluid with a head and a tail that cuts through.  With wire bytes (payload with its
protocol's flags, plus one header per MTU), all times rounded up to whole picoseconds:

    first    = min(bytes, mtu + header)               what must be here whole before it goes on
    start    = max(head_in, free)
    free     = start + bytes / rate                   capacity is charged once, so it is conserved
    sparse   = tail_in - head_in > (bytes - first) / rate        upstream is slower than this link
    head_out = (max(head_in, solid) if sparse else start) + first / rate + latency
    tail_out = max(start + bytes / rate, tail_in + first / rate) + latency
    if not sparse: solid = free                       until when the wire has no gaps

Laws.  Frames must come in order of their heads.  Heads leave in that order, tails in that
order within each flow (those of different flows may overtake: the bytes of a slow frame
arrive between the bytes of a fast one).  A frame without payload costs one header, and at
least 1 ps.  Every payload byte is delivered exactly once.

This is exact for one flow over any hops and for fan-in of equals; where slower frames merge
with others it serves whole chunks and not packets, see tests/sim/test_packet_oracle.py.

What impairments add:

* Capacity (throttle, flap, a lost plane) is a step function of time, integrated exactly.
* Delays move head and tail alike.  Where they vary, frames stay in order (a frame is held
  back to the head before it, and to the tail before it in its flow), and the far end never
  receives faster than the link's rate: the delay is followed by a server of that rate.
* Loss: the packets behind a lost one in the chunk are sent in vain; a timeout after the end of
  the lost packet, and not before that pass is over, it and the rest are sent again.  All of it
  takes capacity.  Later frames of the flow wait for the recovery; other flows fill the wire
  meanwhile, and only the stretches in which something is sent again are kept free of them.
  Heads tell of the first pass as if nothing was lost, and of a waiting frame as if it took its
  turn, so that they stay in order and remain a promise to the far end; the tail tells the truth.

Not modelled: packets of different flows in turns within a chunk (use a smaller quantum),
priorities, and with both loss and jitter on one link, the far end's rate during a recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from emu.errors import ConfigError
from emu.fabric.account import QUEUEING, RETRANSMISSION, SERIALISATION
from emu.fabric.capacity import WORK_PER_BYTE, apportion
from emu.fabric.counters import DelayCounts
from emu.fabric.frame import Frame
from emu.fabric.impairable import Impairable
from emu.impairments.base import BaseImpairment, FrameKey
from emu.topologies.graph import Link

_MAX_CACHED_SIZES = 4096
_MOST_TIMES_LOST = 1000
"""Of one packet, running; chance would not do that to a packet that it loses every second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """Counters of one link since it was made."""

    name: str
    frames: int
    payload_bytes: int
    wire_bytes: int
    """All that was put on the wire: payload with its flags, headers, and what was sent again."""
    resent_bytes: int
    """The part of ``wire_bytes`` that was sent again after a loss."""
    lost_packets: int
    """Losses that the sender had to go back for."""
    busy_ps: int
    """Time in which bytes took the wire's capacity; an outage is not busy."""
    queued_ps: int
    """Sum over frames of the time from the head's arrival until it leaves."""
    latency_ps: int = 0
    """Sum over frames of the time on the way, as timestamps at both ends of the cable show it."""
    stalled_ps: int = 0
    """Time for which a frame was ready to go and the link was down."""
    n_outages: int = 0
    """Times that a frame found the link down."""
    planes_bytes: tuple[int, ...] = ()
    """``wire_bytes`` by striped plane; empty where the link has none."""


class LinkMachine(Impairable):
    """One directed link: a FIFO server with a rate and a latency, see the module."""

    __slots__ = (
        "_cost_by_size",
        "_far_free_ps",
        "_flow_alone_ps",
        "_flow_frames",
        "_flow_packets",
        "_flow_ready_ps",
        "_flow_tail_ps",
        "_full_bytes",
        "_last_head_ps",
        "_latency_ps",
        "_run_begin_ps",
        "_run_flow",
        "_solid_ps",
        "busy_ps",
        "delay_counts",
        "delayed_ps",
        "flagged_bytes",
        "frames",
        "free_ps",
        "index",
        "link",
        "lost_packets",
        "payload_bytes",
        "queued_ps",
        "resent_bytes",
        "seed",
        "stalled_ps",
        "wire_bytes",
    )  # fmt: skip

    def __init__(
        self,
        *,
        link: Link,
        index: int,
        seed: int,
        impairments: tuple[tuple[BaseImpairment, int | None], ...] = (),
        delay_counts: DelayCounts | None = None,
    ) -> None:
        """``impairments``: (impairment, plane or None), as :func:`emu.impairments.spec.resolve` gives them; ``delay_counts``:
        where delays are counted."""
        self.link = link
        self.index = index
        self.seed = seed
        self.free_ps = 0
        """When the last byte of what is decided so far has left, apart from what is to be sent again."""
        self.frames = 0
        self.payload_bytes = 0
        self.flagged_bytes = 0
        self.wire_bytes = 0
        self.resent_bytes = 0
        self.lost_packets = 0
        self.busy_ps = 0
        self.queued_ps = 0
        self.delayed_ps = 0
        self.stalled_ps = 0
        self.delay_counts = DelayCounts() if delay_counts is None else delay_counts
        super().__init__(link=link, index=index, seed=seed, impairments=impairments)
        self._latency_ps = link.latency_ps
        self._full_bytes = link.mtu_bytes + link.header_bytes
        self._solid_ps = 0
        self._run_flow = -1
        """The flow of the last frame, and when the first of its frames began that have had the wire without another's between."""
        self._run_begin_ps = 0
        self._last_head_ps = 0
        self._far_free_ps = 0
        self._cost_by_size: dict[int, tuple[int, int, int, int]] = {}
        self._flow_tail_ps: dict[int, int] = {}
        self._flow_ready_ps: dict[int, int] = {}
        self._flow_alone_ps: dict[int, int] = {}
        """When its first passes would have ended without waiting for recoveries."""
        self._flow_frames: dict[int, int] = {}
        self._flow_packets: dict[int, int] = {}

    def receive(self, frame: Frame, now_ps: int) -> int:
        """Decide the way of ``frame``, whose head is at the link's input at ``now_ps`` and its tail at ``tail_ps``.

        Sets ``head_ps`` and ``tail_ps`` to the times due at the far end.  Returns when its first
        byte leaves.  Raises ConfigError if an impairment keeps the link down, or loses a packet, for ever.
        """
        if not self._is_plain:
            return self._receive_impaired(frame, now_ps)
        size_bytes = frame.flagged_bytes
        cost = self._cost_by_size.get(size_bytes)
        if cost is None:
            cost = self._cost(size_bytes)
        wire_bytes, duration_ps, first_ps, spread_ps = cost
        start_ps = self.free_ps
        if start_ps < now_ps:
            start_ps = now_ps
        self.free_ps = end_ps = start_ps + duration_ps
        tail_in_ps = frame.tail_ps
        alone_ps = now_ps + duration_ps
        if tail_in_ps - now_ps <= spread_ps:
            self._solid_ps = end_ps
            if duration_ps == first_ps:
                # A frame of a single packet may come to an end before a longer one of its flow that is sparse.
                end_ps = max(end_ps, self._flow_tail_ps.get(frame.flow, 0))
            head_ps = start_ps + first_ps
        else:
            solid_ps = self._solid_ps
            start_ps = now_ps if now_ps > solid_ps else solid_ps
            end_ps = max(end_ps, tail_in_ps + first_ps, self._flow_tail_ps.get(frame.flow, 0))
            self._flow_tail_ps[frame.flow] = end_ps
            self._last_head_ps = head_ps = max(start_ps + first_ps, self._last_head_ps)
            alone_ps = tail_in_ps + first_ps
        account = frame.account
        account[SERIALISATION] += end_ps - tail_in_ps
        if frame.hop:
            if alone_ps < end_ps:
                queued_ps = self._behind_others_ps(frame.flow, now_ps, end_ps - alone_ps)
                account[QUEUEING] += queued_ps
                account[SERIALISATION] -= queued_ps
            if frame.flow != self._run_flow:
                self._run_flow, self._run_begin_ps = frame.flow, start_ps
        frame.head_ps = head_ps = head_ps + self._latency_ps
        frame.tail_ps = end_ps + self._latency_ps
        self.delay_counts.count(head_ps - now_ps, first_ps + self._latency_ps)
        self.frames += 1
        self.payload_bytes += frame.payload_bytes
        self.flagged_bytes += size_bytes
        self.wire_bytes += wire_bytes
        self.busy_ps += duration_ps
        self.queued_ps += start_ps - now_ps
        return start_ps

    def promise_ps(self, frame: Frame) -> int:
        """After ``receive`` of ``frame``: no later frame on this link has its tail at the far end before this time.

        While the wire has no gap, tails keep the order of heads; a frame that comes slowly, or an impairment, lets
        others overtake, and then only the head is a promise.
        """
        if not self._is_plain:
            return frame.head_ps
        return min(frame.tail_ps, self.free_ps + self._latency_ps)

    @property
    def decided_ps(self) -> int:
        return max(self.free_ps, *self._flow_tail_ps.values(), *self._flow_ready_ps.values(), 0)

    def next_wakeup(self) -> int | None:
        """None: a link decides when a head arrives, so nothing is left to be asked for."""
        return None

    def statistics(self) -> LinkStatistics:
        """Counters so far."""
        weights = tuple(self._capacity.plane_work)
        if not any(weights):
            weights = tuple(Fraction(plane_bps) for plane_bps in self.link.planes_bps)
        return LinkStatistics(
            name=self.link.name,
            frames=self.frames,
            payload_bytes=self.payload_bytes,
            wire_bytes=self.wire_bytes,
            resent_bytes=self.resent_bytes,
            lost_packets=self.lost_packets,
            busy_ps=self.busy_ps,
            queued_ps=self.queued_ps,
            latency_ps=self.frames * self._latency_ps + self.delayed_ps,
            stalled_ps=self.stalled_ps,
            n_outages=self._capacity.n_outages,
            planes_bytes=apportion(self.wire_bytes, weights),
        )

    def validate(self) -> None:
        """Raise AssertionError where bytes or capacity do not add up."""
        header_bytes = self.wire_bytes - self.resent_bytes - self.flagged_bytes
        assert header_bytes >= 0, f"{self.link.name}: less on the wire than the payload"
        if self.link.header_bytes == 0:
            assert header_bytes == 0, f"{self.link.name}: {header_bytes} bytes on the wire that nobody sent"
        else:
            n_packets, rest_bytes = divmod(header_bytes, self.link.header_bytes)
            assert rest_bytes == 0 and n_packets >= self.frames, f"{self.link.name}: headers do not add up"
        horizon_ps = max(self.free_ps, *self._flow_ready_ps.values(), 0)
        assert 0 <= self.busy_ps <= horizon_ps, f"{self.link.name}: busy for longer than it exists"
        most_work = self.link.rate_bps * self.busy_ps
        assert self.wire_bytes * WORK_PER_BYTE <= most_work, f"{self.link.name}: sent faster than its rate"
        assert self.queued_ps >= 0, f"{self.link.name}: a frame left before it came"
        assert self._solid_ps <= self.free_ps, f"{self.link.name}: solid beyond what is sent"

    def _packets_of(self, size_bytes: int) -> int:
        return max(1, -(-size_bytes // self.link.mtu_bytes))

    def _cost(self, size_bytes: int) -> tuple[int, int, int, int]:
        """(wire bytes, time for all of them, time for the first packet, the difference), and remember it."""
        wire_bytes = self.link.wire_bytes(size_bytes)
        rate_bps = self.link.rate_bps
        duration_ps = max(1, -(-wire_bytes * WORK_PER_BYTE // rate_bps))
        first_bytes = min(wire_bytes, self._full_bytes)
        first_ps = max(1, -(-first_bytes * WORK_PER_BYTE // rate_bps))
        if len(self._cost_by_size) >= _MAX_CACHED_SIZES:
            self._cost_by_size.clear()
        cost = self._cost_by_size[size_bytes] = (wire_bytes, duration_ps, first_ps, duration_ps - first_ps)
        return cost

    def _receive_impaired(self, frame: Frame, now_ps: int) -> int:
        """The rule of :meth:`receive` with everything in it that impairments add."""
        capacity = self._capacity
        flow = frame.flow
        tail_in_ps = frame.tail_ps
        wire_bytes = self.link.wire_bytes(frame.flagged_bytes)
        first_bytes = min(wire_bytes, self._full_bytes)
        ready_ps = self._flow_ready_ps.get(flow, 0)
        turn_ps = max(now_ps, self.free_ps)
        waits = ready_ps > turn_ps
        capacity.forget(now_ps)

        start_ps = capacity.available(max(turn_ps, ready_ps))
        self.stalled_ps += start_ps - max(turn_ps, ready_ps)
        first_ps = capacity.finish(start_ps, first_bytes) - start_ps
        end_ps = capacity.finish(start_ps, wire_bytes)
        down_ps = capacity.down_ps
        idle_ps = 0
        leave_ps = start_ps
        pass_end_ps = end_ps
        is_sparse = tail_in_ps - now_ps > end_ps - start_ps - first_ps
        if is_sparse:
            end_ps = capacity.finish_arriving(start_ps, wire_bytes, first_bytes, now_ps, tail_in_ps)
            down_ps, idle_ps = capacity.down_ps, capacity.idle_ps
            leave_ps = capacity.available(max(now_ps, self._solid_ps, ready_ps))
            pass_end_ps = max(end_ps, capacity.finish(capacity.available(tail_in_ps), first_bytes))
        turn_leave_ps = capacity.available(turn_ps) if waits else leave_ps
        head_ps = capacity.finish(turn_leave_ps, first_bytes)

        sequence = self._flow_frames.get(flow, 0)
        self._flow_frames[flow] = sequence + 1
        key = FrameKey(self.index, flow, sequence)
        delay_ps = sum(impairment.delay_ps(seed, key, turn_leave_ps) for impairment, seed in self._delays)
        head_ps += delay_ps
        self.delayed_ps += delay_ps

        self.stalled_ps += down_ps
        self._count(start_ps, end_ps, down_ps + idle_ps)
        tail_ps = pass_end_ps
        if self._losses:
            arrival_ps = tail_in_ps - now_ps if is_sparse else 0
            tail_ps = self._recover(frame, key, start_ps, pass_end_ps, first_ps, tail_in_ps, arrival_ps)
        waited_ps = max(0, start_ps - max(turn_ps, self._flow_alone_ps.get(flow, 0))) if waits else 0
        if self._losses:
            self._flow_alone_ps[flow] = pass_end_ps - waited_ps
        self._account(frame, now_ps, pass_end_ps, first_ps, waited_ps, tail_ps - pass_end_ps)
        if waits:
            capacity.reserve(start_ps, end_ps)
            self._flow_ready_ps[flow] = tail_ps
        else:
            self.free_ps = end_ps
            if not is_sparse:
                self._solid_ps = end_ps
        tail_ps += delay_ps
        if self._delays and not waits:
            held_ps = max(0, self._far_free_ps - start_ps - delay_ps)
            self._far_free_ps = end_ps + delay_ps + held_ps
            tail_ps = max(tail_ps, self._far_free_ps)
            if not is_sparse:
                head_ps += held_ps
        self._last_head_ps = head_ps = max(head_ps, self._last_head_ps)
        self._flow_tail_ps[flow] = tail_ps = max(tail_ps, head_ps, self._flow_tail_ps.get(flow, 0))

        frame.head_ps = head_ps + self._latency_ps
        frame.tail_ps = tail_ps + self._latency_ps
        self.delay_counts.count(frame.head_ps - now_ps, self._cost(frame.flagged_bytes)[2] + self._latency_ps)
        self.frames += 1
        self.payload_bytes += frame.payload_bytes
        self.flagged_bytes += frame.flagged_bytes
        self.wire_bytes += wire_bytes
        self.queued_ps += leave_ps - now_ps
        return turn_leave_ps

    def _behind_others_ps(self, flow: int, now_ps: int, waited_ps: int) -> int:
        """How much of its wait a frame of ``flow`` that comes now has for other flows' frames, and not for its own before it."""
        return waited_ps if flow != self._run_flow else min(waited_ps, max(0, self._run_begin_ps - now_ps))

    def _account(self, frame: Frame, now_ps: int, end_ps: int, first_ps: int, waited_ps: int, recovery_ps: int) -> None:
        """What the way takes to the end of its first pass and, after ``recovery_ps``, of the last.

        ``waited_ps``: until the recovery of an earlier frame of the flow was over.
        """
        account, capacity = frame.account, self._capacity
        alone_ps = capacity.finish(capacity.available(now_ps), self.link.wire_bytes(frame.flagged_bytes))
        alone_ps = min(end_ps, max(alone_ps, frame.tail_ps + first_ps))
        waited_ps = min(waited_ps, end_ps - alone_ps)
        account[RETRANSMISSION] += waited_ps + recovery_ps
        queued_ps = self._behind_others_ps(frame.flow, now_ps, end_ps - alone_ps - waited_ps) if frame.hop else 0
        account[QUEUEING] += queued_ps
        account[SERIALISATION] += end_ps - frame.tail_ps - waited_ps - queued_ps
        if frame.flow != self._run_flow:
            self._run_flow, self._run_begin_ps = frame.flow, now_ps + queued_ps

    def _count(self, start_ps: int, end_ps: int, free_ps: int) -> None:
        """Something took the wire from ``start_ps`` to ``end_ps``, but for ``free_ps`` of that."""
        self.busy_ps += end_ps - start_ps - free_ps
        if self.link.planes_bps:
            self._capacity.count_planes(start_ps, end_ps)

    def _recover(
        self,
        frame: Frame,
        key: FrameKey,
        start_ps: int,
        end_ps: int,
        first_ps: int,
        tail_in_ps: int,
        arrival_ps: int,
    ) -> int:
        """Send again what is lost of a frame whose first pass takes from ``start_ps`` to ``end_ps``.

        Returns when its last byte has left for good.  ``arrival_ps`` is how long a sparse frame takes to arrive.
        """
        capacity = self._capacity
        header_bytes, mtu_bytes = self.link.header_bytes, self.link.mtu_bytes
        n_packets = self._packets_of(frame.flagged_bytes)
        begin = self._flow_packets.get(frame.flow, 0)
        self._flow_packets[frame.flow] = begin + n_packets
        attempt = times_lost = 0
        going_back_to = 0
        while True:
            lost, timeout_ps = self._first_lost(key, begin + going_back_to, begin + n_packets, attempt, start_ps)
            if lost is None:
                if attempt > 0:
                    capacity.reserve(start_ps, end_ps)
                    self._flow_ready_ps[frame.flow] = end_ps
                return end_ps
            lost -= begin
            sent_bytes = min((lost + 1) * mtu_bytes, frame.flagged_bytes) - going_back_to * mtu_bytes
            gone_ps = capacity.finish(start_ps, sent_bytes + (lost + 1 - going_back_to) * header_bytes)
            if attempt > 0:
                capacity.reserve(start_ps, end_ps)
            elif arrival_ps > 0:
                gone_ps = max(gone_ps, tail_in_ps - arrival_ps * (n_packets - 1 - lost) // n_packets + first_ps)
            self.lost_packets += 1
            attempt += 1
            times_lost = times_lost + 1 if lost == going_back_to else 1
            if times_lost > _MOST_TIMES_LOST:
                raise ConfigError(
                    f"link {self.link.name} lost packet {begin + lost} of a flow {_MOST_TIMES_LOST} times running;"
                    " let its impairments pass it in the end, or for a link that is down use flap"
                )
            going_back_to = lost
            resent_bytes = frame.flagged_bytes - lost * mtu_bytes + (n_packets - lost) * header_bytes
            start_ps = capacity.available(max(gone_ps + timeout_ps, end_ps))
            end_ps = capacity.finish(start_ps, resent_bytes)
            self._count(start_ps, end_ps, capacity.down_ps)
            self.resent_bytes += resent_bytes
            self.wire_bytes += resent_bytes

    def _first_lost(self, key: FrameKey, begin: int, end: int, attempt: int, start_ps: int) -> tuple[int | None, int]:
        """The first packet that any impairment loses of a sending that starts then, and the timeout of that one."""
        first: int | None = None
        timeout_ps = 0
        for impairment, seed in self._losses:
            lost = impairment.first_lost(seed, key, begin, end, attempt) if impairment.loses_at(start_ps) else None
            if lost is not None and (first is None or lost < first):
                first, timeout_ps = lost, impairment.timeout_ps
        return first, timeout_ps
