"""boardfly: rings of four chips on boards, boards in full-mesh groups, groups in a full mesh; no packet switch.

Law: a chip has two cables in the ring of its board and four that leave it, as do the 16 ports of a board in all:
``intra_ports`` of them to the other boards of the group, the others, by optical circuit switches, to other groups; both dealt
evenly (:mod:`emu.topologies.circulant`).  At its full size of 36 groups any chip reaches any other over at most 7 links.

Which chip carries which port is not published: it is chosen so that this diameter, which is, comes out, and so that chips
of a group are at most 3 links apart.  The circuit switches themselves forward nothing and are not nodes.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from emu.parameters import RateBps, TimePs
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.circulant import circulant
from emu.topologies.graph import Topology
from emu.topologies.routers import ShortestPath

_CHIPS: Final = 4
_BOARDS: Final = 8
_CHIPS_OF_GROUP_PORTS: Final = (2, 1, 3, 1, 0, 2, 1, 0, 3, 0, 2)
"""Per port of a board that stays in its group, the chip on which it is."""
_CHIPS_OF_OUTER_PORTS: Final = (0, 1, 3, 2, 3)
"""Per port of a board that leaves its group, the chip on which it is."""


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable."""

    groups: int = Field(default=2, ge=1, le=36)
    """Groups of 8 boards of 4 chips."""
    outer_rate: RateBps | None = None
    """Rate of a cable between groups; left out, rate."""
    outer_latency: TimePs | None = None
    """One way latency of a cable between groups; left out, latency."""


def build(parameters: Parameters) -> Topology:
    """Chips a0.. in order of group, board and place in the ring."""
    cabling = Cabling(parameters)
    boards = parameters.groups * _BOARDS
    cabling.accelerators(boards * _CHIPS)
    for board in range(boards):
        for chip in range(_CHIPS):
            cabling.cable(board * _CHIPS + chip, board * _CHIPS + (chip + 1) % _CHIPS)
    cables: dict[tuple[int, int], int] = {}
    for group in range(parameters.groups):
        for board, port, other, back in circulant(_BOARDS, len(_CHIPS_OF_GROUP_PORTS)):
            a = (group * _BOARDS + board) * _CHIPS + _CHIPS_OF_GROUP_PORTS[port]
            b = (group * _BOARDS + other) * _CHIPS + _CHIPS_OF_GROUP_PORTS[back]
            cables[a, b] = cables.get((a, b), 0) + 1
    for (a, b), n_parallel in cables.items():
        cabling.cable(a, b, n_parallel=n_parallel)
    cables.clear()
    for group, port, other, back in circulant(parameters.groups, _BOARDS * len(_CHIPS_OF_OUTER_PORTS)):
        a, b = _outer(group, port), _outer(other, back)
        cables[a, b] = cables.get((a, b), 0) + 1
    for (a, b), n_parallel in cables.items():
        cabling.cable(a, b, rate_bps=parameters.outer_rate, latency_ps=parameters.outer_latency, n_parallel=n_parallel)
    text = f"{parameters.groups} groups of {_BOARDS} boards of {_CHIPS} chips"
    return cabling.topology("boardfly", text, ShortestPath(), nesting=(parameters.groups, _BOARDS, _CHIPS))


def _outer(group: int, port: int) -> int:
    """The chip that carries a port which leaves its group."""
    return (group * _BOARDS + port % _BOARDS) * _CHIPS + _CHIPS_OF_OUTER_PORTS[port // _BOARDS]
