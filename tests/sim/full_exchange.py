"""An all_reduce as a user may write one: two ranks send each other all they have, and both reduce."""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule

COLLECTIVES = frozenset({"all_reduce"})


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Two ranks only."""
    builder = Builder(collective, "full_exchange:build", n_ranks, 1, root)
    builder.exchange([Message(0, 1, (0,)), Message(1, 0, (0,))], reduce=True)
    return builder.build()


def cost(collective: str, n_ranks: int) -> Cost:
    """One step with everything in it."""
    return Cost(1, Fraction(1))
