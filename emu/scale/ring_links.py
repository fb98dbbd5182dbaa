"""The links of rings, in levels: a link's level is the longest number of links before it on any way.

All chunks of a step pass level after level.  A link that one way uses is a lane; links that several use are taken together by
how many these are.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from emu.scale.call import NotExact, Times
from emu.scale.wires import Lanes, Wire

MOST_LEVELS = 64


class Way(NamedTuple):
    """What the place of a ring sends over; ends are nodes."""

    ring: int
    place: int
    source: int
    target: int
    links: tuple[int, ...]


class Users(NamedTuple):
    """The ways over a link, in the order in which what comes at the same time is taken: that of the links that it comes by."""

    uses: tuple[tuple[int, int, int], ...]
    """(ring, place, hop)"""
    came_by: tuple[int, ...]


def users_of(ways: list[Way], n: int) -> dict[int, Users]:
    """By link.  ``ways``: all places of all rings.  What a place sends on came to it by the last link of the way before."""
    last = {(way.ring, way.place): way.links[-1] for way in ways}
    found: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for way in ways:
        for hop, link in enumerate(way.links):
            by = way.links[hop - 1] if hop else last[way.ring, (way.place - 1) % n]
            found[link].append((by, way.ring, way.place, hop))
    users = {}
    for link, uses in found.items():
        uses.sort()
        users[link] = Users(tuple(use[1:] for use in uses), tuple(use[0] for use in uses))
    return users


class _Costs:
    """Of the chunks of a block on some links, by chunk."""

    def __init__(self, wires: list[Wire], sizes_bytes: list[int]) -> None:
        self.duration = [np.array([wire.duration_ps(size) for wire in wires], np.int64) for size in sizes_bytes]
        self.first = [np.array([wire.first_ps(size) for wire in wires], np.int64) for size in sizes_bytes]


class _Alone:
    """Links of one level that have one way each."""

    def __init__(self, uses: list[tuple[int, bool, Wire]], n_ways: int, full: list[int], short: list[int] | None) -> None:
        """``uses``: (way, whether it begins there, wire)."""
        self._ways = np.array([way for way, _, _ in uses], np.int64)
        self._is_all = len(uses) == n_ways
        self._begins = np.array([begins for _, begins, _ in uses])
        wires = [wire for _, _, wire in uses]
        self._full = _Costs(wires, full)
        self._short = None if short is None else _Costs(wires, short)
        self._where = {way: position for position, (way, _, _) in enumerate(uses)}
        self._latency = np.array([wire.latency_ps + wire.added_ps for wire in wires], np.int64)
        self._added = np.array([wire.added_ps for wire in wires], np.int64)
        self._lanes = Lanes.idle(len(uses))

    def pass_on(self, head: Times, tail: Times, left: Times, chunk: int, short: int) -> None:
        duration, first = self._full.duration[chunk], self._full.first[chunk]
        position = self._where.get(short, -1) if self._short is not None else -1
        if position >= 0:
            assert self._short is not None
            duration, first = duration.copy(), first.copy()
            duration[position] = self._short.duration[chunk][position]
            first[position] = self._short.first[chunk][position]
        ways = slice(None) if self._is_all else self._ways
        head_out, tail_out = self._lanes.take(head[ways], tail[ways], duration, first)
        if self._begins.all():
            left[ways] = tail_out + self._added
        elif self._begins.any():
            left[self._ways[self._begins]] = (tail_out + self._added)[self._begins]
        head[ways] = head_out + self._latency
        tail[ways] = tail_out + self._latency

    def state(self) -> list[Times]:
        return self._lanes.state()


class _Shared:
    """Links of one level that have as many ways each, all with chunks of one size."""

    def __init__(self, uses: list[list[tuple[int, int, bool, int]]], wires: list[Wire], full: list[int]) -> None:
        """``uses``: by link (way, link that it comes by, whether it begins there, turn at the start), in order of the link
        that they come by."""
        self._ways = np.array([[way for way, *_ in link] for link in uses], np.int64)
        self._came_by = np.array([[by for _, by, *_ in link] for link in uses], np.int64)
        self._begins = np.array([[begins for _, _, begins, _ in link] for link in uses])
        self._turn = np.array([[turn for *_, turn in link] for link in uses], np.int64)
        costs = _Costs(wires, full)
        self._duration = [its[:, None] for its in costs.duration]
        self._first = [its[:, None] for its in costs.first]
        self._latency = np.array([wire.latency_ps + wire.added_ps for wire in wires], np.int64)[:, None]
        self._added = np.array([wire.added_ps for wire in wires], np.int64)[:, None]
        self._free = np.zeros((len(uses), 1), np.int64)
        self._last = np.full(len(uses), -1, np.int64)
        self._place = np.arange(self._ways.shape[1])

    def pass_on(self, head: Times, tail: Times, left: Times, asked: Times, chunk: int, *, begins: bool) -> None:
        key = np.where(self._begins, asked[self._ways], head[self._ways])
        if begins and chunk == 0 and (self._begins.all(axis=1) != self._begins.any(axis=1)).any():
            raise NotExact("ways begin on a link that others cross")
        at_start = begins and bool(self._begins.any())
        order = np.argsort(self._turn if at_start else key, axis=1, kind="stable")
        ways = np.take_along_axis(self._ways, order, axis=1)
        key = np.take_along_axis(key, order, axis=1)
        if not at_start:
            came_by = np.take_along_axis(self._came_by, order, axis=1)
            if ((key[:, 1:] == key[:, :-1]) & (came_by[:, 1:] == came_by[:, :-1])).any():
                raise NotExact("chunks come to a shared link by the same link at the same time")
            if (key[:, 0] <= self._last).any():
                raise NotExact("on a shared link steps come in another order")
        self._last = key[:, -1]
        heads, tails = head[ways], tail[ways]
        duration, first = self._duration[chunk], self._first[chunk]
        if (tails - heads > duration - first).any():
            raise NotExact("a shared link is faster than what comes to it")
        served = self._place * duration
        waits = heads - served
        waits[:, :1] = np.maximum(waits[:, :1], self._free)
        start = np.maximum.accumulate(waits, axis=1) + served
        end = start + duration
        self._free = end[:, -1:]
        sent = np.take_along_axis(self._begins, order, axis=1)
        left[ways[sent]] = (end + self._added)[sent]
        head[ways] = start + first + self._latency
        tail[ways] = end + self._latency

    def state(self) -> list[Times]:
        return [self._free, self._last]


class Level:
    """All links of one level."""

    def __init__(self, alone: _Alone | None, shared: list[_Shared]) -> None:
        self._alone = alone
        self.shared = shared

    def pass_on(self, head: Times, tail: Times, left: Times, asked: Times, chunk: int, short: int, *, begins: bool) -> None:
        """One chunk of every way over its link of this level.

        ``asked``: when the chunks were asked for; ``short``: the way with the last block; ``begins``: in the first step.
        """
        if self._alone is not None:
            self._alone.pass_on(head, tail, left, chunk, short)
        for shared in self.shared:
            shared.pass_on(head, tail, left, asked, chunk, begins=begins)

    def state(self) -> list[Times]:
        """The arrays of times that later chunks depend on; to be changed in place."""
        parts = ([] if self._alone is None else [self._alone]) + list(self.shared)
        return [its for part in parts for its in part.state()]


def levels(
    ways: list[Way], wires: list[Wire], users: dict[int, Users], period: int, full: list[int], short: list[int] | None
) -> list[Level]:
    """The levels of the links that one period's ways use.

    Links that a shift by ``period`` turns into each other are one.  Raises NotExact.
    """
    index = {(way.ring, way.place): number for number, way in enumerate(ways)}
    alike: dict[frozenset[tuple[int, int]], int] = {}
    """By who uses it (way, hop): a link that stands for all that are alike."""
    found: list[list[frozenset[tuple[int, int]]]] = []
    for way in ways:
        found.append([])
        for link in way.links:
            folded = [(index[ring, place % period], hop) for ring, place, hop in users[link].uses]
            if len({number for number, _ in folded}) < len(folded):
                raise NotExact("a way shares a link with itself")
            alike.setdefault(frozenset(folded), link)
            found[-1].append(frozenset(folded))
    level_of = _levels_of(found, is_shared=any(len(uses) > 1 for uses in alike))
    if any(len(uses) > 1 for uses in alike) and short is not None:
        raise NotExact("blocks of different sizes share a link")
    hops = [len(way.links) for way in ways]
    turns = {number: (-hops[number], way.ring) for number, way in enumerate(ways)}
    made: list[Level] = []
    for level in range(max(level_of.values()) + 1):
        here = [uses for uses, its in level_of.items() if its == level]
        lone = [(number, hop == 0, wires[alike[uses]]) for uses in here if len(uses) == 1 for number, hop in uses]
        lone.sort(key=lambda use: use[0])
        by_size: defaultdict[int, list[frozenset[tuple[int, int]]]] = defaultdict(list)
        for uses in here:
            if len(uses) > 1:
                by_size[len(uses)].append(uses)
        shared = []
        for group in by_size.values():
            rows = []
            for uses in group:
                its_users = users[alike[uses]]
                numbers = [(index[ring, place % period], hop) for ring, place, hop in its_users.uses]
                in_turn = sorted(number for number, _ in numbers)
                in_turn.sort(key=turns.__getitem__)
                rows.append(
                    [
                        (number, by, hop == 0, in_turn.index(number))
                        for (number, hop), by in zip(numbers, its_users.came_by, strict=True)
                    ]
                )
            shared.append(_Shared(rows, [wires[alike[uses]] for uses in group], full))
        made.append(Level(_Alone(lone, len(ways), full, short) if lone else None, shared))
    return made


def _levels_of(found: list[list[frozenset[tuple[int, int]]]], *, is_shared: bool) -> dict[frozenset[tuple[int, int]], int]:
    level_of = {uses: 0 for way in found for uses in way}
    for _ in range(MOST_LEVELS):
        changed = False
        for way in found:
            for before, after in pairwise(way):
                if level_of[after] <= level_of[before]:
                    level_of[after] = level_of[before] + 1
                    changed = True
        if not changed:
            return level_of
    if is_shared:
        raise NotExact("the ways that share links go round in a circle")
    return {uses: hop for way in found for hop, uses in enumerate(way)}
