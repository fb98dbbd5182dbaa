"""Scrapes: few, over all of a run, and of all engines at about the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from emu.fabric.counters import AdapterStatistics, IntakeStatistics
from emu.fabric.link import LinkStatistics
from emu.telemetry.scrapes import EVENTS_PER_LINK, FIRST_INTERVAL_PS, MOST, Scrape, Scraper, Series, joined


@dataclass(slots=True)
class Engine:
    """Counts frames on one link."""

    now_ps: int = 0
    events: int = 0
    adapters: dict[int, AdapterStatistics] = field(default_factory=dict)

    def link_statistics(self) -> dict[int, LinkStatistics]:
        return {0: counted(self.events), 1: counted(0)}

    def intake_statistics(self) -> dict[int, IntakeStatistics]:
        return {}

    def adapter_statistics(self) -> dict[int, AdapterStatistics]:
        return self.adapters


def counted(frames: int) -> LinkStatistics:
    return LinkStatistics(
        name="a0->a1", frames=frames, payload_bytes=0, wire_bytes=0, resent_bytes=0, lost_packets=0, busy_ps=0, queued_ps=0
    )  # fmt: skip


def run(n_looks: int, step_ps: int) -> tuple[Scraper, int]:
    """A run that is looked at every ``step_ps``; how many of the looks were wanted."""
    engine, scraper, n_wanted = Engine(), Scraper(2), 0
    for _ in range(n_looks):
        engine.now_ps += step_ps
        engine.events += EVENTS_PER_LINK * 2
        if engine.now_ps >= scraper.due_ps:
            n_wanted += 1
            scraper.look(engine)
    return scraper, n_wanted


def test_a_long_run_has_few_scrapes_all_along() -> None:
    """However long, there are at most MOST, at least half of that, in order and evenly apart, and few were taken."""
    scraper, n_wanted = run(20_000, FIRST_INTERVAL_PS)
    interval_ps, scrapes = scraper.series()
    times_ps = [one.time_ps for one in scrapes]
    assert MOST // 2 <= len(scrapes) <= MOST
    assert all(interval_ps // 2 < later - earlier <= interval_ps for earlier, later in pairwise(times_ps))
    assert n_wanted < MOST * 11
    assert list(scrapes[-1].links) == [0]  # the other has sent nothing


def test_a_scrape_waits_until_enough_has_happened() -> None:
    """Without events since the last there is no new scrape, and it stays due."""
    engine, scraper = Engine(now_ps=FIRST_INTERVAL_PS, events=EVENTS_PER_LINK * 2 - 1), Scraper(2)
    scraper.look(engine)
    assert not scraper.series().scrapes and scraper.due_ps == FIRST_INTERVAL_PS
    engine.events += 1
    scraper.look(engine)
    assert len(scraper.series().scrapes) == 1 and scraper.due_ps == 2 * FIRST_INTERVAL_PS


def test_scrapes_of_several_engines_are_joined_by_interval() -> None:
    """One for each interval, the coarsest of theirs, in which all have one; how far they are apart is said."""

    def scrape(time_ps: int, link: int) -> Scrape:
        return Scrape(time_ps=time_ps, links={link: counted(time_ps)}, intakes={}, resent_bytes=1)

    fine = Series(10, tuple(scrape(time_ps, 0) for time_ps in (11, 25, 31, 47)))
    coarse = Series(20, tuple(scrape(time_ps, 1) for time_ps in (22, 40)))
    (first, second) = joined([fine, coarse])
    assert (first.time_ps, first.skew_ps, sorted(first.links), first.resent_bytes) == (25, 3, [0, 1], 2)
    assert (second.time_ps, second.skew_ps) == (47, 7)
    assert joined([]) == ()
