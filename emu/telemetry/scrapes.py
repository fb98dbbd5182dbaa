"""Scrapes: what the links and interfaces of one engine had counted at some moments of a run, so that it can be looked at by
intervals, as a monitoring system does that reads counters every so often.

Law: a scrape is taken where something happens anyway, at the first look in an interval of model time; nothing is put into the
calendar for it, so that a run is the same with and without.  There are at most ``MOST``: then the interval doubles, and of two
scrapes in one of the new intervals the first is kept.  Between two there are some events for each counter, so that a scrape is
cheap beside what it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from emu.fabric.counters import AdapterStatistics, IntakeStatistics
from emu.fabric.link import LinkStatistics

MOST: Final = 32
FIRST_INTERVAL_PS: Final = 2**20
EVENTS_PER_LINK: Final = 4


class Counting(Protocol):
    """An engine, from here."""

    now_ps: int
    events: int

    def link_statistics(self) -> dict[int, LinkStatistics]: ...
    def intake_statistics(self) -> dict[int, IntakeStatistics]: ...
    def adapter_statistics(self) -> dict[int, AdapterStatistics]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Counters as they stood at ``time_ps``, of some engines up to ``skew_ps`` before.  Links by index, those that had sent;
    interfaces by rank.  ``resent_bytes``: by adapters, end to end."""

    time_ps: int
    links: dict[int, LinkStatistics]
    intakes: dict[int, IntakeStatistics]
    resent_bytes: int
    skew_ps: int = 0

    @staticmethod
    def of(engine: Counting) -> Scrape:
        """What it has counted now."""
        return Scrape(
            time_ps=engine.now_ps,
            links={link: counted for link, counted in engine.link_statistics().items() if counted.frames},
            intakes=engine.intake_statistics(),
            resent_bytes=sum(counted.resent_bytes for counted in engine.adapter_statistics().values()),
        )


class Series(NamedTuple):
    """The scrapes of one engine: at most one in each interval."""

    interval_ps: int
    scrapes: tuple[Scrape, ...]


class Scraper:
    """Of one engine with ``n_links``; to be asked to :meth:`look` once model time has come to ``due_ps``."""

    __slots__ = ("_interval_ps", "_least_events", "_next_events", "_scrapes", "due_ps")

    def __init__(self, n_links: int) -> None:
        self.due_ps = self._interval_ps = FIRST_INTERVAL_PS
        self._least_events = self._next_events = EVENTS_PER_LINK * n_links
        self._scrapes: list[Scrape] = []

    def look(self, engine: Counting) -> None:
        """Take one, if enough has happened since the last."""
        if engine.events < self._next_events:
            return
        self._next_events = engine.events + self._least_events
        self._scrapes.append(Scrape.of(engine))
        while len(self._scrapes) > MOST:
            self._interval_ps *= 2
            self._scrapes = list(_by_interval(self._scrapes, self._interval_ps).values())
        self.due_ps = (engine.now_ps // self._interval_ps + 1) * self._interval_ps

    def series(self) -> Series:
        """All that are kept."""
        return Series(self._interval_ps, tuple(self._scrapes))


def _by_interval(scrapes: Iterable[Scrape], interval_ps: int) -> dict[int, Scrape]:
    found: dict[int, Scrape] = {}
    for scrape in scrapes:
        found.setdefault(scrape.time_ps // interval_ps, scrape)
    return found


def joined(series: Sequence[Series]) -> tuple[Scrape, ...]:
    """One scrape of all engines for each interval in which all have one."""
    if not series:
        return ()
    interval_ps = max(one.interval_ps for one in series)
    found = [_by_interval(one.scrapes, interval_ps) for one in series]
    return tuple(together([its[interval] for its in found]) for interval in found[0] if all(interval in its for its in found[1:]))


def together(scrapes: Sequence[Scrape]) -> Scrape:
    """Those of several engines as one."""
    first, last = min(one.time_ps for one in scrapes), max(one.time_ps for one in scrapes)
    return Scrape(
        time_ps=last,
        links={link: counted for one in scrapes for link, counted in one.links.items()},
        intakes={rank: counted for one in scrapes for rank, counted in one.intakes.items()},
        resent_bytes=sum(one.resent_bytes for one in scrapes),
        skew_ps=last - first,
    )
