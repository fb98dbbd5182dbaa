"""Observation: all that a monitoring system can see of a run, and what the configured fabric would give.

Law: nothing in here comes from an injector.  There are counters of links, ports, adapters and interfaces, timings of calls as a
profiler on each accelerator takes them, whose process is dead or stopped, what a run failed with, and how late the host was.
The expectation is that of the fabric as configured, with nothing wrong: rates, latencies, routes, and each call simulated alone.

It goes through JSON unchanged, so that it can be recorded, and asked of a testbed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from emu.fabric.counters import IntakeStatistics
from emu.fabric.link import LinkStatistics
from emu.telemetry.congestion import CongestionReport
from emu.telemetry.scrapes import Scrape
from emu.telemetry.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeen:
    """A directed link: as configured, and what was counted.  None: its sender is dead, and does not answer."""

    name: str
    source: str
    target: str
    rate_bps: int
    latency_ps: int
    packet_bytes: int
    """A full packet on the wire."""
    counted: LinkStatistics | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """A rank: its node, the rate of its fastest incoming link, how fast it is configured to take in (None: at once)."""

    rank: int
    node: str
    line_rate_bps: int
    drain_rate_bps: int | None
    intake: IntakeStatistics | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Calls that are alike."""

    collective: str
    algorithm: str
    root: int
    channels: int
    chunk_bytes: int
    protocol: str
    size_bytes: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one call of a kind takes on the fabric as configured, with all ranks there at once; ``wire_bytes`` by link.

    ``best_algorithm`` is the one of the least predicted time, which is ``best_ps``.  ``in_order_ps``: were the ranks numbered
    in the order of the fabric's nodes; None where they are.
    """

    kind: Kind
    time_ps: int
    wire_bytes: tuple[int, ...]
    best_algorithm: str
    best_ps: int
    in_order_ps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeen:
    """What the host did: nothing of it is the fabric's.  ``dilation`` 0: simulated, or unpaced.  ``stopped_s``: for how long
    processes were stopped, by their first node."""

    dilation: float
    largest_lateness_ps: int
    order_weight_ps: int
    stopped_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a run ended with: the error's name and text, and the nodes that were lost with it."""

    error: str
    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A stretch of a session, from ``begin_ps``, 0 where its ``model`` began, to ``elapsed_ps``.

    ``links`` and ``ranks`` in order, with counters since the model began.  ``scraped``: the counters as they stood before, in
    order of time; where the stretch begins later, the first is of its beginning.  ``timings`` in order of completion, of a long
    run the last of them: all from ``known_ps`` on.  ``is_running``: calls are under way.  ``skew_ps``: by how much model time
    the counters of different places were read apart.
    """

    fabric: str
    model: int
    is_running: bool
    begin_ps: int
    elapsed_ps: int
    skew_ps: int
    known_ps: int
    scraped: tuple[Scrape, ...]
    links: tuple[LinkSeen, ...]
    ranks: tuple[RankSeen, ...]
    timings: tuple[Timing, ...]
    expected: tuple[Expected, ...]
    congestion: CongestionReport | None
    host: HostSeen
    failure: Failure | None

    def now(self) -> Scrape:
        """The counters at the end."""
        return Scrape(
            time_ps=self.elapsed_ps,
            links={index: link.counted for index, link in enumerate(self.links) if link.counted is not None},
            intakes={rank.rank: rank.intake for rank in self.ranks if rank.intake is not None},
            resent_bytes=0 if self.congestion is None else sum(one.counted.resent_bytes for one in self.congestion.adapters),
            skew_ps=self.skew_ps,
        )

    def since(self, earlier: Observation) -> Observation:
        """What came after an earlier look at the same model; all of this where that was of another."""
        if earlier.model != self.model:
            return self
        begin_ps = earlier.elapsed_ps
        host, before = self.host, earlier.host
        stopped_s = {node: seconds - before.stopped_s.get(node, 0.0) for node, seconds in host.stopped_s.items()}
        return replace(
            self,
            begin_ps=begin_ps,
            scraped=(earlier.now(), *(one for one in self.scraped if one.time_ps > begin_ps)),
            timings=tuple(one for one in self.timings if one.completed_ps > begin_ps),
            congestion=None,
            host=replace(
                host,
                order_weight_ps=host.order_weight_ps - before.order_weight_ps,
                stopped_s={node: seconds for node, seconds in stopped_s.items() if seconds > 0},
            ),
        )
