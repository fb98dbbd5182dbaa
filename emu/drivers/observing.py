"""Observing: what a session's engines counted, as one observation, and as one report of congestion.

Expectations are simulated on the fabric as configured, once for each kind of call, and remembered.  Calls whose bytes are each
rank's own affair (sends and receives, ``alltoallv``) have none; a barrier's way is not compared with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from emu.collectives.selection import AUTO
from emu.drivers.backend import EngineCounters
from emu.drivers.choice import Chooser, predict_ps, simulated
from emu.errors import EmuError, PeerLost
from emu.telemetry.congestion import CongestionReport, collect
from emu.telemetry.observation import Expected, Failure, HostSeen, Kind, LinkSeen, Observation, RankSeen
from emu.telemetry.scrapes import joined
from emu.telemetry.timing import Timing
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed

UNFORESEEN: Final = frozenset({"send", "recv", "alltoallv"})
"""Calls without an expectation: what each rank sends is its own affair."""
MOST_COMPARED: Final = 128
"""Ranks up to which other algorithms are predicted too: beyond, that takes minutes."""


class Expectations:
    """Of one fabric.  ``chooser`` tells the best algorithm."""

    def __init__(self, topology: Topology, chooser: Chooser) -> None:
        self._topology = topology
        self._chooser = chooser
        self._known: dict[Kind, Expected] = {}
        self._seed: int | None = None

    def of(self, timings: Iterable[Timing], seed: int) -> tuple[Expected, ...]:
        """One for each kind of call, in order of their first, with the routes of ``seed``."""
        topology = with_seed(self._topology, seed)
        if topology is not self._topology and seed != self._seed:
            self._known.clear()
        self._seed = seed
        return tuple(self._expect(kind, topology) for kind in dict.fromkeys(kinds(timings).values()))

    def _expect(self, kind: Kind, topology: Topology) -> Expected:
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = self._simulated(kind, topology)
        return found

    def _simulated(self, kind: Kind, topology: Topology) -> Expected:
        what = kind.collective, kind.algorithm, kind.size_bytes, kind.members, kind.root
        how: dict[str, Any] = {"channels": kind.channels, "chunk_bytes": kind.chunk_bytes, "protocol": kind.protocol or None}
        time_ps, engine = simulated(topology, *what, **how)
        counted = engine.link_statistics()
        best, best_ps = kind.algorithm, time_ps
        has_choice = kind.collective != "barrier"
        if has_choice and len(kind.members) <= MOST_COMPARED:
            best = self._chooser.choose(kind.collective, kind.size_bytes, kind.members, kind.root, AUTO)
        if best != kind.algorithm:
            best_ps = predict_ps(topology, kind.collective, best, kind.size_bytes, kind.members, kind.root)
        in_order_ps = None
        if has_choice and list(topology.ranks) != sorted(topology.ranks):
            in_order_ps = predict_ps(replace(topology, ranks=tuple(sorted(topology.ranks))), *what)
        return Expected(
            kind=kind,
            time_ps=time_ps,
            wire_bytes=tuple(counted[link].wire_bytes for link in range(len(topology.links))),
            best_algorithm=best,
            best_ps=best_ps,
            in_order_ps=in_order_ps,
        )


def kinds(timings: Iterable[Timing]) -> dict[tuple[int, int], Kind]:
    """What was called, by communicator and number; without what has no expectation, or is not complete on all its ranks."""
    members: dict[tuple[int, int], dict[int, Timing]] = {}
    for timing in timings:
        if timing.collective not in UNFORESEEN:
            members.setdefault((timing.communicator, timing.number), {})[timing.rank] = timing
    found = {}
    for call, by_rank in members.items():
        first = next(iter(by_rank.values()))
        if len(by_rank) < first.n_ranks:
            continue
        found[call] = Kind(
            collective=first.collective,
            algorithm=first.algorithm,
            root=first.root,
            channels=first.channels,
            chunk_bytes=first.chunk_bytes,
            protocol=first.protocol,
            size_bytes=first.size_bytes,
            members=tuple(sorted(by_rank)),
        )
    return found


def observe(
    topology: Topology,
    parts: Sequence[EngineCounters],
    expectations: Expectations,
    *,
    model: int,
    is_running: bool,
    seed: int,
    dilation: float,
    elapsed_ps: int,
    stopped_s: Mapping[str, float],
    failure: EmuError | None,
) -> Observation:
    """Join what all engines counted.  ``model`` tells one from another, ``elapsed_ps`` is when the last run of it ended."""
    links = {link: counted for part in parts for link, counted in part.links.items()}
    intakes = {rank: counted for part in parts for rank, counted in part.intakes.items()}
    timings = tuple(sorted((one for part in parts for one in part.timings), key=lambda one: (one.completed_ps, one.rank)))
    times_ps = [part.now_ps for part in parts]
    if is_running:
        elapsed_ps = max(times_ps, default=elapsed_ps)
    names = [node.name for node in topology.nodes]
    line_bps: dict[int, int] = {}
    for link in topology.links:
        line_bps[link.target] = max(line_bps.get(link.target, 0), link.rate_bps)
    return Observation(
        fabric=topology.name,
        model=model,
        is_running=is_running,
        begin_ps=0,
        elapsed_ps=elapsed_ps,
        skew_ps=max(times_ps) - min(times_ps) if is_running and times_ps else 0,
        known_ps=max((part.known_ps for part in parts), default=0),
        scraped=joined([part.scraped for part in parts if part.scraped is not None]),
        links=tuple(
            LinkSeen(
                name=link.name,
                source=names[link.source],
                target=names[link.target],
                rate_bps=link.rate_bps,
                latency_ps=link.latency_ps,
                packet_bytes=link.mtu_bytes + link.header_bytes,
                counted=links.get(index),
            )
            for index, link in enumerate(topology.links)
        ),
        ranks=tuple(
            RankSeen(
                rank=rank,
                node=names[node],
                line_rate_bps=line_bps.get(node, 0),
                drain_rate_bps=topology.nodes[node].drain_rate_bps,
                intake=intakes.get(rank),
            )
            for rank, node in enumerate(topology.ranks)
        ),
        timings=timings,
        expected=expectations.of(timings, seed),
        congestion=congestion(topology, parts, elapsed_ps),
        host=HostSeen(
            dilation=dilation,
            largest_lateness_ps=max((part.largest_lateness_ps for part in parts), default=0),
            order_weight_ps=sum(part.order_weight_ps for part in parts),
            stopped_s=dict(stopped_s),
        ),
        failure=None if failure is None else _failure(failure),
    )


def _failure(error: EmuError) -> Failure:
    return Failure(error=type(error).__name__, text=str(error), nodes=error.nodes if isinstance(error, PeerLost) else ())


def congestion(topology: Topology, parts: Sequence[EngineCounters], elapsed_ps: int) -> CongestionReport | None:
    """What ports and adapters counted; None on a fabric without ``switching``."""
    if topology.switching is None:
        return None
    return collect(
        topology,
        queues={link: found for part in parts for link, found in part.queues.items()},
        adapters={rank: found for part in parts for rank, found in part.adapters.items()},
        links={link: found for part in parts for link, found in part.links.items()},
        elapsed_ps=elapsed_ps or max((part.now_ps for part in parts), default=0),  # timers may run on after the last rank
    )
