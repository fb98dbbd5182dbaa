"""Alltoall over grids in dimension order, where ways go round in circles: ``direct``, in slices of time.

All messages are handed over at the start, each rank's farthest first, and nothing waits for anything but links.  The next
link of a message follows from where it is, where it goes and its lane, so ways are not kept: 4,096 ranks have 201 million
crossings of 17 million messages.  Where links have one rate there is less to know of them: :mod:`emu.scale.packed`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from emu.scale.call import Answer, NotExact, OneCall, Times
from emu.scale.grid_ways import STARTED_AT_ONCE, farthest_first, next_links
from emu.scale.loads import alltoall_loads
from emu.scale.packed import PackedExchange, is_packable
from emu.scale.slices import Calendar, Chunks, Links, in_order
from emu.scale.wires import Wire, check_plain, check_reach, check_window, most_wire_bytes, wires_of
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder

MOST_CROSSINGS: Final = 250_000_000
"""Chunks times links: 60 ns each where links are even, else 170."""
MOST_SLICES: Final = 200_000


def alltoall_on_grid(call: OneCall) -> Answer:
    """Raises NotExact."""
    check_plain(call)
    topology, router = call.topology, call.topology.router
    n = topology.n_ranks
    if not isinstance(router, DimensionOrder):
        raise NotExact("ways go round in a circle, and not in dimension order")
    chunk_bytes, sizes, _ = call.chunks(n)
    wires = wires_of(call)
    check_window(wires, sum(sizes))
    loads = alltoall_loads(topology)
    if loads.sum() * len(sizes) > MOST_CROSSINGS:
        raise NotExact(f"chunks cross links {loads.sum() * len(sizes):,.0f} times")
    check_reach(wires, max(sizes), math.ceil(loads.max()) * len(sizes) * (sum(router.shape) + 2))
    last_ps = max(load * sum(map(wire.duration_ps, sizes)) for load, wire in zip(loads.tolist(), wires, strict=True))
    if last_ps > MOST_SLICES * min(wire.latency_ps for wire in wires):
        raise NotExact("it takes too many times the shortest latency")
    kind = PackedExchange if is_packable(topology, wires, sizes) else _Exchange
    exchange = kind(topology, router, wires, sizes)
    exchange.run()
    return Answer(
        completed_ps=tuple(exchange.completed_ps.tolist()),
        method="exact, vectorised, direct in slices of time",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=most_wire_bytes(topology, exchange.wire_bytes),
    )


class _Exchange:
    """All chunks: a message is its chunk, its source and its target, in as many bits as ranks need."""

    def __init__(self, topology: Topology, router: DimensionOrder, wires: list[Wire], sizes_bytes: list[int]) -> None:
        self._n = topology.n_ranks
        self._n_chunks = n_chunks = len(sizes_bytes)
        self._bits = self._n.bit_length()
        self._mask = (1 << self._bits) - 1
        self._links = Links(wires, sizes_bytes)
        self._n_links = len(topology.links)
        self._router = router
        self._from = np.array([link.source for link in topology.links], np.int64)
        self._to = np.array([link.target for link in topology.links], np.int64)
        self._spread = router.spread
        self._next = [next_links(topology, router, lane) for lane in range(min(n_chunks, self._spread))]
        """By lane, node and target; -1 is there."""
        self.completed_ps = np.zeros(self._n, np.int64)
        """By rank: all has come to it, and all that it sent has left."""

    @property
    def wire_bytes(self) -> Times:
        return self._links.wire_bytes

    def run(self) -> None:
        calendar = Calendar(self._links.slice_ps)
        per_block = max(1, STARTED_AT_ONCE // (self._n * self._n_chunks))
        for first in range(0, self._n, per_block):
            self._start(np.arange(first, min(self._n, first + per_block)), calendar)
        while (found := calendar.next()) is not None:
            begin_ps, chunks = found
            order = in_order(
                (chunks.link, self._n_links), (chunks.time - begin_ps, calendar.slice_ps), (chunks.by, self._n_links)
            )
            self._cross(chunks.at(order), calendar)

    def _start(self, sources: Times, calendar: Calendar) -> None:
        """What these ranks send: the farthest first, then in the order in which targets follow; chunk after chunk."""
        targets = farthest_first(self._router, sources, self._n)
        chunk = np.arange(self._n_chunks)
        message = (((chunk[:, None] << self._bits) + sources[:, None, None] << self._bits) + targets[:, None, :]).reshape(-1)
        nothing = np.zeros(len(message), np.int64)
        chunks = Chunks(nothing, nothing, message, nothing, nothing)
        link = self._onward(message, self._source_of(message))
        order = np.argsort(link, kind="stable")
        self._cross(chunks._replace(link=link).at(order), calendar)

    def _onward(self, message: Times, node: Times) -> Times:
        target = message & self._mask
        if len(self._next) == 1:
            onward: Times = self._next[0][node, target].astype(np.int64)
            return onward
        lane = self._chunk_of(message) % self._spread
        link = np.empty(len(message), np.int64)
        for number, table in enumerate(self._next):
            mine = lane == number
            link[mine] = table[node[mine], target[mine]]
        return link

    def _cross(self, chunks: Chunks, calendar: Calendar) -> None:
        head, tail, left = self._links.cross(chunks.link, chunks.time, chunks.tail, self._chunk_of(chunks.message))
        node = self._to[chunks.link]
        onward = self._onward(chunks.message, node)
        there = onward < 0
        np.maximum.at(self.completed_ps, node[there], tail[there])
        sources = self._source_of(chunks.message)
        begins = sources == self._from[chunks.link]
        np.maximum.at(self.completed_ps, sources[begins], left[begins])
        goes = ~there
        calendar.add(Chunks(head[goes], tail[goes], chunks.message[goes], onward[goes], chunks.link[goes]))

    def _source_of(self, message: Times) -> Times:
        return message >> self._bits & self._mask

    def _chunk_of(self, message: Times) -> Times:
        return message >> 2 * self._bits
