"""What must hold of a fabric with a ``switching`` and of the impairments on its links before a run starts.

Law: controls and policies take their parameters; what an impairment loses, somebody sends again, and half of it comes at once; a
class that pauses has the headroom for what an impairment delays; no timer outlasts a run.
So nothing hangs, and nothing lossless is lost, later on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, cast

from emu.balancing.base import Place
from emu.congestion.base import Line, ReceiverControl, SenderControl
from emu.drivers.engine import ImpairmentTable
from emu.errors import ConfigError
from emu.impairments.base import BaseImpairment
from emu.topologies.extensions import extension
from emu.topologies.folder import file_of
from emu.topologies.graph import Link, Topology
from emu.topologies.headroom import access_rate_bps, headroom_bytes, longest_round_trip_ps
from emu.topologies.switching import Discipline, Recovery, Switching
from emu.units import FOREVER_PS, PS_PER_SECOND, format_time

MOST_LOST_SHARE: Final = 0.5
"""Of packets, on one link."""
LONGEST_TIME_PS: Final = FOREVER_PS // 4
"""A timer that starts in the midst of a run still ends within model time."""


def check_run(topology: Topology, impairments: ImpairmentTable) -> None:
    """Raises ConfigError; a topology without switching passes."""
    switching = topology.switching
    if switching is None:
        return
    _check_parameters(topology, switching)
    _check_times(switching)
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


def _check_times(switching: Switching) -> None:
    """A timer beyond the end of model time would stop the run in its midst."""
    times = [(f"class {c.name}: timeout", c.timeout_ps) for c in switching.classes if c.recovery is not Recovery.NONE]
    if switching.watchdog is not None:
        times.append(("watchdog_detection", switching.watchdog.detection_ps))
        times.append(("watchdog_restoration", switching.watchdog.restoration_ps))
    times += [("reroute", switching.reroute_ps), ("pause_response", switching.pause_response_ps)]
    for name, time_ps in times:
        if time_ps > LONGEST_TIME_PS:
            most = LONGEST_TIME_PS // PS_PER_SECOND
            raise ConfigError(f"{name} = {format_time(time_ps)} is longer than a run can be; use {most}s or less, say 1ms")


def _check_losses(topology: Topology, switching: Switching, impairments: ImpairmentTable) -> None:
    if switching.link_retry:
        return
    helpless = next((c for c in switching.classes if c.recovery is Recovery.NONE), None)
    for index, found in impairments.items():
        _check_loss_share(topology.links[index], switching, found)
        if helpless is not None and any(impairment.loses for impairment, _ in found):
            raise ConfigError(
                f"loss on {topology.links[index].name}: class {helpless.name} has recovery = none, so what is lost never"
                " comes; set recovery = go_back_n or selective_repeat, or link_retry = true"
            )


def _check_loss_share(link: Link, switching: Switching, found: Sequence[tuple[BaseImpairment, int | None]]) -> None:
    """A lost MTU loses its packet: where most packets of a quantum are lost, the quantum and not the loss makes the result."""
    kept = math.prod(1 - impairment.lost_share for impairment, _ in found)
    n_mtus = -(-switching.quantum_bytes // link.mtu_bytes)
    share = 1 - kept**n_mtus
    if n_mtus > 1 and share > MOST_LOST_SHARE:
        raise ConfigError(
            f"loss of {1 - kept:.3g} of the MTUs on {link.name}: a packet is lost with any of its {n_mtus} MTUs, which is"
            f" {100 * share:.0f} % of packets; set quantum = {link.mtu_bytes} (the MTU), or link_retry = true, or lose less"
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
