"""The promises that make a number worth printing, checked on real actors and sockets."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

import emu

pytestmark = pytest.mark.slow
N_BYTES = 1 << 20


def reduce_and_exchange(rank: emu.Rank) -> tuple[list[int], bool]:
    """Model times of some calls that contend for the switch, and whether the data were right."""
    n = rank.world_size
    times = []
    right = True
    data = np.full(N_BYTES // 4, rank.index + 1, dtype=np.float32)
    out = np.empty_like(data)
    for algorithm in ("ring", "tree", "direct"):
        times.append(rank.comm.all_reduce(data, out, algorithm=algorithm).completed_ps)
        right = right and bool((out == n * (n + 1) / 2).all())
    blocks = np.repeat(np.arange(n, dtype=np.int32) + 100 * rank.index, 5000)
    received = np.empty_like(blocks)
    times.append(rank.comm.alltoall(blocks, received, algorithm="direct").completed_ps)
    right = right and bool((received == np.repeat(100 * np.arange(n, dtype=np.int32) + rank.index, 5000)).all())
    rank.compute(us=50 * rank.index)
    times.append(rank.comm.barrier().completed_ps)
    return times, right


IMPAIRED = ("*=jitter,distribution=uniform,bound=20us", "*=loss,probability=0.001,timeout=50us")


@pytest.mark.parametrize(
    ("fabric", "settings"),
    [
        ("star", {"ranks": "6", "rate": "1GB/s", "latency": "20us"}),
        ("torus", {"shape": "2x3", "rate": "1GB/s", "latency": "10us"}),
        ("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": "3", "rate": "1GB/s", "latency": "5us"}),
    ],
)
def test_emulated_times_are_the_simulators_to_the_picosecond(fabric: str, settings: dict[str, str]) -> None:
    """With jitter and loss on, at any dilation and on a host that is late, the model repeats; another seed differs."""
    expected = {}
    for seed in (1, 2):
        with emu.Session(fabric, settings=settings, driver="simulate", seed=seed, impairments=IMPAIRED) as session:
            expected[seed] = session.run(reduce_and_exchange)
    assert expected[1] != expected[2]
    assert all(right for _, right in expected[1])
    with emu.Session(fabric, settings=settings, seed=1, dilation=20, impairments=IMPAIRED) as session:
        for dilation, seed in ((20, 1), (0.5, 1), (20, 2), (20, 1)):
            session.begin(dilation=dilation, seed=seed)
            assert session.run(reduce_and_exchange) == expected[seed], (dilation, seed)
            assert session.counters().order_violations == 0


def one_way(rank: emu.Rank, n_messages: int, n_bytes: int) -> list[int]:
    """Rank 0 sends messages to rank 1, which notes the wall time at which each is handed over."""
    times = []
    data = np.zeros(n_bytes, dtype=np.uint8)
    if rank.index == 0:
        works = [rank.comm.send(data, 1, async_op=True, chunk_bytes=n_bytes) for _ in range(n_messages)]
        for work in works:
            work.wait()
    elif rank.index == 1:
        for _ in range(n_messages):
            rank.comm.recv(data, 0, chunk_bytes=n_bytes)
            times.append(rank.wall_ns())
    return times


def test_a_receiver_never_gets_more_than_the_rate_allows() -> None:
    """In every window of wall time the bytes handed to a receiver stay within rate x window plus one chunk."""
    n_bytes, rate = 1 << 20, 20e6
    with emu.Session("star", settings={"ranks": "2", "rate": "20MB/s", "latency": "1ms"}, dilation=1) as session:
        times = session.run(one_way, 12, n_bytes)[1]
    for first in range(len(times)):
        for last in range(first, len(times)):
            window_s = (times[last] - times[first]) / 1e9
            assert (last - first + 1) * n_bytes <= rate * window_s + 2 * n_bytes
            assert (last - first) * n_bytes <= rate * window_s + n_bytes
    assert (times[-1] - times[0]) / 1e9 == pytest.approx(11 * n_bytes / rate, rel=0.1)


def big_exchange(rank: emu.Rank) -> None:
    data = np.ones(4 << 20, dtype=np.float32)
    rank.comm.all_reduce(data, np.empty_like(data), algorithm="ring")


def test_the_payload_really_crosses_every_hop() -> None:
    """With tcp the bytes that the loopback interface counts equal the sum of the links' payloads within 5 %, switch included."""
    with emu.Session("star", settings={"ranks": "4", "rate": "1GB/s", "latency": "10us"}, dilation=4, transport="tcp") as session:
        session.run(big_exchange)
        session.begin()
        before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        session.run(big_exchange)
        crossed = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
        counters = session.counters()
    payload = 2 * 4 * 2 * 3 * (16 << 20) // 4
    assert counters.payload_bytes == counters.socket_payload_bytes == payload
    assert crossed == pytest.approx(payload, rel=0.05)


def overlapped(rank: emu.Rank) -> tuple[int, int]:
    data = np.ones(1 << 18, dtype=np.float32)
    started = rank.now_ps
    work = rank.comm.all_reduce(data, algorithm="ring", async_op=True)
    rank.compute("40ms")
    work.wait()
    return started, rank.now_ps


def test_compute_overlaps_with_communication_in_wall_time_too() -> None:
    """Declared compute hides an async all_reduce: the later of the two counts, and the stopwatch agrees."""

    def run(rank: emu.Rank) -> tuple[int, int, float]:
        rank.comm.barrier()
        before = rank.wall_ns()
        started, ended = overlapped(rank)
        rank.comm.barrier()
        return started, ended, (rank.wall_ns() - before) / 1e9

    with emu.Session("star", settings={"ranks": "4", "rate": "100MB/s", "latency": "100us"}, dilation=5) as session:
        for started, ended, wall_s in session.run(run):
            assert ended - started == 40 * 10**9
            assert wall_s == pytest.approx(0.2, rel=0.25)
