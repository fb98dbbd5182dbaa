"""Communicators of some ranks: who is in them, in which order, and that they keep apart from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import MIB, MS, blank, failure, on_star, refusal, star

from emu import Rank
from emu.errors import CollectiveMismatch, Deadlock
from emu.rank import Communicator

F32 = np.float32


def colours(rank: Rank) -> tuple[tuple[int, ...], int, int] | None:
    """Eight ranks in four colours, in reverse order; the last one takes no part."""
    comm = rank.comm.split((0, 0, 1, 1, 2, 3, 3, None)[rank.index], key=-rank.index)
    if comm is None:
        return None
    members = np.zeros(comm.size, dtype=np.int32)
    comm.all_gather(np.array([rank.index], dtype=np.int32), members)
    assert members.tolist() == list(comm.members)
    return comm.members, comm.index, comm.identity


@pytest.mark.parametrize("payload", [True, False])
def test_split_orders_by_key_and_leaves_out_who_has_no_colour(payload: bool) -> None:
    """Members of a colour are in order of their keys; a rank without colour gets None and is not blocked."""
    with star(8, payload=payload) as opened:
        results = opened.run(colours if payload else lambda rank: _split_only(rank))
    assert results[7] is None
    groups = [members for members, _, _ in results[:7]]
    assert groups == [(1, 0), (1, 0), (3, 2), (3, 2), (4,), (6, 5), (6, 5)]
    assert [index for _, index, _ in results[:7]] == [1, 0, 1, 0, 0, 1, 0]
    assert len({identity for _, _, identity in results[:7]}) == 4


def _split_only(rank: Rank) -> tuple[tuple[int, ...], int, int] | None:
    comm = rank.comm.split((0, 0, 1, 1, 2, 3, 3, None)[rank.index], key=-rank.index)
    return None if comm is None else (comm.members, comm.index, comm.identity)


def ties(rank: Rank) -> tuple[int, ...]:
    comm = rank.comm.split(-1, key=7)
    assert comm is not None
    return comm.members


def test_ties_are_ordered_by_the_old_rank_and_minus_one_is_a_colour() -> None:
    """Equal keys keep the old order; only None means no colour."""
    assert on_star(5, ties) == [(0, 1, 2, 3, 4)] * 5


def nested(rank: Rank) -> list[float]:
    half = rank.comm.split(rank.index // 4)
    assert half is not None
    pair = half.split(half.index % 2)
    assert pair is not None
    sums = []
    for comm in (pair, half, rank.comm, half, pair):
        array = np.array([rank.index], dtype=F32)
        comm.all_reduce(array)
        sums.append(float(array[0]))
    return sums


def test_a_split_inside_a_split() -> None:
    """Every communicator reduces over its own members, whatever the others do."""
    results = on_star(8, nested)
    assert results[0] == [2.0, 6.0, 28.0, 6.0, 2.0]
    assert results[7] == [12.0, 22.0, 28.0, 22.0, 12.0]


def many_groups(rank: Rank) -> list[int]:
    """Rank 0 makes groups of three in every order, each twice; making them needs nobody else."""
    if rank.index:
        return []
    lists = [order for a in range(1, 8) for b in range(1, 8) if a != b for order in ((0, a, b), (a, 0, b), (a, b, 0))]
    return [rank.comm.create_group(ranks).identity for ranks in lists for _ in range(2)]


def test_groups_never_share_an_identity() -> None:
    """Neither lists of ranks, nor their order, nor how often a list was used make two groups one."""
    made = on_star(8, many_groups)[0]
    assert len(set(made)) == len(made) == 2 * 3 * 42


def own_group(rank: Rank) -> int:
    comm = rank.comm.create_group([0, 3] if rank.index in (0, 3) else [1, 2])
    comm.barrier()
    return comm.index


def test_members_alone_create_a_group() -> None:
    """Two pairs make their groups without the others, and use them."""
    assert on_star(4, own_group) == [0, 0, 1, 1]


def again(rank: Rank) -> list[int]:
    """The same list twice, with one member far ahead of the other: broadcasts must not be taken for each other."""
    seen = []
    for turn in range(3):
        comm = rank.comm.create_group([1, 0])
        array = np.array([turn if rank.index == 1 else -1], dtype=np.int32)
        if rank.index == 0:
            rank.compute("100ms")
        comm.broadcast(array, root=0)
        seen.append(int(array[0]))
    return seen


def test_the_same_list_twice_is_two_groups() -> None:
    """What is sent in the second is not received in the first."""
    assert on_star(2, again) == [[0, 1, 2]] * 2


def both_spellings(rank: Rank) -> list[int]:
    if rank.index < 2:
        return []
    comm = rank.comm.create_group([2, 3])
    seen = []
    for root in (0, comm.index_of(2)):
        array = np.array([rank.index * 10], dtype=np.int32)
        comm.broadcast(array, root=root)
        seen.append(int(array[0]))
    return seen


def test_a_root_is_a_position_in_the_group() -> None:
    """Position 0 and ``index_of`` the world's rank 2 are the same root."""
    assert on_star(4, both_spellings) == [[], [], [20, 20], [20, 20]]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda rank: rank.comm.create_group([2, 3]), "rank 0 is not in the group [2, 3]"),
        (lambda rank: rank.comm.create_group([0, 0]), "distinct"),
        (lambda rank: rank.comm.create_group([0, 4]), "0 to 3"),
        (lambda rank: rank.comm.create_group([0, 1, 2, 3]).index_of(9), "rank 9 is not in communicator world/[0, 1, 2, 3]"),
    ],
)
def test_non_members_get_an_error(call: Any, word: str) -> None:
    """A rank outside a group is told so at once."""
    with star(4) as opened:
        assert word in refusal(opened, call)


def divergent(rank: Rank) -> tuple[float, int]:
    upper = rank.comm.split(int(rank.index >= 4))
    assert upper is not None
    array = np.ones(1024, dtype=F32)
    if rank.index >= 4:
        upper.all_reduce(array)
    everything = np.zeros(8, dtype=np.int32)
    rank.comm.all_gather(np.array([rank.index], dtype=np.int32), everything)
    assert everything.tolist() == list(range(8))
    return float(array[0]), rank.now_ps


def test_some_ranks_go_through_a_sub_group_first() -> None:
    """The others wait for them in the next collective of all."""
    results = on_star(8, divergent)
    assert [value for value, _ in results] == [1.0] * 4 + [4.0] * 4


def three_at_once(rank: Rank, in_one: bool) -> int:
    """Three all_reduces in flight: on one communicator they run one after the other, on three together."""
    comms = [rank.comm] * 3 if in_one else [rank.comm.split(0) for _ in range(3)]
    start_ps = rank.now_ps
    arrays = [np.full(4, 10**turn, dtype=F32) for turn in range(3)]
    works = [comm.all_reduce(array, async_op=True, algorithm="ring") for comm, array in zip(comms, arrays, strict=True) if comm]
    for work in reversed(works):
        work.wait()
    assert [float(array[0]) for array in arrays] == [4.0, 40.0, 400.0]
    return rank.now_ps - start_ps


def test_communicators_run_side_by_side() -> None:
    """Where latency counts, three calls on three communicators take as long as one; on one communicator three times that."""
    together, behind = (max(on_star(4, three_at_once, in_one)) for in_one in (False, True))
    assert together / MS == pytest.approx(6, rel=0.01)
    assert behind / MS == pytest.approx(18, rel=0.01)


def crowded(rank: Rank, first: str) -> str:
    """Rank 0 has more in flight than a window when the call that rank 1 takes first comes behind it."""
    other = rank.comm.split(0)
    assert other is not None
    big = blank(64 * MIB)
    if rank.index == 0:
        work = rank.comm.send(big, 1, async_op=True)
        _small(rank, other, first)
        work.wait()
    else:
        _small(rank, other, first)
        rank.comm.recv(big, 0)
    return first


def _small(rank: Rank, other: Communicator, first: str) -> None:
    if first == "collective":
        rank.comm.all_reduce(blank(4096))
    elif rank.index == 0:
        other.send(blank(4096), 1)
    else:
        other.recv(blank(4096), 0)


@pytest.mark.parametrize("first", ["collective", "other communicator"])
def test_a_full_window_blocks_only_its_own_connection(first: str) -> None:
    """A large send that nobody receives yet holds up neither collectives nor other communicators."""
    assert on_star(2, crowded, first, payload=False) == [first] * 2


def many_messages(rank: Rank) -> list[int]:
    """Everybody sends three messages to everybody, itself included, in one group."""
    n, me = rank.world_size, rank.index
    received = np.full((n, 3, 5), -1, dtype=np.int32)
    with rank.comm.group():
        for peer in range(n):
            for k in range(3):
                rank.comm.send(np.full(5, 100 * me + 10 * peer + k, dtype=np.int32), peer)
        for peer in reversed(range(n)):
            for k in range(3):
                rank.comm.recv(received[peer, k], peer)
    want = np.array([[[100 * peer + 10 * me + k] * 5 for k in range(3)] for peer in range(n)])
    np.testing.assert_array_equal(received, want)
    return list(received.shape)


def test_a_group_of_many_sends_and_receives() -> None:
    """The k-th send meets the k-th receive of each pair, in whatever order peers are named."""
    assert on_star(5, many_messages) == [[5, 3, 5]] * 5


def group_with_a_mistake(rank: Rank) -> float:
    array = np.array([float(rank.index)], dtype=F32)
    try:
        with rank.comm.group():
            rank.comm.send(array, 1 - rank.index)
            raise KeyError("oops")
    except KeyError:
        pass
    got = np.zeros(1, dtype=F32)
    with rank.comm.group():
        rank.comm.send(array, 1 - rank.index)
        rank.comm.recv(got, 1 - rank.index)
    return float(got[0])


def test_an_exception_inside_a_group_starts_nothing() -> None:
    """The next group is as if the broken one had not been."""
    assert on_star(2, group_with_a_mistake) == [1.0, 0.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.barrier(),
        lambda comm: comm.split(0),
        lambda comm: comm.send(np.zeros(1, dtype=F32), 1).wait(),
    ],
    ids=["collective", "split", "wait"],
)
def test_what_cannot_be_in_a_group_is_refused(call: Any) -> None:
    """Collectives, splits and waits inside a group would never end."""

    def grouped(rank: Rank) -> None:
        with rank.comm.group():
            call(rank.comm)

    with star(2) as opened:
        assert "inside group()" in refusal(opened, grouped)


def group_of_nothing(rank: Rank) -> int:
    with rank.comm.group(), rank.comm.group():
        pass
    return rank.now_ps


def test_an_empty_group_costs_nothing() -> None:
    """Also when nested."""
    assert on_star(2, group_of_nothing) == [0, 0]


def other_order(rank: Rank) -> None:
    rank.comm.create_group([0, 1] if rank.index == 0 else [1, 0]).barrier()


def mismatch_inside(rank: Rank) -> None:
    half = rank.comm.split(rank.index % 2)
    assert half is not None
    half.all_reduce(np.ones(3 if rank.index == 2 else 4, dtype=F32))


def test_errors_name_ranks_of_the_world() -> None:
    """In a sub-group too, and its name tells communicators apart."""
    with star(4) as opened:
        assert "rank 2 called all_reduce of 3" in failure(CollectiveMismatch, opened, mismatch_inside)
    with star(2) as opened:
        text = failure(Deadlock, opened, other_order)
        assert "world/[0, 1]" in text and "world/[1, 0]" in text
