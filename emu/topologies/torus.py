"""torus: a grid of accelerators of any dimension whose rows are rings.

Law: traffic corrects one dimension after the other, the shorter way round; equally long ways
share it (:class:`emu.topologies.routers.DimensionOrder`).  Uniform all-to-all is bound by
8 b / k per endpoint for links of rate b and even dimensions of size k > 2 (Dally and Towles, 2004,
chapter 5).  A dimension of size 2 has one cable, not two.

With ``injection_rate`` the torus is one of routers, and each accelerator hangs on its own by a cable of that rate, as where a
node's adapters are fewer than its ports (:mod:`emu.topologies.grid`).
"""

from __future__ import annotations

from emu.parameters import RateBps, Shape, TimePs
from emu.topologies.cabling import LinkParameters
from emu.topologies.graph import Topology
from emu.topologies.grid import build_grid


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable."""

    shape: Shape = (4, 4)
    """Size of each dimension."""
    injection_rate: RateBps | None = None
    """What an accelerator sends into the torus, and takes out, at most; left out, all its cables at once."""
    injection_latency: TimePs | None = None
    """One way latency between an accelerator and its router, where there is an injection_rate; left out, latency."""


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. in row-major order."""
    shape = "x".join(map(str, parameters.shape))
    return build_grid(
        "torus",
        f"torus {shape}",
        parameters,
        shape=parameters.shape,
        wrap=True,
        injection_bps=parameters.injection_rate,
        injection_ps=parameters.injection_latency,
    )
