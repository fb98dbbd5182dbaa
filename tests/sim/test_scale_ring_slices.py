"""Rings in slices of time give the machines' times to the picosecond."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.scale import ring_slices
from emu.scale.answer import by_arithmetic
from emu.scale.call import NotExact, OneCall
from emu.scale.fluid import fluid
from emu.scale.ring_slices import ring_in_slices
from tests.sim.test_scale import CLOS, HALF, HEADERS, LONGER, asked, by_machines, check_same

METHOD = "exact, vectorised, ring in slices of time"


def check_slices(call: OneCall) -> None:
    found = ring_in_slices(call)
    assert (found.completed_ps, found.wire_bytes_per_rank_max) == by_machines(call)


@pytest.mark.parametrize("fabric", ["cloudmatrix384", "roce-meta-24k"])
@pytest.mark.parametrize(
    ("collective", "count"), [("all_reduce", 300), ("all_reduce", 1 << 20), ("all_gather", 5000), ("reduce_scatter", 70_001)]
)
def test_rings_of_the_large_presets(fabric: str, collective: str, count: int) -> None:
    """Lanes in turn, hashed ways, unequal rates, blocks that are empty, short or of several chunks."""
    call = asked(fabric, {"scale": {"cloudmatrix384": "32", "roce-meta-24k": "64"}[fabric]}, collective, "ring", count)
    assert check_same(call) == METHOD


@pytest.mark.parametrize(
    ("fabric", "its", "impair"),
    [
        ("star", {"ranks": "7", **HEADERS}, (f"a3->s0={HALF}", f"s0->a2={LONGER}")),
        ("star", {"ranks": "2"}, ()),
        ("torus", {"shape": "4x4"}, (f"a0->a1={HALF}",)),
        ("clos", {**CLOS, "host_size": "2"}, (f"a3->s0={HALF}",)),
    ],
)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_that_other_arithmetic_may_have_too(
    fabric: str, its: dict[str, str], impair: tuple[str, ...], collective: str
) -> None:
    """One ring or several, impaired or not, with one chunk of a block or more."""
    for count, chunk_bytes in ((1000, None), (40_000, 16384)):
        check_slices(asked(fabric, its, collective, "ring", count, impair=impair, chunk_bytes=chunk_bytes))


@settings(max_examples=10, deadline=None)
@given(
    host_size=st.sampled_from(["1", "2", "4"]),
    window_kib=st.sampled_from([16, 64, 256]),
    count=st.sampled_from([1 << 17, 100_003]),
    latency_ns=st.sampled_from([500, 3001]),
    factor=st.sampled_from(["0.1", "1"]),
)
def test_rings_wait_for_credit_as_the_machines_do(
    host_size: str, window_kib: int, count: int, latency_ns: int, factor: str
) -> None:
    """Narrow windows, that rings share or not: senders wait for the same credit, or it is said that they might."""
    its = {**CLOS, "host_size": host_size, "window": f"{window_kib}KiB", "latency": f"{latency_ns}ns"}
    impair = (f"a1->s0=throttle,factor={factor}",)
    with suppress(NotExact):
        check_slices(asked("clos", its, "all_reduce", "ring", count, impair=impair, chunk_bytes=4096))


def test_uneven_chunks_that_might_wait_for_credit_are_refused() -> None:
    """What is out must leave a quarter of the window, or the machines have to say who waits."""
    narrow = {"ranks": "8", "window": "64KiB", "latency": "40us"}
    with pytest.raises(NotExact, match="might wait"):
        ring_in_slices(asked("star", narrow, "all_reduce", "ring", 200_003, chunk_bytes=4096))


def test_what_is_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of chunks holds before anything else is looked at."""
    monkeypatch.setattr(ring_slices, "MOST_CHUNKS", 1000)
    with pytest.raises(NotExact, match="order of their own"):
        by_arithmetic(asked("cloudmatrix384", {"scale": "32"}, "all_reduce", "ring", 1 << 14))


@pytest.mark.parametrize("mib", [1, 32, 48, 192])
def test_the_estimate_of_a_long_ring_is_as_near_as_it_says(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    """A fifth of the steps exactly and the others at their pace, where latency, a link's load, or both decide, against all."""
    call = asked("cloudmatrix384", {"leaves": "8"}, "all_reduce", "ring", mib << 18)
    monkeypatch.setattr(ring_slices, "FIRST_CHUNKS", 0)
    chain = max(ring_slices.long_ring(call).completed_ps)
    n_chunks = 8 * 64 * (1 if mib < 64 else 3)
    monkeypatch.setattr(ring_slices, "FIRST_CHUNKS", 25 * n_chunks)
    found = ring_slices.long_ring(call)
    assert found.method.startswith("estimate, not exact: 25 of 126 steps")
    time_ps = max(found.completed_ps)
    assert time_ps >= chain
    assert -0.06 <= time_ps / max(ring_in_slices(call).completed_ps) - 1 <= 0.002


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_blocks_that_go_round_one_of_several_rings_are_estimated(collective: str) -> None:
    """In each step of a ring so many places send as there are hosts: small messages, and large ones that come in bursts."""
    for count in (1000, 1 << 18):
        call = asked("roce-meta-24k", {"scale": "64"}, collective, "ring", count)
        exact_ps = max(ring_in_slices(call).completed_ps)
        assert -0.09 <= max(ring_slices.long_ring(call).completed_ps) / exact_ps - 1 <= 0.006
        assert -0.32 <= max(fluid(call).completed_ps) / exact_ps - 1 <= 0.006
