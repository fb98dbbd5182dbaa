"""Both drivers say the same of where time went: online and on record, to the picosecond, however late the host is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emu.impairments.spec import parse_impairment, resolve
from emu.rank import Rank
from emu.telemetry.attribution import Attribution
from emu.telemetry.record import RunRecord
from emu.testing import Outcome, emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed

LATE = 0.001
"""A dilation at which every event is late."""
CASES = {
    "clos": ("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2"}, ("*=loss,probability=0.05,timeout=20us",)),
    "torus": ("torus", {"shape": "2x2", "window": "8KiB"}, ("*=jitter,bound=3us,interval=2us",)),
    "pauses": ("star", {"ranks": "4", "switching": "roce-pfc"}, ()),
    "credits": ("star", {"ranks": "4", "switching": "infiniband"}, ()),
    "drops": ("star", {"ranks": "4", "switching": "roce-lossy"}, ("*=loss,probability=0.02",)),
    "trims": ("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2", "switching": "ultra-ethernet"}, ()),
}


def splits(rank: Rank) -> list[tuple[Any, ...]]:
    """Of calls after uneven computation, two of them in flight together: what each knows when it is over."""
    rank.compute(us=rank.index * 7 % 5)
    array = np.ones(6144, np.float32)
    out = np.empty_like(array)
    works = [
        rank.comm.all_reduce(array, algorithm="ring", chunk_bytes=2048, async_op=True),
        rank.comm.alltoall(array, out, algorithm="direct", chunk_bytes=4096, async_op=True),
    ]
    for work in works:
        work.wait()
    done = [work.operations[0] for work in works]
    return [(one.completed_ps, one.split_ps, one.first_start_ps, one.last_start_ps, one.last_rank) for one in done]


@pytest.mark.parametrize("name", sorted(CASES))
def test_emulated_splits_are_the_simulated_ones(name: str, tmp_path: Path) -> None:
    """Splits, first and last starts, and every part of every call's recorded time are equal, though the host is always late."""
    fabric, settings, specs = CASES[name]
    topology = with_seed(load_fabric(fabric, settings), 3)
    table = resolve([parse_impairment(spec) for spec in specs], topology)
    owner = one_actor_per_node(topology)
    expected = simulated(topology, splits, seed=3, impairments=table, record=True)
    found = emulated_in_process(
        topology, splits, owner=owner, dilation=LATE, page=tmp_path / "page", seed=3, impairments=table, record=True
    )
    assert found.results == expected.results
    assert all(sum(split) > 0 for rank in found.results for _, split, *_ in rank)
    assert len(found.recorders) == len(topology.nodes)
    assert parts(topology, found) == parts(topology, expected)


def parts(topology: Topology, outcome: Outcome) -> list[Any]:
    attribution = Attribution(RunRecord.of(topology, outcome.recorders, driver="either", seed=3, dilation=0.0))
    return [(call.rank, call.number, attribution.parts(call)) for call in attribution.record.calls]
