"""Presets of switching at work: data is exact under each, and headroom and credits are as large as they must be, no larger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emu.rank import Rank
from emu.session import Session
from emu.topologies.fabric_file import load_fabric
from emu.topologies.switching_file import switching_presets

MIB = 1 << 20


def summed(rank: Rank, n_items: int) -> bool:
    out = np.empty(n_items, np.int32)
    rank.comm.all_reduce(np.arange(n_items, dtype=np.int32) + rank.index, out, algorithm="ring")
    n = rank.world_size
    return bool((out == n * np.arange(n_items, dtype=np.int32) + n * (n - 1) // 2).all())


def incast(rank: Rank, n_bytes: int) -> int:
    if rank.index == 0:
        buffers = [np.zeros(n_bytes, np.uint8) for _ in range(rank.world_size - 1)]
        with rank.comm.group():
            for sender, buffer in enumerate(buffers, 1):
                rank.comm.recv(buffer, sender)
        if rank.payload:
            assert all((buffer == sender).all() for sender, buffer in enumerate(buffers, 1))
    else:
        rank.comm.send(np.full(n_bytes, rank.index, np.uint8), 0)
    return int(rank.now_ps)


@pytest.mark.parametrize("name", sorted(switching_presets()))
def test_sums_are_exact_under_every_preset(name: str) -> None:
    """An all-reduce over a leaf-spine gives the same sums whatever a full link does."""
    settings = {"leaves": "2", "spines": "2", "accelerators_per_leaf": "2", "rate": "400Gbit/s", "switching": name}
    with Session("clos", settings=settings, driver="simulate") as session:
        assert all(session.run(summed, 1 << 14))


def test_credits_keep_a_link_busy() -> None:
    """By the automatic credits one flow runs at the line's rate; with half of them it does not."""
    times = {}
    for credits in ("auto", "half"):
        topology = load_fabric("star", {"ranks": "2", "rate": "400Gbit/s", "latency": "4us", "discipline": "credit"})
        assert topology.switching is not None
        if credits == "half":
            (data,) = topology.switching.classes
            halved = replace(data, credit_bytes=data.credit_bytes // 2)
            topology = replace(topology, switching=replace(topology.switching, classes=(halved,)))
        with Session(topology, driver="simulate") as session:
            times[credits] = session.run(incast, 2 * MIB)[0]
    line_ps = 2 * MIB * 8 * 10**12 // (400 * 10**9)
    assert times["auto"] < line_ps + 5_000_000
    assert times["half"] > 1.4 * line_ps


@pytest.mark.parametrize("quantum", ["4KiB", "32KiB"])
def test_the_headroom_is_enough_and_is_needed(quantum: str) -> None:
    """An incast without a shared pool is paused at once: the headroom by the formula holds all, 75 % of it would not."""
    settings = {"ranks": "12", "rate": "400Gbit/s", "latency": "4us", "discipline": "pause", "quantum": quantum}
    topology = load_fabric("star", settings)
    switching = topology.switching
    assert switching is not None
    needed, reserved = switching.headroom_bytes, switching.reserved_bytes

    def run(headroom_bytes: int) -> None:
        tight = replace(switching, headroom_bytes=headroom_bytes, buffer_bytes=12 * (reserved + headroom_bytes))
        with Session(replace(topology, switching=tight), driver="simulate", payload=False) as session:
            session.run(incast, MIB)

    run(needed)
    with pytest.raises(AssertionError, match="a lossless packet does not fit"):
        run(needed * 3 // 4)
