"""PAT: parallel aggregated trees, NCCL's logarithmic all_gather and reduce_scatter between nodes.

    collective       steps          sent by a rank    time
    all_gather       ceil(log2 n)   (n-1)/n S         ceil(log2 n) a + (n-1)/n S b
    reduce_scatter   ceil(log2 n)   (n-1)/n S         ceil(log2 n) a + (n-1)/n S (b + g)

One step less where n is at most 3/4 of the next power of two: the rounds of the two farthest peers do not depend on each other.
Every block has a binomial tree of its own, the same one shifted by its rank, and what a rank sends to a peer at one height
of all its trees is one message.  An all_gather begins with the farthest peers, n/2 away, while it has one block only, and
ends with neighbours; a reduce_scatter is the same backwards.  So far messages are small, unlike in Bruck's algorithm.

As in NCCL, for one rank a node only.  Source: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations
at scale", arXiv 2506.20252.  Not modelled: the bound on the buffers between, which lets large calls aggregate less.
"""

from __future__ import annotations

from fractions import Fraction

from emu.collectives.layout import Layout
from emu.collectives.schedule import Builder, Cost, Message, Schedule, require_collective
from emu.errors import ConfigError

COLLECTIVES = frozenset({"all_gather", "reduce_scatter"})


def build(collective: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """Any number of ranks, on a node each.  Raises ConfigError."""
    require_collective(collective, "pat", COLLECTIVES)
    most = max(map(len, layout.nodes)) if layout is not None else 1
    if most > 1:
        raise ConfigError(f"pat needs one rank a node, and here {most} share one; use ring, direct or bruck")
    n = n_ranks
    builder = Builder(collective, "pat", n, n, root)
    distances = [1 << height for height in reversed(range((n - 1).bit_length()))]
    gathers = collective == "all_gather"
    for distance in distances if gathers else reversed(distances):
        offsets = range(0, n - distance, 2 * distance)
        messages = []
        for rank in range(n):
            slots = tuple((rank - offset) % n for offset in offsets)
            far = (rank + distance) % n
            messages.append(Message(rank, far, slots) if gathers else Message(far, rank, slots))
        builder.exchange(messages, reduce=not gathers)
    return builder.build()


def cost(collective: str, n_ranks: int) -> Cost:
    """Steps and sent bytes over S, as in the module's table."""
    require_collective(collective, "pat", COLLECTIVES)
    rounds = (n_ranks - 1).bit_length()
    return Cost(rounds - (rounds > 1 and 4 * n_ranks <= 3 << rounds), Fraction(n_ranks - 1, n_ranks))
