"""Every collective and algorithm gives numpy's answer, whatever the ranks, lengths, chunks and channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import on_star, star

from emu import Rank
from emu.collectives.call import REDUCING
from emu.collectives.catalogue import algorithms_for
from emu.collectives.reduce import DTYPES, OPS
from emu.testing import algorithms_on, algorithms_over, fabric_over, fabrics_over, simulated

RANKS = (1, 2, 3, 5, 6, 7, 8)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PLAIN = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
CASES = [(collective, algorithm) for collective in (*PLAIN, *ROOTED) for algorithm in algorithms_for(collective)]
UFUNC = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def lengths(n: int) -> list[int]:
    """Counts that do and do not divide by n, down to fewer elements than ranks."""
    return sorted({1, n - 1, n + 1, 130 + n})


def element(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.int64) + 1000 * rank


def arrays(collective: str, index: int, n: int, count: int, in_place: bool) -> tuple[Any, Any]:
    """Distinct send values and a receive buffer full of -1, sharing memory by NCCL's rule when in place."""
    large = collective in ("reduce_scatter", "scatter", "alltoall")
    send = element(index, count * n if large else count)
    if collective in ("all_gather", "gather"):
        recv = np.full(count * n, -1, dtype=np.int64)
        if in_place:
            recv[index * count : (index + 1) * count] = send
            send = recv[index * count : (index + 1) * count]
    elif collective in ("reduce_scatter", "scatter"):
        recv = send[index * count : (index + 1) * count] if in_place else np.full(count, -1, dtype=np.int64)
    else:
        recv = send if in_place else np.full_like(send, -1)
    return send, recv


def expected(collective: str, index: int, n: int, count: int, op: str, root: int) -> np.ndarray[Any, Any]:
    """numpy's answer for the receive buffer of a rank that gets one."""
    large = collective in ("reduce_scatter", "scatter", "alltoall")
    sends = [element(rank, count * n if large else count) for rank in range(n)]
    mine = slice(index * count, (index + 1) * count)
    match collective:
        case "all_reduce" | "reduce":
            return UFUNC[op].reduce(sends)  # type: ignore[no-any-return]
        case "reduce_scatter":
            return UFUNC[op].reduce(sends)[mine]  # type: ignore[no-any-return]
        case "all_gather" | "gather":
            return np.concatenate(sends)
        case "broadcast":
            return sends[root]
        case "scatter":
            return sends[root][mine]
        case _:
            return np.concatenate([send[mine] for send in sends])


def call_all(rank: Rank, collective: str, algorithm: str, in_place: bool, options: dict[str, Any], counts: list[int]) -> None:
    """Every length, every root or some ops: asserts in the rank itself, so that a failure names the rank."""
    n, index, comm = rank.world_size, rank.index, rank.comm
    for count in counts:
        for variant in range(n if collective in ROOTED else 3 if collective in REDUCING else 1):
            root = variant if collective in ROOTED else 0
            op = ("sum", "min", "max")[variant % 3]
            send, recv = arrays(collective, index, n, count, in_place)
            keywords: dict[str, Any] = {"algorithm": algorithm, **options}
            if collective in ROOTED:
                keywords["root"] = root
            if collective in REDUCING:
                keywords["op"] = op
            before = recv.copy()
            getattr(comm, collective)(send, recv, **keywords)
            gets_result = collective not in ("reduce", "gather") or index == root
            want = expected(collective, index, n, count, op, root) if gets_result else before
            np.testing.assert_array_equal(recv, want, err_msg=f"{collective} {algorithm} of {count}, root {root}, {op}")


@pytest.mark.parametrize(
    ("collective", "algorithm", "in_place"),
    [(*case, in_place) for case in CASES for in_place in (False, True) if not (in_place and case[0] == "alltoall")],
)
def test_numpy_agrees_for_every_rank_count_and_length(collective: str, algorithm: str, in_place: bool) -> None:
    """Any number of ranks, any length, every root: element for element equal to numpy, other buffers untouched."""
    for n in RANKS:
        fabric = fabric_over(collective, algorithm, n)
        if fabric is not None:
            simulated(fabric, call_all, collective, algorithm, in_place, {"chunk_bytes": 256}, lengths(n))


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_a_long_call_in_many_chunks_and_channels(collective: str, algorithm: str) -> None:
    """65537 elements in odd chunks over three channels are exact."""
    fabric = next(found for n in (5, *range(2, 65)) if (found := fabric_over(collective, algorithm, n)) is not None)
    simulated(fabric, call_all, collective, algorithm, False, {"chunk_bytes": 50_000, "channels": 3}, [65537])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_calls_equal_numpy(data: st.DataObject) -> None:
    """Whatever ranks, fabric, count, chunk, channels and algorithm: the answer is numpy's."""
    n = data.draw(st.integers(1, 9))
    collective = data.draw(st.sampled_from((*PLAIN, *ROOTED)))
    fabric = data.draw(st.sampled_from(fabrics_over(n)))
    algorithm = data.draw(st.sampled_from(algorithms_on(collective, fabric)))
    count = data.draw(st.integers(0, 400))
    options = {"chunk_bytes": data.draw(st.integers(64, 4000)), "channels": data.draw(st.integers(1, 4))}
    in_place = collective != "alltoall" and data.draw(st.booleans())
    simulated(fabric, call_all, collective, algorithm, in_place, options, [count])


def contribution(index: int, dtype: str, op: str) -> np.ndarray[Any, Any]:
    """37 small numbers of both signs; integers large enough to wrap in eight bits."""
    most = 3 if op == "prod" and DTYPES[dtype].kind not in "iu" else 100
    values = np.random.default_rng(index).integers(-most, most, 37)
    return (np.abs(values) if DTYPES[dtype].kind == "u" else values).astype(DTYPES[dtype])


def reduce_once(rank: Rank, dtype: str, op: str) -> list[np.ndarray[Any, Any]]:
    results = []
    for algorithm in algorithms_over("all_reduce", rank.world_size):
        array = contribution(rank.index, dtype, op)
        rank.comm.all_reduce(array, op=op, algorithm=algorithm, chunk_bytes=64)
        results.append(array)
    return results


def whole_answer(sends: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    """Integers: the sum wraps in its type, an average truncates towards zero."""
    kind = sends[0].dtype
    if op != "avg":
        return UFUNC[op].reduce(np.stack(sends), axis=0, dtype=kind)  # type: ignore[no-any-return]
    total = np.add.reduce(sends, dtype=kind)
    return np.array([int(abs(int(value)) // len(sends)) * (1 if value >= 0 else -1) for value in total]).astype(kind)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_and_op(dtype: str, op: str) -> None:
    """By every algorithm integers equal numpy with wrap-around, floats within rounding; every rank has the same bits."""
    n, kind = 5, DTYPES[dtype]
    sends = [contribution(index, dtype, op) for index in range(n)]
    by_rank = on_star(n, reduce_once, dtype, op)
    for results in zip(*by_rank, strict=True):
        assert all(result.tobytes() == results[0].tobytes() for result in results)
        assert results[0].dtype == kind
        if kind.kind in "iu":
            np.testing.assert_array_equal(results[0], whole_answer(sends, op))
            continue
        wide = np.stack(sends).astype(np.float64)
        exact = wide.mean(axis=0) if op == "avg" else UFUNC[op].reduce(wide, axis=0)
        rounding = 2.0**-7 if dtype == "bfloat16" else float(np.finfo(kind).eps)
        bound = n * rounding * (np.abs(wide).sum(axis=0) if op in ("sum", "avg") else np.abs(exact))
        assert np.all(np.abs(results[0].astype(np.float64) - exact) <= bound)


def average(rank: Rank, rows: list[list[Any]], dtype: str, algorithm: str, repeat: int) -> np.ndarray[Any, Any]:
    array = np.tile(np.array(rows[rank.index], dtype=DTYPES[dtype]), repeat)
    rank.comm.all_reduce(array, op="avg", algorithm=algorithm)
    return array


@pytest.mark.parametrize(
    ("algorithm", "rows", "dtype", "want"),
    [
        (algorithm, rows, dtype, want)
        for rows, dtype, want in (
            ([[1, 2, -3], [2, 2, -3], [4, 2, -3]], "int32", [2, 2, -3]),
            ([[1, -1], [1, -1], [0, 0]], "int8", [0, 0]),
            ([[3.0e38]] * 4, "bfloat16", [3.0e38]),
            ([[3.0e38]] * 4, "float32", [3.0e38]),
        )
        for algorithm in algorithms_over("all_reduce", len(rows))
    ],
)
def test_average_truncates_integers_and_does_not_overflow(
    algorithm: str, rows: list[list[Any]], dtype: str, want: list[Any]
) -> None:
    """avg divides by the ranks, never by elements: integers truncate towards zero, floats are scaled before the sum."""
    for repeat in (1, 5):
        for result in on_star(len(rows), average, rows, dtype, algorithm, repeat):
            np.testing.assert_array_equal(result, np.tile(np.array(want, dtype=DTYPES[dtype]), repeat))


def small_average(rank: Rank) -> int:
    array = np.full(4, -1, dtype=np.int8)
    rank.comm.all_reduce(array, op="avg", algorithm="tree")
    return int(array[0])


def test_average_of_small_integers_over_more_ranks_than_they_can_count() -> None:
    """130 ranks do not fit int8: the sum wraps to 126, and 126 over 130 is 0."""
    assert set(on_star(130, small_average)) == {0}


def wrapping(rank: Rank) -> int:
    array = np.array([(120, 100)[rank.index]], dtype=np.int8)
    rank.comm.all_reduce(array)
    return int(array[0])


def test_integers_wrap() -> None:
    """120 + 100 in int8 is -36 on both ranks."""
    assert on_star(2, wrapping) == [-36, -36]


def reduce_to_zero(rank: Rank, algorithm: str) -> list[list[int]]:
    rows = [[[1, 2], [3, 4]], [[4, 5], [6, 7]], [[0, 0], [0, 0]]]
    array = np.array(rows[rank.index], dtype=np.int64)
    rank.comm.reduce(array, root=0, algorithm=algorithm)
    return array.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("n", "algorithm"), [(n, name) for n in (2, 3) for name in algorithms_over("reduce", n)])
def test_reduce_leaves_the_arrays_of_other_ranks_alone(n: int, algorithm: str) -> None:
    """The root has the sum; the others still have what they gave."""
    results = on_star(n, reduce_to_zero, algorithm)
    assert results[0] == [[5, 7], [9, 11]]
    assert results[1] == [[4, 5], [6, 7]]


def same_bits(rank: Rank, columns: list[float], dtype: str, algorithm: str, count: int) -> bytes:
    array = np.full(count, columns[rank.index], dtype=DTYPES[dtype])
    rank.comm.all_reduce(array, algorithm=algorithm, chunk_bytes=256)
    return array.tobytes()


@pytest.mark.parametrize("algorithm", algorithms_over("all_reduce", 4))
def test_all_ranks_and_repeats_have_the_same_bits(algorithm: str) -> None:
    """Where the order of a sum matters, all ranks and all repeats still agree, on one of the sums that an order can give."""
    for columns in ([1e8, 1, -1e8, 1], [1, 1e8, 1, -1e8], [1e8, -1e8, 1, 1], [1, 1, 1e8, -1e8]):
        with star(4) as opened:
            results = [opened.run(same_bits, columns, "float32", algorithm, 300) for _ in range(2)]
        assert len({bits for run in results for bits in run}) == 1
        assert set(np.frombuffer(results[0][0], dtype=np.float32).tolist()) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize("algorithm", algorithms_over("all_reduce", 8))
def test_bfloat16_sums_stay_in_bfloat16(algorithm: str) -> None:
    """256 and seven ones: every sum is rounded to 8 bits, so it is between 256 and 264, and equal everywhere."""
    results = on_star(8, same_bits, [256.0] + [1.0] * 7, "bfloat16", algorithm, 64)
    assert len(set(results)) == 1
    values = np.frombuffer(results[0], dtype=DTYPES["bfloat16"]).astype(float)
    assert np.all((values >= 256) & (values <= 264))


def exchange_counts(rank: Rank, table: list[list[int]]) -> tuple[list[int], list[int]]:
    n, me = rank.world_size, rank.index
    send = np.concatenate([np.full(table[me][d], 100 * me + d, dtype=np.int64) for d in range(n)])
    received = [table[s][me] for s in range(n)]
    recv = np.full(sum(received), -1, dtype=np.int64)
    rank.comm.alltoallv(send, recv, table[me], received)
    return received, recv.tolist()


def test_alltoallv_with_ranks_that_send_nothing() -> None:
    """Zero counts move nothing and block nobody; every element comes from its sender."""
    table = [[0, 0, 0, 0], [5, 0, 7, 1], [0, 3, 0, 0], [2, 0, 0, 9]]
    results = on_star(4, exchange_counts, table)
    assert [received for received, _ in results] == [[0, 5, 0, 2], [0, 0, 3, 0], [0, 7, 0, 0], [0, 1, 0, 9]]
    assert [sum(values) for _, values in results] == [1100, 603, 714, 2830]


def test_alltoallv_of_nothing_returns_at_once() -> None:
    """An all-zero table costs no time."""
    with star(4) as opened:
        assert opened.run(exchange_counts, [[0] * 4] * 4) == [([0] * 4, [])] * 4
        assert opened.counters().frames == 0


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_random_alltoallv_tables(data: st.DataObject, n: int) -> None:
    """Any table of counts, however uneven, is delivered in rank order."""
    row = st.lists(st.integers(0, 300), min_size=n, max_size=n)
    table = data.draw(st.lists(row, min_size=n, max_size=n))
    for me, (_, values) in enumerate(on_star(len(table), exchange_counts, table)):
        assert values == [100 * s + me for s in range(len(table)) for _ in range(table[s][me])]


def gather_ids(rank: Rank, algorithm: str) -> list[int]:
    ids = np.zeros(rank.world_size, dtype=np.int32)
    rank.comm.all_gather(np.array([rank.index], dtype=np.int32), ids, algorithm=algorithm)
    return ids.tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["bruck", "ring"])
def test_300_ranks_gather_their_ids(algorithm: str) -> None:
    """More than 256 ranks: everybody has everybody's number once."""
    assert on_star(300, gather_ids, algorithm) == [list(range(300))] * 300


def odd_chunks(rank: Rank, n_bytes: int) -> None:
    array = np.arange(n_bytes // 4, dtype=np.int32) * (rank.index + 1)
    rank.comm.all_reduce(array, algorithm="ring", chunk_bytes=1_000_000)
    np.testing.assert_array_equal(array, np.arange(n_bytes // 4, dtype=np.int32) * 36)


def test_sizes_in_steps_with_a_chunk_that_is_no_power_of_two() -> None:
    """192 KiB to 200 KiB in steps of 1 KiB with chunks of a million bytes: nothing is wrong."""
    with star(8) as opened:
        for kib in range(192, 201):
            opened.run(odd_chunks, kib * 1024)
