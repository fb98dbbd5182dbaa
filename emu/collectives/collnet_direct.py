"""CollNet direct: each rank sends its share into a network whose switches reduce and multicast (InfiniBand SHARP).

    collective       steps   sent by a rank, g ranks on each of N nodes     of that into the network
    all_reduce       3       2 (g-1)/g S + S/g                              S/g
    reduce_scatter   2       (g-1)/g S + S/g                                S/g
    all_gather       2       S/n + (g-1)/g S                                S/n (and S/g comes)

Inside a node every rank sends each other one its share (NCCL: over NVLink, all at once); the shares cross the network on their
rails, where the switches reduce them on the way up a tree and multicast the sum on the way down; then they are exchanged
inside the node.  What a node sends does not grow with their number.  With one rank a node only the network is left: one step
and S for an all_reduce.

At least two nodes of the same size, of 8 ranks or fewer as in NCCL, and ``multicast = true`` on the switches between them.
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.layout import Layout, known
from emu.collectives.schedule import Cost, Message, Schedule, require_collective
from emu.collectives.switched import Switched, collnet_trees

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Ranks on two nodes or more, of the same size.  Raises ConfigError."""
    require_collective(collective, "collnet_direct", COLLECTIVES)
    layout = known(n_ranks, layout)
    if n_ranks == 1:
        return Switched(collective, "collnet_direct", layout, 1, root).build()
    trees, nodes = collnet_trees("collnet_direct", layout), layout.nodes
    size = len(nodes[0])
    n_blocks = size * max(map(len, trees)) if collective == "all_reduce" else n_ranks
    builder = Switched(collective, "collnet_direct", layout, n_blocks, root)
    local = {rank: place for node in nodes for place, rank in enumerate(node)}
    place_of = [block % size if collective == "all_reduce" else local[block] for block in range(n_blocks)]
    if collective != "all_gather":
        _exchange(builder, nodes, place_of, gather=False)
    for block, place in enumerate(place_of):
        tree = trees[place][block // size % len(trees[place])]
        if collective == "all_reduce":
            builder.all_reduce(tree, block)
        elif collective == "reduce_scatter":
            builder.reduce_to(tree, block, block)
        else:
            builder.multicast(tree, block, block)
    if collective != "reduce_scatter":
        _exchange(builder, nodes, place_of, gather=True)
    return builder.build()


def _exchange(builder: Switched, nodes: tuple[tuple[int, ...], ...], place_of: list[int], *, gather: bool) -> None:
    """Inside every node: each block from all its ranks to the one at its place, reduced, or from that one to all."""
    size = len(nodes[0])
    for shift in range(1, size):
        messages = []
        for node in nodes:
            for block, place in enumerate(place_of):
                home, other = node[place], node[(place + shift) % size]
                messages.append(Message(home, other, (block,)) if gather else Message(other, home, (block,)))
        builder.exchange(messages, reduce=not gather)


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "collnet_direct", COLLECTIVES)
    size = len(known(n_ranks, layout).nodes[0])
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    share, inside = Fraction(1, size), int(size > 1)
    match collective:
        case "all_reduce":
            return Cost(1 + 2 * inside, 2 * (1 - share) + share)
        case "reduce_scatter":
            return Cost(1 + inside, Fraction(1))
        case _:
            return Cost(1 + inside, Fraction(1, n_ranks) + 1 - share)
