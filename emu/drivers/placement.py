"""Placement: which actor hosts which node.

Law: a pure function of the topology.  Accelerators get an actor each while that is
sensible; above that, neighbours share one, and so do switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emu.errors import ConfigError
from emu.topologies.graph import NodeKind, Topology
from emu.units import FOREVER_PS

ONE_EACH_UP_TO: Final = 16
"""With more endpoints than this, several share an actor unless asked otherwise."""
PACKED_ACTORS: Final = 8
SWITCH_ACTORS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which actor hosts which node.  ``owner[node]`` is its number; channels join actors that share a link."""

    owner: tuple[int, ...]
    n_processes: int
    channels: tuple[tuple[int, int, int], ...]
    """(sender, receiver, smallest latency of their links, ps)."""

    @staticmethod
    def of(topology: Topology, owner: tuple[int, ...]) -> Placement:
        smallest: dict[tuple[int, int], int] = {}
        for link in topology.links:
            pair = owner[link.source], owner[link.target]
            smallest[pair] = min(smallest.get(pair, FOREVER_PS), link.latency_ps)
        return Placement(
            owner=owner,
            n_processes=max(owner) + 1,
            channels=tuple((sender, receiver, latency) for (sender, receiver), latency in sorted(smallest.items())),
        )


def place(topology: Topology, accelerators_per_actor: int | None) -> Placement:
    """Which actor hosts which node: one each while that is sensible, neighbours together above that.

    Raises ConfigError for a share below 1.
    """
    if accelerators_per_actor is not None and accelerators_per_actor < 1:
        raise ConfigError(f"{accelerators_per_actor} accelerators per actor: use auto, or 1 or more")
    endpoints = [i for i, node in enumerate(topology.nodes) if node.kind != NodeKind.SWITCH]
    switches = [i for i, node in enumerate(topology.nodes) if node.kind == NodeKind.SWITCH]
    if accelerators_per_actor is None:
        accelerators_per_actor = 1 if len(endpoints) <= ONE_EACH_UP_TO else -(-len(endpoints) // PACKED_ACTORS)
    owner = [0] * len(topology.nodes)
    for position, node in enumerate(endpoints):
        owner[node] = position // accelerators_per_actor
    first = -(-len(endpoints) // accelerators_per_actor)
    share = -(-len(switches) // SWITCH_ACTORS)
    for position, node in enumerate(switches):
        owner[node] = first + position // share
    return Placement.of(topology, tuple(owner))
