"""Links: which are slow, long, lossy or not always there, from their counters alone.

    slow       bytes over the time that they took the wire, against the configured rate
    long       mean time on the way, against the configured latency and what all links have on top of theirs
    lossy      packets lost
    down       found without a signal once; flapping: more often

Each direction of a cable is a link with counters of its own, so that a finding names the direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from emu.diagnosis.finding import Cause, Suspicion, confidence
from emu.diagnosis.limits import Limits
from emu.diagnosis.steps import Steps
from emu.diagnosis.windows import Window
from emu.units import PS_PER_SECOND, format_rate, format_time

ROUNDING_PS: Final = 4
"""A frame's time is rounded up, more than once where a rate changes; one without bytes, as a barrier's, still takes some."""


def suspect_links(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """Every link with something wrong; one may have several faults."""
    windows = steps.windows
    for link in windows.whole.links:
        for rule in (_slow, _long, _lossy, _down):
            suspicion = windows.tell(partial(rule, steps, limits, link))
            if suspicion is not None:
                yield suspicion


def _slow(steps: Steps, limits: Limits, index: int, window: Window) -> Suspicion | None:
    link, counted = steps.seen.links[index], window.links.get(index)
    if counted is None:
        return None
    sent_bps = 8 * counted.wire_bytes * PS_PER_SECOND // max(1, counted.busy_ps)
    missing = 1 - sent_bps / link.rate_bps
    lost_ps = counted.busy_ps - 8 * counted.wire_bytes * PS_PER_SECOND // link.rate_bps
    if missing <= limits.slow_share or lost_ps <= ROUNDING_PS * counted.frames:
        return None
    return Suspicion(
        cause=Cause.SLOW_LINK,
        component=link.name,
        evidence=window.evidence("bytes / busy time", format_rate(sent_bps), format_rate(link.rate_bps)),
        lost_ps=lost_ps,
        confidence=confidence(missing, limits.slow_share),
    )


def _long(steps: Steps, limits: Limits, index: int, window: Window) -> Suspicion | None:
    link, counted = steps.seen.links[index], window.links.get(index)
    if counted is None or (counted.frames < limits.least_frames and window is not steps.windows.whole):
        return None
    more_ps = window.delay_ps(index) - link.latency_ps - window.usual_ps
    limit_ps = limits.long_share * max(1, link.latency_ps)
    if more_ps <= limit_ps:
        return None
    return Suspicion(
        cause=Cause.LONG_LINK,
        component=link.name,
        evidence=window.evidence("mean link delay", format_time(window.delay_ps(index)), format_time(link.latency_ps)),
        lost_ps=more_ps * sum(window.begin_ps < step.end_ps <= window.end_ps for step in steps.steps),
        confidence=confidence(more_ps, limit_ps),
    )


def _lossy(steps: Steps, limits: Limits, index: int, window: Window) -> Suspicion | None:
    link, counted = steps.seen.links[index], window.links.get(index)
    if counted is None or not counted.lost_packets:
        return None
    n_packets = max(counted.lost_packets, counted.wire_bytes // link.packet_bytes)
    resent_ps = 8 * counted.resent_bytes * PS_PER_SECOND // link.rate_bps
    return Suspicion(
        cause=Cause.LOSSY_LINK,
        component=link.name,
        evidence=window.evidence("lost packets", f"{counted.lost_packets} of {n_packets}", "none"),
        lost_ps=resent_ps + steps.more_ps // 2,  # the timeouts are the sender's, and not known here
        confidence=confidence(counted.lost_packets, 0.5),
    )


def _down(steps: Steps, limits: Limits, index: int, window: Window) -> Suspicion | None:
    link, counted = steps.seen.links[index], window.links.get(index)
    if counted is None or not counted.n_outages:
        return None
    often = counted.n_outages > 1
    times = f"{counted.n_outages} times" if often else "once"
    return Suspicion(
        cause=Cause.FLAPPING_LINK if often else Cause.LINK_DOWN,
        component=link.name,
        evidence=window.evidence("link down", f"{times}, {format_time(counted.stalled_ps)} of waiting", "never"),
        lost_ps=counted.stalled_ps,
        confidence=confidence(counted.n_outages, 0.2),
    )
