"""Slices: a whole fabric's links, in slots: slices of time, or the links of one level within a slice.

Law: what crosses a link within a slot comes to the next one in a later slot: slices are no longer than heads take over a link,
or links are in levels.  So all chunks of a slot are taken at once, sorted by link, by their heads, and where these are equal as
the calendar has them: by the port that they come by, then in the order in which they were handed over (conservative lookahead:
Chandy and Misra, IEEE TSE 5 (1979)).  The links' rule is that of ``fabric/link.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from emu.scale.call import NotExact, Times
from emu.scale.wires import Wire

LEAST_SLICE_PS: Final = 10_000
MOST_LEVELS: Final = 64
MOST_KEY: Final = 1 << 62
"""Links times ports times picoseconds of a slice, to be sorted by all three at once."""
SLOTS_IN_A_BIN: Final = 64


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


class Slots:
    """Chunks by slot, a whole number that goes up with time: near ones each in theirs, far ones in bins of many."""

    def __init__(self, slots_of: Callable[[Chunks], Times]) -> None:
        self._slots_of = slots_of
        self._near: defaultdict[int, list[Chunks]] = defaultdict(list)
        self._far: defaultdict[int, list[Chunks]] = defaultdict(list)
        self._bin = 0

    def add(self, chunks: Chunks) -> None:
        """None of them before the slot that was taken last."""
        if not len(chunks.time):
            return
        number = self._slots_of(chunks) - self._bin * SLOTS_IN_A_BIN
        key = np.where(number < SLOTS_IN_A_BIN, number, SLOTS_IN_A_BIN - 1 + number // SLOTS_IN_A_BIN)
        order = np.argsort(key.astype(np.uint16) if int(key.max()) < 1 << 16 else key, kind="stable")
        key = key[order]
        chunks = chunks.at(order)
        bounds = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1], [True]])).tolist()
        for begin, end in pairwise(bounds):
            ahead = int(key[begin])
            part = Chunks(*(its[begin:end] for its in chunks))
            if ahead < SLOTS_IN_A_BIN:
                self._near[self._bin * SLOTS_IN_A_BIN + ahead].append(part)
            else:
                self._far[self._bin + ahead - SLOTS_IN_A_BIN + 1].append(part)

    def next(self) -> tuple[int, Chunks] | None:
        """The first slot and what it holds; None when nothing is left."""
        while not self._near:
            if not self._far:
                return None
            self._bin = min(self._far)
            self.add(together(self._far.pop(self._bin)))
        slot = min(self._near)
        return slot, together(self._near.pop(slot))


class Calendar(Slots):
    """Slots that are slices of time."""

    def __init__(self, slice_ps: int) -> None:
        super().__init__(lambda chunks: chunks.time // slice_ps)
        self.slice_ps = slice_ps

    def next(self) -> tuple[int, Chunks] | None:
        """The first slice: when it begins and what it holds; None when nothing is left."""
        found = super().next()
        return None if found is None else (found[0] * self.slice_ps, found[1])


def levels_of(before: Times, after: Times, n_links: int) -> Times | None:
    """Per link the longest number of links before it on any way; None where ways go round in a circle.

    ``before``, ``after``: links that follow each other on a way.
    """
    levels = np.zeros(n_links, np.int64)
    for _ in range(MOST_LEVELS):
        short_of = levels[after] <= levels[before]
        if not short_of.any():
            return levels
        np.maximum.at(levels, after[short_of], levels[before[short_of]] + 1)
    return None


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
        start = np.maximum(running_max(head - spent, number), self._free[used][number]) + spent
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
            solid = np.maximum(running_max(np.where(sparse, 0, end), number), self._solid[used][number])
            self._solid[used] = solid[ends]
            slow = np.where(sparse, np.maximum(head, solid) + first, 0)
            slow = np.maximum(running_max(slow, number), self._last_head[used][number])
            self._last_head[used] = slow[ends]
            head_out = np.where(sparse, slow, head_out)
            tail_out = np.where(sparse, np.maximum(end, tail + first), end)
        latency = self._latency[link]
        return head_out + latency, tail_out + latency, tail_out + self._added[link]

    def least_ps(self, links: Times, *, whole: bool) -> int:
        """The shortest time that a chunk takes over any of these, to its head's coming to the far end, or ``whole``."""
        costs = self._duration if whole else self._first
        return int((costs.min(axis=0)[self._kind[links]] + self._latency[links]).min())


def running_max(values: Times, number: Times) -> Times:
    """The largest so far among those with the same number, in place; numbers go up."""
    least = int(values.min())
    span = int(values.max()) - least + 1
    if (int(number[-1]) + 2) * span > np.iinfo(np.int64).max:
        raise NotExact("times are too long to be sorted by link")
    lifted = number * span - least
    values += lifted
    np.maximum.accumulate(values, out=values)
    values -= lifted
    return values


def run_in_windows(
    links: Links,
    followers: tuple[Times, Times, Times],
    n_ports: int,
    start: Chunks,
    cross: Callable[[Chunks], Chunks],
    arrive: Callable[[Chunks], Chunks],
) -> None:
    """Slot after slot: what arrives in a window of time, then what crosses links in each of its slices, level by level.

    ``followers``: links and what comes after them on a way, and the last links of ways; ``n_ports``: of values of ``by``;
    ``cross``, ``arrive``: what chunks in the calendar's order come to.  A chunk is there when its last byte is, so a window is as
    long as the shortest last link takes for a whole chunk, and a slice as long where no way goes round in a circle.  What is sent
    for an arrival, or for the credit that it gives, is known before anything crosses a link in that window.
    """
    before, after, last = followers
    n_links = len(links.wire_bytes)
    window_ps = slice_ps = min(links.least_ps(last, whole=True), MOST_KEY // (n_links * n_ports))
    levels = levels_of(before, after, n_links)
    if levels is None:
        levels = np.zeros(n_links, np.int64)
        slice_ps = min(window_ps, links.least_ps(before, whole=False))
    level_of, n_slots, n_slices = levels, int(levels.max()) + 2, window_ps // slice_ps
    window_ps = n_slices * slice_ps

    def slots_of(chunks: Chunks) -> Times:
        crossing: Times = chunks.time // slice_ps * n_slots + level_of[chunks.link] + 1
        return np.where(chunks.link < 0, chunks.time // window_ps * (n_slices * n_slots), crossing)

    slots = Slots(slots_of)
    slots.add(start)
    while (found := slots.next()) is not None:
        slot, chunks = found
        time = chunks.time - slot // n_slots * slice_ps
        if slot % n_slots:
            slots.add(cross(chunks.at(in_order((chunks.link, n_links), (time, slice_ps), (chunks.by, n_ports)))))
        else:
            slots.add(arrive(chunks.at(in_order((time, window_ps), (chunks.by, n_ports)))))
