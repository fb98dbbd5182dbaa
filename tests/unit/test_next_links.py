"""NextLinks: what is offered while links are up, down, and known to be down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.errors import ConfigError
from emu.fabric.next_links import NextLinks
from emu.impairments.flap import Impairment as Flap
from emu.impairments.throttle import Impairment as Throttle
from emu.topologies import clos, ring, torus
from emu.topologies.graph import Topology

US = 10**6
FABRIC = clos.build(clos.Parameters(leaves=2, spines=2, accelerators_per_leaf=2))
GRID = torus.build(torus.Parameters.model_validate({"shape": "4x4"}))
FLAP = Flap.model_validate({"start": "10us", "down": "20us", "up": "30us"})
"""Down from 10 to 30 us, from 60 to 80 us, and so on."""


def named(topology: Topology, *names: str) -> tuple[int, ...]:
    links = [link.name for link in topology.links]
    return tuple(links.index(name) for name in names)


def links(topology: Topology = FABRIC, *, reroute_ps: int = 5 * US, **flaps: str) -> NextLinks:
    """With FLAP on the links that are given, as any=name."""
    impairments = {named(topology, name)[0]: ((FLAP, None),) for name in flaps.values()}
    return NextLinks(topology, seed=0, impairments=impairments, reroute_ps=reroute_ps)


LEAF = FABRIC.node_index("s0")
BOTH = named(FABRIC, "s0->s2", "s0->s3")


@pytest.mark.parametrize(
    ("now_ps", "is_offered"),
    [(0, True), (10 * US, True), (15 * US - 1, True), (15 * US, False), (35 * US - 1, False), (35 * US, True), (65 * US, False)],
)
def test_a_link_is_left_out_while_it_is_known_to_be_down(now_ps: int, is_offered: bool) -> None:
    """From 5 us after it goes down until 5 us after it is up; the other uplink is there all the time."""
    found = links(a="s0->s2").of(LEAF, 2, now_ps)
    assert found == (BOTH if is_offered else BOTH[1:])


def test_nodes_upstream_leave_out_a_spine_that_has_no_way_down() -> None:
    """A leaf does not send to the spine whose link to the target's leaf is down, but does for its own side's targets."""
    known = links(a="s2->s1")
    assert known.of(LEAF, 2, 20 * US) == BOTH[1:]
    assert known.of(LEAF, 0, 20 * US) == named(FABRIC, "s0->a0")
    assert known.of(FABRIC.node_index("s1"), 0, 20 * US) == named(FABRIC, "s1->s2", "s1->s3")


def test_without_rerouting_nothing_is_left_out() -> None:
    """reroute_ps = 0 is never."""
    assert links(a="s0->s2", reroute_ps=0).of(LEAF, 2, 20 * US) == BOTH


@dataclass(frozen=True)
class Alternating:
    """Clockwise from even nodes of a ring of four, the other way round from odd ones: each way is simple, and they disagree."""

    spread: int = 1

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        step = 1 if source % 2 == 0 else -1
        n_hops = (target - source) * step % 4
        places = [(source + step * hop) % 4 for hop in range(n_hops + 1)]
        return named(topology, *(f"a{here}->a{there}" for here, there in pairwise(places)))


def test_ways_that_disagree_from_hop_to_hop_are_refused() -> None:
    """a0 sends to a2 by a1, which would send it back: the circle is named; where ways agree, links are offered as ever."""
    topology = replace(ring.build(ring.Parameters(ranks=4)), router=Alternating())
    offered = NextLinks(topology, seed=0, impairments={}, reroute_ps=0)
    assert offered.of(0, 1, 0) == named(topology, "a0->a1")
    with pytest.raises(ConfigError, match="sends packets for a2 round in a circle, a0 -> a1 -> a0:"):
        offered.of(0, 2, 0)


def test_where_no_way_remains_packets_wait_for_the_link() -> None:
    """With both uplinks down, the whole graph's links are offered."""
    known = links(a="s0->s2", b="s0->s3")
    assert known.of(LEAF, 2, 20 * US) == BOTH
    assert known.of(0, 2, 20 * US) == named(FABRIC, "a0->s0")


def test_a_slow_link_is_up() -> None:
    """A throttle is not an outage."""
    throttle = Throttle.model_validate({"factor": "0.01"})
    known = NextLinks(FABRIC, seed=0, impairments={BOTH[0]: ((throttle, None),)}, reroute_ps=1)
    assert known.of(LEAF, 2, 20 * US) == BOTH


def test_answers_do_not_depend_on_the_order_of_questions() -> None:
    """Time may go back: what is offered is a pure function of it."""
    times_ps = [number * 3 * US for number in range(60)]
    known = links(a="s0->s2", b="s3->s1")
    forward = {now_ps: known.of(LEAF, 2, now_ps) for now_ps in times_ps}
    assert {now_ps: known.of(LEAF, 2, now_ps) for now_ps in reversed(times_ps)} == forward


def test_the_moment_of_knowing_is_found() -> None:
    """The first time after the beginning and before the end at which the link is known to be down."""
    known = links(a="s0->s2")
    assert known.avoided_ps(BOTH[0], 10 * US, 30 * US) == 15 * US
    assert known.avoided_ps(BOTH[0], 10 * US, 15 * US) is None
    assert known.avoided_ps(BOTH[0], 20 * US, 30 * US) == 20 * US + 1
    assert known.avoided_ps(BOTH[0], 40 * US, 100 * US) == 65 * US
    assert known.avoided_ps(BOTH[1], 0, 100 * US) is None


def test_dimension_order_gives_way_where_its_way_is_broken() -> None:
    """a0 to a2 goes by a1; with a1->a2 down, by a shortest way that is whole, or the other way round the ring."""
    known = links(GRID, a="a1->a2")
    whole, broken = known.of(1, 2, 0), known.of(1, 2, 20 * US)
    assert whole == named(GRID, "a1->a2")
    assert broken and not set(broken) & set(whole)
    assert known.of(0, 2, 20 * US) == named(GRID, "a0->a3")


@given(
    topology=st.sampled_from((FABRIC, GRID)),
    down=st.sets(st.integers(0, 63), max_size=8),
    now_ps=st.integers(0, 100 * US),
    pick=st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_every_step_leads_on(topology: Topology, down: set[int], now_ps: int, pick: int) -> None:
    """Whatever is down, a packet that takes any of the links offered gets to its target without going round."""
    impairments = {link: ((FLAP, None),) for link in down if link < len(topology.links)}
    known = NextLinks(topology, seed=0, impairments=impairments, reroute_ps=5 * US)
    node, target, n_hops = topology.ranks[0], topology.n_ranks - 1, 0
    while node != topology.ranks[target]:
        offered = known.of(node, target, now_ps)
        node = topology.links[offered[pick % len(offered)]].target
        n_hops += 1
        assert n_hops <= len(topology.nodes)
