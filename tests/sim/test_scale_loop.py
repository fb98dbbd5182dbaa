"""One call that stands for a loop: how near its last rank's time is to what the loop would give, and where it is the same."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pytest

from emu.bench import runner
from emu.bench.at_scale import row_of_equals, rows_at_scale
from emu.bench.fabrics import Case, prepare
from emu.bench.measure import measure_row, row_counts
from emu.bench.options import BenchOptions
from emu.bench.rows import Row
from emu.bench.table import Table
from emu.bench.terminal import Terminal
from emu.session import Session
from tests.sim.test_scale import HALF

STAR_OF_64 = (("ranks", "64"), ("rate", "50GB/s"))


def predicted(collective: str, algorithm: str, fabric: str = "star", **options: Any) -> tuple[Case, BenchOptions]:
    asked = BenchOptions(
        collective=collective, algorithm=algorithm, driver="simulate", fabrics=(fabric,), **{"settings": STAR_OF_64} | options
    )
    return prepare(asked, fabric, 0), asked


def looped(case: Case, options: BenchOptions) -> Row:
    """The row as the machines give it."""
    with Session(
        case.name, settings=dict(options.settings), impairments=list(case.impairments), driver="simulate", payload=False
    ) as session:
        size = row_counts(options, options.end_bytes, case.topology.n_ranks)
        return measure_row(session, options, size, n_ranks=case.topology.n_ranks, dilation=0.0, seed=case.seed, in_place=False)


@pytest.mark.parametrize(
    ("collective", "algorithm", "impairments", "too_slow"),
    [
        ("all_reduce", "ring", (), 0.01),
        ("all_reduce", "ring", (f"a3->s0={HALF}",), 0.06),
        ("all_reduce", "tree", (), 0.09),
        ("all_reduce", "tree", (f"a3->s0={HALF}",), 0.12),
        ("alltoall", "direct", (), 0.01),
        ("alltoall", "direct", (f"a3->s0={HALF}",), 0.31),
    ],
)
def test_the_last_rank_of_one_call_paces_the_loop(
    collective: str, algorithm: str, impairments: tuple[str, ...], too_slow: float
) -> None:
    """64 ranks, 1 MiB: a loop is at most 1 % slower than the last rank of one call, and faster by what calls overlap."""
    case, options = predicted(
        collective, algorithm, impairments=impairments, begin_bytes=1 << 20, end_bytes=1 << 20, warmup=0, iterations=8
    )
    loop_ps = looped(case, options).out_of_place.time_ps
    (row,) = rows_at_scale(case, options)
    assert -0.01 <= row.out_of_place.time_ps / loop_ps - 1 <= too_slow


def test_averages_of_one_call() -> None:
    """-a 0 is rank 0's time and -a 2 the first rank's; 1 and 3 are the last rank's, whom a loop waits for; it is said whose."""
    asked = partial(predicted, "alltoall", "direct", impairments=(f"a3->s0={HALF}",), begin_bytes=1 << 20, end_bytes=1 << 20)
    times, said = [], []
    for average in range(4):
        case, options = asked(average=average)
        (row,) = rows_at_scale(case, options)
        times.append(row.out_of_place.time_ps)
        result = runner.FabricResult(case=case, rows=(row,), minimum=None)
        said.append(next(line for line in Table(options).footer(result) if line.startswith("# Method")))
    assert times[2] < times[0] < times[1] == times[3]
    assert ["rank 0's time" in said[0], "the last rank's time" in said[1], "the first rank's time" in said[2]] == [True] * 3


@pytest.mark.parametrize(("collective", "algorithm"), [("alltoall", "direct"), ("all_reduce", "ring")])
@pytest.mark.parametrize("size_bytes", [1 << 13, 1 << 20, 1 << 25])
def test_a_loop_of_equals_is_as_many_of_one_call(collective: str, algorithm: str, size_bytes: int) -> None:
    """Where all ranks leave barrier and call together, one call counted is the loop to the picosecond."""
    case, options = predicted(
        collective, algorithm, settings=(("ranks", "16"),), begin_bytes=size_bytes, end_bytes=size_bytes, iterations=3
    )
    expected = looped(case, options)
    row = row_of_equals(case, options, row_counts(options, size_bytes, 16))
    assert row is not None
    for name in ("model_ps", "iteration_ps", "chunk_bytes", "wire_bytes_per_rank_max", "n_wrong"):
        assert getattr(row.out_of_place, name) == getattr(expected.out_of_place, name), name


@pytest.mark.parametrize(
    ("collective", "algorithm", "fabric", "options"),
    [
        ("all_reduce", "tree", "star", {}),
        ("alltoall", "direct", "star", {"impairments": (f"a3->s0={HALF}",)}),
        ("alltoall", "direct", "star", {"settings": (("ranks", "16"), ("window", "64KiB"))}),
        ("alltoall", "direct", "star", {"method": "full"}),
        ("alltoall", "auto", "star", {}),
        ("alltoall", "direct", "torus", {"settings": (("shape", "4x4"),)}),
    ],
)
def test_other_loops_are_run(collective: str, algorithm: str, fabric: str, options: dict[str, Any]) -> None:
    """Ranks that end, or begin, one after the other overlap their calls; credit may still be on its way; a loop is asked for."""
    case, asked = predicted(collective, algorithm, fabric, **{"settings": (("ranks", "16"),)} | options)
    assert row_of_equals(case, asked, row_counts(asked, 1 << 18, 16)) is None


def test_a_loop_of_many_seconds_is_counted_where_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """180 ranks ask for arithmetic long before a million chunks, and no forecast is said of what is not run."""
    case, options = predicted(
        "alltoall", "direct", settings=(("ranks", "180"), ("rate", "50GB/s")), begin_bytes=1 << 20, end_bytes=1 << 20
    )
    monkeypatch.setattr(runner, "measure_row", None)
    err = io.StringIO()

    def opened(case: Case, options: BenchOptions, *, simulate: bool, payload: bool) -> Session:
        return Session(case.name, settings=dict(options.settings), driver="simulate", payload=False)

    (row,) = runner.seed_rows(case, options, Terminal(io.StringIO(), err), opened, lambda: None)
    assert row.out_of_place.method.startswith("exact, vectorised, direct by levels of links; all ranks end together")
    assert "chunk-hops" not in err.getvalue()
