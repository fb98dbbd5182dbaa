"""star: every accelerator on one switch, or on each of several parallel switches.

Law: every accelerator reaches every other one over two links whose latencies add up to
``latency`` exactly (half on each; an odd picosecond falls on the second).  The switch itself
does not block: the only contention is at its output links.

Striped planes are one switch s0 that all planes share; hashed planes are a switch each,
``s0``, ``s1``, ..., and a flow crosses one of them.
"""

from __future__ import annotations

from pydantic import Field

from emu.parameters import TimePs
from emu.topologies.cabling import Cabling, LinkParameters, split_rate
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import ShortestPath


class Parameters(LinkParameters):
    """``rate`` is an accelerator's, per direction, over all planes."""

    ranks: int = Field(default=8, ge=1, le=4096)
    """Number of accelerators."""
    latency: TimePs = 1_000_000
    """One way, accelerator to accelerator, through the switch."""


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. and switches s0..; links ``a0->s0`` and ``s0->a0``."""
    lanes = parameters.planes
    hashed = parameters.plane_mode == "hashed" and len(lanes) > 1
    shares_bps = split_rate(parameters.rate, lanes)
    up_ps = parameters.latency // 2
    cabling = Cabling(parameters)
    accelerators = cabling.accelerators(parameters.ranks)
    switches = cabling.switches(len(lanes) if hashed else 1)
    for accelerator in accelerators:
        for switch, share_bps in zip(switches, shares_bps, strict=False):
            cabling.wire(
                accelerator,
                switch,
                rate_bps=share_bps if hashed else parameters.rate,
                latency_ps=up_ps,
                back_latency_ps=parameters.latency - up_ps,
                planes_bps=shares_bps if len(lanes) > 1 and not hashed else (),
            )
    middle = f"{len(switches)} parallel switches" if hashed else "one switch"
    return cabling.topology(
        "star",
        f"{parameters.ranks} accelerators on {middle}",
        ShortestPath(),
        structure=Structure(bisection_bps=parameters.ranks // 2 * parameters.rate or None),
    )
