"""Grids: what rings, meshes and tori have in common.

Law: node i has the row-major coordinates of i in the shape (the last dimension runs fastest),
and a cable to its neighbour in every dimension.  A dimension of size 1 has no cables; one of
size 2 has one cable, also where it wraps: the cable around would join the same two nodes again.
For two of them say ``planes=2``.

Where what a node sends into the grid is limited apart from the cables, nodes of the grid are routers, on each of which an
accelerator hangs by a cable of its own: router i carries on all its cables at once, and accelerator i sends over one.
"""

from __future__ import annotations

import math
from typing import Final

from emu.errors import ConfigError
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import DimensionOrder

MOST_NODES: Final = 200_000


def build_grid(
    name: str,
    description: str,
    parameters: LinkParameters,
    *,
    shape: tuple[int, ...],
    wrap: bool,
    injection_bps: int | None = None,
    injection_ps: int | None = None,
) -> Topology:
    """A grid of accelerators, with or without wrap-around cables; of routers, where there is a rate of injection.

    Raises ConfigError when it is too large.
    """
    n_nodes = math.prod(shape)
    if n_nodes > MOST_NODES:
        shown = "x".join(map(str, shape))
        raise ConfigError(f"{name}: shape = {shown} has {n_nodes} accelerators; use 1 to {MOST_NODES}")
    cabling = Cabling(parameters)
    grid = accelerators = cabling.accelerators(n_nodes)
    if injection_bps is not None:
        grid = cabling.switches(n_nodes)
        for accelerator, router in zip(accelerators, grid, strict=True):
            cabling.cable(accelerator, router, rate_bps=injection_bps, latency_ps=injection_ps)
    for number, node in enumerate(grid):
        stride = n_nodes
        for size in shape:
            stride //= size
            coordinate = number // stride % size
            if coordinate + 1 < size:
                cabling.cable(node, node + stride)
            elif wrap and size > 2:
                cabling.cable(node, node - coordinate * stride)
    return cabling.topology(
        name,
        description,
        DimensionOrder(shape=shape, wrap=wrap, first=grid.start),
        structure=_structure(shape, wrap, parameters.rate, injection_bps),
    )


def _structure(shape: tuple[int, ...], wrap: bool, rate_bps: int, injection_bps: int | None) -> Structure:
    """The longest dimension, where it is even, is the one to cut; where it is a ring, it is cut twice."""
    longest, n_nodes = max(shape), math.prod(shape)
    width_bps = n_nodes // longest * (2 if wrap and longest > 2 else 1) * rate_bps
    diameter_links = sum(size // 2 if wrap else size - 1 for size in shape)
    if injection_bps is not None and n_nodes > 1:
        width_bps = min(width_bps, n_nodes // 2 * injection_bps)
        diameter_links += 2
    return Structure(diameter_links=diameter_links, bisection_bps=None if longest % 2 else width_bps)
