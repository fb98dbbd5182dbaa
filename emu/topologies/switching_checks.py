"""What must hold of a switching on its topology before a run starts, wherever it came from.

Law: lossless means lossless: a class that pauses gets the headroom that it needs, one with credits the way back for
them, and one that may lose packets a way to get them again; else the fabric is refused.
"""

from __future__ import annotations

from collections import Counter

from emu.errors import ConfigError
from emu.topologies import headroom as formulas
from emu.topologies.extensions import extension
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.switching import MOST_QUEUE_PAIRS, Discipline, Recovery, Switching, TrafficClass
from emu.topologies.switching_build import claimed_bytes, keeps_flows_together
from emu.units import format_bytes, format_time


def check_switching(topology: Topology, *, where: str) -> None:
    """Raises ConfigError with the first thing that does not hold; a topology without switching passes."""
    switching = topology.switching
    pauses = switching is not None and any(c.discipline is Discipline.PAUSE for c in switching.classes)
    stormy = next((node for node in topology.nodes if node.pause_storm is not None), None)
    if stormy is not None and not (pauses and stormy.kind is NodeKind.ACCELERATOR):
        raise ConfigError(f"{where}: storm at {stormy.name}: needs an accelerator, and a class with discipline = pause")
    if switching is None:
        return
    if not topology.links:
        raise ConfigError(f"{where}: a fabric without links has nothing to switch; use 2 ranks or more, or no switching")
    if switching.watchdog is not None and not pauses:
        raise ConfigError(
            f"{where}: the watchdog looks for pauses, and no class has discipline = pause; leave watchdog_detection out"
        )
    try:
        _check_links(topology, switching)
        _check_sizes(topology, switching)
        _check_classes(topology, switching)
        _check_balancing(switching)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_links(topology: Topology, switching: Switching) -> None:
    for link in topology.links:
        if link.latency_ps < 1:
            raise ConfigError(f"link {link.name}: latency = 0; packets that queue need at least 1ps, give the cable's")
    answers = [c.discipline for c in switching.classes if c.discipline is not Discipline.DROP]
    joined = {(link.source, link.target) for link in topology.links}
    lonely = next((link for link in topology.links if (link.target, link.source) not in joined), None)
    if answers and lonely is not None:
        names = [topology.nodes[node].name for node in (lonely.target, lonely.source)]
        raise ConfigError(
            f"link {lonely.name} has no way back for its {answers[0]}s;"
            f" add a link {names[0]}->{names[1]}, or use discipline = drop"
        )


def _check_sizes(topology: Topology, switching: Switching) -> None:
    mtu = max(link.mtu_bytes for link in topology.links)
    if switching.quantum_bytes < mtu:
        raise ConfigError(f"quantum = {switching.quantum_bytes} B is less than the MTU; use {mtu} B or more, or auto")
    if switching.alpha <= 0:
        raise ConfigError(f"alpha = {switching.alpha} must be more than 0, for example 1/8")
    least_mtu = min(link.mtu_bytes for link in topology.links)
    if any(c.trims for c in switching.classes) and not 1 <= switching.trim_bytes <= least_mtu:
        raise ConfigError(f"trim_size = {switching.trim_bytes} B; use 1 to {least_mtu} B, the smallest MTU, for example 64 B")
    packet = max(link.wire_bytes(switching.quantum_bytes) for link in topology.links)
    disciplines = {c.discipline for c in switching.classes}
    if Discipline.PAUSE in disciplines:
        needed = formulas.headroom_bytes(topology, quantum_bytes=switching.quantum_bytes, response_ps=switching.pause_response_ps)
        if switching.headroom_bytes < needed:
            raise ConfigError(
                f"headroom = {switching.headroom_bytes} B is too little to lose nothing: round trip, pause response and two"
                f" packets need {needed} B; use that or more, or auto, or a smaller quantum"
            )
        least = switching.headroom_bytes + packet
        if switching.receive_buffer_bytes < least:
            raise ConfigError(
                f"receive_buffer = {switching.receive_buffer_bytes} B must hold the headroom and a packet;"
                f" use {least} B or more, or auto"
            )
    if switching.receive_buffer_bytes < packet:
        raise ConfigError(f"receive_buffer = {switching.receive_buffer_bytes} B is less than a packet; use {packet} B or more")
    if disciplines != {Discipline.CREDIT}:
        _check_buffer(topology, switching, packet)


def _check_buffer(topology: Topology, switching: Switching, packet: int) -> None:
    node, n_ports = formulas.most_ports(topology)
    least, what = n_ports * claimed_bytes(switching), "reserved and headroom"
    if any(c.discipline is Discipline.DROP for c in switching.classes):
        # Else nothing would ever fit, however often it is sent again.
        least += max(packet, -(-packet * switching.alpha.denominator // switching.alpha.numerator))
        what = "reserved, headroom and a packet within alpha"
    if switching.buffer_bytes < least:
        raise ConfigError(
            f"buffer = {switching.buffer_bytes} B is too little: the {n_ports} ports of {topology.nodes[node].name} need"
            f" {least} B ({format_bytes(least)}) for {what}; use that or more, or auto, or smaller ones"
        )


def _check_classes(topology: Topology, switching: Switching) -> None:
    classes = switching.classes
    if not 1 <= len(classes) <= 8:
        raise ConfigError(f"{len(classes)} classes; use 1 to 8, one for each priority")
    for what, values in (("name", [c.name for c in classes]), ("priority", [c.priority for c in classes])):
        value, count = Counter(values).most_common(1)[0]
        if count > 1:
            raise ConfigError(f"two classes have {what} {value!r}; each needs its own")
    if wrong := next((c for c in classes if not 0 <= c.priority <= 7), None):
        raise ConfigError(f"class {wrong.name}: priority = {wrong.priority}; use 0 to 7")
    round_trip_ps = formulas.longest_round_trip_ps(topology) + formulas.packet_ps(topology, switching.quantum_bytes)
    packet = max(link.wire_bytes(switching.quantum_bytes) for link in topology.links)
    for traffic_class in classes:
        try:
            _check_class(traffic_class, packet, round_trip_ps)
            if switching.watchdog is not None and traffic_class.recovery is Recovery.NONE:
                raise ConfigError(
                    "the watchdog drops packets, recovery = none never sends them again; use go_back_n or selective_repeat"
                )
        except ConfigError as error:
            raise ConfigError(f"class {traffic_class.name}: {error}") from None


def _check_class(traffic_class: TrafficClass, packet: int, round_trip_ps: int) -> None:
    discipline, recovery, marking = traffic_class.discipline, traffic_class.recovery, traffic_class.marking
    if discipline is Discipline.DROP and recovery is Recovery.NONE:
        raise ConfigError(
            "discipline = drop loses packets, recovery = none never sends them again; use go_back_n or selective_repeat"
        )
    if traffic_class.trims and discipline is not Discipline.DROP:
        raise ConfigError(f"trims = true with discipline = {discipline}, which loses nothing; use discipline = drop")
    if discipline is Discipline.CREDIT and traffic_class.credit_bytes < packet:
        raise ConfigError(f"credits = {traffic_class.credit_bytes} B let no packet of {packet} B go; use that or more, or auto")
    if recovery is not Recovery.NONE and traffic_class.timeout_ps <= round_trip_ps:
        least = format_time(round_trip_ps)
        raise ConfigError(
            f"timeout = {format_time(traffic_class.timeout_ps)} is over before an answer can come; use more than {least}, say 1ms"
        )
    if marking is not None:
        if marking.kmin_bytes >= marking.kmax_bytes:
            raise ConfigError(f"kmin = {marking.kmin_bytes} B must be less than kmax = {marking.kmax_bytes} B; give both")
        if not 0 < marking.pmax <= 1:
            raise ConfigError(f"pmax = {marking.pmax} is a share; use more than 0, at most 1")
    extension("congestion", "congestion_control", traffic_class.control)


def _check_balancing(switching: Switching) -> None:
    keeps_together = keeps_flows_together(switching.balancing)
    if not 1 <= switching.n_queue_pairs <= MOST_QUEUE_PAIRS:
        raise ConfigError(f"queue_pairs = {switching.n_queue_pairs}; use 1 to {MOST_QUEUE_PAIRS}")
    if switching.n_lanes < 1:
        raise ConfigError(f"lanes = {switching.n_lanes}; use 1 or more")
    selective = any(c.recovery is Recovery.SELECTIVE_REPEAT for c in switching.classes)
    if selective and not keeps_together and switching.reorder_packets < 1:
        raise ConfigError(
            f"reorder_packets = 0 takes each packet that {switching.balancing} lets be overtaken for lost;"
            " use auto, or 1 or more (or KEEPS_FLOWS_TOGETHER = True in its file, if flows keep their way)"
        )
