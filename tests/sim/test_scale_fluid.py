"""Slices of time give the machines' times to the picosecond; estimates are as far off as the table's method line says."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emu.scale import grids, trees
from emu.scale.answer import answer, by_arithmetic
from emu.scale.call import NotExact, OneCall
from emu.scale.fluid import fluid
from emu.scale.loads import alltoall_loads
from emu.scale.wires import wires_of
from emu.topologies.fabric_file import load
from tests.sim.test_scale import CLOS, HALF, HEADERS, LONGER, TREE, asked, check_same

SLOW_TORUS = {"shape": "5x5", "latency": "3us", "header": "58"}
FULL_TREE = {"pods": "4", "leaves": "4", "spines": "4", "cores": "16", "accelerators_per_leaf": "4", "routing": "d_mod_k"}


@pytest.mark.parametrize(
    ("fabric", "its", "impair"),
    [
        ("torus", {"shape": "5x5"}, ()),
        ("torus", {"shape": "6x4x2"}, ()),
        ("mesh", {"shape": "4x5"}, ()),
        ("torus", SLOW_TORUS, (f"a0->a1={HALF}", f"a3->a4={LONGER}")),
        ("torus", SLOW_TORUS, (f"a3->a4={LONGER}",)),
    ],
)
def test_alltoall_round_circles_is_that_of_the_machines(fabric: str, its: dict[str, str], impair: tuple[str, ...]) -> None:
    """Grids in slices of time: one chunk of each message, or two on their lanes, impaired or not."""
    for count, chunk_bytes in ((1000, None), (8192, 16384)):
        method = check_same(asked(fabric, its, "alltoall", "direct", count, impair=impair, chunk_bytes=chunk_bytes))
        assert method == "exact, vectorised, direct in slices of time"


def test_alltoall_round_circles_in_uneven_chunks() -> None:
    """A last chunk that is smaller than the others takes its own time."""
    check_same(asked("torus", {"shape": "4x3"}, "alltoall", "direct", 5000, chunk_bytes=16_384))


@pytest.mark.parametrize(("shape", "count", "chunk_bytes"), [("8x4x4", 1024, 4096), ("6x4x3", 32_768, 65_536)])
def test_packed_chunks_are_those_in_slices(monkeypatch: pytest.MonkeyPatch, shape: str, count: int, chunk_bytes: int) -> None:
    """Where links have one rate, chunks of one number each take the times of those that are kept whole: dense, or over bins."""
    its = {"shape": shape}
    call = asked("torus", its, "alltoall", "direct", count, impair=(f"a0->a1={LONGER}",), chunk_bytes=chunk_bytes)
    packed = by_arithmetic(call)
    assert grids.is_packable(call.topology, wires_of(call), [chunk_bytes] * 2)
    monkeypatch.setattr(grids, "is_packable", lambda *_: False)
    assert by_arithmetic(call) == packed


@pytest.mark.parametrize(
    ("fabric", "its", "impair"),
    [
        ("star", {"ranks": "7", **HEADERS}, (f"a3->s0={HALF}",)),
        ("torus", SLOW_TORUS, (f"a0->a1={HALF}", f"a3->a4={LONGER}")),
        ("torus", {"shape": "4x4"}, ()),
        ("fat_tree", TREE, (f"s0->a1={HALF}",)),
        ("roce-meta-24k", {"scale": "64"}, ()),
        ("cloudmatrix384", {"scale": "32"}, ()),
    ],
)
def test_a_tree_in_slices_is_that_of_the_machines(fabric: str, its: dict[str, str], impair: tuple[str, ...]) -> None:
    """Chains and double trees, over shared links, lanes and hashes, with one chunk or many, and impaired links."""
    for count, chunk_bytes in ((5, None), (12_288, 16384)):
        call = asked(fabric, its, "all_reduce", "tree", count * 16, impair=impair, chunk_bytes=chunk_bytes)
        assert check_same(call) == "exact, vectorised, tree in slices of time"


@example(fabric="4x4", window_kib=64, latency_ns=1000, factor="1", chunk_kib=4)
@example(fabric="star", window_kib=32, latency_ns=50, factor="1", chunk_kib=32)
@settings(max_examples=10, deadline=None)
@given(
    fabric=st.sampled_from(["4x4", "5x3", "6", "star", "fat_tree"]),
    window_kib=st.sampled_from([32, 64, 256]),
    latency_ns=st.sampled_from([50, 3000, 3001]),
    factor=st.sampled_from(["0.1", "1"]),
    chunk_kib=st.sampled_from([4, 32]),
)
def test_trees_wait_for_credit_as_the_machines_do(
    fabric: str, window_kib: int, latency_ns: int, factor: str, chunk_kib: int
) -> None:
    """Narrow windows, round circles and over levels of switches: senders wait for the same credit, and go in the same order."""
    its = {"window": f"{window_kib}KiB", "latency": f"{latency_ns}ns"}
    shape = {"star": {"ranks": "9"}, "fat_tree": TREE}.get(fabric)
    kind, link = ("torus", "a1->a2") if shape is None else (fabric, "a1->s0")
    its |= {"shape": fabric} if shape is None else shape
    impair = (f"{link}=throttle,factor={factor}",)
    check_same(asked(kind, its, "all_reduce", "tree", 1 << 17, impair=impair, chunk_bytes=chunk_kib * 1024))


@pytest.mark.parametrize(
    ("fabric", "its"),
    [
        ("torus", {"shape": "4x3x2"}),
        ("torus", {"shape": "4x3", "injection_rate": "10GB/s"}),
        ("mesh", {"shape": "4x3"}),
        ("fat_tree", FULL_TREE),
        ("clos", CLOS),
    ],
)
def test_loads_are_those_of_the_routes(fabric: str, its: dict[str, str]) -> None:
    """Counted by streams and by rings, or one route after the other: static loads are equal, hashed ones sum to the same."""
    topology = load(fabric, its).topology
    n, spread = topology.n_ranks, topology.router.spread
    counted = [0.0] * len(topology.links)
    for lane in range(spread):
        for shift in range(1, n):
            for rank in range(n):
                for link in topology.route(topology.ranks[rank], topology.ranks[(rank + shift) % n], lane):
                    counted[link] += 1 / spread
    loads = alltoall_loads(topology).tolist()
    assert sum(loads) == pytest.approx(sum(counted))
    if fabric != "clos":
        assert loads == pytest.approx(counted)


@pytest.mark.parametrize(
    ("fabric", "its", "link"),
    [
        ("star", {"ranks": "16"}, "a3->s0"),
        ("roce-meta-24k", {"scale": "64"}, None),
        ("clos", {"leaves": "8", "spines": "4", "accelerators_per_leaf": "8"}, "a3->s0"),
        ("fat_tree", {**FULL_TREE, **HEADERS}, "a3->s0"),
        ("cloudmatrix384", {"scale": "32"}, None),
        ("tpu-v4-4096", {"scale": "64"}, "a0->a1"),
        ("torus", {"shape": "5x5"}, "a0->a1"),
        ("mesh", {"shape": "6x6"}, "a0->a1"),
    ],
)
@pytest.mark.parametrize("count", [16, 256, 1024, 16_384, 1 << 16])
def test_the_estimate_of_an_alltoall_is_as_near_as_it_says(
    fabric: str, its: dict[str, str], link: str | None, count: int
) -> None:
    """Load of the busiest link and the longest way, against exact arithmetic: the method line has the bounds of its family, of
    small or large messages, impaired or not."""
    for impair in ((), (f"{link}={HALF}",), (f"{link}={LONGER}",)) if link else ((),):
        call = asked(fabric, its, "alltoall", "direct", count, impair=impair)
        found = fluid(call)
        said = re.search(r"from (\d+) % too fast to (\d+) % too slow on .* with (no|one) impaired link, blocks", found.method)
        assert said is not None
        assert said[3] == ("one" if impair else "no")
        off = 100 * (max(found.completed_ps) / max(by_arithmetic(call).completed_ps) - 1)
        assert -int(said[1]) <= off <= int(said[2])


@pytest.mark.parametrize(
    ("count", "impair", "why"),
    [
        (8, (), "was not measured for blocks of 32 bytes"),
        (1 << 23, (), "was not measured for blocks of 33,554,432 bytes"),
        (1024, (f"a0->a1={HALF}", f"a1->a2={HALF}"), "was not measured with 2 impaired links"),
    ],
)
def test_no_bounds_are_said_where_none_were_measured(count: int, impair: tuple[str, ...], why: str) -> None:
    """Sizes and kinds beyond those that were held against exact runs."""
    assert why in fluid(asked("torus", {"shape": "4x4"}, "alltoall", "direct", count, impair=impair)).method


def test_an_impaired_cable_beside_others_is_not_estimated() -> None:
    """A message of one chunk takes one of two parallel cables, so that it matters which of them is slow."""
    call = asked("cloudmatrix384", {"scale": "32"}, "alltoall", "direct", 1024, impair=(f"a3->s0#0={HALF}",))
    with pytest.raises(NotExact, match="impaired cable"):
        fluid(call)


@pytest.mark.parametrize(("fabric", "its"), [("cloudmatrix384", {"scale": "32"}), ("ib-ndr-16384", {"scale": "64"})])
@pytest.mark.parametrize("count", [20_000, 1 << 21])
def test_the_estimate_of_a_ring_is_as_near_as_it_says(fabric: str, its: dict[str, str], count: int) -> None:
    """A step on average, or the busiest link's load of it, against exact arithmetic."""
    call = asked(fabric, its, "all_reduce", "ring", count)
    assert -0.12 <= max(fluid(call).completed_ps) / max(by_arithmetic(call).completed_ps) - 1 <= 0.006


@pytest.mark.parametrize(
    ("fabric", "its"), [("star", {"ranks": "16"}), ("ib-ndr-16384", {"scale": "64"}), ("torus", {"shape": "4x4"})]
)
def test_the_estimate_of_a_long_tree_is_as_near_as_it_says(
    monkeypatch: pytest.MonkeyPatch, fabric: str, its: dict[str, str]
) -> None:
    """32 of 64 chunks exactly and the others at their pace, against all of them exactly."""
    call = asked(fabric, its, "all_reduce", "tree", 1 << 20, chunk_bytes=32 * 1024)
    exact = by_arithmetic(call)
    n_places = 2 * call.topology.n_ranks
    monkeypatch.setattr(trees, "MOST_CROSSINGS", 16 * 3 * trees.HOPS_ASSUMED * 2 * n_places)
    found = trees.long_tree(call)
    assert found.method.startswith("estimate, not exact: 32 of 64 chunks")
    assert max(found.completed_ps) == pytest.approx(max(exact.completed_ps), rel=0.05)


def test_estimates_are_for_what_takes_too_long_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where arithmetic is exact it answers; else the machines while they can, and then an estimate, which says that it is one."""
    call = asked("torus", {"shape": "5x5"}, "alltoall", "direct", 1000)
    assert by_arithmetic(call).method.startswith("exact")
    monkeypatch.setattr(grids, "MOST_CROSSINGS", 1)
    with pytest.raises(NotExact, match="cross links"):
        by_arithmetic(call)
    assert answer(call, why_not="too many").method.startswith("full simulation")
    monkeypatch.setattr("emu.scale.answer.MOST_RUN", 1)
    assert answer(call, why_not="too many").method.startswith("estimate, not exact")


@pytest.mark.parametrize(
    ("collective", "algorithm"), [("alltoall", "direct"), ("all_reduce", "tree"), ("reduce_scatter", "ring")]
)
def test_nothing_to_send_takes_no_time(collective: str, algorithm: str) -> None:
    """Fewer bytes than ranks leave no element for anybody: the machines send nothing either."""
    assert check_same(asked("star", {"ranks": "8"}, collective, algorithm, 0)) == "exact, nothing is sent"


def test_a_delay_that_nobody_meets_delays_nobody() -> None:
    """The way to a host's processor carries no alltoall: its latency is not in the estimate."""
    plain, delayed = (
        asked("cloudmatrix384", {"scale": "32"}, "alltoall", "direct", 1024, impair=impair)
        for impair in ((), (f"s0->c0={LONGER}",))
    )
    assert fluid(plain).completed_ps == fluid(delayed).completed_ps


def test_static_routes_that_leave_cables_idle_are_not_estimated() -> None:
    """Where digits of the target pick the same cable for all of a leaf, an even split would be twice too fast."""
    call = OneCall(
        topology=load("ib-ndr-16384", {"scale": "1024"}).topology, impairments={}, collective="alltoall", algorithm="direct",
        count=64, itemsize=4,
    )  # fmt: skip
    with pytest.raises(NotExact, match="idle"):
        fluid(call)
