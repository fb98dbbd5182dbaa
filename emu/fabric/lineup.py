"""Lineup: the queue pairs of an adapter that want to send on a port, in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from emu.fabric.packet import Packet
from emu.fabric.port import Port
from emu.fabric.queue_pair import SendQueuePair
from emu.units import FOREVER_PS


class _Lineup:
    """The queue pairs that want to send on one port from one queue: those that may, in turn, and those that wait for a time."""

    __slots__ = ("order", "ready", "waiting")

    def __init__(self) -> None:
        self.ready: deque[tuple[SendQueuePair, int]] = deque()
        self.waiting: list[tuple[int, int, SendQueuePair, int]] = []
        self.order = 0


class PortSource:
    """What a port sends of its own: see :class:`emu.fabric.port.Source`."""

    def __init__(self, take: Callable[[SendQueuePair, Port, int], Packet], port: Port, n_queues: int) -> None:
        """``take``: told that the port sends the queue pair's packet now, it gives it."""
        self._take = take
        self._port = port
        self.lineups = [_Lineup() for _ in range(n_queues)]

    def add(self, pair: SendQueuePair, queue: int, ready_ps: int, now_ps: int) -> None:
        lineup = self.lineups[queue]
        if ready_ps <= now_ps:
            lineup.ready.append((pair, pair.ticket))
        else:
            lineup.order += 1
            heappush(lineup.waiting, (ready_ps, lineup.order, pair, pair.ticket))

    def ready_ps(self, queue: int, now_ps: int) -> int:
        lineup = self.lineups[queue]
        waiting, ready = lineup.waiting, lineup.ready
        while waiting and (waiting[0][0] <= now_ps or waiting[0][2].ticket != waiting[0][3]):
            _, _, pair, ticket = heappop(waiting)
            if pair.ticket == ticket:
                ready.append((pair, ticket))
        while ready:
            pair, ticket = ready[0]
            if pair.ticket == ticket:
                return now_ps
            ready.popleft()
        return waiting[0][0] if waiting else FOREVER_PS

    def size_bytes(self, queue: int) -> int:
        pending = self.lineups[queue].ready[0][0].pending
        assert pending is not None
        return pending[2].flagged_bytes

    def take(self, queue: int, now_ps: int) -> Packet:
        pair, _ = self.lineups[queue].ready.popleft()
        return self._take(pair, self._port, now_ps)
