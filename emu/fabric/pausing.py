"""Pausing: which of a port's queues are paused (IEEE 802.1Qbb), and the watchdog against storms of pauses.

A pause frame says for how long to stop, at most 65,535 quanta of 512 bit times; whoever means longer repeats it.  Here a pause
holds until it is taken back, and its refreshes are not events but counted: one for each half of what a frame's quanta last.

Watchdog, by SONiC's rule (sonic-net/SONiC, "PFC watchdog"; action drop): a queue that has been paused for the detection time,
so that it sent nothing, is in a storm: what it holds and what comes for it is dropped and pauses are ignored, until none has
come for the restoration time.

Law: a queue is paused from a pause until it is taken back, except while it is in a storm; nothing stops a packet that is on the
wire, so time counts from its end.

At the node that pauses, several may want one sender stopped: the shared buffer, the receive buffer of its adapter, an adapter
that is stuck.  They share one pause, as its frames name the class only (:class:`Pausers`).

Not modelled: SONiC's polling; the actions forward and alert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from emu.fabric.counters import PortCounters
from emu.fabric.packet import Notice, NoticeKind
from emu.topologies.graph import Link
from emu.topologies.switching import PAUSE_QUANTUM_BITS, Switching

PS_PER_SECOND = 10**12


def refresh_ps(link: Link, switching: Switching) -> int:
    """Half of the time for which one pause frame stops the sender of ``link``."""
    return max(1, switching.pause_quanta * PAUSE_QUANTUM_BITS * PS_PER_SECOND // (2 * link.rate_bps))


class Pauser(Enum):
    """Who wants a sender stopped."""

    BUFFER = "shared buffer"
    RECEIVER = "receive buffer"
    STUCK = "stuck adapter"


class Pausers:
    """Of each (link, queue) that enters a node, who keeps its sender paused.

    Law: the sender is told to stop by the first of them, and to go on when the last is gone.
    """

    def __init__(self, notify: Callable[[Notice, int], None]) -> None:
        """``notify``: sends a word to the sending end of its link, at a time."""
        self._notify = notify
        self._of: dict[tuple[int, int], set[Pauser]] = {}

    def stop(self, link: int, queue: int, pauser: Pauser, now_ps: int) -> bool:
        """Returns whether a pause goes out: False where somebody holds the sender already."""
        found = self._of.setdefault((link, queue), set())
        is_first = not found
        found.add(pauser)
        if is_first:
            self._notify(Notice(NoticeKind.PAUSE, value=1, link=link, queue=queue), now_ps)
        return is_first

    def go_on(self, link: int, queue: int, pauser: Pauser, now_ps: int) -> None:
        """Nothing happens where ``pauser`` does not hold the sender."""
        found = self._of.get((link, queue))
        if not found or pauser not in found:
            return
        found.remove(pauser)
        if not found:
            self._notify(Notice(NoticeKind.PAUSE, value=0, link=link, queue=queue), now_ps)


class Pausing:
    """The pauses of one port's queues."""

    __slots__ = ("_counters", "_quiet_since_ps", "_refresh_ps", "_told_since_ps", "in_storm", "since_ps", "watchdog")

    def __init__(self, link: Link, switching: Switching, counters: Sequence[PortCounters]) -> None:
        n = switching.n_queues
        self.watchdog = switching.watchdog
        self.since_ps = [-1] * n
        """Per queue since when it is paused, -1 where it is not."""
        self.in_storm = [False] * n
        self._told_since_ps = [-1] * n
        self._quiet_since_ps = [0] * n
        self._counters = counters
        self._refresh_ps = refresh_ps(link, switching)

    def stop(self, queue: int, now_ps: int, still_ps: int = 0) -> int | None:
        """A pause is here; it stops nothing before ``still_ps``, when the packet that is being sent has left.

        Returns when to :meth:`check`, None where there is no need.
        """
        counters = self._counters[queue]
        counters.pause_frames += 1
        if self._told_since_ps[queue] < 0:
            self._told_since_ps[queue] = now_ps
        if self.in_storm[queue] or self.since_ps[queue] >= 0:
            return None
        self.since_ps[queue] = since_ps = max(now_ps, still_ps)
        counters.pause_transitions += 1
        return None if self.watchdog is None else since_ps + self.watchdog.detection_ps

    def resume(self, queue: int, now_ps: int) -> int | None:
        """The pause is taken back.  Returns when to :meth:`check`, None where there is no need."""
        self._counters[queue].pause_frames += self._refreshes(queue, now_ps)
        self._told_since_ps[queue] = -1
        if self.in_storm[queue]:
            assert self.watchdog is not None
            self._quiet_since_ps[queue] = now_ps
            return now_ps + self.watchdog.restoration_ps
        self._end(queue, now_ps)
        return None

    def check(self, now_ps: int) -> list[int]:
        """Queues in which a storm is detected now: what they hold is to be dropped.  Ends storms that are over."""
        watchdog = self.watchdog
        found: list[int] = []
        if watchdog is None:
            return found
        for queue, since_ps in enumerate(self.since_ps):
            if self.in_storm[queue]:
                quiet_ps = now_ps - self._quiet_since_ps[queue]
                if self._told_since_ps[queue] < 0 and quiet_ps >= watchdog.restoration_ps:
                    self.in_storm[queue] = False
                    self._counters[queue].watchdog_restorations += 1
            elif since_ps >= 0 and now_ps - since_ps >= watchdog.detection_ps:
                self.in_storm[queue] = True
                self._counters[queue].watchdog_events += 1
                self._end(queue, now_ps)
                found.append(queue)
        return found

    def lasting(self, queue: int, now_ps: int) -> tuple[int, int]:
        """(refreshes, time paused) of a pause that still lasts, which the counters do not have yet."""
        since_ps = self.since_ps[queue]
        return self._refreshes(queue, now_ps), max(0, now_ps - since_ps) if since_ps >= 0 else 0

    def _end(self, queue: int, now_ps: int) -> None:
        since_ps = self.since_ps[queue]
        if since_ps >= 0:
            self._counters[queue].pause_ps += max(0, now_ps - since_ps)
            self.since_ps[queue] = -1

    def _refreshes(self, queue: int, now_ps: int) -> int:
        told_ps = self._told_since_ps[queue]
        return (now_ps - told_ps) // self._refresh_ps if told_ps >= 0 else 0
