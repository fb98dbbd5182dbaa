"""Counters of a port's queues and of an adapter, under the names that operators know.

Law: counters only grow; what still lasts is counted up to the time of asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """Counters of one port and class (all its lanes).  Pauses are counted at the sender that they stop.

    Counts are sums over the lanes.  Lanes wait side by side, so times are those of the lane that waited longest: none is more
    than the time that has passed.
    """

    class_name: str
    packets: int
    payload_bytes: int
    pause_frames: int
    """Pause frames received that say stop, with the refreshes that keep a pause up (``fabric/pausing.py``)."""
    pause_transitions: int
    """Times that the queue went from running to paused."""
    pause_ps: int
    """Time for which a lane was paused, at most."""
    wait_ps: int
    """PortXmitWait: time for which a packet waited for credits or a pause while the wire was free."""
    marked_packets: int
    dropped_packets: int
    dropped_bytes: int
    """Payload of what did not fit."""
    trimmed_packets: int
    watchdog_events: int
    """Storms that the watchdog detected,"""
    watchdog_restorations: int
    """and those of them that are over."""
    watchdog_packets: int
    """Packets that the watchdog dropped."""
    peak_queue_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStatistics:
    """Counters of one rank's adapter, over its queue pairs."""

    name: str
    cnp_sent: int
    cnp_received: int
    marked_packets: int
    """Packets received with ECN's mark."""
    out_of_sequence: int
    duplicates: int
    nacks_sent: int
    resent_packets: int
    resent_bytes: int
    timeouts: int
    trimmed_packets: int
    discarded_packets: int
    """Dropped here: the receive buffer was full."""
    peak_receive_bytes: int
    """The most that was held of one link, class and lane, for each of which there is a receive buffer (or credits)."""
    pauses_sent: int
    """Without their refreshes, and without those that a forwarding node's shared buffer had sent already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeStatistics:
    """What one rank's interface counts of what had come and could not be taken in at once."""

    busy_bytes: int
    """Taken in at the receiver's own rate,"""
    busy_ps: int
    """in this time."""
    stuck_ps: int
    """Time for which something lay there and nothing at all was taken in."""


_SLOTS = 193
"""A link's delay may be beyond the 62 bits that model time ends at, on the slowest of links; the run then says so."""


class DelayCounts:
    """Delays of links, from a frame's head here to its head at the far end, and by how much each was longer than the least that
    the link takes: the wait for the wire, and what impairments add (packet delay variation, RFC 5481, 4.2).

    Each a list: how many have so many bits in ps, and last their sum.
    """

    __slots__ = ("delays", "variations")

    def __init__(self) -> None:
        self.delays = [0] * _SLOTS
        self.variations = [0] * _SLOTS

    def count(self, delay_ps: int, least_ps: int) -> None:
        """A frame took ``delay_ps``, and alone on the link without impairments takes ``least_ps``."""
        delays, variations = self.delays, self.variations
        delays[delay_ps.bit_length()] += 1
        delays[-1] += delay_ps
        if delay_ps > least_ps:
            longer_ps = delay_ps - least_ps
            variations[longer_ps.bit_length()] += 1
            variations[-1] += longer_ps
        else:
            variations[0] += 1


class PortCounters:
    """What is counted of one queue; plain ints on the hot path."""

    __slots__ = (
        "dropped_bytes", "dropped_packets", "marked", "packets", "pause_frames", "pause_ps", "pause_transitions",
        "payload_bytes", "peak_queue_bytes", "trimmed", "wait_ps", "watchdog_events", "watchdog_packets",
        "watchdog_restorations",
    )  # fmt: skip

    def __init__(self) -> None:
        self.packets = 0
        self.payload_bytes = 0
        self.pause_frames = 0
        self.pause_transitions = 0
        self.pause_ps = 0
        self.wait_ps = 0
        self.marked = 0
        self.dropped_packets = 0
        self.dropped_bytes = 0
        self.trimmed = 0
        self.watchdog_events = 0
        self.watchdog_restorations = 0
        self.watchdog_packets = 0
        self.peak_queue_bytes = 0


def summed(
    class_name: str, lanes: Sequence[PortCounters], *, pauses: Sequence[tuple[int, int]], waits_ps: Sequence[int]
) -> QueueStatistics:
    """One class's counters over its lanes.

    ``pauses`` (frames, time) and ``waits_ps``: by lane, what still lasts and is not in the counters yet.
    """
    return QueueStatistics(
        class_name=class_name,
        packets=sum(c.packets for c in lanes),
        payload_bytes=sum(c.payload_bytes for c in lanes),
        pause_frames=sum(c.pause_frames for c in lanes) + sum(frames for frames, _ in pauses),
        pause_transitions=sum(c.pause_transitions for c in lanes),
        pause_ps=max(c.pause_ps + lasting_ps for c, (_, lasting_ps) in zip(lanes, pauses, strict=True)),
        wait_ps=max(c.wait_ps + lasting_ps for c, lasting_ps in zip(lanes, waits_ps, strict=True)),
        marked_packets=sum(c.marked for c in lanes),
        dropped_packets=sum(c.dropped_packets for c in lanes),
        dropped_bytes=sum(c.dropped_bytes for c in lanes),
        trimmed_packets=sum(c.trimmed for c in lanes),
        watchdog_events=sum(c.watchdog_events for c in lanes),
        watchdog_restorations=sum(c.watchdog_restorations for c in lanes),
        watchdog_packets=sum(c.watchdog_packets for c in lanes),
        peak_queue_bytes=max(c.peak_queue_bytes for c in lanes),
    )
