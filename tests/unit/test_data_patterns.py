"""Predictable data: exact in every dtype, different by rank and place, and able to show what is wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.bench.data import NCCL_DTYPES, PERIOD, REDUCED, Segment, count_wrong, fill, nccl_dtype, pattern
from emu.bench.layout import alltoallv_counts, layout, length
from emu.collectives.reduce import DTYPES, combine, finish, prepare
from emu.errors import ConfigError

DTYPE_NAMES = sorted(set(NCCL_DTYPES.values()))
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "sendrecv",
)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_reduction_in_any_order_is_what_is_expected(dtype: str, op: str) -> None:
    """Reducing in the dtype itself, forwards or backwards, gives no element that counts as wrong."""
    n = 8
    inputs = [prepare(op, pattern(dtype, n, op, rank), n) for rank in range(n)]
    for order in (inputs, inputs[::-1]):
        total = order[0]
        for value in order[1:]:
            total = combine(op, total, value)
        got = finish(op, total, n)
        assert count_wrong(got, (Segment(REDUCED, 0, PERIOD),), dtype=dtype, n_ranks=n, op=op) == 0


@pytest.mark.parametrize(("dtype", "exact"), [("float16", 2**11), ("bfloat16", 2**8), ("int8", 127)])
@pytest.mark.parametrize("n_ranks", [1, 7, 72, 384])
def test_sums_stay_where_every_whole_number_is_exact(dtype: str, exact: int, n_ranks: int) -> None:
    """The largest sum over the ranks is at most the largest number up to which the dtype holds all whole ones."""
    assert float(pattern(dtype, n_ranks, "sum", REDUCED).astype(np.float64).max()) <= exact


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("op", [None, "sum", "prod"])
def test_ranks_and_places_differ(dtype: str, op: str | None) -> None:
    """Another rank's data, or the same data one or 1024 elements further, is mostly wrong."""
    segment = (Segment(0, 0, 4096),)
    how = {"dtype": dtype, "n_ranks": 8, "op": op}
    for other in (Segment(1, 0, 4096), Segment(0, 1, 4096), Segment(0, 1024, 4096)):
        buffer = np.zeros(4096, DTYPES[dtype])
        fill(buffer, (other,), **how)
        assert count_wrong(buffer, segment, **how) > 1000


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3 * PERIOD), st.integers(0, 2 * PERIOD + 5)), min_size=1, max_size=3),
    st.data(),
)
def test_every_flipped_element_is_counted(parts: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """What was filled has nothing wrong, and exactly the elements that are changed afterwards count."""
    segments = tuple(Segment(*part) for part in parts)
    n = length(segments)
    buffer = np.zeros(n, np.int32)
    how = {"dtype": "int32", "n_ranks": 8, "op": None}
    fill(buffer, segments, **how)
    assert count_wrong(buffer, segments, **how) == 0
    places = data.draw(st.sets(st.integers(0, n - 1), max_size=5)) if n else set()
    for place in places:
        buffer[place] += 1
    assert count_wrong(buffer, segments, **how) == len(places)


def test_average_off_by_more_than_rounding_is_wrong() -> None:
    """A floating point average may differ by rounding but not by a hundredth."""
    n = 4096
    how = {"dtype": "float32", "n_ranks": 6, "op": "avg"}
    segment = (Segment(REDUCED, 0, n),)
    mean = pattern("float32", 6, "avg", REDUCED)[:n]
    assert count_wrong(np.nextafter(mean.astype(np.float32), np.float32(9e9)), segment, **how) == 0
    assert count_wrong((mean * 1.01).astype(np.float32), segment, **how) == np.count_nonzero(mean)


def test_nan_is_wrong() -> None:
    """Not-a-number is never right, exact or within a tolerance."""
    nans = np.full(10, np.nan, np.float32)
    for op in ("sum", "avg"):
        assert count_wrong(nans, (Segment(REDUCED, 0, 10),), dtype="float32", n_ranks=4, op=op) == 10


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("n_ranks", [1, 3, 5])
def test_what_is_received_is_what_was_sent(collective: str, n_ranks: int) -> None:
    """Moving the ranks' send buffers by the collective's definition gives exactly the expected buffers."""
    count, root = 24, n_ranks - 1
    per_rank = collective in ("all_gather", "gather")
    send_count = count if per_rank or collective in ("all_reduce", "broadcast", "reduce", "sendrecv") else count * n_ranks
    receive_count = count * n_ranks if per_rank or collective.startswith("alltoall") else count
    op = "sum" if "reduce" in collective else None
    how = {"dtype": "int64", "n_ranks": n_ranks, "op": op}
    plans = [
        layout(collective, rank=r, n_ranks=n_ranks, root=root, send_count=send_count, receive_count=receive_count)
        for r in range(n_ranks)
    ]
    sent = []
    for plan in plans:
        buffer = np.zeros(plan.n_sent, np.int64)
        fill(buffer, plan.sent, **how)
        sent.append(buffer)
    for rank, plan in enumerate(plans):
        received = _by_definition(collective, sent, rank, root, count)
        assert (received is None) == (plan.expected is None)
        if received is not None and plan.expected is not None:
            assert len(received) == plan.n_received
            assert count_wrong(received, plan.expected, **how) == 0


def _by_definition(collective: str, sent: list[np.ndarray], rank: int, root: int, count: int) -> np.ndarray | None:
    n = len(sent)
    mine = slice(rank * count, (rank + 1) * count)
    match collective:
        case "all_reduce":
            return np.sum(sent, axis=0)
        case "reduce":
            return np.sum(sent, axis=0) if rank == root else None
        case "reduce_scatter":
            return np.sum(sent, axis=0)[mine]
        case "broadcast":
            return sent[root]
        case "all_gather":
            return np.concatenate(sent)
        case "gather":
            return np.concatenate(sent) if rank == root else None
        case "scatter":
            return sent[root][mine]
        case "alltoall":
            return np.concatenate([buffer[mine] for buffer in sent])
        case "sendrecv":
            return sent[(rank - 1) % n]
        case _:
            total = count * n
            starts = [np.cumsum([0, *alltoallv_counts(source, total, n)]) for source in range(n)]
            return np.concatenate([sent[s][starts[s][rank] : starts[s][rank + 1]] for s in range(n)])


@given(st.integers(1, 12), st.integers(0, 1000))
def test_alltoallv_counts_are_symmetric_and_complete(n_ranks: int, total: int) -> None:
    """Each rank sends and receives everything it has to, and what p sends to q is what q sends to p."""
    counts = [alltoallv_counts(rank, total, n_ranks) for rank in range(n_ranks)]
    assert all(sum(row) == total and min(row) >= 0 for row in counts)
    assert counts == [tuple(column) for column in zip(*counts, strict=True)]


def test_dtype_names_are_nccl_tests() -> None:
    """numpy's spellings become nccl-tests', and an unknown one is refused with the nearest."""
    assert [nccl_dtype(name) for name in ("float32", "float16", "float64", "bfloat16")] == ["float", "half", "double", "bfloat16"]
    with pytest.raises(ConfigError, match=r"'flaot' is not a type \(did you mean 'float'"):
        nccl_dtype("flaot")
