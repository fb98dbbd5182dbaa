"""Reduction in the switch with real actors and sockets: the switch's actor holds the buffers and adds them."""

from __future__ import annotations

import numpy as np
import pytest

from emu import Rank, Session

pytestmark = pytest.mark.slow
SETTINGS = {"ranks": "4", "host_size": "4", "multicast": "true"}


def called(rank: Rank) -> tuple[int, bool]:
    values = np.arange(50_000, dtype=np.float32) + rank.index
    rank.comm.all_reduce(values, algorithm="NVLS")
    gathered = np.zeros(4 * values.size, dtype=np.float32)
    rank.comm.all_gather(values + rank.index, gathered, algorithm="NVLS")
    wanted = 4 * np.arange(50_000, dtype=np.float32) + 6
    return rank.now_ps, bool((gathered.reshape(4, -1) == wanted + np.arange(4, dtype=np.float32)[:, None]).all())


def test_actors_reduce_and_multicast_as_simulated() -> None:
    """Over tcp every rank has the sum and everybody's part, at the simulator's model time."""
    with Session("star", settings=SETTINGS, driver="simulate") as session:
        expected = session.run(called)
    with Session("star", settings=SETTINGS, dilation=200, transport="tcp") as session:
        found = session.run(called)
        assert session.counters().order_violations == 0
    assert found == expected
    assert all(right for _, right in found)
