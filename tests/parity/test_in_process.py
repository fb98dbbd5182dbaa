"""Both drivers give the same model times, to the picosecond, however late the host is.

The emulating driver runs here without Ray and ZeroMQ: one thread per actor, queues instead of sockets,
and a real floor page.  That order is conservative is the promise which all emulated numbers rest on.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from emu.drivers.engine import ImpairmentTable
from emu.drivers.paced import PacedEngine
from emu.fabric.connection import Connection
from emu.fabric.frame import Frame
from emu.impairments.spec import parse_impairment, resolve
from emu.rank import Rank
from emu.testing import Hold, emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed

FABRICS = {
    "star": ("star", {"ranks": "3"}),
    "torus": ("torus", {"shape": "2x2"}),
    "clos": ("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2"}),
}
KEEPS_PACE, LATE = 100.0, 0.001
"""Dilations: one at which this host mostly keeps pace, and one at which every event is late."""
CHUNK_BYTES = 2048
IMPAIRMENTS = ("*=jitter,bound=3us,interval=2us", "*=loss,probability=0.05,timeout=20us")


def fabric(name: str, seed: int = 0) -> Topology:
    return with_seed(load_fabric(*FABRICS[name]), seed)


def impaired(topology: Topology) -> ImpairmentTable:
    return resolve([parse_impairment(spec) for spec in IMPAIRMENTS], topology)


def packed(topology: Topology, n_actors: int) -> tuple[int, ...]:
    """Nodes dealt over fewer actors, so that links lie inside actors and ways lead out of one and back."""
    return tuple(node % n_actors for node in range(len(topology.nodes)))


def collective(rank: Rank, algorithm: str) -> list[tuple[int, int]]:
    """Two calls after uneven computation: (completion, checksum) of each."""
    seen = []
    for _ in range(2):
        rank.compute(us=rank.index * 7 % 5)
        array = np.arange(3072, dtype=np.int32) + rank.index
        result = array
        if algorithm == "direct":
            result = np.empty_like(array)
            rank.comm.alltoall(array, result, algorithm=algorithm, chunk_bytes=CHUNK_BYTES)
        else:
            rank.comm.all_reduce(array, algorithm=algorithm, chunk_bytes=CHUNK_BYTES)
        seen.append((rank.now_ps, int(result.sum())))
    return seen


def overlapping(rank: Rank) -> list[int]:
    """Calls in flight together, a ring of sends between them, and computation that overlaps."""
    big, small = np.ones(2048, dtype=np.float32), np.ones(64, dtype=np.float32)
    works = [rank.comm.all_reduce(big, algorithm="ring", chunk_bytes=CHUNK_BYTES, async_op=True)]
    rank.compute(us=3)
    works.append(rank.comm.all_reduce(small, algorithm="tree", async_op=True))
    received = np.empty_like(small)
    with rank.comm.group():
        rank.comm.send(small, (rank.index + 1) % rank.world_size)
        rank.comm.recv(received, (rank.index - 1) % rank.world_size)
    return [*(work.wait() for work in works), rank.now_ps]


def one_late_sender(rank: Rank, gap_us: float) -> int:
    """Ranks 0 and 1 send to rank 2, rank 1 by ``gap_us`` later than rank 0."""
    array = np.ones(256, dtype=np.float32)
    if rank.index < 2:
        rank.compute(us=gap_us * rank.index)
        rank.comm.send(array, 2)
    else:
        for peer in (0, 1):
            rank.comm.recv(array, peer)
    return rank.now_ps


def lone_sender(rank: Rank) -> int:
    """Rank 0 sends to rank 2 in several chunks; rank 1 does nothing."""
    array = np.ones(4096, dtype=np.float32)
    if rank.index == 0:
        rank.comm.send(array, 2, chunk_bytes=CHUNK_BYTES)
    elif rank.index == 2:
        rank.comm.recv(array, 0, chunk_bytes=CHUNK_BYTES)
    return rank.now_ps


@pytest.mark.parametrize("dilation", [KEEPS_PACE, LATE], ids=["keeps_pace", "late"])
@pytest.mark.parametrize("algorithm", ["ring", "direct", "tree"])
@pytest.mark.parametrize("name", sorted(FABRICS))
def test_emulated_times_are_the_simulated_ones(name: str, algorithm: str, dilation: float, tmp_path: Path) -> None:
    """With every node in an actor of its own, completions and data equal the simulator's exactly, and no order is violated."""
    topology = fabric(name)
    expected = simulated(topology, collective, algorithm)
    owner = one_actor_per_node(topology)
    found = emulated_in_process(topology, collective, algorithm, owner=owner, dilation=dilation, page=tmp_path / "page")
    assert found.results == expected.results
    assert found.order_violations == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("n_actors", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(FABRICS))
def test_a_late_host_changes_nothing_under_jitter_and_loss(name: str, n_actors: int, seed: int, tmp_path: Path) -> None:
    """Packed actors, jitter, loss and a host that is always late: still the simulator's times to the picosecond."""
    topology = fabric(name, seed)
    table = impaired(topology)
    algorithm = ("ring", "direct", "tree")[seed - 1]
    expected = simulated(topology, collective, algorithm, seed=seed, impairments=table)
    found = emulated_in_process(
        topology, collective, algorithm, owner=packed(topology, n_actors), dilation=LATE, page=tmp_path / "page",
        seed=seed, impairments=table,
    )  # fmt: skip
    assert found.results == expected.results
    assert found.order_violations == 0
    assert found.largest_lateness_ps > 0


def test_what_an_actor_sends_comes_back_before_its_later_events(tmp_path: Path) -> None:
    """Leaves and spines of a clos dealt over two actors: an actor that is late waits for the answers to its own frames."""
    topology = fabric("clos")
    table = impaired(topology)
    expected = simulated(topology, collective, "tree", impairments=table)
    for attempt in range(3):
        found = emulated_in_process(
            topology, collective, "tree", owner=packed(topology, 2), dilation=LATE, page=tmp_path / f"page{attempt}",
            impairments=table,
        )  # fmt: skip
        assert found.results == expected.results


@pytest.mark.parametrize("dilation", [KEEPS_PACE, LATE], ids=["keeps_pace", "late"])
@pytest.mark.parametrize("name", sorted(FABRICS))
def test_overlapping_calls_keep_their_times(name: str, dilation: float, tmp_path: Path) -> None:
    """Asynchronous collectives, grouped sends and declared computation overlap alike under both drivers."""
    topology = fabric(name)
    expected = simulated(topology, overlapping)
    found = emulated_in_process(
        topology, overlapping, owner=one_actor_per_node(topology), dilation=dilation, page=tmp_path / "page"
    )
    assert found.results == expected.results


@pytest.mark.parametrize("n_actors", [2, 5])
def test_narrow_windows_keep_their_times(n_actors: int, tmp_path: Path) -> None:
    """Where senders wait for credit, which comes back over the sockets too, the times are still the simulator's."""
    topology = load_fabric("star", {"ranks": "4", "window": "4096"})
    expected = simulated(topology, collective, "ring")
    owner = packed(topology, n_actors)
    found = emulated_in_process(topology, collective, "ring", owner=owner, dilation=LATE, page=tmp_path / "page")
    assert expected.results != simulated(load_fabric("star", {"ranks": "4"}), collective, "ring").results
    assert found.results == expected.results


def test_a_pushing_back_transport_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    """Sockets that refuse every fifth send leave the model's times alone, and the refusals are counted."""
    topology = fabric("star")
    expected = simulated(topology, collective, "ring")
    found = emulated_in_process(
        topology, collective, "ring", owner=one_actor_per_node(topology), dilation=LATE, page=tmp_path / "page", reject_every=5
    )
    assert found.results == expected.results
    assert found.transport_backpressure > 0


def test_frames_out_of_order_between_channels_are_put_in_order(tmp_path: Path) -> None:
    """A switch that gets a later sender's frame first waits for the earlier one, since the page says that it is under way."""
    topology = fabric("star")
    expected = simulated(topology, one_late_sender, 0.3)
    found = emulated_in_process(
        topology, one_late_sender, 0.3, owner=one_actor_per_node(topology), dilation=LATE, page=tmp_path / "page",
        hold=Hold(channel=(0, 3), until=(1, 3)),
    )  # fmt: skip
    assert found.results == expected.results
    assert found.order_violations == 0


def test_without_a_page_a_broken_order_is_counted() -> None:
    """By slack alone a frame that is held up until a later one was served is a violation, weighted by the time between them."""
    topology = fabric("star")
    expected = simulated(topology, one_late_sender, 10)
    found = emulated_in_process(
        topology, one_late_sender, 10, owner=one_actor_per_node(topology), dilation=LATE, page=None,
        hold=Hold(channel=(0, 3), until=(3, 2)),
    )  # fmt: skip
    assert found.order_violations == 1
    assert found.order_weight_ps == 10_000_000
    assert found.results != expected.results


def test_without_a_page_a_flow_on_its_own_has_the_same_times() -> None:
    """By slack alone nothing can overtake a single flow, so that its times are the simulator's even on a late host."""
    topology = fabric("star")
    expected = simulated(topology, lone_sender)
    found = emulated_in_process(topology, lone_sender, owner=one_actor_per_node(topology), dilation=LATE, page=None)
    assert found.results == expected.results
    assert found.order_violations == 0


def test_a_rank_that_raises_ends_the_run(tmp_path: Path) -> None:
    """A failing rank's error comes out, with its rank, although its peers wait for it."""
    topology = fabric("star")

    def fails(rank: Rank) -> None:
        if rank.index == 1:
            raise ValueError("as planned")
        rank.comm.barrier()

    with pytest.raises(Exception, match="rank 1 raised"):
        emulated_in_process(topology, fails, owner=one_actor_per_node(topology), dilation=LATE, page=tmp_path / "page")


def test_a_credit_that_comes_late_counts_only_where_something_waited_for_it() -> None:
    """A rank that ran ahead of a credit while its window had room did what it would have done with it."""
    topology = load_fabric("star", {"ranks": "2"})
    host = SimpleNamespace(
        placement=SimpleNamespace(owner=[0] * len(topology.nodes)),
        counters=SimpleNamespace(order_violations=0, order_weight_ps=0),
    )
    engine = PacedEngine(cast(Any, host), topology=topology, seed=0, impairments={}, hosted=frozenset({topology.ranks[0]}))
    engine.now_ps = 1000
    connection = engine.endpoints[0].outgoing[1, 5, False] = Connection(engine.window_bytes(0, 1))
    engine._count_out(0, 1, connection.window_bytes)

    def credit() -> Frame:
        return Frame(
            (), source_rank=1, target_rank=0, flow=0, route_flow=0, payload_bytes=0, head_ps=400, communicator=5, credit_bytes=1
        )

    engine._take_credit(credit())
    assert host.counters.order_violations == 0
    connection.blocked.append(cast(Any, (None, None)))
    engine._take_credit(credit())
    assert (host.counters.order_violations, host.counters.order_weight_ps) == (1, 600)
