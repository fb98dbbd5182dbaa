"""Host: what failed outright, and what the emulation itself did, which is never the fabric's fault."""

from __future__ import annotations

import re
from collections.abc import Iterator

from emu.diagnosis.finding import Cause, Evidence, Suspicion, confidence
from emu.diagnosis.limits import Limits
from emu.diagnosis.ranks import name
from emu.diagnosis.steps import Steps

_RANK = re.compile(r"rank (\d+)")


def suspect_stops(steps: Steps) -> Iterator[Suspicion]:
    """Processes that were stopped."""
    for node, seconds in sorted(steps.seen.host.stopped_s.items()):
        yield _certain(steps, Cause.PROCESS_STOPPED, node, "stopped by a signal", f"{seconds:.1f} s of wall time", "never")


def suspect_pace(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """A host that does not keep pace, unless it could not, as a process was stopped; lost is what it was late."""
    host = steps.seen.host
    late_ps = _late_ps(steps)
    length_ps = max(1, steps.length_ps)
    share = late_ps / length_ps
    disorder = host.order_weight_ps / length_ps
    if not host.stopped_s and (share > limits.host_share or disorder > limits.order_share):
        value = f"{100 * share:.1f} % later than its model, order {100 * disorder:.1f} %"
        yield Suspicion(
            cause=Cause.OVERLOADED,
            component="host",
            evidence=Evidence(
                metric="the emulation ended",
                value=value,
                expected=f"within {100 * limits.host_share:g} %, at dilation {host.dilation:g}",
                begin_ps=steps.begin_ps,
                end_ps=steps.end_ps,
            ),
            lost_ps=round(late_ps),
            in_transfer=False,
            confidence=max(confidence(share, limits.host_share), confidence(disorder, limits.order_share)),
        )


def _late_ps(steps: Steps) -> float:
    """How much later than due the host saw a call's end, at most, in model time."""
    dilation = steps.seen.host.dilation
    if not dilation:
        return 0.0
    return max((timing.late_ns for timing in steps.seen.timings), default=0) * 1000 / dilation


def suspect_failure(steps: Steps) -> Iterator[Suspicion]:
    """What ended the run."""
    failure = steps.seen.failure
    if failure is None:
        return
    names = {rank.node: name(rank) for rank in steps.seen.ranks}
    if failure.nodes:
        for node in failure.nodes:
            yield _certain(steps, Cause.DEAD_RANK, names.get(node, node), "its process", "gone", "alive")
    elif failure.error in ("CollectiveMismatch", "RankLeft"):
        found = _RANK.search(failure.text)
        ranks = {rank.rank: name(rank) for rank in steps.seen.ranks}
        component = ranks.get(int(found[1]), "ranks") if found is not None else "ranks"
        yield _certain(steps, Cause.MISMATCH, component, "the run ended", failure.text, "the same calls on all ranks")
    elif not steps.seen.host.stopped_s:
        yield _certain(steps, Cause.UNKNOWN, "run", failure.error, failure.text, "a run without errors")


def _certain(steps: Steps, cause: Cause, component: str, metric: str, value: str, expected: str) -> Suspicion:
    return Suspicion(
        cause=cause,
        component=component,
        evidence=Evidence(metric=metric, value=value, expected=expected, begin_ps=steps.begin_ps, end_ps=steps.end_ps),
        lost_ps=0,
        confidence=0.5 if cause is Cause.UNKNOWN else 0.99,
    )
