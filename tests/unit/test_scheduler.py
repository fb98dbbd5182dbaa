"""The scheduler: strict classes first, the others by deficit round robin."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.fabric.scheduler import FOREVER_PS, Scheduler
from emu.topologies.switching import Discipline, Switching, TrafficClass

QUANTUM = 4096


def scheduler(*classes: tuple[int, bool, int]) -> Scheduler:
    """Classes as (priority, strict, weight)."""
    return Scheduler(
        Switching(
            classes=tuple(
                TrafficClass(name=f"c{i}", priority=priority, discipline=Discipline.DROP, strict=strict, weight=weight)
                for i, (priority, strict, weight) in enumerate(classes)
            ),
            quantum_bytes=QUANTUM,
            buffer_bytes=1 << 20,
            alpha=Fraction(1),
            reserved_bytes=0,
            headroom_bytes=0,
            xon_offset_bytes=0,
            receive_buffer_bytes=1 << 20,
        )
    )


def served(order: Scheduler, sizes: list[int], n: int, ready: set[int] | None = None) -> list[int]:
    """The queues of ``n`` choices among queues that always have packets of these sizes."""
    there = set(range(len(sizes))) if ready is None else ready
    return [order.choose(0, lambda q, _: 0 if q in there else FOREVER_PS, lambda q: sizes[q])[0] for _ in range(n)]


def test_a_strict_class_goes_before_all_others_and_the_highest_priority_first() -> None:
    """While the highest strict class has packets nobody else sends; then the next one, then the weighted."""
    order = scheduler((0, False, 1), (5, True, 1), (6, True, 1))
    sizes = [QUANTUM] * 3
    assert served(order, sizes, 5) == [2] * 5
    assert served(order, sizes, 5, {0, 1}) == [1] * 5
    assert served(order, sizes, 5, {0}) == [0] * 5


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(1, 8), min_size=2, max_size=5),
    data=st.data(),
    n=st.integers(1, 300),
)
def test_backlogged_queues_get_bytes_by_weight_within_a_packet(weights: list[int], data: st.DataObject, n: int) -> None:
    """After any number of packets the bytes over the weight differ between queues by a round and a packet at the most."""
    sizes = data.draw(st.lists(st.integers(64, 3 * QUANTUM), min_size=len(weights), max_size=len(weights)))
    order = scheduler(*((0, False, weight) for weight in weights))
    sent = [0] * len(weights)
    for queue in served(order, sizes, n):
        sent[queue] += sizes[queue]
    rounds = [(sent[q] - sizes[q], sent[q] + sizes[q]) for q in range(len(weights))]
    lowest = min(Fraction(high, weights[q] * QUANTUM) for q, (_, high) in enumerate(rounds))
    highest = max(Fraction(low, weights[q] * QUANTUM) for q, (low, _) in enumerate(rounds))
    assert highest - lowest <= 1


def test_nobody_starves_when_packets_fit_exactly_in_the_quantum() -> None:
    """With packets of just the quantum and equal weights the turn passes on after each."""
    assert served(scheduler((0, False, 1), (0, False, 1)), [QUANTUM, QUANTUM], 6) == [0, 1, 0, 1, 0, 1]


def test_a_queue_spends_its_deficit_in_one_visit() -> None:
    """Weight 3 sends three packets in a row, weight 1 one: the quantum is added once a visit."""
    assert served(scheduler((0, False, 3), (0, False, 1)), [QUANTUM, QUANTUM], 8) == [0, 0, 0, 1, 0, 0, 0, 1]


def test_a_queue_that_was_idle_has_saved_nothing() -> None:
    """A queue that comes back after being idle gets its share from now on, no more."""
    order = scheduler((0, False, 1), (0, False, 1))
    sizes = [QUANTUM // 2, QUANTUM // 2]
    served(order, sizes, 3)
    served(order, sizes, 100, {0})
    assert sorted(served(order, sizes, 8)) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("strict", [True, False])
def test_when_nothing_can_go_it_says_when_to_look_again(strict: bool) -> None:
    """The earliest time that a queue names, or never."""
    order = scheduler((1, strict, 1), (0, False, 1))
    assert order.choose(10, lambda q, _: (70, 50)[q], lambda _: 1) == (-1, 50)
    assert order.choose(10, lambda *_: FOREVER_PS, lambda _: 1) == (-1, FOREVER_PS)
