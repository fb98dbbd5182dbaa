"""Hosts: what of a fabric lies in one host, as NCCL sees its nodes.

Law: a pure function of the graph.  A switch is a host's own where all that it joins are accelerators of that host.
"""

from __future__ import annotations

from functools import lru_cache

from emu.topologies.graph import NodeKind, Topology
from emu.topologies.tiers import Same


def inside(topology: Topology, rank: int) -> frozenset[int]:
    """Addresses (:attr:`Topology.addresses`) that the rank reaches without leaving its host, its own too."""
    return _inside(Same(topology))[rank]


@lru_cache(maxsize=4)
def _inside(same: Same) -> tuple[frozenset[int], ...]:
    """By address those of the host that it lies in."""
    hosts = _hosts(same.topology)
    found: dict[str | int, list[int]] = {}
    for address, host in enumerate(hosts):
        found.setdefault(host, []).append(address)
    its = {host: frozenset(addresses) for host, addresses in found.items()}
    return tuple(its[host] for host in hosts)


def _hosts(topology: Topology) -> tuple[str | int, ...]:
    """Per address the host that it lies in; where that is none, a number of its own."""
    joined: dict[int, set[str | int]] = {}
    for link in topology.links:
        joined.setdefault(link.target, set()).add(_host(topology, link.source))
    found: list[str | int] = []
    for node in topology.addresses:
        is_switch = topology.nodes[node].kind is NodeKind.SWITCH
        hosts = joined.get(node, set()) if is_switch else {_host(topology, node)}
        found.append(next(iter(hosts)) if len(hosts) == 1 else node)
    return tuple(found)


def _host(topology: Topology, node: int) -> str | int:
    its = topology.nodes[node]
    return (its.host if its.kind is NodeKind.ACCELERATOR else "") or node
