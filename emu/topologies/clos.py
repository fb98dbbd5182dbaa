"""clos: leaf switches with accelerators, each leaf cabled to every spine (leaf-spine, two levels).

Law: accelerators of one leaf meet in it (two links); others cross one spine (four links), which
ECMP picks per flow.  Each leaf's uplinks together carry its accelerators' rate divided by
``oversubscription``, spread evenly over the spines; 1 is non-blocking.

Switches s0 .. s(leaves-1) are the leaves, the spines follow; accelerator i sits on leaf
i // accelerators_per_leaf.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Self

from pydantic import Field, model_validator

from emu.parameters import RateBps, Ratio, TimePs
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import ShortestPath

_MOST_CABLES: Final = 65536


class Parameters(LinkParameters):
    """``rate`` is an accelerator's; ``latency`` is that of each cable, with the switch behind it."""

    leaves: int = Field(default=4, ge=1, le=1024)
    """Number of leaf switches."""
    spines: int = Field(default=4, ge=1, le=1024)
    """Number of spine switches."""
    accelerators_per_leaf: int = Field(default=4, ge=1, le=1024)
    """Accelerators on each leaf."""
    cables_per_pair: int = Field(default=1, ge=1, le=64)
    """Parallel cables between each leaf and each spine; ECMP picks one per flow."""
    oversubscription: Ratio | None = None
    """Rate of a leaf's accelerators over the rate of its uplinks; 1 when neither it nor uplink_rate is given."""
    uplink_rate: RateBps | None = None
    """Rate of each leaf-to-spine cable, instead of oversubscription."""
    uplink_latency: TimePs | None = None
    """One way latency of a leaf-to-spine cable; left out, latency."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.oversubscription is not None and self.uplink_rate is not None:
            raise ValueError("oversubscription and uplink_rate say the same thing twice; give one of them")
        n_cables = self.leaves * (self.spines * self.cables_per_pair + self.accelerators_per_leaf)
        if n_cables > _MOST_CABLES:
            raise ValueError(f"leaves, spines and accelerators make {n_cables} cables; use at most {_MOST_CABLES}")
        if self.uplink_bps < 1:
            raise ValueError("oversubscription leaves less than 1 bit/s to an uplink; lower it")
        return self

    @property
    def uplink_bps(self) -> int:
        """Rate of each leaf-to-spine cable, rounded down to a bit per second."""
        if self.uplink_rate is not None:
            return self.uplink_rate
        return int(Fraction(self.rate * self.accelerators_per_leaf, self.uplinks) / (self.oversubscription or 1))

    @property
    def uplinks(self) -> int:
        """Cables that leave a leaf upwards."""
        return self.spines * self.cables_per_pair


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.., leaves and spines s0..; links ``a0->s0``, ``s0->s4``."""
    cabling = Cabling(parameters)
    accelerators = cabling.accelerators(parameters.leaves * parameters.accelerators_per_leaf)
    switches = cabling.switches(parameters.leaves + parameters.spines)
    leaves, spines = switches[: parameters.leaves], switches[parameters.leaves :]
    for number, accelerator in enumerate(accelerators):
        cabling.cable(accelerator, leaves[number // parameters.accelerators_per_leaf])
    for leaf in leaves:
        for spine in spines:
            cabling.cable(
                leaf,
                spine,
                rate_bps=parameters.uplink_bps,
                latency_ps=parameters.uplink_latency,
                n_parallel=parameters.cables_per_pair,
            )
    leaf_text = f"{parameters.leaves} leaves x {parameters.accelerators_per_leaf} accelerators"
    widths_bps = len(accelerators) * parameters.rate, parameters.leaves * parameters.uplinks * parameters.uplink_bps
    known = Structure(bisection_bps=None if parameters.leaves % 2 else min(widths_bps) // 2)
    return cabling.topology("clos", f"{leaf_text}, {parameters.spines} spines", ShortestPath(), structure=known)
