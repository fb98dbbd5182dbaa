"""NCCL's algorithms over nodes, rails and switches: who sends what to whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.collectives import pat, pxn, ring, tree
from emu.collectives.catalogue import algorithms_for, cost_for, schedule_for
from emu.collectives.layout import Layout, flat, layout_of
from emu.collectives.program import units
from emu.collectives.schedule import Cost, Schedule, Step, StepKind
from emu.collectives.switched import Switched
from emu.collectives.verify import verify
from emu.errors import ScheduleError
from emu.testing import layouts_over
from emu.topologies.fabric_file import load_fabric
from emu.topologies.routing import map_ranks

SIZES = [(1, 4), (2, 2), (2, 4), (3, 2), (4, 3), (5, 2)]


def nodes(n_nodes: int, size: int, order: str | None = None) -> Layout:
    rails = {"nodes": n_nodes, "rails": size, "nodes_per_leaf": n_nodes, "host_size": size, "multicast": "true"}
    topology = map_ranks(load_fabric("rails", {key: str(value) for key, value in rails.items()}), order)
    return layout_of(topology, tuple(range(topology.n_ranks)))


def sends(schedule: Schedule, rank: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(step.peer, step.slots) for step in schedule.programs[rank] if step.kind == StepKind.SEND]


def test_a_nodes_chain_hangs_on_the_tree_of_nodes() -> None:
    """Over 4 nodes of 2, share 0: node 2 is over nodes 1 and 3, and all three hang on the heads of their chains."""
    trees = tree.all_reduce_trees(nodes(4, 2))
    assert len(trees) == 4
    assert trees[0].root == 0
    assert trees[0].children == ((1, 4), (), (3,), (), (5, 2, 6), (), (7,), ())
    assert trees[2].root == 1 and trees[2].children[1] == (0, 5)


@pytest.mark.parametrize(("n_nodes", "size"), SIZES)
def test_trees_of_all_shares_load_ports_alike(n_nodes: int, size: int) -> None:
    """What ranks of one node send to other nodes differs by no more than the two children that an inner node has."""
    layout = nodes(n_nodes, size)
    node_of = {rank: number for number, node in enumerate(layout.nodes) for rank in node}
    sent: Counter[int] = Counter()
    for found in tree.all_reduce_trees(layout):
        for rank, below in enumerate(found.children):
            crossing = [child for child in below if node_of[child] != node_of[rank]]
            sent[rank] += len(crossing)
            sent.update(crossing)
    for node in layout.nodes:
        assert len({sent[rank] for rank in node}) == 1


def test_rings_alternate_so_that_they_stay_on_rails() -> None:
    """Ring c comes into a node on one rail and leaves on the next, and back in the node after it."""
    assert ring.rings(nodes(2, 4)) == (
        (0, 1, 2, 3, 7, 6, 5, 4),
        (1, 2, 3, 0, 4, 7, 6, 5),
        (2, 3, 0, 1, 5, 4, 7, 6),
        (3, 0, 1, 2, 6, 5, 4, 7),
    )
    for order in ring.rings(nodes(4, 2)):
        crossings = [(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True) if a // 2 != b // 2]
        assert all(a % 2 == b % 2 for a, b in crossings) and len(crossings) == 4


def test_a_ring_visits_node_after_node_wherever_the_ranks_are() -> None:
    """Ranks that are placed crosswise are put in order of their nodes; on one node, or where nothing is known, by number."""
    assert ring.rings(nodes(1, 4)) == ring.rings(flat(4)) == ((0, 1, 2, 3),)
    assert ring.rings(nodes(2, 2, "a0,a2,a1,a3")) == ((0, 2, 3, 1), (2, 0, 1, 3))


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_pat_sends_far_what_is_little(collective: str) -> None:
    """Over 8 ranks the messages to peers 4, 2 and 1 away carry 1, 2 and 4 blocks."""
    schedule = pat.build(collective, 8)
    far_first = [1, 2, 4] if collective == "all_gather" else [4, 2, 1]
    for rank in range(8):
        assert [len(slots) for _, slots in sends(schedule, rank)] == far_first
        assert {(peer - rank) % 8 for peer, slots in sends(schedule, rank) if len(slots) == 1} == {4}


def test_pxn_sends_a_message_to_each_neighbour_and_to_each_node() -> None:
    """Over 3 nodes of 4: three messages of 3 blocks inside the node, two of 4 blocks over the rail."""
    schedule = pxn.build("alltoall", 12, 0, nodes(3, 4))
    for rank in range(12):
        found = sends(schedule, rank)
        assert [len(slots) for _, slots in found] == [3, 3, 3, 4, 4]
        assert all(peer // 4 == rank // 4 for peer, _ in found[:3]) and all(peer % 4 == rank % 4 for peer, _ in found[3:])


def test_nvls_reduces_to_each_and_multicasts_from_each() -> None:
    """The switch of four ranks has two units for each block: all to its owner, its owner to all."""
    schedule = schedule_for("all_reduce", "nvls", 4, 0, nodes(1, 4))
    found = units(schedule, 4)
    assert len(found) == 8
    for block in range(4):
        gathers, spreads = found[2 * block : 2 * block + 2]
        assert [source for source, _ in gathers.inputs] == [0, 1, 2, 3] and [target for target, _ in gathers.outputs] == [block]
        assert [source for source, _ in spreads.inputs] == [block] and [target for target, _ in spreads.outputs] == [0, 1, 2, 3]


def test_sharp_turns_round_at_the_root() -> None:
    """Over two leaves and a spine: each leaf sends one copy up, and the spine one copy down to each leaf."""
    topology = load_fabric("clos", {"leaves": "2", "spines": "1", "accelerators_per_leaf": "3", "multicast": "true"})
    schedule = schedule_for("all_reduce", "CollnetDirect", 6, 0, layout_of(topology, tuple(range(6))))
    leaf, _, spine = (units(schedule, switch) for switch in (6, 7, 8))
    assert [[peer for peer, _ in side] for unit in leaf for side in unit] == [[0, 1, 2], [8], [8], [0, 1, 2]]
    assert [[peer for peer, _ in side] for unit in spine for side in unit] == [[6, 7], [6, 7]]


@pytest.mark.parametrize(
    ("algorithm", "collective", "n_nodes", "size", "expected"),
    [
        ("nvls", "all_reduce", 1, 4, Cost(2, Fraction(5, 4))),
        ("nvls", "all_gather", 1, 4, Cost(1, Fraction(1, 4))),
        ("nvls", "reduce_scatter", 1, 4, Cost(1, Fraction(1))),
        ("nvls", "all_reduce", 4, 4, Cost(3, Fraction(3, 2))),
        ("nvlstree", "all_reduce", 2, 4, Cost(4, Fraction(6, 4))),
        ("nvlstree", "all_reduce", 4, 4, Cost(6, Fraction(7, 4))),
        ("collnet_direct", "all_reduce", 8, 1, Cost(1, Fraction(1))),
        ("collnet_direct", "all_reduce", 2, 4, Cost(3, Fraction(7, 4))),
        ("collnet_chain", "all_reduce", 2, 4, Cost(7, Fraction(7, 4))),
        ("tree", "all_reduce", 2, 4, Cost(8, Fraction(7, 4))),
        ("tree", "all_reduce", 1, 4, Cost(6, Fraction(3, 2))),
        ("hierarchical", "all_reduce", 4, 4, Cost(12, Fraction(15, 8))),
        ("pxn", "alltoall", 4, 4, Cost(2, Fraction(3, 2))),
    ],
)
def test_cost_is_the_tables(algorithm: str, collective: str, n_nodes: int, size: int, expected: Cost) -> None:
    """Steps and traffic are those of the modules' tables."""
    assert cost_for(collective, algorithm, n_nodes * size, nodes(n_nodes, size)) == expected


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_layout_verifies(data: st.DataObject) -> None:
    """Whatever the collective, its algorithm, the number of ranks, how they lie, and the root: the schedule is right."""
    collective = data.draw(st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall")))
    algorithm = data.draw(st.sampled_from(algorithms_for(collective)))
    n_ranks = data.draw(st.integers(1, 20))
    for layout in layouts_over(collective, algorithm, n_ranks):
        verify(schedule_for(collective, algorithm, n_ranks, data.draw(st.integers(0, n_ranks - 1)), layout))


def switched() -> Switched:
    builder = Switched("all_reduce", "mine", nodes(1, 2), 1, 0)
    builder.combine(2, (0, 1), (0, 1), (0,))
    return builder


def test_a_switch_does_nothing_but_units() -> None:
    """It may not copy, send first, or reduce after it has sent; and what it takes must go on."""
    schedule = switched().build()
    assert verify(schedule).cost == Cost(1, Fraction(1))
    program = schedule.programs[2]
    for steps in (
        program[2:],
        (*program, Step(StepKind.RECV_REDUCE, 0, (0,))),
        (Step(StepKind.COPY, 2, (0, 1)), *program),
        program[:2],
    ):
        with pytest.raises(ScheduleError, match="switch 2"):
            verify(with_program(schedule, 2, steps))


def with_program(schedule: Schedule, participant: int, steps: tuple[Step, ...]) -> Schedule:
    programs = list(schedule.programs)
    programs[participant] = steps
    return replace(schedule, programs=tuple(programs))


def test_a_step_waits_for_what_it_names() -> None:
    """Pairwise rounds make a chain, direct sends none; a step that waits for one that is not before it is refused."""
    assert verify(schedule_for("alltoall", "direct", 4)).longest_chain == 1
    rounds = schedule_for("alltoall", "pairwise", 4)
    assert verify(rounds).longest_chain == 3
    program = rounds.programs[0]
    with pytest.raises(ScheduleError, match="it waits for step 6, which is not there, or not before it"):
        verify(with_program(rounds, 0, (program[0], program[1]._replace(after=6), *program[2:])))
