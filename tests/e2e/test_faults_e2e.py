"""Faults in a real run: a process that is stopped is named, a link is slowed down while data moves, an actor is killed."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import emu
from emu.bench.measure import measure_row, row_counts
from emu.bench.options import BenchOptions
from emu.bench.rows import Verdict

pytestmark = pytest.mark.slow
STAR = {"ranks": "4", "rate": "1GB/s", "latency": "100us"}
DILATION = 20.0
N_ITERATIONS = 100


def iterations(rank: emu.Rank, n_iterations: int) -> list[int]:
    """What each all-reduce of 1 MiB takes."""
    data = np.full(1 << 18, rank.index + 1, dtype=np.int32)
    spans = []
    for _ in range(n_iterations):
        start_ps = rank.now_ps
        summed = np.empty_like(data)
        rank.comm.all_reduce(data, summed, algorithm="ring", chunk_bytes=1 << 16)
        assert (summed == 10).all()
        spans.append(rank.now_ps - start_ps)
    return spans


def test_what_goes_wrong_in_a_run_is_seen_and_can_be_done_on_command(nothing_left: None) -> None:
    """A stopped process is named and its row degraded; a live fault slows later iterations only, and the schedule that it
    leaves behind repeats the run exactly; a killed rank ends it."""
    with emu.Session("star", settings=STAR, dilation=DILATION) as session:
        victim = session.process_ids()["a1"]
        timers = [
            threading.Timer(0.5, os.kill, (victim, signal.SIGSTOP)),
            threading.Timer(1.5, os.kill, (victim, signal.SIGCONT)),
        ]
        for timer in timers:
            timer.start()
        options = BenchOptions(collective="all_reduce", iterations=40, warmup=0)
        row = measure_row(session, options, row_counts(options, 1 << 20, 4), n_ranks=4, dilation=DILATION, seed=0, in_place=False)
        for timer in timers:
            timer.join()
        assert row.verdict is Verdict.DEGRADED
        assert list(row.stopped_s) == ["a1"] and row.stopped_s["a1"] > 0.5
        assert row.n_wrong == 0

        session.begin()
        assert session.counters().stopped_s == {}
        added: list[Any] = []
        slow = threading.Timer(1.0, lambda: added.append(session.add_fault("s0->a2=slow,factor=0.25,for=20ms")))
        slow.start()
        live = session.run(iterations, N_ITERATIONS)
        slow.join()
        (record,) = added
        begin_ps = record.effects[0].begin_ps
        with emu.Session("star", settings=STAR, driver="simulate") as quiet:
            alone = quiet.run(iterations, N_ITERATIONS)
        n_before = int(np.searchsorted(np.cumsum(alone[2]), begin_ps, side="right"))
        assert live[2][:n_before] == alone[2][:n_before]
        assert max(live[2]) > 2 * max(alone[2]), "the later ones are slower, as long as it lasts"
        assert live[2][-1] < 1.1 * alone[2][-1], "it has ended by itself"
        with emu.Session("star", settings=STAR, driver="simulate", faults=record.schedule) as again:
            assert again.run(iterations, N_ITERATIONS) == live

        session.clear_faults()
        threading.Timer(1.0, lambda: session.add_fault("a2=killed")).start()
        with pytest.raises(emu.PeerLost, match=r"a2 \(ranks 2\)"):
            session.run(iterations, 2000)
        assert session.ranks == (0, 1, 3)
