"""Packets have the simulator's times under the emulating driver too, to the picosecond, whatever a full link does.

As in ``test_in_process.py``: one thread per actor, queues instead of sockets, and a real floor page.
"""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from emu.drivers.engine import ImpairmentTable
from emu.errors import ConfigError
from emu.impairments.spec import parse_impairment, resolve
from emu.rank import Rank
from emu.testing import emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed
from emu.topologies.switching import Discipline, Recovery, Switching, TrafficClass
from emu.units import duration_ps

FABRICS = {
    "star": ("star", {"ranks": "4"}),
    "torus": ("torus", {"shape": "3x3"}),
    "clos": ("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2"}),
}
CLASSES = {
    "pause": TrafficClass(name="data", priority=3, discipline=Discipline.PAUSE),
    "credit": TrafficClass(name="data", priority=3, discipline=Discipline.CREDIT, credit_bytes=9000),
    "go_back_n": TrafficClass(
        name="data", priority=3, discipline=Discipline.DROP, recovery=Recovery.GO_BACK_N, timeout_ps=20_000_000
    ),
    "trims": TrafficClass(
        name="data", priority=3, discipline=Discipline.DROP, recovery=Recovery.SELECTIVE_REPEAT, trims=True, timeout_ps=20_000_000
    ),
}
LOSSY = ("go_back_n", "trims")
QUANTUM_BYTES = 4096
N_BYTES = 48 * 1024
KEEPS_PACE, LATE, UNPACED = 100.0, 0.001, 0.0
IMPAIRMENTS = ("*=jitter,bound=3us,interval=2us", "*=loss,probability=0.02,timeout=20us")


def fabric(name: str, traffic_class: str, seed: int = 0, **settings: str) -> Topology:
    """Small buffers, so that the incast below is paused, held back or dropped."""
    topology, label = FABRICS[name]
    made = load_fabric(topology, {**label, **settings})
    headroom_bytes = 150_000 if traffic_class == "pause" else 0
    targets = [link.target for link in made.links]
    most_inputs = max(targets.count(node) for node in targets)
    switching = Switching(
        classes=(CLASSES[traffic_class],),
        quantum_bytes=QUANTUM_BYTES,
        buffer_bytes=40_000 + most_inputs * headroom_bytes,
        alpha=Fraction(1, 4),
        reserved_bytes=0,
        headroom_bytes=headroom_bytes,
        xon_offset_bytes=2048,
        receive_buffer_bytes=1 << 20,
    )
    return with_seed(replace(made, switching=switching), seed)


def packed(topology: Topology, n_actors: int) -> tuple[int, ...]:
    return tuple(node % n_actors for node in range(len(topology.nodes)))


def incast_and_ring(rank: Rank) -> tuple[int, int, int, int]:
    """All send to rank 0, after uneven computation, and then reduce in a ring: times and checksums."""
    rank.compute(us=0.02 * rank.index)
    total = 0
    if rank.index == 0:
        buffers = [np.zeros(N_BYTES, np.uint8) for _ in range(rank.world_size - 1)]
        with rank.comm.group():
            for peer, buffer in enumerate(buffers, 1):
                rank.comm.recv(buffer, peer)
        total = sum(int(buffer.sum()) for buffer in buffers)
    else:
        rank.comm.send(np.full(N_BYTES, rank.index, np.uint8), 0)
    first_ps = rank.now_ps
    array = np.arange(2048, dtype=np.int32) + rank.index
    rank.comm.all_reduce(array, algorithm="ring", chunk_bytes=2048)
    return first_ps, total, rank.now_ps, int(array.sum())


def overlapping(rank: Rank) -> list[int]:
    """Calls in flight together and computation that ends where packets do."""
    big, small = np.ones(4096, dtype=np.float32), np.ones(64, dtype=np.float32)
    works = [rank.comm.all_reduce(big, algorithm="ring", chunk_bytes=2048, async_op=True)]
    rank.compute(us=3)
    works.append(rank.comm.all_reduce(small, algorithm="tree", async_op=True))
    received = np.empty_like(small)
    with rank.comm.group():
        rank.comm.send(small, (rank.index + 1) % rank.world_size)
        rank.comm.recv(received, (rank.index - 1) % rank.world_size)
    return [*(work.wait() for work in works), rank.now_ps]


def coincident(rank: Rank, delay_ps: int) -> int:
    """Rank 0 sends to 1 in many packets; what comes from 2 lets it send to 3 too.  When rank 3 has it."""
    data = np.ones(64 * QUANTUM_BYTES, np.uint8)
    match rank.index:
        case 0:
            works = [rank.comm.send(data, 1, async_op=True)]
            rank.comm.recv(data[:QUANTUM_BYTES].copy(), 2)
            resumed_ps = rank.now_ps
            works.append(rank.comm.send(data, 3, async_op=True))
            for work in works:
                work.wait()
            return resumed_ps
        case 2:
            rank.compute(delay_ps)
            rank.comm.send(data[:QUANTUM_BYTES], 0)
        case _:
            rank.comm.recv(data, 0)
    return rank.now_ps


def lone_sender(rank: Rank) -> int:
    """Rank 0 sends a few packets to rank 2."""
    data = np.ones(3 * QUANTUM_BYTES, np.uint8)
    if rank.index == 0:
        rank.comm.send(data, 2)
    elif rank.index == 2:
        rank.comm.recv(data, 0)
    return rank.now_ps


def impaired(topology: Topology, specs: tuple[str, ...]) -> ImpairmentTable:
    return resolve([parse_impairment(spec) for spec in specs], topology)


@pytest.mark.parametrize("dilation", [KEEPS_PACE, LATE, UNPACED], ids=["keeps_pace", "late", "unpaced"])
@pytest.mark.parametrize("traffic_class", sorted(CLASSES))
@pytest.mark.parametrize("name", sorted(FABRICS))
def test_emulated_packets_have_the_simulated_times(name: str, traffic_class: str, dilation: float, tmp_path: Path) -> None:
    """Paused, held back, dropped or trimmed: completions and data equal the simulator's at any pace, and order holds."""
    topology = fabric(name, traffic_class)
    expected = simulated(topology, incast_and_ring)
    owner = one_actor_per_node(topology)
    found = emulated_in_process(topology, incast_and_ring, owner=owner, dilation=dilation, page=tmp_path / "page")
    assert found.results == expected.results
    assert found.order_violations == 0
    assert expected.results[0][1] == N_BYTES * sum(range(topology.n_ranks))


@pytest.mark.parametrize("n_actors", [1, 2, 3])
@pytest.mark.parametrize("traffic_class", sorted(CLASSES))
@pytest.mark.parametrize("name", sorted(FABRICS))
def test_a_late_host_changes_no_packet_under_jitter_and_loss(
    name: str, traffic_class: str, n_actors: int, tmp_path: Path
) -> None:
    """Packed actors, jitter, loss where it is recovered, and a host that is always late: still the simulator's times."""
    topology = fabric(name, traffic_class, seed=n_actors)
    table = impaired(topology, IMPAIRMENTS if traffic_class in LOSSY else IMPAIRMENTS[:1])
    expected = simulated(topology, incast_and_ring, seed=n_actors, impairments=table)
    found = emulated_in_process(
        topology, incast_and_ring, owner=packed(topology, n_actors), dilation=LATE, page=tmp_path / "page",
        seed=n_actors, impairments=table,
    )  # fmt: skip
    assert found.results == expected.results
    assert found.order_violations == 0


@pytest.mark.parametrize("traffic_class", ["credit", "trims"])
@pytest.mark.parametrize("n_actors", [2, 5])
def test_overlapping_calls_keep_their_times(n_actors: int, traffic_class: str, tmp_path: Path) -> None:
    """What ends at a running rank's cursor waits for its user code, as it does when simulated."""
    topology = fabric("star", traffic_class)
    expected = simulated(topology, overlapping)
    found = emulated_in_process(topology, overlapping, owner=packed(topology, n_actors), dilation=LATE, page=tmp_path / "page")
    assert found.results == expected.results


def test_a_packet_that_could_leave_when_user_code_goes_on_waits_for_it(tmp_path: Path) -> None:
    """Rank 0's wire is free at the very picosecond at which its user code sends more: the call comes first, as simulated."""
    topology = fabric("star", "pause")
    link = topology.links[topology.out_links()[topology.ranks[0]][0]]
    n_headers = -(-QUANTUM_BYTES // link.mtu_bytes)
    packet_ps = duration_ps(QUANTUM_BYTES + n_headers * link.header_bytes, link.rate_bps)
    delay_ps = -simulated(topology, coincident, 0).results[0] % packet_ps
    expected = simulated(topology, coincident, delay_ps)
    assert expected.results[0] % packet_ps == 0
    owner = one_actor_per_node(topology)
    found = emulated_in_process(topology, coincident, delay_ps, owner=owner, dilation=LATE, page=tmp_path / "page")
    assert found.results == expected.results


@pytest.mark.parametrize("dilation", [KEEPS_PACE, LATE], ids=["keeps_pace", "late"])
@pytest.mark.parametrize("switching", ["", "roce-dcqcn", "ultra-ethernet"])
def test_a_run_starts_where_the_one_before_has_come_to_rest(switching: str, dilation: float, tmp_path: Path) -> None:
    """Acknowledgements, credits and timers of a run are over before the next one starts, at the same time under both drivers."""
    topology = load_fabric("star", {"ranks": "4", "rate": "100Gbit/s"} | ({"switching": switching} if switching else {}))
    first, expected = (simulated(topology, incast_and_ring, n_runs=n_runs) for n_runs in (1, 2))
    assert min(times[0] for times in expected.results) > max(times[2] for times in first.results)
    found = emulated_in_process(
        topology, incast_and_ring, owner=one_actor_per_node(topology), dilation=dilation, page=tmp_path / "page", n_runs=2
    )
    assert found.results == expected.results
    assert found.order_violations == 0


def test_narrow_windows_and_links_without_latency_keep_their_times(tmp_path: Path) -> None:
    """Credits of connections, and links of no latency, over which a word takes a picosecond."""
    topology = fabric("star", "go_back_n", window="8192", latency="0us")
    expected = simulated(topology, incast_and_ring)
    found = emulated_in_process(
        topology, incast_and_ring, owner=one_actor_per_node(topology), dilation=LATE, page=tmp_path / "page"
    )
    assert found.results == expected.results


def test_a_pushing_back_transport_changes_no_packet(tmp_path: Path) -> None:
    """Sockets that refuse every fifth send leave the model's times alone, and the refusals are counted."""
    topology = fabric("star", "pause")
    expected = simulated(topology, incast_and_ring)
    found = emulated_in_process(
        topology, incast_and_ring, owner=one_actor_per_node(topology), dilation=LATE, page=tmp_path / "page", reject_every=5
    )
    assert found.results == expected.results
    assert found.transport_backpressure > 0


def test_a_loop_that_is_over_leaves_no_descriptor(tmp_path: Path) -> None:
    """Stopped, or ended by a fault that ends the run too: the pipe that wakes it is closed."""
    topology = fabric("star", "pause")
    owner = one_actor_per_node(topology)
    assert topology.switching is not None
    faulty = replace(topology, switching=replace(topology.switching, headroom_bytes=0, buffer_bytes=40_000))
    before = len(os.listdir("/proc/self/fd"))
    emulated_in_process(topology, overlapping, owner=owner, dilation=LATE, page=tmp_path / "page")
    with pytest.raises(AssertionError, match="a lossless packet does not fit"):
        emulated_in_process(faulty, incast_and_ring, owner=owner, dilation=LATE, page=tmp_path / "other")
    assert len(os.listdir("/proc/self/fd")) == before


def test_packets_on_several_hosts_need_a_pace(tmp_path: Path) -> None:
    """Without a page of floors and without a pace nothing would keep packets in order: that is refused."""
    topology = fabric("star", "pause")
    with pytest.raises(ConfigError, match="dilation 0 on several hosts"):
        emulated_in_process(topology, overlapping, owner=one_actor_per_node(topology), dilation=UNPACED, page=None)


def test_without_a_page_packets_of_a_host_that_keeps_pace_have_the_same_times() -> None:
    """By slack alone, and slowly enough, the times are the simulator's and no order is violated."""
    topology = fabric("star", "trims", latency="2us")
    expected = simulated(topology, lone_sender)
    owner = packed(topology, 1)
    found = emulated_in_process(topology, lone_sender, owner=owner, dilation=20_000.0, page=None)
    assert found.results == expected.results
    assert found.order_violations == 0
