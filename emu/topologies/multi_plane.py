"""multi_plane: leaf-spine networks side by side, the planes, in all of which every accelerator has links.

Law: accelerators of one leaf are two links apart, others four; planes meet in the accelerators only.  A cable's rate is split
over the planes as a star's is: *striped* planes are one network whose links are bundles of them, and every chunk uses all;
*hashed* planes are switches of their own, and connections deal their chunks over them in turn.  The destination picks the spine
(:class:`emu.topologies.routers.DModK`).  CPUs hang on the same leaves, carry no ranks, and send by their own rate.

Switches s0 .. are the leaves (by plane), then the spines (by plane); accelerator i is on leaf i // accelerators_per_leaf.
"""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from emu.errors import ConfigError
from emu.parameters import Planes, RateBps, TimePs
from emu.topologies.cabling import Cabling, LinkParameters, split_rate
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import DModK

_MOST_CABLES: Final = 400_000


class Parameters(LinkParameters):
    """``rate`` is an accelerator's, over all its links; ``latency`` is that of each of them, with the switch behind it."""

    planes: Planes = (1, 1)
    """Networks side by side: their number (7), or the lanes of each (5+4+4+5)."""
    leaves: int = Field(default=4, ge=1, le=1024)
    """Leaf switches in each plane."""
    spines: int = Field(default=2, ge=1, le=1024)
    """Spine switches in each plane."""
    accelerators_per_leaf: int = Field(default=2, ge=1, le=1024)
    """Accelerators on each leaf."""
    links_per_plane: int = Field(default=1, ge=1, le=16)
    """Links of an accelerator to its leaf in each plane; a chunk takes one of them."""
    cpus_per_leaf: int = Field(default=0, ge=0, le=64)
    """CPUs on each leaf."""
    cpu_rate: RateBps | None = None
    """Rate of a CPU, over one link to each plane; left out, rate."""
    cables_per_pair: int = Field(default=1, ge=1, le=64)
    """Parallel cables between each leaf and each spine of its plane."""
    uplink_rate: RateBps | None = None
    """Rate of such a cable in all planes together; left out, what makes a leaf's uplinks as fast as its accelerators."""
    uplink_latency: TimePs | None = None
    """One way latency of such a cable; left out, latency."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        per_leaf = self.accelerators_per_leaf * self.links_per_plane + self.cpus_per_leaf + self.spines * self.cables_per_pair
        n_cables = len(self.planes) * self.leaves * per_leaf
        if n_cables > _MOST_CABLES:
            raise ValueError(f"planes, leaves and spines make {n_cables} cables; use at most {_MOST_CABLES}")
        return self

    @property
    def uplink_bps(self) -> int:
        """Rate of a cable between a leaf and a spine, in all planes together, rounded down to a bit per second."""
        return self.uplink_rate or self.rate * self.accelerators_per_leaf // (self.spines * self.cables_per_pair)


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.., CPUs c0.. and switches s0..  Raises ConfigError."""
    leaves, spines, lanes = parameters.leaves, parameters.spines, parameters.planes
    hashed = parameters.plane_mode == "hashed"
    networks = len(lanes) if hashed else 1
    cabling = Cabling(parameters.model_copy(update={"planes": (1,)}) if hashed else parameters)
    accelerators = cabling.accelerators(leaves * parameters.accelerators_per_leaf)
    cpus = cabling.cpus(leaves * parameters.cpus_per_leaf)
    switches = cabling.switches(networks * (leaves + spines))
    link_bps = parameters.rate // parameters.links_per_plane
    if min(link_bps, parameters.uplink_bps) < 1:
        raise ConfigError("multi_plane: less than 1 bit/s is left to a link; raise rate or use fewer of them")

    def share_bps(rate_bps: int, network: int) -> int:
        return split_rate(rate_bps, lanes)[network] if hashed else rate_bps

    for network in range(networks):
        own = switches[network * leaves : (network + 1) * leaves]
        first_spine = networks * leaves + network * spines
        for number, accelerator in enumerate(accelerators):
            leaf = own[number // parameters.accelerators_per_leaf]
            cabling.cable(accelerator, leaf, rate_bps=share_bps(link_bps, network), n_parallel=parameters.links_per_plane)
        for number, cpu in enumerate(cpus):
            rate_bps = share_bps(parameters.cpu_rate or parameters.rate, network)
            cabling.cable(cpu, own[number // parameters.cpus_per_leaf], rate_bps=rate_bps)
        for leaf in own:
            for spine in switches[first_spine : first_spine + spines]:
                cabling.cable(
                    leaf,
                    spine,
                    rate_bps=share_bps(parameters.uplink_bps, network),
                    latency_ps=parameters.uplink_latency,
                    n_parallel=parameters.cables_per_pair,
                )
    text = f"{len(lanes)} planes of {leaves} leaves and {spines} spines, {parameters.accelerators_per_leaf} accelerators a leaf"
    ends, uplinks = len(accelerators) * parameters.links_per_plane, leaves * spines * parameters.cables_per_pair
    widths_bps = [
        min(ends * share_bps(link_bps, network), uplinks * share_bps(parameters.uplink_bps, network))
        for network in range(networks)
    ]
    return cabling.topology(
        "multi_plane",
        text,
        DModK(spread=networks * parameters.links_per_plane),
        structure=Structure(
            diameter_links=4 if leaves > 1 else 2,
            bisection_bps=None if leaves % 2 else sum(widths_bps) // 2,
        ),
    )
