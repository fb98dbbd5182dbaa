"""Builders of whole systems, at random sizes: what they tell of their graph is so, and their routes are what they promise."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.topologies import dragonfly, fat_tree, hyperx, multi_plane, rails, switched_groups, twisted_torus
from emu.topologies.checks import check
from emu.topologies.circulant import circulant
from emu.topologies.extent import bisection_bps, diameter_links
from emu.topologies.graph import Topology
from emu.topologies.routers import ShortestPath

small = st.integers(1, 4)
few = settings(max_examples=12, deadline=None)


def assert_known(topology: Topology) -> None:
    """Sound, and diameter and bisection are those of a search."""
    check(topology, where=topology.name)
    assert topology.structure.diameter_links in (None, diameter_links(topology))
    assert topology.structure.bisection_bps in (None, bisection_bps(topology))


@given(st.integers(2, 12), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_a_circulant_uses_no_port_twice_and_treats_all_alike(n_places: int, n_ports: int) -> None:
    """Each place has the same number of cables, at most one on a port; with a port for each other place all pairs are joined."""
    cables = list(circulant(n_places, n_ports))
    ends = Counter(end for place, port, other, back in cables for end in ((place, port), (other, back)))
    assert not ends or max(ends.values()) == 1
    assert len(set(Counter(place for place, _ in ends).values())) <= 1
    pairs = Counter((place, other) for place, _, other, _ in cables)
    if n_ports >= n_places - 1:
        assert len(pairs) == n_places * (n_places - 1) // 2
        assert max(pairs.values()) - min(pairs.values()) <= 1


@given(pods=small, leaves=small, spines=st.integers(1, 3), share=st.integers(1, 2), ends=small, ratio=st.integers(1, 3))
@few
def test_fat_trees_know_themselves(pods: int, leaves: int, spines: int, share: int, ends: int, ratio: int) -> None:
    """Whatever its counts and oversubscription, a fat tree's diameter and bisection are those of its graph."""
    values = {"pods": pods, "leaves": leaves, "spines": spines, "cores": spines * share, "accelerators_per_leaf": ends}
    assert_known(fat_tree.build(fat_tree.Parameters.model_validate(values | {"core_oversubscription": str(ratio)})))


@given(groups=small, switches=small, ends=small, cables=st.integers(1, 3))
@few
def test_dragonflies_know_themselves(groups: int, switches: int, ends: int, cables: int) -> None:
    """The same of dragonflies, whose local cables are fast enough here to leave the global ones the narrowest."""
    values = {"groups": groups, "switches_per_group": switches, "accelerators_per_switch": ends, "global_cables": cables}
    topology = dragonfly.build(dragonfly.Parameters.model_validate(values | {"local_rate": "100Tbit/s"}))
    assert_known(topology)
    assert (diameter_links(topology) or 0) <= 5


@given(segments=small, nodes=st.integers(1, 2), n_rails=st.integers(1, 3), ports=st.integers(1, 2), joined=st.booleans())
@few
def test_rails_know_themselves(segments: int, nodes: int, n_rails: int, ports: int, joined: bool) -> None:
    """The same of rails, joined or not, with any number of ports; their routes are as long as those that a search finds, each
    from its source to its target, on the port of its lane."""
    values = {"nodes": segments * nodes, "nodes_per_leaf": nodes, "rails": n_rails, "ports": ports, "joined": joined}
    if segments * nodes * n_rails < 2:
        return
    for routing in ("ecmp", "d_mod_k"):
        topology = rails.build(rails.Parameters.model_validate(values | {"routing": routing, "cables_per_pair": 2}))
        assert_known(topology)
        for source, target, flow in product(topology.ranks, topology.ranks, range(2 * ports)):
            links = [topology.links[link] for link in topology.route(source, target, flow)]
            ends = [source, *(link.target for link in links)]
            assert [link.source for link in links] == ends[:-1] and ends[-1] == target
            assert len(links) == len(ShortestPath().route(topology, source, target, 0))


@given(leaves=small, spines=small, ends=small, planes=st.integers(1, 3), links=st.integers(1, 2), hashed=st.booleans())
@few
def test_planes_know_themselves(leaves: int, spines: int, ends: int, planes: int, links: int, hashed: bool) -> None:
    """The same of planes, bundled or apart; rates that do not divide lose less than a bit per second for each link."""
    values = {"leaves": leaves, "spines": spines, "accelerators_per_leaf": ends, "links_per_plane": links, "rate": 12 * 10**9}
    mode = {"planes": (1,) * planes, "plane_mode": "hashed" if hashed else "striped"}
    if leaves * ends > 1:
        assert_known(multi_plane.build(multi_plane.Parameters.model_validate(values | mode)))


@given(st.lists(small, min_size=1, max_size=3))
@few
def test_hyperx_is_as_far_as_it_has_dimensions(shape: list[int]) -> None:
    """Two accelerators are as many links apart as their coordinates differ in."""
    topology = hyperx.build(hyperx.Parameters(shape=tuple(shape)))
    assert_known(topology)
    if topology.n_ranks > 1:
        assert len(topology.route(0, topology.n_ranks - 1, 0)) == sum(size > 1 for size in shape)


@given(groups=st.integers(2, 4), band=st.integers(1, 2), bands=st.integers(1, 2), ports=st.integers(1, 2))
@few
def test_switched_groups_fill_their_switches(groups: int, band: int, bands: int, ports: int) -> None:
    """Every switch has all its ports in use, every socket its links, and no two sockets are more than three links apart."""
    values = {"groups": groups, "group_size": band * bands, "switch_links": 2, "switch_ports": groups * band}
    topology = switched_groups.build(switched_groups.Parameters(**values))
    check(topology, where="switched_groups")
    out = [len(links) for links in topology.out_links()]
    assert set(out[topology.n_ranks :]) == {groups * band}
    assert set(out[: topology.n_ranks]) == {band * bands - 1 + 2}
    assert (diameter_links(topology) or 0) <= 3


@given(groups=st.integers(2, 5), size=st.integers(2, 4), per_pair=st.integers(1, 2))
@few
def test_pairs_of_switched_groups_bring_all_sockets_together(groups: int, size: int, per_pair: int) -> None:
    """Where two groups fill a switch and links suffice, any two sockets of different groups share as many switches as a pair
    has, switches are full, and sockets are two links apart."""
    values = {"groups": groups, "group_size": size, "switch_links": per_pair * (groups - 1), "switch_ports": 2 * size}
    topology = switched_groups.build(switched_groups.Parameters(**values))
    out = [{topology.links[link].target for link in links} for links in topology.out_links()]
    assert {len(joined) for joined in out[topology.n_ranks :]} == {2 * size}
    switches = [joined - set(topology.ranks) for joined in out[: topology.n_ranks]]
    apart = [(a, b) for a in topology.ranks for b in range(a) if a // size != b // size]
    assert {len(switches[a] & switches[b]) for a, b in apart} == {per_pair}
    assert diameter_links(topology) == 2


@given(st.sampled_from([(2, 4), (4, 8), (2, 2, 4), (2, 4, 4), (3, 6), (3, 3, 6)]), st.data())
@few
def test_twisted_routes_are_shortest(shape: tuple[int, ...], data: st.DataObject) -> None:
    """On every lane a route in a twisted torus has as many links as a search finds, and all nodes are as far from others."""
    topology = twisted_torus.build(twisted_torus.Parameters(shape=shape))
    check(topology, where="twisted_torus")
    source = data.draw(st.integers(0, topology.n_ranks - 1))
    hops = {source: 0}
    frontier = [source]
    out = topology.out_links()
    while frontier:
        node = frontier.pop(0)
        for link in out[node]:
            target = topology.links[link].target
            if target not in hops:
                hops[target] = hops[node] + 1
                frontier.append(target)
    for target in topology.ranks:
        for lane in range(topology.router.spread):
            assert len(topology.route(source, target, lane)) == hops[target]
    assert sorted(hops.values()) == sorted(len(topology.route(0, target, 0)) for target in topology.ranks)
