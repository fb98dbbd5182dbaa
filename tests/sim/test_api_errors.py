"""What users get wrong is refused at the call, or ends the run with an error that names ranks and both sides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from simulated import failure, on_star, refusal, star

from emu import Rank, Session
from emu.drivers.runtime import Runtime
from emu.errors import CollectiveMismatch, ConfigError, Deadlock, EmuError, RankFailed, RankLeft, Stalled

F32 = np.float32


def named(text: str, *words: str) -> None:
    assert "\n" not in text
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} missing in: {text}"


def different_call(rank: Rank) -> None:
    for _ in range(0x28C):
        rank.comm.all_reduce(np.zeros(1, dtype=F32), algorithm="direct")
    if rank.index == 2:
        rank.comm.all_gather(np.zeros(59205, dtype=np.int8), np.zeros(4 * 59205, dtype=np.int8))
    else:
        rank.comm.all_reduce(np.zeros(9984, dtype=F32))


def test_a_rank_that_calls_another_collective_is_named() -> None:
    """The message has the odd rank, the op's index and both operations."""
    with star(4) as opened:
        text = failure(CollectiveMismatch, opened, different_call)
    named(text, f"op {0x28C}", "rank 2 called all_gather of 59205 int8", "ranks 0, 1, 3 called all_reduce of 9984 float32 sum")


def sized(rank: Rank, first: tuple[int, ...], others: tuple[int, ...], done: list[int]) -> None:
    rank.comm.all_reduce(np.ones(first if rank.index == 0 else others, dtype=F32))
    done.append(rank.index)


@pytest.mark.parametrize(
    ("n", "first", "others"), [(4, (100, 2560), (200, 2560)), (4, (1, 8), (2, 8)), (8, (409600,), (409598,)), (4, (0,), (8,))]
)
def test_different_sizes_are_named_and_nobody_gets_a_result(n: int, first: tuple[int, ...], others: tuple[int, ...]) -> None:
    """Both counts are in the message, and no rank with data returns from the call."""
    done: list[int] = []
    with star(n) as opened:
        text = failure(CollectiveMismatch, opened, sized, first, others, done)
    named(text, "rank 0", f"of {np.prod(first)} float32", f"of {np.prod(others)} float32")
    assert done in ([], [0])
    assert np.prod(first) == 0 or not done


def typed(rank: Rank) -> None:
    rank.comm.all_reduce(np.ones(16, dtype=F32) if rank.index == 0 else np.arange(16))


def test_different_dtypes_are_named() -> None:
    """Both dtypes are in the message, and both ranks."""
    with star(2) as opened:
        named(failure(CollectiveMismatch, opened, typed), "rank 0", "float32", "rank 1", "int64")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"op": ("sum", "max")}, ("sum", "max")),
        ({"algorithm": ("ring", "direct")}, ("algorithm", "ring", "direct")),
        ({"channels": (1, 2)}, ("channels 2 against 1",)),
        ({"chunk_bytes": (4096, 8192)}, ("chunk_bytes 8192 against 4096",)),
    ],
)
def test_different_options_are_named(options: dict[str, tuple[Any, Any]], words: tuple[str, ...]) -> None:
    """Ranks must agree on op, algorithm, channels and chunk; the message says in what they differ."""

    def call(rank: Rank) -> None:
        chosen = {"algorithm": "ring"} | {key: pair[rank.index == 1] for key, pair in options.items()}
        rank.comm.all_reduce(np.ones(64, dtype=F32), **chosen)

    with star(3) as opened:
        named(failure(CollectiveMismatch, opened, call), "rank 1", *words)


def uneven(rank: Rank, sent: int, expected: int) -> None:
    counts = ([0, sent], [0, 0]) if rank.index == 0 else ([0, 0], [expected, 0])
    rank.comm.alltoallv(np.ones(sum(counts[0]), dtype=F32), np.ones(sum(counts[1]), dtype=F32), *counts)
    rank.comm.barrier()


@pytest.mark.parametrize(("sent", "expected"), [(5, 7), (7, 5), (0, 5), (5, 0)])
def test_alltoallv_counts_that_do_not_mirror(sent: int, expected: int) -> None:
    """What one rank sends and the other expects are both in the message; no short delivery is silent."""
    with star(2) as opened:
        text = failure(CollectiveMismatch, opened, uneven, sent, expected)
    named(text, f"rank 0 sends {sent} elements to rank 1", f"expects {expected}")


def odd_message(rank: Rank) -> None:
    if rank.index == 0:
        rank.comm.send(np.ones(8, dtype=F32), 1)
    else:
        rank.comm.recv(np.ones(9, dtype=F32), 0)


def test_send_and_recv_of_different_sizes() -> None:
    """Both halves are named with their sizes."""
    with star(2) as opened:
        named(failure(CollectiveMismatch, opened, odd_message), "rank 0 called send of 8", "rank 1 called recv of 9")


def leaves_early(rank: Rank) -> None:
    for _ in range(16 if rank.index == 6 else 35):
        rank.comm.alltoall(np.ones(8, dtype=F32), np.ones(8, dtype=F32), algorithm="direct")


def test_a_rank_that_leaves_is_named() -> None:
    """Those who wait learn who has left, after how many calls, and in which op they wait."""
    with star(8) as opened:
        named(failure(RankLeft, opened, leaves_early), "rank 6 has left", "16 calls", "op 16", "ranks 0, 1, 2, 3, 4, 5, 7")


def send_first(rank: Rank, n_elements: int) -> float:
    peer = 1 - rank.index
    mine, theirs = np.full(n_elements, rank.index, dtype=F32), np.empty(n_elements, dtype=F32)
    rank.comm.send(mine, peer)
    rank.comm.recv(theirs, peer)
    return float(theirs[-1])


def test_two_blocking_sends_are_a_cycle_beyond_the_window() -> None:
    """64 MiB each way do not fit in flight: the error names the cycle and the way out.  A few bytes do fit."""
    with star(2) as opened:
        named(failure(Deadlock, opened, send_first, 16 * 2**20), "cycle 0 -> 1 -> 0", "send", "group")
        assert opened.run(send_first, 16) == [1.0, 0.0]


def opposite(rank: Rank, blocking: bool) -> list[list[float]]:
    x, y = rank.comm.split(0), rank.comm.split(0)
    assert x is not None and y is not None
    arrays = {id(x): np.ones(3, dtype=F32), id(y): np.ones(2, dtype=F32)}
    order = [x, y] if rank.index == 0 else [y, x]
    works = [comm.all_reduce(arrays[id(comm)], async_op=not blocking) for comm in order]
    for work in works:
        work.wait()
    return [arrays[id(comm)].tolist() for comm in (x, y)]


def test_two_communicators_in_opposite_order() -> None:
    """Blocking is a cycle over the communicators, named with both of them, not a mismatch; async completes."""
    with star(2) as opened:
        text = failure(Deadlock, opened, opposite, True)
        named(text, "rank 0 waits in all_reduce of 3", "world/1:0", "rank 1 waits in", "world/2:0")
        assert opened.run(opposite, False) == [[[2.0] * 3, [2.0] * 2]] * 2


def never_received(rank: Rank) -> None:
    if rank.index == 0:
        rank.comm.recv(np.ones(4, dtype=F32), 1)


def test_a_recv_whose_sender_has_returned() -> None:
    """The receiver learns that its peer has left."""
    with star(2) as opened:
        named(failure(RankLeft, opened, never_received), "rank 1 has left", "rank 0 waits for it")


def raises(rank: Rank, culprits: tuple[int, ...]) -> None:
    if rank.index in culprits:
        raise ValueError(f"boom {rank.index}")
    rank.comm.barrier()


@pytest.mark.parametrize("culprits", [(2,), (1, 3), (0, 1, 2, 3)])
def test_an_exception_ends_the_run_with_rank_and_traceback(culprits: tuple[int, ...]) -> None:
    """The lowest rank that raised is reported, with its own traceback; nobody hangs, and the session goes on."""
    with star(4) as opened:
        for _ in range(3):
            with pytest.raises(RankFailed) as caught:
                opened.run(raises, culprits)
            assert caught.value.rank == culprits[0]
            assert f"ValueError: boom {culprits[0]}" in caught.value.traceback_text
            assert "in raises" in caught.value.traceback_text
            assert isinstance(caught.value.cause, ValueError)
        assert opened.run(lambda rank: rank.index) == [0, 1, 2, 3]


def works_after(rank: Rank) -> float:
    array = np.ones(1000, dtype=F32)
    rank.comm.all_reduce(array)
    return float(array.sum())


def test_a_session_is_usable_after_every_kind_of_failure() -> None:
    """After an error the next run starts on a fresh model at time 0 and is right."""
    with star(4) as opened:
        failure(CollectiveMismatch, opened, sized, (4,), (8,), [])
        assert opened.run(works_after) == [4000.0] * 4
        failure(RankLeft, opened, lambda rank: rank.comm.barrier() if rank.index else None)
        assert opened.run(works_after) == [4000.0] * 4
        failure(RankFailed, opened, raises, (3,))
        assert opened.run(works_after) == [4000.0] * 4


def swallows(rank: Rank) -> str:
    with suppress(CollectiveMismatch):
        rank.comm.all_reduce(np.ones(4 + rank.index, dtype=F32))
    rank.comm.barrier()
    return "went on"


def test_a_run_that_has_failed_stays_failed() -> None:
    """A function that swallows the error gets it again at its next call, and so does the caller."""
    with star(2) as opened:
        failure(CollectiveMismatch, opened, swallows)


def meets_later(rank: Rank, gate: threading.Event) -> None:
    if rank.index == 0:
        gate.wait()
    rank.comm.barrier()


def test_an_interrupt_frees_the_threads_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C no rank's thread stays behind, neither one that waited nor one that calls later; the session goes on."""
    gate = threading.Event()

    def interrupted(runtime: Runtime) -> None:
        raise KeyboardInterrupt

    with star(4) as opened:
        with monkeypatch.context() as patched:
            patched.setattr(Runtime, "take_inbox", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opened.run(meets_later, gate)
        gate.set()
        for thread in threading.enumerate():
            if thread.name.startswith("emu-rank"):
                thread.join(timeout=5)
                assert not thread.is_alive()
        assert opened.run(works_after) == [4000.0] * 4


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("only text")


def raises_unpicklable(rank: Rank) -> None:
    raise Unpicklable(1, 2)


def test_an_exception_that_does_not_pickle() -> None:
    """Its traceback's text is kept, its object is not."""
    with star(2) as opened, pytest.raises(RankFailed) as caught:
        opened.run(raises_unpicklable)
    assert caught.value.cause is None
    assert "only text" in caught.value.traceback_text


def overlap(rank: Rank, collective: str, shift: int) -> None:
    """Send and receive lie in one buffer, ``shift`` elements from where NCCL's rule has them."""
    n, me, count = rank.world_size, rank.index, 8
    whole = np.zeros(4 * n * count, dtype=F32)
    at = n * count
    block = {"all_gather": me, "gather": me, "reduce_scatter": -me, "scatter": -me}.get(collective, 0)
    base = block * count
    send_size = count * n if collective in ("reduce_scatter", "scatter", "alltoall") else count
    recv_size = count * n if collective in ("all_gather", "gather", "alltoall") else count
    send, recv = whole[at + base + shift : at + base + shift + send_size], whole[at : at + recv_size]
    getattr(rank.comm, collective)(send, recv)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"])
def test_in_place_is_by_pointer_and_other_overlaps_are_refused(collective: str) -> None:
    """At its own block a buffer may be shared; one element beside it is refused before anything is sent."""
    with star(3) as opened:
        opened.run(overlap, collective, 0)
        named(refusal(opened, overlap, collective, 1), collective, "overlap", "separate arrays")


@pytest.mark.parametrize("shift", [0, 1])
def test_alltoall_is_refused_in_place(shift: int) -> None:
    """Also at equal pointers."""
    with star(3) as opened:
        named(refusal(opened, overlap, "alltoall", shift), "alltoall", "in place")


def read_only(rank: Rank, collective: str, contiguous: bool) -> None:
    array = np.zeros(8, dtype=F32) if contiguous else np.broadcast_to(np.zeros(1, dtype=F32), (8,))
    array.flags.writeable = False
    if collective == "recv":
        rank.comm.recv(array, 1 - rank.index)
    else:
        getattr(rank.comm, collective)(array)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("collective", ["all_reduce", "recv", "reduce"])
def test_a_result_cannot_go_to_a_read_only_array(collective: str, contiguous: bool) -> None:
    """It is refused at the call, also in place."""
    with star(2) as opened:
        named(refusal(opened, read_only, collective, contiguous), "read-only")


def broadcast_constant(rank: Rank) -> float:
    array = np.full(8, 3.0, dtype=F32) if rank.index == 1 else np.zeros(8, dtype=F32)
    array.flags.writeable = rank.index != 1
    rank.comm.broadcast(array, root=1)
    return float(array.sum())


def test_a_root_may_broadcast_a_read_only_array() -> None:
    """Nothing is written at the root."""
    assert on_star(3, broadcast_constant) == [24.0] * 3


ARRAY = np.zeros(8, dtype=F32)
REFUSALS = {
    "list": (lambda comm: comm.all_reduce([1, 2]), "list is not a numpy array"),
    "matrix": (
        lambda comm: comm.all_reduce(np.asmatrix(ARRAY.copy())),
        "matrix is not a numpy array; convert it with numpy.asarray",
    ),
    "masked": (lambda comm: comm.send(np.ma.masked_equal(ARRAY, 0), 1), "MaskedArray cannot be sent, its mask would be lost"),
    "complex": (lambda comm: comm.all_reduce(np.zeros(4, dtype=complex)), "complex128"),
    "byte order": (lambda comm: comm.all_reduce(np.zeros(4, dtype=">f4")), ">f4"),
    "op": (lambda comm: comm.all_reduce(ARRAY.copy(), op="xor"), "'xor'"),
    "algorithm": (lambda comm: comm.all_reduce(ARRAY.copy(), algorithm="star"), "'star'"),
    "no such algorithm here": (lambda comm: comm.alltoall(ARRAY, ARRAY.copy(), algorithm="ring"), "alltoall"),
    "root": (lambda comm: comm.broadcast(ARRAY.copy(), root=4), "root 4"),
    "negative root": (lambda comm: comm.reduce(ARRAY.copy(), root=-1), "root -1"),
    "channels": (lambda comm: comm.all_reduce(ARRAY.copy(), channels=65), "65 channels"),
    "chunk": (lambda comm: comm.all_reduce(ARRAY.copy(), chunk_bytes=63), "63 bytes"),
    "dtypes": (lambda comm: comm.all_reduce(ARRAY, np.zeros(8)), "float64"),
    "alltoallv dtypes": (lambda comm: comm.alltoallv(ARRAY, np.zeros(8), [2] * 4, [2] * 4), "float64"),
    "sizes": (lambda comm: comm.all_gather(ARRAY, np.zeros(8, dtype=F32)), "8 elements"),
    "share": (lambda comm: comm.alltoall(np.zeros(6, dtype=F32), np.zeros(6, dtype=F32)), "alltoallv"),
    "counts": (lambda comm: comm.alltoallv(ARRAY, ARRAY.copy(), [8, 0, 0, 1], [2] * 4), "send_counts"),
    "peer": (lambda comm: comm.send(ARRAY, 4), "peer 4"),
    "missing": (lambda comm: comm.gather(ARRAY, root=comm.index), "recv array"),
    "key": (lambda comm: comm.split(0, key=2**63), "64 bits"),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_bad_arguments_are_refused_in_one_line(name: str) -> None:
    """The value and what is allowed are in the message, before anything is sent."""
    call, word = REFUSALS[name]
    with star(4) as opened:
        named(refusal(opened, lambda rank: call(rank.comm)), word)
        assert opened.counters().frames == 0


@pytest.mark.parametrize(
    ("keywords", "word"),
    [
        ({"user_time": "wall"}, "'wall'"),
        ({"user_time": "measured"}, "measured"),
        ({"driver": "dream"}, "'dream'"),
        ({"timeout_s": 0}, "timeout"),
        ({"timeout_s": float("nan")}, "timeout nan"),
        ({"dilation": "fast"}, "'fast'"),
        ({"dilation": -1}, "-1"),
        ({"settings": {"ranks": "0"}}, "ranks"),
    ],
)
def test_a_session_refuses_what_it_cannot_do(keywords: dict[str, Any], word: str) -> None:
    """Before anything starts, in one line; wall time cannot be measured under virtual time."""
    with pytest.raises(ConfigError) as caught:
        Session("star", **({"driver": "simulate"} | keywords))
    named(str(caught.value), word)


def mutual_recv(rank: Rank) -> None:
    rank.comm.recv(np.zeros(4, dtype=F32), 1 - rank.index)


def test_two_blocking_receives_are_a_cycle() -> None:
    """Each waits for a send that the other would issue next."""
    with star(2) as opened:
        named(failure(Deadlock, opened, mutual_recv), "cycle 0 -> 1 -> 0", "recv")


def test_errors_are_of_one_tree() -> None:
    """A caller can catch them all, and they say whose fault it is."""
    assert all(kind.exit_code == 1 for kind in (CollectiveMismatch, Deadlock, RankLeft, Stalled, RankFailed))
    assert ConfigError.exit_code == 2


def lonely_send(rank: Rank) -> None:
    if rank.index == 0:
        rank.comm.send(np.ones(4, dtype=F32), 1)


def sizes_against_nothing(rank: Rank) -> None:
    rank.comm.broadcast(np.ones(0 if rank.index else 4, dtype=F32))


def counts_that_do_not_mirror(rank: Rank) -> None:
    counts = [0, 4, 0, 0] if rank.index == 0 else [0, 0, 0, 0]
    rank.comm.alltoallv(np.ones(sum(counts), dtype=F32), np.ones(0, dtype=F32), counts, [0, 0, 0, 0])


@pytest.mark.parametrize("function", [lonely_send, sizes_against_nothing, counts_that_do_not_mirror])
def test_what_nobody_takes_is_named_at_the_end(function: Callable[[Rank], None]) -> None:
    """A message that no call took is an error when the functions have returned, however small it is."""
    with star(4) as opened:
        assert "rank 0" in str(failure(CollectiveMismatch, opened, function))
        assert opened.run(lambda rank: rank.index) == [0, 1, 2, 3]


def test_a_rank_is_of_its_run_alone() -> None:
    """A Rank that was kept after its run, and a run inside a run, are errors and not hangs."""
    kept: dict[int, Rank] = {}
    with star(2) as opened:
        opened.run(lambda rank: kept.update({rank.index: rank}))
        with pytest.raises(EmuError, match="this run is over"):
            kept[0].comm.barrier()
        assert "already running" in str(failure(RankFailed, opened, lambda rank: opened.run(lambda inner: None)))


def test_numpy_integers_are_integers() -> None:
    """A root or a colour of a numpy type agrees with the plain int of another rank."""

    def mixed(rank: Rank) -> int:
        number = np.int64(2) if rank.index == 0 else 2
        data = np.full(8, rank.index, dtype=F32)
        rank.comm.broadcast(data, root=number)
        group = rank.comm.split(np.int64(0) if rank.index == 0 else 0)
        assert group is not None
        return int(data[0]) + group.size

    with star(4) as opened:
        assert opened.run(mixed) == [6, 6, 6, 6]


@pytest.mark.parametrize(
    "impairments",
    [
        ("a0->s0=flap,down=10us,up=10us", "a0->s0=flap,down=10us,up=10us,start=0us"),
        ("*=latency,added=3e6s",),
    ],
)
def test_a_link_that_never_delivers_is_an_error(impairments: tuple[str, ...]) -> None:
    """Impairments that keep a link down for ever, or model times beyond the clock's range, are named and do not hang."""
    with (
        Session("star", settings={"ranks": "2"}, driver="simulate", impairments=impairments) as opened,
        pytest.raises(EmuError),
    ):
        opened.run(lambda rank: rank.comm.barrier().completed_ps)


@pytest.mark.parametrize(
    ("rate", "impairments", "n_elements"), [("1bit/s", (), 16 << 20), ("1GB/s", ("*=throttle,factor=1e-30",), 256)]
)
def test_a_link_too_slow_for_the_clock_is_an_error(rate: str, impairments: tuple[str, ...], n_elements: int) -> None:
    """A delay far beyond the clock's range is counted nowhere wrong: the run ends with the range."""
    settings = {"ranks": "2", "rate": rate}
    with (
        Session("star", settings=settings, driver="simulate", impairments=impairments, payload=False) as opened,
        pytest.raises(ConfigError, match=r"model time would pass .* \(53 days\)"),
    ):
        opened.run(lambda rank: rank.comm.all_reduce(np.zeros(n_elements, dtype=F32), algorithm="ring").completed_ps)
