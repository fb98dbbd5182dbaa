"""PXN: an alltoall that goes first to the local rank on the target's rail, then over the rail.

    collective    steps   sent by a rank, g ranks on each of N nodes    of that into the network
    alltoall      2       ((g-1)/g + (N-1)/N) S                         (N-1)/N S in N-1 messages, where ``direct`` sends n-g

A rank hands what is for the b-th ranks of all nodes to the b-th rank of its own node, in one message; that one sends each
node what all its neighbours have for the b-th rank there, in one message.  So nothing leaves its rail in the network (NCCL's
PXN, "rail-aligned"), messages are g times larger, and (g-1)/g S more crosses the node's own links.

At least two nodes of the same size, of two ranks or more.  Source: NCCL 2.12, PXN (PCI x NVLink).
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.layout import Layout, known
from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective
from emu.errors import ConfigError

COLLECTIVES = frozenset({"alltoall"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Ranks on several nodes of the same size, or one rank.  Raises ConfigError."""
    require_collective(collective, "pxn", COLLECTIVES)
    n = n_ranks
    builder = Builder(collective, "pxn", n, n, root)
    for rank in range(n):
        builder.copy(rank, rank, n + rank)
    if n == 1:
        return builder.build()
    nodes = _nodes(known(n, layout))
    n_nodes, size = len(nodes), len(nodes[0])

    def passing(local: int, node: int) -> int:
        """The slot in which a rank holds what its neighbour has for that node, of the rank's rail."""
        return 2 * n + local * n_nodes + node

    for shift in range(1, size):
        messages = []
        for i, node in enumerate(nodes):
            for a, rank in enumerate(node):
                b = (a + shift) % size
                into = tuple(n + rank if j == i else passing(a, j) for j in range(n_nodes))
                messages.append(Message(rank, node[b], tuple(other[b] for other in nodes), into))
        builder.exchange(messages)
    for shift in range(1, n_nodes):
        messages = []
        for i, node in enumerate(nodes):
            j = (i + shift) % n_nodes
            for b, rank in enumerate(node):
                slots = tuple(nodes[j][b] if a == b else passing(a, j) for a in range(size))
                messages.append(Message(rank, nodes[j][b], slots, tuple(n + source for source in node)))
        builder.exchange(messages)
    return builder.build()


def _nodes(layout: Layout) -> tuple[tuple[int, ...], ...]:
    nodes = layout.nodes
    if len(nodes) < 2 or not layout.rails or len(nodes[0]) < 2:
        raise ConfigError(
            f"pxn needs two nodes or more, of the same size and of two ranks or more (host_size); here {layout.n_ranks} ranks"
            f" are on {len(nodes)}: use direct or pairwise"
        )
    return nodes


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "pxn", COLLECTIVES)
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    nodes = _nodes(known(n_ranks, layout))
    return Cost(2, 2 - Fraction(1, len(nodes)) - Fraction(1, len(nodes[0])))
