"""Ways over grids in dimension order, of all messages at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from emu.scale.call import NotExact, Times
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder

STARTED_AT_ONCE: Final = 1 << 20
"""Messages of a block of ranks."""


def next_links(topology: Topology, router: DimensionOrder, lane: int) -> npt.NDArray[np.int32]:
    """The router's rule for all nodes and targets (ranks) at once.  Raises NotExact where cables are parallel."""
    n = topology.n_ranks
    between = {(link.source, link.target): index for index, link in enumerate(topology.links)}
    if len(between) < len(topology.links):
        raise NotExact("a hash picks among parallel cables")
    found = np.full((n, 1), -1, np.int32)
    nodes = np.arange(n)
    routers = nodes + router.first
    n_ties = sum(map(router.ties, router.shape))
    stride = 1
    for size in reversed(router.shape):
        here, goals = (nodes // stride % size)[:, None], np.arange(size)
        ahead = (goals - here) % size
        up = 2 * ahead < size if router.wrap else goals > here
        if router.ties(size):
            n_ties -= 1
            up |= (2 * ahead == size) & ((here + (lane >> n_ties)) % 2 == 0)
        upward, downward = (
            np.array([between.get(ends, -1) for ends in zip(routers.tolist(), neighbours.tolist(), strict=True)], np.int32)
            for neighbours in (routers + ((here[:, 0] + step) % size - here[:, 0]) * stride for step in (1, -1))
        )
        its = np.where(up, upward[:, None], downward[:, None])[:, :, None]
        found = np.where((ahead == 0)[:, :, None], found[:, None, :], its).reshape(n, -1)
        stride *= size
    if router.first:
        into, back = (
            np.array([between[ends] for ends in zip(sources.tolist(), targets.tolist(), strict=True)], np.int32)
            for sources, targets in ((nodes, routers), (routers, nodes))
        )
        found[nodes, nodes] = back
        found = np.concatenate([np.where(nodes[:, None] == nodes, -1, into[:, None]), found])
    return found


def farthest_first(router: DimensionOrder, sources: Times, n: int) -> Times:
    """Where each of these ranks sends: the farthest first, then in the order in which targets follow."""
    targets = (sources[:, None] + np.arange(1, n)) % n
    nearness = np.take_along_axis(-_hops(router, sources), targets, axis=1)
    return np.take_along_axis(targets, np.argsort(nearness, axis=1, kind="stable"), axis=1)


def _hops(router: DimensionOrder, sources: Times) -> npt.NDArray[np.int16]:
    """Links on the way from each of these to each node."""
    stride = 1
    hops = np.zeros((len(sources), 1), np.int16)
    for size in reversed(router.shape):
        offset = np.arange(size) - (sources // stride % size)[:, None]
        its = np.minimum(offset % size, -offset % size) if router.wrap else np.abs(offset)
        hops = (its.astype(np.int16)[:, :, None] + hops[:, None, :]).reshape(len(sources), -1)
        stride *= size
    return hops
