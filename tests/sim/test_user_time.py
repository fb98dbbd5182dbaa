"""What moves a rank's clock between calls: declared computation always, Python only where it is measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from simulated import MS, on_star, refusal, star

import emu.rank
from emu import Rank
from emu.collectives.executor import Operation
from emu.collectives.layout import Layout, flat
from emu.rank import Work


class Desk:
    """A runtime at dilation 2 whose calls are complete as soon as somebody waits for them, 1 ms after their start."""

    payload = True
    endpoint = None

    def __init__(self, user_time: str) -> None:
        self.user_time = user_time
        self.cursors: list[int] = []

    def submit(self, rank: Rank, operations: list[Operation], cursor_ps: int, ordered: int | None) -> None:
        self.cursors.append(cursor_ps)
        for operation in operations:
            operation.completed_ps = cursor_ps + MS

    def wait(self, rank: Rank, work: Work) -> None:
        rank.cursor_ps = max(rank.cursor_ps, work.completed_ps)

    def choose(self, *asked: object) -> str:
        return "direct"

    def layout(self, members: tuple[int, ...]) -> Layout:
        return flat(len(members))

    def chunk_limit_bytes(self) -> int:
        return 1 << 20

    def scale(self) -> float:
        return 2.0


def lone_rank(user_time: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Rank, Desk, list[int]]:
    """A rank of two on a desk, and the wall clock (ns) that it reads."""
    wall = [0]
    monkeypatch.setattr(emu.rank, "wall_ns", lambda: wall[0])
    desk = Desk(user_time)
    rank = Rank(runtime=desk, world_rank=0, members=(0, 1), name="a0", seed=0, start_ps=0, communicator=1)
    return rank, desk, wall


@pytest.mark.parametrize(("user_time", "cost_ps"), [("declared", 0), ("measured", 3 * MS)])
def test_python_between_calls(user_time: str, cost_ps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 ms of wall time at dilation 2 are 3 ms of model time when measured, and nothing when declared; compute() adds to it."""
    rank, desk, wall = lone_rank(user_time, monkeypatch)
    wall[0] += 6_000_000
    rank.compute("5ms")
    rank.comm.barrier()
    assert desk.cursors == [5 * MS + cost_ps]
    assert rank.now_ps == 6 * MS + cost_ps


@pytest.mark.parametrize(("user_time", "end_ps"), [("declared", MS), ("measured", 4 * MS)])
def test_python_overlaps_a_call_in_flight(user_time: str, end_ps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 ms of Python after an async call are 4 ms of model time, in which the call of 1 ms has ended."""
    rank, _, wall = lone_rank(user_time, monkeypatch)
    work = rank.comm.all_reduce(np.zeros(4), async_op=True)
    wall[0] += 8_000_000
    work.wait()
    assert rank.now_ps == end_ps


@pytest.mark.parametrize("duration", [{"duration": "1.5ms"}, {"us": 1500}, {"duration": 1_500_000_000}])
def test_compute_takes_text_microseconds_or_picoseconds(duration: dict[str, Any]) -> None:
    """All three say the same."""

    def body(rank: Rank) -> int:
        rank.compute(**duration)
        return rank.now_ps

    assert on_star(2, body) == [1_500_000_000] * 2


NO_DURATIONS = (
    *({}, {"duration": "1ms", "us": 5}, {"us": -1}, {"duration": "5"}, {"duration": -3}),
    *({"us": math.nan}, {"us": math.inf}, {"us": 1e300}, {"duration": "inf"}),
)


@pytest.mark.parametrize("duration", NO_DURATIONS)
def test_compute_refuses_what_is_no_duration(duration: dict[str, Any]) -> None:
    """None or two of them, negative and endless ones, what is no number, and numbers without a unit."""
    with star(1) as opened:
        refusal(opened, lambda rank: rank.compute(**duration))
