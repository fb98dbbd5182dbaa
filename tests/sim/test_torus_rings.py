"""The torus algorithm on tori: its time against the least that the links of a rank allow, and what auto takes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import MIB, session

from emu import Rank
from emu.collectives.layout import layout_of
from emu.drivers.choice import Chooser, predict_ps
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

US = 10**6
PS_PER_BYTE = 100


def torus(shape: str, kind: str = "torus") -> Topology:
    """Links of 10 GB/s and 1 us."""
    return load_fabric(kind, {"shape": shape, "rate": "10GB/s", "latency": "1us"})


def bound_ps(collective: str, shape: str, size_bytes: int) -> float:
    """(n-1)/n S over all links of a rank, twice for all_reduce."""
    topology = torus(shape)
    n = topology.n_ranks
    return (2 if collective == "all_reduce" else 1) * (n - 1) / n * size_bytes * PS_PER_BYTE / (len(topology.links) / n)


def time_ps(collective: str, algorithm: str, topology: Topology, size_bytes: int) -> int:
    return predict_ps(topology, collective, algorithm, size_bytes, tuple(range(topology.n_ranks)), 0)


@pytest.mark.parametrize(("shape", "n_steps"), [("4x4", 8), ("4x4x4", 12), ("3x3", 4), ("5", 4), ("8", 8)])
def test_all_links_of_a_rank_work_all_the_time(shape: str, n_steps: int) -> None:
    """all_reduce in one chunk over equal dimensions: the bound of all links, and the latency of every step, to a nanosecond."""
    size_bytes = 45 * 3 * 64 * 3 * 16
    exact = bound_ps("all_reduce", shape, size_bytes) + n_steps * US
    assert time_ps("all_reduce", "torus", torus(shape), size_bytes) == pytest.approx(exact, abs=1000)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("shape", "most"), [("4x4", 1.01), ("2x4", 1.1), ("3x5", 1.1), ("2x8", 1.1), ("2x3x4", 1.1)])
def test_chunks_come_near_the_bound(collective: str, shape: str, most: float) -> None:
    """Of 64 MiB over two and three dimensions, equal or not: chunks hide the latencies, and phases overlap."""
    assert 1 < time_ps(collective, "torus", torus(shape), 64 * MIB) / bound_ps(collective, shape, 64 * MIB) < most


def test_a_ring_goes_both_ways_round() -> None:
    """all_reduce takes half of the time of one that goes one way."""
    one_way, both = (time_ps("all_reduce", algorithm, torus("8"), 64 * MIB) for algorithm in ("ring", "torus"))
    assert both == pytest.approx(one_way / 2, rel=0.01)


@pytest.mark.parametrize(("kind", "taken"), [("torus", True), ("mesh", False)])
def test_auto_takes_it_where_it_is_fastest(kind: str, taken: bool) -> None:
    """On a torus for long calls; a mesh has no rings."""
    topology = torus("4x4", kind)
    assert (Chooser(topology).choose("all_reduce", 16 * MIB, tuple(range(16)), 0) == "torus") is taken
    assert bool(layout_of(topology, tuple(range(16))).torus_axes) is taken


def every_collective(rank: Rank, count: int) -> tuple[Any, ...]:
    """Out of place, then in place: each with numbers that say whose they are and where they lay."""
    n, me = rank.world_size, rank.index
    options: dict[str, Any] = {"algorithm": "torus", "chunk_bytes": 64}
    whole = np.arange(n * count, dtype=np.int64)
    mine = whole[me * count : (me + 1) * count]
    reduced, gathered, scattered = whole * me, np.zeros_like(whole), np.zeros_like(mine)
    rank.comm.all_reduce(whole * me, reduced, **options)
    rank.comm.all_gather(mine, gathered, **options)
    rank.comm.reduce_scatter(whole * me, scattered, **options)
    in_place, into = np.where(whole // count == me, whole, -1), whole * me
    own = slice(me * count, (me + 1) * count)
    rank.comm.all_gather(in_place[own], in_place, **options)
    rank.comm.reduce_scatter(into, into[own], **options)
    return reduced, gathered, scattered, in_place, into[own]


@pytest.mark.parametrize(("shape", "count"), [("2x3", 1), ("4x3", 7), ("4", 50), ("2x2x2", 3)])
def test_data_of_any_length_is_right(shape: str, count: int) -> None:
    """Counts that do not divide into blocks, or are fewer than these, out of place and in place."""
    with session("torus", shape=shape) as opened:
        results = opened.run(every_collective, count)
    n = len(results)
    whole = np.arange(n * count)
    total = whole * (n * (n - 1) // 2)
    for me, result in enumerate(results):
        own = slice(me * count, (me + 1) * count)
        for got, wanted in zip(result, (total, whole, total[own], whole, total[own]), strict=True):
            np.testing.assert_array_equal(got, wanted)
