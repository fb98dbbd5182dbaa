"""Two-tree: two binary trees with one root, each carrying half of the data.  emu's own: NCCL has a ring only for these.

    collective    steps             sent by a rank    time, when pipelined
    broadcast     ceil(log2 n)      S                 log2(n) a + S b
    reduce        ceil(log2 n)      S                 log2(n) a + S (b + g)

Each tree is NCCL's first one (:mod:`emu.collectives.tree`), in which the root plays rank 0.  The n-1 others are numbered 1 to n-1
in the order in which they follow the root: as they are in the first tree; in the second mirrored when n-1 is even, and shifted by
one when it is odd.  So no rank but the root has children in both, and sending is spread.

Hosts are not looked at: neighbours in a tree are near in number.  Source: Sanders, Speck and Traff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009).
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Schedule, require_collective
from emu.collectives.tree import Tree, binary_tree, broadcast, other_names, reduce, relabel

COLLECTIVES = frozenset({"broadcast", "reduce"})


def rooted_double_tree(n_ranks: int, root: int) -> tuple[Tree, Tree]:
    """A pair with one root, whose other ranks have children in at most one of the two."""
    first = binary_tree(n_ranks)
    others = [(root + place) % n_ranks for place in range(1, n_ranks)]
    return relabel(first, [root, *others]), relabel(first, [root, *other_names(others)])


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "two_tree", COLLECTIVES)
    builder = Builder(collective, "two_tree", n_ranks, 2, root)
    for block, tree in enumerate(rooted_double_tree(n_ranks, root)):
        if collective == "reduce":
            reduce(builder, tree, block)
        else:
            broadcast(builder, tree, block)
    return builder.build()


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "two_tree", COLLECTIVES)
    return Cost((n_ranks - 1).bit_length(), Fraction(min(n_ranks - 1, 1)))
