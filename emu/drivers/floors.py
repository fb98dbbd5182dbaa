"""Floors: a page of shared memory in which the actors of a host promise each other order.

Law: no event is handled before everything that must come first has come, however
late the host is.  So the emulated model times are the simulator's, to the
picosecond, at any dilation.

Every process publishes its *floor*, a model time before which it will send nothing
more (its next event, or the cursor of a rank whose user code runs).  Every channel
(ordered pair of processes that share a link) has a count of frames sent, a count
of frames taken in, and a ring of lower bounds for what is under way.  A reader
that takes ``taken``, then the floors, then ``sent``, then the ring, sees a
consistent lower bound of everything that can still reach it:

    safe_until = min(bounds of frames under way to me,
                     (bounds of other frames under way, floors of the others) + my smallest inward latency,
                     my floor + the shortest way from me back to me)

The last of these matters when the host is late: what an actor sends at its floor can
come back to it, over a link inside it or by way of another actor, before its next event
but one.

This is conservative parallel simulation (Chandy, Misra, Bryant 1979) with the null
messages replaced by memory: a promise costs a store, reading all of them about
10 us, and no message is ever extra.  Each field has one writer; 8-byte aligned
stores are atomic on x86-64 and arm64.  Processes on different hosts have no common
page; there the emulating driver keeps order by slack, and counts what it missed.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from emu.units import FOREVER_PS

RING = 1024
"""Frames that may be under way on a channel; beyond it the sender waits (it is counted as back-pressure)."""


NOTHING_PS = 0
"""No event is safe: the reader was held up for so long that the ring went round under it.  It asks again."""


class FloorPage:
    """The page of one host, mapped by its processes and by the session.

    ``channels`` lists (sender, receiver, smallest latency in ps) in an order all agree on.
    """

    def __init__(self, path: Path, n_processes: int, channels: list[tuple[int, int, int]]) -> None:
        n_channels = len(channels)
        words = 2 * n_processes + 2 * n_channels + n_channels * RING
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), words * 8)
        whole = np.frombuffer(self._memory, dtype=np.int64)
        parts = np.split(whole, np.cumsum([n_processes, n_processes, n_channels, n_channels]))
        self.floors, self.progress, self.sent, self.taken, ring = parts
        self.ring = ring.reshape(n_channels, RING)
        self._indices = np.arange(n_channels)
        self.channels = channels
        self.targets = np.array([target for _, target, _ in channels], dtype=np.int64)
        self._way_back_ps = _ways_back_ps(n_processes, channels)

    @staticmethod
    def create(path: Path, n_processes: int, n_channels: int) -> None:
        """Make the file, all zero."""
        words = 2 * n_processes + 2 * n_channels + n_channels * RING
        with path.open("xb") as file:
            file.truncate(words * 8)

    def clear(self) -> None:
        """Forget everything; only while no process runs."""
        self.floors[:] = FOREVER_PS
        self.sent[:] = 0
        self.taken[:] = 0

    def record_send(self, channel: int, bound_ps: int) -> None:
        """Say that a frame is under way, before it is: it will be an event at the receiver not before ``bound_ps``."""
        count = int(self.sent[channel])
        self.ring[channel, count % RING] = bound_ps
        self.sent[channel] = count + 1

    def has_room(self, channel: int) -> bool:
        return int(self.sent[channel]) - int(self.taken[channel]) < RING - 1

    def safe_until_ps(self, process: int, inward_latency_ps: int) -> int:
        """Events strictly before this time have all their predecessors."""
        taken = self.taken.copy()
        floors = self.floors.copy()
        under_way = self.sent > taken
        mine = int(floors[process]) + self._way_back_ps[process]
        floors[process] = FOREVER_PS
        others = int(floors.min())
        if under_way.any():
            channels = self._indices[under_way]
            first = taken[channels]
            counts = self.sent[channels] - first
            most = int(counts.max())
            if most >= RING:
                return NOTHING_PS
            steps = np.arange(most)
            bounds = self.ring[channels[:, None], (first[:, None] + steps) % RING]
            if bool((self.sent[channels] - first >= RING).any()):
                return NOTHING_PS
            earliest = np.where(steps < counts[:, None], bounds, FOREVER_PS).min(axis=1)
            to_me = self.targets[channels] == process
            mine = min(mine, int(earliest[to_me].min(initial=FOREVER_PS)))
            others = min(others, int(earliest[~to_me].min(initial=FOREVER_PS)))
        return min(mine, others + inward_latency_ps)

    def quiescent(self) -> bool:
        """Whether nothing can ever move again: no event, no running user code, nothing under way."""
        taken = self.taken.copy()
        idle = bool((self.floors >= FOREVER_PS).all())
        return idle and bool((self.sent == taken).all())

    def close(self) -> None:
        for name in ("floors", "progress", "sent", "taken", "ring"):
            setattr(self, name, np.zeros(0, dtype=np.int64))
        self._memory.close()


def _ways_back_ps(n_processes: int, channels: list[tuple[int, int, int]]) -> list[int]:
    """For each process the least time after which what it sends can come back to it; every hop takes 1 ps or more."""
    inside = [FOREVER_PS] * n_processes
    outward = [FOREVER_PS] * n_processes
    inward = [FOREVER_PS] * n_processes
    for sender, receiver, latency_ps in channels:
        if sender == receiver:
            inside[sender] = min(inside[sender], latency_ps)
        else:
            outward[sender] = min(outward[sender], latency_ps)
            inward[receiver] = min(inward[receiver], latency_ps)
    return [max(1, min(own, there + back)) for own, there, back in zip(inside, outward, inward, strict=True)]
