"""DilatedClock: wall = anchor + model x dilation, and back."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.clock import DilatedClock, utc_now, wall_ns

MODEL_PS = st.integers(0, 10**15)
DILATION = st.floats(1e-3, 1e7)
ANCHOR_NS = st.integers(0, 10**17)


def test_dilation_scales_model_time_to_the_wall() -> None:
    """At dilation 3000 a microsecond of the model takes 3 ms of the wall."""
    clock = DilatedClock(dilation=3000.0, anchor_ns=500)
    assert clock.due_ns(0) == 500
    assert clock.due_ns(1_000_000) == 500 + 3_000_000
    assert clock.model_ps(500 + 3_000_000) == 1_000_000


def test_dilation_1_is_real_time() -> None:
    """At dilation 1 a nanosecond is a thousand picoseconds, both ways."""
    clock = DilatedClock(dilation=1.0, anchor_ns=-7)
    assert clock.due_ns(5_000) == -2
    assert clock.model_ps(-2) == 5_000


def test_before_its_anchor_the_clock_reads_less_than_0() -> None:
    """Nothing is due before the anchor."""
    assert DilatedClock(dilation=1.0, anchor_ns=10).model_ps(3) == -7_000


def test_unpaced_everything_is_due_at_once() -> None:
    """Dilation 0: all model times are due at the anchor, and the clock reads a time after all of them."""
    clock = DilatedClock(dilation=0, anchor_ns=42)
    assert clock.due_ns(10**15) == 42
    assert clock.model_ps(42) > 10**18


@given(dilation=DILATION, anchor_ns=ANCHOR_NS, model_ps=MODEL_PS)
@settings(max_examples=60, deadline=None)
def test_reading_is_the_inverse_of_waiting(dilation: float, anchor_ns: int, model_ps: int) -> None:
    """Read at the time due, the clock shows the model time, short by no more than a nanosecond of the wall."""
    clock = DilatedClock(dilation=dilation, anchor_ns=anchor_ns)
    rounding_ps = 1 + model_ps // 2**50
    shown_ps = clock.model_ps(clock.due_ns(model_ps))
    assert model_ps - 1000 / dilation - rounding_ps <= shown_ps <= model_ps + rounding_ps


@given(dilation=DILATION, earlier_ps=MODEL_PS, later_ps=MODEL_PS)
@settings(max_examples=30, deadline=None)
def test_the_wall_keeps_the_models_order(dilation: float, earlier_ps: int, later_ps: int) -> None:
    """What is due later in the model is never due earlier on the wall."""
    clock = DilatedClock(dilation=dilation, anchor_ns=0)
    earlier_ps, later_ps = sorted((earlier_ps, later_ps))
    assert clock.due_ns(earlier_ps) <= clock.due_ns(later_ps)


def test_the_wall_clock_never_goes_back() -> None:
    """Readings do not decrease."""
    readings = [wall_ns() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_date_is_utc_in_iso_8601() -> None:
    """Reports carry a date that every tool reads alike."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", utc_now())
