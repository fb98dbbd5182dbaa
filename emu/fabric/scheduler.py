"""Scheduler: which of a port's queues sends next.

Strict classes go before all others, the highest priority first.  The others share what is left by deficit round robin
(Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", SIGCOMM 1995): at each visit a queue's deficit grows
once, by its weight times the quantum; it sends while its next packet fits in the deficit, then the turn passes on.  A queue that
has nothing to send, or may not, loses its deficit.

Law: whenever some queue may send, one is chosen; while queues stay backlogged, the bytes they send per round differ from their
weights times the quantum by less than one packet.
"""

from __future__ import annotations

from collections.abc import Callable

from emu.topologies.switching import Switching
from emu.units import FOREVER_PS


class Scheduler:
    """The order of one port's queues."""

    __slots__ = ("_deficits", "_is_visited", "_quanta", "_strict", "_turn", "_weighted")

    def __init__(self, switching: Switching) -> None:
        queues = range(switching.n_queues)
        classes = [switching.class_of(queue) for queue in queues]
        self._strict = sorted((q for q in queues if classes[q].strict), key=lambda q: (-classes[q].priority, q))
        self._weighted = [q for q in queues if not classes[q].strict]
        self._quanta = [c.weight * switching.quantum_bytes for c in classes]
        self._deficits = [0] * switching.n_queues
        self._turn = 0
        self._is_visited = False

    def choose(self, now_ps: int, ready_ps: Callable[[int, int], int], size_bytes: Callable[[int], int]) -> tuple[int, int]:
        """(queue that goes now, or -1; when to look again).

        ``ready_ps``: of (queue, now) when its next packet may go, FOREVER_PS until something else happens.
        ``size_bytes``: of a queue that is ready, its next packet's bytes on the wire.
        """
        later_ps = FOREVER_PS
        for queue in self._strict:
            at_ps = ready_ps(queue, now_ps)
            if at_ps <= now_ps:
                return queue, now_ps
            if at_ps < later_ps:
                later_ps = at_ps
        ready = []
        for queue in self._weighted:
            at_ps = ready_ps(queue, now_ps)
            if at_ps <= now_ps:
                ready.append(queue)
                continue
            self._deficits[queue] = 0
            if at_ps < later_ps:
                later_ps = at_ps
        if not ready:
            return -1, later_ps
        if len(ready) == 1:
            return ready[0], now_ps
        return self._in_turn(ready, size_bytes), now_ps

    def _in_turn(self, ready: list[int], size_bytes: Callable[[int], int]) -> int:
        weighted, deficits = self._weighted, self._deficits
        while True:
            queue = weighted[self._turn]
            if queue in ready:
                if not self._is_visited:
                    self._is_visited = True
                    deficits[queue] += self._quanta[queue]
                n_bytes = size_bytes(queue)
                if deficits[queue] >= n_bytes:
                    deficits[queue] -= n_bytes
                    return queue
            self._turn = (self._turn + 1) % len(weighted)
            self._is_visited = False
