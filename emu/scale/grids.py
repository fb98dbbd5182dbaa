"""Alltoall over grids in dimension order, where ways go round in circles: ``direct``, in slices of time.

All messages are handed over at the start, each rank's farthest first, and nothing waits for anything but links.  The next
link of a message follows from where it is, where it goes and its lane, so ways are not kept: 4,096 ranks have 201 million
crossings of 17 million messages.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from emu.scale.call import Answer, NotExact, OneCall, Times
from emu.scale.loads import alltoall_loads
from emu.scale.slices import Calendar, Chunks, Links, in_order
from emu.scale.wires import check_plain, check_reach, check_window, wires_of
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder

MOST_CROSSINGS: Final = 250_000_000
"""Chunks times links: a quarter of a microsecond each."""
MOST_SLICES: Final = 200_000
STARTED_AT_ONCE: Final = 1 << 20


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
    check_reach(wires, max(sizes), math.ceil(loads.max()) * len(sizes) * sum(router.shape))
    links = Links(wires, sizes)
    last_ps = max(load * sum(map(wire.duration_ps, sizes)) for load, wire in zip(loads.tolist(), wires, strict=True))
    if last_ps > MOST_SLICES * links.slice_ps:
        raise NotExact("it takes too many times the shortest latency")
    exchange = _Exchange(topology, router, len(sizes), links)
    exchange.run()
    sent = np.zeros(n, np.int64)
    np.add.at(sent, [link.source for link in topology.links], links.wire_bytes)
    return Answer(
        completed_ps=tuple(exchange.completed_ps.tolist()),
        method="exact, vectorised, direct in slices of time",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=int(sent.max()),
    )


class _Exchange:
    """All chunks: a message is its chunk, its source and its target, in as many bits as ranks need."""

    def __init__(self, topology: Topology, router: DimensionOrder, n_chunks: int, links: Links) -> None:
        self._n = topology.n_ranks
        self._n_chunks = n_chunks
        self._bits = self._n.bit_length()
        self._mask = (1 << self._bits) - 1
        self._links = links
        self._n_links = len(topology.links)
        self._router = router
        self._from = np.array([link.source for link in topology.links], np.int64)
        self._to = np.array([link.target for link in topology.links], np.int64)
        self._spread = router.spread
        self._next = [_next_links(topology, router, lane) for lane in range(min(n_chunks, self._spread))]
        """By lane, node and target; -1 is there."""
        self.completed_ps = np.zeros(self._n, np.int64)
        """By rank: all has come to it, and all that it sent has left."""

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
        n = self._n
        targets = (sources[:, None] + np.arange(1, n)) % n
        farthest = np.argsort(-_hops(self._router, sources[:, None], targets), axis=1, kind="stable")
        targets = np.take_along_axis(targets, farthest, axis=1)
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


def _next_links(topology: Topology, router: DimensionOrder, lane: int) -> npt.NDArray[np.int32]:
    """The router's rule for all nodes and targets at once.  Raises NotExact where cables are parallel."""
    n = topology.n_ranks
    between = {(link.source, link.target): index for index, link in enumerate(topology.links)}
    if len(between) < len(topology.links):
        raise NotExact("a hash picks among parallel cables")
    found = np.full((n, n), -1, np.int32)
    nodes = np.arange(n)
    n_ties = sum(map(router.ties, router.shape))
    stride = 1
    for size in reversed(router.shape):
        here = nodes // stride % size
        ahead = (here - here[:, None]) % size
        up = 2 * ahead < size if router.wrap else here > here[:, None]
        if router.ties(size):
            n_ties -= 1
            up |= (2 * ahead == size) & ((here[:, None] + (lane >> n_ties)) % 2 == 0)
        upward, downward = (
            np.array([between.get(ends, -1) for ends in zip(nodes.tolist(), neighbours.tolist(), strict=True)])
            for neighbours in (nodes + ((here + step) % size - here) * stride for step in (1, -1))
        )
        found = np.where(ahead == 0, found, np.where(up, upward[:, None], downward[:, None])).astype(np.int32)
        stride *= size
    return found


def _hops(router: DimensionOrder, sources: Times, targets: Times) -> Times:
    """Links on the way."""
    stride = 1
    hops = np.zeros(np.broadcast_shapes(sources.shape, targets.shape), np.int64)
    for size in reversed(router.shape):
        offset = targets // stride % size - sources // stride % size
        hops += np.minimum(offset % size, -offset % size) if router.wrap else np.abs(offset)
        stride *= size
    return hops
