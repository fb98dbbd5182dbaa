"""Ring: every rank sends to its right neighbour and receives from its left one.

    collective       steps     sent by a rank     time, a = latency, b = 1/rate, g = reducing a byte
    all_reduce       2(n-1)    2(n-1)/n S         2(n-1) a + 2(n-1)/n S b + (n-1)/n S g
    reduce_scatter   n-1       (n-1)/n S          (n-1) a + (n-1)/n S (b + g)
    all_gather       n-1       (n-1)/n S          (n-1) a + (n-1)/n S b
    broadcast        n-1       S                  (n-2+k)(a + S/k b) when cut into k chunks
    reduce           n-1       S                  (n-2+k)(a + S/k (b + g)) when cut into k chunks

Bandwidth-optimal, with latency linear in n.  The ring visits node after node, in each of them all its ranks.  With several
nodes of g ranks there are g rings, each with its share of the data: the c-th comes into a node at its c-th rank and leaves
by the one before that, in every second node the other way round, so that every rank's link into the network carries one
ring, and stays on its rail where the number of nodes is even (NCCL's rings with NCCL_CROSS_NIC=1).

Block b of an all-reduce sets out at rank b+1, is complete when it comes to rank b, and goes round once more: the order
of NCCL's ring (src/device/all_reduce.h), so that rank r sends blocks r-1, r-2, ...
Broadcast and reduce are NCCL's too: a chain that starts or ends at the root.

Source of the formulas: Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 69 (2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from emu.collectives.layout import Layout, flat
from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "ring", COLLECTIVES)
    builder = Builder(collective, "ring", n_ranks, 1, root)
    orders = rings(layout or flat(n_ranks))
    if collective in ("broadcast", "reduce"):
        builder.n_blocks = len(orders)
        for block, order in enumerate(orders):
            _chain(builder, order, block, reduce=collective == "reduce")
    elif collective == "all_reduce":
        builder.n_blocks = len(orders) * n_ranks
        for number, order in enumerate(orders):
            blocks = {place: number * n_ranks + place for place in range(n_ranks)}
            _go_round(builder, order, blocks, first=1, reduce=True)
            _go_round(builder, order, blocks, first=0, reduce=False)
    else:
        builder.n_blocks = n_ranks
        reduce = collective == "reduce_scatter"
        for order in orders:
            blocks = {place: rank for place, rank in enumerate(order) if carries(place, len(orders))}
            _go_round(builder, order, blocks, first=int(reduce), reduce=reduce)
    return builder.build()


def rings(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The orders in which the rings visit the ranks."""
    nodes = layout.nodes
    n_rings = len(nodes[0]) if layout.rails and len(nodes) > 1 else 1

    def order(number: int) -> Iterator[int]:
        for place, node in enumerate(nodes):
            turned = node[number:] + node[:number]
            yield from reversed(turned) if place % 2 and n_rings > 1 else turned

    return tuple(tuple(order(number)) for number in range(n_rings))


def carries(place: int, n_rings: int) -> bool:
    """Whether a ring carries the block of the rank at this place of it.

    One rank of each node in each ring, so that over all rings every rank has its block carried, and is the last to get one, once.
    """
    node, offset = divmod(place, n_rings)
    return n_rings == 1 or offset == (n_rings - 1 if node % 2 else 1)


def _go_round(builder: Builder, order: Sequence[int], blocks: Mapping[int, int], *, first: int, reduce: bool) -> None:
    """The block of every place p at once from place ``p + first``, n-1 hops to the right."""
    n = builder.n_ranks
    for hop in range(n - 1):
        at = first + hop
        messages = (Message(order[(p + at) % n], order[(p + at + 1) % n], (block,)) for p, block in blocks.items())
        builder.exchange(messages, reduce=reduce)


def _chain(builder: Builder, order: Sequence[int], block: int, *, reduce: bool) -> None:
    """The block from the root, n-1 hops to the right, or so to the root."""
    n = builder.n_ranks
    start = order.index(builder.root) + reduce
    for hop in range(n - 1):
        builder.send(order[(start + hop) % n], order[(start + hop + 1) % n], (block,), reduce=reduce)


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "ring", COLLECTIVES)
    hops = n_ranks - 1
    if collective == "all_reduce":
        return Cost(2 * hops, Fraction(2 * hops, n_ranks))
    if collective in ("broadcast", "reduce"):
        return Cost(hops, Fraction(min(hops, 1)))
    return Cost(hops, Fraction(hops, n_ranks))
