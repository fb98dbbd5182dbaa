"""The torus algorithm as a schedule, and counts per rank that are cut into blocks, as it cuts them."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.collectives.call import block_ranges
from emu.collectives.catalogue import cost_for, schedule_for
from emu.collectives.layout import Layout, flat, layout_of
from emu.collectives.schedule import Builder, Cost, StepKind
from emu.collectives.torus import deal
from emu.collectives.verify import verify
from emu.errors import ConfigError, ScheduleError
from emu.topologies.fabric_file import load_fabric
from emu.topologies.routing import map_ranks

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def lay(shape: str, kind: str = "torus") -> Layout:
    topology = load_fabric(kind, {"shape": shape})
    return layout_of(topology, tuple(range(topology.n_ranks)))


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) <= 24))
def test_any_torus_verifies(sizes: list[int]) -> None:
    """Whatever the dimensions the schedules are right, and cost twice, or once, the diameter and (n-1)/n S."""
    layout = lay("x".join(map(str, sizes)))
    n = layout.n_ranks
    for collective in COLLECTIVES:
        halves = 2 if collective == "all_reduce" else 1
        cost = Cost(halves * sum(size // 2 for size in sizes), Fraction(halves * (n - 1), n))
        assert verify(schedule_for(collective, "torus", n, 0, layout)).cost == cost == cost_for(collective, "torus", n, layout)


@pytest.mark.parametrize("shape", ["5", "4", "3x3", "4x4", "2x2x2"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_link_carries_as_much(collective: str, shape: str) -> None:
    """Of equal dimensions: each rank sends the same to each of its neighbours, and to nobody else."""
    layout = lay(shape)
    sent: Counter[tuple[int, int]] = Counter()
    for rank, program in enumerate(schedule_for(collective, "torus", layout.n_ranks, 0, layout).programs):
        for step in program:
            if step.kind == StepKind.SEND:
                sent[rank, step.peer] += len(step.slots)
    assert len(sent) == len(load_fabric("torus", {"shape": shape}).links)
    assert len(set(sent.values())) == 1


def test_parts_are_as_large_as_their_dimensions_ask() -> None:
    """Equal dimensions have a share each; of 3x5, 5 : 3 is what loads both alike; a dimension alone has all."""
    assert deal([4, 4, 4]) == [0, 1, 2]
    assert Counter(deal([3, 5])) == {0: 5, 1: 3}
    assert deal([8]) == [0]


def test_what_is_no_torus_is_refused() -> None:
    """Ranks of which nothing is known, a mesh, a part of a torus, ranks in another order, a twisted torus."""
    torus = load_fabric("torus", {"shape": "2x2"})
    twisted = load_fabric("twisted_torus", {"shape": "2x4"})
    layouts = (
        flat(4),
        lay("2x2", "mesh"),
        layout_of(torus, (0, 1)),
        layout_of(torus, (0, 2, 1, 3)),
        layout_of(map_ranks(torus, "a0,a2,a1,a3"), (0, 1, 2, 3)),
        layout_of(twisted, tuple(range(8))),
    )
    for layout in layouts:
        for ask in (schedule_for, cost_for):
            with pytest.raises(ConfigError, match=f"torus needs all accelerators of a torus .* these {layout.n_ranks} are not"):
                ask("all_reduce", "torus", layout.n_ranks, layout=layout)


# -- counts per rank, cut --------------------------------------------------------------------------


def swap() -> Builder:
    """all_gather over two ranks, each count cut in half."""
    builder = Builder("all_gather", "mine", 2, 4)
    builder.send(0, 1, (0, 1))
    builder.send(1, 0, (2, 3))
    return builder


def test_a_count_per_rank_may_be_cut() -> None:
    """Then each rank starts with its blocks, and ends with all in order; what it sends is a share of the whole."""
    assert verify(swap().build()).cost == Cost(1, Fraction(1, 2))


def test_blocks_of_a_cut_count_differ_in_length() -> None:
    """So a slot holds its own block and no other, even where all blocks would come out in their places."""
    crossed = [{0: 0, 1: 1}, {3: 0, 2: 1}]
    with pytest.raises(ScheduleError, match="blocks differ in length"):
        verify(swap().build(initial=crossed, final=[{0: 0, 1: 1, 3: 2, 2: 3}] * 2))


@pytest.mark.parametrize(("collective", "n_blocks"), [("all_gather", 3), ("reduce_scatter", 5), ("gather", 4)])
def test_counts_are_cut_alike(collective: str, n_blocks: int) -> None:
    """Into as many blocks on every rank; those of the rooted collectives are not cut."""
    with pytest.raises(ScheduleError, match=f"{n_blocks} blocks; it needs 1 or more, n where"):
        verify(Builder(collective, "mine", 2, n_blocks).build())


def test_where_the_blocks_of_a_cut_count_lie() -> None:
    """Five elements a rank in halves: three and two, in the buffer of one rank and in that of all."""
    whole, own, lengths = [0, 3, 5, 8], [0, 3], [3, 2, 3, 2]
    assert block_ranges("all_gather", 5, 2, 4) == (own, whole, lengths)
    assert block_ranges("reduce_scatter", 5, 2, 4) == (whole, own, lengths)
    assert block_ranges("all_reduce", 5, 2, 2) == ([0, 3], [0, 3], [3, 2])
