"""A topology in figures, for ``emu fabrics NAME``.

Law: figures are computed from the graph, never read from a preset's text.  Those of a graph too large to search are what its
builder knows of the structure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from emu.topologies.extent import bisection_bps, diameter_links
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.switching import Discipline, Switching, TrafficClass
from emu.units import format_bytes, format_rate, format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClass:
    """Links (one direction each) that are alike."""

    n_links: int
    source: NodeKind
    target: NodeKind
    rate_bps: int
    latency_ps: int
    mtu_bytes: int
    header_bytes: int
    planes_bps: tuple[int, ...]
    window_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """``endpoint_rate_bps``: what an accelerator can send, over all its links, least and most.

    ``diameter_links``: links between the two accelerators furthest apart.  ``bisection_bps``: see
    :mod:`emu.topologies.extent`.  Both None where the graph is too large to search and its structure does not tell.
    ``spread``: flows over which the router deals one connection.
    """

    name: str
    description: str
    calibration: str
    n_ranks: int
    n_nodes: tuple[tuple[NodeKind, int], ...]
    n_links: int
    endpoint_rate_bps: tuple[int, int]
    diameter_links: int | None
    bisection_bps: int | None
    spread: int
    link_classes: tuple[LinkClass, ...]
    sources: tuple[tuple[str, str], ...]
    switching: tuple[tuple[str, str], ...] = ()
    """(what, how much) of what happens when a link is full; empty where buffers are infinite."""


def describe(topology: Topology) -> Description:
    """Plain data about ``topology``; takes up to about a second for large ones."""
    kinds = [node.kind for node in topology.nodes]
    accelerators = [i for i, kind in enumerate(kinds) if kind is NodeKind.ACCELERATOR]
    sent_bps = [sum(topology.links[link].rate_bps for link in out) for out in topology.out_links()]
    rates_bps = [sent_bps[i] for i in accelerators]
    known, cut_bps = topology.structure, bisection_bps(topology)
    classes = Counter(
        (
            kinds[link.source],
            kinds[link.target],
            link.rate_bps,
            link.latency_ps,
            link.mtu_bytes,
            link.header_bytes,
            link.planes_bps,
            link.window_bytes,
        )
        for link in topology.links
    )
    return Description(
        name=topology.name,
        description=topology.description,
        calibration=topology.calibration,
        n_ranks=topology.n_ranks,
        n_nodes=tuple(Counter(kinds).items()),
        n_links=len(topology.links),
        endpoint_rate_bps=(min(rates_bps), max(rates_bps)),
        diameter_links=diameter_links(topology) if known.diameter_links is None else known.diameter_links,
        bisection_bps=known.bisection_bps if cut_bps is None else cut_bps,
        spread=topology.router.spread,
        link_classes=tuple(
            LinkClass(
                n_links=count,
                source=source,
                target=target,
                rate_bps=rate_bps,
                latency_ps=latency_ps,
                mtu_bytes=mtu_bytes,
                header_bytes=header_bytes,
                planes_bps=planes_bps,
                window_bytes=window_bytes,
            )
            for (
                source,
                target,
                rate_bps,
                latency_ps,
                mtu_bytes,
                header_bytes,
                planes_bps,
                window_bytes,
            ), count in classes.items()
        ),
        sources=topology.sources,
        switching=() if topology.switching is None else describe_switching(topology.switching),
    )


def scaled(whole: Description, part: Description) -> str:
    """What ``part``, a smaller instance of ``whole``, does not keep of what a rank sees of it: a bisection may lack 0.5 %."""
    told = []
    if part.endpoint_rate_bps != whole.endpoint_rate_bps:
        least, most = (format_rate(rate_bps) for rate_bps in part.endpoint_rate_bps)
        told.append(f"an accelerator sends {least if least == most else f'{least} to {most}'}")
    if part.bisection_bps is None or whole.bisection_bps is None:
        told.append("bisection not known")
    elif abs((share := part.bisection_bps * whole.n_ranks / (whole.bisection_bps * part.n_ranks)) - 1) > 0.005:
        told.append(f"{share:.3g} times the bisection per rank")
    if part.diameter_links != whole.diameter_links:
        told.append(f"diameter {part.diameter_links} links")
    return ", ".join(told) or "all kept"


def describe_switching(switching: Switching) -> tuple[tuple[str, str], ...]:
    """(what, how much), the classes first; with what formulas filled in."""
    facts = [(f"class {c.name}", _describe_class(c)) for c in switching.classes]
    facts.append(("packet", f"{format_bytes(switching.quantum_bytes)} of payload (quantum)"))
    disciplines = {c.discipline for c in switching.classes}
    if disciplines != {Discipline.CREDIT}:
        own = f"{format_bytes(switching.reserved_bytes)} reserved for each port and class"
        facts.append(("buffer", f"{format_bytes(switching.buffer_bytes)}, alpha {switching.alpha}, {own}"))
        facts.append(("receive buffer", f"{format_bytes(switching.receive_buffer_bytes)} for each link, class and lane"))
    if Discipline.PAUSE in disciplines:
        resume = f"resumes {format_bytes(switching.xon_offset_bytes)} below the threshold"
        response = f"obeyed after {format_time(switching.pause_response_ps)}"
        facts.append(("pauses", f"{format_bytes(switching.headroom_bytes)} of headroom, {resume}, {response}"))
    pairs, lanes = switching.n_queue_pairs, switching.n_lanes
    ways = f"{switching.balancing}, {pairs} queue pair{'s' if pairs > 1 else ''}, {lanes} lane{'s' if lanes > 1 else ''}"
    facts.append(("balancing", f"{ways}, reroute {'never' if not switching.reroute_ps else format_time(switching.reroute_ps)}"))
    if switching.link_retry:
        facts.append(("links", "repeat what they damaged"))
    if switching.watchdog is not None:
        detection, restoration = switching.watchdog.detection_ps, switching.watchdog.restoration_ps
        facts.append(("watchdog", f"detects after {format_time(detection)}, restores after {format_time(restoration)}"))
    return tuple(facts)


def switching_line(switching: Switching) -> str:
    """In one line what two disciplines may differ in: buffer or credits, balancing, recovery, packets, congestion control."""
    classes = switching.classes
    disciplines = {c.discipline for c in classes}
    room = [] if disciplines == {Discipline.CREDIT} else [f"buffer {format_bytes(switching.buffer_bytes)}"]
    granted = dict.fromkeys(format_bytes(c.credit_bytes) for c in classes if c.discipline is Discipline.CREDIT)
    room += [f"credits {'/'.join(granted)} a link"] if granted else []
    recovery = "/".join(dict.fromkeys(str(c.recovery) for c in classes))
    control = "/".join(dict.fromkeys(c.control for c in classes))
    ways = f"balancing {switching.balancing}, recovery {recovery}"
    return f"{', '.join(room)}, {ways}, quantum {format_bytes(switching.quantum_bytes)}, congestion control {control}"


def _describe_class(traffic_class: TrafficClass) -> str:
    scheduled = "strict" if traffic_class.strict else f"weight {traffic_class.weight}"
    words = [f"priority {traffic_class.priority} ({scheduled})", str(traffic_class.discipline)]
    if traffic_class.discipline is Discipline.CREDIT:
        words[-1] += f" {format_bytes(traffic_class.credit_bytes)} a link"
    if traffic_class.trims:
        words[-1] += " with trimming"
    words.append(f"congestion control {traffic_class.control}")
    if (marking := traffic_class.marking) is not None:
        limits = f"{format_bytes(marking.kmin_bytes)} to {format_bytes(marking.kmax_bytes)}"
        words.append(f"ECN {limits} up to {float(marking.pmax):g}")
    words.append(f"recovery {traffic_class.recovery}")
    return ", ".join(words)
