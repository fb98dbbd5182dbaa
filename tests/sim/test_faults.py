"""Each kind of fault changes model time as its closed form says; scheduled, live, cleared, together, and by chance."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import MIB, blank

from emu import Rank, Session
from emu.errors import ConfigError, EmuError, PeerLost

US = 10**6
MIB_PS = 1048576 * 1000
"""What 1 MiB takes at 1 GB/s."""
LATENCY_PS = 10 * US
STAR = {"ranks": "4", "rate": "1GB/s", "latency": "10us", "header": "0"}


def star(*faults: str, **more: Any) -> Session:
    """Four ranks at 1 GB/s, 10 us from rank to rank (5 us a link), no headers."""
    given = {key: more.pop(key) for key in ("payload", "timeout_s") if key in more}
    return Session("star", settings=STAR | more, driver="simulate", faults=faults, **given)


def one_message(rank: Rank, n_messages: int = 1) -> list[int]:
    """Rank 0 sends 1 MiB to rank 1 in one chunk, again and again: when the receiver has each."""
    data = np.full(MIB, 7, dtype=np.uint8)
    ends = []
    for _ in range(n_messages):
        if rank.index == 0:
            rank.comm.send(data, 1, chunk_bytes=MIB)
        elif rank.index == 1:
            received = np.zeros_like(data)
            rank.comm.recv(received, 0, chunk_bytes=MIB)
            assert (received == 7).all()
            ends.append(rank.now_ps)
    rank.comm.barrier()  # so that the others are in the run as long: background traffic ends with its source's part
    return ends


def arrival_ps(*faults: str) -> int:
    """When the message is there, less what it takes on a fabric without faults."""
    with star(*faults) as session:
        return session.run(one_message)[1][0] - ALONE_PS


ALONE_PS = MIB_PS + LATENCY_PS + 4096 * 1000
"""The whole message behind its first packet, which the switch takes in whole."""


@pytest.mark.parametrize(
    ("fault", "added_ps"),
    [
        ("a2->s0=slow,factor=0.5", 0),
        ("a0->s0=slow,factor=0.5", MIB_PS),
        ("a0->s0=slow,factor=0.25,at=0,for=400us", 300 * US),
        ("a0->s0=slow,factor=0.25,at=100us,for=400us", 300 * US),
        ("a0->s0=slow,factor=0.25,at=5ms", 0),
        ("s0->a1=longer,added=30us", 30 * US),
        ("a0->s0=down,at=100us,for=2ms", 2000 * US),
        ("a0->s0=down,for=2ms", 2000 * US),
        ("a0->s0=flapping,period=100us,duty=0.2", 280 * US),
        ("a0->s0=flapping,period=100us,duty=0.2,at=300us,for=400us", 80 * US),
        ("a0->s0=slow,factor=0.5;a0->s0=slow,factor=0.5", 3 * MIB_PS),
        ("a0->s0=longer,added=3us;a0->s0=longer,added=4us", 7 * US),
        ("a1=slow_receiver,rate=500MB/s", MIB_PS + 4096 * 1000),
        ("a0=late,by=70us", 70 * US),
        ("rank0=late,by=70us;rank0=late,by=5us,count=1", 75 * US),
        ("a1=late,by=70us", 0),
        ("a0=stopped,for=70us", 70 * US),
        ("a0=stopped,at=70us,for=1ms", 0),
    ],
)
def test_a_message_takes_as_much_longer_as_the_fault_says(fault: str, added_ps: int) -> None:
    """1 MiB from rank 0 to rank 1: rates are integrated piece by piece, delays and lateness add, others' faults do nothing."""
    assert arrival_ps(*fault.split(";")) == added_ps


def test_a_receiver_that_is_stopped_takes_in_later() -> None:
    """What comes while it is stopped is taken when it goes on."""
    with star("a1=stopped,at=1ms,for=2ms") as session:
        assert session.run(one_message)[1] == [3000 * US]


def test_a_lossy_link_loses_only_in_its_window() -> None:
    """Losses, and the time that they cost, come from messages that are sent while it lasts."""
    with star() as session:
        alone = session.run(one_message, 12)[1]
    with star("a0->s0=lossy,probability=0.02,at=3ms,for=4ms") as session:
        ends = session.run(one_message, 12)[1]
        assert session.counters().links["a0->s0"].lost_packets > 0
    spans, usual = np.diff(ends), np.diff(alone)
    assert ends[:2] == alone[:2]
    assert (spans[2:4] > usual[2:4] + 100 * US).any()
    assert list(spans[-2:]) == list(usual[-2:])


def computing(rank: Rank) -> list[int]:
    """Three times 100 us of computation: when each is over."""
    ends = []
    for _ in range(3):
        rank.compute("100us")
        ends.append(rank.now_ps)
    return ends


def test_slow_compute_stretches_what_falls_into_its_window() -> None:
    """At half speed from 50 us on for 80: by then 50 + 40 are done, and the other 10 take 10: 140 us."""
    with star("a2=slow_compute,factor=2,at=50us,for=80us") as session:
        assert session.run(computing) == [[100 * US, 200 * US, 300 * US]] * 2 + [[140 * US, 240 * US, 340 * US]] + [
            [100 * US, 200 * US, 300 * US]
        ]
    with star("*=slow_compute,factor=2", "a2=slow_compute,factor=1.5") as session:
        assert [ends[-1] for ends in session.run(computing)] == [600 * US, 600 * US, 900 * US, 600 * US]
    with star("a2=stopped,at=150us,for=1ms") as session:
        assert session.run(computing)[2] == [100 * US, 1200 * US, 1300 * US]


def test_late_is_late_however_calls_are_issued() -> None:
    """Each of ten broadcasts, issued back to back, begins 300 us late at its root: so each takes 300 us longer."""

    def back_to_back(rank: Rank) -> list[int]:
        works = [rank.comm.broadcast(blank(64), root=3, algorithm="direct", async_op=True) for _ in range(10)]
        return [work.wait() for work in works]

    with star(payload=False) as session:
        alone = session.run(back_to_back)
    with star("a3=late,by=300us", payload=False) as session:
        late = session.run(back_to_back)
    assert [end - usual for end, usual in zip(late[3], alone[3], strict=True)] == [300 * US * k for k in range(1, 11)]


def test_background_traffic_halves_a_shared_link() -> None:
    """A long message that meets traffic on its last link takes twice as long, within two of its chunks."""

    def from_rank_0(rank: Rank) -> int:
        if rank.index == 0:
            rank.comm.send(blank(16 * MIB), 1, chunk_bytes=MIB)
        elif rank.index == 1:
            rank.comm.recv(blank(16 * MIB), 0, chunk_bytes=MIB)
        end_ps = rank.now_ps
        rank.comm.barrier()
        return end_ps

    def time_ps(*faults: str) -> tuple[int, int]:
        with star(*faults, payload=False) as session:
            return session.run(from_rank_0)[1], session.counters().links["s0->a1"].payload_bytes

    alone_ps, alone_bytes = time_ps()
    both_ps, both_bytes = time_ps("a2->a1=background")
    assert alone_bytes == 16 * MIB and both_bytes >= 31 * MIB
    assert abs(both_ps - 2 * alone_ps) < 2 * MIB_PS
    quarter_ps, _ = time_ps("a2->a1=background,rate=250MB/s")
    assert abs(quarter_ps - alone_ps * 4 / 3) < 2 * MIB_PS
    assert time_ps("a2->a3=background")[0] == alone_ps


def test_background_traffic_takes_all_equal_routes() -> None:
    """On a torus its messages go both ways round to the opposite corner, as many over each, and fill both links of the source."""
    settings = {"shape": "4x4", "rate": "1GB/s", "latency": "1us"}
    fault = "a0->a10=background,message=64KiB"
    with Session("torus", settings=settings, driver="simulate", payload=False, faults=(fault,)) as session:
        session.run(lambda rank: rank.compute(us=10_000))
        links = session.counters().links
        came = [links[name].payload_bytes for name in links if name.endswith("->a10") and links[name].frames]
        left = [links[name].busy_ps for name in links if name.startswith("a0->") and links[name].frames]
    assert len(came) == 2 and min(came) > 0.9 * max(came)
    assert len(left) == 2 and min(left) > 9_000 * US


@pytest.mark.parametrize("switching", ["roce-pfc", "ultra-ethernet"])
def test_background_traffic_queues_among_packets_too(switching: str) -> None:
    """On a fabric with switching it takes its share of a port, and its packets are in the link's counters."""

    def all_to_one(rank: Rank) -> int:
        rank.comm.gather(blank(MIB), blank(4 * MIB) if rank.index == 0 else None, root=0)
        return rank.now_ps

    def time_ps(*faults: str) -> tuple[int, int]:
        with star(*faults, payload=False, switching=switching, quantum="16KiB") as session:
            ends = session.run(all_to_one)
            return max(ends), session.counters().links["s0->a0"].payload_bytes

    alone_ps, alone_bytes = time_ps()
    both_ps, both_bytes = time_ps("a3->a0=background")
    assert both_bytes > alone_bytes and both_ps > 1.2 * alone_ps


def rings(rank: Rank, n_iterations: int) -> list[int]:
    """All-reduces of 64 KiB whose results are checked: when each is done."""
    data = np.full(16384, rank.index + 1, dtype=np.int32)
    ends = []
    for _ in range(n_iterations):
        summed = np.empty_like(data)
        rank.compute(us=5)
        rank.comm.all_reduce(data, summed, algorithm="ring", chunk_bytes=8192)
        assert (summed == sum(range(1, rank.world_size + 1))).all()
        ends.append(rank.now_ps)
    return ends


LIVE = [
    "a1->s0=slow,factor=0.1,for=2ms",
    "s0->a1=longer,added=50us",
    "a1->s0=down,for=1ms",
    "a2->s0=flapping,period=100us",
    "a2=slow_compute,factor=10,for=1ms",
    "rank3=late,by=100us,count=3",
    "a0=stopped,for=3ms",
    "a2=slow_receiver,rate=50MB/s",
    "a0->a2=background,message=64KiB",
]


@pytest.mark.parametrize(
    ("switching", "fault"), [*(("", fault) for fault in LIVE), *(("roce-pfc", fault) for fault in LIVE[::2])]
)
def test_a_live_fault_can_be_repeated_by_its_schedule(switching: str, fault: str) -> None:
    """Added and cleared while data moves, it leaves a schedule that gives the same times to the picosecond."""
    more = {"switching": switching, "headroom": "1MiB"} if switching else {}
    added, moved = threading.Event(), threading.Event()

    def body(rank: Rank) -> list[int]:
        ends = rings(rank, 5)
        if rank.index == 0:
            moved.set()
            added.wait(10)  # user code takes no model time; the others go on as far as they can without rank 0
        return ends + rings(rank, 8)

    def add() -> None:
        moved.wait(10)
        session.add_fault(fault)
        added.set()

    with star(**more) as session:
        adder = threading.Thread(target=add)
        adder.start()
        live = session.run(body)
        adder.join()
        (record,) = session.faults()
    moved.set()
    added.set()
    assert record.effects[0].begin_ps > 0
    with star(**more) as session:
        assert session.run(body) != live
    with star(*record.schedule, **more) as session:
        assert session.run(body) == live


def test_what_is_decided_stays() -> None:
    """A live fault on a link that has a chunk on its wire takes effect when that has left, and its schedule says so."""
    added, moved = threading.Event(), threading.Event()

    def body(rank: Rank) -> list[int]:
        if rank.index == 0:
            rank.comm.recv(np.zeros(4), 3)
            moved.set()
            added.wait(10)
        elif rank.index == 3:
            rank.comm.send(np.zeros(4), 0)
        ends = []
        for _ in range(4):
            if rank.index == 1:
                rank.comm.send(np.zeros(MIB, dtype=np.uint8), 2, chunk_bytes=MIB)
            elif rank.index == 2:
                rank.comm.recv(np.zeros(MIB, dtype=np.uint8), 1, chunk_bytes=MIB)
            ends.append(rank.now_ps)
        return ends

    def add() -> None:
        moved.wait(10)
        session.add_fault("a1->s0=slow,factor=0.5,for=100us")
        added.set()

    with star() as session:
        adder = threading.Thread(target=add)
        adder.start()
        live = session.run(body)
        adder.join()
        (record,) = session.faults()
    assert record.effects[0].begin_ps == MIB_PS
    assert live[1] == [MIB_PS, 2 * MIB_PS + 50 * US, 3 * MIB_PS + 50 * US, 4 * MIB_PS + 50 * US]
    with star(*record.schedule) as session:
        assert session.run(body) == live


def test_a_cleared_fault_is_over() -> None:
    """Cleared between two runs, scheduled or live, it is in none of the later ones, nor after a fresh beginning."""
    with star() as session:
        alone = session.run(one_message)[1]
    with star("a0->s0=slow,factor=0.5") as session:
        session.add_fault("a0->s0=slow,factor=0.5")
        first = session.run(one_message)[1][0]
        assert first == alone[0] + 3 * MIB_PS
        session.clear_faults(2)
        start_ps = session.run(one_message)[1][0]
        session.clear_faults()
        assert [record.is_cleared for record in session.faults()] == [True, True]
        assert session.run(one_message)[1][0] - start_ps < start_ps - first
        session.begin()
        assert session.run(one_message)[1] == alone


def test_a_dry_run_names_what_it_would_hit_and_does_nothing() -> None:
    """Components and the nodes whose actors would act; the fault is not in the list."""
    with star() as session:
        record = session.add_fault("a*->s0=slow,factor=0.5", dry_run=True)
        assert record.components == record.components and record.nodes == ("a0", "a1", "a2", "a3")
        assert record.effects == () and session.faults() == ()


def test_what_the_fabric_cannot_take_is_refused_before_anything_happens() -> None:
    """A nearest name; loss where nobody sends again; delay without headroom: a scheduled and a live fault alike."""
    with pytest.raises(ConfigError, match="the nearest name is 'a3->s0'"):
        star("a3-s0=slow,factor=0.5")
    with star(switching="roce-pfc", quantum="4KiB") as session:
        with pytest.raises(ConfigError, match="headroom"):
            session.add_fault("s0->a1=longer,added=1ms")
        assert session.faults() == ()
    with (
        star(switching="infiniband", recovery="none", link_retry="false") as session,
        pytest.raises(ConfigError, match="recovery"),
    ):
        session.add_fault("a0->s0=lossy,probability=0.01")


def test_a_killed_rank_is_lost_to_the_session() -> None:
    """PeerLost names it on the way; the next run goes on without, and so do the other faults."""
    with star("a2=killed,at=300us", "a2->a0=background", "a1=late,by=1us") as session:
        with pytest.raises(PeerLost, match=r"a2 \(rank 2\) was killed by a fault") as caught:
            session.run(rings, 100)
        assert caught.value.nodes == ("a2",)
        assert session.ranks == (0, 1, 3)
        assert len(session.run(rings, 3)) == 3


def test_a_run_that_waits_for_ever_ends_beside_background_traffic() -> None:
    """Traffic that never ends is no progress: the deadlock is named after the timeout; a run that ends comes to rest."""

    def waits(rank: Rank) -> None:
        if rank.index == 0:
            rank.comm.recv(np.zeros(4), 1)

    for more in ({}, {"switching": "roce-pfc"}):
        with star("a2->a3=background,rate=100MB/s", timeout_s=1.0, **more) as session:
            with pytest.raises(EmuError, match="rank"):
                session.run(waits)
            session.run(rings, 2)
            session.run(rings, 2)


def test_background_traffic_goes_on_from_run_to_run() -> None:
    """It rests between two runs, and has its share of the second as of the first."""
    with star("a2->a1=background,rate=500MB/s,message=64KiB") as session:
        sent = []
        for _ in range(3):
            session.run(one_message)
            sent.append(session.counters().links["a2->s0"].payload_bytes)
    assert sent[0] > 4 * 65536
    assert abs(sent[2] - 2 * sent[1] + sent[0]) <= 2 * 65536


def test_background_traffic_keeps_to_a_window_and_to_its_time() -> None:
    """No more than a window is on its way to a receiver that hardly takes in; what begins later does not put off the next run."""

    def body(rank: Rank) -> int:
        rank.compute("100ms")
        rank.comm.barrier()
        return rank.now_ps

    with star("a2->a1=background", "a1=slow_receiver,rate=1MB/s") as session:
        session.run(body)
        assert 16 * MIB <= session.counters().links["a2->s0"].payload_bytes <= 17 * MIB
    with star("a2->a1=background,at=10s") as session:
        assert max(session.run(body)) < max(session.run(body)) < 10**12
        assert session.counters().links["a2->s0"].payload_bytes == 0


TARGETS = {
    "links": ["a0->s0", "s0->a1", "s0", "*"],
    "ranks": ["a0", "rank2", "*"],
    "pair": ["a0->a1", "a3->a1"],
}
SETTINGS = {
    "slow,factor=0.3": "links",
    "longer,added=7us": "links",
    "lossy,probability=0.01": "links",
    "flapping,period=30us,duty=0.4": "links",
    "down": "links",
    "slow_compute,factor=3": "ranks",
    "late,by=11us": "ranks",
    "stopped": "ranks",
    "slow_receiver,rate=300MB/s": "ranks",
    "background,message=8KiB": "pair",
    "background,rate=200MB/s,message=2KiB": "pair",
}
FAULTS = st.sampled_from(list(SETTINGS)).flatmap(
    lambda kind: st.builds(
        lambda target, at, lasts: f"{target}={kind},at={at}us,for={lasts}us",
        st.sampled_from(TARGETS[SETTINGS[kind]]),
        st.integers(0, 400),
        st.integers(1, 300),
    )
)


@given(st.lists(FAULTS, min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_data_stays_right_whatever_goes_wrong(faults: list[str]) -> None:
    """Any schedule that ends leaves every result as it must be, no message behind, and the same times once more."""
    times = []
    for _ in range(2):
        with star(*faults) as session:
            times.append(session.run(rings, 6))
    assert times[0] == times[1]


def test_faults_are_marks_in_the_record_and_metrics() -> None:
    """Beginning and end with their model times; the metric is 1 while the fault is on, and 0 afterwards."""
    settings = {"settings": STAR, "driver": "simulate", "record": True}
    with Session("star", faults=("a0->s0=slow,factor=0.5,at=10us,for=1s", "rank1=late,by=3us"), **settings) as session:
        session.run(rings, 2)
        marks = [(mark.time_ps, mark.component) for mark in session.record().marks]
        assert marks == [(0, "a1"), (10 * US, "a0->s0"), (10 * US + 10**12, "a0->s0")]
        during = session.metrics_text()
        session.clear_faults()
        session.run(rings, 2)
        after = session.metrics_text()
    for text, value in ((during, "1.0"), (after, "0.0")):
        assert f'emu_link_fault_active{{fault="slow",link="a0->s0"}} {value}' in text
        assert f'emu_rank_fault_active{{fault="late",rank="1"}} {value}' in text


def test_a_schedule_file_works_as_words_do(tmp_path: Path) -> None:
    """What ``--faults`` reads is what ``--fault`` says."""
    from emu.faults.schedule import read_schedule

    path = tmp_path / "faults.toml"
    path.write_text('[[faults]]\ntarget = "a0->s0"\nkind = "slow"\nfactor = 0.5\n', encoding="utf-8")
    assert arrival_ps(*read_schedule(path)) == MIB_PS
