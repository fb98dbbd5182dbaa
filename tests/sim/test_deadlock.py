"""Deadlock by a cyclic buffer dependency: found, named, and absent where ways or lanes have no cycle."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import KIB, US, clockwise, engine_of, permutation, ring_of_switches, simulated, switching, total_ps, traffic_class

from emu.drivers.blocked import find_cycle
from emu.errors import Deadlock
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Recovery, Switching, TrafficClass, Watchdog

PAUSED = traffic_class()
CREDITED = traffic_class(discipline=Discipline.CREDIT, credit_bytes=16 * KIB)
DATELINE = "s3->s0"


def small(only: TrafficClass, *, n_lanes: int = 1, **parameters: str) -> Switching:
    """Switches of 600 KiB whose hosts all send two switches on, clockwise."""
    return switching(
        only,
        alpha=Fraction(1, 8),
        buffer_bytes=600 * KIB * n_lanes,
        headroom_bytes=32 * KIB,
        n_lanes=n_lanes,
        balancing="planned",
        balancing_parameters=tuple({"paths": clockwise(), **parameters}.items()),
    )


def exchange(fabric: Topology) -> int:
    """Everyone sends to the rank across the ring; returns when all is there and checked, ps."""
    with simulated(fabric) as session:
        return total_ps(session, permutation(2, 512 * KIB))


def found_in(fabric: Topology) -> str:
    with pytest.raises(Deadlock) as caught:
        exchange(fabric)
    return str(caught.value)


RING = "s0->s1 waits for s1->s2 waits for s2->s3 waits for s3->s0 waits for s0->s1"


def test_pauses_on_cyclic_ways_deadlock_and_the_cycle_is_named() -> None:
    """One line: PFC, the ports in the order in which they wait, the class, and what to do."""
    message = found_in(ring_of_switches(small(PAUSED)))
    assert message.startswith(f"PFC deadlock: {RING}; class 'data' holds ")
    assert "up_down" in message and "\n" not in message


def test_credits_on_cyclic_ways_deadlock_in_one_lane() -> None:
    """Credits are no better than pauses while there is one lane, with a dateline or without."""
    assert found_in(ring_of_switches(small(CREDITED))).startswith(f"credit deadlock: {RING};")
    assert found_in(ring_of_switches(small(CREDITED, datelines=DATELINE))).startswith(f"credit deadlock: {RING};")


def test_two_lanes_without_a_dateline_do_not_help() -> None:
    """The lane that all use is named."""
    message = found_in(ring_of_switches(small(CREDITED, n_lanes=2)))
    assert "s0->s1 (lane 0) waits for s1->s2 (lane 0)" in message


@pytest.mark.parametrize("only", [PAUSED, CREDITED], ids=["pause", "credit"])
def test_two_lanes_and_a_dateline_do_not_deadlock(only: TrafficClass) -> None:
    """The same traffic on the same ways ends, and every byte is right; the ring's links carry two flows each at half rate."""
    took_ps = exchange(ring_of_switches(small(only, n_lanes=2, datelines=DATELINE)))
    assert took_ps > 2 * 512 * KIB * 8 * 10  # two messages over each link of the ring, at 10 ps a bit


@pytest.mark.parametrize("only", [PAUSED, CREDITED], ids=["pause", "credit"])
@pytest.mark.parametrize("n", [3, 4, 6])
def test_up_down_does_not_deadlock(only: TrafficClass, n: int) -> None:
    """The same buffers, hosts and messages, on ways that never go up after down."""
    rules = switching(only, alpha=Fraction(1, 8), buffer_bytes=600 * KIB, headroom_bytes=32 * KIB, balancing="up_down")
    assert exchange(ring_of_switches(rules, n)) > 0


def test_timers_do_not_hide_a_deadlock() -> None:
    """With go-back-N the senders' timers would run for ever; the deadlock is found all the same."""
    only = traffic_class(recovery=Recovery.GO_BACK_N, timeout_ps=100 * US)
    assert found_in(ring_of_switches(small(only))).startswith(f"PFC deadlock: {RING};")


@pytest.mark.parametrize("recovery", [Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT])
def test_a_watchdog_breaks_a_deadlock(recovery: Recovery) -> None:
    """What it drops is sent again: the exchange on cyclic ways ends after all, and every byte is right."""
    only = traffic_class(recovery=recovery, timeout_ps=100 * US)
    watched = replace(small(only), watchdog=Watchdog(detection_ps=200 * US, restoration_ps=200 * US))
    with simulated(ring_of_switches(watched)) as session:
        assert total_ps(session, permutation(2, 256 * KIB)) > 200 * US
        counted = [c for classes in engine_of(session).queue_statistics().values() for c in classes]
    assert sum(c.watchdog_events for c in counted) > 0


def test_a_watchdog_does_not_hide_a_deadlock_of_credits() -> None:
    """It looks for pauses only: beside a class that pauses, the cycle of credits is found and named."""
    credited = replace(CREDITED, recovery=Recovery.GO_BACK_N, timeout_ps=100 * US)
    beside = traffic_class(name="other", priority=5, recovery=Recovery.GO_BACK_N)
    watched = replace(
        small(credited), classes=(credited, beside), watchdog=Watchdog(detection_ps=200 * US, restoration_ps=200 * US)
    )
    assert found_in(ring_of_switches(watched)).startswith(f"credit deadlock: {RING};")


def test_a_full_fabric_that_moves_is_no_deadlock() -> None:
    """Pauses without a cycle: the exchange of neighbours ends, and no cycle is found on the way or at the end."""
    fabric = ring_of_switches(small(PAUSED))
    with simulated(fabric) as session:
        assert total_ps(session, permutation(1, 256 * KIB)) > 0
        assert engine_of(session).deadlock() is None


# -- the search for a cycle ------------------------------------------------------------------------


@given(edges=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14))
@settings(max_examples=60, deadline=None)
def test_a_cycle_is_found_where_there_is_one(edges: set[tuple[int, int]]) -> None:
    """What is found is a cycle of the graph; nothing is found only where taking nodes without successors away empties it."""
    graph = {(node, 0): tuple(sorted((b, 0) for a, b in edges if a == node)) for node in range(7)}
    cycle = find_cycle(graph)
    left = set(graph)
    while gone := {place for place in left if not left.intersection(graph[place])}:
        left -= gone
    assert bool(cycle) == bool(left)
    assert all(following in graph[place] for place, following in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    assert len(set(cycle)) == len(cycle)
