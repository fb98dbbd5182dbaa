"""Reduction and multicast in switches: both drivers give the same model times, to the picosecond, and the same data.

As in test_in_process.py: one thread per actor, queues instead of sockets, a real floor page.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emu.drivers.engine import ImpairmentTable
from emu.impairments.spec import parse_impairment, resolve
from emu.rank import Rank
from emu.testing import emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

FABRICS = {
    "node": ("star", {"ranks": "3", "host_size": "3", "multicast": "true"}),
    "network": ("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2", "multicast": "true"}),
    "rails": ("rails", {"nodes": "2", "rails": "2", "nodes_per_leaf": "2", "host_size": "2", "multicast": "true"}),
}
CASES = (
    ("node", "nvls", "all_reduce"),
    ("node", "nvls", "reduce_scatter"),
    ("network", "collnet_direct", "all_reduce"),
    ("network", "collnet_direct", "all_gather"),
    ("rails", "nvlstree", "all_reduce"),
    ("rails", "nvls", "all_reduce"),
)
LATE = 0.001
CHUNK_BYTES = 1024


def fabric(name: str) -> Topology:
    return load_fabric(*FABRICS[name])


def called(rank: Rank, algorithm: str, collective: str) -> list[tuple[int, int]]:
    """Two calls after uneven computation: (completion, checksum) of each."""
    seen = []
    n = rank.world_size
    for _ in range(2):
        rank.compute(us=rank.index * 7 % 5)
        array = np.arange(2304, dtype=np.int32) + rank.index
        result = {"all_reduce": array, "all_gather": np.zeros(n * 2304, np.int32), "reduce_scatter": array[: 2304 // n].copy()}
        getattr(rank.comm, collective)(array, result[collective], algorithm=algorithm, chunk_bytes=CHUNK_BYTES)
        seen.append((rank.now_ps, int(result[collective].sum())))
    return seen


def impaired(topology: Topology) -> ImpairmentTable:
    specs = ("*=jitter,bound=3us,interval=2us", "*=loss,probability=0.05,timeout=20us")
    return resolve([parse_impairment(spec) for spec in specs], topology)


@pytest.mark.parametrize(("name", "algorithm", "collective"), CASES)
def test_emulated_times_are_the_simulated_ones(name: str, algorithm: str, collective: str, tmp_path: Path) -> None:
    """With every node in an actor of its own, and a host that is always late, completions and data equal the simulator's."""
    topology = fabric(name)
    expected = simulated(topology, called, algorithm, collective)
    owner = one_actor_per_node(topology)
    found = emulated_in_process(topology, called, algorithm, collective, owner=owner, dilation=LATE, page=tmp_path / "page")
    assert found.results == expected.results
    assert found.order_violations == 0


@pytest.mark.parametrize("n_actors", [1, 2])
@pytest.mark.parametrize(("name", "algorithm"), [("node", "nvls"), ("network", "collnet_chain")])
def test_jitter_and_loss_change_both_alike(name: str, algorithm: str, n_actors: int, tmp_path: Path) -> None:
    """Packed actors, jitter and loss on every link: still the simulator's times to the picosecond."""
    topology = fabric(name)
    table = impaired(topology)
    owner = tuple(node % n_actors for node in range(len(topology.nodes)))
    expected = simulated(topology, called, algorithm, "all_reduce", seed=3, impairments=table)
    found = emulated_in_process(
        topology, called, algorithm, "all_reduce", owner=owner, dilation=LATE, page=tmp_path / "page", seed=3, impairments=table
    )
    assert found.results == expected.results
    assert found.order_violations == 0
