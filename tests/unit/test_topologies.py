"""Topologies: what holds of every file in emu/topologies, and the law of each."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.errors import ConfigError
from emu.topologies import clos, full_mesh, mesh, ring, star, torus
from emu.topologies.catalogue import Generic, generic_topologies, resolve
from emu.topologies.checks import check
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.routers import DimensionOrder

GENERIC = generic_topologies()
every_topology = pytest.mark.parametrize("generic", GENERIC.values(), ids=GENERIC)


def link(topology: Topology, name: str) -> int:
    return next(i for i, link in enumerate(topology.links) if link.name == name)


def assert_route_joins(topology: Topology, source: int, target: int, flow: int) -> None:
    node = source
    for index in topology.route(source, target, flow):
        assert topology.links[index].source == node
        node = topology.links[index].target
    assert node == target


def test_the_folder_holds_the_promised_topologies() -> None:
    """Every file with Parameters and build in the folder is found, by its name."""
    assert {"star", "ring", "full_mesh", "torus", "mesh", "clos"} <= set(GENERIC)


@every_topology
def test_defaults_build_a_sound_topology(generic: Generic) -> None:
    """Without any setting a topology builds, passes all checks, and carries its own name."""
    topology = generic.build(generic.parameters())
    check(topology, where=generic.name)
    assert topology.name == generic.name
    assert topology.ranks == tuple(range(topology.n_ranks))
    assert [topology.nodes[node].name for node in topology.ranks] == [f"a{i}" for i in range(topology.n_ranks)]


@every_topology
def test_every_parameter_is_documented(generic: Generic) -> None:
    """Each parameter and the topology itself have a description to print."""
    assert generic.description
    assert all(field.description for field in generic.parameters.model_fields.values())


@every_topology
def test_routes_join_every_pair(generic: Generic) -> None:
    """Between any two ranks, on any lane, a route is an unbroken chain of links from source to target."""
    topology = generic.build(generic.parameters())
    for source in topology.ranks[:4]:
        for target in topology.ranks:
            for flow in range(topology.router.spread + 1):
                assert_route_joins(topology, source, target, flow)


@every_topology
def test_a_topology_survives_pickling(generic: Generic) -> None:
    """A pickled topology equals the original and computes the same routes."""
    topology = generic.build(generic.parameters())
    routes = [topology.route(0, target, 1) for target in topology.ranks]
    copy: Topology = pickle.loads(pickle.dumps(topology))
    assert copy == topology
    assert [copy.route(0, target, 1) for target in copy.ranks] == routes


@every_topology
def test_hashed_planes_keep_the_rate(generic: Generic) -> None:
    """Planes share an accelerator's rate, striped in one link or hashed over several, without losing a bit."""

    def sent_bps(topology: Topology) -> int:
        return sum(link.rate_bps for link in topology.links if link.source == 0)

    plain = generic.build(generic.parameters())
    values = {"rate": 400 * 10**9 + 1, "planes": (5, 4, 4, 5)}
    striped = generic.build(generic.parameters.model_validate(values))
    hashed = generic.build(generic.parameters.model_validate(values | {"plane_mode": "hashed"}))
    check(striped, where="striped")
    check(hashed, where="hashed")
    assert len(striped.links) == len(plain.links)
    assert len(hashed.links) == 4 * len(plain.links)
    assert sent_bps(striped) == sent_bps(hashed)
    assert_route_joins(hashed, 0, hashed.ranks[-1], 3)


@given(latency_ps=st.integers(0, 10**7), n_ranks=st.integers(2, 5))
@settings(max_examples=20)
def test_star_latency_is_exact_both_ways(latency_ps: int, n_ranks: int) -> None:
    """In a star the two links between any two accelerators add up to the latency exactly, also an odd one."""
    topology = star.build(star.Parameters(ranks=n_ranks, latency=latency_ps))
    for source, target in ((0, 1), (1, 0), (n_ranks - 1, 0)):
        path = topology.route(source, target, 0)
        assert [topology.links[index].target for index in path][-1] == target
        assert sum(topology.links[index].latency_ps for index in path) == latency_ps


def test_star_links_are_named_after_their_ends() -> None:
    """A star's links are called a0->s0 and s0->a0; with hashed planes each plane is a switch of its own."""
    assert [link.name for link in star.build(star.Parameters(ranks=1)).links] == ["a0->s0", "s0->a0"]
    hashed = star.build(star.Parameters(ranks=1, planes=(1, 1), plane_mode="hashed"))
    assert [link.name for link in hashed.links] == ["a0->s0", "s0->a0", "a0->s1", "s1->a0"]


def test_parallel_cables_are_numbered() -> None:
    """Hashed planes of a cable between accelerators are links with the suffixes #0, #1, ..."""
    topology = full_mesh.build(full_mesh.Parameters(ranks=2, planes=(1, 1), plane_mode="hashed"))
    assert [link.name for link in topology.links] == ["a0->a1#0", "a1->a0#0", "a0->a1#1", "a1->a0#1"]


@pytest.mark.parametrize(("n_ranks", "n_links"), [(1, 0), (2, 2), (3, 6), (8, 16)], ids=["one", "two", "three", "eight"])
def test_ring_has_a_cable_per_rank(n_ranks: int, n_links: int) -> None:
    """A ring has as many cables as ranks, but two ranks share one and a single rank has none."""
    topology = ring.build(ring.Parameters(ranks=n_ranks))
    check(topology, where="ring")
    assert len(topology.links) == n_links


@pytest.mark.parametrize(
    ("shape", "n_cables"),
    [((2,), 1), ((2, 2), 4), ((4, 2), 12), ((4, 4), 32), ((4, 4, 4), 192), ((3, 1), 3), ((1, 1), 0)],
)
def test_torus_has_one_cable_per_pair_of_neighbours(shape: tuple[int, ...], n_cables: int) -> None:
    """A torus has one cable per node and dimension, but a dimension of two nodes is one cable and not two."""
    topology = torus.build(torus.Parameters(shape=shape))
    assert len(topology.links) == 2 * n_cables
    assert len({(link.source, link.target) for link in topology.links}) == 2 * n_cables


def test_grid_nodes_are_in_row_major_order() -> None:
    """In a 3x4 grid node 5 = (1, 1) has neighbours 4 and 6 in its row, 1 and 9 in its column."""
    topology = mesh.build(mesh.Parameters(shape=(3, 4)))
    assert sorted(link.target for link in topology.links if link.source == 5) == [1, 4, 6, 9]


def test_mesh_does_not_wrap() -> None:
    """A mesh of 4x4 has 24 cables; its corners are six links apart."""
    topology = mesh.build(mesh.Parameters(shape=(4, 4)))
    assert len(topology.links) == 48
    assert len(topology.route(0, 15, 0)) == 6


@pytest.mark.parametrize(("ratio", "uplink_GBps"), [("1", 200), ("2", 100), ("8:1", 25)])
def test_clos_uplinks_carry_the_leaf_over_its_oversubscription(ratio: str, uplink_GBps: int) -> None:
    """16 accelerators of 50 GB/s over 4 spines need 200 GB/s each, divided by the oversubscription."""
    values = {"accelerators_per_leaf": 16, "spines": 4, "rate": "50GB/s", "oversubscription": ratio}
    topology = clos.build(clos.Parameters.model_validate(values))
    assert topology.links[link(topology, "s0->s4")].rate_bps == uplink_GBps * 8 * 10**9
    assert topology.links[link(topology, "a0->s0")].rate_bps == 400 * 10**9


def test_clos_crosses_one_spine_between_leaves() -> None:
    """Accelerators of one leaf are two links apart, those of different leaves four."""
    topology = clos.build(clos.Parameters(uplink_latency=7))
    assert [topology.links[i].name for i in topology.route(0, 1, 0)] == ["a0->s0", "s0->a1"]
    across = [topology.links[i] for i in topology.route(0, 4, 0)]
    assert [hop.latency_ps for hop in across] == [1_000_000, 7, 7, 1_000_000]
    assert topology.nodes[across[1].target].name in {"s4", "s5", "s6", "s7"}


def test_clos_shares_its_uplinks_among_parallel_cables() -> None:
    """With two cables per pair each carries half of what one would, and ECMP uses both."""
    topology = clos.build(clos.Parameters(cables_per_pair=2))
    assert topology.links[link(topology, "s0->s4#1")].rate_bps == 200 * 10**9
    assert {len(topology.route(0, 4, flow)) for flow in range(64)} == {4}
    assert len({topology.route(0, 4, flow)[1] for flow in range(64)}) == 8


def test_clos_refuses_two_statements_of_one_thing() -> None:
    """Giving both oversubscription and uplink_rate is an error that says so."""
    with pytest.raises(ValueError, match="twice"):
        clos.Parameters.model_validate({"oversubscription": "1", "uplink_rate": "1GB/s"})


def test_grids_and_rings_use_dimension_order() -> None:
    """Rings, meshes and tori come with the dimension order router of their shape."""
    assert torus.build(torus.Parameters(shape=(4, 2))).router == DimensionOrder(shape=(4, 2), wrap=True)
    assert ring.build(ring.Parameters(ranks=5)).router == DimensionOrder(shape=(5,), wrap=True)


def test_common_parameters_reach_the_links() -> None:
    """MTU, header, window and drain rate reach every link and every accelerator, and no switch."""
    topology = star.build(star.Parameters(ranks=2, mtu=1024, header=26, window=65536, drain_rate=8))
    assert {(x.mtu_bytes, x.header_bytes, x.window_bytes) for x in topology.links} == {(1024, 26, 65536)}
    drained = [node.kind for node in topology.nodes if node.drain_rate_bps == 8]
    assert drained == [NodeKind.ACCELERATOR] * 2


def test_a_grid_too_large_is_refused() -> None:
    """A shape of more nodes than the limit is a ConfigError with both numbers."""
    with pytest.raises(ConfigError, match="360000 accelerators; use 1 to 200000"):
        torus.build(torus.Parameters(shape=(600, 600)))


def test_a_name_with_a_colon_is_a_function_of_a_module() -> None:
    """``module:function`` resolves to that function and the Parameters beside it."""
    found = resolve("emu.topologies.star:build", where="--fabric")
    assert found.parameters is star.Parameters
    with pytest.raises(ConfigError, match=r"star\.py is no topology: it has no function 'make'"):
        resolve("emu.topologies.star:make", where="--fabric")
    with pytest.raises(ConfigError, match="cannot be imported"):
        resolve("no_such_lab.torus:build", where="--fabric")


def test_a_module_that_is_no_topology_is_unknown() -> None:
    """Files of the folder that build nothing are no topologies; what they lack is said."""
    with pytest.raises(ConfigError, match=r"routers\.py is no topology: it has no pydantic class Parameters"):
        resolve("routers", where="--fabric")
