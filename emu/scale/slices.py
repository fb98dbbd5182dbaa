"""Slices: a whole fabric's links, in slices of time no longer than the shortest latency.

Law: what crosses a link within a slice comes to the next one after it.  So all chunks of a slice are taken at once, sorted by
link, by their heads, and where these are equal as the calendar has them: by the port that they come by, then in the order in
which they were handed over (conservative lookahead: Chandy and Misra, IEEE TSE 5 (1979)).  The links' rule is that of
``fabric/link.py``; ways may go round in circles.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from emu.scale.call import NotExact, Times
from emu.scale.wires import Wire

LEAST_SLICE_PS: Final = 10_000
SLICES_IN_A_BIN: Final = 64


class Chunks(NamedTuple):
    """Chunks on their way: each is an event when its head comes to ``link``, or at its target its tail (``link`` -1)."""

    time: Times
    tail: Times
    message: Times
    link: Times
    by: Times
    """The port that it comes by."""

    def at(self, which: npt.NDArray[np.bool_] | Times) -> Chunks:
        return Chunks(*(its[which] for its in self))


def together(parts: list[Chunks]) -> Chunks:
    """In the order of the parts."""
    return parts[0] if len(parts) == 1 else Chunks(*(np.concatenate(its) for its in zip(*parts, strict=True)))


def in_order(*keys: tuple[Times, int]) -> Times:
    """Positions sorted by keys, the first first, and where all are equal as they were.  With each the number of its values."""
    joined, span = keys[0]
    for its, n_values in keys[1:]:
        span *= n_values
        joined = joined * n_values + its
    if span >= 1 << 63:
        return np.lexsort([its for its, _ in reversed(keys)])
    order = np.argsort(joined)
    sorted_ = joined[order]
    alike = sorted_[1:] == sorted_[:-1]
    if alike.any():
        tied = np.concatenate([[False], alike]) | np.concatenate([alike, [False]])
        some = order[tied]
        order[tied] = some[np.lexsort((some, joined[some]))]
    return order


class Calendar:
    """Chunks by slice of time: near ones each in theirs, far ones in bins of many."""

    def __init__(self, slice_ps: int) -> None:
        self.slice_ps = slice_ps
        self._near: defaultdict[int, list[Chunks]] = defaultdict(list)
        self._far: defaultdict[int, list[Chunks]] = defaultdict(list)
        self._bin = 0

    def add(self, chunks: Chunks) -> None:
        if not len(chunks.time):
            return
        number = chunks.time // self.slice_ps - self._bin * SLICES_IN_A_BIN
        key = np.where(number < SLICES_IN_A_BIN, number, SLICES_IN_A_BIN - 1 + number // SLICES_IN_A_BIN)
        order = np.argsort(key.astype(np.uint16) if int(key.max()) < 1 << 16 else key, kind="stable")
        key = key[order]
        chunks = chunks.at(order)
        bounds = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1], [True]])).tolist()
        for begin, end in pairwise(bounds):
            ahead = int(key[begin])
            part = Chunks(*(its[begin:end] for its in chunks))
            if ahead < SLICES_IN_A_BIN:
                self._near[self._bin * SLICES_IN_A_BIN + ahead].append(part)
            else:
                self._far[self._bin + ahead - SLICES_IN_A_BIN + 1].append(part)

    def next(self) -> tuple[int, Chunks] | None:
        """The first slice: when it begins and what it holds; None when nothing is left."""
        while not self._near:
            if not self._far:
                return None
            self._bin = min(self._far)
            parts = self._far.pop(self._bin)
            self.add(Chunks(*(np.concatenate(its) for its in zip(*parts, strict=True))))
        number = min(self._near)
        return number * self.slice_ps, together(self._near.pop(number))


class Links:
    """What the links are doing."""

    def __init__(self, wires: list[Wire], sizes_bytes: list[int]) -> None:
        """``sizes_bytes``: of the chunks that there are."""
        kinds = {wire: number for number, wire in enumerate(dict.fromkeys(wires))}
        self._kind = np.array([kinds[wire] for wire in wires], np.int64)
        self._duration = np.array([[wire.duration_ps(size) for wire in kinds] for size in sizes_bytes], np.int64)
        self._first = np.array([[wire.first_ps(size) for wire in kinds] for size in sizes_bytes], np.int64)
        self._latency = np.array([wire.latency_ps + wire.added_ps for wire in wires], np.int64)
        self._added = np.array([wire.added_ps for wire in wires], np.int64)
        self._bytes = np.array([[wire.wire_bytes(size) for wire in kinds] for size in sizes_bytes], np.int64)
        self.wire_bytes = np.zeros(len(wires), np.int64)
        """By link."""
        self._is_uneven = bool((self._first != self._first[0]).any())
        self._free = np.zeros(len(wires), np.int64)
        self._solid = np.zeros(len(wires), np.int64)
        self._last_head = np.zeros(len(wires), np.int64)
        self.slice_ps = min(wire.latency_ps for wire in kinds)
        if self.slice_ps < LEAST_SLICE_PS:
            raise NotExact("a link has next to no latency")

    def cross(self, link: Times, head: Times, tail: Times, size: Times) -> tuple[Times, Times, Times]:
        """Chunks in order of link and turn.  Returns when heads and tails are at the far ends, and when tails have left."""
        kind = self._kind[link]
        duration, first = self._duration[size, kind], self._first[size, kind]
        changes = link[1:] != link[:-1]
        begins = np.concatenate([[0], np.flatnonzero(changes) + 1])
        number = np.cumsum(np.concatenate([[0], changes]))
        used = link[begins]
        spent = np.cumsum(duration) - duration
        spent -= spent[begins][number]
        start = np.maximum(_running_max(head - spent, number), self._free[used][number]) + spent
        end = start + duration
        ends = np.concatenate([begins[1:], [len(link)]]) - 1
        self._free[used] = end[ends]
        self.wire_bytes[used] += np.add.reduceat(self._bytes[size, kind], begins)
        head_out, tail_out = start + first, end
        sparse = tail - head > duration - first
        if not sparse.any():
            self._solid[used] = end[ends]
        else:
            if self._is_uneven:
                raise NotExact("chunks of several sizes come slower than their link")
            solid = np.maximum(_running_max(np.where(sparse, 0, end), number), self._solid[used][number])
            self._solid[used] = solid[ends]
            slow = np.where(sparse, np.maximum(head, solid) + first, 0)
            slow = np.maximum(_running_max(slow, number), self._last_head[used][number])
            self._last_head[used] = slow[ends]
            head_out = np.where(sparse, slow, head_out)
            tail_out = np.where(sparse, np.maximum(end, tail + first), end)
        latency = self._latency[link]
        return head_out + latency, tail_out + latency, tail_out + self._added[link]


def _running_max(values: Times, number: Times) -> Times:
    """The largest so far among those with the same number; numbers go up."""
    least = int(values.min())
    span = int(values.max()) - least + 1
    if (int(number[-1]) + 2) * span > np.iinfo(np.int64).max:
        raise NotExact("times are too long to be sorted by link")
    lifted = number * span
    return np.maximum.accumulate(values - least + lifted) - lifted + least
