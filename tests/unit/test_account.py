"""Accounts: splits sum exactly, cuts keep proportions, and who started first and last is known to all who met."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.fabric.account import (
    CAUSES,
    FIRST_START_PS,
    LAST_RANK,
    LAST_START_PS,
    N_CARRIED,
    QUEUEING,
    SERIALISATION,
    Cause,
    by_cause,
    meet,
    opened,
    scaled,
)

times = st.integers(0, 10**12)


def test_what_is_not_carried_is_propagation() -> None:
    """From the origin on, what no cause has taken is propagation; before it, the origin's rank is late."""
    account = opened(3, 100)
    account[SERIALISATION] += 20
    account[QUEUEING] += 5
    found = by_cause(account, 60, 200)
    assert dict(zip(CAUSES, found, strict=True)) == {
        "serialisation": 20, "queueing": 5, "credit": 0, "pause": 0, "retransmission": 0, "endpoint": 0, "propagation": 75,
        "peer_late": 40, "compute": 0,
    }  # fmt: skip


def test_a_path_older_than_the_call_is_cut_in_proportion() -> None:
    """Where the path began before the call, its causes are scaled to the call's time, and nobody was late."""
    account = opened(0, 0)
    account[SERIALISATION] += 60
    assert by_cause(account, 50, 100) == (30, 0, 0, 0, 0, 0, 20, 0, 0)


@given(st.lists(times, min_size=N_CARRIED, max_size=N_CARRIED), times, times, times)
@settings(max_examples=40, deadline=None)
def test_a_split_sums_to_the_time(spent: list[int], begin_ps: int, origin_ps: int, rest_ps: int) -> None:
    """Whatever was spent, and wherever the path began, the causes sum to the time from begin to end, and none is below 0."""
    account = opened(1, origin_ps)
    account[:N_CARRIED] = spent
    end_ps = max(begin_ps, origin_ps + sum(spent) + rest_ps)
    found = by_cause(account, begin_ps, end_ps)
    assert len(found) == len(Cause)
    assert sum(found) == end_ps - begin_ps
    assert min(found) >= 0


@given(st.lists(times, min_size=1, max_size=9), times)
@settings(max_examples=40, deadline=None)
def test_scaling_keeps_proportions_to_a_picosecond(parts: list[int], total: int) -> None:
    """Parts that sum to anything but 0 sum to the total afterwards, each within 1 of its exact share."""
    whole = sum(parts)
    found = scaled(tuple(parts), total)
    if not whole:
        assert found == tuple(parts)
        return
    assert sum(found) == total
    assert all(abs(new * whole - part * total) < whole for new, part in zip(found, parts, strict=True))


def test_those_who_met_know_the_first_and_the_last_and_the_lowest_of_equals() -> None:
    """Both sides know the earliest start, the latest, and whose that was; of equals the lowest rank."""
    one, other = opened(5, 100), opened(2, 100)
    late = opened(7, 300)
    meet(one, other)
    assert [one[index] for index in (FIRST_START_PS, LAST_START_PS, LAST_RANK)] == [100, 100, 2]
    meet(late, one)
    assert one[FIRST_START_PS:] == late[FIRST_START_PS:] == [100, 300, 7]
