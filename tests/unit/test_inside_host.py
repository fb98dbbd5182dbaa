"""Hosts: which addresses lie in one."""

from __future__ import annotations

from emu.topologies.fabric_file import load_fabric
from emu.topologies.hosts import inside


def test_a_nodes_own_switches_are_inside_and_leaves_are_not() -> None:
    """On rails with in-network reduction a rank's host holds its accelerators and its own switch, not the rails' leaves."""
    settings = {"nodes": "2", "rails": "4", "nodes_per_leaf": "2", "host_size": "4", "node_rate": "900GB/s", "multicast": "true"}
    fabric = load_fabric("rails", settings)
    names = [fabric.nodes[node].name for node in fabric.addresses]
    found = [{names[address] for address in inside(fabric, rank)} for rank in (0, 3, 4)]
    assert found[0] == found[1]
    assert {name for name in found[0] if name.startswith("a")} == {"a0", "a1", "a2", "a3"}
    assert {name for name in found[2] if name.startswith("a")} == {"a4", "a5", "a6", "a7"}
    assert len(found[0]) == 5 and not found[0] & found[2]


def test_without_hosts_each_rank_is_its_own() -> None:
    """Where no host is given, nothing but the rank itself is inside."""
    fabric = load_fabric("star", {"ranks": "3", "multicast": "true"})
    assert [inside(fabric, rank) for rank in range(3)] == [{0}, {1}, {2}]


def test_one_host_holds_its_switch() -> None:
    """A switch that joins the accelerators of one host alone is that host's."""
    fabric = load_fabric("star", {"ranks": "2", "multicast": "true", "host_size": "2"})
    assert inside(fabric, 0) == inside(fabric, 1) == {0, 1, 2}
