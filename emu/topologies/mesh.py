"""mesh: a grid of accelerators of any dimension, without wrap-around cables.

Law: traffic corrects one dimension after the other
(:class:`emu.topologies.routers.DimensionOrder`); the middle carries more than the rim.
Uniform all-to-all is bound by 4 b / k per endpoint for links of rate b and largest dimension k
(Dally and Towles, 2004, chapter 5).
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
    return build_grid("mesh", f"mesh {shape}, no wrap-around", parameters, shape=parameters.shape, wrap=False)
