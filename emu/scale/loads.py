"""Loads: how many messages of an alltoall over all ranks each link carries, counted by where they go and not one by one.

Grids in dimension order: on a ring of k nodes, whatever the other coordinates are, n / k messages go from each node to each
other.  Switches: messages to one switch's accelerators are one stream, which every node deals evenly over its equal ways; so
do the destinations of :class:`emu.topologies.routers.DModK`, and so does a hash on average (:class:`ShortestPath`).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from emu.scale.call import NotExact
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.routers import DimensionOrder, DModK, ShortestPath

Loads = npt.NDArray[np.float64]
STREAMS_AT_ONCE: Final = 128
MOST_BEHIND: Final = 256


def alltoall_loads(topology: Topology) -> Loads:
    """Messages by link, on average over what hashes may give.  Raises NotExact where the fabric is neither."""
    router = topology.router
    if isinstance(router, DimensionOrder):
        return _grid(topology, router)
    if isinstance(router, DModK):
        _check_even(topology)
    if isinstance(router, ShortestPath):
        return _switched(topology)
    raise NotExact(f"loads under {type(router).__name__} are not known")


def _check_even(topology: Topology) -> None:
    """Raises NotExact where the digits of targets leave some of the cables to their switch idle: looked at for the last one."""
    links, ranks = topology.links, topology.ranks
    routes = [topology.route(ranks[0], target, 0) for target in ranks[-MOST_BEHIND:]]
    gate = links[routes[-1][-1]].source
    last = [route[-2] for route in routes if len(route) > 2 and links[route[-1]].source == gate]
    n_cables = sum(link.target == gate and topology.nodes[link.source].kind == NodeKind.SWITCH for link in links)
    if last and max(map(last.count, last)) > -(-len(last) // n_cables):
        raise NotExact("static routes leave some of a switch's parallel cables idle")


def _grid(topology: Topology, router: DimensionOrder) -> Loads:
    shape = router.shape
    n = math.prod(shape)
    if topology.ranks != tuple(range(n)):
        raise NotExact("ranks are not the nodes of the grid in their order")
    ends = np.array([(link.source, link.target) for link in topology.links], np.int64)
    _, same, n_parallel = np.unique(ends @ (len(topology.nodes), 1), return_inverse=True, return_counts=True)
    hangs = ends.min(axis=1) < router.first
    loads = np.where(hangs, n - 1.0, 0.0)
    ends -= router.first
    ends[hangs] = 0
    stride = n
    for size in shape:
        stride //= size
        here, there = (ends // stride % size).T
        mine = here != there
        ahead = (there - here) % size == 1
        crossings = np.array(_crossings(size, wrap=router.wrap))
        loads[mine] = n // size * crossings[np.where(ahead, 0, 1)[mine], here[mine]]
    loads /= n_parallel[same]
    return loads


def _crossings(size: int, *, wrap: bool) -> tuple[list[float], list[float]]:
    """Ways from node to node of one dimension that leave each node upwards, and downwards."""
    up, down = [0.0] * size, [0.0] * size
    for start in range(size):
        for target in range(size):
            ahead = (target - start) % size
            if not wrap:
                up_weight = float(target > start)
            elif 2 * ahead == size and size > 2:
                up_weight = 0.5
            else:
                up_weight = float(2 * ahead < size)
            if size == 2:
                up_weight = float(ahead == 1)
            for hop in range(ahead if wrap else max(0, target - start)):
                up[(start + hop) % size] += up_weight
            for hop in range(size - ahead if wrap and ahead else max(0, start - target)):
                down[(start - hop) % size] += 1 - up_weight
    return up, down


def _switched(topology: Topology) -> Loads:
    """By flow conservation: the streams to each gate, from the switches that are farthest from it to the nearest."""
    links, ranks = topology.links, topology.ranks
    is_rank = np.zeros(len(topology.nodes), bool)
    is_rank[list(ranks)] = True
    ends = np.array([(link.source, link.target) for link in links], np.int64)
    gates_of: dict[int, set[int]] = {node: set() for node in ranks}
    for source, target in ends[is_rank[ends[:, 0]]].tolist():
        gates_of[source].add(target)
    if any(len(gates) != 1 or is_rank[min(gates)] for gates in gates_of.values()):
        raise NotExact("accelerators hang on several switches, or on each other")
    gate = np.array([min(gates_of[node]) for node in ranks], np.int64)
    gates, n_behind = np.unique(gate, return_counts=True)
    n = len(ranks)
    keys, same, n_parallel = np.unique(ends @ (len(topology.nodes), 1), return_inverse=True, return_counts=True)
    source, target = np.divmod(keys, len(topology.nodes))
    inner = ~is_rank[source] & ~is_rank[target]
    by_pair = np.where(is_rank[source] | is_rank[target], n - 1.0, 0.0)
    by_pair[is_rank[source] & is_rank[target]] = 0.0
    for first in range(0, len(gates) if inner.any() else 0, STREAMS_AT_ONCE):  # a star has no links between switches
        some = gates[first : first + STREAMS_AT_ONCE]
        flow = np.zeros((len(topology.nodes), len(some)), np.float64)
        flow[gates] = np.outer(n_behind, n_behind[first : first + STREAMS_AT_ONCE])
        by_pair[inner] += _streams(source[inner], target[inner], n_parallel[inner], some, flow)
    loads: Loads = (by_pair / n_parallel)[same]
    return loads


def _streams(
    source: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    cables: npt.NDArray[np.int64],
    goals: npt.NDArray[np.int64],
    flow: Loads,
) -> Loads:
    """What pairs of switches carry of the streams to some goals; pairs are in order of ``source``.  Uses ``flow`` up."""
    starts = np.flatnonzero(np.concatenate([[True], source[1:] != source[:-1]]))
    froms = source[starts]
    number = np.cumsum(np.concatenate([[0], source[1:] != source[:-1]]))
    into = np.argsort(target, kind="stable")
    into_starts = np.flatnonzero(np.concatenate([[True], np.diff(target[into]) != 0]))
    tos = target[into[into_starts]]
    distance = np.full(flow.shape, -1, np.int16)
    columns = np.arange(len(goals))
    distance[goals, columns] = 0
    farthest = 0
    while True:
        near = np.logical_or.reduceat(distance[target] == farthest, starts) & (distance[froms] < 0)
        if not near.any():
            break
        farthest += 1
        distance[froms] = np.where(near, farthest, distance[froms])
    carried = np.zeros(len(source), np.float64)
    for hops in range(farthest, 0, -1):
        onward = (distance[source] == hops) & (distance[target] == hops - 1)
        ways = onward * cables[:, None]
        share = flow[froms] / np.maximum(np.add.reduceat(ways, starts), 1)
        moved = share[number] * ways
        carried += moved.sum(axis=1)
        flow[tos] += np.add.reduceat(moved[into], into_starts)
    return carried
