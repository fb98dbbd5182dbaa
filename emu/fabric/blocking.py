"""Blocking: for how long what is next in each of a port's queues could not go for a pause or for missing credits.

Law: a queue is blocked from when its turn has come until it may go; what waits in it is charged with what the queue was
blocked for meanwhile, with waiting for packets of its own queue pair as serialisation, and with the rest of its wait as queueing.
"""

from __future__ import annotations

from collections.abc import Sequence

from emu.fabric.account import CREDIT, PAUSE, QUEUEING, SERIALISATION
from emu.fabric.counters import PortCounters
from emu.fabric.packet import Packet
from emu.topologies.switching import Discipline, Switching


class Blocking:
    """The queues of one port; what is over stands in their counters' ``wait_ps``."""

    __slots__ = ("_counters", "_run", "_run_begin_ps", "_since_ps", "causes")

    def __init__(self, switching: Switching, counters: Sequence[PortCounters]) -> None:
        self._counters = counters
        self._since_ps = [-1] * len(counters)
        credited = [switching.class_of(queue).discipline is Discipline.CREDIT for queue in range(len(counters))]
        self.causes = [CREDIT if its else PAUSE for its in credited]
        """What can block a queue."""
        self._run = -1
        """The queue pair of the last packet, and when the first of its packets went without another's between."""
        self._run_begin_ps = 0

    def begin(self, queue: int, now_ps: int) -> None:
        """The queue's first packet may not go."""
        if self._since_ps[queue] < 0:
            self._since_ps[queue] = now_ps

    def end(self, queue: int, now_ps: int) -> None:
        """The queue's first packet may go, or is gone."""
        since_ps = self._since_ps[queue]
        if since_ps >= 0:
            self._counters[queue].wait_ps += now_ps - since_ps
            self._since_ps[queue] = -1

    def lasting_ps(self, queue: int, now_ps: int) -> int:
        """For how long it has been blocked now; 0 where it is not."""
        since_ps = self._since_ps[queue]
        return now_ps - since_ps if since_ps >= 0 else 0

    def total_ps(self, queue: int, now_ps: int) -> int:
        """For how long it has been blocked so far."""
        return self._counters[queue].wait_ps + self.lasting_ps(queue, now_ps)

    def charge(self, packet: Packet, duration_ps: int, first_ps: int, now_ps: int) -> None:
        """A packet that is forwarded goes now: what it waited for, and the time that it takes on a link that works."""
        account, queue, tail_in_ps = packet.account, packet.queue, packet.tail_ps
        came_ps = max(packet.head_ps, tail_in_ps - duration_ps + first_ps)
        waited_ps = max(0, now_ps - came_ps)
        blocked_ps = min(waited_ps, self.total_ps(queue, now_ps) - packet.blocked_ps)
        queued_ps = waited_ps - blocked_ps
        if packet.entropy == self._run:
            queued_ps = min(queued_ps, max(0, self._run_begin_ps - came_ps))
        else:
            self._run, self._run_begin_ps = packet.entropy, now_ps
        account[self.causes[queue]] += blocked_ps
        account[QUEUEING] += queued_ps
        account[SERIALISATION] += now_ps + duration_ps - tail_in_ps - blocked_ps - queued_ps
