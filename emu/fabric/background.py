"""Background: traffic of nobody's collective, from one endpoint to another, that shares links and queues with the rest.

Law: a message is sent every ``interval_ps`` while its source's rank is in a run; later where the one before it on its lane has
not left yet or a connection's window is out, and no two come closer together to make up for that.  So what is on its way is
bounded.

A message is one chunk.  They are dealt over the lanes of equal routes in turn, as a collective's chunks are.  Its communicator
is a number that no collective has, ``FIRST_COMMUNICATOR`` and its own.
It is told when its rank's run begins and ends, so that a run comes to rest.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from emu.fabric.account import opened
from emu.fabric.connection import Connection
from emu.fabric.frame import Frame

FIRST_COMMUNICATOR: Final = 1 << 62


class Network(Protocol):
    """What a flow asks of the engine that hosts its source."""

    def inject(self, frame: Frame, now_ps: int) -> int | None: ...
    def path(self, source_rank: int, target_rank: int, route_flow: int) -> tuple[int, ...]: ...
    def spread(self) -> int: ...
    def window_bytes(self, source_rank: int, target_rank: int) -> int: ...
    def call_at(self, time_ps: int, rank: int, action: Any) -> None: ...
    def cancel(self, action: Any, after_ps: int) -> None:
        """Forget that ``action`` was to be called later than ``after_ps``."""
        ...


class BackgroundFlow:
    """The source's end.  ``payload``: what each message carries, None where no data moves."""

    def __init__(
        self,
        *,
        number: int,
        source_rank: int,
        target_rank: int,
        flow: int,
        message_bytes: int,
        interval_ps: int,
        begin_ps: int,
        end_ps: int | None,
        network: Network,
        payload: Any,
    ) -> None:
        self.communicator = FIRST_COMMUNICATOR + number
        self.source_rank = source_rank
        self.target_rank = target_rank
        self.message_bytes = message_bytes
        self.interval_ps = interval_ps
        self.end_ps = end_ps
        self.n_messages = 0
        self._flow = flow
        self._network = network
        self._payload = payload
        self._connection = Connection(network.window_bytes(source_rank, target_rank))
        self._left_ps = [0] * network.spread()
        """By lane, when its last message has left."""
        self._next_ps = begin_ps
        self._idle_since_ps: int | None = 0
        self._waits = False
        self._action = self._go  # one object, by which it is found again

    def admit(self, now_ps: int) -> None:
        """The source's rank is in a run from now on."""
        if self._idle_since_ps is None:
            return
        self._idle_since_ps = None
        self._next_ps = max(self._next_ps, now_ps)
        if not self._waits:
            self._arm()

    def rest(self, now_ps: int) -> None:
        """The rank's run ends now."""
        self._idle_since_ps = now_ps
        self._network.cancel(self._action, now_ps)

    def credit(self, n_bytes: int, now_ps: int) -> None:
        """The other end has taken in ``n_bytes``."""
        self._connection.outstanding_bytes -= n_bytes
        if self._waits and self._connection.has_room(self.message_bytes):
            self._waits = False
            self._next_ps = max(self._next_ps, now_ps)
            if self._next_ps == now_ps and self._runs(now_ps):
                self._go(now_ps)
            else:
                self._arm()

    def _runs(self, now_ps: int) -> bool:
        return self._idle_since_ps is None or now_ps <= self._idle_since_ps

    def _arm(self) -> None:
        if self._runs(self._next_ps) and (self.end_ps is None or self._next_ps < self.end_ps):
            self._network.call_at(self._next_ps, self.source_rank, self._action)

    def _go(self, now_ps: int) -> None:
        if self.end_ps is not None and now_ps >= self.end_ps:
            return
        if not self._connection.has_room(self.message_bytes):
            self._waits = True
            return
        lane = self.n_messages % len(self._left_ps)
        frame = Frame(
            self._network.path(self.source_rank, self.target_rank, lane),
            source_rank=self.source_rank,
            target_rank=self.target_rank,
            flow=self._flow,
            route_flow=lane,
            payload_bytes=self.message_bytes,
            head_ps=now_ps,
            communicator=self.communicator,
            message=self.n_messages,
            message_bytes=self.message_bytes,
            payload=self._payload,
            account=opened(self.source_rank, now_ps),
        )
        self._connection.outstanding_bytes += self.message_bytes
        self.n_messages += 1
        self._left_ps[lane] = self._network.inject(frame, now_ps) or 0
        self._next_ps = max(now_ps + self.interval_ps, self._left_ps[self.n_messages % len(self._left_ps)])
        self._arm()
