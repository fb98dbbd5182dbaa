"""Windows: the credit of the connections along rings.

A connection carries messages of one size.  Message m may go when at most ``most`` are out, and credit comes back for
``group`` at once (``fabric/connection.py``): so it waits for a known one before it, whose time is kept.

Where several rings share a connection, or sizes differ, it is only checked that nobody would wait, with the window cut into
equal shares; else NotExact.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from emu.fabric.window import MIN_WINDOW_BYTES
from emu.scale.call import NotExact, OneCall, Times
from emu.scale.ring_links import Way
from emu.scale.wires import back_ps, connection_window_bytes

MOST_KEPT_BYTES: Final = 256 * 2**20
"""Memory for the times of messages that credit may be waited for."""
MOST_CHECKED: Final = 64


class Windows:
    """One connection for each way."""

    def __init__(self, call: OneCall, ways: list[Way], sizes_bytes: list[int]) -> None:
        self._call = call
        self._ways = ways
        self._largest, self._smallest = max(sizes_bytes), min(sizes_bytes)
        self._n_shares = max(Counter((way.source, way.target) for way in ways).values())
        self._exact = self._largest == self._smallest and self._n_shares == 1
        self._kept: Times | None = None
        self._sent: Times | None = None

    def begin(self, n_messages: int) -> None:
        """Find out whether a window can matter at all, and then what each message has to wait for."""
        topology = self._call.topology
        is_given = any(link.window_bytes is not None for link in topology.links)
        if not is_given and n_messages * self._largest * self._n_shares <= MIN_WINDOW_BYTES:
            return
        known: dict[tuple[tuple[int, int, int | None], ...], tuple[int, int]] = {}
        windows, back = [], []
        for way in self._ways:
            both = (*way.links, *topology.route(way.target, way.source, 0))
            key = tuple((link.rate_bps, link.latency_ps, link.window_bytes) for link in (topology.links[one] for one in both))
            found = known.get(key)
            if found is None:
                ends = way.source, way.target
                found = known[key] = connection_window_bytes(topology, *ends), back_ps(topology, way.target, way.source)
            windows.append(found[0])
            back.append(found[1])
        self._back = np.array(back, np.int64)
        window = np.array(windows, np.int64)
        size = self._largest
        self._group = -(-window // (4 * size))
        self._most = np.maximum(window // size - 1, (window - 1) // (4 * size))
        if n_messages <= int(self._most.min()) and self._n_shares == 1:
            return
        depth = int((self._most + self._group).max()) + 2
        if self._exact and depth * len(self._ways) * 8 > MOST_KEPT_BYTES:
            self._exact = False
        if not self._exact:
            room = 3 * window // (4 * self._n_shares * size) - 2
            self._lag = min(MOST_CHECKED, int(room.min()))
            if self._lag < 1:
                raise NotExact("a connection's window holds too few chunks")
            depth = self._lag + 1
        self._kept = np.zeros((depth, len(self._ways)), np.int64)

    def release(self, message: int, asked: Times) -> Times:
        """When a message goes that was asked for then."""
        kept = self._kept
        if kept is None:
            return asked
        if not self._exact:
            if message >= self._lag and (kept[(message - self._lag) % len(kept)] + self._back > asked).any():
                raise NotExact("connections that rings share, or that carry uneven chunks, would wait for credit")
            return asked
        short_of = message - self._most
        if int(short_of.max()) <= 0:
            return asked
        number = -(-short_of // self._group) * self._group - 1
        credited = kept[number % len(kept), np.arange(len(number))] + self._back
        held = np.where(short_of > 0, np.maximum(asked, credited), asked)
        if self._sent is not None:
            held = np.maximum(held, self._sent)
        self._sent = held
        return held

    def consumed(self, message: int, arrived: Times) -> None:
        """A message has come."""
        if self._kept is not None:
            self._kept[message % len(self._kept)] = arrived

    def repeats(self, n_messages: int) -> bool:
        """Whether, so many messages later, credit comes back for the same ones."""
        return self._kept is None or not self._exact or bool((n_messages % self._group == 0).all())

    def state(self, n_messages: int, floor_ps: int) -> Times:
        """What is kept of the messages so far, oldest first, relative to a moment before which nothing is asked for."""
        if self._kept is None:
            return np.zeros(0, np.int64)
        in_order = np.roll(self._kept, -(n_messages % len(self._kept)), axis=0)
        due: Times = np.maximum(in_order + self._back - floor_ps, 0)
        return due.reshape(-1)

    def shift(self, time_ps: int) -> None:
        """Be later by so much."""
        for its in (self._kept, self._sent):
            if its is not None:
                its += time_ps
