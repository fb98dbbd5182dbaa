"""``emu compare``: one table over several switching presets, tested without a driver."""

from __future__ import annotations

import io
import json
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
    out = io.StringIO()
    opener = opener or FakeOpener(counters_say=SEEN)
    code = commands.compare(options, names, terminal=Terminal(out, io.StringIO()), opened=opener)
    assert code == 0
    return [line.split() for line in out.getvalue().splitlines() if any(name in line for name in names)]


def test_there_is_a_row_for_each_size_and_preset() -> None:
    """By size, then in the order in which the presets were named."""
    assert [(row[0], row[2]) for row in compared()] == [
        ("1", "roce-pfc"),
        ("1", "infiniband"),
        ("4", "roce-pfc"),
        ("4", "infiniband"),
    ]


def test_a_row_tells_time_counters_and_cause() -> None:
    """Time in us, then pauses, waits, marks, drops of switches and adapters, bytes sent again, trims, cause, verdict."""
    row = " ".join(compared()[0])
    assert row == "1 KiB roce-pfc ring 10.00 10.00 7.0 5.0 11 6 0 B 6 incast, slow receiver - -"


def test_a_fabric_without_switching_has_no_counters() -> None:
    """Dashes stand where nothing could be counted."""
    assert compared(opener=FakeOpener())[0][6:] == ["-"] * 9


def test_over_seeds_there_are_median_p99_and_mean_counters() -> None:
    """Five seeds of 10 to 50 us: median 30, p99 50; counters are those of one run."""
    row = compared(replace(OPTIONS, n_seeds=5), opener=SeededOpener(counters_say=SEEN))[0]
    assert row[4:9] == ["30.00", "50.00", "7.0", "5.0", "11"]


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
    """One loop for each size, in one session for each preset."""
    opener = FakeOpener(counters_say=SEEN)
    compared(opener=opener)
    assert [len(session.begun) for _, session in opener.sessions] == [2, 2]


def test_every_preset_runs_the_algorithm_of_the_first() -> None:
    """``auto`` is asked for once for each size, under the first preset, so that all rows carry the same traffic."""
    asked: list[int] = []

    class Asked(FakeOpener):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            session = super().__call__(*args, **kwargs)
            session.choose_algorithm = lambda collective, n_bytes, root=0: asked.append(n_bytes) or "ring"
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
    assert rows[0]["times_us"] == [10.0] * 3


def test_the_command_line_compares(capsys: pytest.CaptureFixture[str]) -> None:
    """``emu compare`` runs a small case for real, simulated, and prints a row for each preset."""
    from emu.cli import main

    arguments = "compare all_reduce --fabric star --set ranks=2 --set rate=400Gbit/s -b 64K -n 1 -w 0 --switching"
    assert main([*arguments.split(), "roce-pfc", "--switching", "infiniband"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("roce-pfc", "infiniband", "median us"))
