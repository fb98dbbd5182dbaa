"""The demonstration: what its sentences claim is so."""

from __future__ import annotations

import io
from dataclasses import replace

from emu.bench.commands import calibration_source, open_session
from emu.bench.demo import RING
from emu.bench.runner import run
from emu.bench.terminal import Terminal


def test_tree_wins_small_and_ring_wins_large_by_a_clear_margin() -> None:
    """The tree takes less than 0.8 of the ring's time at 32 KiB, and the ring less than 0.8 of the tree's at 4 MiB."""
    terminal = Terminal(io.StringIO(), io.StringIO())
    calibration = calibration_source(terminal, None, open_session)
    times_ps = {}
    for name in ("ring", "tree"):
        options = replace(RING, algorithm=name, driver="simulate")
        result = run(options, terminal, open_session=open_session, calibration=calibration)[0]
        times_ps[name] = [row.out_of_place.model_ps for row in result.rows]
    assert times_ps["tree"][0] < 0.8 * times_ps["ring"][0]
    assert times_ps["ring"][-1] < 0.8 * times_ps["tree"][-1]
