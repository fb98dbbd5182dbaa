"""Rank: what a user's function is given.

Threads.  A user's function runs in a thread of its own.  It never touches a
machine: it puts requests into the runtime's inbox and blocks on a
:class:`Work`.  The engine's thread takes requests, runs the machines, and wakes
the user's thread.  While a function computes in Python it holds the GIL for up to
5 ms at a time, by which the engine's thread of the same actor may be late; numpy
releases it.

Time.  Each rank has a cursor.  A call is submitted at the cursor; waiting for it
moves the cursor to its completion; ``compute`` moves it by what is declared.
Python between calls costs nothing (``user_time="declared"``) or wall time over
dilation (``"measured"``).
"""

from __future__ import annotations

import math

from emu.clock import wall_ns
from emu.communicator import Communicator
from emu.errors import ConfigError
from emu.fabric.condition import Condition
from emu.units import PS_PER_MICROSECOND, parse_time_ps
from emu.work import Runtime, Work

LAST_PS = 1 << 60

__all__ = ["Communicator", "Rank", "Runtime", "Work"]


class Rank:
    """One virtual accelerator, as its user's function sees it.

    ``index`` and ``world_size`` count the ranks of this run; ``comm`` is the communicator of all of them;
    ``name`` is the accelerator's name in the fabric; ``world_rank`` its number there.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        world_rank: int,
        members: tuple[int, ...],
        name: str,
        seed: int,
        start_ps: int,
        communicator: int,
    ) -> None:
        self.runtime = runtime
        self.world_rank = world_rank
        self.index = members.index(world_rank)
        self.world_size = len(members)
        self.name = name
        self.seed = seed
        self.cursor_ps = start_ps
        self.computed_ps = 0
        """Declared computation so far."""
        self.stretches_ps: list[tuple[int, int]] = []
        """Its last stretches, until the runtime has seen them."""
        self.resumed_ns = self.accounted_ns = wall_ns()
        self.in_flight: dict[int, Work] = {}
        """Calls that nobody has waited for yet, by identity; the end of the function waits for them."""
        self.condition = Condition()
        """Well, until the run takes the rank in and tells what faults do to it."""
        self.comm = Communicator(rank=self, members=members, identity=communicator, name="world")

    @property
    def now_ps(self) -> int:
        """The rank's model time."""
        self.charge()
        return self.cursor_ps

    @property
    def payload(self) -> bool:
        """False where a prediction runs without data: arrays are neither read nor written."""
        return self.runtime.payload

    def wall_ns(self) -> int:
        """A wall-clock stopwatch (monotonic), ns."""
        return wall_ns()

    def compute(self, duration: str | int | None = None, *, us: float | None = None) -> None:
        """Declare computation: ``compute("1.5ms")``, ``compute(us=250)`` or picoseconds.  Costs model time, no host work."""
        if (duration is None) == (us is None):
            raise ConfigError("compute() takes one duration: compute('250us') or compute(us=250)")
        if us is not None and not math.isfinite(us):
            raise ConfigError(f"compute(us={us}): a duration must be a finite number, 0 or more")
        time_ps = (
            round(us * PS_PER_MICROSECOND)
            if us is not None
            else duration
            if isinstance(duration, int)
            else parse_time_ps(str(duration))
        )
        if time_ps < 0:
            raise ConfigError(f"compute() of {time_ps} ps: a duration must be 0 or more")
        self.charge()
        if self.cursor_ps + time_ps > LAST_PS:
            raise ConfigError(f"compute() of {time_ps} ps would take model time past {LAST_PS} ps (13 days)")
        begin_ps = self.cursor_ps
        self.cursor_ps = self.condition.compute.finish(begin_ps, time_ps)
        self.stretches_ps.append((begin_ps, self.cursor_ps))
        self.computed_ps += self.cursor_ps - begin_ps

    def settle(self) -> None:
        """Before a stopwatch is started: forgive what is late so far, so that the next call is due when it is made.

        Costs no time.  Inside a measured stretch it would hide the host's lateness: call it only before one.
        """
        self.accounted_ns = 0

    def charge(self) -> None:
        """With user_time="measured", Python since the last call costs wall time over dilation."""
        if self.runtime.user_time == "measured":
            now_ns = wall_ns()
            scale = self.runtime.scale()
            if scale:
                self.cursor_ps = self.condition.compute.finish(self.cursor_ps, int((now_ns - self.resumed_ns) * 1000 / scale))
            self.resumed_ns = now_ns
