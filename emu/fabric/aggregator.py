"""Aggregator: the part of a switch that reduces what it is sent, and multicasts.

Chunks that end at the switch are combined by units (:class:`emu.collectives.schedule.Unit`): when the heads of all that a unit
waits for are here it goes on, reduced in the order of the unit, to each of the unit's targets.

Law: it cuts through.  The head of what goes out is the last of the heads that came in, its tail not before the last of their
tails; every egress link is charged as for any chunk.  So reducing costs no time and no rate (not modelled: what the switch's
arithmetic can do).  Bits depend on the schedule alone, not on who came first.

A switch has no endless memory: its connections have windows as those of ranks, and it returns the credit of what it combined
when all that it made of it has gone.  So a rank that is late holds back the others by its window.

The output's account is that of the input whose tail came last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from emu.collectives.recipe import Plan
from emu.collectives.reduce import DTYPES, Array, combine, quiet
from emu.fabric.account import CREDIT, FIRST_START_PS, LAST_RANK, LAST_START_PS
from emu.fabric.connection import Connection
from emu.fabric.endpoint import CHANNEL_STRIDE, Network, flow_number
from emu.fabric.frame import Frame

_MOST_PLANS = 128


class _Batch:
    """What one combination waits for, then what of it has not gone yet."""

    __slots__ = ("inputs", "n_missing", "n_waiting")

    def __init__(self, n_inputs: int) -> None:
        self.inputs: list[Frame | None] = [None] * n_inputs
        self.n_missing = n_inputs
        self.n_waiting = 0


class Aggregator:
    """One switch.  ``address``: see :attr:`emu.topologies.graph.Topology.addresses`; ``plan`` gives its part of a recipe."""

    def __init__(
        self,
        *,
        address: int,
        n_ranks: int,
        network: Network,
        plan: Callable[[bytes], Plan],
        clash: Callable[[int, Frame, Frame], None],
    ) -> None:
        """``clash`` is told of two chunks that were to be combined and are of different calls."""
        self.address = address
        self.n_ranks = n_ranks
        self.network = network
        self._plan = lru_cache(maxsize=_MOST_PLANS)(plan)
        self._clash = clash
        self._batches: dict[tuple[int, int, int, int], _Batch] = {}
        self._outgoing: dict[tuple[int, int], Connection] = {}
        self._incoming: dict[tuple[int, int], Connection] = {}
        self._blocked: dict[tuple[int, int], deque[tuple[Frame, _Batch]]] = {}

    def receive(self, frame: Frame, now_ps: int) -> None:
        """The head of a chunk, or a credit, is here."""
        if frame.credit_bytes:
            self._credit((frame.source_rank, frame.communicator), frame.credit_bytes, now_ps)
            return
        plan = self._plan(frame.recipe)
        number, place = plan.takes[frame.source_rank, frame.message]
        key = frame.communicator, frame.operation, number, frame.chunk
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(len(plan.units[number].inputs))
        batch.inputs[place] = frame
        batch.n_missing -= 1
        if batch.n_missing == 0:
            del self._batches[key]
            self._combine(plan, number, batch, now_ps)

    def _combine(self, plan: Plan, number: int, batch: _Batch, now_ps: int) -> None:
        inputs = [frame for frame in batch.inputs if frame is not None]
        odd = next((frame for frame in inputs if frame.digest != inputs[0].digest), None)
        if odd is not None:
            self._clash(self.address, inputs[0], odd)
            return
        outputs = plan.units[number].outputs
        value = _reduced(plan, inputs)
        last = max(inputs, key=lambda frame: frame.tail_ps)
        account = last.account[:]
        account[FIRST_START_PS] = min(frame.account[FIRST_START_PS] for frame in inputs)
        account[LAST_START_PS] = max(frame.account[LAST_START_PS] for frame in inputs)
        starters = (frame.account[LAST_RANK] for frame in inputs if frame.account[LAST_START_PS] == account[LAST_START_PS])
        account[LAST_RANK] = min(starters)
        batch.n_waiting = len(outputs)
        for target, message in outputs:
            channel = last.flow % CHANNEL_STRIDE
            frame = Frame(
                self.network.path(self.address, target, last.route_flow),
                source_rank=self.address,
                target_rank=target,
                flow=flow_number(self.address, target, self.n_ranks) + channel,
                route_flow=last.route_flow,
                payload_bytes=last.payload_bytes,
                head_ps=now_ps,
                communicator=last.communicator,
                operation=last.operation,
                message=message,
                chunk=last.chunk,
                message_bytes=last.message_bytes,
                digest=last.digest,
                flag_every_bytes=last.flag_every_bytes,
                payload=value,
                account=account[:],
            )
            frame.tail_ps = max(now_ps, last.tail_ps)
            frame.recipe = last.recipe if target >= self.n_ranks else b""
            if self.network.recorder is not None:
                self.network.recorder.ask(frame, last, frame.tail_ps)
            self._offer(frame, batch, now_ps)

    def _offer(self, frame: Frame, batch: _Batch, now_ps: int) -> None:
        """Send a chunk, or hold it until its connection has room."""
        key = frame.target_rank, frame.communicator
        connection = self._outgoing.get(key)
        if connection is None:
            connection = self._outgoing[key] = Connection(self.network.window_bytes(self.address, frame.target_rank))
            self._blocked[key] = deque()
        if self._blocked[key] or not connection.has_room(frame.flagged_bytes):
            self._blocked[key].append((frame, batch))
            return
        self._send(frame, connection, batch, now_ps)

    def _send(self, frame: Frame, connection: Connection, batch: _Batch, now_ps: int) -> None:
        connection.outstanding_bytes += frame.flagged_bytes
        self.network.inject(frame, now_ps)
        batch.n_waiting -= 1
        if batch.n_waiting:
            return
        for taken in batch.inputs:
            assert taken is not None
            key = taken.source_rank, taken.communicator
            incoming = self._incoming.get(key)
            if incoming is None:
                incoming = self._incoming[key] = Connection(self.network.window_bytes(taken.source_rank, self.address))
            due_bytes = incoming.consume(taken.flagged_bytes)
            if due_bytes:
                self.network.send_credit(taken, due_bytes, now_ps)

    def _credit(self, key: tuple[int, int], n_bytes: int, now_ps: int) -> None:
        """The target consumed what this switch sent it, perhaps in a run that is over."""
        connection = self._outgoing.get(key)
        if connection is None:
            return
        connection.outstanding_bytes -= n_bytes
        blocked = self._blocked[key]
        while blocked and connection.has_room(blocked[0][0].flagged_bytes):
            frame, batch = blocked.popleft()
            frame.account[CREDIT] += max(0, now_ps - frame.tail_ps)
            frame.head_ps, frame.tail_ps = now_ps, max(now_ps, frame.tail_ps)
            self._send(frame, connection, batch, now_ps)

    def forget(self) -> None:
        """A run begins: its communicators are new, and what is left of those before is nobody's."""
        for table in (self._batches, self._outgoing, self._incoming, self._blocked):
            table.clear()

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken: nothing is half combined, or held, when all is over."""
        assert not self._batches
        assert not any(self._blocked.values())


def _reduced(plan: Plan, inputs: list[Frame]) -> Any:
    """The values of the inputs combined in their order; None where there is no data."""
    if inputs[0].payload is None or len(inputs) == 1:
        return inputs[0].payload
    first, *others = (_values(frame.payload, plan.dtype) for frame in inputs)
    with quiet():
        for value in others:
            first = combine(plan.op, first, value)
    return first


def _values(payload: Any, dtype: str) -> Array:
    return payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, dtype=DTYPES[dtype])
