"""LinkMachine under impairments: capacity, delay and loss in closed form, exactly, in integer picoseconds."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest

from emu.errors import ConfigError
from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine
from emu.impairments.base import BaseImpairment, Capacity, FrameKey
from emu.impairments.spec import impairment_class, parse_impairment
from emu.topologies.graph import Link

US = 10**6
MS = 10**9
S = 10**12
PACKET_PER_US = 8 * 1000 * 10**6
"""With an MTU of 1000 bytes, one packet takes 1 us."""


def machine(*impairments: str, rate_bps: int = PACKET_PER_US, latency_ps: int = 0, mtu_bytes: int = 1000) -> LinkMachine:
    """``impairments`` as KIND,key=value or #PLANE=KIND,...; two planes that carry half each."""
    placed = []
    for text in impairments:
        plane, impairment = parse_impairment(text if text.startswith("#") else f"*={text}")
        placed.append((impairment, int(plane[1:]) if plane.startswith("#") else None))
    link = Link(
        name="a->b",
        source=0,
        target=1,
        rate_bps=rate_bps,
        latency_ps=latency_ps,
        mtu_bytes=mtu_bytes,
        planes_bps=(rate_bps // 2, rate_bps // 2),
    )
    return LinkMachine(link=link, index=0, seed=1, impairments=tuple(placed))


def send(link: LinkMachine, n_bytes: int, head_ps: int = 0, *, tail_ps: int | None = None, flow: int = 0) -> Frame:
    frame = Frame((0,), source_rank=0, target_rank=1, flow=flow, route_flow=0, payload_bytes=n_bytes, head_ps=head_ps)
    frame.tail_ps = head_ps if tail_ps is None else tail_ps
    start_ps = link.receive(frame, head_ps)
    assert head_ps <= start_ps < frame.head_ps <= frame.tail_ps
    link.validate()
    return frame


def test_none_is_the_same_as_nothing() -> None:
    """A link under ``none`` gives the times of a link without impairments."""
    assert send(machine("none"), 4000).tail_ps == send(machine(), 4000).tail_ps == 4 * US


def test_an_impairment_that_does_nothing_leaves_the_rule_as_it_is() -> None:
    """The impaired way of computing gives the plain link's times, for solid and for sparse frames."""
    plain, idle = machine(), machine("latency,added=0us", "throttle,factor=1")
    for head_ps, tail_ps, n_bytes in [(0, 0, 4000), (US, 9 * US, 2000), (US, 12 * US, 500), (20 * US, 22 * US, 3000)]:
        wanted = send(plain, n_bytes, head_ps, tail_ps=tail_ps, flow=head_ps)
        got = send(idle, n_bytes, head_ps, tail_ps=tail_ps, flow=head_ps)
        assert (got.head_ps, got.tail_ps) == (wanted.head_ps, wanted.tail_ps)
    assert idle.statistics() == plain.statistics()


def test_added_latency_moves_head_and_tail_and_costs_no_bandwidth() -> None:
    """A stream arrives later by what is added, once."""
    link = machine("latency,added=1ms", "latency,added=2ms", latency_ps=US)
    frames = [send(link, 4000) for _ in range(10)]
    assert frames[0].head_ps == 2 * US + 3 * MS
    assert frames[-1].tail_ps == 40 * US + US + 3 * MS


def test_a_scheduled_throttle_is_integrated_exactly() -> None:
    """150 MB at 100 MB/s, 10 MB/s from 0.5 s to 2.5 s: 50 + 20 + 80 MB take 3.3 s, within 1 ps a chunk."""
    link = machine("throttle,factor=0.1,from=0.5s,until=2.5s", rate_bps=800 * 10**6)
    last_ps = 0
    for _ in range(150):
        last_ps = send(link, 10**6).tail_ps
    assert 0 <= last_ps - 3_300_000_000_000 <= 150


def test_one_frame_may_straddle_every_step() -> None:
    """The same 150 MB as a single chunk take 3.3 s too."""
    link = machine("throttle,factor=0.1,from=0.5s,until=2.5s", rate_bps=800 * 10**6)
    assert send(link, 150 * 10**6).tail_ps == 3_300_000_000_000


def test_a_slow_arrival_keeps_only_the_rate_after_a_step() -> None:
    """100 bytes at 50 B/s into 100 B/s that falls to 10 B/s after 1 s: the 50 still to come take 5 s more."""
    link = machine("throttle,factor=0.1,from=1s", rate_bps=800, mtu_bytes=1)
    assert send(link, 100, 20 * MS, tail_ps=2 * S).tail_ps == 6 * S


def test_a_flap_makes_a_frame_wait_half_sent() -> None:
    """15 ms of bytes over a link that is down from 10 to 20 ms end at 25 ms, and the outage is not busy."""
    link = machine("flap,down=10ms,up=10ms")
    assert send(link, 15_000_000).tail_ps == 25 * MS
    assert link.busy_ps == 15 * MS


def test_a_frame_that_comes_while_the_link_is_down_leaves_when_it_is_up() -> None:
    """What arrives at 12 ms leaves at 20 ms; the wait counts as queued."""
    link = machine("flap,down=10ms,up=10ms")
    assert send(link, 1000, 12 * MS).tail_ps == 20 * MS + US
    assert link.queued_ps == 8 * MS


def test_a_frame_outlasts_many_outages() -> None:
    """2.5 ms of bytes, down every other millisecond, need three stretches."""
    assert send(machine("flap,down=1ms,up=1ms"), 2_500_000).tail_ps == 4 * MS + MS // 2


def test_a_lost_plane_lowers_the_sum_and_carries_nothing() -> None:
    """With one of two planes down the link has half its rate, and all bytes go over the other."""
    link = machine("#1=flap,down=1s")
    assert send(link, 4000).tail_ps == 8 * US
    assert link.statistics().planes_bytes == (4000, 0)


def test_capacity_factors_multiply() -> None:
    """Half of a half on the link and half on one of two planes leaves 3/16 of the rate."""
    link = machine("throttle,factor=0.5", "throttle,factor=1/2", "#0=throttle,factor=0.5")
    assert send(link, 3000).tail_ps == 16 * US
    assert link.statistics().planes_bytes == (1000, 2000)


def test_one_more_impairment_multiplies_with_the_others() -> None:
    """Another half on a link at half rate leaves a quarter."""
    link = machine("throttle,factor=0.5")
    link.impair(impairment_class("throttle")(factor="1/2"), None)
    assert send(link, 1000).tail_ps == 4 * US


def test_a_link_that_never_comes_up_is_an_error_and_not_a_hang() -> None:
    """Capacity 0 for ever raises ConfigError."""

    class Dead(BaseImpairment):
        @property
        def changes_capacity(self) -> bool:
            return True

        def capacity(self, seed: int, link: int, now_ps: int) -> Capacity:
            return Capacity(Fraction(0), None)

    link = LinkMachine(link=machine().link, index=0, seed=1, impairments=((Dead(), None),))
    with pytest.raises(ConfigError, match="for ever"):
        send(link, 1)


def test_a_lost_packet_is_sent_again_with_all_behind_it() -> None:
    """Packet 1 of 4 is lost at 2 us; with 10 us timeout 3 packets go again at 12 us and end at 15 us."""
    link = machine("loss,packets=1,timeout=10us")
    sent = send(link, 4000)
    assert (sent.head_ps, sent.tail_ps) == (US, 15 * US)
    assert (link.lost_packets, link.resent_bytes, link.wire_bytes, link.busy_ps) == (1, 3000, 7000, 7 * US)
    assert link.free_ps == 4 * US


def test_the_sender_ends_its_pass_before_it_goes_back() -> None:
    """With a timeout shorter than the rest of the chunk the resend begins when the pass is over."""
    assert send(machine("loss,packets=0,timeout=1us"), 4000).tail_ps == 8 * US


def test_each_loss_waits_for_the_timeout_of_what_lost_it() -> None:
    """Two lossy impairments lose packet 1 with 10 us and packet 6 (the next chunk's packet 2) with 5 us."""
    link = machine("loss,packets=1,timeout=10us", "loss,packets=6,timeout=5us")
    assert send(link, 4000).tail_ps == 15 * US
    assert send(link, 4000).tail_ps == (15 + 3 + 5 + 2) * US
    assert link.lost_packets == 2


def test_a_packet_may_be_lost_again() -> None:
    """Each sending counts anew: a packet that is lost three times costs three timeouts."""

    class Thrice(BaseImpairment):
        @property
        def loses(self) -> bool:
            return True

        @property
        def timeout_ps(self) -> int:
            return 10 * US

        def loses_packet(self, seed: int, key: FrameKey, packet: int, attempt: int) -> bool:
            return packet == 1 and attempt < 3

    link = LinkMachine(link=machine().link, index=0, seed=1, impairments=((Thrice(), None),))
    assert send(link, 4000).tail_ps == (2 + 10 + 1 + 10 + 1 + 10 + 3) * US
    assert link.resent_bytes == 9000


def test_a_packet_that_is_always_lost_is_an_error_and_not_a_hang() -> None:
    """A packet that every sending loses raises ConfigError, which names the link and the packet."""

    class Always(BaseImpairment):
        @property
        def loses(self) -> bool:
            return True

        def loses_packet(self, seed: int, key: FrameKey, packet: int, attempt: int) -> bool:
            return packet == 2

    link = LinkMachine(link=machine().link, index=0, seed=1, impairments=((Always(), None),))
    with pytest.raises(ConfigError, match="link a->b lost packet 2 of a flow 1000 times running"):
        send(link, 4000)


def test_other_flows_use_the_wire_during_a_timeout_and_keep_off_the_resend() -> None:
    """While flow 0 waits others are served in their turn, interrupted from 14 to 15 us where flow 0 sends again."""
    link = machine("loss,packets=3,timeout=10us")
    assert send(link, 4000, flow=0).tail_ps == 15 * US
    assert send(link, 3000, 4 * US, flow=1).tail_ps == 7 * US
    assert send(link, 3000, 13 * US, flow=2).tail_ps == 17 * US
    assert link.free_ps == 17 * US


def test_later_frames_of_the_flow_wait_for_the_recovery_and_heads_stay_in_order() -> None:
    """The next frame of the flow follows the recovered tail; its head keeps its turn, as a promise."""
    link = machine("loss,packets=1,timeout=10us")
    first = send(link, 4000)
    second = send(link, 2000, 4 * US)
    third = send(link, 2000, 5 * US)
    assert first.tail_ps == 15 * US
    assert (second.tail_ps, third.tail_ps) == (17 * US, 19 * US)
    assert first.head_ps <= second.head_ps <= third.head_ps


def test_a_pattern_repeats_over_the_packets_of_a_flow_and_not_over_chunks() -> None:
    """Pattern 00010 loses packets 3, 8, 13 ... of a flow, however it is cut into chunks; payload arrives once."""
    lost = []
    for cut in ((10, 10), (4, 4, 4, 4, 4), (1,) * 20):
        link = machine("loss,pattern=00010,timeout=1us")
        for n_packets in cut:
            send(link, n_packets * 1000)
        assert link.payload_bytes == 20_000
        lost.append(link.lost_packets)
    assert lost == [2, 4, 4]


def test_a_capacity_step_inside_a_resend_counts() -> None:
    """The resend at 12 us meets an outage from 13 to 20 us and ends 7 us later."""
    link = machine("loss,packets=1,timeout=10us", "flap,down=7us,start=13us")
    assert send(link, 4000).tail_ps == 22 * US


def test_a_slow_frame_loses_its_packet_when_that_packet_comes() -> None:
    """A chunk that takes 40 us to arrive loses its last packet at its end, so the resend is after that."""
    link = machine("loss,packets=3,timeout=10us")
    assert send(link, 4000, 0, tail_ps=40 * US).tail_ps == (40 + 1 + 10 + 1) * US


def test_jitter_keeps_order_and_the_far_end_at_the_rate() -> None:
    """However the draws fall, frames arrive in order and never closer together than the link can carry them."""
    link = machine("jitter,bound=50us,interval=1us")
    frames = [send(link, 2000, 2 * US * number, flow=number % 3) for number in range(100)]
    gaps = [later.tail_ps - earlier.tail_ps for earlier, later in pairwise(frames)]
    assert min(gaps) == 2 * US
    assert max(gaps) > 2 * US
    assert all(frame.tail_ps - frame.head_ps == US for frame in frames)


def test_outages_are_counted_once_each_with_the_time_that_was_lost_to_them() -> None:
    """A frame is cut by one outage, a second one comes during the next, and a third waits behind that and meets none."""
    link = machine("flap,down=10ms,up=10ms")
    send(link, 15_000 * 1000)  # cut from 10 to 20 ms
    send(link, 1000, 35 * MS)  # down from 30 to 40 ms
    send(link, 1000, 36 * MS)
    counted = link.statistics()
    assert (counted.n_outages, counted.stalled_ps) == (2, 15 * MS)
    assert counted.busy_ps == 15 * MS + 2 * US


def test_time_on_the_way_is_the_latency_and_what_is_added() -> None:
    """A link's own counter of delays has its latency for every frame, and what an impairment adds."""
    plain, longer = machine(latency_ps=US), machine("latency,added=2us", latency_ps=US)
    for link in (plain, longer):
        send(link, 4000)
        send(link, 4000, 9 * US)
    assert (plain.statistics().latency_ps, longer.statistics().latency_ps) == (2 * US, 6 * US)
