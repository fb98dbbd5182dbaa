"""The diagnosis on whole runs: a slowed link is found where it is, and adaptive routing goes around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from emu.rank import Rank
from emu.session import Session
from emu.telemetry.diagnosis import places

MIB = 1 << 20
STAR = {"ranks": "4", "rate": "400Gbit/s"}
CLOS = {"leaves": "2", "spines": "4", "rate": "400Gbit/s"}


def ring_sum(rank: Rank, n_bytes: int) -> int:
    out = np.empty(n_bytes // 4, np.float32)
    rank.comm.all_reduce(np.zeros(n_bytes // 4, np.float32), out, algorithm="ring")
    return int(rank.now_ps)


def all_to_all(rank: Rank, n_bytes: int) -> int:
    out = np.empty(n_bytes, np.uint8)
    rank.comm.alltoall(np.zeros(n_bytes, np.uint8), out)
    return int(rank.now_ps)


def told(fabric: str, settings: Mapping[str, str], function: Callable[[Rank, int], int], slow: str) -> tuple[str, int]:
    """(the cause with its place, time of the last rank) with one link at a quarter of its rate."""
    with Session(
        fabric, settings=settings, driver="simulate", payload=False, impairments=(f"{slow}=throttle,factor=0.25",)
    ) as session:
        times_ps = session.run(function, 4 * MIB)
        return places(session.congestion().findings()), max(times_ps)


@pytest.mark.parametrize("switching", ["roce-pfc", "infiniband", "ultra-ethernet"])
def test_a_slow_sender_is_a_hot_link_though_nothing_queues(switching: str) -> None:
    """In a ring all wait for the slow adapter's own link; no switch holds, drops or marks anything."""
    assert told("star", STAR | {"switching": switching}, ring_sum, "a3->s0")[0] == "hot link a3->s0"


@pytest.mark.parametrize("switching", ["roce-pfc", "ultra-ethernet"])
def test_a_slow_uplink_is_the_hot_link(switching: str) -> None:
    """Whether flows are hashed onto it or packets are sprayed over it."""
    assert told("clos", CLOS | {"switching": switching}, all_to_all, "s0->s2")[0] == "hot link s0->s2"


def test_adaptive_routing_goes_around_a_slow_uplink() -> None:
    """InfiniBand's hash leaves flows on it; by the shortest queue they take the others, in under three quarters of the time."""
    hashed, adaptive = (
        told("clos", CLOS | {"switching": name}, all_to_all, "s0->s2")[1] for name in ("infiniband", "infiniband-adaptive")
    )
    assert adaptive < 3 * hashed / 4
