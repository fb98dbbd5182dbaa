"""Recursive halving and doubling (Rabenseifner): partners at distance p/2, p/4, ... 1, and back.

    n = p = 2^k      steps      sent by a rank    time
    all_reduce       2 log2 n   2(n-1)/n S        2 log2(n) a + 2(n-1)/n S b + (n-1)/n S g
    reduce_scatter   log2 n     (n-1)/n S         log2(n) a + (n-1)/n S (b + g)
    all_gather       log2 n     (n-1)/n S         log2(n) a + (n-1)/n S b

As little traffic as a ring with logarithmic latency; but half of the data goes
to the most distant partner.

When n is not a power of two, p is the largest one below it and the method is
MPICH's fold: of the first 2(n-p) ranks each even one hands its input to its right
neighbour, which works for both and hands back the result.  That adds 2 steps (only 1
to reduce_scatter and all_gather while 2(n-p) <= p: then what one pair hands over
needs not all the rounds to reach another), and the most that a rank sends becomes

    all_reduce       2(p-1)/p S + S, a rank that works for two
    reduce_scatter   S, a rank that hands its input over
    all_gather       (p-1 + sum over distances d < p of min(n-p, d) + n-1)/n S, a rank that works for two

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19 (2005).
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective

COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def build(collective: str, n_ranks: int, root: int = 0) -> Schedule:
    """Any number of ranks, see above for those that are not a power of two.  Raises ConfigError."""
    require_collective(collective, "halving_doubling", COLLECTIVES)
    p = _power(n_ranks)
    builder = Builder(collective, "halving_doubling", n_ranks, p if collective == "all_reduce" else n_ranks, root)
    pairs = [(2 * i, 2 * i + 1) for i in range(n_ranks - p)]
    alone = range(2 * len(pairs), n_ranks)
    workers = [*(worker for _, worker in pairs), *alone]
    whole = tuple(range(builder.n_blocks))
    groups: list[tuple[int, ...]] = [*pairs, *((rank,) for rank in alone)]
    if collective == "all_reduce":
        groups = [(block,) for block in whole]

    if collective == "all_gather":
        builder.exchange(Message(extra, worker, (extra,)) for extra, worker in pairs)
    else:
        builder.exchange((Message(extra, worker, whole) for extra, worker in pairs), reduce=True)
        _halve(builder, workers, groups)
    if collective != "reduce_scatter":
        _double(builder, workers, groups)
    for extra, worker in pairs:
        result = {"all_reduce": whole, "reduce_scatter": (extra,), "all_gather": whole[:extra] + whole[extra + 1 :]}
        builder.send(worker, extra, result[collective])
    return builder.build()


def _halve(builder: Builder, workers: list[int], groups: list[tuple[int, ...]]) -> None:
    """Each worker gives its partner the half that the partner keeps; group i ends at worker i."""
    distance = len(workers) // 2
    while distance:
        builder.exchange(
            (Message(worker, workers[i ^ distance], _range(groups, i ^ distance, distance)) for i, worker in enumerate(workers)),
            reduce=True,
        )
        distance //= 2


def _double(builder: Builder, workers: list[int], groups: list[tuple[int, ...]]) -> None:
    """Each worker gives its partner all that it has; group i sets out at worker i."""
    distance = 1
    while distance < len(workers):
        builder.exchange(Message(worker, workers[i ^ distance], _range(groups, i, distance)) for i, worker in enumerate(workers))
        distance *= 2


def _range(groups: list[tuple[int, ...]], i: int, distance: int) -> tuple[int, ...]:
    """The blocks of the ``distance`` groups, from a multiple of it on, that i is one of."""
    first = i // distance * distance
    return tuple(block for group in groups[first : first + distance] for block in group)


def _power(n_ranks: int) -> int:
    """The largest power of two that is not above ``n_ranks``."""
    return 1 << max(0, n_ranks.bit_length() - 1)


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "halving_doubling", COLLECTIVES)
    p = _power(n_ranks)
    n_extra = n_ranks - p
    rounds = p.bit_length() - 1
    folds = 0 if n_extra == 0 else 1 if collective != "all_reduce" and 2 * n_extra <= p else 2
    match collective:
        case "all_reduce":
            return Cost(2 * rounds + folds, Fraction(2 * (p - 1), p) + (1 if n_extra else 0))
        case "reduce_scatter":
            return Cost(rounds + folds, Fraction(1) if n_extra else Fraction(n_ranks - 1, n_ranks))
        case _:
            doubled = p - 1 + sum(min(n_extra, 1 << k) for k in range(rounds))
            return Cost(rounds + folds, Fraction(doubled + (n_ranks - 1 if n_extra else 0), n_ranks))
