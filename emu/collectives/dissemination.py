"""Dissemination: a barrier in ceil(log2 n) rounds of empty messages, time ceil(log2 n) a.

In round k each rank tells the rank 2^k after it that it, and all of whom it has
heard, have come.  Every rank sends ceil(log2 n) messages of 0 bytes.

Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
International Journal of Parallel Programming 17 (1988).
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective

COLLECTIVES = frozenset({"barrier"})


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "dissemination", COLLECTIVES)
    builder = Builder(collective, "dissemination", n_ranks, 1, root)
    hop = 1
    while hop < n_ranks:
        builder.exchange(Message(rank, (rank + hop) % n_ranks, (0,)) for rank in range(n_ranks))
        hop *= 2
    return builder.build()


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps; nothing is sent but the messages' headers."""
    require_collective(collective, "dissemination", COLLECTIVES)
    return Cost((n_ranks - 1).bit_length(), Fraction(0))
