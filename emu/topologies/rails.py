"""rails: nodes of accelerators with a switch of their own, and leaves for each rail, the i-th accelerators of all nodes.

Law: accelerator i of a node is on rail i: its network ports lead to leaves that serve only accelerators i.  ``joined``
(rail-optimised): all leaves of a plane share their spines, and any two accelerators meet over at most four links.  Not joined
(rail-only, or one plane for each rail): each rail has spines of its own, or none where one leaf holds it, and traffic to
another rail goes over the node's switch and an accelerator of that rail (Wang et al., "Rail-only", arXiv 2307.12169).

Switches s0 .. are those of the nodes, then the leaves by plane, rail and segment, then the spines by plane (and rail).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from emu.errors import ConfigError
from emu.keyed import mix
from emu.parameters import RateBps, TimePs
from emu.topologies.cabling import Cabling, LinkParameters, split_rate
from emu.topologies.graph import Structure, Topology
from emu.topologies.routers import ShortestPath

_MOST_CABLES: Final = 400_000


class Parameters(LinkParameters):
    """``rate`` is an accelerator's into the network, over all its ports; ``latency`` is that of its cable to a leaf."""

    nodes: int = Field(default=4, ge=1, le=8192)
    """Number of nodes."""
    rails: int = Field(default=2, ge=1, le=64)
    """Accelerators in each node, and networks that they are on."""
    node_rate: RateBps = 8 * 450 * 10**9
    """Rate of an accelerator to the switch of its node."""
    node_latency: TimePs = 500_000
    """One way latency of that link; from accelerator to accelerator it is twice as long."""
    nodes_per_leaf: int = Field(default=2, ge=1, le=1024)
    """Nodes of a segment, which share a leaf for each rail."""
    ports: int = Field(default=1, ge=1, le=8)
    """Network ports of an accelerator, each on a plane of its own with its own leaves and spines."""
    spines: int = Field(default=2, ge=1, le=1024)
    """Spines of a plane where rails are joined, else of each rail in it; none is built where one leaf holds a rail by itself."""
    cables_per_pair: int = Field(default=1, ge=1, le=64)
    """Parallel cables between a leaf and a spine."""
    uplink_rate: RateBps | None = None
    """Rate of such a cable; left out, what makes a leaf's uplinks as fast as its accelerators."""
    uplink_latency: TimePs | None = None
    """One way latency of such a cable; left out, latency."""
    joined: bool = True
    """Whether spines join the rails."""
    routing: Literal["ecmp", "d_mod_k"] = "ecmp"
    """ecmp: a seeded hash picks among equal ways; d_mod_k: the destination does."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.nodes % self.nodes_per_leaf:
            raise ValueError(f"nodes must be a multiple of nodes_per_leaf; {self.nodes} is none of {self.nodes_per_leaf}")
        n_cables = self.nodes * self.rails * (1 + self.ports) + self.n_leaves * self.spines * self.cables_per_pair
        if n_cables > _MOST_CABLES:
            raise ValueError(f"nodes, rails and spines make {n_cables} cables; use at most {_MOST_CABLES}")
        return self

    @property
    def segments(self) -> int:
        return self.nodes // self.nodes_per_leaf

    @property
    def n_leaves(self) -> int:
        return self.ports * self.rails * self.segments

    @property
    def n_spines(self) -> int:
        """Spines in all planes."""
        if self.joined:
            return self.ports * self.spines if self.rails * self.segments > 1 else 0
        return self.ports * self.rails * self.spines if self.segments > 1 else 0

    @property
    def uplink_bps(self) -> int:
        """Rate of a cable between a leaf and a spine."""
        own_bps = self.rate * self.nodes_per_leaf // (self.ports * self.spines * self.cables_per_pair)
        return self.uplink_rate or own_bps


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. in order of node, then rail, and switches s0..  Raises ConfigError."""
    nodes, rails, segments = parameters.nodes, parameters.rails, parameters.segments
    if parameters.uplink_bps < 1:
        raise ConfigError("rails: less than 1 bit/s is left to an uplink; raise rate or use fewer spines")
    cabling = Cabling(parameters)
    accelerators = cabling.accelerators(nodes * rails)
    switches = cabling.switches(nodes + parameters.n_leaves + parameters.n_spines)
    leaves = switches[nodes : nodes + parameters.n_leaves]
    spines = switches[nodes + parameters.n_leaves :]
    ports_bps = split_rate(parameters.rate, (1,) * parameters.ports)
    for number, accelerator in enumerate(accelerators):
        node, rail = divmod(number, rails)
        cabling.cable(accelerator, switches[node], rate_bps=parameters.node_rate, latency_ps=parameters.node_latency)
        for plane, port_bps in enumerate(ports_bps):
            leaf = (plane * rails + rail) * segments + node // parameters.nodes_per_leaf
            cabling.cable(accelerator, leaves[leaf], rate_bps=port_bps)
    per_network = parameters.spines if spines else 0
    for number, leaf in enumerate(leaves):
        network = number // (rails * segments) if parameters.joined else number // segments
        for spine in spines[network * per_network : (network + 1) * per_network]:
            cabling.cable(
                leaf,
                spine,
                rate_bps=parameters.uplink_bps,
                latency_ps=parameters.uplink_latency,
                n_parallel=parameters.cables_per_pair,
            )
    kind = "rails joined by" if parameters.joined else "rails of their own with"
    return cabling.topology(
        "rails",
        f"{nodes} nodes x {rails} accelerators, {parameters.n_leaves} leaves, {kind} {len(spines)} spines",
        RailRouter(
            rails=rails,
            nodes_per_leaf=parameters.nodes_per_leaf,
            segments=segments,
            spines=per_network,
            joined=parameters.joined,
            is_static=parameters.routing == "d_mod_k",
            spread=parameters.ports,
        ),
        structure=_structure(parameters),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RailRouter(ShortestPath):
    """Shortest paths between accelerators, by structure: a search for each of thousands that have two homes would take long.

    The lane is the port, and so the plane.  Spines and parallel cables are picked by a seeded hash, or, ``is_static``, by the
    place of the target among those of its rail.  Ways from and to switches are searched for.
    """

    rails: int
    nodes_per_leaf: int
    segments: int
    spines: int
    joined: bool
    is_static: bool

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``."""
        n_ranks = self.segments * self.nodes_per_leaf * self.rails
        if source == target or max(source, target) >= n_ranks:
            return ShortestPath.route(self, topology, source, target, flow)
        (node, rail), (target_node, target_rail) = divmod(source, self.rails), divmod(target, self.rails)
        first_leaf = n_ranks + n_ranks // self.rails
        first_spine = first_leaf + self.spread * self.rails * self.segments
        call, plane = divmod(flow, self.spread)
        way = [source]
        draw = target_node + target_rail if self.is_static else mix(self.seed, source, target, call)
        if node == target_node:
            way.append(n_ranks + node)
        else:
            if rail != target_rail and not self.joined:
                rail = target_rail
                way += [n_ranks + node, node * self.rails + rail]
            up = (plane * self.rails + rail) * self.segments + node // self.nodes_per_leaf
            down = (plane * self.rails + target_rail) * self.segments + target_node // self.nodes_per_leaf
            way.append(first_leaf + up)
            if up != down:
                network = plane if self.joined else plane * self.rails + rail
                way += [first_spine + network * self.spines + draw % self.spines, first_leaf + down]
        between = self._cache.of(topology).parallel
        cables = [between[a, b] for a, b in zip(way, [*way[1:], target], strict=True)]
        return tuple(links[draw // max(1, self.spines) % len(links)] for links in cables)


def _structure(parameters: Parameters) -> Structure:
    """The bisection is between halves of the segments, or of the nodes where there is one segment.

    Of an odd number of segments one is halved too: its halves meet in its leaves, and need no uplinks.
    """
    n_ranks = parameters.nodes * parameters.rails
    if parameters.nodes == 1:
        diameter_links = 2
    elif parameters.rails == 1:
        diameter_links = 4 if parameters.segments > 1 else 2
    else:
        diameter_links = 4 if parameters.joined or parameters.segments == 1 else 6
    within_bps = n_ranks // parameters.segments * parameters.rate
    uplinks_bps = parameters.ports * parameters.rails * parameters.spines * parameters.cables_per_pair * parameters.uplink_bps
    whole, halved = divmod(parameters.segments, 2)
    width_bps = whole * min(within_bps, uplinks_bps) + (within_bps // 2 if halved else 0)
    is_halved = parameters.nodes_per_leaf % 2 == 0 or not halved
    return Structure(diameter_links=diameter_links, bisection_bps=width_bps if is_halved else None)
