"""hyperx: a grid of accelerators with a full mesh along every row of every dimension (HyperX, nD full mesh).

Law: two accelerators are as many links apart as their coordinates differ in, so the diameter is the number of dimensions.
Shortest ways in any order of dimensions share the traffic by ECMP.
(Ahn et al., "HyperX: topology, routing, and packaging of efficient large-scale networks", SC 2009.)
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Final, Self

from pydantic import model_validator

from emu.parameters import RateBps, Shape, TimePs
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import ShortestPath

_MOST_NODES: Final = 4096


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable along the last dimension."""

    shape: Shape = (4, 4)
    """Size of each dimension; the last runs fastest."""
    outer_rate: RateBps | None = None
    """Rate of each cable along the other dimensions; left out, rate."""
    outer_latency: TimePs | None = None
    """One way latency of those; left out, latency."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if math.prod(self.shape) > _MOST_NODES:
            raise ValueError(f"shape has {math.prod(self.shape)} accelerators; use 1 to {_MOST_NODES}")
        return self


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. in row-major order."""
    cabling = Cabling(parameters)
    n_nodes = math.prod(parameters.shape)
    cabling.accelerators(n_nodes)
    stride = n_nodes
    for dimension, size in enumerate(parameters.shape):
        stride //= size
        is_last = dimension == len(parameters.shape) - 1
        for first in (node for node in range(n_nodes) if node // stride % size == 0):
            for a, b in combinations(range(first, first + size * stride, stride), 2):
                cabling.cable(
                    a,
                    b,
                    rate_bps=None if is_last else parameters.outer_rate,
                    latency_ps=None if is_last else parameters.outer_latency,
                )
    shape = "x".join(map(str, parameters.shape))
    known = Structure(diameter_links=sum(size > 1 for size in parameters.shape))
    return cabling.topology(
        "hyperx", f"{shape}, full mesh along every row", ShortestPath(), structure=known, nesting=parameters.shape
    )
