"""Traffic: what goes over the links that no call asked for, where it meets the calls, and choices that do not fit the fabric.

What the calls send over each link is known from their schedules and routes.  A node that sends more has something else to send,
and one that receives more gets it; bytes tell who sends to whom.  One such pair is background traffic; several senders that meet
at one receiver congest the port before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import Final

from emu.diagnosis.finding import Cause, Suspicion, confidence
from emu.diagnosis.limits import Limits
from emu.diagnosis.steps import Steps
from emu.diagnosis.windows import Window
from emu.telemetry.diagnosis import Cause as PortCause
from emu.telemetry.diagnosis import diagnose as diagnose_ports
from emu.units import PS_PER_SECOND, format_bytes, format_time

MOST_WAYS: Final = 10_000
"""Of joining sources with sinks; beyond, none is tried."""


def suspect_traffic(steps: Steps, limits: Limits) -> Iterator[Suspicion]:
    """Traffic of nobody's call, and counters that do not go with the calls.

    Who sends and who receives is told by the whole run where that shows it; when, and where only a part does, by the stretch
    of intervals in which the most is sent that no call asked for.
    """
    seen = steps.seen
    unknown = any(timing.number < 0 for timing in seen.timings) or any(step.expected is None for step in steps.steps)
    if (
        seen.failure is not None
        or unknown
        or not seen.expected
        or (steps.n_partial and not seen.is_running and not seen.known_ps)
    ):
        return  # what the calls sent is not known
    if any(link.counted is None for link in seen.links):
        return
    windows = steps.windows
    first = windows.first_known()
    if first >= len(windows.each):
        return
    everything = _Extra(steps, windows.stretch(first, len(windows.each)), limits)
    most = _Extra(steps, windows.stretch(*_most_extra(steps, limits, first)), limits)
    found = everything if everything.has_flows else most
    if found.has_flows:
        when = most if set(most.over) == set(found.over) and set(most.under) == set(found.under) else found
        for sources, sink in found.flows():
            yield when.suspicion(sources, sink)
    elif not seen.is_running and everything.missing > limits.extra_share * everything.n_planned:
        worst = min(everything.by_link, key=lambda link: everything.by_link[link])
        yield Suspicion(
            cause=Cause.CONFLICTING,
            component=seen.links[worst].name,
            evidence=everything.window.evidence(
                "bytes sent", f"{format_bytes(everything.missing)} less than the calls", "as much"
            ),
            lost_ps=0,
            confidence=0.5,
        )


def _most_extra(steps: Steps, limits: Limits, first: int) -> tuple[int, int]:
    """The windows in a row with the largest sum of what is beyond the calls and a share of them (Kadane).  A call that is under
    way in several windows has sent in each what its time there is of all its time."""
    each = steps.windows.each
    best, best_sum = (first, len(each)), 0.0
    begin, total = first, 0.0
    n_bytes = {one.kind: sum(one.wire_bytes) for one in steps.seen.expected}
    spans_ps = [(min(step.start_ps.values()), step.end_ps, n_bytes[step.kind]) for step in steps.steps]
    for number in range(first, len(each)):
        if total <= 0:
            begin, total = number, 0.0
        window = each[number]
        planned = sum(
            its * max(0, min(end_ps, window.end_ps) - max(begin_ps, window.begin_ps)) / max(1, end_ps - begin_ps)
            for begin_ps, end_ps, its in spans_ps
        )
        counted = sum(link.wire_bytes - link.resent_bytes for link in window.links.values())
        total += counted - (1 + limits.extra_share) * planned
        if total > best_sum:
            best, best_sum = (begin, number + 1), total
    return best


class _Extra:
    """What was sent in a window beyond what the calls that ended in it send.

    ``over`` and ``under``: bytes by the rank's node that sends or receives them.  Where ranks forward, only what a node sends
    beyond what it receives is known to be its own.  Calls that are under way at an edge of the window have sent a part of their
    bytes on either side, and readings that are apart in time differ by what a link carries meanwhile: that much is no extra.
    """

    def __init__(self, steps: Steps, window: Window, limits: Limits) -> None:
        self.steps = steps
        self.window = window
        self.limits = limits
        n_calls = Counter(step.kind for step in steps.steps if window.begin_ps < step.end_ps <= window.end_ps)
        expected = [(one.wire_bytes, n_calls[one.kind]) for one in steps.seen.expected]
        self.planned = [sum(wire_bytes[link] * n for wire_bytes, n in expected) for link in range(len(steps.seen.links))]
        self.n_planned = sum(self.planned)
        self.by_link = {}
        for link, planned in enumerate(self.planned):
            counted = window.links.get(link)
            self.by_link[link] = (0 if counted is None else counted.wire_bytes - counted.resent_bytes) - planned
        self.missing = -sum(self.by_link.values())

    @cached_property
    def _ends(self) -> tuple[dict[str, int], dict[str, int]]:
        seen = self.steps.seen
        ends = {rank.node for rank in seen.ranks}
        forwards = any(link.source in ends and link.target in ends for link in seen.links)
        sent: Counter[str] = Counter()
        received: Counter[str] = Counter()
        usual: Counter[str] = Counter()
        unsure: Counter[str] = Counter()
        for number, link in enumerate(seen.links):
            sent[link.source] += self.by_link[number]
            received[link.target] += self.by_link[number]
            usual[link.source] += self.planned[number]
            for node in (link.source, link.target):
                unsure[node] += self._unsure_bytes(number)
        over, under = {}, {}
        for node in sorted(ends):
            own = sent[node] - received[node] if forwards else sent[node]
            taken = received[node] - sent[node] if forwards else received[node]
            least = self.limits.extra_share * usual[node] + 2 * self.window.resent_bytes + unsure[node]
            if own > least:
                over[node] = own
            if taken > least:
                under[node] = taken
        return over, under

    def _unsure_bytes(self, link: int) -> int:
        """Of a link: what calls under way at the edges may have sent on either side, and what passes between readings."""
        seen = self.steps.seen
        most = max((one.wire_bytes[link] for one in seen.expected), default=0)
        return self._n_open * most + self.window.skew_ps * seen.links[link].rate_bps // (8 * PS_PER_SECOND)

    @cached_property
    def _n_open(self) -> int:
        """Calls under way at the edges."""
        steps, window = self.steps, self.window
        n_open = steps.n_open(window.begin_ps) + steps.n_open(window.end_ps)
        at_end = steps.seen.is_running and window.end_ps == steps.seen.elapsed_ps
        return n_open + (steps.n_partial + 1 if at_end else 0)

    @property
    def over(self) -> dict[str, int]:
        return self._ends[0]

    @property
    def under(self) -> dict[str, int]:
        return self._ends[1]

    @property
    def has_flows(self) -> bool:
        """Whether somebody sends what somebody receives."""
        return bool(self.over and self.under)

    def flows(self) -> list[tuple[tuple[str, ...], str]]:
        """Who sends to whom: each source to one sink, so that bytes agree; where they do not, all to the largest sink."""
        over, under, share = self.over, self.under, self.limits.extra_share
        sources, sinks = sorted(over), sorted(under)
        if len(sinks) ** len(sources) <= MOST_WAYS:
            for way in product(sinks, repeat=len(sources)):
                sums = Counter[str]()
                for source, sink in zip(sources, way, strict=True):
                    sums[sink] += over[source] if source != sink else -under[sink]
                if all(abs(sums[sink] - under[sink]) <= 2 * share * under[sink] for sink in sinks):
                    return [(tuple(s for s, its in zip(sources, way, strict=True) if its == sink), sink) for sink in sinks]
        sink = max(sinks, key=lambda node: under[node])
        return [(tuple(source for source in sources if source != sink), sink)]

    def suspicion(self, sources: tuple[str, ...], sink: str) -> Suspicion:
        """Of one source's traffic, or of a port at which several meet."""
        seen = self.steps.seen
        number = max((n for n, link in enumerate(seen.links) if link.target == sink), key=lambda n: self.by_link[n])
        port, extra = seen.links[number], max(0, self.by_link[number])
        total = sum(self.over[source] for source in sources)
        usual = self.n_planned / max(1, len(seen.ranks))
        is_one = len(sources) == 1
        flows = tuple(f"{source}->{sink}" for source in sources)
        return Suspicion(
            cause=Cause.BACKGROUND if is_one else Cause.CONGESTED_PORT,
            component=flows[0] if is_one else port.name,
            evidence=self.window.evidence("bytes beyond those of the calls", format_bytes(total if is_one else extra), "0 B"),
            lost_ps=8 * extra * PS_PER_SECOND // port.rate_bps,
            confidence=confidence(total, self.limits.extra_share * usual),
            flows=() if is_one else (*flows, *sorted({step.kind.collective for step in self.steps.steps if step.expected_ps})),
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
                evidence=steps.windows.whole.evidence("counters of ports", found.evidence, "transfers as on the idle fabric"),
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
                evidence=steps.windows.whole.evidence(
                    "predicted time", format_time(expected.time_ps), f"{format_time(expected.in_order_ps)} in order"
                ),
                lost_ps=(expected.time_ps - expected.in_order_ps) * n_calls[expected.kind],
                confidence=confidence(expected.time_ps / expected.in_order_ps - 1, limits.unfit_ratio - 1),
                in_transfer=False,
            )
        elif limits.unfit_ratio * best_ps < expected.time_ps:
            yield Suspicion(
                cause=Cause.ALGORITHM,
                component=what,
                evidence=steps.windows.whole.evidence(
                    f"predicted time of {expected.kind.algorithm}",
                    format_time(expected.time_ps),
                    f"{format_time(best_ps)} with {expected.best_algorithm}",
                ),
                lost_ps=(expected.time_ps - best_ps) * n_calls[expected.kind],
                confidence=confidence(expected.time_ps / best_ps - 1, limits.unfit_ratio - 1),
                in_transfer=False,
            )
