"""Tree: NCCL's double binary tree, each tree carrying half of the data.

    collective    steps             sent by a rank              time, when pipelined; one rank a node
    all_reduce    2 ceil(log2 n)    2 S  (S, 3/2 S for n=2, 3)  2 log2(n) a + 2 S b + S g

No rank but a root has children in both trees, so that sending is spread: a rank sends half of S to its parent in either tree
and to each of its two children in one of them.

The trees are NCCL's (src/graph/trees.cc), which are over nodes.  In the
first, node 0 is the root and has one child; in the others the lowest set bit of
the node's number sets its height.  The second is the first shifted by one when their number is
odd, and mirrored when it is even.  Inside a node its g ranks are a chain, whose head is joined to the node's parent and
children, as where each rank has a port of its own (of two that share one NCCL gives the second a child: its balanced tree,
not modelled).  There is a pair of trees for each of g shares of
the data, and in the c-th all chains begin at their nodes' c-th ranks, so that every rank's link into the network carries
its part: S/g over two nodes, up to 2 S/g over more.  On one node the chain is all there is: g-1 steps each way.

As in NCCL, for all_reduce only: what has one root for both trees is :mod:`emu.collectives.two_tree`.

Sources: Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", Parallel Computing 35 (2009); NCCL 2.4.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from emu.collectives.layout import Layout, flat
from emu.collectives.schedule import Builder, Cost, Schedule, require_collective

COLLECTIVES = frozenset({"all_reduce"})


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
    return first, relabel(first, other_names(list(range(n_ranks))))


def other_names(names: list[int]) -> list[int]:
    """The names in an order that moves each by an odd number of places, so that who had children gets a leaf."""
    return names[::-1] if len(names) % 2 == 0 else names[1:] + names[:1]


def all_reduce_trees(layout: Layout) -> tuple[Tree, ...]:
    """NCCL's trees over the nodes, with the ranks' chains: two for each share of the data."""
    nodes = layout.nodes
    size = len(nodes[0]) if layout.rails else 1
    return tuple(
        with_chains(tree, [node[share:] + node[:share] for node in nodes], layout.n_ranks)
        for share in range(size)
        for tree in double_tree(len(nodes))
    )


def with_chains(tree: Tree, chains: list[tuple[int, ...]], n_ranks: int) -> Tree:
    """A tree over ranks from one over nodes: a chain's first rank has the parent and the children."""
    children: list[tuple[int, ...]] = [()] * n_ranks
    for chain, below in zip(chains, tree.children, strict=True):
        for rank, following in pairwise(chain):
            children[rank] = (following,)
        children[chain[0]] += tuple(chains[child][0] for child in below)
    return Tree(chains[tree.root][0], tuple(children))


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Any number of ranks.  Raises ConfigError."""
    require_collective(collective, "tree", COLLECTIVES)
    trees = all_reduce_trees(layout or flat(n_ranks)) if n_ranks > 0 else ()
    builder = Builder(collective, "tree", n_ranks, len(trees), root)
    for block, tree in enumerate(trees):
        reduce(builder, tree, block)
    for block, tree in enumerate(trees):
        broadcast(builder, tree, block)
    return builder.build()


def reduce(builder: Builder, tree: Tree, block: int) -> None:
    """The block up to the root from all below it."""
    _reduce(builder, tree, tree.root, block)


def broadcast(builder: Builder, tree: Tree, block: int) -> None:
    """The block down from the root to all below it."""
    _broadcast(builder, tree, tree.root, block)


def _reduce(builder: Builder, tree: Tree, rank: int, block: int) -> None:
    for child in tree.children[rank]:
        _reduce(builder, tree, child, block)
        builder.send(child, rank, (block,), reduce=True)


def _broadcast(builder: Builder, tree: Tree, rank: int, block: int) -> None:
    for child in tree.children[rank]:
        builder.send(rank, child, (block,))
        _broadcast(builder, tree, child, block)


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S: the module's table with one rank a node, else counted on the trees."""
    require_collective(collective, "tree", COLLECTIVES)
    trees = all_reduce_trees(layout or flat(n_ranks))
    sent = max(sum(len(tree.children[rank]) + (rank != tree.root) for tree in trees) for rank in range(n_ranks))
    return Cost(2 * max(_height(tree, tree.root) for tree in trees), Fraction(sent, len(trees)))


def _height(tree: Tree, rank: int) -> int:
    return max((1 + _height(tree, child) for child in tree.children[rank]), default=0)
