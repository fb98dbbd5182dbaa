"""torus: a grid of accelerators of any dimension whose rows are rings.

Law: traffic corrects one dimension after the other, the shorter way round; equally long ways
share it (:class:`emu.topologies.routers.DimensionOrder`).  Uniform all-to-all is bound by
8 b / k per endpoint for links of rate b and even dimensions of size k > 2 (Dally and Towles, 2004,
chapter 5).  A dimension of size 2 has one cable, not two.
"""

from __future__ import annotations

from emu.parameters import Shape
from emu.topologies.cabling import LinkParameters
from emu.topologies.graph import Topology
from emu.topologies.grid import build_grid


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable."""

    shape: Shape = (4, 4)
    """Size of each dimension."""


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. in row-major order."""
    shape = "x".join(map(str, parameters.shape))
    return build_grid("torus", f"torus {shape}", parameters, shape=parameters.shape, wrap=True)
