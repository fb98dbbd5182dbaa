"""Injector: the faults of one engine's machines.

Law: a fault takes effect at a time from which on nothing has been decided: at the time that is asked for, and where something
that it touches is decided for longer than that (chunks that wait for a link have their times already), then.  The same fault
scheduled for that time gives the same run; only which packets a fault loses depends on how many went before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from emu.fabric.background import BackgroundFlow
from emu.fabric.condition import Condition, Lateness
from emu.fabric.endpoint import CHANNEL_STRIDE, Endpoint
from emu.fabric.pace import Limit, Pace
from emu.faults.ranks import Killed, Late, Skips, SlowCompute, SlowReceiver, Stopped
from emu.faults.spec import Injection
from emu.faults.traffic import Background
from emu.faults.window import During
from emu.topologies.graph import Topology
from emu.units import FOREVER_PS, duration_ps

if TYPE_CHECKING:
    from emu.impairments.base import BaseImpairment


class Plane(Protocol):
    """What the injector asks of its engine."""

    topology: Topology
    endpoints: dict[int, Endpoint]

    def hosts(self, node: int) -> bool: ...
    def decided_ps(self, link: int) -> int:
        """Until when a hosted link's decisions reach."""
        ...

    def impair(self, link: int, impairment: BaseImpairment, plane: int | None) -> int:
        """Put an impairment on a link, for all that know of it here.  Returns its place."""
        ...

    def replace(self, link: int, place: int, impairment: BaseImpairment) -> None: ...
    def drain(self, rank: int) -> Pace:
        """How fast a hosted rank takes in what comes."""
        ...


@dataclass(slots=True)
class _InForce:
    injection: Injection
    begin_ps: int
    end_ps: int | None
    during: During | None = None
    place: int = -1
    flow: BackgroundFlow | None = None


class Injector:
    """``payload``: whether background traffic carries data."""

    def __init__(self, engine: Any, *, payload: bool) -> None:
        self._engine: Plane = engine
        self._payload = payload
        self._faults: list[_InForce] = []
        self.has_traffic = False
        """Whether anybody sends background traffic, here or elsewhere: then events alone are no progress."""

    def inject(self, injection: Injection, now_ps: int) -> int | None:
        """From ``now_ps`` on at the earliest; returns when it takes effect, None where what it hits is not hosted here."""
        engine = self._engine
        begin_ps = max(now_ps, injection.begin_ps)
        if injection.link >= 0:
            hosted = engine.hosts(engine.topology.links[injection.link].source)
            begin_ps = max(begin_ps, engine.decided_ps(injection.link))
            during = injection.during(begin_ps)
            place = engine.impair(injection.link, during, injection.plane)
            self._faults.append(_InForce(injection, begin_ps, during.end_ps, during, place))
            return begin_ps if hosted else None
        self.has_traffic = self.has_traffic or isinstance(injection.fault, Background)
        if not engine.hosts(engine.topology.ranks[injection.rank]):
            return None
        flow = None
        if isinstance(injection.fault, Background):
            flow = self._flow(injection, injection.fault, begin_ps)
        else:
            begin_ps = self._afflict(injection, begin_ps)
        self._faults.append(_InForce(injection, begin_ps, injection.end_ps(begin_ps), flow=flow))
        if flow is not None and engine.endpoints[injection.rank].is_admitted:
            flow.admit(begin_ps)
        return begin_ps

    def _afflict(self, injection: Injection, begin_ps: int) -> int:
        fault, number, rank = injection.fault, injection.number, injection.rank
        condition: Condition = self._engine.endpoints[rank].condition
        if isinstance(fault, SlowReceiver):
            drain = self._engine.drain(rank)
            begin_ps = max(begin_ps, drain.done_ps)
            end_ps = injection.end_ps(begin_ps)
            drain.limit(Limit(number=number, begin_ps=begin_ps, end_ps=end_ps, rate=fault.rate_bps))
            return begin_ps
        if isinstance(fault, SlowCompute | Stopped):
            begin_ps = max(begin_ps, condition.compute.done_ps)
        end_ps = injection.end_ps(begin_ps)
        if isinstance(fault, SlowCompute):
            condition.slow(number, begin_ps, end_ps, fault.share)
        elif isinstance(fault, Stopped):
            condition.stop(number, begin_ps, begin_ps + fault.for_ps)
        elif isinstance(fault, Late):
            condition.delay(Lateness(number, begin_ps, end_ps, fault.by_ps, fault.count))
        elif isinstance(fault, Skips):
            condition.delay(Lateness(number, begin_ps, end_ps, None, fault.count))
        elif isinstance(fault, Killed):
            condition.kill(begin_ps)
        return begin_ps

    def _flow(self, injection: Injection, fault: Background, begin_ps: int) -> BackgroundFlow:
        engine, topology = self._engine, self._engine.topology
        endpoint = engine.endpoints[injection.rank]
        network, size = endpoint.network, fault.message_bytes
        lanes = range(network.spread())
        uses = Counter(link for lane in lanes for link in network.path(injection.rank, injection.peer, lane))
        shared = [(n, topology.links[link]) for link, n in uses.items()]
        line_ps = -(-max(n * duration_ps(link.wire_bytes(size), link.rate_bps) for n, link in shared) // len(lanes))
        n = topology.n_ranks
        flow = BackgroundFlow(
            number=injection.number,
            source_rank=injection.rank,
            target_rank=injection.peer,
            flow=n * n * CHANNEL_STRIDE + injection.number,
            message_bytes=size,
            interval_ps=line_ps if fault.rate_bps is None else duration_ps(size, fault.rate_bps),
            begin_ps=begin_ps,
            end_ps=injection.end_ps(begin_ps),
            network=network,
            payload=np.zeros(size, dtype=np.uint8) if self._payload else None,
        )
        endpoint.flows[flow.communicator] = flow
        return flow

    def lift(self, number: int, now_ps: int) -> None:
        """End the fault of that number from ``now_ps`` on; what is decided stays, and who is dead stays dead."""
        for force in self._faults:
            injection = force.injection
            if injection.number != number or (force.end_ps is not None and force.end_ps <= now_ps):
                continue
            force.end_ps = now_ps
            if force.during is not None:
                force.end_ps = max(now_ps, self._engine.decided_ps(injection.link))
                force.during = force.during.model_copy(update={"end_ps": force.end_ps})
                self._engine.replace(injection.link, force.place, force.during)
            elif force.flow is not None:
                force.flow.end_ps = now_ps
            else:
                self._engine.endpoints[injection.rank].condition.lift(number, now_ps)
                self._engine.drain(injection.rank).lift(number, now_ps)

    def active(self, now_ps: int) -> Iterator[tuple[Injection, int, int | None]]:
        """(fault, since when, until when) of what is in force here now; links by their source."""
        for force in self._faults:
            injection, end_ps = force.injection, force.end_ps
            if injection.link >= 0 and not self._engine.hosts(self._engine.topology.links[injection.link].source):
                continue
            if force.begin_ps <= now_ps < (FOREVER_PS if end_ps is None else end_ps):
                yield injection, force.begin_ps, end_ps
