"""Layouts: how ranks lie on a fabric, as algorithms see it, and the trees of switches over them."""

from __future__ import annotations

import pytest

from emu.collectives.layout import Layout, SwitchTree, flat, layout_of
from emu.topologies.fabric_file import load_fabric
from emu.topologies.routing import map_ranks, take_ranks

RAILS = {"nodes": "2", "rails": "2", "nodes_per_leaf": "2", "host_size": "2", "multicast": "true"}


def lay(name: str, members: tuple[int, ...] | None = None, **settings: object) -> Layout:
    topology = load_fabric(name, {key: str(value) for key, value in settings.items()})
    return layout_of(topology, tuple(range(topology.n_ranks)) if members is None else members)


def test_ranks_of_which_nothing_is_known_are_nodes_of_their_own() -> None:
    """One rail, no dimension, no switch, and a reason."""
    layout = flat(3)
    assert layout.nodes == ((0,), (1,), (2,))
    assert layout.rails == ((0, 1, 2),)
    assert layout.axes == (((0, 1, 2),),)
    assert layout.switches == () and "multicast" in layout.cannot


def test_equal_requests_get_the_same_layout() -> None:
    """So a schedule that was made for it is found again."""
    topology = load_fabric("star", {"ranks": "4"})
    assert layout_of(topology, (0, 1)) is layout_of(topology, (0, 1))
    assert flat(4) is flat(4)


def test_nodes_and_rails_of_a_placement() -> None:
    """Ranks are grouped by the host that they sit on, wherever ``--map`` put them; a group of some is laid out by itself."""
    topology = load_fabric("rails", RAILS)
    assert layout_of(topology, (0, 1, 2, 3)).nodes == ((0, 1), (2, 3))
    assert layout_of(topology, (0, 1, 2, 3)).rails == ((0, 2), (1, 3))
    crossed = map_ranks(topology, "a0,a2,a1,a3")
    assert layout_of(crossed, (0, 1, 2, 3)).nodes == ((0, 2), (1, 3))
    assert layout_of(topology, (1, 3)).nodes == ((0,), (1,))
    assert layout_of(topology, (0, 1, 3)).rails == ()


def test_a_torus_has_its_own_dimensions() -> None:
    """Rings along each dimension, the first first; a part of it has none."""
    assert lay("torus", shape="2x3", injection_rate="10GB/s").torus_axes == lay("torus", shape="2x3").torus_axes
    assert lay("torus", shape="2x3").axes == (((0, 3), (1, 4), (2, 5)), ((0, 1, 2), (3, 4, 5)))
    assert lay("torus", (0, 1, 2, 3), shape="2x3").axes == ()


def test_a_node_has_the_tree_of_its_own_switch() -> None:
    """And a rail that of its leaf; what is further away, or slower, is not taken."""
    layout = lay("rails", **RAILS)
    assert layout.node_trees == ((SwitchTree(4, (0, 1)),), (SwitchTree(5, (2, 3)),))
    assert layout.rail_trees == ((SwitchTree(6, (0, 2)),), (SwitchTree(7, (1, 3)),))


def test_the_faster_of_two_planes_is_taken() -> None:
    """Of switches equally near the one whose slowest link is fastest; of equals all."""
    planes = {"ranks": 2, "host_size": 2, "multicast": "true", "plane_mode": "hashed"}
    assert lay("star", planes="1+3", **planes).node_trees == ((SwitchTree(3, (0, 1)),),)
    assert lay("star", planes="2", **planes).node_trees == ((SwitchTree(2, (0, 1)), SwitchTree(3, (0, 1))),)


def test_equally_good_roots_are_all_found() -> None:
    """Each spine of a clos is the root of a tree over its leaves; ranks of one leaf need only that."""
    layout = lay("clos", leaves=2, spines=2, accelerators_per_leaf=2, multicast="true")
    leaves = (SwitchTree(4, (0, 1)), SwitchTree(5, (2, 3)))
    assert layout.rail_trees == ((SwitchTree(6, leaves), SwitchTree(7, leaves)),)
    one_leaf = lay("clos", (2, 3), leaves=2, spines=2, accelerators_per_leaf=2, multicast="true")
    assert one_leaf.rail_trees == ((SwitchTree(3, (0, 1)),),)


def test_addresses_of_switches_follow_the_ranks() -> None:
    """Also where fewer ranks take part than there are accelerators; a plain switch has none."""
    topology = load_fabric("star", {"ranks": "4", "multicast": "true"})
    assert topology.addresses == (0, 1, 2, 3, 4)
    assert take_ranks(topology, 2).addresses == (0, 1, 4)
    assert load_fabric("star", {"ranks": "4"}).addresses == (0, 1, 2, 3)


@pytest.mark.parametrize("switching", ["nvlink", "roce-pfc"])
def test_a_fabric_with_packets_combines_nothing(switching: str) -> None:
    """There is no switch that takes part, and the reason is told."""
    layout = lay("star", ranks=4, host_size=4, multicast="true", switching=switching)
    assert layout.switches == () and layout.node_trees == ((),)
    assert layout.cannot == "this fabric has switching, where packets are not combined"
