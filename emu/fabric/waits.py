"""Waits: what the packets of one queue pair waited for before they went, for their accounts.

A meter runs while the queue pair has something to send: held back by its congestion control, by a pause or missing credits at
its port, by what it sends again.  A chunk is charged with what the meter has moved on from its submission to the sending of
its packet; the rest of that time its line was busy, with other packets of this rank or in transit.

Law: what a packet is charged with is the time since its chunk was submitted, exactly.
"""

from __future__ import annotations

from emu.fabric.account import N_CARRIED, QUEUEING, RETRANSMISSION, SERIALISATION, Account
from emu.fabric.frame import Frame
from emu.fabric.port import Port


class Waits:
    """The meter of one queue pair."""

    __slots__ = ("_allowed_ps", "_blocked_ps", "_first", "_is_again", "_meter", "_port", "_queue", "_since_ps", "busy_ps")

    def __init__(self) -> None:
        self._meter = [0] * N_CARRIED
        self._since_ps = -1
        self.busy_ps = 0
        """When the packet before it has left: until then no control holds anything back."""
        self._allowed_ps = 0
        self._blocked_ps = 0
        self._is_again = False
        self._port: Port | None = None
        self._queue = 0
        self._first: dict[int, tuple[Account, int]] = {}
        """With what and when a packet went first, of those that may go again."""

    def submit(self, frame: Frame, now_ps: int) -> None:
        """A chunk is to be sent."""
        self._settle(now_ps)
        account = frame.account
        for cause, meter_ps in enumerate(self._meter):
            account[cause] -= meter_ps
        account[SERIALISATION] += sum(self._meter) - now_ps
        if self._since_ps < 0:
            self._since_ps = now_ps

    def held(self, now_ps: int, *, is_again: bool) -> None:
        """Its control keeps its next packet back until something happens."""
        self._settle(now_ps)
        if self._since_ps < 0:
            self._since_ps = now_ps
        self._port = None
        self._is_again = is_again

    def lined_up(self, port: Port, queue: int, ready_ps: int, now_ps: int, *, is_again: bool) -> None:
        """Its next packet waits in a queue of a port, and may go from ``ready_ps`` on."""
        self.held(now_ps, is_again=is_again)
        self._port = port
        self._queue = queue
        self._blocked_ps = port.blocking.total_ps(queue, now_ps)
        self._allowed_ps = ready_ps

    def take(self, frame: Frame, sequence: int, now_ps: int, *, keeps: bool) -> Account:
        """The account with which a packet of ``frame`` goes now; it may be asked for again where it ``keeps``."""
        self._settle(now_ps)
        self._since_ps = -1
        self._port = None
        self._is_again = False
        first = self._first.get(sequence)
        if first is not None:
            account, went_ps = first[0][:], first[1]
            account[RETRANSMISSION] += now_ps - went_ps
            return account
        account = frame.account[:]
        for cause, meter_ps in enumerate(self._meter):
            account[cause] += meter_ps
        account[SERIALISATION] += now_ps - sum(self._meter)
        if keeps:
            self._first[sequence] = account[:], now_ps
        return account

    def forget(self, sequence: int) -> None:
        """A packet will not go again."""
        self._first.pop(sequence, None)

    def _settle(self, now_ps: int) -> None:
        """Bring the meter up to now."""
        since_ps, port = self._since_ps, self._port
        if since_ps < 0 or now_ps <= since_ps:
            return
        self._since_ps = now_ps
        if self._is_again:
            self._meter[RETRANSMISSION] += now_ps - since_ps
            return
        since_ps = min(max(self.busy_ps, since_ps), now_ps)
        if port is None:
            self._meter[QUEUEING] += now_ps - since_ps
            return
        free_ps = min(max(self._allowed_ps, since_ps), now_ps)
        blocked_ps = port.blocking.total_ps(self._queue, now_ps)
        self._meter[QUEUEING] += free_ps - since_ps
        self._meter[port.blocking.causes[self._queue]] += min(blocked_ps - self._blocked_ps, now_ps - free_ps)
        self._blocked_ps = blocked_ps
