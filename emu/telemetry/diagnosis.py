"""Diagnosis: what a congestion report points to, in a word, where the cause is clear.

The rule, class by class.  A port is *held* when it was paused or without credits for at least 1 % of the time.  Who holds
a port is the node at its far end.  A node that is itself held on the way out passes on what others do to it; the cause
is where nobody holds on, or at an adapter that sent pauses of its own, though it forwards and is held (rings, tori):

    slow receiver   an adapter that holds its link and takes data in below the link's rate, or drops what it has no room for
    pause storm     an adapter that holds its link though it takes everything in at once; or the watchdog saw one
    few credits     as that, with credits: what is granted does not cover the link's round trip
    incast          a switch whose fullest egress queue, alone above half of the fullest, leads to an accelerator
    hot link        the same, and it leads to another switch: flows that share a link, or too few links
    congestion      a switch with several such queues

Where nothing is held, drops and trims, and where there are none, marks tell by the same words: of one port when at least
half of them are its, else ``congestion``.

A slow sender's own link fills no queue of a switch.  So where there is no word yet, or only ``congestion``, one link that
was busy for more than 95 % of the time, while the median of its kind (used links between nodes of the same kinds) was for less
than 60 %, is a hot link; or, when it leads to an accelerator and sent at the rate of its kind, an incast.

Not known: which flow filled a queue.  Where holds go round in a circle there is no end to find, and no word.
Idea: the wait-for graph of Hawkeye (SIGCOMM 2025), without its telemetry per flow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from emu.telemetry.congestion import AdapterReport, CongestionReport, PortReport
from emu.units import PS_PER_SECOND, format_bytes, format_rate

HELD_PERCENT = 1
"""A port that was held for less of the time tells nothing."""
BUSY_PERCENT = 95
IDLE_PERCENT = 60
"""A link that is busy for more than the one stands out when the median of its kind is for less than the other."""
SLOW_PERCENT = 90
"""A link that sends at less of the median rate of its kind is slow."""


class Cause(StrEnum):
    """In words that operators use."""

    SLOW_RECEIVER = "slow receiver"
    PAUSE_STORM = "pause storm"
    FEW_CREDITS = "few credits"
    INCAST = "incast"
    HOT_LINK = "hot link"
    CONGESTION = "congestion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, the node or link where it is, and what was seen."""

    cause: Cause
    where: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.cause} at {self.where}: {self.evidence}"


def diagnose(report: CongestionReport) -> tuple[Finding, ...]:
    """Every cause that is clear, each once; empty where there is none."""
    found: dict[tuple[Cause, str], Finding] = {}
    for name in dict.fromkeys(port.queue.class_name for port in report.ports):
        ports = [port for port in report.ports if port.queue.class_name == name]
        of_class = _from_holds(report, ports) or _from_counts(ports, _lost, "drops and trims")
        for finding in of_class or _from_counts(ports, _marked, "marks"):
            found.setdefault((finding.cause, finding.where), finding)
    if all(cause is Cause.CONGESTION for cause, _ in found) and (hot := _busiest(report)) is not None:
        found = {(hot.cause, hot.where): hot}
    for adapter in report.adapters:
        if adapter.counted.discarded_packets:
            finding = _slow(adapter, f"{adapter.counted.discarded_packets} packets found no room in its receive buffer")
            found.setdefault((finding.cause, finding.where), finding)
    for port in report.ports:
        if port.queue.watchdog_events:
            seen = f"the watchdog of {port.link} saw {port.queue.watchdog_events}"
            if not any(cause is Cause.PAUSE_STORM for cause, _ in found):
                found[Cause.PAUSE_STORM, port.peer] = Finding(cause=Cause.PAUSE_STORM, where=port.peer, evidence=seen)
    return tuple(found.values())


def words(findings: Sequence[Finding]) -> str:
    """The causes in a cell of a table: ``incast``, ``slow receiver, incast``, or ``-``."""
    return ", ".join(dict.fromkeys(str(finding.cause) for finding in findings)) or "-"


def places(findings: Sequence[Finding]) -> str:
    """As :func:`words`, with where: ``hot link s0->s4``, ``incast at s1->a0 (and 2 more)``, ``slow receiver a1``, or ``-``."""
    told = []
    for cause in dict.fromkeys(finding.cause for finding in findings):
        where = [finding.where for finding in findings if finding.cause is cause]
        at = "" if cause in (Cause.HOT_LINK, Cause.SLOW_RECEIVER) else "at "
        told.append(f"{cause} {at}{where[0]}" + (f" (and {len(where) - 1} more)" if len(where) > 1 else ""))
    return ", ".join(told) or "-"


def _busiest(report: CongestionReport) -> Finding | None:
    """The link that is busy while most of its kind are not, whether or not anything queues before it."""
    if not report.ports:
        return None
    links = {port.link: port for port in report.ports}.values()
    top = max(links, key=lambda port: port.busy_ps)
    kind = [port for port in links if _kind(port) == _kind(top) and port.busy_ps]
    if not kind:
        return None
    median_ps = statistics.median(port.busy_ps for port in kind)
    if 100 * top.busy_ps <= BUSY_PERCENT * report.elapsed_ps or 100 * median_ps >= IDLE_PERCENT * report.elapsed_ps:
        return None
    sent_bps = 8 * top.wire_bytes * PS_PER_SECOND // top.busy_ps
    usual_bps = statistics.median(port.rate_bps for port in kind)
    is_slow = 100 * sent_bps < SLOW_PERCENT * usual_bps
    return Finding(
        cause=Cause.INCAST if top.peer_is_accelerator and not is_slow else Cause.HOT_LINK,
        where=top.link,
        evidence=f"busy for {100 * top.busy_ps / report.elapsed_ps:.0f} % of the time at {format_rate(sent_bps)},"
        f" the median of its kind for {100 * median_ps / report.elapsed_ps:.0f} %",
    )


def _kind(port: PortReport) -> tuple[bool, bool]:
    return port.node_is_accelerator, port.peer_is_accelerator


def _from_holds(report: CongestionReport, ports: Sequence[PortReport]) -> list[Finding]:
    held = [port for port in ports if port.held_ps * 100 >= report.elapsed_ps * HELD_PERCENT and port.held_ps]
    adapters = {adapter.counted.name: adapter for adapter in report.adapters}
    passing_on = {port.node for port in held}
    found = []
    for holder in dict.fromkeys(port.peer for port in held):
        longest = max((port for port in held if port.peer == holder), key=lambda port: port.held_ps)
        seen = f"{longest.link} was held for {100 * report.held_share(longest):.1f} % of the time"
        adapter = adapters.get(holder)
        if adapter is not None and adapter.is_slow:
            found.append(_slow(adapter, seen))
        elif adapter is not None and adapter.counted.pauses_sent and longest.queue.pause_frames:
            stuck = Finding(cause=Cause.PAUSE_STORM, where=holder, evidence=seen)
            found.append(stuck if adapter.drain_rate_bps is None else _slow(adapter, seen))
        elif holder in passing_on:
            continue
        elif adapter is not None and not any(port.node == holder and port.queue.peak_queue_bytes for port in ports):
            cause = Cause.PAUSE_STORM if longest.queue.pause_frames else Cause.FEW_CREDITS
            found.append(Finding(cause=cause, where=holder, evidence=seen))
        else:
            finding = _at_switch(holder, [port for port in ports if port.node == holder], seen)
            found += [finding] if finding is not None else []
    return found


def _slow(adapter: AdapterReport, seen: str) -> Finding:
    drains = "" if adapter.drain_rate_bps is None else f"drains {format_rate(adapter.drain_rate_bps)} of "
    rates = f"{drains}{format_rate(adapter.line_rate_bps)}"
    return Finding(cause=Cause.SLOW_RECEIVER, where=adapter.counted.name, evidence=f"{rates}; {seen}")


def _at_switch(node: str, egress: Sequence[PortReport], seen: str) -> Finding | None:
    """The queue that fills the buffer of a node that nobody holds: a switch, or an accelerator that forwards."""
    fullest = max((port.queue.peak_queue_bytes for port in egress), default=0)
    if not fullest:
        return None
    full = [port for port in egress if 2 * port.queue.peak_queue_bytes >= fullest]
    peak = f"its queues reached {format_bytes(fullest)}; {seen}"
    if len(full) > 1:
        return Finding(cause=Cause.CONGESTION, where=node, evidence=f"{len(full)} of {peak}")
    return Finding(cause=_one_queue(full[0]), where=full[0].link, evidence=f"its queue reached {format_bytes(fullest)}; {seen}")


def _one_queue(port: PortReport) -> Cause:
    return Cause.INCAST if port.peer_is_accelerator else Cause.HOT_LINK


def _lost(port: PortReport) -> int:
    return port.queue.dropped_packets + port.queue.trimmed_packets


def _marked(port: PortReport) -> int:
    return port.queue.marked_packets


def _from_counts(ports: Sequence[PortReport], count: Callable[[PortReport], int], what: str) -> list[Finding]:
    total = sum(count(port) for port in ports)
    if not total:
        return []
    most = max(ports, key=count)
    if 2 * count(most) >= total:
        return [Finding(cause=_one_queue(most), where=most.link, evidence=f"{count(most)} of {total} {what}")]
    evidence = f"{total} {what} at {sum(1 for port in ports if count(port))} ports, most of them at {most.link}"
    return [Finding(cause=Cause.CONGESTION, where=most.node, evidence=evidence)]
