"""Switched: what algorithms with switches that reduce and multicast have in common.

Law: a reduction goes up a tree of switches, a multicast down it; each switch sends what it makes of a block once to every
child or once to its parent, however many ranks are below it.  Who cannot have such trees is told why (ConfigError).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emu.collectives.layout import Layout, SwitchTree
from emu.collectives.schedule import Builder
from emu.errors import ConfigError

Trees = tuple[SwitchTree, ...]
MOST_COLLNET_RANKS: Final = 8
"""Ranks of a node with which NCCL uses CollNet: NCCL_MAX_DIRECT_ARITY and one, ``src/enqueue.cc``."""


class Switched(Builder):
    """A builder whose participants are the ranks and the switches of a layout."""

    def __init__(self, collective: str, algorithm: str, layout: Layout, n_blocks: int, root: int) -> None:
        super().__init__(collective, algorithm, layout.n_ranks, n_blocks, root, len(layout.switches))

    def reduce_to(self, tree: SwitchTree, rank: int, block: int) -> None:
        """The block of all ranks below the tree to one rank."""
        self._up(tree, (rank,), block)

    def multicast(self, tree: SwitchTree, rank: int, block: int) -> None:
        """The block of one rank to all ranks below the tree, itself too."""
        self.combine(tree.switch, (rank,), _names(tree), (block,))
        self._down(tree, block)

    def all_reduce(self, tree: SwitchTree, block: int) -> None:
        """The block of all ranks below the tree to all of them; it turns round at the root."""
        self._up(tree, _names(tree), block)
        self._down(tree, block)

    def _up(self, tree: SwitchTree, outputs: tuple[int, ...], block: int) -> None:
        for child in tree.children:
            if isinstance(child, SwitchTree):
                self._up(child, (tree.switch,), block)
        self.combine(tree.switch, _names(tree), outputs, (block,))

    def _down(self, tree: SwitchTree, block: int) -> None:
        for child in tree.children:
            if isinstance(child, SwitchTree):
                self.combine(child.switch, (tree.switch,), _names(child), (block,))
                self._down(child, block)


def _names(tree: SwitchTree) -> tuple[int, ...]:
    return tuple(child.switch if isinstance(child, SwitchTree) else child for child in tree.children)


def node_trees(algorithm: str, layout: Layout) -> tuple[Trees, ...]:
    """Per node its switch trees.  Raises ConfigError where a node has none, or nodes differ in size."""
    _require_alike(algorithm, layout)
    if len(layout.nodes[0]) == 1:
        raise ConfigError(
            f"{algorithm} needs several ranks a node, joined by a switch; here each has a node of its own (host_size):"
            " use collnet_direct"
        )
    return _require(algorithm, "inside each node", layout.node_trees, layout)


def rail_trees(algorithm: str, layout: Layout) -> tuple[Trees, ...]:
    """Per rail its switch trees.  Raises ConfigError where a rail has none, or nodes differ in size."""
    _require_alike(algorithm, layout)
    if len(layout.nodes) == 1:
        raise ConfigError(f"{algorithm} needs several nodes; here all {layout.n_ranks} ranks share one: use nvls")
    return _require(algorithm, "between the nodes", layout.rail_trees, layout)


def collnet_trees(algorithm: str, layout: Layout) -> tuple[Trees, ...]:
    """Per rail its switch trees, for nodes that are not too large for CollNet.  Raises ConfigError."""
    trees = rail_trees(algorithm, layout)
    require_small_nodes(algorithm, layout, MOST_COLLNET_RANKS)
    return trees


def require_small_nodes(algorithm: str, layout: Layout, most: int, what: str = "") -> None:
    """Raises ConfigError where a node has more ranks than NCCL takes."""
    n_local = max(map(len, layout.nodes), default=0)
    if n_local > most:
        raise ConfigError(f"{algorithm}{what} needs {most} ranks a node or fewer, as in NCCL; here one has {n_local}: use ring")


def _require_alike(algorithm: str, layout: Layout) -> None:
    if not layout.rails:
        sizes = sorted({len(node) for node in layout.nodes})
        raise ConfigError(f"{algorithm} needs as many ranks on every node; here nodes have {', '.join(map(str, sizes))}")


def _require(algorithm: str, where: str, trees: Sequence[Trees], layout: Layout) -> tuple[Trees, ...]:
    if not all(trees):
        why = layout.cannot or "those with multicast = true do not reach all ranks"
        raise ConfigError(f"{algorithm} needs switches {where} that reduce and multicast: {why}")
    return tuple(trees)
