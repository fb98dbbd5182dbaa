"""The measured loop on the simulating driver, with payload: real data, checked, in nccl-tests' order."""

from dataclasses import replace

import pytest

from emu.bench.dilation import predict
from emu.bench.loop import LoopPlan, run_loop
from emu.bench.measure import measure_row, row_counts
from emu.bench.options import BenchOptions
from emu.bench.rows import Row
from emu.collectives import reduce as reductions
from emu.collectives.busbw import SHARED, WHOLE
from emu.session import Session
from emu.topologies.fabric_file import load_fabric

RATE_BYTES_PER_S = 10**9


def star(n_ranks: int, **how: object) -> Session:
    topology = load_fabric("star", {"ranks": str(n_ranks), "rate": "1GB/s", "latency": "1us"})
    return Session(topology, driver="simulate", **how)  # type: ignore[arg-type]


def row(session: Session, options: BenchOptions, n_ranks: int) -> Row:
    size = row_counts(options, options.begin_bytes, n_ranks)
    return measure_row(session, options, size, n_ranks=n_ranks, dilation=1.0, seed=0)


def options(collective: str, size_bytes: int, **how: object) -> BenchOptions:
    plain = {"iterations": 2, "driver": "simulate", "check": True, "fabrics": ("star",), **how}
    return BenchOptions(collective=collective, begin_bytes=size_bytes, end_bytes=size_bytes, **plain)  # type: ignore[arg-type]


@pytest.mark.parametrize("collective", sorted(WHOLE | SHARED))
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
def test_every_collective_is_right_on_every_rank(collective: str, n_ranks: int) -> None:
    """No element is wrong, out of place or in place, for any collective, awkward sizes and a root that is not 0."""
    with star(n_ranks) as session:
        for size_bytes in (0, 4, 1000, 70_000):
            got = row(session, options(collective, size_bytes, root=n_ranks - 1), n_ranks)
            assert got.n_wrong == 0
            assert got.out_of_place.n_wrong == 0
            assert (got.in_place.n_wrong is None) == (collective in ("alltoall", "alltoallv", "sendrecv"))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "half", "bfloat16", "double", "uint64"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_every_op_is_right_in_every_dtype(dtype: str, op: str) -> None:
    """Reductions come out exactly as predicted (averages within rounding)."""
    with star(3) as session:
        assert row(session, options("all_reduce", 5000, dtype=dtype, op=op), 3).n_wrong == 0


def test_a_reduction_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the sum takes the maximum instead, elements count as wrong on both sides of the row."""
    monkeypatch.setitem(reductions._COMBINE, "sum", reductions._COMBINE["max"])
    with star(3) as session:
        got = row(session, options("all_reduce", 4000), 3)
    assert all((side.n_wrong or 0) > 1000 for side in got.sides)


def test_iterations_are_back_to_back() -> None:
    """The loop's model time is the sum of its iterations, and in all exactly n pipelined operations."""
    with star(4, payload=False) as session:
        session.begin(1.0, 0)
        plan = LoopPlan(
            collective="all_reduce", dtype="float32", op="sum", root=-1, send_count=10_000, receive_count=10_000,
            iterations=5, warmup=1, in_place=False, check=False, algorithm="ring",
        )  # fmt: skip
        for result in session.run(run_loop, plan):
            assert len(result.iteration_ps) == 5 and sum(result.iteration_ps) == result.model_ps
            assert result.n_wrong is None and result.algorithm == "ring"


@pytest.mark.parametrize("collective", sorted(WHOLE | SHARED))
def test_bus_bandwidth_stays_below_the_wire(collective: str) -> None:
    """No collective reports more bus bandwidth than a link has, and wire bytes per rank are what its definition needs."""
    n, size_bytes = 4, 1 << 20
    with star(n, payload=False) as session:
        got = row(session, options(collective, size_bytes, check=False, iterations=4), n)
    for side in got.sides:
        assert got.busbw_gb_per_s(side) <= 1.02 * RATE_BYTES_PER_S / 1e9
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        assert got.out_of_place.wire_bytes_per_rank_max == pytest.approx(size_bytes * (n - 1) / n, rel=0.01)


def test_payload_does_not_change_model_times() -> None:
    """A prediction without payload has the model times of the run with it, to the picosecond."""
    both = []
    for payload in (True, False):
        with star(4, payload=payload) as session:
            got = row(session, options("reduce_scatter", 100_000, check=payload, iterations=3), 4)
            both.append([side.model_ps for side in got.sides])
    assert both[0] == both[1]


def test_prediction_counts_the_work_of_one_operation() -> None:
    """For --dilation auto the simulator says how long an operation takes, its frames and its bytes on all links."""
    with star(4, payload=False) as session:
        plan = LoopPlan(
            collective="alltoall", dtype="float32", op=None, root=-1, send_count=4096, receive_count=4096,
            iterations=20, warmup=3, in_place=False, check=False,
        )  # fmt: skip
        got = predict(session, replace(plan, algorithm="direct"), 0)
    barriers = 2 * 4 * 2 * 2 / 2  # two, of log2(4) empty messages per rank, over two links, shared by two iterations
    assert got.frames == 4 * 3 * 2 + barriers
    assert got.wire_bytes == 4 * 3 * 4096 * 2
    assert got.model_ps >= 3 * 4096 * 10**12 // RATE_BYTES_PER_S


def test_prediction_counts_what_travels_against_packets_too() -> None:
    """Grants and answers cost the host a message for each hop, as packets do, so that --dilation auto makes room for them."""
    plan = LoopPlan(
        collective="alltoall", dtype="float32", op=None, root=-1, send_count=16_384, receive_count=16_384,
        iterations=2, warmup=0, in_place=False, check=False, algorithm="direct",
    )  # fmt: skip
    frames = {}
    for switching in ("infiniband", "roce-lossy"):
        topology = load_fabric("star", {"ranks": "4", "rate": "1GB/s", "latency": "1us", "switching": switching})
        with Session(topology, driver="simulate", payload=False) as session:
            frames[switching] = predict(session, plan, 0).frames - session.counters().frames / plan.iterations
    assert min(frames.values()) > 0
