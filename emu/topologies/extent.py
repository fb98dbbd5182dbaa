"""How far a graph reaches: its diameter and its bisection, found by search.

Law: both are computed from nodes and links alone.  Where that would take long they are None, and a builder may know them by
the graph's structure (:class:`emu.topologies.graph.Structure`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emu.topologies.graph import NodeKind, Topology

_MOST_SEARCHED_BITS: Final = 1_000_000_000
"""Cables times starts of a search for the diameter."""
_MOST_LINKS_TO_CUT: Final = 2_000
_BLOCK: Final = 4096
"""Ends that are searched for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Starts and goals (as bits) of equal distance from their accelerators; ``extra`` is both of those."""

    starts: NDArray[np.intp]
    goals: NDArray[np.uint8]
    extra: int


def diameter_links(topology: Topology) -> int | None:
    """Most links on a shortest way between two accelerators; None when the search is too long.

    An accelerator that hangs on one switch is as far from all others as that is, and one link more.  All ends are searched for
    at once: a bit for each, which nodes hand back to those that reach them until nothing is new.
    """
    accelerators = [i for i, node in enumerate(topology.nodes) if node.kind is NodeKind.ACCELERATOR]
    if len(accelerators) < 2:
        return 0
    joined: list[set[int]] = [set() for _ in topology.nodes]
    for link in topology.links:
        joined[link.source].add(link.target)
        joined[link.target].add(link.source)
    leaves = {i for i in accelerators if len(joined[i]) == 1 and topology.nodes[min(joined[i])].kind is NodeKind.SWITCH}
    ends = sorted({(min(joined[i]), 1) if i in leaves else (i, 0) for i in accelerators})
    pairs = sorted({(x.source, x.target) for x in topology.links if x.source not in leaves and x.target not in leaves})
    if len(pairs) * len(ends) > _MOST_SEARCHED_BITS:
        return None
    cables = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    blocks = (ends[first : first + _BLOCK] for first in range(0, len(ends), _BLOCK))
    return max(_furthest(len(topology.nodes), cables, ends, block) for block in blocks)


def _furthest(n_nodes: int, cables: NDArray[np.intp], starts: list[tuple[int, int]], goals: list[tuple[int, int]]) -> int:
    """Most links from a start to a goal, each (node, links between it and its accelerators)."""
    reached = np.zeros((n_nodes, -(-len(goals) // 8)), dtype=np.uint8)
    for bit, (node, _) in enumerate(goals):
        reached[node, bit // 8] |= 128 >> bit % 8
    groups = [
        _Group(
            starts=np.array([node for node, own in starts if own == near], dtype=np.intp),
            goals=np.packbits([own == far for _, own in goals]),
            extra=near + far,
        )
        for near in (0, 1)
        for far in (0, 1)
    ]
    groups = [group for group in groups if len(group.starts) and group.goals.any()]
    sources, firsts = np.unique(cables[:, 0], return_index=True)
    furthest = level = 0
    while True:
        done = [bool(np.all(reached[group.starts] & group.goals == group.goals)) for group in groups]
        furthest = max([furthest, *(level + group.extra for group, now in zip(groups, done, strict=True) if now)])
        groups = [group for group, now in zip(groups, done, strict=True) if not now]
        before = reached[sources]
        if not groups or not len(sources):
            return furthest
        reached[sources] |= np.bitwise_or.reduceat(reached[cables[:, 1]], firsts, axis=0)
        if np.array_equal(before, reached[sources]):
            return furthest
        level += 1


def bisection_bps(topology: Topology) -> int | None:
    """The least that one half of the accelerators can send to the other half, one direction.

    The max flow over each halving whose halves repeat regularly in the accelerators' order (lower and
    upper half; every second block of m).  These hold the worst halving of the generic
    topologies with an even number of accelerators; of other graphs the figure is an upper bound.
    None for fewer than two accelerators, or too many links where there are nodes of other kinds.
    """
    accelerators = [i for i, node in enumerate(topology.nodes) if node.kind is NodeKind.ACCELERATOR]
    n = len(accelerators)
    is_direct = n == len(topology.nodes)
    if n < 2 or (len(topology.links) > _MOST_LINKS_TO_CUT and not is_direct):
        return None
    halvings = {tuple(number < n // 2 for number in range(n))}
    for block in range(1, n // 2 + 1):
        if n % (2 * block) == 0:
            halvings.add(tuple(number // block % 2 == 0 for number in range(n)))
    if is_direct:
        return min(_crossing_bps(topology, halving) for halving in halvings)
    return min(_cut_bps(topology, accelerators, halving) for halving in halvings)


def _crossing_bps(topology: Topology, is_sender: tuple[bool, ...]) -> int:
    """The cut where every node is on one side: links from senders to others."""
    return sum(link.rate_bps for link in topology.links if is_sender[link.source] and not is_sender[link.target])


def _cut_bps(topology: Topology, accelerators: list[int], is_sender: tuple[bool, ...]) -> int:
    import networkx  # slow to import, and actors never describe

    graph = networkx.DiGraph()
    for link in topology.links:
        known = graph.get_edge_data(link.source, link.target, {"capacity": 0})["capacity"]
        graph.add_edge(link.source, link.target, capacity=known + link.rate_bps)
    for accelerator, sends in zip(accelerators, is_sender, strict=True):
        graph.add_edge(*(("senders", accelerator) if sends else (accelerator, "receivers")))
    return int(networkx.maximum_flow_value(graph, "senders", "receivers"))
