"""Admission: which chunks a receiver lets come, in a class whose control is driven by receivers.

Law: at most ``limit`` chunks are let in and not yet wholly here; queue pairs that wait take turns, in order of asking; every
chunk asked for is let in once, as long as chunks complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

QueuePairKey = tuple[int, int, int]
"""(source rank, class, queue pair)."""


class Admission:
    """One adapter's, for one class."""

    __slots__ = ("_granted", "_limit", "_open", "_turns", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0
        self._turns: deque[QueuePairKey] = deque()
        self._waiting: dict[QueuePairKey, int] = {}
        self._granted: dict[QueuePairKey, int] = {}

    def request(self, key: QueuePairKey) -> Iterator[tuple[QueuePairKey, int]]:
        """A queue pair has a chunk more to send.  Yields as :meth:`completed`."""
        waiting = self._waiting[key] = self._waiting.get(key, 0) + 1
        if waiting == 1:
            self._turns.append(key)
        return self._grants()

    def completed(self) -> Iterator[tuple[QueuePairKey, int]]:
        """A chunk is wholly here.  Yields (queue pair, how many chunks it may send by now, all told)."""
        self._open = max(0, self._open - 1)
        return self._grants()

    def _grants(self) -> Iterator[tuple[QueuePairKey, int]]:
        while self._turns and self._open < self._limit:
            key = self._turns.popleft()
            self._waiting[key] -= 1
            if self._waiting[key]:
                self._turns.append(key)
            self._open += 1
            granted = self._granted[key] = self._granted.get(key, 0) + 1
            yield key, granted
