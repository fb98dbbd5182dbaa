"""Congestion controls on whole fabrics: incast, fairness, and what a control cannot do that credits can."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from packet_cases import (
    BYTES_PER_US,
    KIB,
    MIB,
    RATE_BPS,
    US,
    Outcome,
    credited,
    dropping,
    exchange,
    jain,
    leaf_spine,
    run,
    star,
    switching,
    traffic_class,
)

from emu.drivers.packet_engine import PacketEngine
from emu.fabric.frame import Frame
from emu.fabric.packet import Packet
from emu.rank import Rank
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Marking, Recovery, Switching, TrafficClass

MARKING = Marking(kmin_bytes=800_000, kmax_bytes=3_200_000, pmax=Fraction(1, 5))
"""HPCC's and SimAI's thresholds for 400 Gbit/s."""


def dcqcn(name: str, **options: Any) -> TrafficClass:
    return traffic_class(control="dcqcn", control_parameters=(("set", name),), marking=MARKING, **options)


def incast(fabric: Topology, senders: int, n_bytes: int, *, payload: bool = False) -> tuple[Outcome, float]:
    """Everyone sends to rank 0 at once.  Returns the outcome, and the goodput as a share of the receiver's link."""
    outcome = run(fabric, exchange, [(source, 0, n_bytes) for source in range(1, senders + 1)], payload, payload=payload)
    assert all(right for _, right in outcome.results[0])
    last_ps = max(at_ps for at_ps, _ in outcome.results[0])
    return outcome, senders * n_bytes * 8 * 10**12 / last_ps / RATE_BPS


def test_marks_follow_their_curve() -> None:
    """Of 3,000 packets that find a queue of q bytes, pmax (q - kmin) / (kmax - kmin) are marked within 3 sigma: none up to kmin,
    all above kmax."""
    n_packets, kmin, kmax = 3_000, 100_000, 300_000
    marking = Marking(kmin_bytes=kmin, kmax_bytes=kmax, pmax=Fraction(1, 2))
    rules = switching(traffic_class(marking=marking), buffer_bytes=2**40, alpha=Fraction(8))
    engine = PacketEngine(star(2, rules), seed=1, impairments={})
    switch = engine.switches[engine.topology.links[engine.topology.route(0, 1, 0)[0]].target]
    port = switch.ports[engine.topology.route(0, 1, 0)[1]]
    port.free_ps = 1 << 62  # nothing leaves
    frame = Frame((), source_rank=0, target_rank=1, flow=0, route_flow=0, payload_bytes=1, head_ps=0)
    for length, share in ((kmin, 0.0), (kmin + 1, 0.0), (150_000, 1 / 8), (200_000, 1 / 4), (kmax, 1 / 2), (kmax + 1, 1.0)):
        before = port.counters[0].marked
        for number in range(n_packets):
            port.queued_bytes[0] = length
            packet = Packet(frame, queue_pair=0, queue=0, sequence=number, offset_bytes=0, payload_bytes=1, entropy=0, sent_ps=0)
            switch.receive(packet, engine.topology.route(0, 1, 0)[0], 0)
        marked = port.counters[0].marked - before
        sigma = (n_packets * share * (1 - share)) ** 0.5
        assert abs(marked - n_packets * share) <= max(3 * sigma, 0.5), (length, marked)


@pytest.mark.parametrize("senders", [2, 4, 7])
def test_tuned_dcqcn_fills_the_link_of_an_incast(senders: int) -> None:
    """With the parameters published for 400 Gbit/s, 16 MiB each: at least 90 % of the link, marked and notified, no drop."""
    outcome, share = incast(star(8, switching(dcqcn("tuned"))), senders, 16 * MIB)
    assert share >= 0.90, share
    assert outcome.total("dropped_packets") == 0
    assert outcome.total("marked_packets") > 0
    adapters = outcome.engine.adapters
    assert adapters[0].n_cnp_sent == sum(adapter.n_cnp_received for adapter in adapters.values()) > 0


@pytest.mark.parametrize(("name", "least", "most"), [("nvidia", 0.6, 0.75), ("hpcc", 0.38, 0.48), ("paper", 0.15, 0.3)])
def test_what_untuned_dcqcn_leaves_of_a_link(name: str, least: float, most: float) -> None:
    """The other published sets hold an incast of seven to 66, 43 and 20 % of 400 Gbit/s: they cut at once and rise slowly."""
    rules = switching(dcqcn(name), quantum_bytes=32 * KIB, headroom_bytes=250_000)
    outcome, share = incast(star(8, rules), 7, 16 * MIB)
    assert least <= share <= most, share
    assert outcome.total("dropped_packets") == 0


def stream(rank: Rank, n_messages: int, n_bytes: int, late_us: int) -> list[int]:
    """Ranks 0 and 1, the second later, send a stream to ranks 2 and 3.  Returns when each message was here."""
    buffer = np.broadcast_to(np.zeros(1, np.uint8), (n_bytes,))
    times = []
    if rank.index == 1:
        rank.compute(us=late_us)
    for _ in range(n_messages):
        if rank.index < 2:
            rank.comm.send(buffer, rank.index + 2)
        else:
            rank.comm.recv(buffer, rank.index - 2)
            times.append(rank.now_ps)
    return times


@pytest.mark.parametrize("name", ["nvidia", "hpcc"])
def test_two_dcqcn_flows_converge_to_fair_shares(name: str) -> None:
    """Two flows through one 400 Gbit/s uplink, one of which begins 200 us later, have equal rates within 5 % over the second
    half, without a pause."""
    rules = switching(dcqcn(name), quantum_bytes=64 * KIB, buffer_bytes=64 * MIB, alpha=Fraction(8), headroom_bytes=400_000)
    outcome = run(leaf_spine(2, 1, 2, rules), stream, 128, MIB, 200, payload=False)
    times = outcome.results[2:]
    end_ps = min(flow[-1] for flow in times)
    counts = [sum(end_ps // 2 < at_ps <= end_ps for at_ps in flow) for flow in times]
    assert 0.95 <= counts[0] / counts[1] <= 1.05, counts
    assert outcome.total("pause_transitions") == 0
    assert sum(counts) * MIB * 8 * 10**12 / (end_ps - end_ps // 2) > 0.7 * RATE_BPS


@pytest.mark.parametrize("apart", [False, True])
def test_nscc_with_trimming_fills_the_link(apart: bool) -> None:
    """Seven to one into a buffer of a quarter MiB: packets are trimmed, none is lost, payload is exact and the link is full;
    also where trimmed headers travel in a class of their own."""
    marking = Marking(kmin_bytes=55_000, kmax_bytes=165_000, pmax=Fraction(1))
    data = dropping(Recovery.SELECTIVE_REPEAT, control="nscc", trims=True, marking=marking)
    headers = TrafficClass(
        name="headers", priority=7, discipline=Discipline.DROP, recovery=Recovery.SELECTIVE_REPEAT, strict=True
    )
    classes = (data, headers) if apart else (data,)
    rules = switching(*classes, buffer_bytes=250_000, reserved_bytes=0, alpha=Fraction(8))
    outcome, share = incast(star(8, rules), 7, MIB, payload=True)
    assert share >= 0.90, share
    assert outcome.total("trimmed_packets") > 0
    assert outcome.total("dropped_packets") == 0
    assert sum(adapter.statistics().timeouts for adapter in outcome.engine.adapters.values()) == 0


def test_nscc_works_without_recovery() -> None:
    """On a lossless class nothing is kept for sending again, but the window opens all the same as packets are acknowledged."""
    rules = switching(traffic_class(control="nscc", marking=MARKING))
    _, share = incast(star(3, rules), 2, 4 * MIB)
    assert share >= 0.90, share


def test_clear_to_send_needs_no_pause_and_drops_nothing() -> None:
    """Seven to one in a class that may drop, with four chunks admitted at a time: at least 95 % of the link, nothing dropped, and
    never more in the buffer than was admitted."""
    data = dropping(Recovery.SELECTIVE_REPEAT, control="receiver_driven", control_parameters=(("chunks", 4),))
    outcome, share = incast(star(8, switching(data, alpha=Fraction(1))), 7, 16 * MIB)
    assert share >= 0.95, share
    assert outcome.total("dropped_packets") == 0
    hub = max(outcome.engine.switches.values(), key=lambda switch: switch.buffer.peak_used_bytes)
    assert hub.buffer.peak_used_bytes <= 4 * 2 * MIB * 1.03


def test_clear_to_send_admits_each_class_for_itself() -> None:
    """Two classes of the same ranks, with one chunk at a time each, both come to their end, with the link mostly busy."""
    first = dropping(Recovery.SELECTIVE_REPEAT, control="receiver_driven", control_parameters=(("chunks", 1),))
    second = traffic_class(name="other", priority=4, control="receiver_driven", control_parameters=(("chunks", 1),))

    def both(rank: Rank) -> int:
        other = rank.comm.split(0, rank.index, priority=4)
        assert other is not None
        groups = [rank.comm, other]
        buffer = np.broadcast_to(np.zeros(1, np.uint8), (MIB,))
        if rank.index:
            works = [comm.send(buffer, 0, async_op=True) for comm in groups]
        else:
            works = [comm.recv(buffer, source, async_op=True) for source in (1, 2) for comm in groups]
        for work in works:
            work.wait()
        return rank.now_ps

    outcome = run(star(3, switching(first, second, alpha=Fraction(1))), both, payload=False)
    assert outcome.results[0] < 4 * MIB / BYTES_PER_US * US * 1.5


def test_dcqcn_is_too_late_for_an_incast_that_credits_carry() -> None:
    """64 to 1 of 1 MiB through 4 MiB of switch memory, links of 0.2 us: before a CNP can come back the buffer is full, so the
    last message under DCQCN takes over three times as long as under credits of the same memory, which lose nothing."""

    def near(rules: Switching) -> Topology:
        fabric = star(65, rules)
        return replace(fabric, links=tuple(replace(link, latency_ps=200_000) for link in fabric.links))

    lossy = dcqcn("tuned", discipline=Discipline.DROP, recovery=Recovery.SELECTIVE_REPEAT)
    late, _ = incast(near(switching(lossy, buffer_bytes=4 * MIB, reserved_bytes=0, alpha=Fraction(1))), 64, MIB)
    even, share = incast(near(switching(credited(64 * KIB))), 64, MIB)
    tails_us = [max(at_ps for at_ps, _ in outcome.results[0]) / US for outcome in (late, even)]
    print(f"last message: DCQCN {tails_us[0]:.0f} us, credits {tails_us[1]:.0f} us: {tails_us[0] / tails_us[1]:.1f} times")
    assert late.total("dropped_packets") > 0 and even.total("dropped_packets") == 0
    assert share > 0.9
    assert tails_us[0] > 3 * tails_us[1], tails_us


@pytest.mark.parametrize("control", ["none", "nscc", "receiver_driven"])
def test_equal_senders_end_together(control: str) -> None:
    """Four senders of 8 MiB end with Jain's index of at least 0.95 of their goodputs, whatever control runs."""
    parameters = (("chunks", 1),) if control == "receiver_driven" else ()
    outcome, _ = incast(
        star(5, switching(traffic_class(control=control, control_parameters=parameters, marking=MARKING))), 4, 8 * MIB
    )
    assert jain([1 / at_ps for at_ps, _ in outcome.results[0]]) >= 0.95
