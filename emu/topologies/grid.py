"""Grids: what rings, meshes and tori have in common.

Law: node i has the row-major coordinates of i in the shape (the last dimension runs fastest),
and a cable to its neighbour in every dimension.  A dimension of size 1 has no cables; one of
size 2 has one cable, also where it wraps: the cable around would join the same two nodes again.
For two of them say ``planes=2``.
"""

from __future__ import annotations

import math
from typing import Final

from emu.errors import ConfigError
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import DimensionOrder

MOST_NODES: Final = 200_000


def build_grid(name: str, description: str, parameters: LinkParameters, *, shape: tuple[int, ...], wrap: bool) -> Topology:
    """A grid of accelerators, with or without wrap-around cables.  Raises ConfigError when it is too large."""
    n_nodes = math.prod(shape)
    if n_nodes > MOST_NODES:
        shown = "x".join(map(str, shape))
        raise ConfigError(f"{name}: shape = {shown} has {n_nodes} accelerators; use 1 to {MOST_NODES}")
    cabling = Cabling(parameters)
    for node in cabling.accelerators(n_nodes):
        stride = n_nodes
        for size in shape:
            stride //= size
            coordinate = node // stride % size
            if coordinate + 1 < size:
                cabling.cable(node, node + stride)
            elif wrap and size > 2:
                cabling.cable(node, node - coordinate * stride)
    return cabling.topology(
        name, description, DimensionOrder(shape=shape, wrap=wrap), structure=_structure(shape, wrap, parameters.rate)
    )


def _structure(shape: tuple[int, ...], wrap: bool, rate_bps: int) -> Structure:
    """The longest dimension, where it is even, is the one to cut; where it is a ring, it is cut twice."""
    longest = max(shape)
    n_cut = math.prod(shape) // longest * (2 if wrap and longest > 2 else 1)
    return Structure(
        diameter_links=sum(size // 2 if wrap else size - 1 for size in shape),
        bisection_bps=None if longest % 2 else n_cut * rate_bps,
    )
