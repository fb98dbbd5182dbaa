"""Windows: a run in intervals, from what was scraped of its counters, and where in it a rule holds.

Counters since the beginning dilute a fault that begins late.  So each rule on counters is asked of every interval, and what it
says is of the stretch in which it holds: from the first interval that it holds in to the last, or the longest row of such; of the
whole where no interval shows what the whole does.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, TypeVar

from emu.diagnosis.finding import Evidence, Suspicion
from emu.fabric.counters import IntakeStatistics
from emu.fabric.link import LinkStatistics
from emu.telemetry.observation import Observation
from emu.telemetry.scrapes import Scrape

S = TypeVar("S", LinkStatistics, IntakeStatistics)


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was counted from ``begin_ps`` to ``end_ps`` of ``seen``; links that sent nothing in it are left out.  ``skew_ps``: by
    how much the readings of different places were apart, at either end."""

    seen: Observation
    begin_ps: int
    end_ps: int
    skew_ps: int
    links: dict[int, LinkStatistics]
    intakes: dict[int, IntakeStatistics]
    resent_bytes: int

    @staticmethod
    def between(seen: Observation, first: Scrape, last: Scrape) -> Window:
        links = {
            link: _difference(counted, first.links[link]) if link in first.links else counted
            for link, counted in last.links.items()
        }
        intakes = {
            rank: _difference(counted, first.intakes[rank]) if rank in first.intakes else counted
            for rank, counted in last.intakes.items()
        }
        return Window(
            seen=seen,
            begin_ps=first.time_ps,
            end_ps=last.time_ps,
            skew_ps=max(first.skew_ps, last.skew_ps),
            links={link: counted for link, counted in links.items() if counted.frames},
            intakes=intakes,
            resent_bytes=last.resent_bytes - first.resent_bytes,
        )

    def delay_ps(self, link: int) -> int:
        """Mean time on the way over a link."""
        counted = self.links[link]
        return counted.latency_ps // counted.frames

    @cached_property
    def usual_ps(self) -> int:
        """By how much the mean delays of most links exceed their latency."""
        return int(statistics.median_low([self.delay_ps(link) - self.seen.links[link].latency_ps for link in self.links]))

    def evidence(self, metric: str, value: str, expected: str) -> Evidence:
        """Something that was seen in it."""
        return Evidence(metric=metric, value=value, expected=expected, begin_ps=self.begin_ps, end_ps=self.end_ps)


def _difference(last: S, first: S) -> S:
    """Of counters; what is none is as it was last."""
    counted = {one.name: getattr(last, one.name) for one in fields(last)}
    grown: dict[str, Any] = {name: value - getattr(first, name) for name, value in counted.items() if isinstance(value, int)}
    return replace(last, **grown)


class Windows:
    """All of an observation."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen
        before = () if seen.begin_ps else (Scrape(time_ps=0, links={}, intakes={}, resent_bytes=0),)
        scraped = [one for one in seen.scraped if one.time_ps < seen.elapsed_ps]
        self.edges = (*before, *scraped, seen.now())
        self.each = tuple(Window.between(seen, first, last) for first, last in pairwise(self.edges))

    @cached_property
    def whole(self) -> Window:
        return self.stretch(0, len(self.each))

    def stretch(self, first: int, end: int) -> Window:
        """The windows from ``first`` to before ``end`` as one."""
        return self.each[first] if end == first + 1 else Window.between(self._seen, self.edges[first], self.edges[end])

    def first_known(self) -> int:
        """The first window from which on each call has its timing."""
        return bisect_right([edge.time_ps for edge in self.edges[:-1]], self._seen.known_ps - 1) if self._seen.known_ps else 0

    def tell(self, rule: Callable[[Window], Suspicion | None]) -> Suspicion | None:
        """What the rule says of the stretch in which it holds; None where it does nowhere."""
        holds = [number for number, window in enumerate(self.each) if rule(window) is not None]
        if not holds:
            return rule(self.whole)
        return rule(self.stretch(holds[0], holds[-1] + 1)) or rule(self.stretch(*_longest_row(holds)))


def _longest_row(numbers: list[int]) -> tuple[int, int]:
    rows = [[number for _, number in row] for _, row in groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    longest = max(rows, key=len)
    return longest[0], longest[-1] + 1
