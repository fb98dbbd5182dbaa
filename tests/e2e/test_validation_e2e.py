"""emu validate --emulate: measured rows by actors."""

from __future__ import annotations

import io

import pytest

from emu.bench.terminal import Terminal
from emu.validation.commands import validate_emulated

pytestmark = pytest.mark.slow


def test_a_measured_row_is_emulated_and_judged() -> None:
    """One row runs on real buffers: nothing is wrong in them, and the table has its measured, simulated and emulated time."""
    out = io.StringIO()
    assert validate_emulated(["h100-8-nccl"], 1, Terminal(out, io.StringIO())) == 0
    heads, _, row = out.getvalue().splitlines()
    assert heads.split()[-5:] == ["late", "%", "verdict", "#wrong", "dilation"]
    *_, measured_us, simulated_us, emulated_us, _, verdict, n_wrong, _ = row.split()
    assert verdict in ("ok", "degraded") and n_wrong == "0"
    if verdict == "ok":
        assert float(emulated_us) == pytest.approx(float(simulated_us), rel=0.03)
    assert float(measured_us) > 0
