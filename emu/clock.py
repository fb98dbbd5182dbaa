"""Clocks: the only file that reads or waits on time.

``wall_ns`` is CLOCK_MONOTONIC: one clock for all processes of a host.

A :class:`DilatedClock` maps model time to the wall: wall = anchor + model x dilation.
Waiting is always until an absolute deadline, so that an oversleep is never added
to the next wait, and never a spin: on a small host, processes that spin are the
largest source of each other's lateness.
"""

from __future__ import annotations

import time


def wall_ns() -> int:
    """Monotonic wall time, ns."""
    return time.monotonic_ns()


def utc_now() -> str:
    """Date and time for reports, UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def unix_s() -> float:
    """Seconds since 1970, for timestamps; it may jump."""
    return time.time()


def sleep_s(seconds: float) -> None:
    """Sleep; for control loops, never on the data path."""
    time.sleep(seconds)


class DilatedClock:
    """Model time against the wall.  ``dilation`` 0 means unpaced: everything is due at once."""

    __slots__ = ("anchor_ns", "dilation")

    def __init__(self, *, dilation: float, anchor_ns: int) -> None:
        self.dilation = dilation
        self.anchor_ns = anchor_ns

    def due_ns(self, model_ps: int) -> int:
        """Wall time at which ``model_ps`` is due."""
        return self.anchor_ns + int(model_ps * self.dilation / 1000)

    def model_ps(self, at_ns: int) -> int:
        """Model time that the clock reads at wall time ``at_ns`` (unpaced: the far future)."""
        if self.dilation == 0:
            return 1 << 61
        return int((at_ns - self.anchor_ns) * 1000 / self.dilation)
