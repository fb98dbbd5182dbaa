"""The table: nccl-tests' first thirteen columns for parsers of it, emu's after them."""

import io
from dataclasses import replace
from typing import TypedDict

import pytest
from bench_fakes import CALIBRATION, FakeCounters, FakeOpener
from test_congestion_report import port, report

from emu.bench import runner
from emu.bench.demo import read_ring_and_tree
from emu.bench.options import BenchOptions
from emu.bench.rows import Row, Side, Verdict
from emu.bench.table import Table, fixed, reading
from emu.bench.terminal import Terminal

OPTIONS = BenchOptions(
    collective="all_reduce", begin_bytes=8, end_bytes=1 << 30, step_factor=2, dilation=100.0, fabrics=("star",), seed=3
)
SIDE = Side(
    measured_ps=45_450_000,
    model_ps=45_000_000,
    late=0.01,
    verdict=Verdict.OK,
    n_wrong=0,
    algorithm="ring",
    chunk_bytes=131072,
    dilation=100.0,
    seed=3,
    order_violations=0,
    order_weight=0.0,
    transport_backpressure=0,
    largest_lateness_ps=0,
    wire_bytes_per_rank_max=1_835_008,
    iteration_ps=(44_000_000, 46_000_000),
)
ROW = Row(
    collective="all_reduce",
    n_ranks=8,
    size_bytes=1_048_576,
    count=262_144,
    dtype="float",
    op="sum",
    root=-1,
    out_of_place=SIDE,
    in_place=replace(SIDE, measured_ps=43_710_000, late=-0.029, verdict=Verdict.DEGRADED),
)


class Parsed(TypedDict):
    size: int
    count: int
    out_time: float
    out_algbw: float
    out_busbw: float
    out_wrong: int | None
    in_time: float
    in_algbw: float
    in_busbw: float
    in_wrong: int | None


def parse(text: str) -> tuple[list[Parsed], int, float]:
    """As parsers of nccl-tests do it: skip ``#``, split at white space, take columns by number, grep two footers."""
    rows: list[Parsed] = []
    out_of_bounds, average = -1, -1.0
    for line in text.splitlines():
        if line.startswith("# Out of bounds values"):
            out_of_bounds = int(line.split(":")[1].split()[0])
        elif line.startswith("# Avg bus bandwidth"):
            average = float(line.split(":")[1].split()[0])
        if line.startswith("#") or not line.strip():
            continue
        columns = line.split()
        size, count, _, _, _, *numbers = columns[:13]
        out_wrong, in_wrong = (None if text == "N/A" else int(text) for text in (numbers[3], numbers[7]))
        times = [float(number) for number in (*numbers[:3], *numbers[4:7])]
        rows.append(
            Parsed(
                size=int(size),
                count=int(count),
                out_time=times[0],
                out_algbw=times[1],
                out_busbw=times[2],
                out_wrong=out_wrong,
                in_time=times[3],
                in_algbw=times[4],
                in_busbw=times[5],
                in_wrong=in_wrong,
            )
        )
    return rows, out_of_bounds, average


def output(options: BenchOptions, opener: FakeOpener) -> str:
    out = io.StringIO()
    runner.run(options, Terminal(out, io.StringIO()), open_session=opener, calibration=lambda: CALIBRATION)
    return out.getvalue()


GOLDEN_HEADS = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\
      model     late   verdict      algo  dilation
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        \
       (us)      (%)"""
GOLDEN_ROW = (
    "     1048576        262144     float     sum      -1    45.45   23.07   40.37       0    43.71   23.99   41.98       0"
    "      45.00    -2.90  degraded      ring       100"
)


def test_row_is_laid_out_as_nccl_tests() -> None:
    """A row and the heads above it are, to the character, nccl-tests' with emu's columns after them."""
    options = replace(OPTIONS, algorithm="ring")
    table = Table(options)
    case = runner.prepare(options, "star", 3)
    assert "\n".join(table.header(case, {"emu": "0"})[-3:]) == GOLDEN_HEADS
    assert table.row(ROW) == GOLDEN_ROW


@pytest.mark.parametrize("selection", ["auto", "halving_doubling", "ring,halving_doubling"])
def test_no_name_of_an_algorithm_shifts_its_row(selection: str) -> None:
    """The column is as wide as the longest name that may stand in it, so that a row is as long as its heads."""
    options = replace(OPTIONS, algorithm=selection)
    heads = Table(options).header(runner.prepare(options, "star", 3), {"emu": "0"})
    row = Table(options).row(replace(ROW, out_of_place=replace(SIDE, algorithm="halving_doubling")))
    assert len(row) == len(heads[-2])


def test_header_says_what_the_numbers_are_worth() -> None:
    """The comment lines name versions, fabric, calibration, driver, pace, seed, algorithm, placement and impairments."""
    options = replace(OPTIONS, rank_map="a2,a0", impairments=("a0->s0=latency,added=1us",))
    text = "\n".join(Table(options).header(runner.prepare(options, "star", 3), {"emu": "9", "numpy": "8"}))
    for part in (
        "# emu 9, numpy 8",
        "nGpus 2 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1",
        "# Calibration: links as given, not calibrated to hardware",
        "# Driver emulate, dilation 100, seed 3, algorithm auto",
        "# Ranks: a2 a0",
        "# Impairment: a0->s0=latency,added=1us",
    ):
        assert part in text
    assert all(line.startswith("#") for line in text.splitlines())


def test_a_parser_of_nccl_tests_reads_it() -> None:
    """Splitting at white space gives nccl-tests' thirteen columns, and the footers hold what they always held."""
    options = replace(OPTIONS, begin_bytes=1024, end_bytes=4096)
    rows, out_of_bounds, average = parse(output(options, FakeOpener(late={0.0: 0.0})))
    assert [row["size"] for row in rows] == [1024, 2048, 4096]
    assert [row["count"] for row in rows] == [256, 512, 1024]
    assert all(row["out_time"] == row["in_time"] == 10.0 and row["out_wrong"] == row["in_wrong"] == 0 for row in rows)
    assert out_of_bounds == 0
    assert average == pytest.approx(sum(row["out_busbw"] for row in rows) / 3, rel=0.01)


@pytest.mark.parametrize("collective", ["alltoall", "alltoallv", "sendrecv"])
def test_no_in_place_form_is_not_applicable(collective: str) -> None:
    """Where a collective has no in-place form the in-place #wrong is N/A, and the other columns are numbers."""
    rows, _, _ = parse(output(replace(OPTIONS, collective=collective, begin_bytes=4096, end_bytes=4096), FakeOpener()))
    assert rows[0]["out_wrong"] == 0 and rows[0]["in_wrong"] is None


def test_unchecked_is_not_applicable() -> None:
    """Without a check, #wrong is N/A on both sides."""
    rows, out_of_bounds, _ = parse(output(replace(OPTIONS, check=False, end_bytes=8), FakeOpener()))
    assert rows[0]["out_wrong"] is None and rows[0]["in_wrong"] is None and out_of_bounds == 0


def test_sizes_too_small_to_share_print_zero() -> None:
    """all_gather and alltoall of less than 16 bytes per rank have rows of 0 bytes and bandwidth 0."""
    for collective in ("all_gather", "alltoall", "reduce_scatter"):
        options = replace(OPTIONS, collective=collective, begin_bytes=1, end_bytes=64, step_factor=64)
        rows, _, average = parse(output(options, FakeOpener()))
        assert [(row["size"], row["count"], row["out_busbw"], row["in_busbw"]) for row in rows] == [(0, 0, 0.0, 0.0)] * 2
        assert average == 0


def test_redop_and_root_where_they_apply() -> None:
    """redop is none and root -1 where the collective has none."""
    for collective, op, root in (("broadcast", "none", "2"), ("reduce", "max", "2"), ("all_gather", "none", "-1")):
        options = replace(OPTIONS, collective=collective, op="max", root=2, begin_bytes=4096, end_bytes=4096)
        line = next(line for line in output(options, FakeOpener()).splitlines() if not line.startswith("#"))
        assert line.split()[3:5] == [op, root]


def test_all_degraded_has_no_average() -> None:
    """When every row is degraded there is no average (N/A), and a line says why and what to do."""
    text = output(replace(OPTIONS, end_bytes=8), FakeOpener(late={0.0: 0.3}))
    assert "# Avg bus bandwidth    : N/A\n" in text
    assert "# Degraded rows        : 1 of 1, not in the average: the host did not keep pace; use a larger --dilation" in text
    assert " degraded " in text


def test_order_violations_are_told() -> None:
    """Where frames were served out of order the footer says how many and what they weigh, also when unpaced."""
    counters = FakeCounters(order_violations=3, order_weight_ps=100_000_000)
    text = output(replace(OPTIONS, end_bytes=8, dilation=0.0), FakeOpener(counters_say=counters))
    assert "# Order violations     : 6 frames" in text and "up to 50 % of a row's model time" in text
    assert "# Order violations" not in output(replace(OPTIONS, end_bytes=8), FakeOpener())


def test_a_stopped_process_is_told() -> None:
    """The footer names the actor, for how long, and at which size."""
    stopped = FakeOpener(counters_say=FakeCounters(stopped_s={"a1": 0.75}))
    text = output(replace(OPTIONS, end_bytes=8), stopped)
    assert "# Process stopped      : a1, 1.5 s of wall time at 8 B" in text and " degraded " in text


def test_optional_columns() -> None:
    """-I, --seeds and a second fabric add their columns at the end, in that order."""
    options = replace(OPTIONS, per_iteration=True, n_seeds=2)
    side = replace(SIDE, p5_ps=44_000_000, p95_ps=47_000_000)
    table = Table(options, ratio=True)
    columns = table.row(replace(ROW, out_of_place=side), 1.25).split()
    assert columns[13:] == [
        "45.00",
        "-2.90",
        "degraded",
        "ring",
        "100",
        "44.00",
        "47.00",
        "44.00",
        "46.00",
        "46.00",
        "2.22",
        "1.250",
    ]
    case = runner.prepare(options, "star", 3)
    heads = table.header(case, {})[-2].split()
    assert heads[-12:] == [
        *("model", "late", "verdict", "algo", "dilation", "p5", "p95", "i_min", "i_max", "i_p99", "i_cv%", "ratio")
    ]


def test_protocols_have_a_column_where_they_cost() -> None:
    """On a fabric with an endpoint the protocol stands after the algorithm, the header has the tuner, and nothing else moves."""
    options = replace(OPTIONS, fabrics=("h100-8-nccl",), algorithm="ring")
    with_it, without = Table(options, proto=True), Table(options)
    row = replace(ROW, out_of_place=replace(SIDE, protocol="ll128"))
    columns = with_it.row(row).split()
    assert columns[13:] == ["45.00", "-2.90", "degraded", "ring", "ll128", "100"]
    assert [*columns[:17], *columns[18:]] == without.row(row).split()
    header = with_it.header(runner.prepare(options, "h100-8-nccl", 3), {})
    assert header[-2].split()[-3:] == ["algo", "proto", "dilation"] and len(header[-2]) == len(with_it.row(row))
    assert any("algorithm ring, protocol auto, tuner nccl, channels 1" in line for line in header)
    assert " proto " not in output(replace(OPTIONS, end_bytes=8), FakeOpener())


def test_congestion_is_told_in_comments() -> None:
    """On a fabric with switching totals, ports and cause of the last row stand below it, and parsers read on as before."""
    seen = FakeCounters(congestion=report(port("a1", "s0"), port("s0", "a0", dropped_packets=4, peak_queue_bytes=9)))
    with_it, without = (output(replace(OPTIONS, end_bytes=8), FakeOpener(counters_say=say)) for say in (seen, FakeCounters()))
    assert parse(with_it) == parse(without)
    assert "cause: incast at s0->a0: 4 of 4 drops and trims" in with_it
    assert with_it.count("# Congestion") == 1 and "# Congestion" not in without


def test_unchecked_results_are_called_so_in_a_line_of_their_own() -> None:
    """nccl-tests' footer stays as it is for its parsers; where nothing was checked the next line says so."""
    unchecked = output(replace(OPTIONS, driver="simulate", end_bytes=8), FakeOpener())
    lines = unchecked.splitlines()
    at = lines.index("# Out of bounds values : 0 OK")
    assert lines[at + 1].startswith("# Not checked ")
    assert parse(unchecked)[1] == 0
    assert "# Not checked" not in output(replace(OPTIONS, end_bytes=8), FakeOpener())


def test_simulated_row_has_no_verdict() -> None:
    """A simulated row prints the model's time as time, and - for late, verdict and dilation."""
    options = replace(OPTIONS, driver="simulate", end_bytes=8)
    text = output(options, FakeOpener())
    line = next(line for line in text.splitlines() if not line.startswith("#"))
    assert line.split()[5:] == [*(["10.00", "0.0008", "0.0014", "N/A"] * 2), "10.00", "-", "-", "ring", "-"]
    assert "# Driver simulate, time is the model's, no payload" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00"),
        (0.00123, "0.0012"),
        (1, "1.00"),
        (45.449, "45.45"),
        (9999.99, "9999.99"),
        (12345.6, "12345.6"),
        (1234567.8, "1234568"),
    ],
)
def test_numbers_use_the_digits_that_fit(value: float, text: str) -> None:
    """Two decimals, four below 1, fewer where the column is full."""
    assert fixed(value, 7) == text


def test_wide_numbers_keep_their_columns_apart() -> None:
    """A number that is wider than its column pushes the next ones on and never runs into them."""
    wide = replace(ROW, size_bytes=10**15, count=10**15, out_of_place=replace(SIDE, measured_ps=10**18, n_wrong=10**9))
    assert len(Table(OPTIONS).row(wide).split()) == 18


def test_second_run_on_a_terminal_is_not_compared_with_the_first() -> None:
    """The ratio column belongs to the second fabric of one run, not to the next run."""
    out = io.StringIO()
    terminal = Terminal(out, io.StringIO())
    for _ in range(2):
        runner.run(replace(OPTIONS, end_bytes=8), terminal, open_session=FakeOpener(), calibration=lambda: CALIBRATION)
    assert " ratio" not in out.getvalue()


def test_progress_only_on_a_terminal() -> None:
    """Progress goes to stderr where that is a terminal, is taken back before a row, and never reaches stdout."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    for error, shows in ((Tty(), True), (io.StringIO(), False)):
        out = io.StringIO()
        options = replace(OPTIONS, end_bytes=8)
        runner.run(options, Terminal(out, error), open_session=FakeOpener(), calibration=lambda: CALIBRATION)
        assert ("all_reduce, 8 B, seed 3, dilation 100" in error.getvalue()) is shows
        assert (error.getvalue() == "" or error.getvalue().endswith("\r\x1b[K")) and "..." not in out.getvalue()


def test_reading_compares_the_largest_size() -> None:
    """The sentence that reads two tables has the ratio of times and both bandwidths."""
    options = replace(OPTIONS, driver="simulate", end_bytes=8)
    terminal = Terminal(io.StringIO(), io.StringIO())
    first, other = (
        runner.run(options, terminal, open_session=FakeOpener(model_ps=ps), calibration=lambda: CALIBRATION)[0]
        for ps in (10_000_000, 25_000_000)
    )
    assert reading(first, other) == "star takes 2.50 x the time of star: 560 kB/s of bus bandwidth against 1.4 MB/s."


def test_ring_and_tree_are_read_by_the_model() -> None:
    """The demo's sentence names the winner at both ends by model time, where there is one, whatever the stopwatch said."""
    slow = replace(ROW, size_bytes=1024, out_of_place=replace(SIDE, model_ps=9_000_000, measured_ps=1))
    assert read_ring_and_tree((slow, ROW), (replace(slow, out_of_place=replace(SIDE, model_ps=5_000_000)), ROW)).startswith(
        "All-reduce: at 1 KiB the tree wins (9 us ring, 5 us tree) and at 1 MiB both take the same (45 us ring, 45 us tree);"
    )
