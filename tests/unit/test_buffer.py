"""The shared buffer: pools, thresholds, headroom, and that bytes add up."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.fabric.buffer import SharedBuffer
from emu.topologies.switching import Discipline, Switching, TrafficClass

RESERVED, HEADROOM, XON = 1000, 5000, 500


def buffer(*disciplines: Discipline, pool: int = 16_000, alpha: Fraction = Fraction(1, 2), n_links: int = 2) -> SharedBuffer:
    """A pool of ``pool`` bytes beside what its queues claim."""
    n_pausing = sum(d is Discipline.PAUSE for d in disciplines)
    n_pooled = sum(d is not Discipline.CREDIT for d in disciplines)
    rules = Switching(
        classes=tuple(TrafficClass(name=f"c{i}", priority=i, discipline=d) for i, d in enumerate(disciplines)),
        quantum_bytes=1000,
        buffer_bytes=pool + n_links * (n_pooled * RESERVED + n_pausing * HEADROOM),
        alpha=alpha,
        reserved_bytes=RESERVED,
        headroom_bytes=HEADROOM,
        xon_offset_bytes=XON,
        receive_buffer_bytes=1 << 20,
    )
    return SharedBuffer(rules, list(range(n_links)))


def test_a_lone_queue_takes_alpha_over_one_plus_alpha_of_the_pool() -> None:
    """With alpha 1/2 its threshold meets what it holds at a third of the pool: then it is paused."""
    shared = buffer(Discipline.PAUSE, pool=30_000)
    queue = shared.queues[0, 0]
    taken = 0
    while not shared.take(queue, 100):
        taken += 100
    assert abs(taken - RESERVED - 10_000) <= 100
    assert queue.is_paused and queue.headroom_bytes == 100


def test_what_comes_after_the_pause_goes_to_the_headroom_and_more_than_it_holds_is_a_fault() -> None:
    """The pool is not touched, and nothing is dropped silently."""
    shared = buffer(Discipline.PAUSE)
    queue = shared.queues[0, 0]
    while not shared.take(queue, 500):
        pass
    used = shared.pool_used_bytes
    for _ in range(9):
        assert not shared.take(queue, 500), "one pause is enough"
    assert (shared.pool_used_bytes, queue.headroom_bytes) == (used, 5000)
    with pytest.raises(AssertionError, match="lossless"):
        shared.take(queue, 500)


def test_a_paused_queue_resumes_below_its_threshold_less_the_offset() -> None:
    """Headroom empties first; then it takes the offset's distance, so that pauses do not flutter."""
    shared = buffer(Discipline.PAUSE)
    queue = shared.queues[0, 0]
    while not shared.take(queue, 100):
        pass
    shared.release(queue, 100)
    assert queue.headroom_bytes == 0
    assert not shared.may_resume(queue)
    while not shared.may_resume(queue):
        assert queue.shared_bytes > shared.threshold_bytes() - XON
        shared.release(queue, 100)
    assert queue.shared_bytes <= shared.threshold_bytes() - XON


def test_a_queue_that_may_be_dropped_is_bounded_by_the_threshold_of_its_egress() -> None:
    """What would go beyond alpha x free does not fit; the reserved part is there even when the pool is full."""
    shared = buffer(Discipline.DROP)
    first, second = shared.queues[0, 0], shared.queues[1, 0]
    held = 0
    while shared.admits(first, held + 500, 500):
        shared.take(first, 500)
        held += 500
    assert held + 500 > shared.threshold_bytes()
    assert shared.admits(second, 10**9, RESERVED)
    assert not shared.admits(second, 10**9, RESERVED + 1)


def test_a_large_alpha_cannot_hand_out_more_than_the_pool() -> None:
    """At alpha 8 a lossless packet that the pool has no room for goes to the headroom."""
    shared = buffer(Discipline.PAUSE, pool=1500, alpha=Fraction(8))
    queue = shared.queues[0, 0]
    assert not shared.take(queue, RESERVED + 1000)
    assert shared.take(queue, 1000)
    shared.validate()


def test_credits_have_buffers_of_their_own() -> None:
    """The pool knows nothing of a class with credits."""
    assert set(buffer(Discipline.CREDIT, Discipline.DROP).queues) == {(0, 1), (1, 1)}


@settings(max_examples=40, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1500), st.booleans()), max_size=80),
    alpha=st.sampled_from([Fraction(1, 16), Fraction(1, 2), Fraction(1), Fraction(8)]),
)
def test_bytes_add_up_and_all_are_free_at_the_end(moves: list[tuple[int, int, bool]], alpha: Fraction) -> None:
    """Whatever comes and goes: the accounts agree after every move, and are empty when all has left."""
    shared = buffer(Discipline.PAUSE, Discipline.DROP, alpha=alpha)
    queues = list(shared.queues.values())
    held: list[list[int]] = [[] for _ in queues]
    for which, n_bytes, leaves in moves:
        queue = queues[which]
        if leaves:
            if held[which]:
                shared.release(queue, held[which].pop(0))
                if shared.may_resume(queue):
                    queue.is_paused = False
        elif (queue.pauses and queue.headroom_bytes + n_bytes <= HEADROOM) or (
            not queue.pauses and shared.admits(queue, queue.used_bytes + n_bytes, n_bytes)
        ):
            shared.take(queue, n_bytes)
            held[which].append(n_bytes)
        shared.validate()
    for queue, packets in zip(queues, held, strict=True):
        for n_bytes in packets:
            shared.release(queue, n_bytes)
    shared.validate()
    assert shared.used_bytes == shared.pool_used_bytes == 0
    assert all(not queue.is_paused or shared.may_resume(queue) for queue in queues)
