"""StopWatch: processes that the kernel says are stopped, and the verdict on what they took part in."""

from __future__ import annotations

import pytest

import emu.actors.stopped
from emu.actors.stopped import StopWatch
from emu.bench.rows import Verdict, judge
from emu.host import is_stopped

SECOND_NS = 10**9


def test_time_counts_from_look_to_look_while_a_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is found stopped is named at once, and has been so until it is found running."""
    stopped: set[int] = set()
    monkeypatch.setattr(emu.actors.stopped, "is_stopped", lambda process_id: process_id in stopped)
    watch = StopWatch({1: 101, 2: 102})
    watch.look(0)
    assert watch.seconds() == {} and not watch.now
    stopped.add(102)
    watch.look(SECOND_NS)
    assert watch.seconds() == {2: 0.0} and watch.now == {2}
    watch.look(3 * SECOND_NS)
    stopped.clear()
    watch.look(4 * SECOND_NS)
    watch.look(9 * SECOND_NS)
    assert watch.seconds() == {2: 3.0} and not watch.now
    watch.clear()
    assert watch.seconds() == {}


def test_a_process_that_runs_or_is_gone_is_not_stopped() -> None:
    """What /proc says of this one; and of one that there cannot be."""
    import os

    assert not is_stopped(os.getpid())
    assert not is_stopped(1 << 30)


def test_a_row_during_which_a_process_was_stopped_is_degraded() -> None:
    """However well the stopwatch agrees; where nothing is paced there is no verdict anyway."""
    assert judge(late=0.0, order_weight=0.0) is Verdict.OK
    assert judge(late=0.0, order_weight=0.0, was_stopped=True) is Verdict.DEGRADED
    assert judge(late=None, order_weight=0.0, was_stopped=True) is Verdict.NONE
