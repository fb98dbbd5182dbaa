"""Pairwise: an alltoall in rounds, in each of which a rank sends to one peer and receives from another.

    collective       steps    sent by a rank           time on a non-blocking switch
    alltoall         n-1      (n-1)/n S                (n-1) (a + S/n b)

In round k rank r sends to r+k and receives from r-k, and goes on when that has come: at most one message is on its way to a
rank, so that nobody's link is shared.  What NCCL does with sends and receives in a group, all of them at once, is ``direct``.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005).
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective

COLLECTIVES = frozenset({"alltoall"})


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "pairwise", COLLECTIVES)
    n = n_ranks
    builder = Builder(collective, "pairwise", n, n, root)
    for rank in range(n):
        builder.copy(rank, rank, n + rank)
    for shift in range(1, n):
        builder.exchange(Message(s, (s + shift) % n, ((s + shift) % n,), (n + s,)) for s in range(n))
    builder.in_turn()
    return builder.build()


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "pairwise", COLLECTIVES)
    return Cost(n_ranks - 1, Fraction(n_ranks - 1, n_ranks))
