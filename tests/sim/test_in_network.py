"""Switches that reduce and multicast: results on real buffers, times and bytes by closed forms, and what goes wrong."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import failure, refusal, session

from emu import Rank, Session
from emu.collectives.catalogue import cost_for, schedule_for
from emu.collectives.layout import layout_of
from emu.collectives.reduce import DTYPES, OPS
from emu.errors import CollectiveMismatch, ConfigError, EmuError, RankLeft
from emu.protocols.legal import Reduction, reducing
from emu.testing import simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

US = 10**6
MS = 10**9
SWITCHED = ("nvls", "nvlstree", "collnet_direct", "collnet_chain")


def one_node(n_ranks: int, **options: Any) -> Session:
    """Ranks on one switch that combines: 100 MB/s, 1 ms from rank to rank."""
    options = {"rate": "100MB/s", "latency": "1ms", "host_size": n_ranks, "multicast": "true", **options}
    return session("star", ranks=n_ranks, **options)


def network(**options: Any) -> Session:
    """Eight ranks on two leaves, and spines, that combine: 100 MB/s and 1 ms for each cable."""
    cable = {"rate": "100MB/s", "uplink_rate": "100MB/s", "latency": "1ms"}
    return session("clos", leaves=2, accelerators_per_leaf=4, multicast="true", **cable, **options)


def nodes(n_nodes: int, size: int) -> Topology:
    rails = {"nodes": str(n_nodes), "rails": str(size), "nodes_per_leaf": str(n_nodes)}
    return load_fabric("rails", rails | {"host_size": str(size), "multicast": "true"})


def timed(rank: Rank, n_bytes: int, algorithm: str, chunk_bytes: int, late_us: int = 0) -> int:
    began_ps = rank.now_ps
    if rank.index == 0:
        rank.compute(us=late_us)
    rank.comm.all_reduce(np.zeros(n_bytes // 4, dtype=np.float32), algorithm=algorithm, chunk_bytes=chunk_bytes)
    return rank.now_ps - began_ps


def uneven(rank: Rank, dtype: str, op: str, algorithm: str) -> bytes:
    """Values small enough for every type, that differ by rank and place, reduced; the bytes of the result."""
    values = ((np.arange(301) * 7 + rank.index * 3) % 5 + (1 if op != "sum" else 0)).astype(DTYPES[dtype])
    rank.comm.all_reduce(values, op=op, algorithm=algorithm, chunk_bytes=256)
    return values.tobytes()


@pytest.mark.parametrize("algorithm", SWITCHED)
@pytest.mark.parametrize("op", OPS)
def test_every_type_is_reduced_in_the_switch_as_by_the_ranks(algorithm: str, op: str) -> None:
    """Integers, and floats whose sums are exact, are what a ring gives, bit for bit; all ranks have the same bits.

    NVLink's switches refuse the types and reductions that they have not.
    """
    fabric = nodes(1, 4) if algorithm == "nvls" else nodes(2, 2)
    for dtype in DTYPES:
        try:
            reducing((algorithm,), Reduction(op, dtype), "all_reduce")
        except ConfigError:
            with pytest.raises(EmuError, match="does not go with nvls"):
                simulated(fabric, uneven, dtype, op, algorithm)
            continue
        exact = op != "avg" or np.issubdtype(DTYPES[dtype], np.integer)
        by_switch = simulated(fabric, uneven, dtype, op, algorithm).results
        assert len(set(by_switch)) == 1
        by_ranks = simulated(fabric, uneven, dtype, op, "ring").results[0]
        if exact:
            assert by_switch[0] == by_ranks, dtype
        found, wanted = (np.frombuffer(bits, dtype=DTYPES[dtype]).astype(float) for bits in (by_switch[0], by_ranks))
        np.testing.assert_allclose(found, wanted, rtol=0.05)


def rounded(rank: Rank, algorithm: str) -> bytes:
    values = np.full(64, (1e8, 1.0, -1e8, 1.0)[rank.index], dtype=np.float32)
    rank.comm.all_reduce(values, algorithm=algorithm, chunk_bytes=64)
    return values.tobytes()


def test_a_switch_adds_in_the_order_of_the_ranks() -> None:
    """Where the order of a sum matters it is that of the ranks, whoever came first, at every rank."""
    wanted = reduce(np.add, np.array([1e8, 1.0, -1e8, 1.0], dtype=np.float32))
    with one_node(4, impair=("a0->s0=latency,added=5ms",)) as opened:
        for bits in opened.run(rounded, "nvls"):
            assert set(np.frombuffer(bits, dtype=np.float32)) == {wanted}


def test_nvls_takes_its_steps_and_no_more() -> None:
    """One packet for each of n blocks: up and down twice, the last block n-1 packets behind the first: 2 L + (n+3) S/n B."""
    n, packet = 4, 1000
    with one_node(n) as opened:
        assert set(opened.run(timed, n * packet, "nvls", packet)) == {2 * MS + (n + 3) * 10 * US}
        links = opened.counters().links
        for name in ("a0->s0", "s0->a3"):
            assert links[name].payload_bytes == (n + 1) * packet


def test_a_long_nvls_all_reduce_is_bound_by_its_bytes() -> None:
    """In many chunks reads and stores share the links: S + S/n in each direction, within 3 %, where a ring takes 2(n-1)/n S."""
    n, n_bytes = 8, 64 << 20
    with one_node(n, rate="450GB/s", latency="1us", payload=False) as opened:
        found, ring = (max(opened.run(timed, n_bytes, name, 128 << 10)) for name in ("nvls", "ring"))
    bound_ps = n_bytes * 9 // 8 * 8000 // 3600
    assert bound_ps < found < 1.07 * bound_ps
    assert ring / found > 1.4


def test_sharp_sends_s_up_and_s_down_at_every_rank() -> None:
    """A chunk crosses rank, leaf, spine, leaf, rank in one go: 4 L + S/B and a packet more for each switch, at cut-through."""
    n_bytes, packet = 40_960, 4096
    with network(spines=1) as opened:
        model_ps = set(opened.run(timed, n_bytes, "collnet_direct", n_bytes))
        assert model_ps == {4 * MS + (n_bytes + 3 * packet) * 10_000}
        links = opened.counters().links
        for name in ("a0->s0", "s0->a0", "s0->s2", "s2->s0"):
            assert links[name].payload_bytes == n_bytes


def test_a_tree_that_stays_in_a_leaf_does_not_climb() -> None:
    """Ranks of one leaf meet in it: 2 L + S/B and one packet."""

    def within(rank: Rank) -> int:
        group = rank.comm.split(rank.index // 4)
        assert group is not None
        rank.comm.barrier()
        rank.compute(100 * MS - rank.now_ps)
        began_ps = rank.now_ps
        group.all_reduce(np.zeros(8192, dtype=np.uint8), algorithm="CollnetDirect", chunk_bytes=8192)
        return rank.now_ps - began_ps

    with network(spines=1) as opened:
        assert set(opened.run(within)) == {2 * MS + (8192 + 4096) * 10_000}


@pytest.mark.parametrize("algorithm", ["nvls", "collnet_chain"])
def test_all_wait_for_the_last_rank(algorithm: str) -> None:
    """One rank that comes 7 ms late makes all of them end 7 ms later."""
    with one_node(4) if algorithm == "nvls" else network(spines=2) as opened:
        early, late = (opened.run(timed, 4000, algorithm, 1000, late_us) for late_us in (0, 7000))
        assert [a + 7 * MS for a in early] == late


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_small_windows_and_slow_receivers_only_slow_it_down(data: st.DataObject) -> None:
    """Whatever the window, the chunk and the receivers' rate: the call ends, with the right sum."""
    n = data.draw(st.integers(2, 6))
    count = data.draw(st.integers(0, 3000))
    options = {
        "window": data.draw(st.sampled_from(["512", "2KiB", "64KiB"])),
        "drain_rate": data.draw(st.sampled_from(["10MB/s", "1GB/s"])),
        "host_size": str(n),
        "multicast": "true",
        "ranks": str(n),
    }
    chunk_bytes = data.draw(st.integers(64, 3000))

    def call(rank: Rank) -> None:
        rank.compute(us=rank.index * 3)
        values = np.arange(count, dtype=np.int64) + rank.index
        rank.comm.all_reduce(values, algorithm="nvls", chunk_bytes=chunk_bytes)
        np.testing.assert_array_equal(values, n * np.arange(count) + n * (n - 1) // 2)
        gathered = np.zeros(n * count, dtype=np.int64)
        rank.comm.all_gather(values + rank.index, gathered, algorithm="nvls", chunk_bytes=chunk_bytes)
        np.testing.assert_array_equal(gathered.reshape(n, count) - np.arange(n)[:, None], np.broadcast_to(values, (n, count)))

    simulated(load_fabric("star", options), call)


def other_call(rank: Rank) -> None:
    rank.comm.all_reduce(np.zeros(64, dtype=np.int32), op="max" if rank.index == 2 else "sum", algorithm="nvls")


def no_call(rank: Rank) -> None:
    if rank.index != 2:
        rank.comm.all_reduce(np.zeros(64), algorithm="nvls")


def test_who_calls_another_thing_or_nothing_is_named() -> None:
    """A switch combines no different calls, and waits for nobody who has left; the error names the rank."""
    with one_node(4) as opened:
        assert "rank 2 called all_reduce of 64 int32 max" in failure(CollectiveMismatch, opened, other_call)
    with one_node(4) as opened:
        assert "rank 2" in failure(RankLeft, opened, no_call)


def reduce_by(rank: Rank, algorithm: str) -> None:
    rank.comm.all_reduce(np.zeros(8), algorithm=algorithm)


@pytest.mark.parametrize(
    ("fabric", "algorithm", "said"),
    [
        ({"ranks": 4}, "nvls", "needs several ranks a node"),
        ({"ranks": 4, "host_size": 4}, "nvls", "no switch of this fabric has multicast = true"),
        ({"ranks": 4, "host_size": 4, "multicast": "true"}, "nvlstree", "needs two nodes or more; here all 4 ranks share one"),
        ({"ranks": 4, "host_size": 4, "multicast": "true"}, "collnet_direct", "needs several nodes"),
        ({"ranks": 5, "host_size": 2, "multicast": "true"}, "nvls", "as many ranks on every node; here nodes have 1, 2"),
        ({"ranks": 4, "multicast": "true", "switching": "nvlink"}, "collnet_chain", "packets are not combined"),
        ({"ranks": 4, "host_size": 4, "multicast": "true"}, "pat", "pat cannot do all_reduce; it does all_gather"),
        ({"ranks": 4, "host_size": 4}, "hierarchical", "needs 4 ranks in two dimensions"),
    ],
)
def test_what_a_fabric_cannot_do_is_refused_by_name(fabric: dict[str, Any], algorithm: str, said: str) -> None:
    """The line says what the algorithm needs and what is there."""
    with session("star", **fabric) as opened:
        line = refusal(opened, reduce_by, algorithm)
    assert algorithm in line and said in line


def test_pat_has_no_avg() -> None:
    """As in NCCL: named it is refused; a selection that would take it passes it over then."""

    def scatter(rank: Rank, op: str, algorithm: str) -> None:
        rank.comm.reduce_scatter(np.zeros(4 * rank.world_size), np.zeros(4), op=op, algorithm=algorithm)

    said = "reduction avg does not go with pat reduce_scatter, as in NCCL; use sum, prod, min, max, or algorithm ring"
    with session("star", ranks=8, latency="1us") as opened:
        opened.run(scatter, "sum", "pat")
        for named in ("pat", "^ring,direct,halving_doubling,torus,nvls,collnet_direct"):
            assert said in refusal(opened, scatter, "avg", named)
        opened.run(scatter, "avg", "pat,ring")
        for op, chosen in (("sum", "pat"), ("avg", "ring")):
            assert opened.choose_algorithm("reduce_scatter", 512, 0, "pat,ring", Reduction(op, "float64")) == chosen


def test_collnet_is_for_small_nodes_and_nvls_shares_among_32() -> None:
    """As in NCCL: CollNet for 8 ranks a node or fewer; NVLS gathers for 32, and reduces for any."""
    small, large = (layout_of(nodes(2, size), tuple(range(2 * size))) for size in (8, 9))
    for algorithm in ("collnet_direct", "collnet_chain"):
        assert schedule_for("all_reduce", algorithm, 16, 0, small).n_switches
        with pytest.raises(ConfigError, match=f"{algorithm} needs 8 ranks a node or fewer, as in NCCL; here one has 9: use ring"):
            schedule_for("all_reduce", algorithm, 18, 0, large)
    fabric = load_fabric("star", {"ranks": "33", "host_size": "33", "multicast": "true"})
    wide = layout_of(fabric, tuple(range(33)))
    assert schedule_for("all_reduce", "nvls", 33, 0, wide).n_switches
    for ask in (schedule_for, cost_for):
        with pytest.raises(ConfigError, match="nvls all_gather needs 32 ranks a node or fewer, as in NCCL; here one has 33"):
            ask("all_gather", "nvls", 33, layout=wide)


def test_pat_is_for_one_rank_a_node() -> None:
    """As in NCCL."""

    def gather(rank: Rank) -> None:
        rank.comm.all_gather(np.zeros(8), np.zeros(8 * rank.world_size), algorithm="PAT")

    with one_node(4) as opened:
        assert "pat needs one rank a node, and here 4 share one" in refusal(opened, gather)
