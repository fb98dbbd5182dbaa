"""Simulated times equal what can be computed by hand, and nothing is faster than the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import MIB, MS, blank, on_star, session, star

from emu import Rank, Session
from emu.collectives.busbw import busbw_gb_per_s
from emu.topologies.routing import map_ranks

GB_TO_MB = 1000


def stream(rank: Rank, n_bytes: int) -> int:
    """One message from rank 0 to rank 1; the last rank's model time is the result."""
    if rank.index == 0:
        rank.comm.send(blank(n_bytes), 1)
    elif rank.index == 1:
        rank.comm.recv(blank(n_bytes), 0)
    return rank.now_ps


def all_reduce(rank: Rank, n_bytes: int, algorithm: str = "ring", chunk_bytes: int | None = None) -> int:
    rank.comm.all_reduce(blank(n_bytes), algorithm=algorithm, chunk_bytes=chunk_bytes)
    return rank.now_ps


def all_to_all(rank: Rank, n_bytes_per_peer: int) -> int:
    array = blank(n_bytes_per_peer * rank.world_size)
    rank.comm.alltoall(array, array, algorithm="direct")
    return rank.now_ps


def busbw_mb_per_s(collective: str, size_bytes: int, n: int, time_ps: int) -> float:
    return float(busbw_gb_per_s(collective, size_bytes, n, time_ps)) * GB_TO_MB


@pytest.mark.parametrize("n_bytes", [1024, 64 * 1024, 16 * MIB])
@pytest.mark.parametrize("latency_ms", [0, 1, 10, 50])
@pytest.mark.parametrize("rate", ["1MB/s", "10MB/s", "100MB/s", "250.5MB/s"])
def test_a_stream_takes_its_latency_and_its_bytes(rate: str, latency_ms: int, n_bytes: int) -> None:
    """Rank to rank through a switch: L + S/B, plus one packet's cut-through; no free burst, no rounded rate, no latency cap."""
    rate_bytes = float(rate.removesuffix("MB/s")) * 1e6
    time_ps = on_star(2, stream, n_bytes, rate=rate, latency=f"{latency_ms}ms", payload=False)[1]
    exact_ps = latency_ms * MS + n_bytes / rate_bytes * 1e12
    assert exact_ps <= time_ps <= exact_ps + 4096 / rate_bytes * 1e12 + 10


def test_a_window_caps_a_long_stream_and_nothing_else_does() -> None:
    """With 256 KiB in flight a stream runs at window over round trip; without a window latency does not lower bandwidth."""
    narrow_ps = on_star(2, stream, 16 * MIB, latency="10ms", window="256KiB", payload=False)[1]
    assert 16 * MIB / narrow_ps * 1e12 == pytest.approx(256 * 1024 / 0.020, rel=0.1)
    free_ps = on_star(2, stream, 16 * MIB, latency="10ms", payload=False)[1]
    assert 16 * MIB / (free_ps - 10 * MS) * 1e12 == pytest.approx(100e6, rel=0.001)


@pytest.mark.parametrize(
    ("rate", "latency", "chunk_bytes", "time_ms"),
    [
        ("100MB/s", "1ms", 2 * MIB, 307.6),
        ("50MB/s", "1ms", 2 * MIB, 601.2),
        ("100MB/s", "10ms", 2 * MIB, 433.6),
        ("100MB/s", "1ms", MIB // 2, 294.6),
    ],
)
def test_ring_all_reduce(rate: str, latency: str, chunk_bytes: int, time_ms: float) -> None:
    """2(n-1)(L + S/nB) with one chunk a step; with four, the latency of all steps but the first hides."""
    times = on_star(8, all_reduce, 16 * MIB, "ring", chunk_bytes, rate=rate, latency=latency, payload=False)
    assert max(times) / MS == pytest.approx(time_ms, rel=0.005)


def test_direct_and_ring_move_the_same_bytes() -> None:
    """Where latency is nothing, direct and ring all_reduce take equally long, within 1 %."""
    ring, direct = (max(on_star(8, all_reduce, 8 * MIB, name, latency="0.01ms", payload=False)) for name in ("ring", "direct"))
    assert ring == pytest.approx(direct, rel=0.01)


@pytest.mark.parametrize("victim", range(8))
def test_one_link_at_half_rate_doubles_a_ring(victim: int) -> None:
    """A ring is as slow as its slowest link, whichever it is."""
    healthy = max(on_star(8, all_reduce, 16 * MIB, payload=False))
    slow = max(on_star(8, all_reduce, 16 * MIB, payload=False, impair=(f"a{victim}->s0=throttle,factor=0.5",)))
    assert slow / healthy == pytest.approx(2, rel=0.05)


def call(rank: Rank, collective: str, size_bytes: int) -> int:
    """A call of nccl-tests' size S: S is the whole of the larger buffer."""
    n, comm = rank.world_size, rank.comm
    share, whole = blank(size_bytes // n), blank(size_bytes)
    match collective:
        case "all_reduce":
            comm.all_reduce(whole, algorithm="ring")
        case "all_gather":
            comm.all_gather(share, whole, algorithm="ring")
        case "reduce_scatter":
            comm.reduce_scatter(whole, share, algorithm="ring")
        case "alltoall":
            comm.alltoall(whole, whole, algorithm="direct")
        case "broadcast":
            comm.broadcast(whole, algorithm="ring")
        case "reduce":
            comm.reduce(whole, whole, algorithm="ring")
        case "gather":
            comm.gather(share, whole, algorithm="direct")
        case _:
            comm.scatter(whole, share, algorithm="direct")
    return rank.now_ps


@pytest.mark.parametrize(
    ("collective", "sent_by_a_rank"),
    [
        ("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("alltoall", 7 / 8),
        ("broadcast", 1), ("reduce", 1), ("gather", 1 / 8), ("scatter", 7 / 8),
    ],
)  # fmt: skip
def test_bytes_on_the_wire_and_bus_bandwidth(collective: str, sent_by_a_rank: float) -> None:
    """A rank's link carries the bytes of the textbook exactly, and busbw is never above the wire."""
    size_bytes = 16 * MIB
    with star(8, payload=False) as opened:
        time_ps = max(opened.run(call, collective, size_bytes))
        counters = opened.counters()
    assert counters.wire_bytes_per_rank_max == round(sent_by_a_rank * size_bytes)
    assert counters.links["a1->s0"].payload_bytes <= counters.wire_bytes_per_rank_max
    assert busbw_mb_per_s(collective, size_bytes, 8, time_ps) <= 100


def two_nodes(uplink: str, *, rate: str, order: str | None = None, n: int = 8) -> Session:
    """Two leaf switches of four ranks each, joined by one spine over one cable each."""
    opened = session(
        "clos", leaves=2, spines=1, accelerators_per_leaf=n // 2, rate=rate, uplink_rate=uplink, latency="10us", payload=False
    )
    topology = map_ranks(opened.topology, order)
    opened.close()
    return Session(topology, driver="simulate", payload=False)


def test_oversubscription_spares_a_ring_in_node_order_and_slows_all_to_all() -> None:
    """A ring crosses between nodes once each way, so one uplink for four ranks does not slow it; all-to-all it does."""
    with two_nodes("400MB/s", rate="100MB/s") as full, two_nodes("100MB/s", rate="100MB/s") as narrow:
        assert max(narrow.run(all_reduce, 16 * MIB)) == pytest.approx(max(full.run(all_reduce, 16 * MIB)), rel=0.02)
        start = [max(opened.run(lambda rank: rank.now_ps)) for opened in (full, narrow)]
        times = [max(opened.run(all_to_all, MIB)) - at for opened, at in zip((full, narrow), start, strict=True)]
    assert times[1] > 2 * times[0]


def test_rank_order_against_placement() -> None:
    """A ring whose neighbours alternate between two nodes crosses the uplink four times: a quarter of the bandwidth."""
    with two_nodes("100MB/s", rate="1GB/s") as by_node:
        good = busbw_mb_per_s("all_reduce", 16 * MIB, 8, max(by_node.run(all_reduce, 16 * MIB)))
    with two_nodes("100MB/s", rate="1GB/s", order="0,4,1,5,2,6,3,7") as interleaved:
        bad = busbw_mb_per_s("all_reduce", 16 * MIB, 8, max(interleaved.run(all_reduce, 16 * MIB)))
    assert 92 <= good <= 100
    assert good / bad == pytest.approx(4, rel=0.15)


RING_OF_FOUR = """
[[nodes]]
name = "a0"
kind = "accelerator"
[[nodes]]
name = "a1"
kind = "accelerator"
[[nodes]]
name = "a2"
kind = "accelerator"
[[nodes]]
name = "a3"
kind = "accelerator"
"""


@pytest.mark.parametrize(("window", "low", "high"), [("256KiB", 23, 27), ("2MiB", 85, 100), (None, 85, 100)])
def test_a_long_hop_needs_a_window_of_rate_times_round_trip(tmp_path: Any, window: str | None, low: float, high: float) -> None:
    """Two hops of 5 ms in a ring of four: 256 KiB over a round trip of 10 ms is 26 MB/s; 2 MiB fills the wire."""
    links = ""
    for source in range(4):
        latency = "5ms" if source in (1, 3) else "0.1ms"
        links += f'[[links]]\nbetween = ["a{source}", "a{(source + 1) % 4}"]\nrate = "100MB/s"\nlatency = "{latency}"\n'
        links += f'window = "{window}"\n' if window else ""
    path = tmp_path / "ring.toml"
    path.write_text(RING_OF_FOUR + links)
    with session(str(path), payload=False) as opened:
        time_ps = max(opened.run(all_reduce, 16 * MIB))
    assert low <= busbw_mb_per_s("all_reduce", 16 * MIB, 4, time_ps) <= high


def both_ways(rank: Rank, n_bytes: int, grouped: bool) -> int:
    """Rank 0 and 1 swap a message, by group() or by async calls in the other order."""
    peer = 1 - rank.index
    if grouped:
        with rank.comm.group():
            rank.comm.send(blank(n_bytes), peer)
            rank.comm.recv(blank(n_bytes), peer)
    else:
        works = [rank.comm.recv(blank(n_bytes), peer, async_op=True), rank.comm.send(blank(n_bytes), peer, async_op=True)]
        for work in works:
            work.wait()
    return rank.now_ps


@pytest.mark.parametrize("grouped", [True, False])
def test_links_are_full_duplex(grouped: bool) -> None:
    """Both directions at once take S/B, not twice that."""
    times = on_star(2, both_ways, 64 * MIB, grouped, payload=False)
    assert max(times) / MS == pytest.approx(64 * MIB / 1e5, rel=0.01)


def test_a_scheduled_throttle_is_integrated() -> None:
    """150 MB at 100 MB/s, at a tenth of it from 0.5 s to 2.5 s: 50 MB, 20 MB and 80 MB, 3.3 s in all."""
    throttle = ("a0->s0=throttle,factor=0.1,from=500ms,until=2500ms",)
    time_ps = on_star(2, stream, 150_000_000, payload=False, impair=throttle)[1]
    assert time_ps / MS == pytest.approx(3301, rel=0.001)


@pytest.mark.parametrize(("ranks", "rate"), [(4, "100MB/s"), (16, "50GB/s")])
def test_all_to_all_on_a_switch_that_does_not_block(ranks: int, rate: str) -> None:
    """Every rank sends at the rate of its link, within 5 %."""
    time_ps = max(on_star(ranks, all_to_all, MIB, rate=rate, latency="1us", payload=False))
    bound_ps = (ranks - 1) * MIB / {"100MB/s": 1e8, "50GB/s": 5e10}[rate] * 1e12
    assert bound_ps <= time_ps <= bound_ps * 1.05


@pytest.mark.parametrize("shape", ["4x4", pytest.param("4x4x4", marks=pytest.mark.slow)])
def test_all_to_all_on_a_torus(shape: str) -> None:
    """Throughput per endpoint is within 10 % of 8 b / k for links of rate b (less the share that stays at home), never above."""
    with session("torus", shape=shape, rate="50GB/s", latency="1us", payload=False) as opened:
        n = opened.topology.n_ranks
        time_ps = max(opened.run(all_to_all, MIB))
    reached = (n - 1) * MIB / time_ps * 1e12
    bound = 8 * 50e9 / 4 * (n - 1) / n
    assert 0.9 * bound <= reached <= bound


def times_of_a_call(seed: int) -> list[int]:
    impair = ("*=jitter,bound=2ms,interval=1ms", "*=loss,probability=0.01,timeout=5ms")
    return on_star(4, all_reduce, MIB, seed=seed, payload=False, impair=impair)


def test_the_same_seed_gives_the_same_picosecond() -> None:
    """With jitter and loss a seed fixes every time exactly, and another seed gives other ones."""
    assert times_of_a_call(1) == times_of_a_call(1)
    assert times_of_a_call(1) != times_of_a_call(2)


@pytest.mark.slow
def test_a_call_of_3_gib_is_planned_without_data() -> None:
    """More than 2 GiB overflows nothing: 2(n-1)/n S on the wire, in 2(n-1)/n S/B."""
    size_bytes = 3 * 2**30
    with star(4, rate="50GB/s", latency="1us", payload=False) as opened:
        time_ps = max(opened.run(all_reduce, size_bytes))
        assert opened.counters().wire_bytes_per_rank_max == size_bytes * 3 // 2
    assert time_ps == pytest.approx(size_bytes * 1.5 / 5e10 * 1e12, rel=0.01)


def overlapped(rank: Rank, compute_ms: int) -> int:
    work = rank.comm.all_reduce(blank(16 * MIB), algorithm="ring", chunk_bytes=2 * MIB, async_op=True)
    rank.compute(f"{compute_ms}ms")
    work.wait()
    return rank.now_ps


@pytest.mark.parametrize(("compute_ms", "time_ms"), [(0, 308.2), (100, 308.2), (500, 500.0)])
def test_computation_overlaps_an_async_call(compute_ms: int, time_ms: float) -> None:
    """The longer of the two counts, not their sum."""
    assert max(on_star(8, overlapped, compute_ms, payload=False)) / MS == pytest.approx(time_ms, rel=0.001)


def later(rank: Rank) -> tuple[int, int]:
    rank.compute(us=1500)
    rank.comm.barrier()
    return rank.now_ps, sum(range(20_000))


def test_declared_time_counts_and_python_does_not() -> None:
    """Only compute() moves a rank's time between calls, and the next run goes on where the last one ended."""
    with star(2) as opened:
        first, second = opened.run(later)[0][0], opened.run(later)[0][0]
    assert first == 1_500_000_000 + MS + 2
    assert second == 2 * first


def late(rank: Rank) -> int:
    if rank.index == 1:
        rank.compute("300ms")
    rank.comm.all_reduce(np.zeros(16, dtype=np.float32), algorithm="ring")
    return rank.now_ps


def test_a_late_rank_holds_up_the_others_by_as_much() -> None:
    """Entry 300 ms late ends 300 ms later, and not more."""
    assert min(on_star(4, late)) >= 300 * MS
    assert max(on_star(4, late)) <= 308 * MS
