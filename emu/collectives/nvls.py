"""NVLS: the switch of a node reduces and multicasts, NVIDIA's NVLink SHARP.

    collective       steps    sent by a rank    received by a rank     g ranks a node; with several nodes one step more,
    all_reduce       2        S + S/g           S + S/g                and S/g more is sent and received
    reduce_scatter   1        S                 S/g
    all_gather       1        S/g               S

An accelerator that reads its share of the data through the switch (``multimem.ld_reduce``) gets the reduction of what all
have there: every one sends its copy to the switch, which sends on one.  What it stores (``multimem.st``) comes to all, to
itself too.  A ring sends 2(g-1)/g S, so that an all_reduce gains (2 - 2/g) / (1 + 1/g), nearly 2 for large g; an all_gather
gains nothing, as a rank receives S in either.

With several nodes the reduced shares cross the network on their rails, by the switches there (SHARP), before they are
multicast: NCCL's NVLS with CollNet.  Blocks are dealt over equally good switches.

As in NCCL, an all_gather or reduce_scatter is for 32 ranks a node or fewer.  Needs ``multicast = true`` on the switches, see
:mod:`emu.collectives.layout`.  Not modelled: that NVLink SHARP accumulates half precision in single, and that it has not quite
the rate of plain copies.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from emu.collectives.layout import Layout, known
from emu.collectives.schedule import Cost, Schedule, require_collective
from emu.collectives.switched import Switched, node_trees, rail_trees, require_small_nodes

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
MOST_SHARED_RANKS: Final = 32
"""Ranks of a node with which NCCL gathers and scatters so: NCCL_MAX_NVLS_ARITY, ``src/enqueue.cc``."""


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Ranks on one node, or on several of the same size.  Raises ConfigError."""
    require_collective(collective, "nvls", COLLECTIVES)
    layout = known(n_ranks, layout)
    _require_legal(collective, layout)
    if n_ranks == 1:
        return Switched(collective, "nvls", layout, 1, root).build()
    trees, nodes = node_trees("nvls", layout), layout.nodes
    rails = rail_trees("nvls", layout) if len(nodes) > 1 else ()
    size = len(nodes[0])
    n_blocks = size * max(map(len, trees)) if collective == "all_reduce" else n_ranks
    builder = Switched(collective, "nvls", layout, n_blocks, root)
    for block in range(n_blocks):
        where = block if collective == "all_reduce" else next(node.index(block) for node in nodes if block in node)
        local, turn = where % size, block // size
        its = [node_its[turn % len(node_its)] for node_its in trees]
        rail = rails[local][turn % len(rails[local])] if rails else None
        if collective == "all_gather" and rail is not None:
            builder.multicast(rail, block, block)
        if collective != "all_gather":
            for node, tree in zip(nodes, its, strict=True):
                builder.reduce_to(tree, node[local], block)
        if collective == "reduce_scatter" and rail is not None:
            builder.reduce_to(rail, block, block)
        if collective == "all_reduce" and rail is not None:
            builder.all_reduce(rail, block)
        if collective != "reduce_scatter":
            for node, tree in zip(nodes, its, strict=True):
                builder.multicast(tree, node[local], block)
    if collective == "all_reduce":
        builder.pace()
    return builder.build()


def _require_legal(collective: str, layout: Layout) -> None:
    if collective != "all_reduce":
        require_small_nodes("nvls", layout, MOST_SHARED_RANKS, f" {collective}")


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "nvls", COLLECTIVES)
    layout = known(n_ranks, layout)
    _require_legal(collective, layout)
    nodes = layout.nodes
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    share, several = Fraction(1, len(nodes[0])), int(len(nodes) > 1)
    match collective:
        case "all_reduce":
            return Cost(2 + several, 1 + share + several * share)
        case "reduce_scatter":
            return Cost(1 + several, 1 + several * share)
        case _:
            return Cost(1 + several, share + several * Fraction(1, n_ranks))
