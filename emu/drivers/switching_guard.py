"""What must hold of a fabric with a ``switching`` and of the impairments on its links before a run starts.

Law: controls and policies take their parameters; what an impairment loses, somebody sends again; and a class that pauses
has the headroom for what an impairment delays.  So nothing hangs, and nothing lossless is lost, later on.
"""

from __future__ import annotations

from typing import cast

from emu.balancing.base import Place
from emu.congestion.base import Line, ReceiverControl, SenderControl
from emu.drivers.engine import ImpairmentTable
from emu.errors import ConfigError
from emu.topologies.extensions import extension
from emu.topologies.folder import file_of
from emu.topologies.graph import Topology
from emu.topologies.headroom import access_rate_bps, headroom_bytes, longest_round_trip_ps
from emu.topologies.switching import Discipline, Recovery, Switching


def check_run(topology: Topology, impairments: ImpairmentTable) -> None:
    """Raises ConfigError; a topology without switching passes."""
    switching = topology.switching
    if switching is None:
        return
    _check_parameters(topology, switching)
    _check_losses(topology, switching, impairments)
    if any(c.discipline is Discipline.PAUSE for c in switching.classes):
        _check_delays(topology, switching, impairments)


def _check_parameters(topology: Topology, switching: Switching) -> None:
    line = Line(
        rate_bps=access_rate_bps(topology),
        round_trip_ps=max(1, longest_round_trip_ps(topology)),
        quantum_bytes=switching.quantum_bytes,
        mtu_bytes=topology.links[0].mtu_bytes if topology.links else switching.quantum_bytes,
    )
    for traffic_class in switching.classes:
        control = extension("congestion", "congestion_control", traffic_class.control)
        found = control.build(line, dict(traffic_class.control_parameters))
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(f"{control.written}: {file_of(control.module)} built {found!r}; return (sender, receiver)")
        sender, receiver = cast("tuple[SenderControl, ReceiverControl]", found)
        if sender.asks != (receiver.admits is not None):
            raise ConfigError(f"{control.written}: a sender that asks needs a receiver that admits, and the other way round")
    place = Place(topology=topology, node=topology.ranks[0], seed=0)
    extension("balancing", "balancing", switching.balancing).build(place, dict(switching.balancing_parameters))


def _check_losses(topology: Topology, switching: Switching, impairments: ImpairmentTable) -> None:
    helpless = next((c for c in switching.classes if c.recovery is Recovery.NONE), None)
    if helpless is None or switching.link_retry:
        return
    for index, found in impairments.items():
        if any(impairment.loses for impairment, _ in found):
            raise ConfigError(
                f"loss on {topology.links[index].name}: class {helpless.name} has recovery = none, so what is lost never"
                " comes; set recovery = go_back_n or selective_repeat, or link_retry = true"
            )


def _check_delays(topology: Topology, switching: Switching, impairments: ImpairmentTable) -> None:
    added_ps = {}
    for index, found in impairments.items():
        delays = [impairment.most_delay_ps for impairment, _ in found]
        if any(delay is None for delay in delays):
            raise ConfigError(
                f"jitter without a bound on {topology.links[index].name}: no headroom is enough for a class that pauses;"
                " add bound=, for example bound=10us, or use discipline = drop or credit"
            )
        added_ps[index] = sum(delay or 0 for delay in delays)
    needed = headroom_bytes(
        topology,
        quantum_bytes=switching.quantum_bytes,
        response_ps=switching.pause_response_ps,
        added_ps=added_ps,
    )
    if any(added_ps.values()) and switching.headroom_bytes < needed:
        raise ConfigError(
            f"headroom = {switching.headroom_bytes} B is too little with the delays that impairments add;"
            f" use {needed} B or more, or less delay"
        )
