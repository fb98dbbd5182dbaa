"""What the tests of packets share: fabrics with a ``switching``, traffic with known bytes, and runs that keep the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np

from emu.drivers.engine import ImpairmentTable
from emu.drivers.packet_engine import PacketEngine
from emu.drivers.simulate import Simulation
from emu.fabric.counters import QueueStatistics
from emu.impairments.spec import parse_impairment, resolve
from emu.rank import Rank
from emu.topologies import clos as clos_fabric
from emu.topologies import ring as ring_fabric
from emu.topologies import star as star_fabric
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed
from emu.topologies.switching import Discipline, Recovery, Switching, TrafficClass

KIB, MIB = 2**10, 2**20
US, MS = 10**6, 10**9
"""Picoseconds."""
RATE, RATE_BPS = "400Gbit/s", 400 * 10**9
BYTES_PER_US = 50_000
"""What such a link carries."""


def traffic_class(**options: Any) -> TrafficClass:
    """One class of data; ``pause`` unless said otherwise."""
    defaults: dict[str, Any] = {"name": "data", "priority": 3, "discipline": Discipline.PAUSE}
    return TrafficClass(**(defaults | options))


def dropping(recovery: Recovery, **options: Any) -> TrafficClass:
    return traffic_class(discipline=Discipline.DROP, recovery=recovery, **options)


def credited(credit_bytes: int = 400_000, **options: Any) -> TrafficClass:
    return traffic_class(discipline=Discipline.CREDIT, credit_bytes=credit_bytes, **options)


def switching(*classes: TrafficClass, **options: Any) -> Switching:
    """A switch of 16 MiB, packets of 16 KiB, headroom for 400 Gbit/s links of 1 us."""
    defaults: dict[str, Any] = {
        "classes": classes or (traffic_class(),),
        "quantum_bytes": 16 * KIB,
        "buffer_bytes": 16 * MIB,
        "alpha": Fraction(1, 8),
        "reserved_bytes": 4 * KIB,
        "headroom_bytes": 200_000,
        "xon_offset_bytes": 3 * KIB,
        "receive_buffer_bytes": MIB,
    }
    return Switching(**(defaults | options))


def star(ranks: int, switching: Switching) -> Topology:
    """One switch, every link 400 Gbit/s and 1 us."""
    fabric = star_fabric.build(star_fabric.Parameters.model_validate({"ranks": ranks, "rate": RATE, "latency": "2us"}))
    return replace(fabric, switching=switching)


def leaf_spine(leaves: int, spines: int, hosts: int, switching: Switching) -> Topology:
    """``hosts`` on each leaf, every link 400 Gbit/s and 1 us."""
    sizes = {"leaves": leaves, "spines": spines, "accelerators_per_leaf": hosts}
    parameters = clos_fabric.Parameters.model_validate({**sizes, "rate": RATE, "uplink_rate": RATE, "latency": "1us"})
    return replace(clos_fabric.build(parameters), switching=switching)


def ring(ranks: int, switching: Switching) -> Topology:
    """Accelerators that forward, every link 400 Gbit/s and 1 us."""
    parameters = ring_fabric.Parameters.model_validate({"ranks": ranks, "rate": RATE, "latency": "1us"})
    return replace(ring_fabric.build(parameters), switching=switching)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run gave by rank, and the engine after its last event."""

    results: list[Any]
    engine: PacketEngine

    def queues(self, link: str) -> tuple[QueueStatistics, ...]:
        """A link's counters by class."""
        return next(p.queue_statistics(self.engine.now_ps) for p in self.engine.ports.values() if p.link.name == link)

    def total(self, counter: str) -> int:
        """A counter of :class:`QueueStatistics` over all ports and classes."""
        return sum(getattr(q, counter) for p in self.engine.ports.values() for q in p.queue_statistics(self.engine.now_ps))

    def paused_links(self) -> set[str]:
        """Links whose sender was ever paused."""
        return {
            port.link.name
            for port in self.engine.ports.values()
            if any(queue.pause_frames for queue in port.queue_statistics(self.engine.now_ps))
        }


def run(
    fabric: Topology,
    function: Callable[..., Any],
    *args: Any,
    payload: bool = True,
    seed: int = 0,
    impair: Sequence[str] = (),
    prepare: Callable[[PacketEngine], None] | None = None,
) -> Outcome:
    """Simulate ``function`` on every rank to its end, and what is under way after it."""
    table: ImpairmentTable = resolve([parse_impairment(text) for text in impair], fabric)
    simulation = Simulation(
        with_seed(fabric, seed), seed=seed, impairments=table, payload=payload, choose_algorithm=lambda *_: "ring"
    )
    engine = cast(PacketEngine, simulation.engine)
    if prepare is not None:
        prepare(engine)
    members = tuple(range(fabric.n_ranks))
    ranks = [
        Rank(runtime=simulation.runtime, world_rank=r, members=members, name=str(r), seed=seed, start_ps=0, communicator=0)
        for r in members
    ]
    results = simulation.run(function, args, ranks)
    return Outcome(results=[results[rank] for rank in members], engine=engine)


Flow = tuple[int, int, int]
"""(source, target, bytes) of one message."""


def pattern(source: int, target: int, number: int, n_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that tell who sent them, as which message, and where in it they stand."""
    start = 31 * source + 17 * target + 101 * number
    return ((np.arange(start, start + n_bytes, dtype=np.uint64) * 2654435761) >> np.uint64(13)).astype(np.uint8)


def exchange(rank: Rank, flows: Sequence[Flow], payload: bool = True) -> list[tuple[int, bool]]:
    """Send and receive all ``flows`` at once.  Returns for each one to this rank (when it was here, whether it was right)."""
    comm, me = rank.comm, rank.index

    def blank(n_bytes: int) -> Any:
        return np.zeros(n_bytes, np.uint8) if payload else np.broadcast_to(np.zeros(1, np.uint8), (n_bytes,))

    received, works, times = [], [], []
    for number, (source, target, n_bytes) in enumerate(flows):
        if source == me:
            data = pattern(source, target, number, n_bytes) if payload else blank(n_bytes)
            works.append(comm.send(data, target, async_op=True))
        if target == me:
            buffer = blank(n_bytes)
            received.append((buffer, number, comm.recv(buffer, source, async_op=True)))
    for buffer, number, work in received:
        work.wait()
        source, target, n_bytes = flows[number]
        right = not payload or bool(np.array_equal(buffer, pattern(source, target, number, n_bytes)))
        times.append((rank.now_ps, right))
    for work in works:
        work.wait()
    return times


def jain(rates: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1/n where one has all."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def assert_at_rest(outcome: Outcome) -> None:
    """Nothing is held any more, every credit is home, and each switch's packets in are out or dropped."""
    engine = outcome.engine
    switching, topology = engine.switching, engine.topology
    for node, switch in engine.switches.items():
        switch.validate()
        assert switch.buffer.used_bytes == 0, topology.nodes[node].name
    for port in engine.ports.values():
        assert port.holds_bytes == 0 and not any(port.queues), port.link.name
        receiver = port.link.target
        for queue, credits in enumerate(port.credits):
            if credits is not None:
                owed = engine.switches[receiver].credits.owed_bytes(port.index, queue)
                assert credits + owed == switching.classes[queue % len(switching.classes)].credit_bytes, port.link.name
    for adapter in engine.adapters.values():
        assert adapter.is_at_rest, adapter.name
    endpoints = set(topology.ranks)
    for node in set(engine.switches) - endpoints:
        into = [p for p in engine.ports.values() if p.link.target == node]
        out = [p for p in engine.ports.values() if p.link.source == node]
        lost = 0 if switching.link_retry else sum(port.lost_packets for port in into)
        came = sum(c.packets for port in into for c in port.counters) - lost
        gone = sum(c.packets + c.dropped_packets + c.watchdog_packets for port in out for c in port.counters)
        assert came == gone, topology.nodes[node].name
