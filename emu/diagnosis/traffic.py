"""Traffic: what goes over the links that no call asked for, where it meets the calls, and choices that do not fit the fabric.

What the calls send over each link is known from their schedules and routes.  A node that sends more has something else to send,
and one that receives more gets it; bytes tell who sends to whom.  One such pair is background traffic; several senders that meet
at one receiver congest the port before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Final

from emu.diagnosis.finding import Cause, Evidence, Suspicion, confidence
from emu.diagnosis.limits import Limits
from emu.diagnosis.steps import Steps
from emu.telemetry.diagnosis import Cause as PortCause
from emu.telemetry.diagnosis import diagnose as diagnose_ports
from emu.units import PS_PER_SECOND, format_bytes, format_time

MOST_WAYS: Final = 10_000
"""Of joining sources with sinks; beyond, none is tried."""


def _evidence(steps: Steps, metric: str, value: str, expected: str) -> Evidence:
    return Evidence(metric=metric, value=value, expected=expected, begin_ps=steps.begin_ps, end_ps=steps.end_ps)


def suspect_traffic(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """Traffic of nobody's call, and counters that do not go with the calls."""
    seen = steps.seen
    complete = sum(len(step.start_ps) for step in steps.steps) == len(seen.timings)
    if seen.failure is not None or not complete or any(step.expected is None for step in steps.steps):
        return  # what the calls sent is not known
    planned = _planned_bytes(steps)
    extra: dict[str, int] = {}
    for link, wire_bytes in zip(seen.links, planned, strict=True):
        if link.counted is None:
            return
        extra[link.name] = link.counted.wire_bytes - link.counted.resent_bytes - wire_bytes
    over, under = _ends(steps, extra, planned, limits)
    if over and under:
        for sources, sink in _flows(over, under, limits):
            yield _background(steps, sources, sink, sum(over[source] for source in sources), extra, limits)
    elif sum(extra.values()) < -limits.extra_share * sum(planned):
        worst = min(extra, key=lambda name: extra[name])
        yield Suspicion(
            cause=Cause.CONFLICTING,
            component=worst,
            evidence=_evidence(steps, "bytes sent", f"{format_bytes(-sum(extra.values()))} less than the calls", "as much"),
            lost_ps=0,
            confidence=0.5,
        )


def _ends(steps: Steps, extra: dict[str, int], planned: list[int], limits: Limits) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes beyond those of the calls, by the rank's node that sends or receives them.

    Where ranks forward, only what a node sends beyond what it receives is known to be its own.
    """
    links, ends = steps.seen.links, {rank.node for rank in steps.seen.ranks}
    forwards = any(link.source in ends and link.target in ends for link in links)
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    usual: Counter[str] = Counter()
    for link, wire_bytes in zip(links, planned, strict=True):
        sent[link.source] += extra[link.name]
        received[link.target] += extra[link.name]
        usual[link.source] += wire_bytes
    resent = 2 * steps.seen.congestion.retransmitted_bytes if steps.seen.congestion is not None else 0
    over, under = {}, {}
    for node in sorted(ends):
        own = sent[node] - received[node] if forwards else sent[node]
        taken = received[node] - sent[node] if forwards else received[node]
        least = limits.extra_share * usual[node] + resent
        if own > least:
            over[node] = own
        if taken > least:
            under[node] = taken
    return over, under


def _flows(over: dict[str, int], under: dict[str, int], limits: Limits) -> list[tuple[tuple[str, ...], str]]:
    """Who sends to whom: each source to one sink, so that bytes agree; where they do not, all to the largest sink."""
    sources, sinks = sorted(over), sorted(under)
    if len(sinks) ** len(sources) <= MOST_WAYS:
        for way in product(sinks, repeat=len(sources)):
            sums = Counter[str]()
            for source, sink in zip(sources, way, strict=True):
                sums[sink] += over[source] if source != sink else -under[sink]
            if all(abs(sums[sink] - under[sink]) <= 2 * limits.extra_share * under[sink] for sink in sinks):
                return [(tuple(s for s, its in zip(sources, way, strict=True) if its == sink), sink) for sink in sinks]
    sink = max(sinks, key=lambda node: under[node])
    return [(tuple(source for source in sources if source != sink), sink)]


def _planned_bytes(steps: Steps) -> list[int]:
    planned = [0] * len(steps.seen.links)
    n_calls = Counter(step.kind for step in steps.steps)
    for expected in steps.seen.expected:
        for link, wire_bytes in enumerate(expected.wire_bytes):
            planned[link] += n_calls[expected.kind] * wire_bytes
    return planned


def _background(
    steps: Steps, sources: tuple[str, ...], sink: str, total: int, extra: dict[str, int], limits: Limits
) -> Suspicion:
    port = max((link for link in steps.seen.links if link.target == sink), key=lambda link: extra[link.name])
    usual = sum(_planned_bytes(steps)) / max(1, len(steps.seen.ranks))
    is_one = len(sources) == 1
    flows = tuple(f"{source}->{sink}" for source in sources)
    return Suspicion(
        cause=Cause.BACKGROUND if is_one else Cause.CONGESTED_PORT,
        component=flows[0] if is_one else port.name,
        evidence=_evidence(steps, "bytes beyond those of the calls", format_bytes(total if is_one else extra[port.name]), "0 B"),
        lost_ps=8 * max(0, extra[port.name]) * PS_PER_SECOND // port.rate_bps,
        confidence=confidence(total, limits.extra_share * usual),
        flows=() if is_one else (*flows, *sorted({step.kind.collective for step in steps.steps})),
    )


_OF_PORTS = {
    PortCause.SLOW_RECEIVER: Cause.SLOW_RECEIVER,
    PortCause.PAUSE_STORM: Cause.PAUSE_STORM,
    PortCause.FEW_CREDITS: Cause.FEW_CREDITS,
    PortCause.INCAST: Cause.CONGESTED_PORT,
    PortCause.HOT_LINK: Cause.CONGESTED_PORT,
    PortCause.CONGESTION: Cause.CONGESTED_PORT,
}


def suspect_ports(steps: Steps) -> Iterator[Suspicion]:
    """What the counters of ports point to, for transfers that nothing else explains."""
    if steps.seen.congestion is not None:
        for found in diagnose_ports(steps.seen.congestion):
            yield Suspicion(
                cause=_OF_PORTS[found.cause],
                component=found.where,
                evidence=_evidence(steps, "counters of ports", found.evidence, "transfers as on the idle fabric"),
                lost_ps=steps.more_ps,
                confidence=0.6,
            )


def suspect_choices(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """Algorithms and orders of ranks that take far longer than others would, on the fabric as it should be."""
    n_calls = Counter(step.kind for step in steps.steps)
    for expected in steps.seen.expected:
        if not n_calls[expected.kind]:
            continue
        what = f"{expected.kind.collective} of {format_bytes(expected.kind.size_bytes)}"
        best_ps = expected.best_ps
        if expected.in_order_ps is not None and limits.unfit_ratio * expected.in_order_ps < expected.time_ps:
            best_ps = max(best_ps, expected.in_order_ps)
            yield Suspicion(
                cause=Cause.RANK_ORDER,
                component=what,
                evidence=_evidence(
                    steps, "predicted time", format_time(expected.time_ps), f"{format_time(expected.in_order_ps)} in order"
                ),
                lost_ps=(expected.time_ps - expected.in_order_ps) * n_calls[expected.kind],
                confidence=confidence(expected.time_ps / expected.in_order_ps - 1, limits.unfit_ratio - 1),
                in_transfer=False,
            )
        elif limits.unfit_ratio * best_ps < expected.time_ps:
            yield Suspicion(
                cause=Cause.ALGORITHM,
                component=what,
                evidence=_evidence(
                    steps,
                    f"predicted time of {expected.kind.algorithm}",
                    format_time(expected.time_ps),
                    f"{format_time(best_ps)} with {expected.best_algorithm}",
                ),
                lost_ps=(expected.time_ps - best_ps) * n_calls[expected.kind],
                confidence=confidence(expected.time_ps / best_ps - 1, limits.unfit_ratio - 1),
                in_transfer=False,
            )
