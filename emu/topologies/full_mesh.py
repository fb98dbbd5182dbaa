"""full_mesh: every accelerator cabled to every other one; no switch.

Law: every pair has a cable of its own, so all-to-all among n accelerators runs at (n - 1) x rate
per accelerator, and a single pair at 1 x rate.
"""

from __future__ import annotations

from itertools import combinations

from pydantic import Field

from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Topology
from emu.topologies.routers import ShortestPath


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable."""

    ranks: int = Field(default=8, ge=1, le=256)
    """Number of accelerators."""


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. with a cable between each two."""
    cabling = Cabling(parameters)
    for a, b in combinations(cabling.accelerators(parameters.ranks), 2):
        cabling.cable(a, b)
    return cabling.topology("full_mesh", f"full mesh of {parameters.ranks} accelerators", ShortestPath())
