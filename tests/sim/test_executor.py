"""How calls move bytes: what is conserved, what is bounded, and what happens to arrays that are not plain."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import MIB, MS, blank, on_star, session, star

from emu import Rank, Session
from emu.collectives.call import Call
from emu.collectives.catalogue import schedule_for
from emu.collectives.executor import Operation
from emu.collectives.program import compile_program
from emu.errors import EmuError
from emu.fabric.account import opened
from emu.fabric.frame import Frame
from emu.testing import algorithms_over

F32 = np.float32
N_COUNTED = {
    "all_reduce": (1, 1), "all_gather": (1, 0), "reduce_scatter": (0, 1), "broadcast": (1, 1), "reduce": (1, 1),
    "gather": (1, 0), "scatter": (0, 1), "alltoall": (0, 0),
}  # fmt: skip
"""Sizes of send and recv over the count; 0 stands for the number of ranks."""


def any_call(rank: Rank, collective: str, count: int, options: dict[str, Any]) -> None:
    n = rank.world_size
    send, recv = (np.zeros(count * (factor or n), dtype=np.uint8) for factor in N_COUNTED[collective])
    getattr(rank.comm, collective)(send, recv, **options)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_bytes_are_conserved(data: st.DataObject) -> None:
    """What leaves the ranks' links arrives over the switch's, nothing more; machines' invariants hold, endpoints end empty."""
    collective = data.draw(st.sampled_from(sorted(N_COUNTED)))
    n = data.draw(st.integers(2, 7))
    options = {
        "algorithm": data.draw(st.sampled_from(algorithms_over(collective, n))),
        "chunk_bytes": data.draw(st.integers(64, 5000)),
        "channels": data.draw(st.integers(1, 3)),
    }
    window = data.draw(st.sampled_from(["64B", "1000B", "4KiB", "1MiB"]))
    with star(n, window=window, header="58B") as opened:
        opened.run(any_call, collective, data.draw(st.integers(0, 6000)), options)
        counters = opened.counters()
        engine = opened._backend._simulation.engine  # type: ignore[attr-defined]
    up = sum(link.payload_bytes for name, link in counters.links.items() if name.startswith("a"))
    down = sum(link.payload_bytes for name, link in counters.links.items() if name.startswith("s"))
    assert up == down
    assert counters.payload_bytes == up + down
    for link in engine.links.values():
        link.validate()
    for endpoint in engine.endpoints.values():
        assert not endpoint.operations and not endpoint.unexpected
        consumed = sum(connection.consumed_bytes for connection in endpoint.incoming.values())
        name = opened.topology.nodes[opened.topology.ranks[endpoint.rank]].name
        assert consumed == counters.links[f"s0->{name}"].payload_bytes
        assert not any(connection.blocked for connection in endpoint.outgoing.values())


def uneven_messages(rank: Rank, sizes: list[int], chunk_bytes: int) -> list[int]:
    received = []
    for size in sizes:
        array = np.full(size, size % 251, dtype=np.uint8)
        if rank.index == 0:
            rank.comm.send(array, 1, chunk_bytes=chunk_bytes)
        else:
            array[:] = 255
            rank.comm.recv(array, 0, chunk_bytes=chunk_bytes)
            assert np.all(array == size % 251)
            received.append(size)
    return received


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=12),
    chunk_bytes=st.integers(64, 4000),
    window=st.sampled_from([1, 100, 1000, 1500, 5000]),
)
def test_no_mix_of_sizes_gets_stuck_in_a_window(sizes: list[int], chunk_bytes: int, window: int) -> None:
    """Credits come a quarter window at a time; what is left of one never keeps a large chunk from going."""
    assert on_star(2, uneven_messages, sizes, chunk_bytes, window=window)[1] == sizes


def peak_bytes(rank: Rank, n_bytes: int, drain: bool) -> int:
    """What a large send takes in memory beside the two user arrays."""
    array = np.ones(n_bytes, dtype=np.uint8)
    rank.comm.barrier()
    if rank.index == 0:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        rank.comm.send(array, 1, chunk_bytes=65536)
        return tracemalloc.get_traced_memory()[1] - before
    rank.compute("1s" if drain else "0ms")
    rank.comm.recv(array, 0, chunk_bytes=65536)
    assert array.all()
    return 0


@pytest.mark.parametrize("late", [True, False])
def test_a_fast_sender_holds_no_more_than_its_window(late: bool) -> None:
    """32 MiB to a receiver that is late (or not) are copied a window at a time, never as a whole."""
    tracemalloc.start()
    try:
        peak = max(on_star(2, peak_bytes, 32 * MIB, late, window="1MiB"))
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


DRAINING = """
[[nodes]]
name = "fast"
kind = "accelerator"
[[nodes]]
name = "slow"
kind = "accelerator"
drain_rate = "{drain}"
[[links]]
between = ["fast", "slow"]
rate = "100MB/s"
latency = "1ms"
window = "1MiB"
"""


def two_way(rank: Rank, n_bytes: int, sender: int) -> int:
    if rank.index == sender:
        rank.comm.send(blank(n_bytes), 1 - sender)
    else:
        rank.comm.recv(blank(n_bytes), sender)
    return rank.now_ps


@pytest.mark.parametrize(
    ("drain", "sender", "rate_bytes"), [("78.3MB/s", 0, 78.3e6), ("10GB/s", 0, 100e6), ("78.3MB/s", 1, 100e6)]
)
def test_a_slow_receiver_sets_the_pace(tmp_path: Path, drain: str, sender: int, rate_bytes: float) -> None:
    """A stream runs at the drain rate of the node that takes it in, if that is below the link's; sending is not affected."""
    path = tmp_path / "pair.toml"
    path.write_text(DRAINING.format(drain=drain))
    with session(str(path), payload=False) as opened:
        times = opened.run(two_way, 50_000_000, sender)
    assert max(times) == pytest.approx(1 * MS + 50_000_000 / rate_bytes * 1e12, rel=0.005)
    assert times[sender] >= (50_000_000 - 2 * MIB) / rate_bytes * 1e12


def lower(rank: Rank) -> np.ndarray[Any, Any]:
    return np.array([[1.0, 0.0], [2.0, 3.0]]) + 10 * rank.index


def strided(rank: Rank) -> None:
    """Columns, transposes and steps: values are exact and what lies between them stays."""
    me, n = rank.index, rank.world_size
    first = lower(rank)
    rank.comm.all_reduce(first[:, 0])
    np.testing.assert_array_equal(first, [[12.0, 10.0 * me], [14.0, 3 + 10.0 * me]])

    second = lower(rank)
    rank.comm.broadcast(second[:, 0], root=1)
    np.testing.assert_array_equal(second, [[11.0, 10.0 * me], [12.0, 3 + 10.0 * me]])

    third = lower(rank)
    rank.comm.reduce(third[:, 0], root=1)
    np.testing.assert_array_equal(third, [[12.0, 10.0], [14.0, 13.0]] if me else lower(rank))

    out = np.full((n, 4), -1.0)
    rank.comm.gather(lower(rank)[:, 0], out[:, ::2], root=0)
    np.testing.assert_array_equal(out[:, 1::2], -1.0)
    np.testing.assert_array_equal(out[:, ::2], -1.0 if me else [[1.0, 2.0], [11.0, 12.0]])

    part = np.full(4, -1.0)
    rank.comm.scatter(np.arange(8.0).reshape(2, 4).T if me == 0 else None, part[:], root=0)
    np.testing.assert_array_equal(part, [[0, 4, 1, 5], [2, 6, 3, 7]][me])

    swapped = np.full((2, 2), -1.0)
    rank.comm.alltoall(lower(rank).T, swapped.T)
    np.testing.assert_array_equal(swapped.T, [[[1, 2], [11, 12]], [[0, 3], [10, 13]]][me])

    steps = np.arange(10.0)
    got = np.full(10, -1.0)
    if me == 0:
        rank.comm.send(steps[::2], 1)
    else:
        rank.comm.recv(got[1::2], 0)
        np.testing.assert_array_equal(got, [-1, 0, -1, 2, -1, 4, -1, 6, -1, 8])

    summed = np.zeros(6)
    rank.comm.all_reduce(np.broadcast_to(np.float64(me + 1), (6,)), summed)
    np.testing.assert_array_equal(summed, 3.0)


def test_arrays_that_are_not_contiguous() -> None:
    """Every call takes them, in place too; asserted in the ranks."""
    on_star(2, strided)


EMPTY = [(0,), (1, 0, 2), (64863, 0)]


def empty_calls(rank: Rank, shape: tuple[int, ...]) -> int:
    empty = np.zeros(shape, dtype=F32)
    comm = rank.comm
    for collective in ("all_reduce", "broadcast", "reduce"):
        getattr(comm, collective)(empty)
    for collective in ("all_gather", "reduce_scatter", "gather", "scatter", "alltoall"):
        result = np.zeros(shape, dtype=F32)
        getattr(comm, collective)(empty, result)
        assert result.shape == shape
    comm.alltoallv(empty, empty, [0] * 4, [0] * 4)
    if rank.index == 0:
        comm.send(empty, 1)
    elif rank.index == 1:
        comm.recv(empty, 0)
    return rank.now_ps


@pytest.mark.parametrize("shape", EMPTY)
def test_arrays_of_no_elements(shape: tuple[int, ...]) -> None:
    """Every call returns at once, keeps the shape, and sends nothing."""
    with star(4) as opened:
        assert opened.run(empty_calls, shape) == [0] * 4
        assert opened.counters().frames == 0


def async_calls(rank: Rank) -> list[float]:
    """Ten calls in flight, waited for in reverse; then handles are asked what they know."""
    arrays = [np.full(100, float(turn), dtype=F32) for turn in range(10)]
    works = [rank.comm.all_reduce(array, async_op=True, algorithm="ring") for array in arrays]
    assert not works[0].done
    with pytest.raises(EmuError, match="not complete"):
        assert works[0].completed_ps
    ends = [work.wait() for work in reversed(works)]
    assert ends == sorted(ends, reverse=True)
    assert [work.wait() for work in works] == ends[::-1]
    assert works[0].done and works[0].algorithm == "ring" and works[0].chunk_bytes == 128 * 1024
    assert rank.now_ps == ends[0]
    return [float(array[0]) for array in arrays]


def test_async_handles() -> None:
    """Calls complete in stream order; wait() may be repeated and called in any order."""
    assert on_star(3, async_calls) == [[3.0 * turn for turn in range(10)]] * 3


def forgotten(rank: Rank, results: dict[int, np.ndarray[Any, Any]]) -> None:
    array = np.zeros((100, 2), dtype=F32)
    array += rank.index + 1
    results[rank.index] = array
    rank.comm.all_reduce(array[:, 0], async_op=True, algorithm="ring")


def test_the_end_of_a_function_waits_for_what_it_left_in_flight() -> None:
    """A handle that nobody waited for is complete, written back and in the clock when the run is over."""
    results: dict[int, np.ndarray[Any, Any]] = {}
    with star(3) as opened:
        opened.run(forgotten, results)
        assert min(opened.run(lambda rank: rank.now_ps)) >= 4 * MS
    assert all(np.all(array == [6.0, index + 1.0]) for index, array in results.items())


def reused(rank: Rank) -> float:
    """A sender overwrites its array as soon as send has returned, while chunks are still on their way."""
    array = np.full(100_000, 7.0)
    if rank.index == 0:
        rank.comm.send(array, 1, chunk_bytes=8192)
        array[:] = -1.0
    else:
        rank.compute("500ms")
        rank.comm.recv(array, 0, chunk_bytes=8192)
    return float(array.min())


def test_a_sent_array_is_the_users_again() -> None:
    """What was sent is what arrives."""
    assert on_star(2, reused) == [-1.0, 7.0]


def in_place_through_a_narrow_window(rank: Rank, algorithm: str) -> bool:
    array = np.arange(3000, dtype=np.int64) * (rank.index + 1)
    rank.comm.all_reduce(array, algorithm=algorithm, chunk_bytes=400)
    return bool(np.all(array == np.arange(3000) * sum(range(rank.world_size + 1))))


@pytest.mark.parametrize(
    ("algorithm", "ranks"), [*((name, 6) for name in algorithms_over("all_reduce", 6)), ("full_exchange:build", 2)]
)
def test_in_place_chunks_that_wait_for_credit_keep_their_values(algorithm: str, ranks: int) -> None:
    """The result may be written over the input while older chunks of it still wait for the window of a slow link."""
    slow = ("a0->s0=throttle,factor=0.01",)
    assert all(on_star(ranks, in_place_through_a_narrow_window, algorithm, window=500, latency="10us", impair=slow))


def test_farther_peers_are_served_first() -> None:
    """On a row of four each message takes 16 us a hop: sent farthest first, all three arrive after 48 us."""

    def scattered(rank: Rank) -> int:
        part = np.zeros(4, dtype=F32)
        rank.comm.scatter(np.zeros(16, dtype=F32) if rank.index == 0 else None, part, algorithm="direct")
        return rank.now_ps

    with session("mesh", shape="4", rate="1MB/s", latency="0ms") as opened:
        times = opened.run(scattered)
    assert times[1:] == [48 * MS // 1000] * 3


def chosen(rank: Rank, n_bytes: int) -> tuple[str | None, int]:
    work = rank.comm.all_reduce(blank(n_bytes))
    return work.algorithm, work.completed_ps


def fixed(rank: Rank, n_bytes: int, algorithm: str) -> int:
    return rank.comm.all_reduce(blank(n_bytes), algorithm=algorithm).completed_ps


@pytest.mark.parametrize("n_bytes", [64, 64 * 1024, 4 * MIB])
def test_auto_is_the_fastest(n_bytes: int) -> None:
    """All ranks choose alike, and no algorithm is more than 10 % faster; latency decides for short calls."""
    choices = on_star(8, chosen, n_bytes, payload=False)
    assert len({name for name, _ in choices}) == 1
    best = min(max(on_star(8, fixed, n_bytes, name, payload=False)) for name in algorithms_over("all_reduce", 8))
    assert max(time for _, time in choices) <= 1.1 * best


def counted(rank: Rank) -> int:
    rank.comm.barrier()
    return rank.now_ps


def test_begin_is_a_fresh_model() -> None:
    """Time and counters start again at 0; without it runs go on where the last one ended."""
    with star(3) as opened:
        first, second = opened.run(counted), opened.run(counted)
        assert min(second) > max(first)
        frames = opened.counters().frames
        opened.begin(seed=5)
        assert opened.counters().frames == 0
        assert opened.run(counted) == first
        assert opened.counters().frames == frames // 2


def test_runs_leave_nothing_behind() -> None:
    """The endpoints of a session hold as much after the twentieth run as after the first."""
    held = []
    with star(3) as opened:
        for _ in range(20):
            opened.run(async_calls)
            endpoints = opened._backend._simulation.engine.endpoints.values()  # type: ignore[attr-defined]
            held.append([len(e.outgoing) + len(e.incoming) + len(e.last) + len(e.unexpected) for e in endpoints])
    assert held[0] == held[-1]


def test_a_closed_session_says_so() -> None:
    """A run after close is an error; closing twice is not."""
    opened: Session = star(2)
    opened.close()
    opened.close()
    with pytest.raises(EmuError, match="is closed"):
        opened.run(counted)


class Kept:
    """Stands for an endpoint: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(
        self, operation: Operation, peer: int, message: int, chunk: int, block: int, n_bytes: int, values: Any, now_ps: int
    ) -> None:
        self.sent.append(values[0])

    def hops(self, peer: int) -> int:
        return 1

    def worked(
        self, operation: Operation, chunk: int, block: int, copied_bytes: int, reduced_bytes: int, now_ps: int
    ) -> None: ...

    def consumed(self, frame: Frame, now_ps: int) -> None: ...

    def finished(self, operation: Operation, now_ps: int) -> None: ...


@pytest.mark.parametrize("from_socket", [True, False])
def test_a_sum_is_made_in_what_a_socket_gave_and_in_nothing_else(from_socket: bool) -> None:
    """Bytes from a socket are the rank's own, and take the sum; an array that a peer hands over stays as it is."""
    schedule = schedule_for("all_reduce", "ring", 2, 0, None)
    port = Kept()
    mine = np.arange(4, dtype=F32)
    operation = Operation(
        call=Call(collective="all_reduce", count=4, dtype="float32", itemsize=4, op="sum", algorithm="ring"),
        program=compile_program(schedule, 0),
        n_blocks=schedule.n_blocks, members=(0, 1), position=0, communicator=0, number=0, port=port,
        input_array=mine, output_array=np.empty_like(mine),
    )  # fmt: skip
    operation.start(0)
    came = np.array([10, 20], dtype=F32)
    came_bytes = bytearray(came.tobytes())
    payload = memoryview(came_bytes) if from_socket else came
    frame = Frame((), source_rank=1, target_rank=0, flow=0, route_flow=0, payload_bytes=8, head_ps=0, payload=payload)
    frame.account = opened(1, 0)
    operation.receive(frame, 5)
    total = port.sent[-1]
    assert total.sum() in (10 + 20 + 0 + 1, 10 + 20 + 2 + 3)
    assert np.shares_memory(total, np.frombuffer(came_bytes, dtype=np.uint8)) == from_socket
    assert came.tolist() == [10, 20]
    assert mine.tolist() == [0, 1, 2, 3]
