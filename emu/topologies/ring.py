"""ring: every accelerator cabled to two neighbours; no switch.

Law: traffic goes the shorter way round; between opposite nodes of an even ring it is shared by
both ways (:class:`emu.topologies.routers.DimensionOrder`).  Two accelerators are joined by one cable.
"""

from __future__ import annotations

from pydantic import Field

from emu.topologies.cabling import LinkParameters
from emu.topologies.graph import Topology
from emu.topologies.grid import MOST_NODES, build_grid


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable."""

    ranks: int = Field(default=8, ge=1, le=MOST_NODES)
    """Number of accelerators."""


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. with cables a0-a1, a1-a2, ... and the last back to a0."""
    return build_grid("ring", f"ring of {parameters.ranks} accelerators", parameters, shape=(parameters.ranks,), wrap=True)
