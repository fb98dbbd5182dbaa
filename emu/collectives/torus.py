"""Torus: rings along every dimension at once, both ways round, so that every link of every rank is busy.

    collective       steps                  sent by a rank
    all_reduce       2 sum_k floor(m_k/2)   2 (n-1)/n S
    reduce_scatter   sum_k floor(m_k/2)     (n-1)/n S
    all_gather       sum_k floor(m_k/2)     (n-1)/n S

The data falls into a part for each of the d dimensions.  Part t is reduce-scattered along dimension t, what that left along
t + 1, and so on round the dimensions; the all-gather goes the other way back.  So at any time each part is in another dimension.
In a ring of m ranks a block comes to its owner from both sides, from at most m/2 hops away; of the blocks of the rank that is
as far either way (m even) one half comes from each.

With d equal dimensions of m > 2 every rank has 2 d links of rate 1/b, and all_reduce takes 2 (n-1)/n S b / (2 d), the least that
they allow, and the latency of every step in one chunk; more chunks hide it.  Of unequal dimensions the parts are so large that
the busiest link has the least to do, and up to 64 ranks each owner's blocks are sent on as they come, so that phases of different
length overlap: up to a tenth is lost.  Beyond, where that would be too many messages, up to a half.

For all accelerators of a torus or a ring as its ranks, in their order; all cables count as equally fast.

Sources: Sack and Gropp, "Collective algorithms for multiported torus networks", ACM TOPC 1 (2015); Jain and Sabharwal,
"Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Final, NamedTuple

from emu.collectives.layout import Layout, Rings, known
from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective
from emu.errors import ConfigError

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
MOST_SHARES: Final = 8
"""Shares that a rank's data is cut into, to be dealt to the parts."""
MOST_SPLIT: Final = 64
"""Ranks up to which what comes at different times is sent on one by one: a message for each owner."""


class Block(NamedTuple):
    owner: tuple[int, ...]
    """Coordinates of the rank that it is reduced to, or gathered from."""
    turn: int
    """Its part: the dimension that it is reduced in first, and gathered in last."""
    ahead: bool
    """Whether it goes in the direction of growing coordinates where both ways are as long."""


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """The ranks of a whole torus, or one rank.  Raises ConfigError."""
    require_collective(collective, "torus", COLLECTIVES)
    builder = Builder(collective, "torus", n_ranks, n_ranks, root)
    if n_ranks > 1:
        axes = _axes(known(n_ranks, layout))
        blocks = _blocks(axes)
        builder.n_blocks = len(blocks)
        for reduce in _halves(collective):
            for messages in _rounds(axes, blocks, reduce=reduce):
                builder.exchange(messages, reduce=reduce)
    return builder.build()


def cost(collective: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "torus", COLLECTIVES)
    if n_ranks == 1:
        return Cost(0, Fraction(0))
    n_halves = len(_halves(collective))
    steps = sum(len(axis[0]) // 2 for axis in _axes(known(n_ranks, layout)))
    return Cost(n_halves * steps, Fraction(n_halves * (n_ranks - 1), n_ranks))


def _halves(collective: str) -> tuple[bool, ...]:
    """Whether each half of the collective reduces."""
    return {"all_reduce": (True, False), "reduce_scatter": (True,), "all_gather": (False,)}[collective]


def _axes(layout: Layout) -> tuple[Rings, ...]:
    if not layout.torus_axes:
        raise ConfigError(
            f"torus needs all accelerators of a torus or a ring as its ranks, in their order, and these {layout.n_ranks} are not"
            " that: use ring"
        )
    return layout.torus_axes


def _coordinates(axes: tuple[Rings, ...]) -> list[tuple[int, ...]]:
    """By rank."""
    places = [{rank: place for ring in axis for place, rank in enumerate(ring)} for axis in axes]
    return [tuple(place[rank] for place in places) for rank in range(len(places[0]))]


def _blocks(axes: tuple[Rings, ...]) -> list[Block]:
    """Each rank's share of the data, a block for each of the shares that parts are made of and each way round."""
    sizes = [len(axis[0]) for axis in axes]
    turns = deal(sizes)
    ways = (True, False) if any(size > 2 and size % 2 == 0 for size in sizes) else (True,)
    return [Block(owner, turn, ahead) for owner, ahead, turn in product(_coordinates(axes), ways, turns)]


def deal(sizes: list[int]) -> list[int]:
    """The parts of a few equal shares, by the dimension that a part begins in: each goes where the busiest link then has least.

    No more shares than bring the busiest within 2 % of the best.
    """
    d = len(sizes)
    loads = [_loads(sizes, turn) for turn in range(d)]
    turns: list[int] = []
    busiest: list[Fraction] = []
    total = [Fraction(0)] * d
    for n_shares in range(1, MOST_SHARES + 1):
        totals = [[before + more for before, more in zip(total, load, strict=True)] for load in loads]
        total = min(totals, key=max)
        turns.append(totals.index(total))
        busiest.append(max(total) / n_shares)
    enough = min(busiest) * Fraction(51, 50)
    return turns[: next(n for n, load in enumerate(busiest, 1) if load <= enough)]


def _loads(sizes: list[int], turn: int) -> list[Fraction]:
    """What a link of each dimension carries of a part; a rank has two links in a dimension, one where its size is 2."""
    loads, left = list(map(Fraction, sizes)), Fraction(1)
    for dimension in _order(turn, len(sizes)):
        size = sizes[dimension]
        loads[dimension] = left * (size - 1) / size / min(size - 1, 2)
        left /= size
    return loads


def _order(turn: int, d: int) -> tuple[int, ...]:
    """The dimensions as a part is reduced in them."""
    return (*range(turn, d), *range(turn))


def _rounds(axes: tuple[Rings, ...], blocks: list[Block], *, reduce: bool) -> Iterator[list[Message]]:
    """What all parts send in one hop, the reduce-scatter's from far to near the owner, the all-gather's from near to far."""
    sizes = [len(axis[0]) for axis in axes]
    d, farthest = len(sizes), max(sizes) // 2
    here = _coordinates(axes)
    splits = min(sizes) != max(sizes) and len(here) <= MOST_SPLIT
    rank_at = {coordinates: rank for rank, coordinates in enumerate(here)}
    orders = [_order(turn, d) for turn in range(d)]
    for nth in range(d) if reduce else reversed(range(d)):
        alike = defaultdict[tuple[int, ...], list[int]](list)
        for number, block in enumerate(blocks):
            alike[block.turn, *(block.owner[k] for k in orders[block.turn][: nth + 1])].append(number)
        for distance in range(farthest, 0, -1) if reduce else range(1, farthest + 1):
            messages = []
            for (turn, order), (rank, at), step in product(enumerate(orders), enumerate(here), (1, -1)):
                dimension = order[nth]
                size = sizes[dimension]
                if 2 * distance > size:
                    continue
                owner = (at[dimension] + step * (distance if reduce else 1 - distance)) % size
                slots = alike[turn, *(at[k] for k in order[:nth]), owner]
                if 2 * distance == size:
                    slots = [n for n in slots if (blocks[n].ahead or size == 2) == (step == 1)]
                target = rank_at[*at[:dimension], (at[dimension] + step) % size, *at[dimension + 1 :]]
                together = defaultdict[tuple[int, ...], list[int]](list)
                for n in slots:
                    together[tuple(blocks[n].owner[k] for k in order[nth + 1 :]) if splits else ()].append(n)
                messages += [Message(rank, target, tuple(some)) for some in together.values()]
            yield messages
