"""Small fabrics of packets for the tests of balancing, rerouting and deadlock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from emu.drivers.packet_engine import PacketEngine
from emu.rank import Rank
from emu.session import Session
from emu.topologies import clos
from emu.topologies.graph import Link, Node, NodeKind, Topology, full_duplex
from emu.topologies.routers import ShortestPath
from emu.topologies.switching import Discipline, Switching, TrafficClass

KIB = 2**10
US = 10**6
GBPS = 10**9


def traffic_class(**changes: Any) -> TrafficClass:
    """One lossless class."""
    defaults: dict[str, Any] = {"name": "data", "priority": 3, "discipline": Discipline.PAUSE}
    return TrafficClass(**(defaults | changes))


def switching(only: TrafficClass | None = None, **changes: Any) -> Switching:
    """Buffers that hold whatever the tests here send, with packets of 4 KiB."""
    defaults: dict[str, Any] = {
        "classes": (only or traffic_class(),),
        "quantum_bytes": 4 * KIB,
        "buffer_bytes": 64 * 2**20,
        "alpha": Fraction(8),
        "reserved_bytes": 4 * KIB,
        "headroom_bytes": 128 * KIB,
        "xon_offset_bytes": 4 * KIB,
        "receive_buffer_bytes": 2**20,
    }
    return Switching(**(defaults | changes))


def leaf_spine(rules: Switching, **settings: Any) -> Topology:
    """Two leaves of eight accelerators at 100 Gbit/s, four spines, uplinks of 200 Gbit/s, 100 ns a link."""
    defaults = {
        "leaves": 2, "spines": 4, "accelerators_per_leaf": 8, "rate": "100Gbit/s", "uplink_rate": "200Gbit/s", "latency": "100ns",
    }  # fmt: skip
    texts = {name: str(value) for name, value in (defaults | settings).items()}
    return replace(clos.build(clos.Parameters.model_validate(texts)), switching=rules)


def ring_of_switches(rules: Switching, n: int = 4) -> Topology:
    """Accelerator a<i> on switch s<i>, the switches in a ring; 100 Gbit/s and 100 ns everywhere."""
    names = [f"a{i}" for i in range(n)] + [f"s{i}" for i in range(n)]
    kinds = [NodeKind.ACCELERATOR] * n + [NodeKind.SWITCH] * n
    cables = [(i, n + i) for i in range(n)] + [(n + i, n + (i + 1) % n) for i in range(n)]
    links: list[Link] = []
    for a, b in cables:
        links += full_duplex(names, a, b, rate_bps=100 * GBPS, latency_ps=US // 10)
    return Topology(
        name="ring-of-switches",
        nodes=tuple(Node(name=name, kind=kind) for name, kind in zip(names, kinds, strict=True)),
        links=tuple(links),
        router=ShortestPath(),
        ranks=tuple(range(n)),
        switching=rules,
    )


def clockwise(n: int = 4, n_hops: int = 2) -> str:
    """Ways from every a<i> to a<i + n_hops>, all turning the same way: parameters of the planned policy."""
    ways = [[f"a{i}", *(f"s{(i + hop) % n}" for hop in range(n_hops + 1)), f"a{(i + n_hops) % n}"] for i in range(n)]
    return "; ".join(" ".join(way) for way in ways)


def simulated(topology: Topology, **options: Any) -> Session:
    """A simulating session; ``impairments`` and ``seed`` as a session takes them."""
    return Session(topology, driver="simulate", **options)


def engine_of(session: Session) -> PacketEngine:
    """The engine behind a simulating session."""
    engine = session._backend._simulation.engine  # type: ignore[attr-defined]
    assert isinstance(engine, PacketEngine)
    return engine


def permutation(shift: int, n_bytes: int, chunk_bytes: int | None = None) -> Callable[[Rank], int]:
    """Every rank sends ``n_bytes`` to the rank ``shift`` on and checks what comes; returns when it is done, ps."""

    def function(rank: Rank) -> int:
        n = rank.world_size
        source, target = (rank.index - shift) % n, (rank.index + shift) % n
        outgoing = np.full(n_bytes, rank.index, np.uint8)
        incoming = np.zeros(n_bytes, np.uint8)
        with rank.comm.group():
            rank.comm.send(outgoing, target, chunk_bytes=chunk_bytes)
            rank.comm.recv(incoming, source, chunk_bytes=chunk_bytes)
        assert not rank.payload or (incoming == source).all()
        return rank.now_ps

    return function


def total_ps(session: Session, function: Callable[[Rank], int]) -> int:
    """When the last rank is done."""
    return max(session.run(function))
