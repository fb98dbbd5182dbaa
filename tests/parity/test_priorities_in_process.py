"""Traffic classes of communicators under the emulating driver: the simulator's times, to the picosecond."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from emu.rank import Rank
from emu.testing import emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Switching, TrafficClass

N_BYTES = 64 * 1024


def fabric(*, strict: bool) -> Topology:
    """Two ranks, two classes: one strict, or three to one."""
    bulk = TrafficClass(name="bulk", priority=1, discipline=Discipline.PAUSE)
    fast = TrafficClass(name="fast", priority=5, discipline=Discipline.PAUSE, strict=strict, weight=1 if strict else 3)
    switching = Switching(
        classes=(bulk, fast), quantum_bytes=4096, buffer_bytes=1 << 20, alpha=Fraction(1), reserved_bytes=0,
        headroom_bytes=150_000, xon_offset_bytes=2048, receive_buffer_bytes=1 << 20,
    )  # fmt: skip
    return replace(load_fabric("star", {"ranks": "2"}), switching=switching)


def tenants(rank: Rank) -> tuple[dict[int, int], bool]:
    """Both tenants send at once: when each was complete, and whether what came is right."""
    comms = {priority: rank.comm.create_group([0, 1], priority=priority) for priority in (1, 5)}
    arrays = {priority: np.full(N_BYTES, priority if rank.index == 0 else 0, np.uint8) for priority in comms}
    works = {}
    for priority, comm in comms.items():
        call, peer = (comm.send, 1) if rank.index == 0 else (comm.recv, 0)
        works[priority] = call(arrays[priority], peer, async_op=True)
    ends_ps = {priority: work.wait() for priority, work in works.items()}
    return ends_ps, all(bool((array == priority).all()) for priority, array in arrays.items())


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "weighted"])
def test_classes_are_kept_over_sockets(strict: bool, tmp_path: Path) -> None:
    """The urgent tenant is complete first, in both drivers at the same model time, with the right data."""
    topology = fabric(strict=strict)
    expected = simulated(topology, tenants)
    found = emulated_in_process(topology, tenants, owner=one_actor_per_node(topology), dilation=0.001, page=tmp_path / "page")
    assert found.results == expected.results
    ends_ps, is_right = expected.results[1]
    assert is_right
    assert ends_ps[5] < ends_ps[1]
