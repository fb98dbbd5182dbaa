"""Diagnose: from an observation to a ranked list of findings.

Law: a pure function of what a monitoring system sees (:mod:`emu.telemetry.observation`).  A run in which nothing is wrong has no
finding.  What failed outright comes first; what the host did is never put down to the fabric; where frames were out of order,
nothing else is said, as model times are not to be trusted then.

Lost is what calls waited for their last rank, what transfers took beyond the expected, and what a better choice would have saved.
What is lost in transfers is divided among the findings on the way of data, in proportion to what each can account for.
How late the host was is lost too, and ranked by its size: lateness alone leaves model times as they are, and what they show.
Ideas: outliers among equals (Minder), who arrives last and who waits (Mycroft), measured against modelled links (C4).
"""

from __future__ import annotations

from emu.diagnosis.finding import Cause, Evidence, Finding, Suspicion, confidence
from emu.diagnosis.host import suspect_failure, suspect_pace, suspect_stops
from emu.diagnosis.limits import LIMITS, Limits
from emu.diagnosis.links import suspect_links
from emu.diagnosis.ranks import suspect_ranks
from emu.diagnosis.steps import Steps
from emu.diagnosis.traffic import suspect_choices, suspect_ports, suspect_traffic
from emu.telemetry.observation import Observation
from emu.units import format_time


def diagnose(seen: Observation, limits: Limits = LIMITS) -> tuple[Finding, ...]:
    """What is wrong, the costliest first; empty where nothing is."""
    steps = Steps(seen)
    stops, pace = list(suspect_stops(steps)), list(suspect_pace(steps, limits))
    if seen.host.order_weight_ps > limits.order_share * max(1, steps.length_ps):
        return tuple(_finding(one, 0.0) for one in (*stops, *pace))
    certain = [*stops, *suspect_failure(steps)]
    found = [*suspect_links(steps, limits), *suspect_ranks(steps, limits), *suspect_traffic(steps, limits)]
    if not certain and not pace and not found and steps.more_ps > limits.unknown_share * steps.expected_ps:
        found += list(suspect_ports(steps)) or [_unknown(steps, limits)]
    found += [*pace, *suspect_choices(steps, limits)]
    return (*(_finding(one, 0.0) for one in certain), *_ranked(steps, found))


def _ranked(steps: Steps, found: list[Suspicion]) -> list[Finding]:
    apart_ps = sum(one.lost_ps for one in found if one.cause in (Cause.ALGORITHM, Cause.RANK_ORDER, Cause.OVERLOADED))
    total_ps = steps.wait_ps + steps.more_ps + apart_ps
    on_the_way_ps = sum(one.lost_ps for one in found if one.in_transfer)
    findings = []
    for one in found:
        lost_ps = steps.more_ps * one.lost_ps / max(1, on_the_way_ps) if one.in_transfer else one.lost_ps
        findings.append(_finding(one, min(1.0, lost_ps / max(1, total_ps))))
    return sorted(findings, key=lambda finding: (-finding.share, -finding.confidence, finding.component))


def _finding(one: Suspicion, share: float) -> Finding:
    return Finding(
        cause=one.cause,
        component=one.component,
        evidence=one.evidence,
        share=share,
        confidence=min(0.99, one.confidence),
        flows=one.flows,
    )


def _unknown(steps: Steps, limits: Limits) -> Suspicion:
    share = steps.more_ps / max(1, steps.expected_ps)
    return Suspicion(
        cause=Cause.UNKNOWN,
        component="fabric",
        evidence=Evidence(
            metric="transfers take",
            value=f"{format_time(steps.more_ps)} more",
            expected=format_time(steps.expected_ps),
            begin_ps=steps.begin_ps,
            end_ps=steps.end_ps,
        ),
        lost_ps=steps.more_ps,
        confidence=confidence(share, limits.unknown_share),
    )
