"""What ``emu top`` shows: figures from two looks at counters, and frames that fit the terminal."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from emu.errors import ConfigError, EmuError
from emu.fabric.account import CAUSES, Cause
from emu.rank import Rank
from emu.session import Session
from emu.telemetry.scrape import Samples, parse
from emu.testbed.place import Place
from emu.testbed.top import _watch, render, top
from emu.testbed.view import View, view

STATUS: dict[str, Any] = {
    "name": "lab", "state": "busy", "fabric": "star ranks=4", "n_ranks": 4, "n_actors": 5, "dead": [], "up_s": 75.0, "n_runs": 2,
    "n_failed": 0, "runs": [{"outcome": "ok"}], "faults": [], "metrics": [],
    "now": {"what": "bench all_reduce 1 MiB", "for_s": 3.0, "n_rows": 1, "doing": "star: all_reduce, 1 MiB, seed 0"},
}  # fmt: skip
STALL, BUSY = "emu_rank_stall_seconds_total", "emu_link_busy_seconds_total"


def function(rank: Rank) -> None:
    if rank.index == 2:
        rank.compute(us=4)
    rank.comm.all_reduce(np.ones(1 << 16, np.float32), algorithm="ring")


@pytest.fixture(scope="module")
def looks() -> tuple[Samples, Samples]:
    """Two looks at one session, with a run before each."""
    settings = {"ranks": "4", "rate": "50GB/s", "latency": "1us", "switching": "roce-dcqcn"}
    with Session("star", settings=settings, driver="simulate", faults=("a1->s0=slow,factor=0.5,at=0",)) as session:
        found = []
        for _ in range(2):
            session.run(function)
            found.append(parse(session.metrics_text()))
    return found[0], found[1]


@pytest.fixture(scope="module")
def frame(looks: tuple[Samples, Samples]) -> View:
    return view(STATUS, looks[1], looks[0])


def drawn(frame: View, width: int, height: int, note: str = "", **how: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(render(frame, width, height, note, **how), width=width, height=height)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_shares_are_of_the_time_between_two_looks(looks: tuple[Samples, Samples], frame: View) -> None:
    """Counters' growth is divided by model time's; each rank's causes sum to 1; a single look is about all there was."""
    before, now = looks
    passed_s = now["emu_model_time_seconds_total"][()] - before["emu_model_time_seconds_total"][()]
    assert frame.is_recent and frame.passed_s == pytest.approx(passed_s)
    slow = next(link for link in frame.links if link.name == "a1->s0")
    assert slow.busy == pytest.approx((now[BUSY]["a1->s0",] - before[BUSY]["a1->s0",]) / passed_s)
    assert slow.is_faulty and frame.links[0] is slow and not frame.links[1].is_faulty
    for rank in frame.ranks:
        assert sum(rank.shares) == pytest.approx(1)
    late = [rank.shares[Cause.PEER_LATE] for rank in frame.ranks]
    assert late[2] == 0 < late[0]
    assert frame.ranks[2].shares[Cause.COMPUTE] > 0
    whole = view(STATUS, now)
    assert not whole.is_recent and whole.passed_s == whole.model_s == now["emu_model_time_seconds_total"][()]


def test_without_growth_all_is_shown(looks: tuple[Samples, Samples]) -> None:
    """Where no model time went by between the looks, the frame is about the time since the start."""
    idle = view(STATUS, looks[1], looks[1])
    assert not idle.is_recent
    assert [rank.shares for rank in idle.ranks] == [rank.shares for rank in view(STATUS, looks[1]).ranks]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (81, 25), (132, 43), (220, 60)])
def test_a_frame_fills_the_terminal_and_no_more(frame: View, width: int, height: int) -> None:
    """It has as many lines as the terminal, none of them wider, and all of its boxes."""
    lines = drawn(frame, width, height)
    assert len(lines) == height and max(map(len, lines)) == width
    text = "\n".join(lines)
    for word in (
        "lab  busy",
        "bench all_reduce 1 MiB",
        "ranks: time by cause",
        "links by use",
        "queues",
        "fidelity",
        "no faults",
    ):
        assert word in text
    assert "a1->s0 !" in text and "peer late" in text and "the host kept pace" in text


def test_a_printed_frame_needs_no_colour_and_no_keys(frame: View) -> None:
    """Its bars are letters from end to end, at 80 columns how late the host was is whole, and no key is offered."""
    text = "\n".join(drawn(frame, 80, 24, is_live=False, in_colour=False))
    (bar,) = re.findall(r"│ 2 (\w+) ", text)
    share = frame.ranks[2].shares[Cause.SERIALISATION]
    assert len(bar) == 34 and bar.count("s") == pytest.approx(34 * share, abs=1) and "w" in bar
    assert "q ends" in "\n".join(drawn(frame, 80, 24)) and "q ends" not in text
    busy = dataclasses.replace(frame, lags_s=(16.78e-3, 268.4e-3), violations={"late_call": 12345})
    text = "\n".join(drawn(busy, 80, 24))
    assert "host lag 16.78 ms, p99 268.4 ms" in text and "12345 calls late, by rank" in text
    once = dataclasses.replace(frame, violations={"late_call": 1})
    assert "1 call late, by rank" in "\n".join(drawn(once, 80, 24))


def test_many_ranks_and_faults_are_cut_to_what_stands_out(frame: View) -> None:
    """Where not all ranks fit, the dead and the unlike are shown and the rest counted; so are faults."""
    usual = frame.ranks[0]
    odd = tuple(float(cause is Cause.PAUSE) for cause in Cause)
    ranks = tuple(dataclasses.replace(usual, rank=number) for number in range(64))
    ranks = (*ranks[:40], dataclasses.replace(ranks[40], shares=odd), dataclasses.replace(ranks[41], is_alive=False), *ranks[42:])
    many = dataclasses.replace(frame, ranks=ranks, faults=tuple(f"{n}  a{n}->s0=down" for n in range(9)))
    lines = drawn(many, 80, 24)
    assert len(lines) == 24
    text = "\n".join(lines)
    assert "│ 40 p  " in text and "│ 41 dead" in text and "more, nearer to the mean" in text
    assert "0  a0->s0=down" in text and "more faults" in text


def test_a_testbed_without_metrics_or_switching_still_has_a_frame(frame: View) -> None:
    """What is not known is said, and a note takes the place of the legend."""
    bare = view({**STATUS, "now": None, "dead": ["a1"]}, {})
    text = "\n".join(drawn(bare, 80, 24, note="no answer: it is slow"))
    for word in ("no metrics", "no run under way", "1 dead: a1", "no answer: it is slow", "buffers are infinite", "no calls"):
        assert word in text


def test_an_exposition_is_read_back(looks: tuple[Samples, Samples]) -> None:
    """Samples are found by the catalogue's labels in order, buckets by their bound last; foreign metrics are left out."""
    now = looks[1]
    assert set(now[STALL]) == {(str(rank), cause) for rank in range(4) for cause in CAUSES if cause != "compute"}
    assert all(labels[-1] in ("+Inf", *labels) for labels in now["emu_link_delay_seconds_bucket"])
    assert parse('# TYPE other gauge\nother{a="b"} 1\n') == {}


def test_a_slow_testbed_keeps_its_frame_and_one_that_ended_is_told(frame: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is no answer the last frame stays, with a note; q ends it; when the testbed is down the error comes out."""
    answers: list[Any] = [(STATUS, {}), EmuError("it is busy"), (STATUS, {}), EmuError("it is gone")]
    keys, shown, living = iter([False, False, False]), [], iter([None, ConfigError("testbed 'lab' is not up")])

    def read(watched: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, EmuError):
            raise answer
        return answer

    def find(name: str) -> None:
        if (error := next(living)) is not None:
            raise error

    class Screen:
        console = Console(file=io.StringIO(), width=80, height=24)

        def update(self, frame: Any, *, refresh: bool) -> None:
            self.console.print(frame, height=24)
            shown.append("no answer: it is busy" in self.console.file.getvalue())  # type: ignore[attr-defined]
            self.console.file = io.StringIO()

    for name, value in (("_read", read), ("find", find), ("_pressed", lambda timeout_s: next(keys))):
        monkeypatch.setattr(f"emu.testbed.top.{name}", value)
    with pytest.raises(ConfigError, match="is not up"):
        _watch(Place(Path("lab")), Screen(), 1.0)  # type: ignore[arg-type]
    assert shown == [False, True, False]
    answers.append((STATUS, {}))
    keys = iter([True])
    _watch(Place(Path("lab")), Screen(), 1.0)  # type: ignore[arg-type]


def test_what_cannot_be_watched_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval out of range, or no testbed: a ConfigError that names the fix."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"--interval 0 must be from 0\.2 to 3600"):
        top(None, interval_s=0)
    with pytest.raises(ConfigError, match="testbed 'default' is not up; start one with emu up"):
        top(None, once=True)
