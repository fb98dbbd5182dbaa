"""Balancing: which of the links that lead nearer to the target a packet takes.

A policy is one file of this folder, ``emu.balancing.<name>:build``, or ``module:function`` of a user's.  Every node has an
instance of its own.  Law: a choice depends on the node's own state and on what the packet says, on nothing else, and what
is random is keyed; so that it is the same under every driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
        """
        ...


Parameters = Mapping[str, int | str]
