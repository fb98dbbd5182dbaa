"""Balancing and rerouting over whole simulations: what collisions cost, and what a link that goes down does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
from routed import GBPS, KIB, US, engine_of, leaf_spine, permutation, simulated, switching, total_ps, traffic_class

from emu.drivers.packet_engine import PacketEngine
from emu.rank import Rank
from emu.topologies import torus
from emu.topologies.switching import Discipline, Recovery, Switching


def across(n_flows: int, n_bytes: int, chunk_bytes: int | None) -> Callable[[Rank], int]:
    """Rank i of the first leaf sends to rank n + i of the second."""

    def function(rank: Rank) -> int:
        message = np.zeros(n_bytes, np.uint8)
        if rank.index < n_flows:
            rank.comm.send(message, rank.index + n_flows, chunk_bytes=chunk_bytes)
        else:
            rank.comm.recv(message, rank.index - n_flows, chunk_bytes=chunk_bytes)
        return rank.now_ps

    return function


def uplink_loads(engine: PacketEngine, n_bytes: int) -> list[float]:
    """Messages carried by each uplink of the first leaf."""
    up = [port for port in engine.ports.values() if port.link.name.startswith("s0->s")]
    return [port.statistics().payload_bytes / n_bytes for port in up]


def slowdowns(
    n_flows: int, n_links: int, seeds: range, rules: Switching, *, n_bytes: int = 64 * KIB, chunk_bytes: int | None = None
) -> tuple[list[float], list[float]]:
    """By seed: the fullest uplink's load over the fair one, and the time over that of a message alone on its link."""
    topology = leaf_spine(rules, spines=n_links, accelerators_per_leaf=n_flows, uplink_rate=f"{100 * n_flows // n_links}Gbit/s")
    serial_ps = n_bytes * 8 * 10**12 // (100 * GBPS)
    latency_ps = 4 * US // 10
    by_load, by_time = [], []
    with simulated(topology, payload=False) as session:
        for seed in seeds:
            session.begin(seed=seed)
            took_ps = total_ps(session, across(n_flows, n_bytes, chunk_bytes))
            loads = uplink_loads(engine_of(session), n_bytes)
            assert sum(loads) == n_flows
            by_load.append(max(loads) * n_links / n_flows)
            by_time.append((took_ps - latency_ps) / serial_ps)
    return by_load, by_time


# -- collisions ------------------------------------------------------------------------------------


def test_a_collision_of_two_flows_halves_their_rate() -> None:
    """2 flows over 2 uplinks: about half of the seeds collide, and those take twice as long."""
    by_load, by_time = slowdowns(2, 2, range(60), switching())
    assert set(by_load) == {1.0, 2.0}
    assert mean(slowdown == 2 for slowdown in by_load) == pytest.approx(0.5, abs=0.2)
    assert by_time == pytest.approx(by_load, abs=0.2)


def test_eight_flows_over_four_uplinks_take_as_long_as_the_fullest() -> None:
    """ECMP: the mean slowdown is 1.77 over many seeds; over these 20 within three standard errors, by load and by time."""
    by_load, by_time = slowdowns(8, 4, range(20), switching())
    assert mean(by_load) == pytest.approx(1.77, abs=0.3)
    assert by_time == pytest.approx(by_load, abs=0.2)


def test_queue_pairs_divide_the_collisions() -> None:
    """Four queue pairs per connection, dealt whole chunks: mean slowdown 1.38 over many seeds."""
    by_load, by_time = slowdowns(8, 4, range(12), switching(n_queue_pairs=4), n_bytes=256 * KIB, chunk_bytes=64 * KIB)
    assert mean(by_load) == pytest.approx(1.38, abs=0.15)
    assert mean(by_time) == pytest.approx(mean(by_load), abs=0.1)


@pytest.mark.parametrize("policy", ["spray", "adaptive", "static", "flowlet"])
def test_policies_that_spread_have_no_collisions(policy: str) -> None:
    """The same eight flows: slowdown 1.0 in every seed, but for a few packets that queue."""
    by_load, by_time = slowdowns(8, 4, range(4), switching(balancing=policy), n_bytes=256 * KIB)
    assert max(by_load) <= 1.06
    assert max(by_time) <= 1.1


@pytest.mark.parametrize("policy", ["spray", "adaptive"])
@pytest.mark.parametrize("recovery", [Recovery.NONE, Recovery.SELECTIVE_REPEAT])
def test_payload_is_right_out_of_order(policy: str, recovery: Recovery) -> None:
    """Packets that overtake each other are put together again, and none is sent twice."""
    only = traffic_class(recovery=recovery)
    topology = leaf_spine(switching(only, balancing=policy, reorder_packets=64), uplink_rate="100Gbit/s")
    with simulated(topology) as session:
        session.run(permutation(8, 128 * KIB))
        statistics = engine_of(session).adapter_statistics().values()
    assert sum(adapter.resent_packets for adapter in statistics) == 0


# -- a link that goes down -------------------------------------------------------------------------

OUTAGE = "s0->s2=flap,start=2us,down=200us"
KEPT_WAITING_PS = 202 * US


def with_outage(rules: Switching, *impairments: str) -> tuple[int, PacketEngine]:
    """(when an exchange between two leaves is done, the engine) with an uplink down from 2 us to 202 us; payload is checked."""
    with simulated(leaf_spine(rules, spines=2, accelerators_per_leaf=4), impairments=impairments or (OUTAGE,)) as session:
        took_ps = total_ps(session, permutation(4, 128 * KIB))
        return took_ps, engine_of(session)


def assert_nothing_held(engine: PacketEngine) -> None:
    for port in engine.ports.values():
        assert port.holds_bytes == 0 and not port.is_busy
    for switch in engine.switches.values():
        switch.validate()
        assert switch.buffer.used_bytes == 0


@pytest.mark.parametrize("policy", ["ecmp", "static", "flowlet", "adaptive", "spray", "up_down", "planned"])
def test_without_rerouting_packets_wait_until_the_link_is_up(policy: str) -> None:
    """The exchange ends after the outage; nothing is lost or left."""
    took_ps, engine = with_outage(switching(balancing=policy))
    assert took_ps > KEPT_WAITING_PS
    assert_nothing_held(engine)


@pytest.mark.parametrize("policy", ["ecmp", "static", "flowlet", "adaptive", "spray"])
def test_rerouting_leads_around_the_link(policy: str) -> None:
    """5 us after the link went down its traffic takes the other spine: only the packet on its wire waits for it."""
    took_ps, engine = with_outage(switching(balancing=policy, reroute_ps=5 * US))
    done = [port for port in engine.ports.values() if port.link.name == "s0->s2"]
    assert done[0].statistics().payload_bytes < 64 * KIB
    assert took_ps == pytest.approx(KEPT_WAITING_PS, abs=2 * US), "the packet that the link held is the last one"
    assert_nothing_held(engine)


def test_rerouted_recovery_does_not_wait_for_the_packet_on_the_wire() -> None:
    """With selective repeat the one packet that the link holds is sent again by another way: done long before it is up."""
    only = traffic_class(recovery=Recovery.SELECTIVE_REPEAT, timeout_ps=30 * US)
    took_ps, engine = with_outage(switching(only, reroute_ps=5 * US))
    assert took_ps < 100 * US
    assert_nothing_held(engine)


@pytest.mark.parametrize("discipline", list(Discipline))
@pytest.mark.parametrize("reroute_ps", [0, 3 * US, 40 * US])
def test_a_flapping_link_loses_nothing(discipline: Discipline, reroute_ps: int) -> None:
    """Both ways of a cable flap every 20 us for as long as the exchange lasts: all bytes are right, and nothing is left."""
    recovery = Recovery.SELECTIVE_REPEAT if discipline is Discipline.DROP else Recovery.NONE
    only = traffic_class(discipline=discipline, recovery=recovery, credit_bytes=64 * KIB)
    flaps = ("s0->s2=flap,down=8us,up=12us", "s2->s0=flap,down=8us,up=12us", "s3->s1=flap,down=3us,up=4us")
    took_ps, engine = with_outage(switching(only, reroute_ps=reroute_ps), *flaps)
    assert took_ps < 300 * US
    assert_nothing_held(engine)
    assert all(c.dropped_packets == 0 for classes in engine.queue_statistics().values() for c in classes)


def test_a_rank_without_another_way_waits() -> None:
    """Where no path remains, rerouting changes nothing: packets wait for the link."""
    rules = switching(reroute_ps=5 * US)
    took_ps, engine = with_outage(rules, "a0->s0=flap,start=2us,down=200us")
    assert took_ps > KEPT_WAITING_PS
    assert_nothing_held(engine)


def test_a_torus_is_rerouted_too() -> None:
    """Dimension order gives way to the shortest way that is whole."""
    topology = torus.build(torus.Parameters.model_validate({"shape": "4x4", "rate": "100Gbit/s", "latency": "100ns"}))
    outage = "a1->a2=flap,start=2us,down=200us"
    recovery = traffic_class(recovery=Recovery.SELECTIVE_REPEAT, timeout_ps=30 * US)
    times_ps = []
    for reroute_ps in (0, 5 * US):
        fabric = replace(topology, switching=switching(recovery, reroute_ps=reroute_ps))
        with simulated(fabric, impairments=(outage,)) as session:
            times_ps.append(total_ps(session, permutation(1, 128 * KIB)))
    assert times_ps[0] > KEPT_WAITING_PS > 100 * US > times_ps[1]
