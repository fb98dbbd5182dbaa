"""Stopped: which actors' processes have been stopped (SIGSTOP, a debugger) while a run was under way, and for how long.

The kernel says so of processes of this host (state T in ``/proc/PID/stat``); those of other hosts are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

from emu.host import is_stopped


class StopWatch:
    """``processes``: the process id of each actor on this host, by the actor's number.  ``now``: those that are stopped."""

    def __init__(self, processes: Mapping[int, int]) -> None:
        self.now: frozenset[int] = frozenset()
        self._processes = dict(processes)
        self._looked_ns = 0
        self._stopped_ns: dict[int, int] = {}

    def clear(self) -> None:
        """Forget what was seen."""
        self.now = frozenset()
        self._stopped_ns.clear()

    def look(self, now_ns: int) -> None:
        """See who is stopped now; who was at the last look has been since."""
        for actor in self.now:
            self._stopped_ns[actor] += now_ns - self._looked_ns
        self.now = frozenset(actor for actor, process_id in self._processes.items() if is_stopped(process_id))
        for actor in self.now:
            self._stopped_ns.setdefault(actor, 0)
        self._looked_ns = now_ns

    def seconds(self) -> dict[int, float]:
        """For how long, by actor, to the accuracy of the looks; those that never were are left out."""
        return {actor: stopped_ns / 1e9 for actor, stopped_ns in self._stopped_ns.items()}
