"""Connection: what is on its way between two endpoints, bounded by a window."""

from __future__ import annotations

from collections import deque

from emu.collectives.executor import Operation
from emu.fabric.frame import Frame


class Connection:
    """One side of a connection: bytes out and what waits for credit, or bytes consumed and credited."""

    __slots__ = ("blocked", "consumed_bytes", "credited_bytes", "frames", "outstanding_bytes", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.outstanding_bytes = 0
        self.frames = 0
        self.blocked: deque[tuple[Frame, Operation]] = deque()
        self.consumed_bytes = 0
        self.credited_bytes = 0

    def has_room(self, n_bytes: int) -> bool:
        """Whether a chunk may go: it fits, or all that is out may have been consumed already."""
        return self.outstanding_bytes + n_bytes <= self.window_bytes or 4 * self.outstanding_bytes < self.window_bytes

    def consume(self, n_bytes: int) -> int:
        """Bytes were taken; returns the credit that is due for it: a quarter window at a time."""
        self.consumed_bytes += n_bytes
        due_bytes = self.consumed_bytes - self.credited_bytes
        if 4 * due_bytes < self.window_bytes:
            return 0
        self.credited_bytes = self.consumed_bytes
        return due_bytes
