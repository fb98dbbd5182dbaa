"""fat_tree: three levels of switches, leaves and spines in pods, and cores that join the pods.

Law: accelerators of one leaf are two links apart, of one pod four, of different pods six.  The uplinks of a leaf carry its
accelerators' rate divided by ``oversubscription``, those of a pod its leaves' uplinks divided by ``core_oversubscription``;
spine j of every pod is cabled to the j-th share of the cores, all alike (Clos 1953; Leiserson 1985).

Switches s0 .. are the leaves in order of pod, then the spines in order of pod, then the cores.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from emu.parameters import Ratio, TimePs
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import DModK, ShortestPath

_MOST_CABLES: Final = 400_000


class Parameters(LinkParameters):
    """``rate`` is an accelerator's; ``latency`` is that of its cable, with the switch behind it."""

    pods: int = Field(default=2, ge=1, le=1024)
    """Number of pods."""
    leaves: int = Field(default=2, ge=1, le=1024)
    """Leaf switches in each pod."""
    spines: int = Field(default=2, ge=1, le=1024)
    """Spine switches in each pod."""
    cores: int = Field(default=4, ge=1, le=4096)
    """Core switches in all, a multiple of spines."""
    accelerators_per_leaf: int = Field(default=4, ge=1, le=1024)
    """Accelerators on each leaf."""
    cables_per_pair: int = Field(default=1, ge=1, le=64)
    """Parallel cables between each leaf and each spine of its pod."""
    core_cables_per_pair: int = Field(default=1, ge=1, le=64)
    """Parallel cables between a spine and each of its cores."""
    oversubscription: Ratio = Fraction(1)
    """Rate of a leaf's accelerators over the rate of its uplinks."""
    core_oversubscription: Ratio = Fraction(1)
    """Rate of the uplinks of a pod's leaves over the rate of the pod's own."""
    uplink_latency: TimePs | None = None
    """One way latency of a cable between switches; left out, latency."""
    routing: Literal["ecmp", "d_mod_k"] = "ecmp"
    """ecmp: a seeded hash picks among equal ways; d_mod_k: the destination does, as static InfiniBand routes."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cores % self.spines:
            raise ValueError(
                f"cores must be a multiple of spines, as each spine has its share of them; {self.spines} spines here"
            )
        n_cables = self.pods * self.leaves * (self.accelerators_per_leaf + self.spines * self.cables_per_pair)
        n_cables += self.pods * self.cores * self.core_cables_per_pair
        if n_cables > _MOST_CABLES:
            raise ValueError(f"pods, leaves, spines and cores make {n_cables} cables; use at most {_MOST_CABLES}")
        if min(self.uplink_bps, self.core_bps) < 1:
            raise ValueError("oversubscription leaves less than 1 bit/s to an uplink; lower it")
        return self

    @property
    def uplink_bps(self) -> int:
        """Rate of each leaf-to-spine cable, rounded down to a bit per second."""
        leaf_bps = self.rate * self.accelerators_per_leaf / self.oversubscription
        return int(leaf_bps / (self.spines * self.cables_per_pair))

    @property
    def core_bps(self) -> int:
        """Rate of each spine-to-core cable, rounded down to a bit per second."""
        pod_bps = self.leaves * self.spines * self.cables_per_pair * self.uplink_bps / self.core_oversubscription
        return int(pod_bps / (self.cores * self.core_cables_per_pair))


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. in order of leaf, and switches s0.."""
    pods, leaves, spines = parameters.pods, parameters.leaves, parameters.spines
    cabling = Cabling(parameters)
    accelerators = cabling.accelerators(pods * leaves * parameters.accelerators_per_leaf)
    switches = cabling.switches(pods * (leaves + spines) + parameters.cores)
    first_spine, first_core = pods * leaves, pods * (leaves + spines)
    for number, accelerator in enumerate(accelerators):
        cabling.cable(accelerator, switches[number // parameters.accelerators_per_leaf])
    for leaf in range(pods * leaves):
        for spine in range(spines):
            cabling.cable(
                switches[leaf],
                switches[first_spine + leaf // leaves * spines + spine],
                rate_bps=parameters.uplink_bps,
                latency_ps=parameters.uplink_latency,
                n_parallel=parameters.cables_per_pair,
            )
    share = parameters.cores // spines
    for number in range(pods * spines):
        for core in range(number % spines * share, (number % spines + 1) * share):
            cabling.cable(
                switches[first_spine + number],
                switches[first_core + core],
                rate_bps=parameters.core_bps,
                latency_ps=parameters.uplink_latency,
                n_parallel=parameters.core_cables_per_pair,
            )
    text = f"{pods} pods x {leaves} leaves x {parameters.accelerators_per_leaf} accelerators, {spines} spines a pod"
    return cabling.topology(
        "fat_tree",
        f"{text}, {parameters.cores} cores",
        ShortestPath() if parameters.routing == "ecmp" else DModK(),
        structure=_structure(parameters),
    )


def _structure(parameters: Parameters) -> Structure:
    """The bisection is that of the narrowest level, where pods, or the leaves of one pod, can be halved."""
    n_leaves = parameters.pods * parameters.leaves
    n_ranks = n_leaves * parameters.accelerators_per_leaf
    diameter_links = 6 if parameters.pods > 1 else 4 if n_leaves > 1 else 2 if n_ranks > 1 else 0
    widths_bps = [n_ranks * parameters.rate, n_leaves * parameters.spines * parameters.cables_per_pair * parameters.uplink_bps]
    halves = parameters.leaves
    if parameters.pods > 1:
        halves = parameters.pods
        widths_bps.append(parameters.pods * parameters.cores * parameters.core_cables_per_pair * parameters.core_bps)
    return Structure(diameter_links=diameter_links, bisection_bps=None if halves % 2 else min(widths_bps) // 2)
