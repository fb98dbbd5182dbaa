"""switched_groups: full-mesh groups of sockets whose switch links lead to crossbar switches that join the groups.

Law: sockets of a group are one link apart.  Where two groups fill a switch, and a socket has as many switch links for each other
group, every pair of groups has switches of its own: any two sockets meet in a switch, two links apart.

Otherwise positions in a group fall into bands, each as wide as a whole number of switches serves; a band's sockets of all groups
have their links dealt over that band's switches in turn, so that two of them meet in a switch, and any others are at most three
links apart.

Which socket is cabled to which crossbar is not published for the machines that are built so: pairs and bands are emu's.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        if not self.per_pair and not self.band:
            ends = self.groups * self.group_size * self.switch_links
            raise ValueError(
                f"switches of switch_ports = {self.switch_ports} do not take {ends} switch links evenly; change either"
            )
        return self

    @property
    def per_pair(self) -> int:
        """Switches that each pair of groups has to itself; 0 where they do not come out even."""
        fills = self.switch_ports == 2 * self.group_size and self.switch_links % (self.groups - 1) == 0
        return self.switch_links // (self.groups - 1) if fills else 0

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
    """Sockets a0.. in order of group, and switches s0.. in order of pair of groups, or of band."""
    groups, size = parameters.groups, parameters.group_size
    cabling = Cabling(parameters)
    sockets = cabling.accelerators(groups * size)
    switches = cabling.switches(groups * size * parameters.switch_links // parameters.switch_ports)
    for group in range(groups):
        for a, b in combinations(sockets[group * size : (group + 1) * size], 2):
            cabling.cable(a, b)
    for socket, switch in _in_pairs(parameters) if parameters.per_pair else _in_bands(parameters):
        cabling.cable(socket, switches[switch], rate_bps=parameters.switch_rate, latency_ps=parameters.switch_latency)
    text = f"{groups} groups of {size} sockets, {len(switches)} switches of {parameters.switch_ports} ports"
    return cabling.topology("switched_groups", text, ShortestPath(), nesting=(groups, size))


def _in_pairs(parameters: Parameters) -> Iterator[tuple[int, int]]:
    """(socket, switch) of each switch link."""
    size = parameters.group_size
    for number, pair in enumerate(combinations(range(parameters.groups), 2)):
        for switch in range(number * parameters.per_pair, (number + 1) * parameters.per_pair):
            yield from ((group * size + position, switch) for group in pair for position in range(size))


def _in_bands(parameters: Parameters) -> Iterator[tuple[int, int]]:
    """(socket, switch) of each switch link."""
    size, band = parameters.group_size, parameters.band
    per_band = band * parameters.groups * parameters.switch_links // parameters.switch_ports
    for socket in range(parameters.groups * size):
        group, position = divmod(socket, size)
        first = (group * band + position % band) * parameters.switch_links
        for link in range(parameters.switch_links):
            yield socket, position // band * per_band + (first + link) % per_band
