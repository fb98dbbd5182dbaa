"""Machine: what links, queues and endpoints have in common.  They are *told* the time.

A machine never reads a clock, blocks, or does I/O.  Its laws, each with a test:

1. The machine decides when, the driver delivers then.  A link hands a frame over as soon
   as its first byte leaves, stamped with the times at which it is due, so that a real
   hop hides inside the emulated latency.
2. It catches up to ``now_ps`` before it acts, at exact model times.
3. Equal times have one order, (due, link, sequence), also across processes.
4. Bytes are conserved: in = out + dropped + held.
5. The same seed gives the same trace.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from emu.fabric.frame import Frame

Statistics_co = TypeVar("Statistics_co", covariant=True)


class Machine(Protocol[Statistics_co]):
    """Frames in, decisions out.  Calls come in order of ``now_ps``."""

    def receive(self, frame: Frame, now_ps: int) -> int:
        """Take a frame whose head is here at ``now_ps``, decide its way on and stamp it with the times due.

        Returns when its first byte leaves, ``now_ps`` or later.
        """
        ...

    def next_wakeup(self) -> int | None:
        """When the machine wants to be asked again; early is harmless, None is never."""
        ...

    def statistics(self) -> Statistics_co:
        """Named counters, frozen."""
        ...

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken; for tests and fixtures."""
        ...
