"""Incast of n to 1 through one switch: what each discipline does when a link is full."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from packet_cases import (
    BYTES_PER_US,
    KIB,
    MIB,
    RATE,
    US,
    Flow,
    Outcome,
    assert_at_rest,
    credited,
    dropping,
    exchange,
    jain,
    ring,
    run,
    star,
    switching,
    traffic_class,
)

from emu.topologies.fabric_file import load
from emu.topologies.switching import Discipline, Recovery, Switching
from emu.topologies.switching_checks import check_switching


def incast(n: int, n_bytes: int, rules: Switching, *, payload: bool = False) -> Outcome:
    """Ranks 1 to n send to rank 0 at once."""
    flows: list[Flow] = [(source, 0, n_bytes) for source in range(1, n + 1)]
    outcome = run(star(n + 1, rules), exchange, flows, payload, payload=payload)
    assert_at_rest(outcome)
    assert all(right for _, right in outcome.results[0])
    return outcome


def share(outcome: Outcome, n_bytes: int) -> float:
    """Goodput over the rate of the receiver's link."""
    last_ps: int = max(time for time, _ in outcome.results[0])
    return n_bytes * US / BYTES_PER_US / last_ps


@pytest.mark.parametrize("n", [2, 4, 7])
def test_with_pauses_the_link_is_full_senders_are_equal_and_nothing_is_dropped(n: int) -> None:
    """16 MiB each over 400 Gbit/s and 16 MiB of buffer: >= 95 % of the link, Jain >= 0.98, pauses towards the senders only."""
    outcome = incast(n, 16 * MIB, switching())
    assert share(outcome, n * 16 * MIB) >= 0.95
    assert jain([1 / time for time, _ in outcome.results[0]]) >= 0.98
    assert outcome.total("dropped_packets") == 0
    assert outcome.paused_links() == {f"a{sender}->s0" for sender in range(1, n + 1)}


def test_with_pauses_every_byte_is_right() -> None:
    """The same with data, 512 KiB each from seven into 2 MiB."""
    outcome = incast(7, 512 * KIB, switching(buffer_bytes=2 * MIB), payload=True)
    assert outcome.total("pause_frames") > 0
    assert outcome.total("dropped_packets") == 0


def test_with_credits_the_link_is_full_and_nothing_is_paused_or_dropped() -> None:
    """Credits do what pauses do, without a frame more."""
    outcome = incast(7, 4 * MIB, switching(credited()))
    assert share(outcome, 28 * MIB) >= 0.95
    assert jain([1 / time for time, _ in outcome.results[0]]) >= 0.98
    assert outcome.total("dropped_packets") == outcome.total("pause_frames") == 0
    assert outcome.total("wait_ps") > 0


@pytest.mark.parametrize("recovery", [Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT])
@pytest.mark.parametrize("n", [2, 4, 7])
def test_with_neither_packets_are_dropped_and_every_byte_is_still_right(n: int, recovery: Recovery) -> None:
    """A buffer that is too small for what comes in at once loses packets; recovery brings all of them."""
    rules = switching(dropping(recovery, timeout_ps=100 * US), buffer_bytes=MIB, alpha=Fraction(1))
    outcome = incast(n, MIB, rules, payload=True)
    assert outcome.total("dropped_packets") > 0
    assert share(outcome, n * MIB) < 0.95


def test_selective_repeat_sends_less_again_than_go_back_n() -> None:
    """On an overflowing buffer go-back-N resends all behind a gap, selective repeat what was lost (Mittal et al., 2018)."""
    resent = {}
    for recovery in (Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT):
        outcome = incast(4, 4 * MIB, switching(dropping(recovery, timeout_ps=100 * US), buffer_bytes=2 * MIB, alpha=Fraction(1)))
        statistics = [adapter.statistics() for adapter in outcome.engine.adapters.values()]
        resent[recovery] = sum(s.resent_packets for s in statistics)
        dropped = outcome.total("dropped_packets")
        assert resent[recovery] >= dropped > 0
    assert resent[Recovery.GO_BACK_N] > resent[Recovery.SELECTIVE_REPEAT]


def test_after_a_lone_loss_go_back_n_sends_a_round_trip_again_and_selective_repeat_one_packet() -> None:
    """Of 256 packets one is lost: go-back-N resends the 4 us on their way (some 13 packets of 16 KiB) as well."""
    resent = {}
    for recovery in (Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT):
        rules = switching(dropping(recovery))
        outcome = run(star(2, rules), exchange, [(1, 0, 4 * MIB)], False, payload=False, impair=["a1->s0=loss,packets=400"])
        assert_at_rest(outcome)
        resent[recovery] = outcome.engine.adapters[1].statistics().resent_packets
    assert resent[Recovery.SELECTIVE_REPEAT] == 1
    round_trip_packets = 4 * BYTES_PER_US / (16 * KIB)
    assert round_trip_packets <= resent[Recovery.GO_BACK_N] <= round_trip_packets + 4


@pytest.mark.parametrize("recovery", [Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT])
def test_what_is_lost_at_its_first_sending_costs_a_timeout_and_no_more(recovery: Recovery) -> None:
    """Of 16 packets all are lost once: after the class's 1 ms they go again, come, and every byte is right."""
    rules = switching(dropping(recovery))
    outcome = run(star(2, rules), exchange, [(1, 0, 256 * KIB)], True, impair=["a1->s0=loss,pattern=1"])
    assert_at_rest(outcome)
    (took_ps, is_right), statistics = outcome.results[0][0], outcome.engine.adapters[1].statistics()
    assert is_right
    assert (statistics.resent_packets, statistics.timeouts) == (16, 1)
    assert 1000 * US < took_ps < 1020 * US


def test_trimming_keeps_the_link_full_where_dropping_waits_for_timeouts() -> None:
    """A trimmed header is answered at once: >= 90 % of the link without any timeout; headers have a queue of their own."""
    headers = dropping(Recovery.NONE, name="headers", priority=7, strict=True)
    data = dropping(Recovery.SELECTIVE_REPEAT, trims=True)
    outcome = incast(4, 2 * MIB, switching(data, headers, buffer_bytes=MIB, alpha=Fraction(1)))
    statistics = [adapter.statistics() for adapter in outcome.engine.adapters.values()]
    assert outcome.total("trimmed_packets") > 0
    assert sum(s.timeouts for s in statistics) == 0
    assert share(outcome, 8 * MIB) >= 0.9


@pytest.mark.parametrize("percent", [Fraction(783, 10), Fraction(50)])
def test_a_slow_receiver_pauses_its_sender_for_just_what_it_lacks(percent: Fraction) -> None:
    """Draining at 78.3 % of the line: goodput 78.3 %, the port to it paused for 21.7 +- 2 % of the time, no drop."""
    fabric = star(2, switching(quantum_bytes=4 * KIB, receive_buffer_bytes=300_000))
    drain_bps = int(400 * 10**9 * percent / 100)
    nodes = tuple(replace(node, drain_rate_bps=drain_bps) if node.name == "a0" else node for node in fabric.nodes)
    n_bytes = 16 * MIB
    outcome = run(replace(fabric, nodes=nodes), exchange, [(1, 0, n_bytes)], False, payload=False)
    assert_at_rest(outcome)
    end_ps = outcome.results[0][0][0]
    assert abs(float(n_bytes * 8 * 10**12 / end_ps / drain_bps) - 1) < 0.01
    queue = outcome.queues("s0->a0")[0]
    assert abs(queue.pause_ps / end_ps - float(1 - percent / 100)) < 0.02
    assert outcome.total("dropped_packets") == 0
    assert outcome.engine.adapters[0].statistics().discarded_packets == 0


@pytest.mark.parametrize("n_classes", [1, 2])
def test_a_paused_class_does_not_stop_another(n_classes: int) -> None:
    """Priorities are paused one by one: the second class of a port that is paused in the first counts no pause."""
    classes = [traffic_class(name=f"c{number}", priority=number) for number in range(n_classes)]
    outcome = incast(2, 2 * MIB, switching(*classes, buffer_bytes=3 * MIB))
    first, *others = outcome.queues("a1->s0")
    assert first.pause_frames > 0
    assert all(other.pause_frames == 0 for other in others)
    assert all(c.discipline is Discipline.PAUSE for c in classes)


def test_headroom_holds_what_comes_in_however_much_more_goes_out() -> None:
    """A link out that splits packets into many more MTUs than the links in: three senders at once, and no lossless packet
    finds too little headroom, though it would be far too little for the bytes that go out."""
    fabric = load(
        "star", {"discipline": "pause", "ranks": "4", "rate": RATE, "latency": "10us", "mtu": "9000", "alpha": "1/64"}
    ).topology
    links = tuple(
        replace(link, mtu_bytes=256, header_bytes=200, rate_bps=link.rate_bps // 4) if link.name in ("s0->a0", "a0->s0") else link
        for link in fabric.links
    )
    fabric = replace(fabric, links=links)
    check_switching(fabric, where="headroom for the links in")
    outcome = run(fabric, exchange, [(source, 0, 4 * MIB) for source in (1, 2, 3)], False, payload=False)
    assert_at_rest(outcome)
    assert outcome.paused_links() == {"a1->s0", "a2->s0", "a3->s0"}
    assert outcome.total("dropped_packets") == 0


def test_each_link_into_an_adapter_has_a_receive_buffer() -> None:
    """Two neighbours overfill a slow rank, each over its own link: what one link's packets hold is never more than the buffer."""
    data = dropping(Recovery.SELECTIVE_REPEAT, timeout_ps=300 * US)
    fabric = ring(3, switching(data, quantum_bytes=4 * KIB, receive_buffer_bytes=100_000))
    nodes = tuple(replace(node, drain_rate_bps=100 * 10**9) if node.name == "a1" else node for node in fabric.nodes)
    outcome = run(replace(fabric, nodes=nodes), exchange, [(0, 1, MIB), (2, 1, MIB)], False, payload=False)
    assert_at_rest(outcome)
    counted = outcome.engine.adapters[1].statistics()
    assert 90_000 < counted.peak_receive_bytes <= 100_000
    assert counted.discarded_packets > 0
