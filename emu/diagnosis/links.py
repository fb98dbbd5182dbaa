"""Links: which are slow, long, lossy or not always there, from their counters alone.

    slow       bytes over the time that they took the wire, against the configured rate
    long       mean time on the way, against the configured latency and what all links have on top of theirs
    lossy      packets lost
    down       found without a signal once; flapping: more often

Each direction of a cable is a link with counters of its own, so that a finding names the direction.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from emu.diagnosis.finding import Cause, Evidence, Suspicion, confidence
from emu.diagnosis.limits import Limits
from emu.diagnosis.steps import Steps
from emu.fabric.link import LinkStatistics
from emu.telemetry.observation import LinkSeen
from emu.units import PS_PER_SECOND, format_rate, format_time

ROUNDING_PS: Final = 4
"""A frame's time is rounded up, more than once where a rate changes; one without bytes, as a barrier's, still takes some."""


def suspect_links(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """Every link with something wrong; one may have several faults."""
    used = [(link, link.counted) for link in steps.seen.links if link.counted is not None and link.counted.frames]
    usual_ps = statistics.median_low([_added_ps(link, counted) for link, counted in used]) if used else 0
    for link, counted in used:
        for suspicion in (
            _slow(steps, link, counted, limits),
            _long(steps, link, counted, usual_ps, limits),
            _lossy(steps, link, counted),
            _down(steps, link, counted),
        ):
            if suspicion is not None:
                yield suspicion


def _evidence(steps: Steps, metric: str, value: str, expected: str) -> Evidence:
    return Evidence(metric=metric, value=value, expected=expected, begin_ps=steps.begin_ps, end_ps=steps.end_ps)


def _slow(steps: Steps, link: LinkSeen, counted: LinkStatistics, limits: Limits) -> Suspicion | None:
    sent_bps = 8 * counted.wire_bytes * PS_PER_SECOND // max(1, counted.busy_ps)
    missing = 1 - sent_bps / link.rate_bps
    lost_ps = counted.busy_ps - 8 * counted.wire_bytes * PS_PER_SECOND // link.rate_bps
    if missing <= limits.slow_share or lost_ps <= ROUNDING_PS * counted.frames:
        return None
    return Suspicion(
        cause=Cause.SLOW_LINK,
        component=link.name,
        evidence=_evidence(steps, "bytes / busy time", format_rate(sent_bps), format_rate(link.rate_bps)),
        lost_ps=lost_ps,
        confidence=confidence(missing, limits.slow_share),
    )


def _added_ps(link: LinkSeen, counted: LinkStatistics) -> int:
    return counted.latency_ps // counted.frames - link.latency_ps


def _long(steps: Steps, link: LinkSeen, counted: LinkStatistics, usual_ps: int, limits: Limits) -> Suspicion | None:
    more_ps = _added_ps(link, counted) - usual_ps
    limit_ps = limits.long_share * max(1, link.latency_ps)
    if more_ps <= limit_ps:
        return None
    mean_ps = counted.latency_ps // counted.frames
    return Suspicion(
        cause=Cause.LONG_LINK,
        component=link.name,
        evidence=_evidence(steps, "mean link delay", format_time(mean_ps), format_time(link.latency_ps)),
        lost_ps=more_ps * len(steps.steps),
        confidence=confidence(more_ps, limit_ps),
    )


def _lossy(steps: Steps, link: LinkSeen, counted: LinkStatistics) -> Suspicion | None:
    if not counted.lost_packets:
        return None
    n_packets = max(counted.lost_packets, counted.wire_bytes // link.packet_bytes)
    resent_ps = 8 * counted.resent_bytes * PS_PER_SECOND // link.rate_bps
    return Suspicion(
        cause=Cause.LOSSY_LINK,
        component=link.name,
        evidence=_evidence(steps, "lost packets", f"{counted.lost_packets} of {n_packets}", "none"),
        lost_ps=resent_ps + steps.more_ps // 2,  # the timeouts are the sender's, and not known here
        confidence=confidence(counted.lost_packets, 0.5),
    )


def _down(steps: Steps, link: LinkSeen, counted: LinkStatistics) -> Suspicion | None:
    if not counted.n_outages:
        return None
    often = counted.n_outages > 1
    times = f"{counted.n_outages} times" if often else "once"
    return Suspicion(
        cause=Cause.FLAPPING_LINK if often else Cause.LINK_DOWN,
        component=link.name,
        evidence=_evidence(steps, "link down", f"{times}, {format_time(counted.stalled_ps)} of waiting", "never"),
        lost_ps=counted.stalled_ps,
        confidence=confidence(counted.n_outages, 0.2),
    )
