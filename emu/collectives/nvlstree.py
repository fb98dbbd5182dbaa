"""NVLSTree: NVLS inside a node, a double binary tree between the nodes.

    collective    steps                       sent by a rank, g a node
    all_reduce    2 + 2 ceil(log2 N)          S + 3/g S  (S + 2/g S over two nodes, S + 5/2g S over three)

The switch of each node reduces the c-th share of the data to the node's c-th rank; the c-th ranks of all nodes reduce and
broadcast it over NCCL's two trees, half of it each; the switch multicasts the sum.  A rank sends its whole input to the
switch and multicasts S/g, and up to 2 S/g into the network (S/g over two nodes), as in ``tree``.

At least two nodes of the same size.  Source: NCCL, src/graph/connect.cc and src/device/all_reduce.h, read for its shape.
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.layout import Layout, known
from emu.collectives.schedule import Cost, Schedule, require_collective
from emu.collectives.switched import Switched, node_trees
from emu.collectives.tree import broadcast, double_tree, reduce, with_chains
from emu.errors import ConfigError

COLLECTIVES = frozenset({"all_reduce"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Ranks on two nodes or more, of the same size.  Raises ConfigError."""
    require_collective(collective, "nvlstree", COLLECTIVES)
    layout = known(n_ranks, layout)
    if n_ranks == 1:
        return Switched(collective, "nvlstree", layout, 1, root).build()
    nodes, n_nodes = layout.nodes, len(layout.nodes)
    if n_nodes == 1:
        raise ConfigError(f"nvlstree needs two nodes or more; here all {n_ranks} ranks share one: use nvls")
    trees, size = node_trees("nvlstree", layout), len(nodes[0])
    builder = Switched(collective, "nvlstree", layout, 2 * size, root)
    pairs = [[with_chains(tree, [(rank,) for rank in rail], n_ranks) for tree in double_tree(n_nodes)] for rail in layout.rails]
    blocks = range(2 * size)
    its = [[node_its[block % len(node_its)] for node_its in trees] for block in blocks]
    for block in blocks:
        for node, tree in zip(nodes, its[block], strict=True):
            builder.reduce_to(tree, node[block // 2], block)
    for block in blocks:
        reduce(builder, pairs[block // 2][block % 2], block)
    for block in blocks:
        broadcast(builder, pairs[block // 2][block % 2], block)
    for block in blocks:
        for node, tree in zip(nodes, its[block], strict=True):
            builder.multicast(tree, node[block // 2], block)
    builder.pace()
    return builder.build()


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "nvlstree", COLLECTIVES)
    nodes = known(n_ranks, layout).nodes
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    n_nodes, share = len(nodes), Fraction(1, len(nodes[0]))
    return Cost(2 + 2 * (n_nodes - 1).bit_length(), 1 + share + share * Fraction(min(n_nodes, 4), 2))
