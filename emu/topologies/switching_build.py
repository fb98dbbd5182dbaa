"""From what a user wrote to the switching of a topology: what is left out is filled in by formulas.

Law: a pure function of the two; what was given is taken as it is (``switching_checks.py`` judges it).
The order matters: marking by rate, then the quantum that resolves the thresholds, then headroom and credits that need
the quantum, then the buffers that hold them.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

from emu.errors import ConfigError
from emu.topologies import headroom as formulas
from emu.topologies.extensions import extension
from emu.topologies.folder import file_of
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Marking, Recovery, Switching, TrafficClass, Watchdog
from emu.topologies.switching_file import ClassEntry, FabricEntry, Written

_LINK_LEVEL: Final = frozenset({"nvlink", "ualink"})
_STEPS_PER_THRESHOLD: Final = 8
_STEPS_PER_KMIN: Final = 4
_RECEIVE_PACKETS: Final = 4
_LEAST_REORDER_PACKETS: Final = 8


def build_switching(written: Written, topology: Topology) -> Switching:
    """The switching of ``topology``, unchecked but for the names in it and for what would be lost here.  Raises ConfigError."""
    fabric, entries = written.fabric, written.classes
    if not topology.links:
        raise ConfigError(f"{written.where}: a fabric without links has nothing to switch; use 2 ranks or more, or no switching")
    if fabric.watchdog_restoration is not None and fabric.watchdog_detection is None:
        raise ConfigError(f"{written.where}: watchdog_restoration without watchdog_detection does nothing; give both, or none")
    delay_bytes = formulas.bandwidth_delay_bytes(topology)
    try:
        keeps_together = keeps_flows_together(fabric.balancing)
        classes = tuple(_class(entry, fabric, topology, delay_bytes, keeps_together=keeps_together) for entry in entries)
    except ConfigError as error:
        raise ConfigError(f"{written.where}: {error}") from None
    quantum = fabric.quantum or formulas.quantum_bytes(topology, _quantum_limits(fabric, classes))
    response_ps = formulas.pause_response_ps(topology.links) if fabric.pause_response is None else fabric.pause_response
    credits = formulas.credit_bytes(topology, quantum_bytes=quantum)
    classes = tuple(_with_credits(traffic_class, credits) for traffic_class in classes)
    headroom = fabric.headroom
    if headroom is None:
        pauses = any(c.discipline is Discipline.PAUSE for c in classes)
        headroom = formulas.headroom_bytes(topology, quantum_bytes=quantum, response_ps=response_ps) if pauses else 0
    packet = max(link.wire_bytes(quantum) for link in topology.links)
    switching = Switching(
        classes=classes,
        quantum_bytes=quantum,
        buffer_bytes=fabric.buffer or 0,
        alpha=fabric.alpha,
        reserved_bytes=fabric.reserved,
        headroom_bytes=headroom,
        xon_offset_bytes=fabric.xon_offset,
        receive_buffer_bytes=fabric.receive_buffer or _receive_buffer_bytes(headroom, fabric, delay_bytes, packet),
        pause_response_ps=response_ps,
        trim_bytes=fabric.trim_size,
        watchdog=_watchdog(fabric),
        balancing=fabric.balancing,
        balancing_parameters=tuple((key, value) for key, value in fabric.balancing_parameters if not isinstance(value, Fraction)),
        n_queue_pairs=fabric.queue_pairs,
        n_lanes=fabric.lanes,
        link_retry=any(e.discipline in _LINK_LEVEL for e in entries) if fabric.link_retry is None else fabric.link_retry,
        reorder_packets=_reorder_packets(fabric, delay_bytes, quantum, keeps_together=keeps_together),
        reroute_ps=fabric.reroute,
    )
    if fabric.buffer is not None:
        return switching
    pool = _STEPS_PER_THRESHOLD * -(-packet * fabric.alpha.denominator // fabric.alpha.numerator)
    claimed = claimed_bytes(switching) * formulas.most_ports(topology)[1]
    return replace(switching, buffer_bytes=formulas.buffer_bytes(topology, claimed_bytes=claimed, pool_bytes=pool))


def _receive_buffer_bytes(headroom_bytes: int, fabric: FabricEntry, delay_bytes: int, packet_bytes: int) -> int:
    """Room above the point of pausing for what is still under way, and as much below that of resuming, so that a slow adapter
    does not run dry before data comes again; at least a bandwidth-delay product; and a few packets."""
    return max(2 * headroom_bytes + fabric.xon_offset, delay_bytes) + _RECEIVE_PACKETS * packet_bytes


def keeps_flows_together(balancing: str) -> bool:
    """Whether a flow keeps its way under a balancing, so that its packets stay in order.  Raises ConfigError."""
    return extension("balancing", "balancing", balancing).flag("KEEPS_FLOWS_TOGETHER")


def claimed_bytes(switching: Switching) -> int:
    """What one port claims of the packet memory: reserved and headroom of its queues."""
    per_lane = sum(
        switching.reserved_bytes + (switching.headroom_bytes if traffic_class.discipline is Discipline.PAUSE else 0)
        for traffic_class in switching.classes
        if traffic_class.discipline is not Discipline.CREDIT
    )
    return per_lane * switching.n_lanes


def _class(entry: ClassEntry, fabric: FabricEntry, topology: Topology, delay_bytes: int, *, keeps_together: bool) -> TrafficClass:
    discipline = Discipline.CREDIT if entry.discipline in _LINK_LEVEL else Discipline(entry.discipline)
    return TrafficClass(
        name=entry.name,
        priority=entry.priority,
        discipline=discipline,
        recovery=_recovery(entry, fabric, discipline, keeps_together=keeps_together),
        control=entry.congestion_control,
        control_parameters=entry.control_parameters,
        strict=entry.strict,
        weight=entry.weight,
        marking=_marking(entry, topology, delay_bytes),
        trims=entry.trims,
        credit_bytes=entry.credits or 0,
        timeout_ps=entry.timeout,
    )


def _recovery(entry: ClassEntry, fabric: FabricEntry, discipline: Discipline, *, keeps_together: bool) -> Recovery:
    if entry.recovery != "auto":
        return Recovery(entry.recovery)
    if discipline is not Discipline.DROP and fabric.watchdog_detection is None:
        return Recovery.NONE
    return Recovery.GO_BACK_N if keeps_together and not entry.trims else Recovery.SELECTIVE_REPEAT


def _marking(entry: ClassEntry, topology: Topology, delay_bytes: int) -> Marking | None:
    """What is given, over what the congestion control wants."""
    given = (entry.kmin, entry.kmax, entry.pmax)
    control = extension("congestion", "congestion_control", entry.congestion_control)
    rule = control.rule("MARKING")
    if rule is None and given == (None, None, None):
        return None
    mtu = max(link.mtu_bytes for link in topology.links)
    rate_bps = formulas.access_rate_bps(topology)
    usual = (rule or formulas.dcqcn_marking)(rate_bps=rate_bps, delay_bytes=delay_bytes, mtu_bytes=mtu)
    if not isinstance(usual, Marking):
        raise ConfigError(f"{control.written}: MARKING of {file_of(control.module)} returned {usual!r}; return a Marking")
    return Marking(
        kmin_bytes=entry.kmin or usual.kmin_bytes, kmax_bytes=entry.kmax or usual.kmax_bytes, pmax=entry.pmax or usual.pmax
    )


def _quantum_limits(fabric: FabricEntry, classes: tuple[TrafficClass, ...]) -> list[int]:
    """So many packets resolve each threshold that is known by now."""
    limits = [c.marking.kmin_bytes // _STEPS_PER_KMIN for c in classes if c.marking is not None]
    limits += [c.credit_bytes // _STEPS_PER_THRESHOLD for c in classes if c.credit_bytes]
    if fabric.buffer is not None and any(c.discipline is not Discipline.CREDIT for c in classes):
        limits.append(int(fabric.alpha * fabric.buffer) // _STEPS_PER_THRESHOLD)
    return limits


def _with_credits(traffic_class: TrafficClass, credits: int) -> TrafficClass:
    if traffic_class.discipline is not Discipline.CREDIT or traffic_class.credit_bytes:
        return traffic_class
    return replace(traffic_class, credit_bytes=credits)


def _watchdog(fabric: FabricEntry) -> Watchdog | None:
    detection_ps = fabric.watchdog_detection
    if detection_ps is None:
        return None
    restoration_ps = detection_ps if fabric.watchdog_restoration is None else fabric.watchdog_restoration
    return Watchdog(detection_ps=detection_ps, restoration_ps=restoration_ps)


def _reorder_packets(fabric: FabricEntry, delay_bytes: int, quantum: int, *, keeps_together: bool) -> int:
    if fabric.reorder_packets is not None:
        return fabric.reorder_packets
    return 0 if keeps_together else max(_LEAST_REORDER_PACKETS, 2 * delay_bytes // quantum)
