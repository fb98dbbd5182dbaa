"""Options, sizes, verdicts, dilation and the runner, without a driver."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from bench_fakes import CALIBRATION, FakeCounters, FakeOpener, FakeSession, Recorder
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.bench import calibrate, dilation, runner
from emu.bench.dilation import Prediction
from emu.bench.fabrics import prepare
from emu.bench.measure import over_ranks
from emu.bench.options import BenchOptions, parse_auto, parse_count, parse_settings
from emu.bench.rows import Row, Verdict, average_busbw_gb_per_s, judge, percentile
from emu.bench.sweep import sizes_bytes
from emu.errors import ConfigError, Stalled

STAR = BenchOptions(collective="all_reduce", begin_bytes=1024, end_bytes=4096, step_factor=2, fabrics=("star",))


def run(options: BenchOptions, opener: FakeOpener) -> tuple[tuple[runner.FabricResult, ...], Recorder]:
    recorder = Recorder()
    return runner.run(options, recorder, open_session=opener, calibration=lambda: CALIBRATION), recorder


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"begin_bytes": 8, "end_bytes": 4096, "step_factor": 8}, [8, 64, 512, 4096]),
        ({"begin_bytes": 8, "end_bytes": 100, "step_factor": 3}, [8, 24, 72]),
        ({"begin_bytes": 1, "end_bytes": 7, "step_bytes": 3}, [1, 4, 7]),
        ({"begin_bytes": 5, "end_bytes": 5}, [5]),
        ({"begin_bytes": 0, "end_bytes": 4, "step_factor": 2}, [0, 1, 2, 4]),
        ({"begin_bytes": 192 << 10, "end_bytes": 194 << 10, "step_bytes": 1024}, [196608, 197632, 198656]),
    ],
)
def test_sizes_step_as_in_nccl_tests(how: dict[str, int], expected: list[int]) -> None:
    """Sizes run from -b to -e inclusive, by the factor where one is given and else by the step."""
    assert list(sizes_bytes(BenchOptions(collective="all_reduce", **how))) == expected


@given(st.integers(0, 1000), st.integers(0, 10_000), st.floats(1.001, 8))
def test_sizes_always_grow_and_end(begin: int, more: int, factor: float) -> None:
    """Any factor above 1 gives a finite, strictly growing list of sizes within the bounds."""
    sizes = list(
        sizes_bytes(BenchOptions(collective="all_reduce", begin_bytes=begin, end_bytes=begin + more, step_factor=factor))
    )
    assert sizes == sorted(set(sizes)) and sizes[0] == begin and sizes[-1] <= begin + more


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"collective": "al_reduce"}, "did you mean 'all_reduce'"),
        ({"collective": "barrier"}, "not a collective to bench"),
        ({"op": "mul"}, "sum, prod, max, min, avg|use one of"),
        ({"dtype": "fp8"}, "-d 'fp8' is not a type"),
        ({"begin_bytes": 8, "end_bytes": 4}, "-e 4 is less than -b 8"),
        ({"step_factor": 0.5}, "-f 0.5"),
        ({"begin_bytes": 1, "end_bytes": 1 << 30, "step_bytes": 1}, "-i 1 gives more than 10000 rows"),
        ({"iterations": 0}, "-n 0 must be from 1"),
        ({"average": 4}, "-a 4 must be from 0 to 3"),
        ({"chunk_bytes": 1}, "chunk of 1 bytes"),
        ({"driver": "emulated"}, "did you mean 'emulate'"),
        ({"dilation": -1.0}, "--dilation -1"),
        ({"timeout_s": 0.0}, "--timeout 0"),
        ({"driver": "simulate", "address": "auto"}, "--address"),
        ({"fabrics": ()}, "no fabric"),
    ],
)
def test_what_cannot_be_meant_is_refused(how: dict[str, object], message: str) -> None:
    """A bad value is a ConfigError of one line that names the option and the fix."""
    with pytest.raises(ConfigError, match=message) as caught:
        BenchOptions(**{"collective": "all_reduce", **how})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_names_are_brought_to_one_spelling() -> None:
    """nccl-tests' and NCCL's names of collectives are understood."""
    names = ("AllReduce", "all_reduce_perf", "all-gather", "sendrecv_perf", "bcast")
    got = [BenchOptions(collective=name).collective for name in names]
    assert got == ["all_reduce", "all_reduce", "all_gather", "sendrecv", "broadcast"]


def test_settings_may_be_for_one_fabric() -> None:
    """key=value is for every fabric, FABRIC.key=value for one; a fabric that is not there is refused."""
    options = replace(STAR, fabrics=("star", "torus"), settings=parse_settings(["star.ranks=3", "torus.shape=2x2", "rate=1GB/s"]))
    star, torus = (prepare(options, name, 0) for name in options.fabrics)
    assert (star.topology.n_ranks, torus.topology.n_ranks) == (3, 4)
    assert {link.rate_bps for case in (torus,) for link in case.topology.links} == {8 * 10**9}
    with pytest.raises(ConfigError, match="no --fabric 'ring'"):
        prepare(replace(options, settings=(("ring.ranks", "3"),)), "star", 0)
    with pytest.raises(ConfigError, match="key=value"):
        parse_settings(["ranks"])


def test_everything_is_checked_before_a_session_opens() -> None:
    """A mistake in the second fabric, the root, the algorithm or an impairment is found before anything starts."""
    opener = FakeOpener()
    for how in (
        {"fabrics": ("star", "no_such")},
        {"collective": "broadcast", "root": 99},
        {"algorithm": "rign"},
        {"impairments": ("a99->s0=latency,added=1us",)},
        {"collective": "sendrecv", "algorithm": "ring"},
        {"n_ranks": 10_000},
        {"rank_map": "a0,a0"},
    ):
        with pytest.raises(ConfigError):
            run(replace(STAR, **how), opener)  # type: ignore[arg-type]
    assert opener.sessions == []


@pytest.mark.parametrize(("text", "value"), [("auto", None), ("AUTO", None), ("0", 0.0), ("2.5", 2.5)])
def test_auto_or_a_number(text: str, value: float | None) -> None:
    """auto is None, a number itself."""
    assert parse_auto("--dilation", text) == value


@pytest.mark.parametrize("text", ["fast", "nan", "inf", "1.5"])
def test_neither_auto_nor_a_whole_number(text: str) -> None:
    """Anything else is refused and the flag named."""
    with pytest.raises(ConfigError, match="--accelerators-per-actor"):
        parse_count("--accelerators-per-actor", text)


@pytest.mark.parametrize(
    ("late", "weight", "verdict"),
    [(None, 0.0, "-"), (0.02, 0.01, "ok"), (-0.0201, 0, "degraded"), (0.0201, 0, "degraded"), (0.0, 0.0101, "degraded")],
)
def test_verdict(late: float | None, weight: float, verdict: str) -> None:
    """ok up to 2 % late and 1 % of order weight, degraded beyond, none where nothing was paced."""
    assert str(judge(late=late, order_weight=weight)) == verdict


def test_time_over_ranks() -> None:
    """-a picks rank 0, the mean, the least or the largest; with a root the mean gives way to the largest."""
    values = [5, 1, 9]
    assert [over_ranks(values, average, waits_for_last=False) for average in range(4)] == [5, 5, 1, 9]
    assert [over_ranks(values, average, waits_for_last=True) for average in range(4)] == [5, 9, 1, 9]


def test_percentile_is_nearest_rank() -> None:
    """The percentile is one of the values, the smallest one that enough of them do not exceed."""
    assert [percentile(range(1, 101), p) for p in (5, 95, 99)] == [5, 95, 99]
    assert percentile([7], 5) == percentile([7], 95) == 7
    assert (percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 51)) == (2, 3)


@settings(max_examples=50)
@given(
    st.floats(1e3, 1e13), st.floats(0, 1e6), st.floats(0, 1e10), st.integers(1, 1000)
)  # a nanosecond to ten seconds, up to a million frames
def test_automatic_dilation_has_room_and_no_more(model_ps: float, frames: float, wire_bytes: float, iterations: int) -> None:
    """The wall has room for the work and for the jitter, and is at most 10 % (two digits) above the larger need."""
    got = dilation.choose(CALIBRATION, Prediction(model_ps=model_ps, frames=frames, wire_bytes=wire_bytes), iterations)
    work_s = frames * 50e-6 + wire_bytes / 1e9
    least_s, most_s = dilation.JITTER_FLOOR_S
    floor_s = min(most_s, max(least_s, CALIBRATION.oversleep_p99_ns / 1e9 / dilation.LATE_SHARE))
    wall_s = got * model_ps / 1e12
    need_s = max(dilation.HEADROOM * work_s, floor_s / iterations)
    assert need_s * 0.999 <= wall_s <= need_s * 1.101


def test_a_burst_at_the_end_needs_a_longer_loop() -> None:
    """Frames that all fall due at the end make it late by the time to work them off; the loop is stretched, but not for ever."""
    spread = tuple((i * 10**6, 0) for i in range(100))
    burst = tuple((10**8, 0) for _ in range(100))
    even = Prediction(model_ps=1e8, frames=100, wire_bytes=0, hops=spread)
    at_once = Prediction(model_ps=1e8, frames=100, wire_bytes=0, hops=burst)
    cost_s = CALIBRATION.frame_cost_ns / 1e9
    assert at_once.end_lateness_s(1e5, cost_s, 0.0) == pytest.approx(100 * cost_s)
    assert even.end_lateness_s(1e5, cost_s, 0.0) == pytest.approx(cost_s)
    evenly, stretched = (dilation.choose(CALIBRATION, case, 60) for case in (even, at_once))
    assert evenly < stretched <= 1.1 * dilation.MOST_SLOWDOWN * 100 * cost_s * 1e12 / 1e8


def test_nothing_to_move_needs_no_room() -> None:
    """An operation that takes no model time runs at dilation 1."""
    assert dilation.choose(CALIBRATION, Prediction(model_ps=0, frames=0, wire_bytes=0), 20) == 1.0


def test_degraded_row_is_run_once_more_at_twice_the_dilation() -> None:
    """Under auto a degraded row is measured again, doubled, and what comes then counts."""
    opener = FakeOpener(late={0.0: 0.5, 2500.0: 0.0})
    (result,), _ = run(replace(STAR, end_bytes=1024), opener)
    dilations = [begun[0] for begun in opener.measured[0].begun]
    assert dilations == [1700.0, 1700.0, 3400.0, 3400.0]
    assert [row.verdict for row in result.rows] == [Verdict.OK]
    assert result.rows[0].out_of_place.dilation == 3400


def test_a_row_during_which_a_process_was_stopped_is_not_run_again() -> None:
    """A larger dilation does not help against that; the row is degraded and says who and for how long."""
    opener = FakeOpener(counters_say=FakeCounters(stopped_s={"a1": 0.5}))
    (result,), _ = run(replace(STAR, end_bytes=1024), opener)
    assert len(opener.measured[0].begun) == 2
    assert [(row.verdict, row.stopped_s) for row in result.rows] == [(Verdict.DEGRADED, {"a1": 1.0})]


def test_degraded_row_at_a_fixed_dilation_stays() -> None:
    """Who names a dilation gets that one, once; the row is marked and left out of the average."""
    opener = FakeOpener(late={0.0: 0.5})
    (result,), _ = run(replace(STAR, dilation=10.0), opener)
    assert [begun[0] for begun in opener.measured[0].begun] == [10.0] * 6
    assert result.n_degraded == 3 and result.average is None
    assert runner.exit_code((result,), strict=False) == 0
    assert runner.exit_code((result,), strict=True) == 5


def test_order_violations_degrade() -> None:
    """A punctual row whose order weighs more than 1 % of its model time is degraded."""
    options = replace(STAR, end_bytes=1024, dilation=10.0, iterations=20)
    heavy = FakeCounters(order_violations=3, order_weight_ps=2_100_000)
    (result,), _ = run(options, FakeOpener(counters_say=heavy, late={0.0: 0.0}))
    assert result.rows[0].verdict is Verdict.DEGRADED
    (result,), _ = run(options, FakeOpener(counters_say=replace(heavy, order_weight_ps=1_900_000), late={0.0: 0.0}))
    assert result.rows[0].verdict is Verdict.OK


def test_measured_is_the_stopwatch_over_the_dilation() -> None:
    """measured x dilation is what the wall said, and late is its excess over the model."""
    (result,), _ = run(replace(STAR, end_bytes=1024, dilation=100.0), FakeOpener(late={0.0: 0.01}))
    side = result.rows[0].out_of_place
    assert (side.measured_ps, side.model_ps) == (10_100_000, 10_000_000)
    assert side.late == pytest.approx(0.01)


@pytest.mark.parametrize(("how", "time_ps"), [({"driver": "simulate"}, 10_000_000), ({"dilation": 0.0}, 100_000_000)])
def test_nothing_paced_no_verdict(how: dict[str, object], time_ps: int) -> None:
    """Simulated, time is the model's; unpaced, the stopwatch's; neither has a verdict, so that --strict has nothing to say."""
    opener = FakeOpener(late={0.0: 9.0})
    (result,), _ = run(replace(STAR, **how), opener)  # type: ignore[arg-type]
    for row in result.rows:
        assert row.verdict is Verdict.NONE and row.late is None
        assert row.out_of_place.time_ps == time_ps
    assert runner.exit_code((result,), strict=True) == 0


def test_no_session_is_opened_to_predict_where_the_dilation_is_given() -> None:
    """A fixed dilation costs no prediction and no calibration."""
    opener = FakeOpener()
    runner.run(replace(STAR, dilation=5.0), Recorder(), open_session=opener, calibration=pytest.fail)
    assert [simulate for simulate, _ in opener.sessions] == [False]


def test_sessions_are_closed_whatever_happens() -> None:
    """A failing run, and an interrupted observer, leave no session open."""
    opener = FakeOpener(fails=Stalled("rank 3 waits"))
    with pytest.raises(Stalled):
        run(STAR, opener)

    class Interrupted(Recorder):
        def row(self, row: object, ratio: float | None) -> None:
            raise KeyboardInterrupt

    second = FakeOpener()
    with pytest.raises(KeyboardInterrupt):
        runner.run(STAR, Interrupted(), open_session=second, calibration=lambda: CALIBRATION)
    assert [session.n_closed for _, session in opener.sessions + second.sessions] == [1, 1, 1, 1]


def test_wrong_data_outranks_everything() -> None:
    """Exit code 3 for wrong elements, also where rows are degraded and the threshold is missed."""
    (result,), _ = run(replace(STAR, dilation=10.0), FakeOpener(n_wrong=2, late={0.0: 0.5}))
    assert result.n_wrong == 2 * 8 * 2 * 3
    assert runner.exit_code((result,), strict=True) == 3


def test_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average below 0.9 x NCCL_TESTS_MIN_BW exits 4, at 0.9 x it does not."""
    opener = FakeOpener(late={0.0: 0.0})
    options = replace(STAR, collective="broadcast", begin_bytes=157_480, end_bytes=157_480, dilation=1.0)
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "17.5")
    (enough,), _ = run(replace(options, begin_bytes=157_500, end_bytes=157_500), opener)
    assert enough.average == pytest.approx(15.75) and runner.exit_code((enough,), strict=False) == 0
    (short,), _ = run(options, opener)
    assert runner.exit_code((short,), strict=False) == 4
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "fast")
    with pytest.raises(ConfigError, match="NCCL_TESTS_MIN_BW='fast'"):
        run(options, opener)


def test_several_fabrics_are_compared_with_the_first() -> None:
    """The first table has no ratios, the second one for each row."""
    _, recorder = run(replace(STAR, fabrics=("star", "ring"), driver="simulate"), FakeOpener())
    assert recorder.ratios == [None] * 3 + [1.0] * 3
    assert (recorder.n_begun, recorder.n_ended) == (2, 2)


def test_several_seeds_become_one_row() -> None:
    """Each seed has a session of its own; rows hold the median and the percentiles over the seeds."""

    class BySeed(FakeOpener):
        def __call__(self, case, options, *, simulate, payload):  # type: ignore[no-untyped-def]
            session = super().__call__(case, options, simulate=simulate, payload=payload)
            session.model_ps = 1_000_000 * (1 + case.seed)
            return session

    opener = BySeed()
    (result,), _ = run(replace(STAR, driver="simulate", n_seeds=5, end_bytes=1024), opener)
    side = result.rows[0].out_of_place
    assert (side.p5_ps, side.model_ps, side.p95_ps) == (1_000_000, 3_000_000, 5_000_000)
    assert [session.begun[0][1] for _, session in opener.sessions] == [0, 1, 2, 3, 4]
    assert all(session.n_closed == 1 for _, session in opener.sessions)


def test_average_leaves_degraded_rows_out() -> None:
    """The average is that of the rows that are not degraded, over both halves."""
    (result,), _ = run(replace(STAR, driver="simulate"), FakeOpener())
    rows = list(result.rows)
    bad = replace(rows[0], in_place=replace(rows[0].in_place, verdict=Verdict.DEGRADED))
    assert average_busbw_gb_per_s([bad, *rows[1:]]) == pytest.approx(average_busbw_gb_per_s(rows[1:]))
    assert bad.verdict is Verdict.DEGRADED


def test_zero_time_and_zero_bytes_have_no_bandwidth() -> None:
    """A row without bytes or without time divides by nothing."""
    (result,), _ = run(replace(STAR, driver="simulate", begin_bytes=0, end_bytes=0), FakeOpener(model_ps=0))
    row: Row = result.rows[0]
    assert row.busbw_gb_per_s(row.out_of_place) == 0 and row.late is None


def test_calibration_is_kept_for_thirty_days(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """What was saved is loaded again; not when it is old, of another host or version, or garbled."""
    monkeypatch.setattr(calibrate.platform, "node", lambda: "fake")
    monkeypatch.setattr(calibrate.os, "cpu_count", lambda: 2)
    path = tmp_path / "emu" / "c.json"
    calibrate.save(CALIBRATION, path)
    measured = datetime.fromisoformat(CALIBRATION.measured_at)
    young, old = ((measured + timedelta(days=days)).isoformat() for days in (29, 31))
    assert calibrate.load(path, young) == CALIBRATION
    assert calibrate.load(path, old) is None
    monkeypatch.setattr(calibrate.os, "cpu_count", lambda: 64)
    assert calibrate.load(path, young) is None
    path.write_text("{")
    assert calibrate.load(path, young) is None
    assert [file.name for file in path.parent.iterdir()] == ["c.json"]


def test_calibration_file_follows_xdg(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """$XDG_CACHE_HOME is used when absolute; hosts and clusters have files of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr(calibrate.platform, "node", lambda: "h0")
    assert str(calibrate.cache_file()) == "/somewhere/emu/calibration-h0.json"
    assert str(calibrate.cache_file("ray://x:1/y")) == "/somewhere/emu/calibration-h0-ray_x_1_y.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/user")
    assert str(calibrate.cache_file()) == "/home/user/.cache/emu/calibration-h0.json"


def test_calibration_separates_frames_from_bytes(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The cost of a frame comes from small operations, that of a byte from what large ones take beyond their frames."""
    monkeypatch.setattr(calibrate, "sleep_s", lambda seconds: None)

    class Host(FakeSession):
        def run(self, function, plan):  # type: ignore[no-untyped-def]
            frames, wire_bytes = 100 * plan.iterations, 10 * 4 * plan.send_count * plan.iterations
            self.counters_say = FakeCounters(frames=frames, wire_bytes=wire_bytes)
            results = super().run(function, plan)
            return [replace(result, wall_ns=frames * 40_000 + wire_bytes // 2) for result in results]

    measured = calibrate.measure(lambda: Host(n_ranks=4))
    assert measured.frame_cost_ns == pytest.approx(40_000, rel=0.01 + 20_480 / 4_000_000)
    assert measured.bytes_per_s == pytest.approx(2e9, rel=0.02)
