"""Rings in slices of time: all_reduce, all_gather and reduce_scatter by ``ring`` where steps do not keep their order on links.

A block goes round its ring, and at every place waits for nothing but the link.  So blocks are followed, chunk by chunk: they may
share links, overtake each other, be dealt over lanes in turn, and be of several sizes or none.  What happens within a slice at
all ranks is done at once, as in ``trees``.

Credit is the connections' own where all chunks are of one size.  Else it is only checked that nobody would wait for it.

Where all steps are too many, the first ones tell the pace of the others: an estimate (``long_ring``).
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from emu.collectives.call import split
from emu.collectives.layout import layout_of
from emu.collectives.ring import carries, rings
from emu.scale.call import Answer, NotExact, OneCall, Times
from emu.scale.connections import HOP_BITS, Connections
from emu.scale.fluid import fluid
from emu.scale.slices import Chunks, Links, run_in_windows, together
from emu.scale.wires import back_ps, check_plain, check_reach, connection_window_bytes, most_wire_bytes, wires_of

MOST_CHUNKS: Final = 30_000_000
"""Chunks of blocks times steps: a microsecond each, over two to three links."""
FIRST_CHUNKS: Final = 10_000_000
FEWEST_STEPS: Final = 16


def ring_in_slices(call: OneCall) -> Answer:
    """Raises NotExact."""
    _check(call)
    n_sent = _n_steps(call) * _n_chunks(call)
    if n_sent > MOST_CHUNKS:
        raise NotExact(f"{n_sent:,} chunks cross links in an order of their own")
    flow = _Flow(call, n_steps=_n_steps(call))
    flow.run()
    return Answer(
        completed_ps=tuple(flow.completed_ps.tolist()),
        method="exact, vectorised, ring in slices of time",
        chunk_bytes=flow.chunk_bytes,
        wire_bytes_per_rank_max=most_wire_bytes(call.topology, flow.wire_bytes),
    )


def long_ring(call: OneCall) -> Answer:
    """An estimate: the first steps exactly, the others at the pace of the second half of those; no less than :func:`fluid`.

    In the first steps all blocks are full and nobody waits for credit.  Raises NotExact.
    """
    _check(call)
    least = fluid(call)
    n_steps, n_chunks = _n_steps(call), _n_chunks(call)
    n_first = min(n_steps, FIRST_CHUNKS // n_chunks)
    if n_first < FEWEST_STEPS:
        return least
    flow = _Flow(call, n_steps=n_first, exactly=False)
    try:
        flow.run()
    except NotExact:
        return least
    half = n_first // 2
    once_ps, twice_ps = flow.mean_ps(half), flow.mean_ps(n_first)
    time_ps = twice_ps + (n_steps - n_first) * (twice_ps - once_ps) / (n_first - half)
    return Answer(
        completed_ps=tuple(max(completed_ps, round(time_ps)) for completed_ps in least.completed_ps),
        method=f"estimate, not exact: {n_first} of {n_steps} steps, the others at the pace of the second half of those: up to"
        f" {'6' if call.collective == 'all_reduce' else '9'} % too fast and 0.6 % too slow against exact runs of 32 to 512 ranks",
        chunk_bytes=least.chunk_bytes,
        wire_bytes_per_rank_max=least.wire_bytes_per_rank_max,
    )


def _check(call: OneCall) -> None:
    """Raises NotExact."""
    if call.collective not in ("all_reduce", "all_gather", "reduce_scatter"):
        raise NotExact(f"{call.collective} by ring is a chain")
    check_plain(call)


def _n_steps(call: OneCall) -> int:
    return (2 if call.collective == "all_reduce" else 1) * (call.topology.n_ranks - 1)


def _n_chunks(call: OneCall) -> int:
    """Of all blocks, full ones."""
    n = call.topology.n_ranks
    n_blocks = len(rings(layout_of(call.topology, tuple(range(n))))) * n if call.collective == "all_reduce" else n
    return n_blocks * len(call.chunks(n_blocks, exactly=False)[1])


class _Flow:
    """All chunks over all edges.

    An edge is the place of a ring that sends over it, ring after ring.  A chunk of a block has a number, and a message is that
    number and how many links of its edge it has crossed.
    """

    def __init__(self, call: OneCall, *, n_steps: int, exactly: bool = True) -> None:
        """Not ``exactly``: all blocks are full, and nobody waits for credit."""
        topology = call.topology
        n = topology.n_ranks
        rank = np.array(rings(layout_of(topology, tuple(range(n)))), np.int64)
        n_rings = len(rank)
        is_twice = call.collective == "all_reduce"
        self.chunk_bytes, most, _ = call.chunks(n_rings * n if is_twice else n, exactly=False)
        share = sum(most) // call.itemsize
        shares = [length for _, length in split(call.count, n_rings * n)] if is_twice and exactly else [share] * (n_rings * n)
        sizes: dict[int, int] = {}
        found = []
        for ring in range(n_rings):
            for place in range(n):
                block_bytes = shares[ring * n + place] * call.itemsize if is_twice or carries(place, n_rings) else 0
                edge = ring * n + (place + (call.collective != "all_gather")) % n
                for chunk, begin in enumerate(range(0, block_bytes, most[0])):
                    found.append((edge, chunk, sizes.setdefault(min(most[0], block_bytes - begin), len(sizes))))
        self._sizes = np.array(list(sizes), np.int64)
        self._source, self._target = rank.reshape(-1), np.roll(rank, -1, axis=1).reshape(-1)
        edges = np.arange(n_rings * n)
        self._next = edges // n * n + (edges + 1) % n
        n_times = n_steps if is_twice else n // n_rings
        is_even = len(sizes) == 1
        self._connections = Connections(
            call, self._source, self._target, edges, most, most, n_times=n_times, with_credit=is_even and exactly
        )
        self._unblocked = None if is_even or not exactly else _Unblocked(call, self._source, self._target, n_times * sum(most))
        wires = wires_of(call)
        check_reach(wires, max(most), 2 * self._connections.n_crossings)
        self._links = Links(wires, self._sizes.tolist())
        self._n_ports = len(topology.links) + n
        self._edge, chunk, self._size = np.array(found, np.int64).T
        """By chunk of a block: the edge that it is on, and which of the sizes it has."""
        self._steps = np.zeros(len(found), np.int64)
        self._n_steps = n_steps
        hops = self._connections.hops(self._edge)
        self._first = np.lexsort((self._edge // n, -hops, chunk, self._source[self._edge]))
        self.completed_ps = np.zeros(n, np.int64)
        """By rank: all has come to it, and all that it sent has left."""
        self._sum_ps = np.zeros(n_steps + 1, np.float64)
        """By step: of the times when chunks had made it."""

    @property
    def wire_bytes(self) -> Times:
        """By link."""
        return self._links.wire_bytes

    def mean_ps(self, step: int) -> float:
        """When chunks had made so many steps."""
        return float(self._sum_ps[step]) / len(self._steps)

    def run(self) -> None:
        start = self._send(self._first, np.zeros_like(self._first), np.zeros_like(self._first))
        run_in_windows(self._links, self._connections.followers(), self._n_ports, start, self._cross, self._arrive)

    def _send(self, numbers: Times, time: Times, by: Times) -> Chunks:
        edges = self._edge[numbers]
        if self._unblocked is not None:
            self._unblocked.sent(edges, self._sizes[self._size[numbers]])
        return self._connections.send(edges, numbers, time, by)

    def _cross(self, chunks: Chunks) -> Chunks:
        number, hop = chunks.message >> HOP_BITS, chunks.message & (1 << HOP_BITS) - 1
        head, tail, left = self._links.cross(chunks.link, chunks.time, chunks.tail, self._size[number])
        begins = hop == 0
        np.maximum.at(self.completed_ps, self._source[self._edge[number[begins]]], left[begins])
        onward = self._connections.link(number, hop + 1)
        return Chunks(np.where(onward < 0, tail, head), tail, chunks.message + 1, onward, chunks.link)

    def _arrive(self, chunks: Chunks) -> Chunks:
        """Chunks in the calendar's order.  Returns what credit for them lets go, and what is sent on."""
        numbers = chunks.message >> HOP_BITS
        edges = self._edge[numbers]
        np.maximum.at(self.completed_ps, self._target[edges], chunks.time)
        self._steps[numbers] += 1
        steps = self._steps[numbers]
        np.add.at(self._sum_ps, steps, chunks.time)
        self._edge[numbers] = self._next[edges]
        goes = steps < self._n_steps
        freed = [self._connections.consume(edges, chunks.time)] if self._connections.have_credit else []
        sent = self._send(numbers[goes], chunks.time[goes], chunks.by[goes])
        if self._unblocked is not None:
            self._unblocked.taken(edges, self._sizes[self._size[numbers]], int(chunks.time[0]), int(chunks.time[-1]))
        return together([*freed, sent])


class _Unblocked:
    """A check that no connection has so much out that a chunk might wait for credit."""

    def __init__(self, call: OneCall, sources: Times, targets: Times, edge_bytes: int) -> None:
        """``edge_bytes``: the most that goes over an edge in all."""
        topology = call.topology
        n, ranks = topology.n_ranks, topology.ranks
        keys, self._of_edge, n_edges = np.unique(sources * n + targets, return_inverse=True, return_counts=True)
        pairs = [(ranks[key // n], ranks[key % n]) for key in keys.tolist()]
        self._window = np.array([connection_window_bytes(topology, *pair) for pair in pairs], np.int64)
        self._back_ps = max(back_ps(topology, target, source) for source, target in pairs)
        self._is_idle = bool((4 * edge_bytes * n_edges <= 3 * self._window).all())
        self._sent = np.zeros(len(keys), np.int64)
        self._taken = np.zeros(len(keys), np.int64)
        self._credited: deque[tuple[int, Times]] = deque([(0, np.zeros_like(self._taken))])
        """When credit for what had been taken has come back, but for a quarter of a window; and what had been."""

    def sent(self, edges: Times, sizes_bytes: Times) -> None:
        np.add.at(self._sent, self._of_edge[edges], sizes_bytes)

    def taken(self, edges: Times, sizes_bytes: Times, first_ps: int, last_ps: int) -> None:
        """Between these times, in which what was :meth:`sent` last was sent too.  Raises NotExact."""
        np.add.at(self._taken, self._of_edge[edges], sizes_bytes)
        if self._is_idle:
            return
        while len(self._credited) > 1 and self._credited[1][0] <= first_ps:
            self._credited.popleft()
        if (4 * (self._sent - self._credited[0][1]) > 3 * self._window).any():  # a quarter of a window may have no credit yet
            raise NotExact("connections that carry uneven chunks might wait for credit")
        self._credited.append((last_ps + self._back_ps, self._taken.copy()))
