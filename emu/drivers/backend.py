"""Backend: a driver, from the session's side; and the simulating one.

Law: a session sees the same of either driver.  The emulating one is ``emu.actors.backend``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from emu.clock import unix_s
from emu.drivers.engine import Engine, ImpairmentTable, impaired
from emu.drivers.paced import HostCounters
from emu.drivers.runtime import Runtime
from emu.drivers.simulate import Simulation
from emu.errors import EmuError, PeerLost
from emu.fabric.counters import AdapterStatistics, IntakeStatistics, QueueStatistics
from emu.fabric.link import LinkStatistics
from emu.fabric.recorder import Recorder
from emu.faults.spec import Injection
from emu.rank import Rank
from emu.telemetry.scrapes import Series
from emu.telemetry.snapshot import Meter, Reading
from emu.telemetry.timing import Timing, known_ps
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """One engine's part of :class:`Counters`: links and queues (by class) by link, adapters by rank, its last event's time."""

    links: dict[int, LinkStatistics]
    events: int
    queues: dict[int, tuple[QueueStatistics, ...]]
    adapters: dict[int, AdapterStatistics]
    now_ps: int
    intakes: dict[int, IntakeStatistics] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()
    known_ps: int = 0
    """From when on there is a timing of every call here."""
    scraped: Series | None = None
    """Of an engine that is observed."""
    order_violations: int = 0
    order_weight_ps: int = 0
    transport_backpressure: int = 0
    largest_lateness_ps: int = 0
    socket_payload_bytes: int = 0

    @staticmethod
    def of(engine: Engine, runtime: Runtime, *, observed: bool = False) -> EngineCounters:
        """``observed``: with the scrapes of before."""
        return EngineCounters(
            links=engine.link_statistics(),
            events=engine.events,
            queues=engine.queue_statistics(),
            adapters=engine.adapter_statistics(),
            now_ps=engine.now_ps,
            intakes=engine.intake_statistics(),
            timings=tuple(runtime.timings),
            known_ps=known_ps(runtime.timings),
            scraped=engine.scraper.series() if observed else None,
        )


class Backend(Protocol):
    """A driver, from the session's side."""

    record_hops: bool
    """Whether the next model remembers its hops, where it can."""

    def begin(
        self, *, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable, faults: tuple[Injection, ...]
    ) -> None: ...
    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], members: tuple[int, ...], communicator: int
    ) -> dict[int, Any]: ...
    def counters(self) -> list[EngineCounters]: ...
    def observed(self) -> list[EngineCounters]:
        """The same with the scrapes of before, of those that answer.  In any thread, also while a function runs."""
        ...

    def record(self) -> None:
        """Note what happens, from the next :meth:`begin` on."""
        ...

    def recorders(self) -> list[Recorder]:
        """What was noted since :meth:`begin`, of every engine."""
        ...

    def elapsed_ps(self) -> int:
        """Model time at which the last rank of the last run returned; 0 before."""
        ...

    def inject(self, faults: tuple[Injection, ...]) -> dict[str, int]:
        """Have faults take effect now.  In any thread.  Returns when they do, by component, in model time."""
        ...

    def kill(self, rank: int) -> int:
        """Have a rank die now.  In any thread.  Returns its model time."""
        ...

    def stopped_s(self) -> dict[str, float]:
        """For how many seconds of the last run actors' processes were stopped, by the name of their first node."""
        ...

    def lift(self, number: int) -> int:
        """End the fault of that number now.  In any thread.  Returns the model time at which the last part of it does."""
        ...

    def lost_nodes(self) -> frozenset[int]: ...
    def look(self) -> None: ...
    def process_ids(self) -> dict[str, int]: ...
    def hops(self) -> list[tuple[int, int]]: ...
    def readings(self) -> list[Reading]: ...
    def metrics_endpoints(self) -> dict[str, str]: ...
    def close(self) -> None: ...


class Simulated:
    """The simulating driver behind a session."""

    def __init__(
        self,
        *,
        topology: Topology,
        payload: bool,
        choose_algorithm: Callable[..., str],
        timeout_s: float,
        record_hops: bool,
    ) -> None:
        self._topology = topology
        self._payload = payload
        self._choose = choose_algorithm
        self._timeout_s = timeout_s
        self.record_hops = record_hops
        self._is_recording = False
        self._seed = 0
        self._simulation: Simulation | None = None
        self._meter = Meter()
        self._lost: frozenset[int] = frozenset()
        self._start_ps = self._elapsed_ps = 0

    def begin(
        self, *, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable, faults: tuple[Injection, ...]
    ) -> None:
        self._seed = seed
        if self._simulation is not None:
            self._meter.keep(self._simulation.engine, HostCounters())
        self._meter.impaired = impaired(self._topology, impairments)
        self._simulation = Simulation(
            with_seed(self._topology, seed),
            seed=seed,
            impairments=impairments,
            payload=self._payload,
            choose_algorithm=self._choose,
            timeout_s=self._timeout_s,
            faults=faults,
            calls=self._meter.calls,
        )
        if self.record_hops:
            self._simulation.engine.hops = []
        if self._is_recording:
            self._simulation.engine.recorder = Recorder()
        self._start_ps = self._elapsed_ps = 0

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], members: tuple[int, ...], communicator: int
    ) -> dict[int, Any]:
        simulation = self._begun()
        topology = simulation.topology
        ranks = [
            Rank(
                runtime=simulation.runtime,
                world_rank=world_rank,
                members=members,
                name=topology.nodes[topology.ranks[world_rank]].name,
                seed=self._seed,
                start_ps=self._start_ps,
                communicator=communicator,
            )
            for world_rank in members
        ]
        try:
            results = simulation.run(function, args, ranks)
        except PeerLost as error:
            self._lost |= {number for number, node in enumerate(topology.nodes) if node.name in error.nodes}
            raise
        self._elapsed_ps = max(rank.cursor_ps for rank in ranks)
        self._start_ps = max(self._elapsed_ps, simulation.engine.now_ps)
        return results

    def _begun(self) -> Simulation:
        if self._simulation is None:
            raise EmuError("the session has not begun, or is closed")
        return self._simulation

    def hops(self) -> list[tuple[int, int]]:
        return [] if self._simulation is None else list(self._simulation.engine.hops or [])

    def counters(self) -> list[EngineCounters]:
        return [] if self._simulation is None else [EngineCounters.of(self._simulation.engine, self._simulation.runtime)]

    def observed(self) -> list[EngineCounters]:
        simulation = self._begun()
        found: list[EngineCounters] = []
        simulation.command(lambda: found.append(EngineCounters.of(simulation.engine, simulation.runtime, observed=True)))
        return found

    def record(self) -> None:
        self._is_recording = True

    def recorders(self) -> list[Recorder]:
        recorder = None if self._simulation is None else self._simulation.engine.recorder
        return [] if recorder is None else [recorder]

    def elapsed_ps(self) -> int:
        return self._elapsed_ps

    def lost_nodes(self) -> frozenset[int]:
        return self._lost

    def inject(self, faults: tuple[Injection, ...]) -> dict[str, int]:
        simulation, found = self._begun(), {}

        def act() -> None:
            engine = simulation.engine
            for fault in faults:
                begin_ps = engine.injector.inject(fault, engine.untouched_ps)
                if begin_ps is not None:
                    found[fault.component] = begin_ps

        simulation.command(act)
        return found

    def kill(self, rank: int) -> int:
        engine = self._begun().engine
        self._begun().command(lambda: engine.endpoints[rank].condition.kill(engine.untouched_ps))
        return engine.now_ps

    def stopped_s(self) -> dict[str, float]:
        return {}

    def lift(self, number: int) -> int:
        simulation = self._begun()
        simulation.command(lambda: simulation.engine.injector.lift(number, simulation.engine.untouched_ps))
        return simulation.engine.now_ps

    def look(self) -> None:
        """Nothing dies here."""

    def process_ids(self) -> dict[str, int]:
        return {node.name: os.getpid() for node in self._topology.nodes}

    def readings(self) -> list[Reading]:
        if self._simulation is None:
            return []
        taken = self._meter.snapshot(self._simulation.engine, HostCounters(), dilation=0.0)
        return [Reading(actor="simulator", role="all", is_alive=True, read_s=unix_s(), snapshot=taken)]

    def metrics_endpoints(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self._simulation = None
