"""A verified schedule run as a dataflow, in any order that its dependencies allow, ends the same."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emu.collectives.catalogue import COLLECTIVES, algorithms_for, schedule_for
from emu.collectives.schedule import Schedule, Step, StepKind
from emu.collectives.verify import input_blocks, output_blocks
from emu.testing import layouts_over

PAIRS = [(algorithm, collective) for collective in COLLECTIVES for algorithm in algorithms_for(collective)]
Value = tuple[int, object]
"""A block's identity, and who contributed: a rank, or a pair of contributions in the order of the reduction."""


def reads(step: Step) -> tuple[int, ...]:
    if step.kind == StepKind.COPY:
        return step.slots[:1]
    return () if step.kind == StepKind.RECV else step.slots


def writes(step: Step) -> tuple[int, ...]:
    if step.kind == StepKind.COPY:
        return step.slots[1:]
    return () if step.kind == StepKind.SEND else step.slots


def must_follow(earlier: Step, later: Step) -> bool:
    """Whether the two touch a slot that at least one of them writes."""
    changed, touched = set(writes(earlier)), set(reads(later)) | set(writes(later))
    return bool(changed & touched or set(reads(earlier)) & set(writes(later)))


def run_in_random_order(schedule: Schedule, seed: int) -> list[dict[int, Value]]:
    """Output blocks by rank; asserts that the run ends."""
    draw = random.Random(seed)
    slots: list[dict[int, Value]] = [
        {slot: (input_blocks(schedule, rank)[block], rank) for slot, block in schedule.initial[rank].items()}
        for rank in range(schedule.n_ranks)
    ]
    slots += [{} for _ in range(schedule.n_switches)]
    messages: dict[tuple[int, int, int], tuple[Value, ...]] = {}
    pending: set[tuple[int, int]] = set()
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    ordinal: dict[tuple[int, int], int] = {}
    for rank, program in enumerate(schedule.programs):
        seen: defaultdict[tuple[bool, int], int] = defaultdict(int)
        for index, step in enumerate(program):
            before[rank, index] = {(rank, i) for i in range(index) if i == step.after or must_follow(program[i], step)}
            key = (step.kind == StepKind.SEND, step.peer)
            ordinal[rank, index] = seen[key]
            seen[key] += 1
            pending.add((rank, index))
    while pending:
        ready = []
        for rank, index in sorted(pending):
            kind, peer, *_ = schedule.programs[rank][index]
            has_message = kind in (StepKind.SEND, StepKind.COPY) or (peer, rank, ordinal[rank, index]) in messages
            if has_message and not before[rank, index] & pending:
                ready.append((rank, index))
        assert ready, "deadlock"
        for rank, index in draw.sample(ready, draw.randint(1, len(ready))):
            kind, peer, names, *_ = schedule.programs[rank][index]
            mine = slots[rank]
            if kind == StepKind.SEND:
                messages[rank, peer, ordinal[rank, index]] = tuple(mine[name] for name in names)
            elif kind == StepKind.COPY:
                mine[names[1]] = mine[names[0]]
            else:
                for name, value in zip(names, messages.pop((peer, rank, ordinal[rank, index])), strict=True):
                    mine[name] = (value[0], (mine[name][1], value[1])) if kind == StepKind.RECV_REDUCE else value
            pending.discard((rank, index))
    assert not messages
    return [{block: slots[rank][slot] for slot, block in schedule.final[rank].items()} for rank in range(schedule.n_ranks)]


@pytest.mark.parametrize(("algorithm", "collective"), PAIRS)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(n_ranks=st.integers(2, 6), seed=st.integers(0, 1 << 20))
def test_any_order_gives_the_same_bits_everywhere(algorithm: str, collective: str, n_ranks: int, seed: int) -> None:
    """Whatever order messages arrive in, a run ends, with the promised blocks, reduced in one and the same order."""
    layouts = layouts_over(collective, algorithm, n_ranks)
    assume(layouts)
    schedule = schedule_for(collective, algorithm, n_ranks, seed % n_ranks, layouts[seed % len(layouts)])
    outputs = run_in_random_order(schedule, seed)
    assert outputs == run_in_random_order(schedule, seed + 1)
    for rank, output in enumerate(outputs):
        assert {block: value[0] for block, value in output.items()} == {
            block: identity for block, (identity, _) in output_blocks(schedule, rank).items()
        }
    if collective == "all_reduce":
        assert all(output == outputs[0] for output in outputs)
