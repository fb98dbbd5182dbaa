"""Faults take effect at the same model time under both drivers, to the picosecond, however late the host is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emu.rank import Rank
from emu.testing import emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

KEEPS_PACE, LATE = 100.0, 0.001
FABRICS = {
    "star": ("star", {"ranks": "3", "rate": "1GB/s"}),
    "torus": ("torus", {"shape": "2x2", "rate": "1GB/s"}),
    "pfc": ("star", {"ranks": "3", "rate": "1GB/s", "switching": "roce-pfc", "headroom": "1MiB"}),
    "ultra-ethernet": (
        "clos",
        {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2", "rate": "1GB/s", "switching": "ultra-ethernet"},
    ),
}
FAULTS = {
    "links": ("a0->*=slow,factor=0.5,at=3us,for=20us", "*->a1=longer,added=2us,at=8us", "a1->*=flapping,period=4us,duty=0.3"),
    "outage": ("a0->*=down,at=5us,for=20us", "a0->*=slow,factor=0.3"),
    "ranks": ("a1=slow_compute,factor=2", "rank2=late,by=7us,count=3", "a0=stopped,at=9us,for=15us"),
    "receiver": ("a2=slow_receiver,rate=300MB/s,at=4us",),
    "traffic": ("a0->a2=background,message=8KiB", "a1->a0=background,rate=400MB/s,message=2KiB,at=5us,for=30us"),
    "all": ("a0->a2=background,message=8KiB", "a1=stopped,at=2us,for=10us", "*->a2=slow,factor=0.3,at=3us", "a2=late,by=1us"),
}


def calls(rank: Rank) -> list[tuple[int, int]]:
    """Three calls after uneven computation: (completion, checksum) of each."""
    seen = []
    for _ in range(3):
        rank.compute(us=rank.index * 7 % 5)
        array = np.arange(3072, dtype=np.int32) + rank.index
        rank.comm.all_reduce(array, algorithm="ring", chunk_bytes=2048)
        seen.append((rank.now_ps, int(array.sum())))
    return seen


def packed(topology: Topology) -> tuple[int, ...]:
    return tuple(node % 2 for node in range(len(topology.nodes)))


@pytest.mark.parametrize("faults", sorted(FAULTS))
@pytest.mark.parametrize("name", sorted(FABRICS))
def test_scheduled_faults_have_the_simulated_effect(name: str, faults: str, tmp_path: Path) -> None:
    """Two runs on one model, every node in an actor of its own on a late host, or two actors that keep pace: the same times."""
    topology = load_fabric(*FABRICS[name])
    specs = FAULTS[faults]
    expected = simulated(topology, calls, faults=specs, n_runs=2)
    assert expected.results != simulated(topology, calls, n_runs=2).results
    owner, dilation = (packed(topology), KEEPS_PACE) if len(specs) % 2 else (one_actor_per_node(topology), LATE)
    found = emulated_in_process(topology, calls, owner=owner, dilation=dilation, page=tmp_path / "page", faults=specs, n_runs=2)
    assert found.results == expected.results
    assert found.order_violations == 0
