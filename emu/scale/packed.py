"""Alltoall over grids whose links have one rate: a chunk is one number of 64 bits, and sorting these is all the order there is.

As chunks come as fast as the next link sends, none is ever sparse (``fabric/link.py``), and a tail follows from its head.  As
ways are the shortest, only the first link of one leaves its source.  So what is left to know of a chunk is where it goes.  From
the top bit down it is

    slice within its bin | link | time within the slice | which of its node's links it comes by | chunk of its message | target

and those of a slice, sorted, are in the calendar's order: 8 bytes for each of 17 million messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from emu.scale.call import Times
from emu.scale.grid_ways import STARTED_AT_ONCE, farthest_first, next_links
from emu.scale.slices import running_max
from emu.scale.wires import Wire
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder

BIN_BITS: Final = 6
SLICES_IN_A_BIN: Final = 1 << BIN_BITS
NOWHERE: Final = (1 << 16) - 1
NEVER_PS: Final = 1 << 62


def is_packable(topology: Topology, wires: list[Wire], sizes_bytes: list[int]) -> bool:
    """Whether any chunk takes as long on any link, latencies aside, and 64 bits hold all that is to be known of it."""
    costs = {(wire.duration_ps(size), wire.first_ps(size)) for wire in set(wires) for size in set(sizes_bytes)}
    is_direct = len(topology.nodes) == topology.n_ranks
    return is_direct and len(costs) == 1 and _ends(topology, wires, sizes_bytes)[-1] < 64


def _ends(topology: Topology, wires: list[Wire], sizes_bytes: list[int]) -> list[int]:
    """Bits of a chunk up to the end of each of its parts, from the lowest."""
    n_entries = max(Counter(link.target for link in topology.links).values())
    slice_ps = 1 << _slice_bits(wires, sizes_bytes)
    spans = topology.n_ranks, len(sizes_bytes), n_entries, slice_ps, len(wires), SLICES_IN_A_BIN
    return list(accumulate((span - 1).bit_length() for span in spans))


def _slice_bits(wires: list[Wire], sizes_bytes: list[int]) -> int:
    """Of the longest slice that is a power of two and no longer than a head takes to the next link."""
    return min(wire.first_ps(sizes_bytes[0]) + wire.latency_ps + wire.added_ps for wire in set(wires)).bit_length() - 1


class PackedExchange:
    """All chunks of an alltoall."""

    def __init__(self, topology: Topology, router: DimensionOrder, wires: list[Wire], sizes_bytes: list[int]) -> None:
        """What is packable."""
        self._n = topology.n_ranks
        self._router = router
        self._n_chunks = len(sizes_bytes)
        self._from = np.array([link.source for link in topology.links], np.int64)
        self._to = np.array([link.target for link in topology.links], np.int64)
        size = sizes_bytes[0]
        self._duration_ps = wires[0].duration_ps(size)
        self._wire_bytes = wires[0].wire_bytes(size)
        self._row = self._to * self._n
        latency = np.array([wire.latency_ps + wire.added_ps for wire in wires], np.int64)
        self._shift = latency + wires[0].first_ps(size)
        self._whole = latency + self._duration_ps
        self._added = np.array([wire.added_ps for wire in wires], np.int64)
        self._slice_bits = _slice_bits(wires, sizes_bytes)
        ends = _ends(topology, wires, sizes_bytes)
        self._chunk_at, self._entry_at, self._time_at, self._link_at, self._slice_at, _ = ends
        self._entry = _entries(self._to) << self._entry_at
        self._n_lanes = min(self._n_chunks, router.spread)
        lanes = [next_links(topology, router, lane).reshape(-1) for lane in range(self._n_lanes)]
        self._next = lanes[0] if len(lanes) == 1 else np.concatenate(lanes)
        """By lane, node and target; -1 is there."""
        self._near: defaultdict[int, list[Times]] = defaultdict(list)
        self._far: defaultdict[int, list[Times]] = defaultdict(list)
        """By slice and by bin."""
        self._bin = 0
        self._free = np.zeros(len(wires), np.int64)
        self.wire_bytes = np.zeros(len(wires), np.int64)
        """By link."""
        self.completed_ps = np.zeros(self._n, np.int64)
        """By rank: all has come to it, and all that it sent has left."""

    def run(self) -> None:
        per_block = max(1, STARTED_AT_ONCE // (self._n * self._n_chunks))
        for first in range(0, self._n, per_block):
            self._start(np.arange(first, min(self._n, first + per_block)))
        in_goal, in_slice = (1 << self._entry_at) - 1, (1 << self._link_at - self._time_at) - 1
        while self._near or self._far:
            number, chunks = self._pop()
            self._cross(number, chunks >> self._link_at, chunks >> self._time_at & in_slice, chunks & in_goal)

    def _start(self, sources: Times) -> None:
        """What these ranks send, chunk after chunk."""
        targets = farthest_first(self._router, sources, self._n)
        chunks = np.arange(self._n_chunks) << self._chunk_at
        goals = (chunks[:, None] + targets[:, None, :]).reshape(-1)
        link = self._onward(np.repeat(sources * self._n, len(goals) // len(sources)), goals).astype(np.int64)
        order = np.argsort(link.astype(np.uint16) if len(self._to) < 1 << 16 else link, kind="stable")
        link = link[order]
        self._cross(0, link, np.zeros(len(link), np.int64), goals[order])
        used = link[_begins(link)]
        np.maximum.at(self.completed_ps, self._from[used], self._free[used] + self._added[used])

    def _onward(self, rows: Times, goals: Times) -> npt.NDArray[np.int32]:
        """The links that chunks take from nodes, given as the rows of these in a lane's table; -1 where they are there."""
        if self._n_chunks > 1:
            rows = (goals >> self._chunk_at) % self._n_lanes * self._n**2 + rows
            goals = goals & (1 << self._chunk_at) - 1
        return self._next.take(rows + goals)

    def _cross(self, number: int, link: Times, time: Times, goals: Times) -> None:
        """Chunks whose heads come to links at ``time`` within a slice, in order of link and turn."""
        begin_ps = number << self._slice_bits
        begins = _begins(link)
        used, n_taken = link[begins], np.diff(begins, append=len(link))
        time[begins] = np.maximum(time[begins], self._free[used] - begin_ps)
        before = np.arange(len(link)) * self._duration_ps
        start = running_max(time - before, link)
        start += before
        self._free[used] = begin_ps + self._duration_ps + start[begins + n_taken - 1]
        self.wire_bytes[used] += n_taken * self._wire_bytes
        onward = self._onward(self._row.take(link), goals)
        there = np.flatnonzero(onward < 0)
        last = link[there]
        came = begin_ps + start[there] + self._whole[last]
        np.maximum.at(self.completed_ps, self._to[last], came)
        start += self._shift.take(link)
        start[there] = NEVER_PS
        goals += self._entry.take(link)
        self._put(number, start, onward, goals)

    def _put(self, number: int, time: Times, link: npt.NDArray[np.int32], low: Times) -> None:
        """Chunks whose heads come to links at ``time`` after a slice begins, with their lowest bits; or never, to nothing."""
        later = (time >> self._slice_bits) + (number - self._bin * SLICES_IN_A_BIN)
        key = np.where(later < SLICES_IN_A_BIN, later, (later >> BIN_BITS) + (SLICES_IN_A_BIN - 1))
        np.minimum(key, NOWHERE, out=key)
        later &= SLICES_IN_A_BIN - 1
        later <<= self._slice_at - self._link_at
        later += link
        later <<= self._link_at - self._time_at
        time &= (1 << self._slice_bits) - 1
        later += time
        later <<= self._time_at
        later += low
        key = key.astype(np.uint16)
        order = np.argsort(key, kind="stable")
        for its, part in _parts(key[order], later[order]):
            if its < SLICES_IN_A_BIN:
                self._near[its].append(part)
            elif its < NOWHERE:
                self._far[self._bin + its - SLICES_IN_A_BIN + 1].append(part)

    def _pop(self) -> tuple[int, Times]:
        """The first slice, and its chunks in order."""
        if not self._near:
            self._bin = min(self._far)
            chunks = np.concatenate(self._far.pop(self._bin))
            chunks.sort()
            for its, part in _parts(chunks >> self._slice_at, chunks):
                self._near[its].append(part)
        first = min(self._near)
        chunks = np.concatenate(self._near.pop(first))
        chunks &= (1 << self._slice_at) - 1
        chunks.sort()
        return self._bin * SLICES_IN_A_BIN + first, chunks


def _entries(targets: Times) -> Times:
    """Of each link which it is of those into its target."""
    order = np.argsort(targets, kind="stable")
    begins = _begins(targets[order])
    entries = np.empty(len(targets), np.int64)
    entries[order] = np.arange(len(targets)) - np.repeat(begins, np.diff(np.append(begins, len(targets))))
    return entries


def _begins(values: Times) -> Times:
    """Positions of those that are not like the one before."""
    return np.flatnonzero(np.concatenate([[len(values) > 0], values[1:] != values[:-1]]))


def _parts(keys: Times, values: Times) -> Iterator[tuple[int, Times]]:
    """Each key, and what has it; keys go up."""
    begins = _begins(keys)
    for key, begin, end in zip(keys[begins].tolist(), begins.tolist(), [*begins[1:].tolist(), len(keys)], strict=False):
        yield key, values[begin:end]
