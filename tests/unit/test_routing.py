"""Routing: shortest paths, ECMP, dimension order, and where ranks sit."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.errors import ConfigError
from emu.keyed import mix
from emu.topologies import clos, full_mesh, mesh, star, torus
from emu.topologies.graph import Node, NodeKind, Topology, full_duplex
from emu.topologies.routers import AdjacencyCache, ShortestPath
from emu.topologies.routing import map_ranks, take_ranks, with_seed


def build(kinds: str, cables: list[tuple[int, int]]) -> Topology:
    """Nodes by letter (a: accelerator, s: switch) and cables between them."""
    kind = {"a": NodeKind.ACCELERATOR, "s": NodeKind.SWITCH}
    names = [f"{letter}{i}" for i, letter in enumerate(kinds)]
    links = [link for a, b in cables for link in full_duplex(names, a, b, rate_bps=8, latency_ps=0)]
    return Topology(
        name="drawn",
        nodes=tuple(Node(name=name, kind=kind[name[0]]) for name in names),
        links=tuple(links),
        router=ShortestPath(),
        ranks=tuple(i for i, letter in enumerate(kinds) if letter == "a"),
    )


def visited(topology: Topology, source: int, target: int, flow: int = 0) -> list[int]:
    return [source, *(topology.links[i].target for i in topology.route(source, target, flow))]


def test_hash_is_the_same_everywhere() -> None:
    """The routing hash has fixed values, so that a seed names the same routes on every machine."""
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(1, 2) != mix(2, 1)


def test_switches_are_preferred_to_accelerators() -> None:
    """Of two equally long ways, one over an accelerator and one over a switch, every flow takes the switch."""
    topology = build("aaas", [(0, 1), (1, 2), (0, 3), (3, 2)])
    assert all(visited(topology, 0, 2, flow) == [0, 3, 2] for flow in range(16))


def test_a_shorter_way_over_an_accelerator_is_taken() -> None:
    """Accelerators forward where that is the shorter way."""
    topology = build("aaass", [(0, 1), (1, 2), (0, 3), (3, 4), (4, 2)])
    assert visited(topology, 0, 2) == [0, 1, 2]


def test_a_node_is_at_no_distance_from_itself() -> None:
    """The route from a node to itself has no links."""
    assert build("aa", [(0, 1)]).route(1, 1, 0) == ()


def test_no_way_is_an_error() -> None:
    """Asking for a route where there is none is a ConfigError that names both ends."""
    with pytest.raises(ConfigError, match="no way from a0 to a2"):
        build("aaa", [(0, 1)]).route(0, 2, 0)


@given(st.integers(0, 2**32), st.integers(0, 15), st.integers(0, 15), st.integers(0, 1000))
@settings(max_examples=30)
def test_ecmp_routes_are_shortest_and_repeatable(seed: int, source: int, target: int, flow: int) -> None:
    """Whatever the seed, a route has the least number of links and is the same in a fresh copy."""
    topology = with_seed(clos.build(clos.Parameters()), seed)
    path = topology.route(source, target, flow)
    assert len(path) == (0 if source == target else 2 if source // 4 == target // 4 else 4)
    assert with_seed(clos.build(clos.Parameters()), seed).route(source, target, flow) == path


def most_flows_on_an_uplink(topology: Topology, n_flows: int, seed: int) -> int:
    """Flows ai -> a(8+i) on the fullest uplink of leaf s0."""
    seeded = with_seed(topology, seed)
    return max(Counter(seeded.route(i, 8 + i, 0)[1] for i in range(n_flows)).values())


def test_two_flows_over_two_spines_collide_half_the_time() -> None:
    """ECMP puts two flows on the same one of two uplinks in half of the seeds."""
    topology = clos.build(clos.Parameters(leaves=2, spines=2, accelerators_per_leaf=8))
    collisions = sum(most_flows_on_an_uplink(topology, 2, seed) == 2 for seed in range(200))
    assert abs(collisions / 200 - 0.5) < 0.1


def test_eight_flows_over_four_spines_load_one_with_three_and_a_half() -> None:
    """The mean largest load of 8 balls in 4 bins is 3.54, and so it is of 8 flows over 4 uplinks."""
    topology = clos.build(clos.Parameters(leaves=2, spines=4, accelerators_per_leaf=8))
    mean = sum(most_flows_on_an_uplink(topology, 8, seed) for seed in range(200)) / 200
    assert abs(mean - 3.54) < 0.1


def test_flows_of_one_pair_spread_over_parallel_cables() -> None:
    """Different flows of one pair use all of its hashed planes."""
    topology = full_mesh.build(full_mesh.Parameters(ranks=2, planes=(1, 1, 1, 1), plane_mode="hashed"))
    assert len({topology.route(0, 1, flow) for flow in range(32)}) == 4


@pytest.mark.parametrize("shape", [(4,), (6,), (4, 4), (4, 2), (6, 4)], ids=str)
def test_all_to_all_loads_every_link_of_a_torus_alike(shape: tuple[int, ...]) -> None:
    """Over all ordered pairs and lanes, each link of a dimension of size k > 2 carries n k / 8 messages: the bound."""
    topology = torus.build(torus.Parameters(shape=shape))
    n, spread = topology.n_ranks, topology.router.spread
    load = Counter(
        link for s in topology.ranks for t in topology.ranks for lane in range(spread) for link in topology.route(s, t, lane)
    )
    stride = n
    for size in shape:
        stride //= size
        in_dimension = {
            load[i] for i, link in enumerate(topology.links) if abs(link.source - link.target) in {stride, stride * (size - 1)}
        }
        messages = n * size / 8 if size > 2 else n / 2
        assert in_dimension == {messages * spread}


@given(st.integers(0, 59), st.integers(0, 59), st.integers(0, 7))
@settings(max_examples=40)
def test_dimension_order_takes_the_shorter_way(source: int, target: int, flow: int) -> None:
    """On a 3x4x5 torus a route has as many links as the coordinates are apart, around the rings."""
    topology = torus.build(torus.Parameters(shape=(3, 4, 5)))
    distance = 0
    for size, stride in ((3, 20), (4, 5), (5, 1)):
        ahead = (target // stride - source // stride) % size
        distance += min(ahead, size - ahead)
    assert len(topology.route(source, target, flow)) == distance


@given(st.integers(0, 23), st.integers(0, 23), st.integers(0, 3))
@settings(max_examples=40)
def test_accelerators_beside_a_torus_go_by_their_routers(source: int, target: int, flow: int) -> None:
    """Where accelerators hang on routers, the way between these is that of the plain torus, with one link before and one behind;
    from a router on the way the rest of it is the router's own way."""
    plain = torus.build(torus.Parameters(shape=(3, 4, 2)))
    hung = torus.build(torus.Parameters.model_validate({"shape": "3x4x2", "injection_rate": "10GB/s"}))
    ends = [source, target] if source != target else [source]
    between = [24 + node for node in visited(plain, source, target, flow)] if source != target else []
    assert visited(hung, source, target, flow) == [*ends[:1], *between, *ends[1:]]
    assert visited(hung, 24 + source, target, flow) == [*(between or [24 + source]), target]


def test_a_mesh_route_corrects_dimensions_in_order() -> None:
    """On a 3x3 mesh the way from corner to corner goes down the first dimension, then along the second."""
    topology = mesh.build(mesh.Parameters(shape=(3, 3)))
    assert visited(topology, 0, 8) == [0, 3, 6, 7, 8]
    assert visited(topology, 8, 0) == [8, 5, 2, 1, 0]


def test_opposite_nodes_of_a_ring_share_both_ways() -> None:
    """The two lanes between opposite nodes go different ways round; the channel does not matter."""
    topology = torus.build(torus.Parameters(shape=(4,)))
    assert visited(topology, 0, 2, 0) == [0, 1, 2]
    assert visited(topology, 0, 2, 1) == [0, 3, 2]
    assert visited(topology, 1, 3, 0) == [1, 0, 3]
    assert topology.route(0, 2, 7 * 2) == topology.route(0, 2, 0)


def test_lanes_take_every_combination_of_ways() -> None:
    """Between opposite corners of a torus with n even dimensions, the 2^n lanes take 2^n different routes."""
    topology = torus.build(torus.Parameters(shape=(4, 4, 4)))
    assert len({topology.route(0, 42, lane) for lane in range(8)}) == 8


def test_a_new_seed_gives_new_routes_and_nothing_else() -> None:
    """with_seed redraws ECMP without a trace of the old routes; the links stay."""
    topology = clos.build(clos.Parameters())
    old = [topology.route(0, 4, flow) for flow in range(32)]
    seeded = with_seed(topology, 1)
    assert [seeded.route(0, 4, flow) for flow in range(32)] != old
    assert seeded.links is topology.links
    assert with_seed(seeded, 0) == topology
    assert [with_seed(seeded, 0).route(0, 4, flow) for flow in range(32)] == old


def test_a_router_without_choices_needs_no_seed() -> None:
    """with_seed leaves a router alone that has no seed."""

    class Fixed:
        spread = 1

        def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
            return ()

    ring = build("aa", [(0, 1)])
    topology = Topology(name="fixed", nodes=ring.nodes, links=ring.links, router=Fixed(), ranks=ring.ranks)
    assert with_seed(topology, 3) is topology


def test_what_a_router_found_out_is_not_pickled() -> None:
    """A router that has routed pickles to the same bytes as a fresh one."""
    topology = clos.build(clos.Parameters())
    topology.route(0, 15, 0)
    assert pickle.dumps(topology.router) == pickle.dumps(ShortestPath())


def test_a_router_serves_another_topology() -> None:
    """One router asked about two topologies answers for each of them."""
    router = ShortestPath()
    line, star_ = build("aaa", [(0, 1), (1, 2)]), build("asa", [(0, 1), (1, 2)])
    assert [len(router.route(topology, 0, 2, 0)) for topology in (line, star_, line)] == [2, 2, 2]
    assert len(router.route(build("aa", [(0, 1)]), 0, 1, 0)) == 1


def test_a_destination_is_searched_once() -> None:
    """What a search found out about a destination serves all later routes to it, also under other seeds."""
    topology = clos.build(clos.Parameters())
    cache = AdjacencyCache()
    assert cache.of(with_seed(topology, 3)) is cache.of(topology)
    graph = cache.of(topology)
    assert graph.next_links(0, 5) is graph.next_links(0, 5) is not None


def test_destinations_behind_one_switch_share_a_search() -> None:
    """What a switch offers towards the ends of one leaf is found once for all; costs are hops, whatever was shared."""
    graph = AdjacencyCache().of(clos.build(clos.Parameters()))
    leaf = 16
    assert graph.next_links(leaf, 4) is graph.next_links(leaf, 7)
    assert graph.next_links(leaf, 4) == graph.next_links(leaf, 8) != graph.next_links(leaf, 1)
    hop = len(graph.nodes)
    assert [graph.cost(0, target) for target in (0, 1, 4, 15, leaf, leaf + 1)] == [0, 2 * hop, 4 * hop, 4 * hop, hop, 3 * hop]


def test_ranks_stay_without_a_map() -> None:
    """No map leaves the topology as it is."""
    topology = star.build(star.Parameters(ranks=4))
    assert map_ranks(topology, None, 0) is topology


def test_shuffle_is_a_permutation_by_seed() -> None:
    """A shuffle places every rank once; the seed decides where."""
    topology = star.build(star.Parameters(ranks=16))
    shuffled = map_ranks(topology, "shuffle", 1)
    assert sorted(shuffled.ranks) == list(topology.ranks) != list(shuffled.ranks)
    assert map_ranks(topology, "shuffle", 1) == shuffled
    assert map_ranks(topology, "shuffle", 2) != shuffled


@pytest.mark.parametrize(("spec", "ranks"), [("a3,a0", (3, 0)), ("3, 0", (3, 0)), ("a2", (2,)), ("a3,a2,a1,a0", (3, 2, 1, 0))])
def test_a_list_places_ranks_in_its_order(spec: str, ranks: tuple[int, ...]) -> None:
    """Rank i sits on the i-th accelerator of the list, by name or number; the others carry none."""
    topology = map_ranks(star.build(star.Parameters(ranks=4)), spec)
    assert topology.ranks == ranks
    assert len(topology.nodes) == 5


@pytest.mark.parametrize("prefix", ["@", ""])
def test_a_file_places_ranks_line_by_line(tmp_path: Path, prefix: str) -> None:
    """A file names one accelerator per line; blank lines and comments count for nothing."""
    path = tmp_path / "ranks.txt"
    path.write_text("a2  # first\n\n# none\n0\n", encoding="utf-8")
    assert map_ranks(star.build(star.Parameters(ranks=4)), f"{prefix}{path}").ranks == (2, 0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("a0,a0", "'a0' is named twice"),
        ("a0,0", "'0' is named twice"),
        ("a0,b1", r"no accelerator 'b1'.*a0 to a3"),
        ("a11", "did you mean 'a1'"),
        ("a0,4", "number 4; use 0 to 3"),
        ("s0", "'s0' is a switch"),
        ("a0,,a1", "empty entry"),
        ("@nowhere.txt", r"cannot read nowhere\.txt"),
    ],
)
def test_a_wrong_map_is_refused(spec: str, message: str) -> None:
    """A map with an unknown, repeated or impossible place is a ConfigError that says which."""
    with pytest.raises(ConfigError, match=message):
        map_ranks(star.build(star.Parameters(ranks=4)), spec)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """A map file without names is a ConfigError."""
    path = tmp_path / "ranks.txt"
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="names no accelerator"):
        map_ranks(star.build(star.Parameters(ranks=4)), f"@{path}")


def test_fewer_ranks_take_the_first_places() -> None:
    """take_ranks keeps the first ranks in their places; the other accelerators stay as nodes."""
    topology = map_ranks(star.build(star.Parameters(ranks=4)), "a3,a1,a0")
    assert take_ranks(topology, 2).ranks == (3, 1)
    assert take_ranks(topology, 2).nodes == topology.nodes


@pytest.mark.parametrize("n_ranks", [0, 5])
def test_more_ranks_than_places_are_refused(n_ranks: int) -> None:
    """A number of ranks that does not fit is a ConfigError with the range."""
    with pytest.raises(ConfigError, match="use 1 to 4"):
        take_ranks(star.build(star.Parameters(ranks=4)), n_ranks)
