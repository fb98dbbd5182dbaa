"""What the simulations of congestion share: stars whose links can be full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Switching, TrafficClass

LINE_BPS = 400 * 10**9
QUANTUM_BYTES = 8192


def pausing(name: str = "data", priority: int = 3, **more: Any) -> TrafficClass:
    """A class under priority flow control."""
    return TrafficClass(name=name, priority=priority, discipline=Discipline.PAUSE, **more)


def packet_star(ranks: int, *classes: TrafficClass, drain_bps: Mapping[int, int] | None = None, **switching: Any) -> Topology:
    """Links of 400 Gbit/s and 1 us through one switch of 16 MiB; ``drain_bps``: of slow ranks."""
    topology = load("star", {"ranks": str(ranks), "rate": "400Gbit/s", "latency": "2us"}).topology
    nodes = list(topology.nodes)
    for rank, rate_bps in (drain_bps or {}).items():
        nodes[topology.ranks[rank]] = replace(nodes[topology.ranks[rank]], drain_rate_bps=rate_bps)
    rules: dict[str, Any] = {
        "quantum_bytes": QUANTUM_BYTES,
        "buffer_bytes": 16 << 20,
        "alpha": Fraction(1, 8),
        "reserved_bytes": 4096,
        "headroom_bytes": 200_000,
        "xon_offset_bytes": 100_000,
        "receive_buffer_bytes": 512 << 10,
    }
    return replace(topology, nodes=tuple(nodes), switching=Switching(classes=classes, **rules | switching))
