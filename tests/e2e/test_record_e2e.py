"""A record of real actors: gathered from all of them, it says the same as the simulator's, and what the host was late apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emu import Session
from emu.telemetry.attribution import Attribution
from emu.telemetry.record import load_record


def function(rank: Any) -> None:
    if rank.index == 1:
        rank.compute(us=5000)
    rank.comm.all_reduce(np.ones(4096, np.float32), algorithm="ring")


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_record_of_actors_is_the_simulators(tmp_path: Path) -> None:
    """Every part of every call is the same, through a file too; only the lateness of the host is the emulation's own."""
    found = {}
    for driver in ("simulate", "emulate"):
        settings = {"ranks": "3", "rate": "1GB/s", "latency": "1ms"}
        with Session("star", settings=settings, driver=driver, dilation=10, record=True) as session:
            session.run(function)
            session.record().save(tmp_path / driver)
        attribution = Attribution(load_record(tmp_path / driver))
        found[driver] = [(call.rank, attribution.parts(call)) for call in attribution.record.calls]
    assert found["emulate"] == found["simulate"]
    assert [rank for rank, _ in found["simulate"]] == [0, 2, 1]
    assert attribution.record.dilation == 10
    assert attribution.record.largest_lateness_ps > 0
