"""Ring: every rank sends to its right neighbour and receives from its left one.

    collective       steps     sent by a rank     time, a = latency, b = 1/rate, g = reducing a byte
    all_reduce       2(n-1)    2(n-1)/n S         2(n-1) a + 2(n-1)/n S b + (n-1)/n S g
    reduce_scatter   n-1       (n-1)/n S          (n-1) a + (n-1)/n S (b + g)
    all_gather       n-1       (n-1)/n S          (n-1) a + (n-1)/n S b
    broadcast        n-1       S                  (n-2+k)(a + S/k b) when cut into k chunks
    reduce           n-1       S                  (n-2+k)(a + S/k (b + g)) when cut into k chunks

Bandwidth-optimal, with latency linear in n.  Block b of an all-reduce sets out at
rank b+1, is complete when it comes to rank b, and goes round once more: the order
of NCCL's ring (src/device/all_reduce.h), so that rank r sends blocks r-1, r-2, ...
Broadcast and reduce are NCCL's too: a chain that starts or ends at the root.

Source of the formulas: Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 69 (2009).  Not modelled: several
rings that visit the ranks in different orders.
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "ring", COLLECTIVES)
    n_blocks = 1 if collective in ("broadcast", "reduce") else n_ranks
    builder = Builder(collective, "ring", n_ranks, n_blocks, root)
    if collective in ("all_reduce", "reduce_scatter"):
        _go_round(builder, first=1, reduce=True)
    if collective in ("all_reduce", "all_gather"):
        _go_round(builder, first=0, reduce=False)
    if collective == "broadcast":
        _chain(builder, start=root, reduce=False)
    if collective == "reduce":
        _chain(builder, start=root + 1, reduce=True)
    return builder.build()


def _go_round(builder: Builder, first: int, reduce: bool) -> None:
    """Every block b at once from rank ``b + first``, n-1 hops to the right."""
    n = builder.n_ranks
    for hop in range(n - 1):
        at = first + hop
        builder.exchange((Message((b + at) % n, (b + at + 1) % n, (b,)) for b in range(n)), reduce=reduce)


def _chain(builder: Builder, start: int, reduce: bool) -> None:
    """The one block from ``start``, n-1 hops to the right."""
    n = builder.n_ranks
    for hop in range(n - 1):
        builder.send((start + hop) % n, (start + hop + 1) % n, (0,), reduce=reduce)


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "ring", COLLECTIVES)
    hops = n_ranks - 1
    if collective == "all_reduce":
        return Cost(2 * hops, Fraction(2 * hops, n_ranks))
    if collective in ("broadcast", "reduce"):
        return Cost(hops, Fraction(min(hops, 1)))
    return Cost(hops, Fraction(hops, n_ranks))
