"""Recipe: what a chunk tells a switch of the call that it belongs to, so that the switch knows what to do with it.

Law: a switch keeps no communicator and hears of no call but by the chunks; each carries all that the switch must know.
(A SHARP request names its group and its operation.)
"""

from __future__ import annotations

import json
from typing import NamedTuple

from emu.collectives.catalogue import schedule_for
from emu.collectives.layout import layout_of
from emu.collectives.program import units
from emu.collectives.schedule import Unit
from emu.topologies.graph import Topology


class Recipe(NamedTuple):
    """A collective over ``members`` (ranks of the fabric), by an algorithm in which switches take part."""

    collective: str
    algorithm: str
    root: int
    op: str
    dtype: str
    members: tuple[int, ...]

    def packed(self) -> bytes:
        return json.dumps(self, separators=(",", ":")).encode()


class Plan(NamedTuple):
    """A switch's part of a recipe."""

    op: str
    dtype: str
    units: tuple[Unit, ...]
    takes: dict[tuple[int, int], tuple[int, int]]
    """(sender, its how many-th message here) -> (unit, its place among the unit's inputs)."""


def plan(recipe: bytes, topology: Topology, address: int) -> Plan:
    """What the switch at ``address`` does with the messages of a call; senders and targets are addresses."""
    collective, algorithm, root, op, dtype, ranks = json.loads(recipe)
    members = tuple(ranks)
    layout = layout_of(topology, members)
    schedule = schedule_for(collective, algorithm, len(members), root, layout)
    addresses = (*members, *layout.switches)
    found = tuple(
        Unit(*(tuple((addresses[participant], number) for participant, number in side) for side in unit))
        for unit in units(schedule, addresses.index(address))
    )
    takes = {message: (number, place) for number, unit in enumerate(found) for place, message in enumerate(unit.inputs)}
    return Plan(op, dtype, found, takes)
