"""Balancing policies alone: every file of the folder conforms, and each one keeps the law that it claims.

The files are found as they are dropped in; those that need more are tested by name below.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emu.balancing
from emu.balancing.base import Parameters, Place, Policy
from emu.balancing.up_down import order_of
from emu.errors import ConfigError
from emu.keyed import mix
from emu.topologies import clos, full_mesh, ring, star, torus
from emu.topologies.extensions import extension
from emu.topologies.graph import Topology
from emu.topologies.routers import Adjacency
from emu.topologies.tiers import Same, tiers

POLICIES = tuple(found.name for found in pkgutil.iter_modules(emu.balancing.__path__) if found.name != "base")
every_policy = pytest.mark.parametrize("policy", POLICIES)
KEEPS_FLOWS = tuple(name for name in POLICIES if extension("balancing", "balancing", name).flag("KEEPS_FLOWS_TOGETHER"))
"""Policies that say that a flow keeps its way."""


def leaf_spine(leaves: int = 2, spines: int = 4, per_leaf: int = 8) -> Topology:
    return clos.build(clos.Parameters(leaves=leaves, spines=spines, accelerators_per_leaf=per_leaf))


FABRICS = (
    leaf_spine(3, 2, 2),
    clos.build(clos.Parameters(leaves=2, spines=2, accelerators_per_leaf=2, cables_per_pair=2)),
    star.build(star.Parameters(ranks=4)),
    ring.build(ring.Parameters(ranks=5)),
    torus.build(torus.Parameters.model_validate({"shape": "3x4"})),
    full_mesh.build(full_mesh.Parameters(ranks=4)),
)
every_fabric = pytest.mark.parametrize("fabric", FABRICS, ids=[fabric.name + str(i) for i, fabric in enumerate(FABRICS)])


class Depths:
    """What a node shows its policy: bytes waiting, by link."""

    def __init__(self, depths: dict[int, int] | None = None) -> None:
        self.depths = depths or {}

    def depth_bytes(self, link: int) -> int:
        return self.depths.get(link, 0)


def made(policy: str, topology: Topology, node: int, seed: int = 0, **parameters: int | str) -> Policy:
    build = importlib.import_module(f"emu.balancing.{policy}").build
    found: Policy = build(Place(topology=topology, node=node, seed=seed), parameters)
    return found


def choose(
    policy: Policy,
    candidates: tuple[int, ...],
    *,
    flow: int = 1,
    target: int = 1,
    sequence: int = 0,
    now_ps: int = 0,
    depths: dict[int, int] | None = None,
) -> int:
    link, lane = policy.choose(
        candidates,
        source_rank=0,
        target_rank=target,
        flow=flow,
        sequence=sequence,
        lane=0,
        view=Depths(depths),
        now_ps=now_ps,
    )
    assert lane == 0
    return link


class Fabric:
    """Policies at every node of a fabric, and packets that walk."""

    def __init__(self, policy: str, topology: Topology, seed: int = 0, load: int | None = None, **parameters: int | str) -> None:
        """``load``: key of the bytes that wait everywhere; None for empty queues."""
        self.topology = topology
        self.load = load
        self.policies = [made(policy, topology, node, seed, **parameters) for node in range(len(topology.nodes))]
        self.graph = Adjacency(topology)

    def walk(self, source: int, target: int, flow: int, sequence: int = 0) -> tuple[int, ...]:
        """The links that a packet takes from rank to rank."""
        ranks = self.topology.ranks
        node, way, lane = ranks[source], [], 0
        while node != ranks[target]:
            candidates = self.graph.next_links(node, ranks[target])
            link, lane = self.policies[node].choose(
                candidates,
                source_rank=source,
                target_rank=target,
                flow=flow,
                sequence=sequence,
                lane=lane,
                view=self.depths(node, sequence),
                now_ps=sequence,
            )
            assert self.topology.links[link].source == node, "the link does not leave the node"
            assert lane >= 0
            way.append(link)
            node = self.topology.links[link].target
            assert len(way) <= len(self.topology.nodes), "the packet goes round"
        return tuple(way)

    def depths(self, node: int, sequence: int) -> Depths:
        """What waits for the links of a node: up to 64 KiB, and nothing in a quarter of them."""
        if self.load is None:
            return Depths()
        drawn = {link: mix(self.load, link, sequence) for link in self.graph.out[node]}
        return Depths({link: draw % 65_536 if draw % 4 else 0 for link, draw in drawn.items()})


# -- every file of the folder ----------------------------------------------------------------------


@every_policy
@every_fabric
def test_packets_get_to_their_target(policy: str, fabric: Topology) -> None:
    """From every rank to every rank, whatever the fabric and whatever waits where, without going round."""
    for load in (None, 1, 2):
        walker = Fabric(policy, fabric, load=load)
        for source in range(fabric.n_ranks):
            for target in range(fabric.n_ranks):
                if source != target:
                    walker.walk(source, target, flow=source * 64 + target, sequence=load or 0)


@every_policy
def test_a_choice_is_a_candidate(policy: str) -> None:
    """On a fabric of tiers every policy takes one of the links on shortest ways."""
    topology = leaf_spine()
    at_leaf = made(policy, topology, topology.node_index("s0"))
    graph = Adjacency(topology)
    for number in range(50):
        target = 8 + number % 8
        candidates = graph.next_links(topology.node_index("s0"), topology.ranks[target])
        assert choose(at_leaf, candidates, flow=number % 7, sequence=number, target=target, now_ps=number) in candidates


@every_policy
def test_the_same_questions_get_the_same_answers(policy: str) -> None:
    """Two instances of one node and seed choose alike; nothing but what they are told goes in."""
    topology = leaf_spine()
    walks = []
    for _ in range(2):
        walker = Fabric(policy, topology, seed=3)
        walks.append([walker.walk(flow % 8, 8 + flow % 5, flow, sequence) for flow in range(8) for sequence in range(3)])
    assert walks[0] == walks[1]


@pytest.mark.parametrize("policy", KEEPS_FLOWS)
def test_a_flow_keeps_its_way(policy: str) -> None:
    """All packets of a flow take the same links whatever waits, so that they stay in order, where the file says so."""
    walker = Fabric(policy, leaf_spine(), seed=5, load=7)
    for flow in range(8):
        assert len({walker.walk(flow, 8 + flow, flow, sequence) for sequence in range(10)}) == 1


@every_policy
def test_an_unknown_parameter_is_refused(policy: str) -> None:
    """One line says what the policy takes."""
    with pytest.raises(ConfigError, match="has no parameter 'gab_ps'; it takes") as caught:
        made(policy, leaf_spine(), 0, gab_ps=1)
    assert "\n" not in str(caught.value)


# -- ecmp ------------------------------------------------------------------------------------------


def ecmp_loads(topology: Topology, seed: int, n_flows: int, n_links: int, n_queue_pairs: int) -> Counter[int]:
    """Sub-flows by uplink, of flows from rank i to rank n + i that hash at one leaf."""
    policy = made("ecmp", topology, topology.ranks[-1] + 1, seed)
    loads: Counter[int] = Counter()
    for flow in range(n_flows):
        for pair in range(n_queue_pairs):
            link, _ = policy.choose(
                range(n_links),
                source_rank=flow,
                target_rank=n_flows + flow,
                flow=((flow * 2 * n_flows + n_flows + flow) * 64 + pair) * 8,
                sequence=0,
                lane=0,
                view=Depths(),
                now_ps=0,
            )
            loads[link] += 1
    return loads


def slowdowns(n_flows: int, n_links: int, n_queue_pairs: int = 1) -> list[float]:
    """Over 200 seeds, the most loaded link's load over what a perfect split gives every link."""
    topology = leaf_spine(2, n_links, n_flows)
    fair = n_flows * n_queue_pairs / n_links
    return [max(ecmp_loads(topology, seed, n_flows, n_links, n_queue_pairs).values()) / fair for seed in range(200)]


def test_two_flows_over_two_uplinks_collide_in_half_of_the_seeds() -> None:
    """Two balls, two bins: 1/2, within 0.1 over 200 seeds."""
    assert mean(slowdown > 1 for slowdown in slowdowns(2, 2)) == pytest.approx(0.5, abs=0.1)


def test_eight_flows_over_four_uplinks_split_perfectly_once_in_26() -> None:
    """8! / (2!^4 4^8) = 3.85 % of the seeds split perfectly; the mean slowdown is 1.77."""
    found = slowdowns(8, 4)
    assert mean(slowdown == 1 for slowdown in found) == pytest.approx(0.0385, abs=0.03)
    assert mean(found) == pytest.approx(1.77, abs=0.1)


def test_four_queue_pairs_each_make_smaller_balls() -> None:
    """With 32 sub-flows over four uplinks the mean slowdown is 1.38."""
    assert mean(slowdowns(8, 4, 4)) == pytest.approx(1.38, abs=0.1)


# -- static ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", range(8, 16))
def test_static_loads_every_uplink_alike_under_a_shift(shift: int) -> None:
    """Rank i to rank i + shift: of 16 ranks on two leaves with 8 uplinks each, no link carries two flows."""
    walker = Fabric("static", leaf_spine(2, 8, 8))
    loads = Counter(link for source in range(16) for link in walker.walk(source, (source + shift) % 16, flow=source))
    assert max(loads.values()) == 1


def test_static_divides_by_the_uplinks_below() -> None:
    """Where the target's lower digit was used up at the leaf, a switch above it looks at the next one."""
    topology = leaf_spine(2, 4, 8)
    at_leaf = made("static", topology, topology.node_index("s0"))
    at_spine = made("static", topology, topology.node_index("s2"))
    assert [choose(at_leaf, (10, 11, 12, 13), target=target) for target in range(8)] == [10, 11, 12, 13] * 2
    assert [choose(at_spine, (20, 21), target=target) for target in range(16)] == ([20] * 4 + [21] * 4) * 2


# -- spray, adaptive, flowlet ----------------------------------------------------------------------


@given(n_links=st.integers(1, 9), n_packets=st.integers(0, 60), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_spray_is_even(n_links: int, n_packets: int, seed: int) -> None:
    """No link gets two packets of a flow more than another."""
    policy = made("spray", FABRICS[0], 0, seed)
    loads = Counter(choose(policy, tuple(range(n_links)), sequence=number) for number in range(n_packets))
    counts = [loads[link] for link in range(n_links)]
    assert max(counts) - min(counts) <= 1


def test_spray_starts_elsewhere_for_each_flow() -> None:
    """The first packets of many flows do not meet on one link."""
    policy = made("spray", FABRICS[0], 0)
    assert len({choose(policy, (0, 1, 2, 3), flow=flow) for flow in range(20)}) == 4


@given(depths=st.lists(st.integers(0, 4), min_size=1, max_size=6), sequence=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_adaptive_takes_no_deeper_queue_than_it_must(depths: list[int], sequence: int) -> None:
    """The chosen link is the least deep of the candidates."""
    policy = made("adaptive", FABRICS[0], 0)
    link = choose(policy, tuple(range(len(depths))), sequence=sequence, depths=dict(enumerate(depths)))
    assert depths[link] == min(depths)


def test_adaptive_spreads_among_equals() -> None:
    """Where all are empty, packets go everywhere."""
    policy = made("adaptive", FABRICS[0], 0)
    loads = Counter(choose(policy, (0, 1, 2, 3), sequence=number) for number in range(400))
    assert len(loads) == 4 and max(loads.values()) < 150


def test_a_flowlet_ends_with_a_gap() -> None:
    """Up to the gap a flow keeps its link, however deep; after it, it takes the least deep one."""
    policy = made("flowlet", FABRICS[0], 0, gap_ps=100)
    assert choose(policy, (0, 1), now_ps=0, depths={0: 9}) == 1
    assert choose(policy, (0, 1), now_ps=100, depths={1: 9}) == 1
    assert choose(policy, (0, 1), now_ps=200, depths={1: 9}) == 1
    assert choose(policy, (0, 1), now_ps=301, depths={1: 9}) == 0


def test_a_flowlet_leaves_a_link_that_is_no_candidate_any_more() -> None:
    """A link that is routed around is left at once."""
    policy = made("flowlet", FABRICS[0], 0)
    assert choose(policy, (0, 1), depths={0: 9}) == 1
    assert choose(policy, (0, 2), depths={0: 9}) == 2


def test_flowlets_by_hash_draw_anew() -> None:
    """With pick = hash, the flowlets of one flow reach all links, as LetFlow's do."""
    policy = made("flowlet", FABRICS[0], 0, gap_ps=0, pick="hash")
    assert {choose(policy, (0, 1, 2), now_ps=number) for number in range(40)} == {0, 1, 2}


@pytest.mark.parametrize("parameters", [{"gap_ps": -1}, {"gap_ps": "1us"}, {"pick": "best"}])
def test_a_flowlet_parameter_out_of_range_is_refused(parameters: Parameters) -> None:
    """The message names the value and what is allowed."""
    with pytest.raises(ConfigError, match="use "):
        made("flowlet", FABRICS[0], 0, **parameters)


# -- planned ---------------------------------------------------------------------------------------


def test_a_planned_pair_takes_its_way() -> None:
    """Node by node as written, be it longer than the shortest; other pairs go by hash."""
    topology = torus.build(torus.Parameters.model_validate({"shape": "5"}))
    walker = Fabric("planned", topology, paths="a0 a4 a3 a2\n a1 a0 a4; ")
    assert [topology.links[link].name for link in walker.walk(0, 2, flow=1)] == ["a0->a4", "a4->a3", "a3->a2"]
    assert [topology.links[link].name for link in walker.walk(1, 4, flow=1)] == ["a1->a0", "a0->a4"]
    assert [topology.links[link].name for link in walker.walk(2, 3, flow=1)] == ["a2->a3"]


def test_queue_pairs_share_the_ways_of_a_pair() -> None:
    """Of several ways each flow keeps one, and all are taken."""
    topology = leaf_spine(2, 2, 1)
    walker = Fabric("planned", topology, paths="a0 s0 s2 s1 a1; a0 s0 s3 s1 a1")
    ways = [walker.walk(0, 1, flow) for flow in range(20)]
    assert len(set(ways)) == 2
    assert ways == [walker.walk(0, 1, flow, sequence=7) for flow in range(20)]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"paths": "a0 s9 a1"}, "no node 's9'"),
        ({"paths": "a0 s0 a1"}, "no link from s0 to a1"),
        ({"paths": "a0 s0"}, "from rank to rank"),
        ({"paths": "a0"}, "from rank to rank"),
        ({"paths": "a0 s0 s1 s0 a0"}, "no node twice"),
        ({"paths": 3}, "write text"),
        ({"datelines": "s0->a1"}, "no link 's0->a1'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(parameters: Parameters, message: str) -> None:
    """One line names what is wrong."""
    with pytest.raises(ConfigError, match=message) as caught:
        made("planned", leaf_spine(2, 2, 1), 0, **parameters)
    assert "\n" not in str(caught.value)


# -- up_down ---------------------------------------------------------------------------------------


def assert_no_cycle_of_buffers(topology: Topology, walker: Fabric) -> None:
    """The graph of 'a packet on this link may wait for that one' has no cycle."""
    waits: dict[int, set[int]] = {index: set() for index in range(len(topology.links))}
    for source in range(topology.n_ranks):
        for target in range(topology.n_ranks):
            if source != target:
                for flow in range(4):
                    way = walker.walk(source, target, flow)
                    for link, following in pairwise(way):
                        waits[link].add(following)
    while True:
        free = [link for link, others in waits.items() if not others & waits.keys()]
        if not free:
            break
        for link in free:
            del waits[link]
    assert not waits, f"{len(waits)} links wait in a cycle"


@every_fabric
def test_up_down_has_no_cycle_of_buffers(fabric: Topology) -> None:
    """On rings and tori too, where shortest ways have one."""
    assert_no_cycle_of_buffers(fabric, Fabric("up_down", fabric))


def test_shortest_ways_on_a_ring_have_a_cycle_of_buffers() -> None:
    """What the test above looks for is there without up_down."""
    topology = FABRICS[3]
    with pytest.raises(AssertionError, match="wait in a cycle"):
        assert_no_cycle_of_buffers(topology, Fabric("ecmp", topology))


def test_up_down_uses_every_spine() -> None:
    """All of the highest tier are roots, so that a leaf-spine loses nothing."""
    topology = leaf_spine()
    walker = Fabric("up_down", topology)
    assert len({walker.walk(0, 8, flow)[1] for flow in range(40)}) == 4
    assert max(len(walker.walk(0, target, 1)) for target in range(1, 16)) == 4


def test_up_down_roots_can_be_named() -> None:
    """All ways between the leaves pass the named root; a node that is not there, or roots that part ranks, are refused."""
    topology = leaf_spine()
    root = topology.node_index("s3")
    walker = Fabric("up_down", topology, roots="s3")
    assert {topology.links[walker.walk(0, 8, flow)[1]].target for flow in range(10)} == {root}
    with pytest.raises(ConfigError, match="no node 's9'"):
        made("up_down", topology, 0, roots="s9")
    with pytest.raises(ConfigError, match="without a way"):
        made("up_down", topology, 0, roots="a0 a9")


def test_an_order_is_found_once_for_a_fabric() -> None:
    """All nodes share it."""
    topology = leaf_spine()
    assert order_of(Same(topology), "") is order_of(Same(topology), "")


def test_tiers_count_from_the_ranks() -> None:
    """Ranks 0, leaves 1, spines 2."""
    topology = leaf_spine(2, 2, 2)
    assert tiers(topology) == (0, 0, 0, 0, 1, 1, 2, 2)
