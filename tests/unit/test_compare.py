"""``emu compare``: one table over several switching presets, tested without a driver."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FakeCounters, FakeOpener
from test_congestion_report import port, report

from emu.bench import commands
from emu.bench.calibrate import Calibration
from emu.bench.compare import DEFAULT_SWITCHING, compare, with_switching
from emu.bench.compare_table import columns
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.errors import ConfigError

OPTIONS = BenchOptions(
    collective="all_reduce", begin_bytes=1 << 10, end_bytes=4 << 10, step_factor=4, iterations=3, fabrics=("star",),
    settings=(("ranks", "2"), ("rate", "400Gbit/s")), driver="simulate",
)  # fmt: skip
NAMES = ("roce-pfc", "infiniband")
SEEN = FakeCounters(
    congestion=report(
        port("a1", "s0", pause_frames=3, pause_ps=7_000_000, wait_ps=5_000_000),
        port("s0", "a0", marked_packets=11, dropped_packets=4, trimmed_packets=6, peak_queue_bytes=9),
        a0=2,
    )
)


class SeededOpener(FakeOpener):
    """Each seed takes longer than the one before."""

    def __call__(self, case: Any, options: Any, *, simulate: bool, payload: bool) -> Any:
        self.how["model_ps"] = 10_000_000 * (1 + case.seed)
        return super().__call__(case, options, simulate=simulate, payload=payload)


def no_calibration() -> Calibration:
    raise AssertionError("a simulation needs no calibration")


def compared(
    options: BenchOptions = OPTIONS, names: tuple[str, ...] = NAMES, opener: FakeOpener | None = None
) -> list[list[str]]:
    """The rows of the table, by words."""
    return [line.split() for line in printed(options, names, opener).splitlines() if " KiB  " in line and "," not in line[:8]]


def printed(options: BenchOptions = OPTIONS, names: Sequence[str] = NAMES, opener: FakeOpener | None = None) -> str:
    out = io.StringIO()
    opener = opener or FakeOpener(counters_say=SEEN)
    assert commands.compare(options, names, terminal=Terminal(out, io.StringIO()), opened=opener) == 0
    return out.getvalue()


def test_there_is_a_row_for_each_size_and_preset() -> None:
    """By size, then in the order in which the presets were named."""
    assert [(row[0], row[2]) for row in compared()] == [
        ("1", "roce-pfc"),
        ("1", "infiniband"),
        ("4", "roce-pfc"),
        ("4", "infiniband"),
    ]


def test_a_row_tells_time_counters_and_cause() -> None:
    """Time in us, then per call (one warm-up, three iterations) pauses, waits, marks, drops and trims, and cause with place."""
    row = " ".join(compared()[0])
    assert row == "1 KiB roce-pfc ring 10.00 10.00 1.8 a1->s0 1.2 a1->s0 2.8 1.5 1.5 incast at s0->a0, slow receiver a0"


def test_times_of_ports_are_those_of_one_port() -> None:
    """Ports that wait at once are not summed: the one that waited longest stands in the row."""
    seen = FakeCounters(congestion=report(*(port(f"a{n}", "s0", wait_ps=(4 + n) * 1_000_000) for n in (1, 2))))
    assert compared(opener=FakeOpener(counters_say=seen))[0][6:8] == ["1.5", "a2->s0"]


def test_columns_that_say_nothing_are_left_out_by_name() -> None:
    """Nothing was sent again and nothing paced: these columns are named below the table instead."""
    heads, left_out = (line for line in printed().splitlines() if line.startswith(("size", "(nothing")))
    assert heads.split("  ")[0] == "size" and "trims" in heads and "resent" not in heads and "verdict" not in heads
    assert left_out == "(nothing in any row: resent, late %, verdict)"
    assert compared(opener=FakeOpener())[0][3:] == ["ring", "10.00", "10.00"]


def test_lines_are_not_folded_and_have_no_spaces_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset with a long name stands in one line, however narrow the window is."""
    monkeypatch.setenv("COLUMNS", "40")
    name = "roce-dcqcn,kmin=100KiB,kmax=200KiB,control_parameters=set=hpcc,g=1/256"
    lines = printed(names=(name,)).splitlines()
    assert [line for line in lines if name in line and "ring" in line]
    assert all(line == line.rstrip() for line in lines)


def test_what_is_not_zero_never_looks_like_it() -> None:
    """One mark in a thousand calls is less than 0.1 a call, and its column stays."""
    seen = FakeCounters(congestion=report(port("s0", "a0", marked_packets=1)))
    row = compared(replace(OPTIONS, iterations=999), opener=FakeOpener(counters_say=seen))[0]
    assert row[6] == "<0.1"


def test_the_highest_percentile_has_its_true_name() -> None:
    """Of fewer than 100 values it is the largest, and the head says so."""
    assert "max us" in printed() and "p99 us" not in printed()
    many = printed(replace(OPTIONS, iterations=100))
    assert "p99 us" in many and "max us" not in many


def test_below_the_table_stands_what_the_presets_differ_in() -> None:
    """A line for each: buffer or credits, balancing, recovery, packets and congestion control."""
    lines = printed(names=("ultra-ethernet", "infiniband", "infiniband-adaptive")).splitlines()
    told = {line.split()[0]: line for line in lines if "quantum" in line}
    assert "buffer" in told["ultra-ethernet"] and "balancing spray" in told["ultra-ethernet"]
    assert "congestion control nscc" in told["ultra-ethernet"]
    assert "credits" in told["infiniband"] and "balancing ecmp, recovery go_back_n" in told["infiniband"]
    assert "balancing adaptive, recovery selective_repeat" in told["infiniband-adaptive"]


def stormy(tmp_path: Path) -> str:
    path = tmp_path / "stormy.toml"
    path.write_text(
        '[topology]\nkind = "star"\nranks = 2\n[[storms]]\nnode = "a0"\nstart = "1us"\nduration = "1us"\n'
        '[[impairments]]\nlinks = "a1->s0"\nkind = "throttle"\nfactor = 0.5\n[switching]\npreset = "roce-pfc"\n'
    )
    return str(path)


def test_a_preset_that_is_refused_costs_its_own_rows_only(tmp_path: Path) -> None:
    """A storm needs a class that pauses: the others are named below the table, each with the reason."""
    options = replace(OPTIONS, fabrics=(stormy(tmp_path),), settings=())
    lines = printed(options, DEFAULT_SWITCHING).splitlines()
    assert {line.split()[2] for line in lines if " KiB  " in line[:8]} == {"roce-pfc", "roce-dcqcn"}
    refused = [line for line in lines if line.startswith("skipped ")]
    assert [line.split()[1] for line in refused] == ["roce-lossy:", "infiniband:", "ultra-ethernet:"]
    assert all("storm at a0" in line for line in refused)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("drop", "infiniband"), r"storm at a0.* \(with each --switching: drop, infiniband\)"),
        (("drop",), "--switching drop: .*storm at a0"),
    ],
)
def test_when_all_are_refused_so_is_the_command(tmp_path: Path, names: tuple[str, ...], told: str) -> None:
    """There is nothing to print: one line with the names and the reason."""
    options = replace(OPTIONS, fabrics=(stormy(tmp_path),), settings=())
    with pytest.raises(ConfigError, match=told):
        printed(options, names)


def test_what_a_session_refuses_is_skipped_too() -> None:
    """A preset may load and still not go with an impairment, which only a session sees."""

    class Picky(FakeOpener):
        def __call__(self, case: Any, options: Any, **how: Any) -> Any:
            if case.name.endswith("roce-pfc"):
                raise ConfigError("loses what nothing sends again")
            return super().__call__(case, options, **how)

    out = printed(opener=Picky(counters_say=SEEN))
    assert "skipped roce-pfc: loses what nothing sends again" in out
    assert "1 KiB  infiniband" in out


def test_a_time_is_that_of_the_last_rank() -> None:
    """One stuck rank of two is not averaged away."""

    class Stuck(FakeOpener):
        def __call__(self, *args: Any, **how: Any) -> Any:
            session = super().__call__(*args, **how)
            run = session.run

            def uneven(function: object, plan: Any) -> Any:
                first, *rest = run(function, plan)
                late = replace(first, model_ps=3 * first.model_ps, iteration_ps=tuple(3 * t for t in first.iteration_ps))
                return [late, *rest]

            session.run = uneven
            return session

    assert compared(opener=Stuck(counters_say=SEEN))[0][4:6] == ["30.00", "30.00"]


def test_emu_fabrics_shows_what_a_file_does_to_its_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Storms and impairments of a file are part of what it is."""
    from emu.cli import main

    assert main(["fabrics", stormy(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "a0 pauses its senders from 1 us for 1 us" in out and "a1->s0=throttle,factor=0.5" in out


def test_over_seeds_there_are_median_p99_and_mean_counters() -> None:
    """Five seeds of 10 to 50 us: median 30, largest 50; counters are those of one call of one run."""
    row = compared(replace(OPTIONS, n_seeds=5), opener=SeededOpener(counters_say=SEEN))[0]
    assert row[4:10] == ["30.00", "50.00", "1.8", "a1->s0", "1.2", "a1->s0"]


def test_a_preset_with_changes_is_a_row_of_its_own() -> None:
    """Its label is the text given, and its switching has the changes."""
    names = ("roce-dcqcn", "roce-dcqcn,kmin=100KiB,control_parameters=set=hpcc,g=1/256")
    seen = []

    class Seen(FakeOpener):
        def __call__(self, case: Any, options: Any, **how: Any) -> Any:
            seen.append(case.topology.switching.classes[0])
            return super().__call__(case, options, **how)

    assert [row[2] for row in compared(names=names, opener=Seen(counters_say=SEEN))] == [*names, *names]
    assert seen[1].marking.kmin_bytes == 100 << 10 != seen[0].marking.kmin_bytes
    assert seen[1].control_parameters == (("g", Fraction(1, 256)), ("set", "hpcc"))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("drop", ()),
        ("drop, alpha=1/4", (("alpha", "1/4"),)),
        ("drop,rate=1GB/s,buffer=1MiB", (("rate", "1GB/s"), ("buffer", "1MiB"))),
        ("drop,balancing_parameters=a=1,b=2,lanes=2", (("balancing_parameters", "a=1,b=2"), ("lanes", "2"))),
        ("drop,control_parameters=,lanes=2", (("control_parameters", ""), ("lanes", "2"))),
    ],
)
def test_changes_are_settings(text: str, settings: tuple[tuple[str, str], ...]) -> None:
    """Commas part them; those within parameters do not."""
    added = with_switching(OPTIONS, text).settings[len(OPTIONS.settings) :]
    assert added == (("switching", "drop"), *settings)


def test_only_out_of_place_is_run() -> None:
    """One loop for each size, in one session for each preset, checked results or not."""
    opener = FakeOpener(counters_say=SEEN)
    compared(replace(OPTIONS, check=True), opener=opener)
    assert [len(session.begun) for _, session in opener.sessions] == [2, 2]


def test_every_preset_runs_the_algorithm_of_the_first() -> None:
    """``auto`` is asked for once for each size, under the first preset, so that all rows carry the same traffic."""
    asked: list[int] = []

    class Asked(FakeOpener):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            session = super().__call__(*args, **kwargs)
            session.choose_algorithm = lambda collective, n_bytes, *how: asked.append(n_bytes) or "ring"
            return session

    compared(opener=Asked(counters_say=SEEN))
    assert asked == [1 << 10, 4 << 10]


def test_the_default_is_five_presets_that_load() -> None:
    """What runs without --switching exists, and each gives the fabric its switching."""
    assert len(DEFAULT_SWITCHING) == 5
    opener = FakeOpener(counters_say=SEEN)
    assert len(compared(replace(OPTIONS, end_bytes=1 << 10), DEFAULT_SWITCHING, opener)) == 5


@pytest.mark.parametrize(
    ("options", "names", "told"),
    [
        (OPTIONS, ("drop", "drop"), "name each once"),
        (with_switching(OPTIONS, "drop"), NAMES, "contradicts --switching"),
        (replace(OPTIONS, fabrics=("star", "ring")), NAMES, "one fabric"),
        (OPTIONS, ("roce-pcf",), "roce-pcf"),
        (OPTIONS, ("drop,alpha",), "--switching drop,alpha: 'alpha' must be key=value"),
        (OPTIONS, ("drop,alhpa=1",), "unknown key 'alhpa'"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(options: BenchOptions, names: tuple[str, ...], told: str) -> None:
    """In one line, before any session is open."""
    opener = FakeOpener()
    with pytest.raises(ConfigError, match=told) as caught:
        compare(options, names, Terminal(io.StringIO(), io.StringIO()), open_session=opener, calibration=no_calibration)
    assert "\n" not in str(caught.value)
    assert not opener.sessions


def test_json_has_every_row_with_its_counters(tmp_path: Path) -> None:
    """The document is JSON, with times in us, all counters and the causes."""
    path = tmp_path / "compare.json"
    terminal = Terminal(io.StringIO(), io.StringIO())
    commands.compare(OPTIONS, NAMES, json_path=path, terminal=terminal, opened=FakeOpener(counters_say=SEEN))
    rows = json.loads(path.read_text())["rows"]
    assert [(row["size"], row["switching"]) for row in rows[:2]] == [(1024, "roce-pfc"), (1024, "infiniband")]
    assert rows[0]["congestion"]["ecn_marked"] == 11
    assert rows[0]["congestion"]["verdicts"][0]["cause"] == "incast"
    assert rows[0]["times_us"] == [10.0] * 3 and rows[0]["calls"] == 4
    document = json.loads(path.read_text())
    assert document["options"]["average"] == 3 and document["refused"] == {} and set(document["differences"]) == set(NAMES)


def test_the_command_line_compares(capsys: pytest.CaptureFixture[str]) -> None:
    """``emu compare`` runs a small case for real, simulated, and prints a row for each preset."""
    from emu.cli import main

    arguments = "compare all_reduce --fabric star --set ranks=2 --set rate=400Gbit/s -b 64K -n 1 -w 0 --switching"
    assert main([*arguments.split(), "roce-pfc", "--switching", "infiniband"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("roce-pfc", "infiniband", "median us", "1 iteration, seed"))


def test_every_column_is_explained_in_the_help() -> None:
    """Whatever head a table may have stands in the text below ``emu compare --help``."""
    from emu.cli.bench import COMPARE_COLUMNS

    found = compare(OPTIONS, NAMES, Terminal(io.StringIO(), io.StringIO()), open_session=FakeOpener(), calibration=no_calibration)
    assert all(f"{head} - " in COMPARE_COLUMNS for head in columns(found))
