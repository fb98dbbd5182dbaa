"""Direct: every rank talks to every other in one step, as grouped sends and receives do.

    collective       steps    sent by a rank           time on a non-blocking switch
    all_reduce       2        2(n-1)/n S               2 a + 2(n-1)/n S b + (n-1)/n S g
    reduce_scatter   1        (n-1)/n S                a + (n-1)/n S (b + g)
    all_gather       1        (n-1)/n S                a + (n-1)/n S b
    broadcast        1        (n-1) S, the root        a + (n-1) S b
    reduce           1        S                        a + (n-1) S (b + g), at the root
    gather           1        1/n S                    a + (n-1)/n S b, at the root
    scatter          1        (n-1)/n S, the root      a + (n-1)/n S b
    alltoall(v)      1        (n-1)/n S                a + (n-1)/n S b

Latency-optimal.  Peers are taken in shifted order, rank r first to r+1, then to
r+2, so that no receiver is everybody's first target.  Reductions run in the
order in which the senders precede the receiver, whatever arrives first.

Source: the standard linear ("pairwise") algorithms, for example Thakur,
Rabenseifner and Gropp, IJHPCA 19 (2005); alltoall, gather and scatter are what
NCCL does with ncclSend and ncclRecv in a group.  For alltoallv S is the sum of
a rank's counts, and the table's row holds when they are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective


def _reduce_scatter(builder: Builder) -> None:
    n = builder.n_ranks
    for shift in range(1, n):
        builder.exchange((Message((b - shift) % n, b, (b,)) for b in range(n)), reduce=True)


def _all_gather(builder: Builder) -> None:
    n = builder.n_ranks
    for shift in range(1, n):
        builder.exchange(Message(b, (b + shift) % n, (b,)) for b in range(n))


def _all_reduce(builder: Builder) -> None:
    _reduce_scatter(builder)
    _all_gather(builder)


def _broadcast(builder: Builder) -> None:
    for peer in _others(builder):
        builder.send(builder.root, peer, (0,))


def _reduce(builder: Builder) -> None:
    for peer in _others(builder):
        builder.send(peer, builder.root, (0,), reduce=True)


def _gather(builder: Builder) -> None:
    for peer in _others(builder):
        builder.send(peer, builder.root, (peer,))


def _scatter(builder: Builder) -> None:
    for peer in _others(builder):
        builder.send(builder.root, peer, (peer,))


def _alltoall(builder: Builder) -> None:
    n = builder.n_ranks
    for rank in range(n):
        builder.copy(rank, rank, n + rank)
    for shift in range(1, n):
        builder.exchange(Message(s, (s + shift) % n, ((s + shift) % n,), (n + s,)) for s in range(n))


def _others(builder: Builder) -> list[int]:
    n = builder.n_ranks
    return [(builder.root + shift) % n for shift in range(1, n)]


_ALGORITHMS: dict[str, Callable[[Builder], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "alltoall": _alltoall,
    "alltoallv": _alltoall,
}
COLLECTIVES = frozenset(_ALGORITHMS)


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "direct", COLLECTIVES)
    n_blocks = 1 if collective in ("broadcast", "reduce") else n_ranks
    builder = Builder(collective, "direct", n_ranks, n_blocks, root)
    _ALGORITHMS[collective](builder)
    return builder.build()


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "direct", COLLECTIVES)
    peers = n_ranks - 1
    steps = min(peers, 1)
    match collective:
        case "all_reduce":
            return Cost(2 * steps, Fraction(2 * peers, n_ranks))
        case "broadcast":
            return Cost(steps, Fraction(peers))
        case "reduce":
            return Cost(steps, Fraction(steps))
        case "gather":
            return Cost(steps, Fraction(steps, n_ranks))
        case _:
            return Cost(steps, Fraction(peers, n_ranks))
