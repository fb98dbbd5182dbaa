"""Where the time of a call goes: closed forms of one cause each, exactly, online and from the record."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from emu.fabric.account import Cause
from emu.rank import Rank
from emu.session import Session
from emu.telemetry.attribution import Attribution
from emu.topologies.fabric_file import load
from emu.topologies.switching import Discipline
from tests.sim.packet_stars import packet_star, pausing
from tests.sim.routed import traffic_class
from tests.sim.splits import at_ps, duration_ps, one_call, pair, recorded, slowest

MIB = 2**20
US = 10**6
MTU = 4096
STAR = {"ranks": 4, "rate": "100MB/s", "latency": "1ms", "header": 0}
PS_PER_BYTE = 10_000
"""At 100 MB/s."""


def last(attribution: Attribution, rank: int = 0) -> Any:
    return attribution.calls(rank)[-1]


def test_a_ring_spends_its_steps_on_the_line_and_on_the_way() -> None:
    """Ring all_reduce of S on n ranks, one chunk a step: 2(n-1) (S/n/B + MTU/B) on the line, 2(n-1) L on the way, no more."""
    found = recorded("star", ring_in_one_chunk, **STAR)
    for call in found.record.calls:
        expected = {Cause.SERIALISATION: 6 * (MIB // 4 + MTU) * PS_PER_BYTE, Cause.PROPAGATION: 6 * 1000 * US}
        assert call.split_ps == tuple(expected.get(cause, 0) for cause in Cause)


def ring_in_one_chunk(rank: Rank, late_us: tuple[float, ...] = ()) -> None:
    one_call(rank, "all_reduce", MIB, late_us, algorithm="ring", chunk_bytes=MIB)


def test_a_late_root_is_all_that_the_others_wait_for_beside_the_transfer() -> None:
    """A root that computes 5 ms first: each other rank spends 5 ms on a late peer, the rest as when it is not late."""
    late = recorded("star", broadcast, (5000.0,), **STAR)
    prompt = recorded("star", broadcast, (), **STAR)
    for rank in (1, 2, 3):
        then, now = last(prompt, rank).split_ps, last(late, rank).split_ps
        assert now[Cause.PEER_LATE] == 5000 * US
        assert now[: Cause.PEER_LATE] == then[: Cause.PEER_LATE]
        parts = late.parts(last(late, rank))
        assert parts[0].place == "a0: computing"
    assert last(late, 0).split_ps == last(prompt, 0).split_ps


def broadcast(rank: Rank, late_us: tuple[float, ...]) -> None:
    one_call(rank, "broadcast", MIB, late_us, algorithm="ring", chunk_bytes=MIB)


def test_a_late_rank_is_known_to_all_after_an_all_reduce() -> None:
    """After an all_reduce every rank knows the first start and the last, and whose it was; of equals the lowest."""
    found = recorded("star", ring_in_one_chunk, (10.0, 0.0, 700.0, 700.0), **STAR)
    for call in found.record.calls:
        assert (call.first_start_ps, call.last_start_ps, call.last_rank) == (0, 700 * US, 2)


@pytest.mark.parametrize("doing", ["computing", "earlier", "not called"])
def test_what_a_late_rank_was_doing_is_named(doing: str) -> None:
    """A rank that comes late was computing, still in an earlier call, or had not called yet."""

    def function(rank: Rank) -> None:
        pairs = rank.comm.split(0 if rank.index < 2 else 1, rank.index)
        if doing == "computing" and rank.index == 0:
            rank.compute(us=5000)
        if doing == "earlier" and rank.index < 2:
            pairs.all_reduce(np.zeros(MIB, np.float32), algorithm="ring")
        one_call(rank, "broadcast", 4096, algorithm="ring")

    faults = ("rank0=late,by=5ms",) if doing == "not called" else ()
    found = recorded("star", function, faults=faults, **STAR)
    call = found.calls(3)[-1]
    place = max((part for part in found.parts(call) if part.cause is Cause.PEER_LATE), key=lambda part: part.duration_ps).place
    assert place.startswith({"computing": "a0: computing", "earlier": "a0: still in", "not called": "a0: had not"}[doing])


def test_loss_is_retransmission_and_nothing_else() -> None:
    """On a path with loss, what is lost is sent again after a timeout: the rest of the split is that of a run without loss."""
    with_loss = recorded("star", pair, (0,), 1, MIB, impair=("a0->s0=loss,probability=0.01,timeout=5ms",), **STAR)
    without = recorded("star", pair, (0,), 1, MIB, **STAR)
    then, now = last(without, 1).split_ps, last(with_loss, 1).split_ps
    added_ps = duration_ps(last(with_loss, 1)) - duration_ps(last(without, 1))
    assert now[Cause.RETRANSMISSION] == added_ps > 5000 * US
    assert [a for cause, a in enumerate(now) if cause != Cause.RETRANSMISSION] == [
        b for cause, b in enumerate(then) if cause != Cause.RETRANSMISSION
    ]


def test_incast_queues_at_the_port_to_the_target() -> None:
    """Of two that send S to one at once, the second waits S/B at the switch's port to it, and the first not at all."""
    found = recorded("star", pair, (0, 2), 1, MIB, **STAR)
    queued = [at_ps(found, call, Cause.QUEUEING, "s0->a1") for call in found.calls(1)]
    assert max(queued) == max(call.split_ps[Cause.QUEUEING] for call in found.calls(1)) >= (MIB - MIB // 4) * PS_PER_BYTE


def test_added_latency_and_jitter_are_propagation() -> None:
    """A link that is longer by 3 ms adds 3 ms of propagation on it."""
    found = recorded("star", pair, (0,), 1, 4096, impair=("s0->a1=latency,added=3ms",), **STAR)
    assert at_ps(found, last(found, 1), Cause.PROPAGATION, "s0->a1") == 3500 * US
    assert at_ps(found, last(found, 1), Cause.PROPAGATION, "a0->s0") == 500 * US


def test_a_slow_receiver_is_the_endpoint() -> None:
    """A receiver that takes bytes in at a tenth of the line's rate: what is not the line's time is the endpoint's."""
    loaded = load("star", {key: str(value) for key, value in STAR.items()}).topology
    nodes = list(loaded.nodes)
    nodes[loaded.ranks[1]] = replace(nodes[loaded.ranks[1]], drain_rate_bps=80 * 10**6)
    found = recorded(replace(loaded, nodes=tuple(nodes)), pair, (0,), 1, MIB)
    split = last(found, 1).split_ps
    assert split[Cause.ENDPOINT] > 0.85 * sum(split)


def test_a_narrow_window_is_credit() -> None:
    """With a window of a quarter of rate x round trip, the sender waits for credit most of the time."""
    narrow = recorded("star", pair, (0,), 1, 16 * MIB, ranks=2, rate="10GB/s", latency="1ms", window="1MiB")
    split = last(narrow, 1).split_ps
    assert split[Cause.CREDIT] > 0.8 * sum(split)
    assert at_ps(narrow, last(narrow, 1), Cause.CREDIT, "a0 to a1") == split[Cause.CREDIT]


@pytest.mark.parametrize(
    ("discipline", "cause"), [(Discipline.PAUSE, Cause.PAUSE), (Discipline.CREDIT, Cause.CREDIT)], ids=["pause", "credit"]
)
def test_senders_of_an_incast_are_kept_back_by_their_discipline(discipline: Discipline, cause: Cause) -> None:
    """Eight to one through a small buffer: a sender's own time is its line's, and what its discipline keeps it back for."""
    its = {"credit_bytes": 64 << 10} if discipline is Discipline.CREDIT else {}
    topology = packet_star(9, traffic_class(discipline=discipline, **its), buffer_bytes=4 << 20)
    found = recorded(topology, pair, tuple(range(1, 9)), 0, 4 * MIB)
    sender = found.calls(8)[0]
    assert sum(sender.split_ps[each] for each in (Cause.SERIALISATION, cause)) == duration_ps(sender)
    assert sender.split_ps[cause] > 0.7 * duration_ps(sender)
    assert at_ps(found, sender, cause, "a8->s0") == sender.split_ps[cause]


def test_packets_that_were_dropped_are_retransmission() -> None:
    """Where a lossy class drops what does not fit, the sender's time beyond its line's is sending again."""
    found = recorded("star", one_call, "gather", MIB, ranks=8, rate="400Gbit/s", latency="2us", switching="roce-lossy")
    call = slowest(found)
    assert call.split_ps[Cause.RETRANSMISSION] > 0.5 * duration_ps(call)


def test_a_call_behind_another_in_its_communicator_has_that_ones_causes_first() -> None:
    """Of two calls submitted at once the second's time is that of both: the parts of the first, then its own."""

    def function(rank: Rank) -> None:
        array = np.zeros(MIB // 4, np.float32)
        works = [rank.comm.all_reduce(array, algorithm="ring", chunk_bytes=MIB, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()

    found = recorded("star", function, **STAR)
    for rank in range(4):
        first, second = found.calls(rank)
        assert second.submitted_ps == first.submitted_ps
        assert found.parts(second)[: len(found.parts(first))] == found.parts(first)
        assert second.split_ps == tuple(2 * its for its in first.split_ps)


def test_a_session_without_a_record_says_so() -> None:
    """Asking for a record that nobody kept is an error with the fix."""
    with Session("star", settings={"ranks": "2"}, driver="simulate") as session, pytest.raises(Exception, match="record=True"):
        session.record()


def test_pauses_are_named_where_they_hold() -> None:
    """A switch that pauses: a chunk that waits behind a paused port has the pause at that port."""
    topology = packet_star(9, pausing(), buffer_bytes=4 << 20)
    found = recorded(topology, pair, tuple(range(1, 9)), 0, 4 * MIB)
    paused = {part.place for call in found.record.calls for part in found.parts(call) if part.cause is Cause.PAUSE}
    assert paused <= {f"a{rank}->s0" for rank in range(1, 9)} and paused


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls"])
@pytest.mark.parametrize("switching", [None, "roce-pfc"])
def test_an_accelerators_own_work_is_the_endpoint(algorithm: str, switching: str | None) -> None:
    """Where launches, messages and reductions take time it is the endpoint's, on both planes and through combining switches."""
    if switching and algorithm == "nvls":
        pytest.skip("switches that combine go without switching")
    settings = {} if switching is None else {"switching": switching}
    found = recorded("h100-8-nccl", lambda rank: one_call(rank, "all_reduce", MIB, algorithm=algorithm), **settings)
    assert slowest(found).split_ps[Cause.ENDPOINT] > 0


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("rank2=slow_receiver,rate=1GB/s", Cause.ENDPOINT),
        ("rank2=late,by=9ms", Cause.PEER_LATE),
        ("a2->s0=slow,factor=0.2", Cause.SERIALISATION),
        ("s0->a2=lossy,probability=0.05", Cause.RETRANSMISSION),
        ("s0->a2=longer,added=9ms", Cause.PROPAGATION),
    ],
)
def test_a_fault_raises_the_share_of_its_cause(fault: str, cause: Cause) -> None:
    """Of all causes a fault adds most to its own, in the slowest rank's call."""
    settings = {"ranks": 4, "rate": "10GB/s", "latency": "1ms"}

    def function(rank: Rank) -> None:
        one_call(rank, "all_reduce", 16 * MIB, algorithm="ring")

    call = slowest(recorded("star", function, faults=(fault,), **settings))
    well = slowest(recorded("star", function, **settings))
    added = [now - then for now, then in zip(call.split_ps, well.split_ps, strict=True)]
    assert added.index(max(added)) == cause


@pytest.mark.parametrize("switching", [None, "roce-pfc"])
def test_a_message_alone_on_a_slow_link_queues_nowhere(switching: str | None) -> None:
    """Waiting for what the same flow sent before is the link's serialisation, on both planes: nobody else is there."""
    settings = {"ranks": 3, "rate": "100Gbit/s", "latency": "2us"} | ({} if switching is None else {"switching": switching})
    found = recorded("star", pair, (0,), 1, MIB, impair=("s0->a1=throttle,factor=0.2",), **settings)
    call = last(found, 1)
    assert call.split_ps[Cause.QUEUEING] == 0
    assert at_ps(found, call, Cause.SERIALISATION, "s0->a1") > 0.5 * duration_ps(call) - call.split_ps[Cause.PAUSE]


@pytest.mark.parametrize("fault", ["rank1=late,by=2us", "rank1=stopped,at=3us,for=9us", "rank1=late,by=2us,at=1us"])
def test_a_late_rank_behind_its_own_calls_submits_late(fault: str) -> None:
    """Calls that wait for the one before them, at a rank that a fault makes late too, are explained without a gap."""

    def queue(rank: Rank) -> None:
        values = np.zeros(1024, np.float32)
        works = [rank.comm.all_reduce(values.copy(), algorithm="ring", async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    found = recorded("star", queue, faults=(fault,), ranks=4)  # which checks every call
    calls = [call for call in found.calls(1) if call.collective == "all_reduce"]
    assert len(calls) == 3
    assert all(before.completed_ps <= after.started_ps for before, after in pairwise(calls))
