"""A port alone: times on the wire, pauses, credits, losses and the watchdog, with a wire that only notes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import pytest

from emu.fabric.frame import Frame
from emu.fabric.packet import Packet
from emu.fabric.port import Port, wire_bytes
from emu.impairments.base import BaseImpairment
from emu.impairments.spec import parse_impairment
from emu.topologies.graph import Link
from emu.topologies.switching import Discipline, Switching, TrafficClass, Watchdog

LATENCY_PS = 10**6
BYTE_PS = 20
"""At 400 Gbit/s."""
PACKET = 4000
LINK = Link(name="s0->a0", source=0, target=1, rate_bps=400 * 10**9, latency_ps=LATENCY_PS, mtu_bytes=1000, header_bytes=10)
WIRE = PACKET + 4 * 10


class Wire:
    """Notes what is sent, and calls the port when it asks to be."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int]] = []
        self.packets: list[Packet] = []
        self.alarms: list[int] = []

    def transmit(self, packet: Packet, link: int) -> None:
        assert link == 5
        self.packets.append(packet)
        self.sent.append((packet.sequence, packet.head_ps, packet.tail_ps))

    def stalled(self, link: int, now_ps: int, end_ps: int) -> None:
        raise AssertionError("no link goes down here")

    def wake_port(self, link: int, time_ps: int) -> None:
        heappush(self.alarms, time_ps)


def rules(*classes: TrafficClass, **options: Any) -> Switching:
    return Switching(
        classes=classes or (traffic(),),
        quantum_bytes=PACKET,
        buffer_bytes=1 << 20,
        alpha=Fraction(1),
        reserved_bytes=0,
        headroom_bytes=1 << 16,
        xon_offset_bytes=0,
        receive_buffer_bytes=1 << 20,
        **options,
    )


def traffic(discipline: Discipline = Discipline.PAUSE, *, priority: int = 0, **options: Any) -> TrafficClass:
    return TrafficClass(name=f"c{priority}", priority=priority, discipline=discipline, **options)


def port_of(switching: Switching, *impairments: BaseImpairment) -> tuple[Port, Wire]:
    wire = Wire()
    placed = tuple((impairment, None) for impairment in impairments)
    return Port(link=LINK, index=5, switching=switching, wire=wire, seed=3, impairments=placed), wire


def packet(sequence: int, *, queue: int = 0, n_bytes: int = PACKET) -> Packet:
    frame = Frame((), source_rank=0, target_rank=1, flow=0, route_flow=0, payload_bytes=n_bytes, head_ps=0)
    made = Packet(
        frame, queue_pair=0, queue=queue, sequence=sequence, offset_bytes=0, payload_bytes=n_bytes, entropy=0, sent_ps=0
    )
    made.ingress, made.held_bytes = 9, 100 + sequence
    return made


def until(port: Port, wire: Wire, time_ps: int) -> None:
    """Wake the port whenever it asked for it, up to a time."""
    while wire.alarms and wire.alarms[0] <= time_ps:
        port.wake(heappop(wire.alarms))


def test_a_packet_cuts_through_with_one_header_for_each_mtu() -> None:
    """Its head is there after one MTU, its tail after all bytes, the next one right behind it."""
    port, wire = port_of(rules())
    port.enqueue(packet(0), 0)
    port.enqueue(packet(1), 0)
    until(port, wire, 10**7)
    first, whole = 1010 * BYTE_PS, WIRE * BYTE_PS
    assert wire.sent == [(0, first + LATENCY_PS, whole + LATENCY_PS), (1, whole + first + LATENCY_PS, 2 * whole + LATENCY_PS)]
    assert port.statistics().busy_ps == 2 * whole
    assert port.statistics().wire_bytes == 2 * WIRE


@pytest.mark.parametrize(("payload", "expected"), [(0, 10), (1, 11), (1000, 1010), (1001, 1021)])
def test_the_bytes_of_a_packet_on_the_wire(payload: int, expected: int) -> None:
    """A header for every MTU that is begun, and one where there is no payload."""
    assert wire_bytes(LINK, payload) == expected


def test_only_a_trimmed_packet_has_the_size_that_trimming_leaves() -> None:
    """An empty message is a header, and a byte where links have none; what is trimmed has ``trim_size``, or a header if more."""
    bare = replace(LINK, header_bytes=0)
    assert [wire_bytes(bare, 0), wire_bytes(bare, 0, 64), wire_bytes(LINK, 0, 64), wire_bytes(LINK, 0, 4)] == [1, 64, 64, 10]
    port, wire = port_of(rules(traffic(Discipline.DROP), trim_bytes=64))
    empty, trimmed = packet(0, n_bytes=0), packet(1, n_bytes=0)
    trimmed.trimmed = True
    port.enqueue(empty, 0)
    port.enqueue(trimmed, 0)
    assert port.holds_bytes == 64
    until(port, wire, 10**7)
    assert port.statistics().wire_bytes == 10 + 64
    assert port.statistics().busy_ps == (10 + 64) * BYTE_PS


def test_the_buffer_is_free_when_the_last_byte_has_left() -> None:
    """Not when the packet begins to leave."""
    port, wire = port_of(rules())
    released: list[tuple[int, ...]] = []
    port.on_release = lambda *what: released.append(what)
    port.enqueue(packet(7), 0)
    until(port, wire, WIRE * BYTE_PS - 1)
    assert released == []
    until(port, wire, WIRE * BYTE_PS)
    assert released == [(9, 0, 107, WIRE * BYTE_PS)]


def test_a_pause_stops_its_queue_only_and_the_wait_is_counted() -> None:
    """The packet on the wire goes on; the other class sends; what waited is PortXmitWait."""
    port, wire = port_of(rules(traffic(priority=0), traffic(priority=1)))
    port.enqueue(packet(0), 0)
    port.enqueue(packet(1), 0)
    port.enqueue(packet(2, queue=1), 0)
    port.pause(0, True, 1)
    until(port, wire, 10**7)
    assert [sequence for sequence, _, _ in wire.sent] == [0, 2]
    port.pause(0, False, 10**7)
    assert wire.sent[-1][0] == 1
    first, second = port.queue_statistics(10**7)
    assert (first.pause_frames, first.pause_transitions, first.pause_ps) == (1, 1, 10**7 - WIRE * BYTE_PS)
    assert first.wait_ps == 10**7 - WIRE * BYTE_PS
    assert (second.pause_frames, second.wait_ps) == (0, 0)


def test_credits_are_spent_in_wire_bytes_and_a_packet_waits_until_it_fits_whole() -> None:
    """Credits for one packet and a half let one go; the missing half lets the second go."""
    port, wire = port_of(rules(traffic(Discipline.CREDIT, credit_bytes=WIRE * 3 // 2)))
    port.enqueue(packet(0), 0)
    port.enqueue(packet(1), 0)
    until(port, wire, 10**7)
    assert len(wire.sent) == 1
    assert port.credits == [WIRE // 2]
    port.grant(0, WIRE // 2 - 1, 10**7)
    assert len(wire.sent) == 1
    port.grant(0, 1, 2 * 10**7)
    assert len(wire.sent) == 2
    assert port.credits == [0]
    assert port.queue_statistics(2 * 10**7)[0].wait_ps == 2 * 10**7 - WIRE * BYTE_PS


def test_weighted_classes_share_by_weight_and_a_strict_one_goes_first() -> None:
    """Of 13 packets that wait, the strict one goes next, then three to one."""
    port, wire = port_of(rules(traffic(priority=0, weight=3), traffic(priority=1), traffic(priority=2, strict=True)))
    for number in range(8):
        port.enqueue(packet(number, queue=0), 0)
        port.enqueue(packet(number, queue=1), 0)
    port.enqueue(packet(0, queue=2), 0)
    until(port, wire, 9 * WIRE * BYTE_PS)
    order = [sent.queue for sent in wire.packets]
    assert order[1] == 2
    assert abs(order[2:].count(0) - 6) <= 1


def test_a_lost_packet_frees_its_buffer_and_its_credits() -> None:
    """The second of four, of which the sixth MTU is hit, never arrives; what it took of the far buffer is not taken."""
    lossy = parse_impairment("x=loss,packets=5")[1]
    port, wire = port_of(rules(traffic(Discipline.CREDIT, credit_bytes=10 * WIRE)), lossy)
    released: list[int] = []
    port.on_release = lambda link, queue, n_bytes, now_ps: released.append(n_bytes)
    for number in range(4):
        port.enqueue(packet(number), 0)
    until(port, wire, 10**8)
    assert [sequence for sequence, _, _ in wire.sent] == [0, 2, 3]
    assert len(released) == 4
    assert port.credits == [7 * WIRE]
    assert port.lost_packets == 1


def test_a_link_that_repeats_loses_nothing() -> None:
    """With ``link_retry`` the damaged packet comes a round trip of the link later, and those behind it after it."""
    lossy = parse_impairment("x=loss,packets=5")[1]
    port, wire = port_of(rules(link_retry=True), lossy)
    for number in range(4):
        port.enqueue(packet(number), 0)
    until(port, wire, 10**8)
    assert [sequence for sequence, _, _ in wire.sent] == [0, 1, 2, 3]
    tails = [tail for _, _, tail in wire.sent]
    gaps = [b - a for a, b in pairwise(tails)]
    assert gaps == [2 * WIRE * BYTE_PS + 2 * LATENCY_PS, WIRE * BYTE_PS, WIRE * BYTE_PS]
    assert port.statistics().resent_bytes == WIRE


@pytest.mark.parametrize("rule", ["pattern=1", "packets=0+4"])
def test_a_packet_that_is_sent_again_is_not_a_new_one(rule: str) -> None:
    """A loss at the first sending takes a packet once, however many others the link has sent in between."""
    port, wire = port_of(rules(), parse_impairment(f"x=loss,{rule}")[1])
    for sending in (0, 1):
        for number in range(2):
            again = packet(number)
            again.sending = sending
            port.enqueue(again, 0)
    until(port, wire, 10**8)
    assert [sequence for sequence, _, _ in wire.sent] == [0, 1]
    assert port.lost_packets == 2


def test_flows_are_counted_apart() -> None:
    """The first packet of each queue pair is lost, whoever was first on the link."""
    port, wire = port_of(rules(), parse_impairment("x=loss,packets=0")[1])
    for number in range(2):
        for entropy in (7, 8):
            one = packet(number)
            one.entropy = entropy
            port.enqueue(one, 0)
    until(port, wire, 10**8)
    assert [sequence for sequence, _, _ in wire.sent] == [1, 1]


def test_delays_never_let_a_packet_overtake() -> None:
    """However much the latency varies, the next head comes after the tail before it."""
    port, wire = port_of(rules(), parse_impairment("x=jitter,distribution=uniform,bound=5us,interval=1ns")[1])
    for number in range(30):
        port.enqueue(packet(number, n_bytes=PACKET if number % 3 else 100), 0)
    until(port, wire, 10**9)
    assert [sequence for sequence, _, _ in wire.sent] == list(range(30))
    assert all(tail < head for (_, _, tail), (_, head, _) in pairwise(wire.sent))


def test_the_watchdog_drops_what_a_storm_holds_and_what_comes_until_it_is_over() -> None:
    """Their buffer is free at once; afterwards the queue sends as before."""
    port, wire = port_of(rules(watchdog=Watchdog(detection_ps=10**7, restoration_ps=10**6)))
    released: list[int] = []
    port.on_release = lambda link, queue, n_bytes, now_ps: released.append(n_bytes)
    port.pause(0, True, 0)
    port.enqueue(packet(0), 1)
    port.enqueue(packet(1), 2)
    until(port, wire, 10**7 - 1)
    assert released == []
    until(port, wire, 10**7)
    assert released == [100, 101] and port.holds_bytes == 0
    port.enqueue(packet(2), 2 * 10**7)
    assert released == [100, 101, 102]
    port.pause(0, False, 3 * 10**7)
    until(port, wire, 3 * 10**7 + 10**6)
    port.enqueue(packet(3), 4 * 10**7)
    assert [sequence for sequence, _, _ in wire.sent] == [3]
    counted = port.queue_statistics(4 * 10**7)[0]
    assert (counted.watchdog_events, counted.watchdog_packets, counted.dropped_packets) == (1, 3, 0)
    assert counted.pause_ps == 10**7


def test_nothing_waits_any_more_in_a_queue_that_the_watchdog_emptied() -> None:
    """PortXmitWait ends with the storm's detection, however long the pause lasts and whatever is on the wire then."""
    both = traffic(priority=0), traffic(priority=1)
    port, wire = port_of(rules(*both, watchdog=Watchdog(detection_ps=10**7, restoration_ps=10**6)))
    port.pause(0, True, 0)
    port.enqueue(packet(0), 10**6)
    port.enqueue(packet(1, queue=1), 10**7 - 1)
    until(port, wire, 5 * 10**7)
    assert len(wire.sent) == 1
    assert port.queue_statistics(5 * 10**7)[0].wait_ps == 9 * 10**6


def test_lanes_wait_side_by_side_so_a_class_waits_as_long_as_its_longest() -> None:
    """Two lanes paused for overlapping times count no more time than has passed, but both their frames."""
    port, _ = port_of(rules(n_lanes=2))
    port.pause(0, True, 0)
    port.enqueue(packet(0, queue=0), 0)
    port.pause(1, True, 400)
    port.enqueue(packet(1, queue=1), 400)
    port.pause(1, False, 500)
    counted = port.queue_statistics(1000)[0]
    assert (counted.pause_ps, counted.wait_ps, counted.pause_frames, counted.pause_transitions) == (1000, 1000, 2, 2)
