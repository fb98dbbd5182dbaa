"""switched_groups: full-mesh groups of sockets whose switch links lead to crossbar switches that join the groups.

Law: sockets of a group are one link apart.  Positions in a group fall into bands, each as wide as a whole number of switches
serves; a band's sockets of all groups have their links dealt over that band's switches in turn, so that two of them meet in a
switch, two links apart, and any others are at most three.

Which socket is cabled to which crossbar is not published for the machines that are built so: the bands are emu's.
"""

from __future__ import annotations

from itertools import combinations
from typing import Self

from pydantic import Field, model_validator

from emu.parameters import RateBps, TimePs
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Topology
from emu.topologies.routers import ShortestPath


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of a link between two sockets of a group."""

    groups: int = Field(default=2, ge=2, le=64)
    """Number of groups."""
    group_size: int = Field(default=4, ge=1, le=64)
    """Sockets in each group."""
    switch_links: int = Field(default=2, ge=1, le=64)
    """Links of a socket to switches."""
    switch_ports: int = Field(default=8, ge=2, le=1024)
    """Ports of a switch."""
    switch_rate: RateBps | None = None
    """Rate of a link to a switch; left out, rate."""
    switch_latency: TimePs | None = None
    """One way latency of a link to a switch; left out, latency."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.band:
            ends = self.groups * self.group_size * self.switch_links
            raise ValueError(
                f"switches of switch_ports = {self.switch_ports} do not take {ends} switch links evenly; change either"
            )
        return self

    @property
    def band(self) -> int:
        """Positions in a band: the fewest that divide a group, fill whole switches, and bring a switch to every socket once at
        most or, where switches have more ports than a band has sockets, evenly.  0 where there are none."""
        for width in range(1, self.group_size + 1):
            sockets = width * self.groups
            full = sockets * self.switch_links % self.switch_ports == 0
            if self.group_size % width == 0 and full and sockets >= self.switch_ports:
                return width
        return 0


def build(parameters: Parameters) -> Topology:
    """Sockets a0.. in order of group, and switches s0.. in order of band."""
    groups, size, band = parameters.groups, parameters.group_size, parameters.band
    per_band = band * groups * parameters.switch_links // parameters.switch_ports
    cabling = Cabling(parameters)
    sockets = cabling.accelerators(groups * size)
    switches = cabling.switches(size // band * per_band)
    for group in range(groups):
        for a, b in combinations(sockets[group * size : (group + 1) * size], 2):
            cabling.cable(a, b)
    for socket in sockets:
        group, position = divmod(socket, size)
        first = (group * band + position % band) * parameters.switch_links
        for link in range(parameters.switch_links):
            switch = position // band * per_band + (first + link) % per_band
            cabling.cable(socket, switches[switch], rate_bps=parameters.switch_rate, latency_ps=parameters.switch_latency)
    text = f"{groups} groups of {size} sockets, {len(switches)} switches of {parameters.switch_ports} ports"
    return cabling.topology("switched_groups", text, ShortestPath(), nesting=(groups, size))
