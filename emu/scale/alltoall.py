"""Alltoall: the ``direct`` one, in which nothing waits for anything but links.

All messages are handed over at the start, so their times follow link by link: where the links of all ways can be put into
levels, each after those that its chunks come from (stars, trees of switches), a level is done at once.  Its chunks are
sorted by link, by their heads, and where these are equal as the calendar has them; then each link serves its own in that order.

Tori, where ways go round in a circle, are :mod:`emu.scale.grids`'.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from emu.scale.call import Answer, NotExact, OneCall, Times
from emu.scale.slices import levels_of
from emu.scale.wires import Wire, check_plain, check_reach, check_window, most_wire_bytes, wires_of
from emu.topologies.graph import Topology

MOST_CROSSINGS: Final = 40_000_000
"""Chunks times links; each takes about 100 bytes while it is sorted."""
MOST_ROUTED: Final = 1_100_000
"""Pairs of ranks whose ways are asked for one by one."""


def alltoall(call: OneCall) -> Answer:
    """Raises NotExact."""
    check_plain(call)
    topology = call.topology
    n = topology.n_ranks
    chunk_bytes, sizes, _ = call.chunks(n)
    wires = wires_of(call)
    check_window(wires, sum(sizes))
    spread = topology.router.spread
    ways = np.concatenate([_ways(topology, chunk % spread) for chunk in range(len(sizes))])
    levels = _levels(ways, len(wires))
    check_reach(wires, max(sizes), int(levels.max() + 1) * int(np.bincount(ways[ways >= 0]).max()))
    flights = _Flights(ways, n, sizes, wires)
    for level in range(int(levels.max()) + 1):
        flights.pass_level(*np.nonzero((levels[ways] == level) & (ways >= 0)))
    return Answer(
        completed_ps=tuple(flights.completed_ps.tolist()),
        method="exact, vectorised, direct by levels of links",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=most_wire_bytes(topology, flights.wire_bytes),
    )


def _ways(topology: Topology, lane: int) -> Times:
    """Links from rank to rank, by (rank, how far the target is behind it), padded with -1."""
    n, ranks = topology.n_ranks, topology.ranks
    if n * (n - 1) > MOST_CROSSINGS:
        raise NotExact(f"{n * (n - 1)} messages do not fit the memory")
    shifts = np.arange(1, n)
    targets = (np.arange(n)[:, None] + shifts) % n
    out = topology.out_links()
    into: list[list[int]] = [[] for _ in topology.nodes]
    for index, link in enumerate(topology.links):
        into[link.target].append(index)
    gates = {topology.links[link].target for rank in ranks for link in out[rank]}
    if len(gates) == 1 and all(len(out[node]) == 1 and len(into[node]) == 1 for node in ranks):
        up = np.array([out[node][0] for node in ranks])
        down = np.array([into[node][0] for node in ranks])
        return np.stack([np.broadcast_to(up[:, None], targets.shape), down[targets]], axis=2).reshape(-1, 2)
    if n * (n - 1) > MOST_ROUTED:
        raise NotExact(f"it would have to route {n * (n - 1)} pairs of ranks one by one")
    routes = [topology.route(ranks[rank], ranks[target], lane) for rank in range(n) for target in targets[rank].tolist()]
    ways = np.full((len(routes), max(map(len, routes))), -1, np.int64)
    for row, route in enumerate(routes):
        ways[row, : len(route)] = route
    return ways


def _levels(ways: Times, n_links: int) -> Times:
    """Per link the longest number of links before it on any way.  Raises NotExact where that has no end."""
    follows = [ways[:, hop : hop + 2] for hop in range(ways.shape[1] - 1)]
    joined = [two[two[:, 1] >= 0] for two in follows]
    pairs = np.unique(np.concatenate([two[:, 0] * n_links + two[:, 1] for two in joined])) if joined else np.zeros(0, np.int64)
    before, after = np.divmod(pairs, n_links)
    levels = levels_of(before, after, n_links)
    if levels is None:
        raise NotExact("ways go round in a circle")
    return levels


class _Flights:
    """All chunks: chunk after chunk, of each the ways in their order."""

    def __init__(self, ways: Times, n: int, sizes_bytes: list[int], wires: list[Wire]) -> None:
        n_pairs = n * (n - 1)
        n_crossings = int((ways >= 0).sum())
        if n_crossings > MOST_CROSSINGS:
            raise NotExact(f"{n_crossings} chunks and links do not fit the memory")
        self._ways = ways
        self._pairs = np.arange(len(ways)) % n_pairs
        self._chunk = np.arange(len(ways)) // n_pairs
        hops = (ways[:n_pairs] >= 0).sum(axis=1).reshape(n, n - 1)
        turns = np.argsort(np.argsort(-hops, axis=1, kind="stable"), axis=1, kind="stable").reshape(-1)
        self._served = self._chunk * n + turns[self._pairs]
        """At the start its turn at its rank, then the order in which its last link served."""
        self._n = n
        self._uneven = len(set(sizes_bytes)) > 1
        self._head = np.zeros(len(ways), np.int64)
        self._tail = self._head.copy()
        self._left = np.zeros(n, np.int64)
        kinds = {wire: number for number, wire in enumerate(dict.fromkeys(wires))}
        self._kind = np.array([kinds[wire] for wire in wires], np.int64)
        self._duration = np.array([[wire.duration_ps(size) for wire in kinds] for size in sizes_bytes], np.int64)
        self._first = np.array([[wire.first_ps(size) for wire in kinds] for size in sizes_bytes], np.int64)
        self._latency = np.array([wire.latency_ps + wire.added_ps for wire in kinds], np.int64)
        self._added = np.array([wire.added_ps for wire in kinds], np.int64)
        n_bytes = np.array([[wire.wire_bytes(size) for wire in kinds] for size in sizes_bytes], np.int64)
        self.wire_bytes = np.zeros(len(wires), np.int64)
        for chunk in range(len(sizes_bytes)):
            of_chunk = ways[chunk * n_pairs : (chunk + 1) * n_pairs]
            taken = np.bincount(of_chunk[of_chunk >= 0], minlength=len(wires))
            self.wire_bytes += taken * n_bytes[chunk][self._kind]

    @property
    def completed_ps(self) -> Times:
        """By rank: all has come to it, and all that it sent has left."""
        n = self._n
        shifts = np.arange(1, n)
        sources = (np.arange(n)[:, None] - shifts) % n
        last = self._tail.reshape(-1, n * (n - 1)).max(axis=0)
        came = last[sources * (n - 1) + shifts - 1].max(axis=1)
        completed: Times = np.maximum(self._left, came)
        return completed

    def pass_level(self, chunks: Times, hops: Times) -> None:
        """``chunks`` cross the links of one level, which are the ``hops``-th of their ways."""
        links = self._ways[chunks, hops]
        came_by = np.where(hops > 0, self._ways[chunks, hops - 1], -1)
        order = _in_order(links, self._head[chunks], came_by, self._served[chunks])
        chunks, links, begins = chunks[order], links[order], hops[order] == 0
        head, tail = self._head[chunks], self._tail[chunks]
        kind = self._kind[links]
        duration, first = self._duration[self._chunk[chunks], kind], self._first[self._chunk[chunks], kind]
        number = np.cumsum(np.concatenate([[False], links[1:] != links[:-1]]))
        starts_at = np.searchsorted(number, np.arange(number[-1] + 1))
        spent = np.cumsum(duration) - duration
        spent -= spent[starts_at][number]
        start = _running_max(head - spent, number) + spent
        end = start + duration
        head_out, tail_out = start + first, end
        sparse = tail - head > duration - first
        if sparse.any():
            if self._uneven:
                raise NotExact("chunks of several sizes come slower than their link")
            solid = _running_max(np.where(sparse, 0, end), number)
            solid = np.where(np.concatenate([[True], number[1:] != number[:-1]]), 0, np.roll(solid, 1))
            slow = _running_max(np.where(sparse, np.maximum(head, solid) + first, 0), number)
            head_out = np.where(sparse, slow, head_out)
            tail_out = np.where(sparse, np.maximum(end, tail + first), end)
        self._head[chunks] = head_out + self._latency[kind]
        self._tail[chunks] = tail_out + self._latency[kind]
        self._served[chunks] = np.arange(len(chunks))
        leaving = (tail_out + self._added[kind])[begins]
        np.maximum.at(self._left, self._pairs[chunks[begins]] // (self._n - 1), leaving)


def _in_order(links: Times, head: Times, came_by: Times, served: Times) -> Times:
    """Positions by link, head, link before and what that served first."""
    time = head if head.any() else served
    span = int(time.max()) + 1
    _check_key(int(links.max()), span)
    key = links * span + time
    order = np.argsort(key)
    in_order = key[order]
    alike = in_order[1:] == in_order[:-1]
    if alike.any():
        tied = np.concatenate([[False], alike]) | np.concatenate([alike, [False]])
        some = order[tied]
        order[tied] = some[np.lexsort((served[some], came_by[some], key[some]))]
    return order


def _check_key(most: int, span: int) -> None:
    """Raises NotExact where 64 bits do not hold ``most`` times a span of time, and a time besides."""
    if (most + 2) * span > np.iinfo(np.int64).max:
        raise NotExact("times are too long to be sorted by link")


def _running_max(values: Times, number: Times) -> Times:
    """The largest so far among those with the same number; numbers go up."""
    span = int(values.max()) - int(values.min()) + 1
    _check_key(int(number[-1]), span)
    lifted = values + number * span
    return np.maximum.accumulate(lifted) - number * span
