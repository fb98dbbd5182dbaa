"""Question: what a tuner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from emu.protocols.costs import EndpointCosts


class Way(NamedTuple):
    """An algorithm that can be taken, with the protocols that go with it.

    ``steps``: messages on its longest dependent chain; ``sent``: bytes that a rank sends, over S.
    """

    algorithm: str
    protocols: tuple[str, ...]
    steps: int
    sent: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``size_bytes`` is nccl-tests' S; ``n_hosts`` are what NCCL calls nodes."""

    costs: EndpointCosts
    collective: str
    n_ranks: int
    n_hosts: int
    size_bytes: int
    ways: tuple[Way, ...]


class Choice(NamedTuple):
    """``time_ps`` is what the tuner takes its choice to cost."""

    algorithm: str
    protocol: str
    time_ps: int
