"""Pathologies of full links: victims, storms, congestion trees, rings on one adapter, alltoall orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packet_cases import (
    BYTES_PER_US,
    KIB,
    MIB,
    MS,
    US,
    Flow,
    Outcome,
    assert_at_rest,
    credited,
    dropping,
    exchange,
    leaf_spine,
    ring,
    run,
    star,
    switching,
    traffic_class,
)

from emu.rank import Rank
from emu.topologies.graph import Topology
from emu.topologies.switching import Recovery, Switching, TrafficClass, Watchdog


def finish_us(fabric: Topology, flows: list[Flow], **options: Any) -> tuple[list[float], Outcome]:
    """When each flow was complete, us."""
    outcome = run(fabric, exchange, flows, False, payload=False, **options)
    assert_at_rest(outcome)
    times = [list(result) for result in outcome.results]
    return [times[target].pop(0)[0] / US for _, target, _ in flows], outcome


def test_two_rings_on_one_adapter_run_at_exactly_half() -> None:
    """Both rings enter node 1 by its adapter A: half the rate; B gets no byte; what feeds A is paused; nothing is dropped."""
    a0, b0, a1, b1 = range(4)
    n_bytes = 8 * MIB
    good, _ = finish_us(star(4, switching()), [(a0, a1, n_bytes), (b0, b1, n_bytes), (a1, a0, n_bytes), (b1, b0, n_bytes)])
    bad, outcome = finish_us(star(4, switching()), [(a0, a1, n_bytes), (b0, a1, n_bytes), (a1, a0, n_bytes), (b1, b0, n_bytes)])
    assert max(good) / max(bad) == pytest.approx(0.5, abs=0.02)
    assert outcome.queues("s0->a3")[0].packets == 0
    assert outcome.paused_links() == {"a0->s0", "a1->s0"}
    assert outcome.total("dropped_packets") == 0


def _phased(rank: Rank, n_bytes: int, shifted: bool) -> int:
    """An alltoall in phases: in phase p all send to rank p, or each to the one p further on."""
    n, me = rank.world_size, rank.index
    for phase in range(n):
        flows = [(source, (source + phase) % n if shifted else phase, n_bytes) for source in range(n)]
        exchange(rank, [flow for flow in flows if flow[0] != flow[1] and me in flow[:2]], False)
        rank.comm.barrier()
    return rank.now_ps


def test_an_alltoall_that_starts_at_rank_0_makes_incast_and_a_shifted_one_does_not() -> None:
    """All to one at a time takes n times as long as each to another (7 MiB over the link against 56), and only it pauses."""
    n, n_bytes = 8, MIB
    times, paused = {}, {}
    for shifted in (True, False):
        outcome = run(star(n, switching(buffer_bytes=6 * MIB)), _phased, n_bytes, shifted, payload=False)
        assert_at_rest(outcome)
        times[shifted] = max(outcome.results) / US
        paused[shifted] = len(outcome.paused_links())
    between_us = max(run(star(n, switching()), _phased, 1, True, payload=False).results) / US
    assert times[True] - between_us == pytest.approx((n - 1) * n_bytes / BYTES_PER_US, rel=0.05)
    assert times[False] - between_us == pytest.approx(n * (n - 1) * n_bytes / BYTES_PER_US, rel=0.05)
    assert times[False] / times[True] > 4
    assert (paused[True], paused[False]) == (0, n)


VICTIM: Flow = (1, 7, 2 * MIB)
CROSSING: Flow = (0, 6, 4 * MIB)
LOCAL: list[Flow] = [(source, 6, 4 * MIB) for source in range(8, 12)]
"""Two leaves of six hosts and one spine: 0 and 1 share the uplink; 6 is also sent to by its neighbours."""


def _victim_us(data: TrafficClass, *, incast: bool) -> tuple[float, Outcome]:
    fabric = leaf_spine(2, 1, 6, switching(data, buffer_bytes=6 * MIB))
    times, outcome = finish_us(fabric, [VICTIM, CROSSING, *(LOCAL if incast else [])])
    return times[0], outcome


def test_with_pauses_a_flow_that_shares_an_uplink_with_an_incast_is_its_victim() -> None:
    """Its own target is idle, yet it gets no more than the paused flow beside it: over twice the time."""
    alone_us, _ = _victim_us(traffic_class(), incast=False)
    victim_us, outcome = _victim_us(traffic_class(), incast=True)
    assert victim_us > 2 * alone_us
    assert {"s2->s1", "s0->s2", "a1->s0"} <= outcome.paused_links()
    assert "a7->s1" not in outcome.paused_links()
    assert outcome.total("dropped_packets") == 0


def test_with_credits_the_congestion_tree_has_the_same_victim() -> None:
    """Head-of-line blocking: the first packet of a lane without credits holds up those behind it, up to the victim's host."""
    alone_us, _ = _victim_us(credited(), incast=False)
    victim_us, outcome = _victim_us(credited(), incast=True)
    assert victim_us > 2 * alone_us
    waits = {name: outcome.queues(name)[0].wait_ps for name in ("s2->s1", "s0->s2", "a1->s0", "s1->a7")}
    assert all(waits[name] > 0 for name in ("s2->s1", "s0->s2", "a1->s0"))
    assert waits["s1->a7"] == 0


def test_where_packets_are_dropped_instead_the_victim_goes_on() -> None:
    """Loss falls on those who overfill the queue; the other flow keeps its share of the uplink."""
    data = dropping(Recovery.SELECTIVE_REPEAT, timeout_ps=100 * US)
    alone_us, _ = _victim_us(data, incast=False)
    victim_us, outcome = _victim_us(data, incast=True)
    assert victim_us < 1.2 * alone_us
    assert outcome.total("dropped_packets") > 0


STUCK = 4
STORM_PS = 2 * MS
FLOWS: dict[str, Flow] = {
    "to the stuck host": (0, STUCK, 4 * MIB),
    "over the same uplink": (1, 5, 2 * MIB),
    "from the stuck host": (STUCK, 2, 2 * MIB),
    "in the other leaf": (2, 3, 2 * MIB),
    "in the same leaf": (6, 7, 2 * MIB),
}


def _storm(watchdog: Watchdog | None) -> tuple[dict[str, float], Outcome]:
    """Host 4 pauses its leaf from 20 us on for 2 ms, on two leaves of four hosts and one spine."""
    data = traffic_class(recovery=Recovery.GO_BACK_N, timeout_ps=300 * US)
    rules: Switching = switching(data, buffer_bytes=4 * MIB, watchdog=watchdog)
    fabric = leaf_spine(2, 1, 4, rules)
    nodes = list(fabric.nodes)
    nodes[STUCK] = replace(nodes[STUCK], pause_storm=(20 * US, STORM_PS))
    times, outcome = finish_us(replace(fabric, nodes=tuple(nodes)), list(FLOWS.values()))
    return dict(zip(FLOWS, times, strict=True)), outcome


def test_a_storm_spreads_to_all_who_share_a_link_with_its_flows_until_the_watchdog_ends_it() -> None:
    """Without a watchdog the victim waits for the storm's end; with it for the detection time; others never notice.

    Only what the watchdog dropped is lost, and comes again when the host has recovered.
    """
    lasts_us = STORM_PS / US
    free_us = 2 * MIB / BYTES_PER_US
    bare, outcome = _storm(None)
    assert bare["over the same uplink"] > lasts_us
    assert {"s1->a4", "s2->s1", "s0->s2", "a0->s0", "a1->s0"} <= outcome.paused_links()
    assert outcome.total("watchdog_events") == outcome.total("dropped_packets") == 0
    refreshes = outcome.queues("s1->a4")[0].pause_frames
    assert refreshes == 1 + STORM_PS // (65_535 * 512 * 10**12 // (2 * 400 * 10**9))

    watched, outcome = _storm(Watchdog(detection_ps=200 * US, restoration_ps=200 * US))
    assert watched["over the same uplink"] < 0.5 * lasts_us
    assert outcome.queues("s1->a4")[0].watchdog_events == 1
    assert outcome.total("watchdog_events") == 1, "nearest to the host is enough"
    assert outcome.total("watchdog_packets") > 0
    assert outcome.total("dropped_packets") == 0
    for times in (bare, watched):
        assert times["to the stuck host"] > lasts_us
        for name in ("from the stuck host", "in the other leaf", "in the same leaf"):
            assert times[name] < 1.2 * free_us, name


def test_a_flapping_uplink_recovers_and_nothing_is_lost() -> None:
    """Down for 50 us of every 150: the flow takes longer, no packet is dropped, every byte is right."""
    fabric = leaf_spine(2, 1, 2, switching(quantum_bytes=8 * KIB))
    flows: list[Flow] = [(0, 2, MIB), (1, 3, MIB)]
    calm = run(fabric, exchange, flows)
    flapping = run(fabric, exchange, flows, impair=["s0->s2=flap,up=20us,down=50us,start=5us"])
    for outcome in (calm, flapping):
        assert_at_rest(outcome)
        assert all(right for times in outcome.results for _, right in times)
        assert outcome.total("dropped_packets") == 0
    assert max(flapping.results[2])[0] > 2 * max(calm.results[2])[0]


def _slow_forwarder(pause_storm: tuple[int, int] | None) -> Outcome:
    """Rank 1 drains slowly what 0 and 2 send to it, and forwards to 2, which drains still more slowly; it may be stuck."""
    rules = switching(quantum_bytes=4 * KIB, buffer_bytes=MIB, headroom_bytes=180_000, receive_buffer_bytes=200_000)
    fabric = ring(5, rules)
    nodes = list(fabric.nodes)
    nodes[1] = replace(nodes[1], drain_rate_bps=100 * 10**9, pause_storm=pause_storm)
    nodes[2] = replace(nodes[2], drain_rate_bps=10 * 10**9)
    flows: list[Flow] = [(0, 1, 600 * KIB), (0, 2, 600 * KIB), (2, 1, 600 * KIB)]
    outcome = run(replace(fabric, nodes=tuple(nodes)), exchange, flows)
    assert_at_rest(outcome)
    assert all(right for times in outcome.results for _, right in times)
    assert outcome.total("dropped_packets") == 0
    assert all(adapter.statistics().discarded_packets == 0 for adapter in outcome.engine.adapters.values())
    return outcome


def test_a_forwarding_rank_that_drains_slowly_loses_nothing() -> None:
    """Its receive buffer and its shared buffer pause the same senders, and neither lets them go while the other holds them.

    No receive buffer ever holds more than it has.
    """
    outcome = _slow_forwarder(None)
    assert outcome.total("pause_frames") > 0
    assert all(0 < outcome.engine.adapters[rank].statistics().peak_receive_bytes <= 200_000 for rank in (1, 2))


def test_a_storm_lasts_as_long_as_it_should_at_a_rank_that_forwards() -> None:
    """Whatever its buffers do meanwhile: what sends to the stuck rank is paused for all of the storm."""
    outcome = _slow_forwarder((20 * US, MS))
    for link in ("a0->a1", "a2->a1"):
        assert outcome.queues(link)[0].pause_ps >= MS - 2 * US, link
