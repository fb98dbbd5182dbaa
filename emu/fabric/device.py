"""Device: the endpoint of an accelerator whose own work takes time, as :mod:`emu.protocols.costs` has it.

Law: a call of collective, algorithm and protocol runs its steps ``launch`` after it began.  Each of the device's lanes then does
one thing at a time: issue a message and put its bytes on the way at the protocol's rate, or write to its own memory.  Most calls
use one lane; where one uses several its blocks are dealt over them, chunk by chunk where there are fewer blocks.  Of the messages
that wait in a lane one of the lowest chunk goes first, as a kernel takes chunk after chunk; else that which was asked for first.
What leaves the host or comes to it goes through the rank's proxy, in the order in which it is issued and arrives: a message is on
its way when its first slot is, and is done with a slot after its last byte at the soonest.
What comes is seen ``receipt_ps`` after its last byte; receipts do not occupy a lane, so they hide behind what it sends.
All of it is counted as the account's ``endpoint``.  Calls without a protocol (barriers, control data) cost nothing.

Not modelled: a slow sender's pace in fabrics with ``switching``, where a message's packets leave at the line's rate and only the
next message waits; and its pace after it waited for credit.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from emu.collectives.executor import Operation
from emu.fabric.account import ENDPOINT
from emu.fabric.connection import Connection
from emu.fabric.endpoint import Endpoint, Network, operation_key
from emu.fabric.frame import Frame
from emu.protocols.costs import Charges, EndpointCosts, charges
from emu.topologies.graph import Topology
from emu.topologies.hosts import inside
from emu.units import duration_ps


class _Message(NamedTuple):
    """One that waits to be issued."""

    frame: Frame
    operation: Operation
    connection: Connection
    its: Charges


class _Lane:
    """What does one thing at a time.  ``free_ps``: when what it does now is done."""

    __slots__ = ("free_ps", "looks_ps", "waiting")

    def __init__(self) -> None:
        self.free_ps = self.looks_ps = 0
        self.waiting: list[tuple[int, int, _Message]] = []


class Device(Endpoint):
    """An endpoint with ``costs``; ``inside`` are the addresses in its host."""

    def __init__(self, *, costs: EndpointCosts, inside: frozenset[int] = frozenset(), **endpoint: Any) -> None:
        super().__init__(**endpoint)
        self.costs = costs
        self._inside = inside
        self._proxy_free_ps = 0
        self._known: dict[tuple[str, str, str, int], Charges] = {}
        self._lanes: defaultdict[int, _Lane] = defaultdict(_Lane)
        self._asked = 0

    def _charges(self, operation: Operation) -> Charges | None:
        call = operation.call
        if not call.protocol:
            return None
        kind = (call.collective, call.algorithm, call.protocol, call.n_hosts)
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = charges(self.costs, *kind)
        return found

    def _lane(self, its: Charges, operation: Operation, chunk: int, block: int) -> _Lane:
        return self._lanes[(block + operation.n_blocks * chunk) % its.lanes if its.lanes > 1 else 0]

    def _begin(self, operation: Operation, now_ps: int) -> None:
        its = self._charges(operation)
        if its is None or operation.launch_ps == its.launch_ps:
            super()._begin(operation, now_ps)
            return
        operation.launch_ps = its.launch_ps
        self.network.call_at(now_ps + its.launch_ps, self.rank, lambda at_ps: self._begin(operation, at_ps))

    def _ask(self, frame: Frame, operation: Operation, connection: Connection, block: int, now_ps: int) -> None:
        its = self._charges(operation)
        if its is None:
            self._offer(frame, operation, connection, now_ps)
            return
        operation.held += 1
        self._asked += 1
        lane = self._lane(its, operation, frame.chunk, block)
        heappush(lane.waiting, (frame.chunk, self._asked, _Message(frame, operation, connection, its)))
        self._next(lane, now_ps)

    def _next(self, lane: _Lane, now_ps: int) -> None:
        """Issue what waits, or look again when the lane is free."""
        while lane.waiting and lane.free_ps <= now_ps:
            _, _, message = heappop(lane.waiting)
            frame, its = message.frame, message.its
            issued_ps = now_ps + its.message_ps
            lane.free_ps = issued_ps + duration_ps(frame.payload_bytes, its.rate_bps)
            tail_ps = issued_ps + duration_ps(frame.payload_bytes, its.message_rate_bps)
            if its.slot_ps and frame.target_rank not in self._inside:
                taken_ps = max(issued_ps, self._proxy_free_ps)
                self._proxy_free_ps = taken_ps + its.proxy_ps(frame.payload_bytes)
                issued_ps, tail_ps = taken_ps + its.slot_ps, max(tail_ps + its.slot_ps, self._proxy_free_ps)
            frame.account[ENDPOINT] += tail_ps - frame.head_ps
            self.network.call_at(issued_ps, self.rank, partial(self._issue, message, tail_ps - issued_ps))
        if lane.waiting and lane.free_ps > lane.looks_ps:
            lane.looks_ps = lane.free_ps
            self.network.call_at(lane.free_ps, self.rank, partial(self._next, lane))

    def _issue(self, message: _Message, pace_ps: int, now_ps: int) -> None:
        frame, operation = message.frame, message.operation
        frame.head_ps, frame.tail_ps = now_ps, now_ps + pace_ps
        self._offer(frame, operation, message.connection, now_ps)
        operation.released(now_ps)

    def worked(self, operation: Operation, chunk: int, block: int, copied_bytes: int, reduced_bytes: int, now_ps: int) -> None:
        """A step wrote to the rank's own memory, or reduced: the lane is busy with it."""
        its = self._charges(operation)
        if its is None:
            return
        spent_ps = duration_ps(copied_bytes, its.copy_rate_bps) if its.copy_rate_bps else 0
        if its.reduction_rate_bps:
            spent_ps += duration_ps(reduced_bytes, its.reduction_rate_bps)
        if spent_ps:
            lane = self._lane(its, operation, chunk, block)
            lane.free_ps = max(now_ps, lane.free_ps) + spent_ps
            operation.busy(lane.free_ps, now_ps)

    def _deliver(self, frame: Frame, now_ps: int) -> None:
        operation = self.operations.get(operation_key(frame.communicator, frame.operation, frame.source_rank))
        its = None if operation is None else self._charges(operation)
        if operation is None or its is None:
            super()._deliver(frame, now_ps)
            return
        seen_ps = now_ps
        if its.slot_ps and frame.source_rank not in self._inside:
            seen_ps = self._proxy_free_ps = max(self._proxy_free_ps + its.proxy_ps(frame.payload_bytes), now_ps + its.slot_ps)
        if not (its.stores_directly and operation.ends_with(frame)):
            seen_ps += its.receipt_ps(frame.payload_bytes)
        if seen_ps == now_ps:
            super()._deliver(frame, now_ps)
            return
        frame.account[ENDPOINT] += seen_ps - now_ps
        self.network.call_at(seen_ps, self.rank, lambda at_ps: super(Device, self)._deliver(frame, at_ps))


def endpoint(network: Network, topology: Topology, rank: int, *, drain_rate_bps: int | None = None) -> Endpoint:
    """The endpoint of a rank: a device where the fabric says what its work costs."""
    its: dict[str, Any] = {"rank": rank, "n_ranks": topology.n_ranks, "network": network, "drain_rate_bps": drain_rate_bps}
    if topology.endpoint is None:
        return Endpoint(**its)
    return Device(costs=topology.endpoint, inside=inside(topology, rank), **its)
