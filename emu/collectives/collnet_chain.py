"""CollNet chain: a chain inside each node, and between the nodes switches that reduce and multicast (InfiniBand SHARP).

    collective    steps          sent by a rank    of that into the network
    all_reduce    2 (g-1) + 1    (2 - 1/g) S       S/g

Share c of the data is reduced along a chain that ends at the node's c-th rank, crosses the network on that rail, where the
switches reduce it on the way up a tree and multicast it on the way down, and goes back along the chain.  A rank in the midst
of a chain sends the share both ways; at its far end one way; at its head one way, and into the network.  g ranks a node.

At least two nodes of the same size, of 8 ranks or fewer as in NCCL, and ``multicast = true`` on the switches between them.
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.layout import Layout, known
from emu.collectives.schedule import Cost, Schedule, require_collective
from emu.collectives.switched import Switched, collnet_trees

COLLECTIVES = frozenset({"all_reduce"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Ranks on two nodes or more, of the same size.  Raises ConfigError."""
    require_collective(collective, "collnet_chain", COLLECTIVES)
    layout = known(n_ranks, layout)
    if n_ranks == 1:
        return Switched(collective, "collnet_chain", layout, 1, root).build()
    trees, size = collnet_trees("collnet_chain", layout), len(layout.nodes[0])
    n_blocks = size * max(map(len, trees))
    builder = Switched(collective, "collnet_chain", layout, n_blocks, root)
    for block in range(n_blocks):
        place = block % size
        chains = [node[place:] + node[:place] for node in layout.nodes]
        for chain in chains:
            for link in range(size - 1, 0, -1):
                builder.send(chain[link], chain[link - 1], (block,), reduce=True)
        builder.all_reduce(trees[place][block // size % len(trees[place])], block)
        for chain in chains:
            for link in range(1, size):
                builder.send(chain[link - 1], chain[link], (block,))
    return builder.build()


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "collnet_chain", COLLECTIVES)
    size = len(known(n_ranks, layout).nodes[0])
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    return Cost(2 * (size - 1) + 1, Fraction(2 * size - 1, size) if size > 1 else Fraction(1))
