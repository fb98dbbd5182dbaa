"""Balancing: which of the links that lead nearer to the target a packet takes.

A policy is one file of this folder, ``emu.balancing.<name>:build``, or ``module:function`` of a user's::

    def build(place: Place, parameters: Parameters) -> Policy
    KEEPS_FLOWS_TOGETHER = True     # only where all packets of a flow take one way, so that they stay in order: then what is
                                    # lost is asked for at once, and recovery = auto is go back N

Every node has an instance of its own; ``pytest tests/unit/test_balancing.py`` tests every file of this folder.  Law: a choice
depends on the node's own state and on what the packet says, on nothing else, and what is random is keyed; so that it is the
same under every driver.  Whatever a policy chooses, packets get to their target.

A policy picks one of its candidates.  One that plans whole ways (planned, up_down) may pick another link that leaves the
node; then it alone answers for it that there are no loops, and it does not route around links that are down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from emu.errors import ConfigError
from emu.topologies.graph import Topology


class View(Protocol):
    """What a node lets its policy see."""

    def depth_bytes(self, link: int) -> int:
        """Bytes that wait for that link, or are on their way onto it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a policy sits: the node, and how it draws."""

    topology: Topology
    node: int
    seed: int


class Policy(Protocol):
    """One node's choices."""

    def choose(
        self,
        candidates: Sequence[int],
        *,
        source_rank: int,
        target_rank: int,
        flow: int,
        sequence: int,
        lane: int,
        view: View,
        now_ps: int,
    ) -> tuple[int, int]:
        """(link, lane) for a packet.  ``candidates``: links on shortest ways to the target, in order of index, at least one.

        ``flow``: what a switch can hash: ranks and queue pair.  ``sequence``: the packet's number in its queue pair.
        A node may ask again for a packet that has not left yet.
        """
        ...


Parameters = Mapping[str, int | str]


def check_parameters(policy: str, parameters: Parameters, *known: str) -> None:
    """Raises ConfigError for a parameter that the policy does not have."""
    for name in parameters:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"balancing {policy!r} has no parameter {name!r}; {takes}")


def int_parameter(policy: str, parameters: Parameters, name: str, default: int, *, least: int) -> int:
    """A parameter that is an int of at least ``least``.  Raises ConfigError."""
    value = parameters.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"balancing {policy!r}: {name} = {value!r}; use a whole number of at least {least}")
    return value


def text_parameter(policy: str, parameters: Parameters, name: str) -> str:
    """A parameter that is text, empty where it is not given.  Raises ConfigError."""
    value = parameters.get(name, "")
    if not isinstance(value, str):
        raise ConfigError(f"balancing {policy!r}: {name} = {value!r}; write text")
    return value
