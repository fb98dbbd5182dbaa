"""Bruck: logarithmically many messages, each of which carries several blocks.

    collective    steps (at most)    sent by a rank                    time
    all_gather    ceil(log2 n)       (n-1)/n S                         log2(n) a + (n-1)/n S b
    alltoall      ceil(log2 n)       1/n S times the one bits in       log2(n) a + log2(n)/2 S b
                                     1, 2, ... n-1; S/2 log2 n if 2^k

For short messages.  All-gather: in round k each rank sends what it has, 2^k
blocks at most, to the rank 2^k before it.  Alltoall: a block that must go i ranks
to the right goes 2^k in round k if bit k of i is set; so it is sent once per one
bit.  The last round may depend on less than all before it: with
n = 2^k + 1 + rest the longest chain has max(k, 1 + bits(rest)) messages, where
bits(rest) is the length of rest in binary.

Blocks keep their slots, so the textbook's rotations before and after need no copies.

Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for
all-to-all communications in multiport message-passing systems", IEEE TPDS 8 (1997).
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective

COLLECTIVES = frozenset({"all_gather", "alltoall"})


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "bruck", COLLECTIVES)
    builder = Builder(collective, "bruck", n_ranks, n_ranks, root)
    if collective == "all_gather":
        _all_gather(builder)
    else:
        _alltoall(builder)
    return builder.build()


def _all_gather(builder: Builder) -> None:
    n = builder.n_ranks
    hop = 1
    while hop < n:
        n_sent = min(hop, n - hop)
        builder.exchange(Message(rank, (rank - hop) % n, tuple((rank + i) % n for i in range(n_sent))) for rank in range(n))
        hop *= 2


def _alltoall(builder: Builder) -> None:
    """A block with i ranks to go from its source is in slot ``rank + i`` of whichever rank holds it."""
    n = builder.n_ranks
    for rank in range(n):
        builder.copy(rank, rank, n + rank)
    hop = 1
    while hop < n:
        moving = [i for i in range(n) if i & hop]
        builder.exchange(
            Message(
                (rank - hop) % n,
                rank,
                tuple((rank - hop + i) % n for i in moving),
                tuple((rank + i) % n if i >= 2 * hop else n + (rank - i) % n for i in moving),
            )
            for rank in range(n)
        )
        hop *= 2


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "bruck", COLLECTIVES)
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    k = (n_ranks - 1).bit_length() - 1
    rest = n_ranks - 1 - 2**k
    n_sent = n_ranks - 1 if collective == "all_gather" else sum(i.bit_count() for i in range(n_ranks))
    return Cost(max(k, 1 + rest.bit_length()), Fraction(n_sent, n_ranks))
