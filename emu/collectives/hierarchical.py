"""Hierarchical: an all_reduce one dimension after the other, in rings.

    collective    steps                  sent by a rank
    all_reduce    2 sum_k (m_k - 1)      sum_k 2 (m_k - 1)/m_k S / (m_1 ... m_(k-1))

Reduce-scatter in the first dimension, then in the next what that left, and so on; all-gather the other way back.  Over nodes
the dimensions are the node (m_1 = g) and the rail (m_2 = N): 2 (g-1) a1 + 2 (g-1)/g S b1 + 2 (N-1) a2 + 2 (N-1)/N S/g b2.
On a torus they are its own, in the order of its shape; then each ring is made of cables, used in one direction.

One chunk passes the dimensions in turn; many chunks fill them together, so that the time is that of the busiest one.

For two dimensions or more: several nodes of the same size, or a whole torus.  Source: Mikami et al., "Massively distributed
SGD: ImageNet/ResNet-50 training in a flash", arXiv 1811.05233 (2D-torus all-reduce).
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

from emu.collectives.layout import Layout, Rings, known
from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective
from emu.errors import ConfigError

COLLECTIVES = frozenset({"all_reduce"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Ranks that lie in two dimensions or more, or one rank.  Raises ConfigError."""
    require_collective(collective, "hierarchical", COLLECTIVES)
    builder = Builder(collective, "hierarchical", n_ranks, n_ranks, root)
    if n_ranks == 1:
        return builder.build()
    axes = _axes(known(n_ranks, layout))
    place = [{rank: at for ring in axis for at, rank in enumerate(ring)} for axis in axes]
    sizes = [len(axis[0]) for axis in axes]
    for turn, axis in enumerate(axes):
        _go_round(builder, axis, turn, place, sizes, first=1, reduce=True)
    for turn, axis in reversed(list(enumerate(axes))):
        _go_round(builder, axis, turn, place, sizes, first=0, reduce=False)
    return builder.build()


def _axes(layout: Layout) -> tuple[Rings, ...]:
    axes = layout.axes
    if len(axes) < 2:
        raise ConfigError(
            f"hierarchical needs {layout.n_ranks} ranks in two dimensions, several nodes of the same size (host_size) or a whole"
            " torus, and here they have one: use ring"
        )
    return axes


def _go_round(
    builder: Builder, axis: Rings, turn: int, place: list[dict[int, int]], sizes: list[int], *, first: int, reduce: bool
) -> None:
    """In every ring of the axis share p at once from place ``p + first``, round to place p - 1 + first.

    A block is numbered by its places on the axes; a rank works on those that agree with its own places on the axes before.
    """
    m = sizes[turn]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    rest = [sum(map(math.prod, zip(at, strides[turn + 1 :], strict=True))) for at in product(*map(range, sizes[turn + 1 :]))]
    for hop in range(m - 1):
        messages = []
        for ring in axis:
            before = sum(place[axis][ring[0]] * strides[axis] for axis in range(turn))
            for p in range(m):
                slots = tuple(before + p * strides[turn] + offset for offset in rest)
                at = p + first + hop
                messages.append(Message(ring[at % m], ring[(at + 1) % m], slots))
        builder.exchange(messages, reduce=reduce)


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "hierarchical", COLLECTIVES)
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    sizes = [len(axis[0]) for axis in _axes(known(n_ranks, layout))]
    sent = sum((Fraction(2 * (m - 1), math.prod(sizes[: k + 1])) for k, m in enumerate(sizes)), Fraction(0))
    return Cost(sum(2 * (m - 1) for m in sizes), sent)
