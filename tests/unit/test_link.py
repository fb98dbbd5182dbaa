"""LinkMachine without impairments: closed forms, exactly, in integer picoseconds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from emu.fabric.capacity import apportion
from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine, LinkStatistics
from emu.fabric.machine import Machine
from emu.impairments.throttle import Impairment as Throttle
from emu.topologies.graph import Link
from emu.units import duration_ps, parse_rate_bps

GBPS = 10**9
US = 10**6
MS = 10**9


def machine(
    rate_bps: int,
    *,
    latency_ps: int = 0,
    mtu_bytes: int = 4096,
    header_bytes: int = 0,
    planes_bps: tuple[int, ...] = (),
    index: int = 0,
) -> LinkMachine:
    link = Link(
        name="a->b",
        source=0,
        target=1,
        rate_bps=rate_bps,
        latency_ps=latency_ps,
        mtu_bytes=mtu_bytes,
        header_bytes=header_bytes,
        planes_bps=planes_bps,
    )
    return LinkMachine(link=link, index=index, seed=1)


def frame(n_bytes: int, head_ps: int = 0, *, tail_ps: int | None = None, flow: int = 0) -> Frame:
    made = Frame((0,), source_rank=0, target_rank=1, flow=flow, route_flow=0, payload_bytes=n_bytes, head_ps=head_ps)
    made.tail_ps = head_ps if tail_ps is None else tail_ps
    return made


def test_one_frame_on_one_link_takes_latency_plus_size_over_rate() -> None:
    """t = L + S/B, and the head is there after the first MTU."""
    link = machine(400 * GBPS, latency_ps=US)
    sent = frame(1 << 20, 5)
    assert link.receive(sent, 5) == 5
    assert sent.tail_ps == 5 + US + 20_971_520
    assert sent.head_ps == 5 + US + 81_920


@pytest.mark.parametrize("n_hops", [1, 2, 3, 7])
def test_hops_cost_one_mtu_each_and_not_the_whole_chunk(n_hops: int) -> None:
    """Over h equal hops a chunk takes h L + S/B + (h - 1) MTU/B: it cuts through."""
    sent = frame(1 << 20)
    for _ in range(n_hops):
        link = machine(400 * GBPS, latency_ps=US)
        link.receive(sent, sent.head_ps)
        link.validate()
    assert sent.tail_ps == n_hops * US + 20_971_520 + (n_hops - 1) * 81_920


def test_a_slower_hop_sets_the_pace_and_a_faster_one_does_not_help() -> None:
    """400 -> 100 -> 400: the chunk takes its time on the slow link plus one MTU on each of the others."""
    sent = frame(1 << 20)
    for rate_gbps in (400, 100, 400):
        machine(rate_gbps * GBPS).receive(sent, sent.head_ps)
    assert sent.tail_ps == 81_920 + 4 * 20_971_520 + 81_920


@pytest.mark.parametrize(("n_inputs", "rate_gbps"), [(2, 200), (4, 100)])
def test_fan_in_of_equals_loses_nothing(n_inputs: int, rate_gbps: int) -> None:
    """k chunks over k links that add up to the next link's rate end with one MTU each after they end on their own."""
    inputs = [machine(rate_gbps * GBPS) for _ in range(n_inputs)]
    merged = machine(400 * GBPS)
    frames = [frame(1 << 20, flow=flow) for flow in range(n_inputs)]
    for link, sent in zip(inputs, frames, strict=True):
        link.receive(sent, 0)
    for sent in frames:
        merged.receive(sent, sent.head_ps)
    alone_ps = duration_ps(1 << 20, rate_gbps * GBPS)
    assert [sent.tail_ps for sent in frames] == [*[alone_ps + 81_920] * (n_inputs - 1), alone_ps + n_inputs * 81_920]
    assert merged.busy_ps == n_inputs * 20_971_520


def test_fan_in_and_out_again_loses_nothing() -> None:
    """4 x 100 -> 400 -> 4 x 100 costs but the MTUs on the way: no chunk is queued behind the others."""
    frames = [frame(1 << 20, flow=flow) for flow in range(4)]
    merged = machine(400 * GBPS)
    for sent in frames:
        machine(100 * GBPS).receive(sent, 0)
    for sent in frames:
        merged.receive(sent, sent.head_ps)
    for sent in frames:
        machine(100 * GBPS).receive(sent, sent.head_ps)
    alone_ps = 4 * 20_971_520
    assert [sent.tail_ps for sent in frames] == [*[alone_ps + 5 * 81_920] * 3, alone_ps + 8 * 81_920]


@pytest.mark.parametrize("latency_ps", [0, MS, 10 * MS, 50 * MS])
@pytest.mark.parametrize("rate", ["1MB/s", "10MB/s", "100MB/s", "250.5MB/s"])
def test_a_stream_takes_latency_plus_bytes_over_rate(rate: str, latency_ps: int) -> None:
    """A stream of chunks arrives after L + S/B within 1 ps a chunk: latency costs no bandwidth, rates are not cut."""
    rate_bps = parse_rate_bps(rate)
    link = machine(rate_bps, latency_ps=latency_ps)
    last_ps = 0
    for _ in range(256):
        sent = frame(1 << 16)
        link.receive(sent, 0)
        last_ps = sent.tail_ps
    exact_ps = latency_ps + Fraction((1 << 24) * 8 * 10**12, rate_bps)
    assert exact_ps <= last_ps <= exact_ps + 256


def test_no_burst_is_free_from_a_cold_start() -> None:
    """1 MB at 1 MB/s takes a whole second, although the link was idle before."""
    link = machine(parse_rate_bps("1MB/s"))
    sent = frame(10**6, 3600 * 10**12)
    link.receive(sent, sent.head_ps)
    assert sent.tail_ps == 3601 * 10**12


def test_directions_of_a_cable_do_not_share() -> None:
    """Traffic one way leaves the times of the other way as they are."""
    there, back = machine(100 * GBPS), machine(100 * GBPS, index=1)
    for _ in range(5):
        there.receive(frame(1 << 20), 0)
    sent = frame(4096)
    assert back.receive(sent, 0) == 0
    assert sent.tail_ps == duration_ps(4096, 100 * GBPS)


@pytest.mark.parametrize(("header_bytes", "efficiency"), [(82, "0.980"), (26, "0.994"), (0, "1.000")])
def test_headers_are_paid_per_mtu(header_bytes: int, efficiency: str) -> None:
    """Efficiency is arithmetic: 98.0 % for RoCEv2 (82 B) and 99.4 % for InfiniBand (26 B) at 4 KiB."""
    link = machine(400 * GBPS, header_bytes=header_bytes)
    sent = frame(1 << 20)
    link.receive(sent, 0)
    assert link.wire_bytes == (1 << 20) + 256 * header_bytes
    assert sent.tail_ps == duration_ps(link.wire_bytes, 400 * GBPS)
    assert f"{link.payload_bytes / link.wire_bytes:.3f}" == efficiency


def test_an_empty_frame_costs_a_header_and_at_least_a_picosecond() -> None:
    """A frame without payload is one header on the wire; without headers it still moves time on."""
    with_header, without = machine(8 * GBPS, header_bytes=64), machine(8 * GBPS)
    sent = frame(0)
    with_header.receive(sent, 0)
    assert (sent.head_ps, sent.tail_ps, with_header.wire_bytes) == (64_000, 64_000, 64)
    sent = frame(0)
    without.receive(sent, 0)
    assert (sent.head_ps, sent.tail_ps, without.wire_bytes) == (1, 1, 0)
    with_header.validate()
    without.validate()


def test_a_frame_waits_for_the_one_before_it() -> None:
    """The second frame leaves when the first is over, and the wait is counted."""
    link = machine(8 * GBPS)
    link.receive(frame(10_000), 0)
    assert link.receive(frame(10_000, 4_000_000), 4_000_000) == 10_000_000
    assert link.free_ps == 20_000_000
    assert link.queued_ps == 6_000_000


def test_a_short_frame_does_not_overtake_its_flow() -> None:
    """A few bytes right behind a slow chunk of the same flow arrive after it, a frame of another flow may not wait."""
    link = machine(400 * GBPS)
    slow = frame(1 << 20, 0, tail_ps=100 * US)
    link.receive(slow, 0)
    assert slow.tail_ps == 100 * US + 81_920
    short = frame(16, 100 * US, tail_ps=100 * US)
    link.receive(short, 100 * US)
    assert short.tail_ps == slow.tail_ps
    other = frame(16, 100 * US, flow=1)
    link.receive(other, 100 * US)
    assert other.tail_ps < slow.tail_ps


def test_an_impairment_that_comes_later_applies_from_the_next_frame() -> None:
    """A quarter of the rate makes the next frame take four times as long, and what takes its place gives the rate back."""
    link = machine(8 * GBPS)
    sent = [frame(10_000) for _ in range(3)]
    link.receive(sent[0], 0)
    place = link.impair(Throttle(factor="1/4"), None)
    link.receive(sent[1], 0)
    assert link.decided_ps == 50_000_000
    link.replace(place, Throttle(factor=1))
    link.receive(sent[2], 0)
    assert [one.tail_ps for one in sent] == [10_000_000, 50_000_000, 60_000_000]
    link.validate()


def test_statistics_name_every_counter_and_split_planes() -> None:
    """Counters are frozen ints, and the planes' bytes add up to the wire's in proportion to their rates."""
    link = machine(400 * GBPS, planes_bps=(100 * GBPS, 300 * GBPS), header_bytes=10)
    link.receive(frame(4090), 0)
    assert link.statistics() == LinkStatistics(
        name="a->b",
        frames=1,
        payload_bytes=4090,
        wire_bytes=4100,
        resent_bytes=0,
        lost_packets=0,
        busy_ps=82_000,
        queued_ps=0,
        planes_bytes=(1025, 3075),
    )


def test_apportioning_adds_up() -> None:
    """Shares are ints by largest remainder that add up to the total, also for an awkward total and no weight."""
    third = Fraction(1, 3)
    assert apportion(10, (third, third, third)) == (4, 3, 3)
    assert apportion(10, (Fraction(0), Fraction(0))) == (0, 0)
    assert apportion(10, ()) == ()


def test_a_link_is_a_machine_with_nothing_to_poll() -> None:
    """A link decides at once, so it never asks to be woken."""
    link: Machine[LinkStatistics] = machine(GBPS)
    assert link.next_wakeup() is None


def test_validate_finds_bytes_that_nobody_sent() -> None:
    """A counter that is off by one is found."""
    link = machine(GBPS)
    link.receive(frame(100), 0)
    link.wire_bytes += 1
    with pytest.raises(AssertionError, match="nobody sent"):
        link.validate()
