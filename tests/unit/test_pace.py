"""Pace and condition: work at a rate that changes for a while, and ranks that are slow, late, stopped or gone."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.fabric.condition import Condition, Lateness
from emu.fabric.pace import Limit, Pace
from emu.units import FOREVER_PS


def limited(base: int | None, *limits: Limit) -> Pace:
    pace = Pace(base)
    for limit in limits:
        pace.limit(limit)
    return pace


def test_without_limits_work_takes_its_time_or_none() -> None:
    """Work over rate, rounded up; none at all where there is no rate."""
    assert Pace(3).finish(10, 7) == 13
    assert Pace(None).finish(10, 7) == 10


def test_a_step_is_integrated_exactly() -> None:
    """100 units at rate 2, of which from 20 on, for 30, a rate of at most 1 holds: 40 + 30 + 30 in 20 + 30 + 15."""
    assert limited(2, Limit(number=1, begin_ps=20, end_ps=50, rate=1)).finish(0, 100) == 65


def test_rates_give_the_least_and_shares_multiply() -> None:
    """Limits of 4 and 2 and shares of 1/2 and 1/3 leave 1/3."""
    limits = [Limit(number=n, begin_ps=0, end_ps=None, rate=rate) for n, rate in enumerate((4, 2))]
    limits += [Limit(number=n, begin_ps=0, end_ps=None, share=Fraction(1, share)) for n, share in enumerate((2, 3))]
    assert limited(None, *limits).finish(0, 10) == 30


def test_a_limit_that_is_lifted_ends_when_what_is_asked_for_is_done() -> None:
    """What was decided stays; what comes after is free."""
    pace = limited(None, Limit(number=1, begin_ps=0, end_ps=None, rate=1))
    assert pace.finish(0, 100) == 100
    pace.lift(1, 40)
    assert pace.limits[0].end_ps == 100
    assert pace.finish(100, 100) == 100
    assert pace.is_unlimited(100) and not pace.is_unlimited(99)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(0, 3)), max_size=4),
    st.integers(0, 60),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
@settings(max_examples=50)
def test_work_in_parts_takes_as_long_as_the_whole(windows: list[tuple[int, int, int]], start: int, parts: list[int]) -> None:
    """At most a picosecond of rounding for each part, whatever limits come and go."""
    limits = [Limit(number=0, begin_ps=begin, end_ps=begin + span, rate=rate) for begin, span, rate in windows]
    whole = limited(3, *limits).finish(start, sum(parts))
    time = start
    for part in parts:
        time = limited(3, *limits).finish(time, part)
    assert whole <= time <= whole + len(parts) + 50 * len(windows)


def test_a_rank_is_well_until_something_is_wrong() -> None:
    """Nothing is asked of a rank that no fault has hit."""
    condition = Condition()
    assert condition.is_well
    assert condition.acts_ps(5) == condition.begins_ps(5) == 5
    condition.delay(Lateness(1, 0, None, 3, None))
    assert not condition.is_well


def test_a_stopped_rank_acts_and_computes_when_it_goes_on() -> None:
    """From 10 for 20: what falls into that time is done at 30, and a computation of 15 from 5 on takes 35."""
    condition = Condition()
    condition.stop(1, 10, 30)
    assert [condition.acts_ps(time) for time in (9, 10, 29, 30)] == [9, 30, 30, 30]
    assert condition.compute.finish(5, 15) == 40


def test_lateness_holds_in_its_window_and_for_its_count() -> None:
    """Two faults add up; one is for two calls only, the other ends at 50."""
    condition = Condition()
    condition.delay(Lateness(1, 0, 50, 7, None))
    condition.delay(Lateness(2, 20, None, 100, 2))
    assert [condition.begins_ps(time) - time for time in (0, 20, 30, 40, 50)] == [7, 107, 107, 7, 0]
    condition.delay(Lateness(3, 0, None, 1, None))
    condition.lift(3, 60)
    assert condition.begins_ps(60) == 60


def test_a_killed_rank_never_acts_again() -> None:
    """Not at that time either; nor once it could go on after a stop."""
    condition = Condition()
    condition.stop(1, 10, 30)
    condition.kill(20)
    assert [condition.acts_ps(time) for time in (9, 15, 20, 99)] == [9, FOREVER_PS, FOREVER_PS, FOREVER_PS]
