"""Catalogue: every metric that emu exports, as data: name, type, labels, help.

Law: one clock for everything that is modelled.  ``MODEL`` seconds are the fabric's and advance by 1 / dilation a wall second, so
a share divides by the rate of ``emu_model_time_seconds_total`` and never by wall time:

    rate(emu_link_busy_seconds_total[1m]) / on (session, node) group_left rate(emu_model_time_seconds_total[1m])

``WALL`` seconds are this host's.  Counters go on over the runs of a session and end with it.

Labels are bounded by the fabric: no label holds a size, a time, a call or a user's word, and the first
:data:`MOST_CALL_SERIES` kinds of call have series of their own, all others share one (:data:`OTHER`).  An exporter has at most

    6 links + 15 ranks + queues x (3 + 7 pause + 1 credit + 1 ECN + 1 trimming) + switches x classes with a watchdog
    + 2 actors + 19 (kinds of call + 1) + 15 (collectives + 2 tiers + roles) + faults + 40

samples; a queue is a port and class of a switch, and has only what its class can do.  64 ranks, 256 links and 12 switches of 16
ports and 2 classes with PFC and ECN come to 7,750.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

OTHER: Final = "other"
"""Stands for the calls beyond the first :data:`MOST_CALL_SERIES` kinds."""
MOST_CALL_SERIES: Final = 32
"""Kinds of call (collective, algorithm, size class) with series of their own."""
BUCKETS_PS: Final = tuple(10**6 * 4**step for step in range(12))
"""Upper bounds of durations and skews: from 1 us, four times as much each, to 4.2 s of model time."""
DELAY_BITS: Final = tuple(range(14, 38, 2))
"""Upper bounds of a link's delays: 2^n - 1 ps, from 16 ns, four times as much each, to 69 ms."""
LAG_BITS: Final = tuple(range(14, 38, 2))
"""Upper bounds of what the host is late: 2^n - 1 ns, from 16 us, four times as much each, to 69 s."""
SIZE_CLASSES: Final = ("0-4KiB", "4-64KiB", "64KiB-1MiB", "1-16MiB", "16-256MiB", "256MiB+")
"""Size classes of calls; the upper bound belongs to the class."""
_FIRST_CLASS_BYTES: Final = 4 << 10


def size_class(n_bytes: int) -> str:
    """The class of a size: at most 4 KiB, then sixteen times as much each."""
    steps = (max(0, (n_bytes - 1) // _FIRST_CLASS_BYTES).bit_length() + 3) // 4
    return SIZE_CLASSES[min(steps, len(SIZE_CLASSES) - 1)]


class Kind(StrEnum):
    """Prometheus's types; ``info`` is a gauge that is always 1."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Clock(StrEnum):
    """Which clock a metric's seconds are of."""

    NONE = ""
    MODEL = "model time"
    WALL = "wall clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One name.  ``words`` is its help without the clock."""

    name: str
    kind: Kind
    words: str
    labels: tuple[str, ...] = ()
    clock: Clock = Clock.NONE

    @property
    def help(self) -> str:
        """The help line; where there are seconds it ends with whose."""
        return f"{self.words} ({self.clock})." if self.clock else f"{self.words}."


LABELS: Final = {
    "actor": "first node that an actor hosts, or simulator; as many as actors",
    "algorithm": "direct, ring, tree, ...; bounded by the kinds of call",
    "cause": "of a stall: emu.fabric.account.CAUSES; of a finding: emu.telemetry.diagnosis.Cause, with underscores",
    "collective": "all_reduce, ..., send, recv; at most 12, and other",
    "component_kind": "link, switch or accelerator",
    "direction": "received or sent; sent or handled for notifications",
    "dst": "node at a link's end; one for each link",
    "driver": "emulate or simulate; one for each exporter",
    "fabric": "the topology's name; one for each exporter",
    "fault": "kind of fault or impairment; as many as were on the link or rank",
    "link": "as in SOURCE->TARGET; as many as links",
    "port": "a link that leaves the switch, by its name",
    "priority": "of the traffic class, 0 to 7",
    "python": "version; one for each exporter",
    "rank": "world rank; as many as ranks",
    "ranks": "number of ranks; one for each exporter",
    "reason": "order, backpressure or late_call",
    "role": "accelerator or switch; all under simulate",
    "seed": "one for each exporter",
    "session": "the session's number in hexadecimal; one for each exporter",
    "size_class": "one of SIZE_CLASSES",
    "src": "node at a link's beginning; one for each link",
    "status": "ok or aborted",
    "switch": "name of a node that forwards",
    "tier": "hops from the nearest rank to the link's upper end, 1 at accelerators; a few",
    "version": "emu's; one for each exporter",
}
"""Label -> its values, and how many there can be."""

_C, _G, _H, _I = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.INFO
_M, _W = Clock.MODEL, Clock.WALL
_CALL = ("collective", "algorithm", "size_class")
_QUEUE = ("switch", "port", "priority")


def _metric(name: str, kind: Kind, words: str, labels: tuple[str, ...] = (), clock: Clock = Clock.NONE) -> Metric:
    return Metric(name=f"emu_{name}", kind=kind, words=words, labels=labels, clock=clock)


_METRICS: Final = (
    # the run, its actors, and how far to trust it
    _metric("build_info", _I, "Version of emu", ("version", "python")),
    _metric("run_info", _I, "The session", ("session", "fabric", "driver", "ranks", "seed")),
    _metric("dilation_ratio", _G, "Wall seconds for a model second; 0 is unpaced"),
    _metric("model_time_seconds_total", _C, "How far the ranks here have got: what other seconds are a part of", (), _M),
    _metric("actor_up", _G, "1 where the actor answers or is only slow, 0 where it died", ("actor",)),
    _metric(
        "exporter_last_update_timestamp_seconds", _G, "Unix time at which the actor's values were read", ("actor",), _W
    ),
    _metric("pacer_lag_seconds", _H, "How late an actor's loop took up an event that was due", ("role",), _W),
    _metric(
        "fidelity_violations_total", _C,
        "What the host did to the run: frames out of order, sockets full, calls that ended over 2 % late on a rank", ("reason",),
    ),
    # collectives
    _metric("collective_operations_total", _C, "Calls, once for all ranks", ("collective", "algorithm", "status")),
    _metric("collective_bytes_total", _C, "Sizes of completed calls as nccl-tests counts them", ("collective", "algorithm")),
    _metric("collective_duration_seconds", _H, "From a rank's call to its completion; one for each rank and call", _CALL, _M),
    _metric(
        "collective_bus_bandwidth_bytes_per_second", _G, "Bus bandwidth of the last call, at the rank that completed last",
        _CALL, _M,
    ),
    _metric("collective_arrival_skew_seconds", _H, "From the first rank's start of a call to the last's", ("collective",), _M),
    # ranks
    _metric("rank_stall_seconds_total", _C, "Time that calls took, by what it was spent on", ("rank", "cause"), _M),
    _metric("rank_compute_seconds_total", _C, "Declared computation", ("rank",), _M),
    _metric("rank_last_arrivals_total", _C, "Calls that this rank was the last to start", ("rank",)),
    _metric("rank_fault_active", _G, "1 while a fault is on the rank, 0 after", ("rank", "fault")),
    _metric("rank_cnp_packets_total", _C, "Congestion notifications", ("rank", "direction")),
    _metric("rank_retransmitted_packets_total", _C, "Packets sent again end to end", ("rank",)),
    _metric("rank_ack_timeouts_total", _C, "Retransmission timeouts", ("rank",)),
    _metric("rank_discarded_packets_total", _C, "Packets that found the receive buffer full", ("rank",)),
    # links
    _metric("link_info", _I, "A directed link", ("link", "src", "dst", "tier")),
    _metric("link_capacity_bytes_per_second", _G, "Rate without faults", ("link",), _M),
    _metric("link_transmit_bytes_total", _C, "Bytes on the wire: payload, flags, headers, what was sent again", ("link",)),
    _metric("link_busy_seconds_total", _C, "Time for which bytes took the wire", ("link",), _M),
    _metric("link_queueing_seconds_total", _C, "Time that frames waited for the wire, summed over frames", ("link",), _M),
    _metric("link_lost_packets_total", _C, "Packets that a damaged link lost", ("link",)),
    _metric("link_delay_seconds", _H, "From a frame's head at a link to its head at the far end", ("tier",), _M),
    _metric(
        "link_delay_variation_seconds", _H, "Part of the delay that the link alone does not take: waits and impairments",
        ("tier",), _M,
    ),
    _metric("link_fault_active", _G, "1 while a fault or an impairment is on the link, 0 after", ("link", "fault")),
    # queues of switches, on fabrics with a switching
    _metric("switch_queue_bytes", _G, "Bytes that wait", _QUEUE),
    _metric("switch_queue_peak_bytes", _G, "The most that waited at once", _QUEUE),
    _metric("switch_pfc_pause_frames_total", _C, "Pause frames", (*_QUEUE, "direction")),
    _metric("switch_pfc_pause_seconds_total", _C, "Time paused; sent: for which the far end was", (*_QUEUE, "direction"), _M),
    _metric("switch_pfc_pause_transitions_total", _C, "Times that pausing began", (*_QUEUE, "direction")),
    _metric("switch_pfc_watchdog_storms_total", _C, "Pause storms that the watchdog detected", _QUEUE),
    _metric(
        "switch_pfc_watchdog_restorations_total", _C, "Pause storms at any port of the switch that the watchdog found over",
        ("switch", "priority"),
    ),
    _metric("switch_credit_wait_seconds_total", _C, "Time with data and a free wire but no credit", _QUEUE, _M),
    _metric("switch_ecn_marked_packets_total", _C, "Packets marked by ECN", _QUEUE),
    _metric("switch_discarded_packets_total", _C, "Packets dropped: the buffer was full, or by the watchdog", _QUEUE),
    _metric("switch_trimmed_packets_total", _C, "Packets cut to their header", _QUEUE),
    # what it points to
    _metric(
        "diagnosis_findings_total", _C, "Times that the counters began to point to a cause", ("cause", "component_kind")
    ),
)  # fmt: skip

CATALOGUE: Final = {metric.name: metric for metric in _METRICS}
"""Every metric, by its full name, in the order of the exposition."""
