"""Tree: a double binary tree, each tree carrying half of the data.

    collective    steps             sent by a rank              time, when pipelined
    all_reduce    2 ceil(log2 n)    2 S  (S, 3/2 S for n=2, 3)  2 log2(n) a + 2 S b + S g
    broadcast     ceil(log2 n)      S                           log2(n) a + S b
    reduce        ceil(log2 n)      S                           log2(n) a + S (b + g)

No rank but a root has children in both trees, so that sending is spread: in an
all-reduce a rank sends half of S to its parent in either tree and to each of its
two children in one of them.

All-reduce uses NCCL's trees (src/graph/trees.cc) with one rank per node.  In the
first, rank 0 is the root and has one child; in the others the lowest set bit of
the rank sets its height.  The second is the first shifted by one rank when n is
odd, and mirrored when n is even.

NCCL has no tree for broadcast and reduce, and its two trees have different
roots.  Here the root plays rank 0 in both, and the same pairing is made over the
n-1 others, numbered 1 to n-1 in the order in which they follow the root: as
they are in the first tree; in the second mirrored when n-1 is even, and shifted
by one when it is odd.

Sources: Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", Parallel Computing 35 (2009); NCCL 2.4.  Not
modelled: NCCL's chain inside a node.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from emu.collectives.schedule import Builder, Cost, Schedule, require_collective

COLLECTIVES = frozenset({"all_reduce", "broadcast", "reduce"})


class Tree(NamedTuple):
    """A rooted tree over ranks: ``children[rank]`` in the order in which they are reduced."""

    root: int
    children: tuple[tuple[int, ...], ...]


def binary_tree(n_ranks: int) -> Tree:
    """NCCL's tree whose leaves are the odd ranks: height is the lowest set bit, rank 0 is the root."""
    return Tree(0, tuple(_children(n_ranks, rank) for rank in range(n_ranks)))


def _children(n_ranks: int, rank: int) -> tuple[int, ...]:
    if rank == 0:
        return (1 << ((n_ranks - 1).bit_length() - 1),) if n_ranks > 1 else ()
    half = (rank & -rank) >> 1
    if not half:
        return ()
    left = rank - half
    while half and rank + half >= n_ranks:
        half >>= 1
    return (left, rank + half) if half else (left,)


def relabel(tree: Tree, names: list[int]) -> Tree:
    """The same tree with rank r called ``names[r]``."""
    children: list[tuple[int, ...]] = [()] * len(names)
    for rank, below in enumerate(tree.children):
        children[names[rank]] = tuple(names[child] for child in below)
    return Tree(names[tree.root], tuple(children))


def double_tree(n_ranks: int) -> tuple[Tree, Tree]:
    """NCCL's pair: the second is shifted by one rank (n odd) or mirrored (n even)."""
    first = binary_tree(n_ranks)
    return first, relabel(first, _other(list(range(n_ranks))))


def rooted_double_tree(n_ranks: int, root: int) -> tuple[Tree, Tree]:
    """A pair with one root, whose other ranks have children in at most one of the two."""
    first = binary_tree(n_ranks)
    others = [(root + place) % n_ranks for place in range(1, n_ranks)]
    return relabel(first, [root, *others]), relabel(first, [root, *_other(others)])


def _other(names: list[int]) -> list[int]:
    """The names in an order that moves each by an odd number of places, so that who had children gets a leaf."""
    return names[::-1] if len(names) % 2 == 0 else names[1:] + names[:1]


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "tree", COLLECTIVES)
    builder = Builder(collective, "tree", n_ranks, 2, root)
    trees = double_tree(n_ranks) if collective == "all_reduce" else rooted_double_tree(n_ranks, root)
    if collective in ("all_reduce", "reduce"):
        for block, tree in enumerate(trees):
            _reduce(builder, tree, tree.root, block)
    if collective in ("all_reduce", "broadcast"):
        for block, tree in enumerate(trees):
            _broadcast(builder, tree, tree.root, block)
    return builder.build()


def _reduce(builder: Builder, tree: Tree, rank: int, block: int) -> None:
    """The block up to ``rank`` from all below it."""
    for child in tree.children[rank]:
        _reduce(builder, tree, child, block)
        builder.send(child, rank, (block,), reduce=True)


def _broadcast(builder: Builder, tree: Tree, rank: int, block: int) -> None:
    """The block down from ``rank`` to all below it."""
    for child in tree.children[rank]:
        builder.send(rank, child, (block,))
        _broadcast(builder, tree, child, block)


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "tree", COLLECTIVES)
    height = (n_ranks - 1).bit_length()
    if collective == "all_reduce":
        return Cost(2 * height, Fraction(min(n_ranks, 4) if n_ranks > 1 else 0, 2))
    return Cost(height, Fraction(min(n_ranks - 1, 1)))
