"""Every algorithm: what it does (by the verifier), what it costs, and what its textbook says."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from emu.collectives import bruck, direct, dissemination, halving_doubling, ring, tree, two_tree
from emu.collectives.catalogue import algorithm_names, find_algorithm
from emu.collectives.schedule import Builder, Cost, Message, Schedule, StepKind
from emu.collectives.verify import verify
from emu.errors import ConfigError

SIZES = range(1, 17)


def sends(schedule: Schedule, rank: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(step.peer, step.slots) for step in schedule.programs[rank] if step.kind == StepKind.SEND]


def receives(schedule: Schedule, rank: int) -> list[tuple[int, tuple[int, ...]]]:
    kinds = (StepKind.RECV, StepKind.RECV_REDUCE)
    return [(step.peer, step.slots) for step in schedule.programs[rank] if step.kind in kinds]


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_what_cannot_be_asked_for_is_refused(algorithm: str) -> None:
    """No ranks, a root that is no rank and a foreign collective are the user's error."""
    found = find_algorithm(algorithm)
    collective = min(found.collectives)
    for n_ranks, root in ((0, 0), (4, 4), (4, -1)):
        with pytest.raises(ConfigError):
            found.build(collective, n_ranks, root)
    with pytest.raises(ConfigError, match="cannot do sort; it does"):
        found.build("sort", 4, 0)
    with pytest.raises(ConfigError, match="cannot do sort; it does"):
        found.cost("sort", 4)


@pytest.mark.parametrize(
    ("algorithm", "collective", "n_ranks", "expected"),
    [
        ("ring", "all_reduce", 8, Cost(14, Fraction(7, 4))),
        ("ring", "all_gather", 8, Cost(7, Fraction(7, 8))),
        ("ring", "broadcast", 8, Cost(7, Fraction(1))),
        ("tree", "all_reduce", 8, Cost(6, Fraction(2))),
        ("two_tree", "broadcast", 9, Cost(4, Fraction(1))),
        ("two_tree", "reduce", 2, Cost(1, Fraction(1))),
        ("direct", "alltoall", 8, Cost(1, Fraction(7, 8))),
        ("direct", "broadcast", 8, Cost(1, Fraction(7))),
        ("halving_doubling", "all_reduce", 8, Cost(6, Fraction(7, 4))),
        ("halving_doubling", "all_reduce", 12, Cost(8, Fraction(11, 4))),
        ("bruck", "all_gather", 8, Cost(3, Fraction(7, 8))),
        ("bruck", "alltoall", 8, Cost(3, Fraction(3, 2))),
        ("dissemination", "barrier", 9, Cost(4, Fraction(0))),
    ],
)  # fmt: skip
def test_cost_is_the_textbooks(algorithm: str, collective: str, n_ranks: int, expected: Cost) -> None:
    """Steps and traffic are the published ones."""
    assert find_algorithm(algorithm).cost(collective, n_ranks) == expected


@pytest.mark.parametrize("n_ranks", [2, 3, 5, 8])
def test_ring_all_reduce_has_nccls_step_list(n_ranks: int) -> None:
    """Rank r sends blocks r-1, r-2, ..., r+1, then r, r-1, ..., r+2 to its right, and its last receive is block r+1."""
    n = n_ranks
    schedule = ring.build("all_reduce", n)
    for rank in range(n):
        blocks = [(rank + n - j) % n for j in range(1, n)] + [(rank + n - j) % n for j in range(n - 1)]
        assert sends(schedule, rank) == [((rank + 1) % n, (block,)) for block in blocks]
        assert receives(schedule, rank)[-1] == ((rank - 1) % n, ((rank + 1) % n,))
        kinds = [step.kind for step in schedule.programs[rank]]
        assert kinds == [StepKind.SEND, StepKind.RECV_REDUCE] * (n - 1) + [StepKind.SEND, StepKind.RECV] * (n - 1)


def test_ring_reduce_ends_at_the_root() -> None:
    """The chain of a reduce starts right after the root, and its root sends nothing."""
    schedule = ring.build("reduce", 4, 2)
    assert [len(sends(schedule, rank)) for rank in range(4)] == [1, 1, 0, 1]
    assert receives(schedule, 3) == []


def test_binary_tree_of_14_is_the_published_one() -> None:
    """NCCL's drawing: 0 over 8, 8 over 4 and 12, 12 over 10 and 13, odd ranks are leaves."""
    expected = {0: (8,), 8: (4, 12), 4: (2, 6), 12: (10, 13), 2: (1, 3), 6: (5, 7), 10: (9, 11)}
    children = tree.binary_tree(14).children
    assert {rank: below for rank, below in enumerate(children) if below} == expected


def test_second_tree_is_mirrored_or_shifted() -> None:
    """NCCL's drawings for 12 ranks (mirrored, root 11) and 13 ranks (shifted, root 1)."""
    mirrored = tree.double_tree(12)[1]
    assert mirrored.root == 11
    assert (mirrored.children[11], mirrored.children[3], mirrored.children[1]) == ((3,), (7, 1), (2, 0))
    shifted = tree.double_tree(13)[1]
    assert shifted.root == 1
    assert (shifted.children[1], shifted.children[9], shifted.children[0]) == ((9,), (5, 0), (11,))


@pytest.mark.parametrize("n_ranks", [2, 3, 6, 13, 16, 33])
def test_children_and_nccls_parents_agree(n_ranks: int) -> None:
    """The parent of a rank by NCCL's bit formula is the rank that has it as a child."""
    children = tree.binary_tree(n_ranks).children
    for rank in range(1, n_ranks):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        if up >= n_ranks:
            up = rank ^ bit
        assert [parent for parent in range(n_ranks) if rank in children[parent]] == [up]


@pytest.mark.parametrize("n_ranks", SIZES)
def test_double_trees_share_the_work(n_ranks: int) -> None:
    """No rank but a root has children in both trees, also when both trees have one given root."""
    root = n_ranks // 3
    for trees in (tree.double_tree(n_ranks), two_tree.rooted_double_tree(n_ranks, root)):
        roots = {each.root for each in trees}
        for rank in set(range(n_ranks)) - roots:
            assert sum(1 for each in trees if each.children[rank]) <= 1
        for each in trees:
            named = Counter(child for below in each.children for child in below)
            assert named == Counter(set(range(n_ranks)) - {each.root})
    assert roots == {root}


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "alltoall"])
def test_direct_takes_peers_in_shifted_order(collective: str) -> None:
    """Rank r sends to r+1, r+2, ... and receives from r-1, r-2, ..., so that nobody is all ranks' first target."""
    schedule = direct.build(collective, 5)
    for rank in range(5):
        assert [(peer - rank) % 5 for peer, _ in sends(schedule, rank)] == [1, 2, 3, 4]
        assert [(rank - peer) % 5 for peer, _ in receives(schedule, rank)] == [1, 2, 3, 4]


def test_exchange_puts_sends_first_and_keeps_their_order() -> None:
    """In a round a rank sends before it receives, and receives what one peer sends in the order of sending."""
    builder = Builder("alltoall", "mine", 2, 2)
    builder.exchange((Message(0, 1, (0,), (2,)), Message(1, 0, (0,)), Message(0, 1, (1,), (3,))))
    program = builder.build().programs[1]
    assert [(step.kind, step.slots) for step in program] == [
        (StepKind.SEND, (0,)),
        (StepKind.RECV, (2,)),
        (StepKind.RECV, (3,)),
    ]


def test_halving_halves_and_doubling_doubles() -> None:
    """Over 8 ranks a rank's messages carry 4, 2, 1 and then 1, 2, 4 blocks, to partners 4, 2, 1, 1, 2, 4 away."""
    for rank in range(8):
        mine = sends(halving_doubling.build("all_reduce", 8), rank)
        assert [peer ^ rank for peer, _ in mine] == [4, 2, 1, 1, 2, 4]
        assert [len(slots) for _, slots in mine] == [4, 2, 1, 1, 2, 4]


def test_folded_ranks_talk_to_one_worker_only() -> None:
    """Over 6 ranks, ranks 0 and 2 hand over to 1 and 3 and get the result back in one message."""
    schedule = halving_doubling.build("all_reduce", 6)
    for extra in (0, 2):
        assert sends(schedule, extra) == [(extra + 1, (0, 1, 2, 3))]
        assert receives(schedule, extra) == [(extra + 1, (0, 1, 2, 3))]


@pytest.mark.parametrize("n_ranks", [2, 5, 8, 13])
def test_logarithmic_algorithms_send_logarithmically_many_messages(n_ranks: int) -> None:
    """Bruck's algorithms and the barrier send ceil(log2 n) messages from each rank."""
    rounds = (n_ranks - 1).bit_length()
    for module in (bruck, dissemination):
        for collective in module.COLLECTIVES:
            assert verify(module.build(collective, n_ranks)).n_messages == (rounds,) * n_ranks
