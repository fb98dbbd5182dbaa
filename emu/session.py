"""Session: a testbed, from its start to its end.

Law: whatever a session starts it ends, on every way out: normal, an exception,
Ctrl-C, a failed start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from emu.drivers.choice import Chooser
from emu.drivers.engine import Engine, ImpairmentTable
from emu.drivers.simulate import DEFAULT_TIMEOUT_S, Simulation
from emu.drivers.switching_guard import check_run
from emu.errors import ConfigError, EmuError, PeerLost
from emu.fabric.counters import AdapterStatistics, QueueStatistics
from emu.fabric.link import LinkStatistics
from emu.impairments.spec import parse_impairment, resolve
from emu.rank import Rank
from emu.telemetry.congestion import CongestionReport, collect
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed
from emu.units import PS_PER_SECOND

USER_TIMES = ("declared", "measured")
ASSUMED_HOST_BYTES_PER_S = 500 * 10**6
ASSUMED_HOP_S = 0.0005
"""What a small host surely moves, and how long a frame takes from actor to actor, where nothing was calibrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What happened since ``begin``.  ``frames`` counts chunk hops; bytes are those of the model's links.

    ``transport_backpressure``, lateness and order are the host's doing (0 under simulate).
    ``socket_payload_bytes`` went over sockets: equal to the links' payload when every hop did.
    ``congestion``: queues, pauses, drops and adapters; None on a fabric without ``switching``.
    """

    order_violations: int
    order_weight_ps: int
    transport_backpressure: int
    largest_lateness_ps: int
    wire_bytes_per_rank_max: int
    frames: int
    wire_bytes: int
    payload_bytes: int
    events: int
    socket_payload_bytes: int
    links: Mapping[str, LinkStatistics]
    congestion: CongestionReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """One engine's part of :class:`Counters`: links and queues (by class) by link, adapters by rank, its last event's time."""

    links: dict[int, LinkStatistics]
    events: int
    queues: dict[int, tuple[QueueStatistics, ...]]
    adapters: dict[int, AdapterStatistics]
    now_ps: int
    order_violations: int = 0
    order_weight_ps: int = 0
    transport_backpressure: int = 0
    largest_lateness_ps: int = 0
    socket_payload_bytes: int = 0

    @staticmethod
    def of(engine: Engine) -> EngineCounters:
        return EngineCounters(
            links=engine.link_statistics(),
            events=engine.events,
            queues=engine.queue_statistics(),
            adapters=engine.adapter_statistics(),
            now_ps=engine.now_ps,
        )


class Backend(Protocol):
    """A driver, from the session's side."""

    def begin(self, *, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable) -> None: ...
    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], members: tuple[int, ...], communicator: int
    ) -> dict[int, Any]: ...
    def counters(self) -> list[EngineCounters]: ...
    def elapsed_ps(self) -> int:
        """Model time at which the last rank of the last run returned; 0 before."""
        ...

    def lost_nodes(self) -> frozenset[int]: ...
    def process_ids(self) -> dict[str, int]: ...
    def hops(self) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class _Simulated:
    """The simulating driver behind a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._simulation: Simulation | None = None
        self._start_ps = self._elapsed_ps = 0

    def begin(self, *, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable) -> None:
        session = self._session
        self._simulation = Simulation(
            with_seed(session.topology, seed),
            seed=seed,
            impairments=impairments,
            payload=session.payload,
            choose_algorithm=session.chooser.choose,
            timeout_s=session.timeout_s,
        )
        if session.record_hops:
            self._simulation.engine.hops = []
        self._start_ps = self._elapsed_ps = 0

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], members: tuple[int, ...], communicator: int
    ) -> dict[int, Any]:
        simulation = self._simulation
        if simulation is None:
            raise EmuError("the session has not begun")
        topology = simulation.topology
        ranks = [
            Rank(
                runtime=simulation.runtime,
                world_rank=world_rank,
                members=members,
                name=topology.nodes[topology.ranks[world_rank]].name,
                seed=self._session.seed,
                start_ps=self._start_ps,
                communicator=communicator,
            )
            for world_rank in members
        ]
        results = simulation.run(function, args, ranks)
        self._elapsed_ps = max(rank.cursor_ps for rank in ranks)
        self._start_ps = max(self._elapsed_ps, simulation.engine.now_ps)
        return results

    def hops(self) -> list[tuple[int, int]]:
        return [] if self._simulation is None else list(self._simulation.engine.hops or [])

    def counters(self) -> list[EngineCounters]:
        return [] if self._simulation is None else [EngineCounters.of(self._simulation.engine)]

    def elapsed_ps(self) -> int:
        return self._elapsed_ps

    def lost_nodes(self) -> frozenset[int]:
        return frozenset()

    def process_ids(self) -> dict[str, int]:
        return {node.name: os.getpid() for node in self._session.topology.nodes}

    def close(self) -> None:
        self._simulation = None


class Session:
    """Virtual accelerators on a fabric.

    ``fabric``: a generic topology, a preset, a TOML file, or a Topology; ``settings`` as ``--set``.
    ``driver``: "emulate" (Ray actors, ZeroMQ, real payload) or "simulate" (virtual time, one process).
    ``dilation``: wall seconds per model second; "auto" takes a cautious figure from the fabric alone
    (``emu bench`` calibrates the host and chooses per row); 0 runs unpaced, without a verdict.
    ``user_time``: whether Python between calls costs nothing ("declared") or wall time over dilation ("measured").
    ``payload``: False simulates without data.
    ``accelerators_per_actor``: None packs automatically.  ``address``: a Ray cluster's; None starts Ray here.
    ``record_hops``: simulate remembers (model time, payload bytes) of every frame and hop, see :meth:`hops`.
    ``transport``: "auto" (ipc on one host, else tcp), "ipc" or "tcp".

    Raises ConfigError before anything starts.
    """

    def __init__(
        self,
        fabric: str | Topology,
        *,
        settings: Mapping[str, str] | None = None,
        driver: str = "emulate",
        seed: int = 0,
        dilation: float | str = "auto",
        impairments: tuple[str, ...] = (),
        accelerators_per_actor: int | None = None,
        address: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        payload: bool = True,
        user_time: str = "declared",
        transport: str = "auto",
        record_hops: bool = False,
    ) -> None:
        specs = tuple(impairments)
        if isinstance(fabric, str):
            loaded = load(fabric, dict(settings or {}))
            topology = loaded.topology
            specs = tuple(loaded.impairments) + specs
        elif settings:
            raise ConfigError("settings go with a fabric's name, not with a Topology")
        else:
            topology = fabric
        if user_time not in USER_TIMES:
            raise ConfigError(f"user_time {user_time!r}: use one of {', '.join(USER_TIMES)}")
        if driver not in ("emulate", "simulate"):
            raise ConfigError(f"driver {driver!r}: use emulate or simulate")
        if driver == "simulate" and user_time == "measured":
            raise ConfigError("user_time 'measured' needs the wall clock of driver emulate; under simulate use declared")
        if not timeout_s > 0:
            raise ConfigError(f"timeout {timeout_s:g} s: it must be more than 0")
        self.topology = with_seed(topology, seed)
        self.driver = driver
        self.seed = seed
        self.payload = payload
        self.user_time = user_time
        self.timeout_s = timeout_s
        self.record_hops = record_hops
        self.chooser = Chooser(self.topology)
        self.session_id = secrets.randbits(63)
        self._impairments = resolve([parse_impairment(spec) for spec in specs], self.topology)
        check_run(self.topology, self._impairments)
        self._epoch = 0
        self._runs = 0
        self._broken = False
        self._running = False
        self._closed = False
        self.dilation = _cautious_dilation(self.topology) if dilation == "auto" else _checked_dilation(dilation)
        self._backend: Backend
        if driver == "simulate":
            self._backend = _Simulated(self)
        else:
            from emu.actors.backend import RayBackend  # heavy: only where actors are wanted

            self._backend = RayBackend(
                topology=self.topology,
                session_id=self.session_id,
                accelerators_per_actor=accelerators_per_actor,
                address=address,
                timeout_s=timeout_s,
                payload=payload,
                user_time=user_time,
                transport=transport,
            )
        try:
            self.begin()
        except BaseException:
            self._backend.close()
            raise

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks that are alive."""
        lost = self._backend.lost_nodes()
        return tuple(rank for rank, node in enumerate(self.topology.ranks) if node not in lost)

    def begin(self, dilation: float | None = None, seed: int | None = None) -> None:
        """A fresh model at time 0, counters at 0; optionally another dilation or seed."""
        if dilation is not None:
            self.dilation = _checked_dilation(dilation)
        if seed is not None:
            self.seed = seed
        if self._closed:
            raise EmuError("the session is closed; open another")
        self._epoch += 1
        self._broken = False
        self._backend.begin(epoch=self._epoch, dilation=self.dilation, seed=self.seed, impairments=self._impairments)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run ``function(rank, *args)`` on every living rank; results in rank order.

        Model time goes on from run to run: a run starts once all is at rest that the one before has left under way (credits,
        acknowledgements, timers), the same under both drivers.
        After a failure the next run starts on a fresh model; ranks whose actors died are left out of it.

        Raises RankFailed (with the rank and its traceback) when a function raised, and
        CollectiveMismatch, Deadlock, RankLeft, Stalled or PeerLost.
        """
        if self._closed:
            raise EmuError("the session is closed; open another")
        if self._running:
            raise EmuError("this session is already running a function; run them one after the other, or open another session")
        if self._broken:
            self.begin()
        members = self.ranks
        self._check_reachable(members)
        self._runs += 1
        self._running = True
        try:
            results = self._backend.run(function, args, members, self._runs)
        except BaseException:
            self._broken = True
            raise
        finally:
            self._running = False
        return [results[rank] for rank in members]

    def _check_reachable(self, members: tuple[int, ...]) -> None:
        lost = self._backend.lost_nodes()
        if not members:
            raise PeerLost("no accelerator of this session is alive; close it and start another", ())
        if not lost:
            return
        topology = self.topology
        spread = topology.router.spread
        for source in members:
            for target in members:
                if source != target:
                    for flow in range(spread):
                        for link in topology.route(topology.ranks[source], topology.ranks[target], flow):
                            if topology.links[link].target in lost:
                                name = topology.nodes[topology.links[link].target].name
                                raise PeerLost(
                                    f"{name} is lost and ranks {source} and {target} have no way round it; close the session",
                                    (name,),
                                )

    def choose_algorithm(self, collective: str, n_bytes: int, root: int = 0) -> str:
        """What ``auto`` stands for on this fabric, for S = ``n_bytes`` over all ranks."""
        return self.chooser.choose(collective, n_bytes, tuple(range(self.topology.n_ranks)), root)

    def counters(self) -> Counters:
        """What happened since ``begin``, over all actors."""
        parts = self._backend.counters()
        topology = self.topology
        links: dict[str, LinkStatistics] = {}
        by_node: dict[int, int] = {}
        for part in parts:
            for index, statistics in part.links.items():
                link = topology.links[index]
                links[link.name] = statistics
                by_node[link.source] = by_node.get(link.source, 0) + statistics.wire_bytes
        return Counters(
            order_violations=sum(part.order_violations for part in parts),
            order_weight_ps=sum(part.order_weight_ps for part in parts),
            transport_backpressure=sum(part.transport_backpressure for part in parts),
            largest_lateness_ps=max((part.largest_lateness_ps for part in parts), default=0),
            wire_bytes_per_rank_max=max((by_node.get(node, 0) for node in topology.ranks), default=0),
            frames=sum(statistics.frames for statistics in links.values()),
            wire_bytes=sum(statistics.wire_bytes for statistics in links.values()),
            payload_bytes=sum(statistics.payload_bytes for statistics in links.values()),
            events=sum(part.events for part in parts),
            socket_payload_bytes=sum(part.socket_payload_bytes for part in parts),
            links=links,
            congestion=_congestion(topology, parts, self._backend.elapsed_ps()),
        )

    def congestion(self) -> CongestionReport:
        """What ports and adapters counted since ``begin``: ``print`` it for a summary, ask its ``findings()`` what it points to.

        Raises ConfigError on a fabric without ``switching``, whose buffers are infinite.
        """
        found = self.counters().congestion
        if found is None:
            raise ConfigError(f"{self.topology.name} has no switching, so nothing is queued, paused or dropped; give it one")
        return found

    def hops(self) -> list[tuple[int, int]]:
        """(model time in ps, payload bytes) of every frame and hop since ``begin``, with ``record_hops`` under simulate."""
        return self._backend.hops()

    def process_ids(self) -> dict[str, int]:
        """Process id of each node's actor (of this process, under simulate)."""
        return self._backend.process_ids()

    def close(self) -> None:
        """End every actor, socket and file of the session.  May be called twice."""
        self._closed = True
        self._backend.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _congestion(topology: Topology, parts: list[EngineCounters], elapsed_ps: int) -> CongestionReport | None:
    if topology.switching is None:
        return None
    return collect(
        topology,
        queues={link: found for part in parts for link, found in part.queues.items()},
        adapters={rank: found for part in parts for rank, found in part.adapters.items()},
        links={link: found for part in parts for link, found in part.links.items()},
        elapsed_ps=elapsed_ps or max((part.now_ps for part in parts), default=0),  # timers may run on after the last rank
    )


def _checked_dilation(dilation: float | str) -> float:
    try:
        value = float(dilation)
    except ValueError:
        raise ConfigError(f"dilation {dilation!r}: use auto, 0 (unpaced) or a number more than 0") from None
    if not 0 <= value < 1e12:
        raise ConfigError(f"dilation {dilation}: use auto, 0 (unpaced) or a number more than 0, below 1e12")
    return value


def _cautious_dilation(topology: Topology) -> float:
    """Room for every accelerator to send at full rate, and for a socket hop in the smallest latency."""
    out = topology.out_links()
    injection_bps = sum(topology.links[link].rate_bps for node in topology.ranks for link in out[node])
    by_rate = 2 * injection_bps / 8 / ASSUMED_HOST_BYTES_PER_S
    latency_ps = min((link.latency_ps for link in topology.links if link.latency_ps), default=PS_PER_SECOND)
    by_latency = ASSUMED_HOP_S * PS_PER_SECOND / latency_ps
    return max(1.0, by_rate, by_latency)
