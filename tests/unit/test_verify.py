"""The verifier: what is wrong is found, and named by rank, step and slot."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emu.collectives.catalogue import COLLECTIVES, algorithms_for, schedule_for
from emu.collectives.schedule import Builder, Cost, Message, Schedule, Step, StepKind
from emu.collectives.verify import verify
from emu.errors import ScheduleError
from emu.testing import layouts_over

PAIRS = [(algorithm, collective) for collective in COLLECTIVES for algorithm in algorithms_for(collective)]


def all_reduce(n_ranks: int = 2, n_blocks: int = 1) -> Builder:
    return Builder("all_reduce", "mine", n_ranks, n_blocks)


def with_program(schedule: Schedule, rank: int, *steps: Step) -> Schedule:
    programs = list(schedule.programs)
    programs[rank] = steps
    return replace(schedule, programs=tuple(programs))


def exchanged(n_blocks: int = 1) -> Builder:
    """A correct all-reduce over two ranks."""
    builder = all_reduce(n_blocks=n_blocks)
    slots = tuple(range(n_blocks))
    builder.exchange((Message(0, 1, slots), Message(1, 0, slots)), reduce=True)
    return builder


def test_correct_schedule_is_counted() -> None:
    """Messages, blocks and the longest chain of a correct schedule are counted per rank."""
    found = verify(exchanged(n_blocks=2).build())
    assert (found.n_messages, found.sent_blocks, found.longest_chain) == ((1, 1), (2, 2), 1)
    assert found.cost == Cost(1, Fraction(1))


def test_counting_a_rank_twice_is_found() -> None:
    """A reduction of overlapping contributions is an error at the step that does it."""
    builder = exchanged()
    builder.send(0, 1, (0,), reduce=True)
    with pytest.raises(ScheduleError, match=r"rank 1, step 2 \(receive and reduce from 0, slot 0\).*ranks 0, 1 twice"):
        verify(builder.build())


def test_missing_contribution_is_found() -> None:
    """An output that lacks a rank's contribution is an error that says what it has and what it should have."""
    builder = all_reduce()
    builder.send(0, 1, (0,), reduce=True)
    with pytest.raises(ScheduleError, match=r"rank 0, slot 0: output block 0 ends as block 0 of rank 0, not .* of ranks 0, 1"):
        verify(builder.build())


def test_reducing_different_blocks_is_found() -> None:
    """Only equal blocks can be reduced."""
    builder = all_reduce(n_blocks=2)
    builder.send(0, 1, (0,), into=(1,), reduce=True)
    with pytest.raises(ScheduleError, match="slot 1 holds block 1, the message block 0"):
        verify(builder.build())


def test_reading_an_empty_slot_is_found() -> None:
    """A send, a reduction or a copy from a slot that holds nothing is an error."""
    for reduce in (True, False):
        builder = Builder("gather", "mine", 2, 2)
        builder.send(1, 0, (1 if reduce else 0,), reduce=reduce)
        with pytest.raises(ScheduleError, match=r"rank \d, step 0 .*: slot \d is empty"):
            verify(builder.build())
    builder = Builder("alltoall", "mine", 1, 1)
    builder.copy(0, 7, 1)
    with pytest.raises(ScheduleError, match=r"rank 0, step 0 \(copy, slots 7, 1\): slot 7 is empty"):
        verify(builder.build())


def test_different_numbers_of_slots_are_found() -> None:
    """A message is received into as many slots as it was sent from, each named once."""
    builder = all_reduce(n_blocks=2)
    builder.send(0, 1, (0, 1), into=(0,))
    with pytest.raises(ScheduleError, match="the message has 2 slots"):
        verify(builder.build())
    builder = all_reduce(n_blocks=2)
    builder.send(0, 1, (0, 0), into=(0, 0))
    with pytest.raises(ScheduleError, match="a slot is named twice"):
        verify(builder.build())
    builder = all_reduce()
    builder.send(0, 1, ())
    with pytest.raises(ScheduleError, match="one slot or more"):
        verify(builder.build())


def test_deadlock_is_found() -> None:
    """Ranks that first receive from each other wait for ever; the message names them."""
    receive, send = Step(StepKind.RECV_REDUCE, 1, (0,)), Step(StepKind.SEND, 1, (0,))
    schedule = with_program(exchanged().build(), 0, receive, send)
    other = (receive._replace(peer=0), send._replace(peer=0))
    with pytest.raises(ScheduleError, match=r"rank 0, step 0 .* waits for ever; ranks that do: 0, 1"):
        verify(with_program(schedule, 1, *other))


def test_message_that_nobody_receives_is_found() -> None:
    """A message left on its way is an error."""
    schedule = exchanged().build()
    extra = Step(StepKind.SEND, 1, (0,))
    with pytest.raises(ScheduleError, match="rank 1 never receives 1 of the messages from rank 0"):
        verify(with_program(schedule, 0, *schedule.programs[0], extra))


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (Step(StepKind.SEND, 0, (0,)), "peer 0 is not another rank from 0 to 1"),
        (Step(StepKind.RECV, 2, (0,)), "peer 2 is not another rank"),
        (Step(StepKind.COPY, 1, (0, 1)), "its peer is the rank itself"),
        (Step(9, 1, (0,)), "9 is not a kind of step"),  # type: ignore[arg-type]
    ],
)
def test_impossible_steps_are_found(step: Step, what: str) -> None:
    """Peers must be other ranks, copies stay at home, and a step has one of the four kinds."""
    with pytest.raises(ScheduleError, match=what):
        verify(with_program(exchanged().build(), 0, step))


def test_a_slot_keeps_its_block_where_lengths_differ() -> None:
    """In an all-reduce, whose last block may be shorter, no value may move to another block's slot."""
    builder = all_reduce(n_blocks=2)
    builder.copy(0, 0, 1)
    with pytest.raises(ScheduleError, match="slot 1 cannot hold block 0: blocks differ in length"):
        verify(builder.build())
    builder = all_reduce(n_blocks=2)
    builder.send(0, 1, (0,), into=(1,))
    with pytest.raises(ScheduleError, match="slot 1 cannot hold block 0: blocks differ in length"):
        verify(builder.build())
    with pytest.raises(ScheduleError, match="slot 3: cannot hold block 0"):
        verify(all_reduce().build(initial=[{3: 0}, {0: 0}]))


def test_buffers_that_a_rank_does_not_have_are_found() -> None:
    """Inputs come from the rank's input, outputs are all made, and there are blocks for all that is promised."""
    builder = Builder("broadcast", "mine", 2, 1)
    with pytest.raises(ScheduleError, match="rank 1, slot 0: starts with block 0 of an input of 0 blocks"):
        verify(builder.build(initial=[{0: 0}, {0: 0}]))
    with pytest.raises(ScheduleError, match=r"rank 0: final slots make output blocks \[\], not \[0\]"):
        verify(builder.build(final=[{}, {0: 0}]))
    with pytest.raises(ScheduleError, match="rank 1, slot 0: ends empty"):
        verify(builder.build())
    with pytest.raises(ScheduleError, match="n where counts are per rank"):
        verify(Builder("all_gather", "mine", 2, 3).build())
    with pytest.raises(ScheduleError, match="programs are given for 1 of 2 ranks"):
        verify(replace(exchanged().build(), programs=((),)))
    with pytest.raises(ScheduleError, match="no promise is known"):
        verify(replace(exchanged().build(), collective="sort"))


def test_barrier_that_lets_a_rank_through_is_found() -> None:
    """A barrier's rank may end only when it has heard of all others."""
    builder = Builder("barrier", "mine", 3, 1)
    builder.exchange(Message(rank, (rank + 1) % 3, (0,)) for rank in range(3))
    with pytest.raises(ScheduleError, match="rank 0 ends without having heard of rank 1"):
        verify(builder.build())


def barrier_with_a_slow_slot() -> Builder:
    """All three know of each other; slot 1 of rank 0 comes by two messages, its slot 0 is there from the start."""
    builder = Builder("barrier", "mine", 3, 1)
    for shift in (1, 2):
        builder.exchange(Message(rank, (rank + shift) % 3, (0,), (10 + shift,)) for rank in range(3))
    builder.send(1, 2, (0,), into=(1,))
    builder.send(2, 0, (1,), into=(1,))
    return builder


def test_chain_waits_for_the_reader_of_a_slot() -> None:
    """What replaces a slot comes after the message that reads it together with a slower one."""
    builder = barrier_with_a_slow_slot()
    builder.send(0, 1, (0, 1), into=(2, 3))
    builder.send(1, 0, (0,))
    builder.send(0, 2, (0,), into=(4,))
    builder.send(2, 1, (4,))
    assert verify(builder.build()).longest_chain == 4


def test_chain_waits_for_copies() -> None:
    """A copy comes after what its target held before, and what replaces its source comes after the copy."""
    builder = barrier_with_a_slow_slot()
    builder.copy(0, 0, 1)
    builder.send(0, 2, (1,), into=(4,))
    assert verify(builder.build()).longest_chain == 3
    builder = barrier_with_a_slow_slot()
    builder.copy(0, 0, 1)
    builder.send(1, 0, (0,))
    builder.send(0, 2, (0,), into=(4,))
    assert verify(builder.build()).longest_chain == 3


@pytest.mark.parametrize(("algorithm", "collective"), PAIRS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_step_is_superfluous(algorithm: str, collective: str, data: st.DataObject) -> None:
    """Whichever step is left out of a correct schedule, the verifier notices."""
    layouts = layouts_over(collective, algorithm, data.draw(st.integers(2, 9)))
    assume(layouts)
    layout = data.draw(st.sampled_from(layouts))
    schedule = schedule_for(collective, algorithm, layout.n_ranks, 0, layout)
    rank = data.draw(st.sampled_from([rank for rank, program in enumerate(schedule.programs) if program]))
    program = tuple(step._replace(after=-1, behind=-1) for step in schedule.programs[rank])
    left_out = data.draw(st.integers(0, len(program) - 1))
    with pytest.raises(ScheduleError):
        verify(with_program(schedule, rank, *program[:left_out], *program[left_out + 1 :]))
