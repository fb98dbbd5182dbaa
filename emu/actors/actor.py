"""Actor: a share of the fabric in a process of its own: transport, emulated host, and the thread of its loop.

Ray calls its methods in threads of its own; what touches the host is done in the loop's thread, and waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from emu.actors.pickling import check_sendable
from emu.clock import unix_s, wall_ns
from emu.drivers.backend import EngineCounters
from emu.drivers.blocked import Blocked
from emu.drivers.choice import Chooser
from emu.drivers.command import Command
from emu.drivers.emulate import EmulatedHost
from emu.drivers.engine import ImpairmentTable
from emu.drivers.explain import RankState
from emu.drivers.floors import FloorPage
from emu.drivers.placement import Placement
from emu.errors import EmuError
from emu.fabric.recorder import Recorder
from emu.faults.spec import Injection
from emu.host import keep_memory
from emu.rank import Rank
from emu.telemetry.snapshot import Snapshot
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed
from emu.transport import Keys, Transport

SWITCH_INTERVAL_S = 0.0005
"""How long one thread of an actor may keep the interpreter while another waits for it (Python's default is 5 ms)."""
CALL_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
DEATHS = (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
"""How Ray says that an actor is gone; the last when Ray itself ends it because the host's memory is full."""
WATCH_S = 0.1
"""How often those who wait look whether what they wait for can still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    endpoint: str
    node_id: str
    wall_ns: int
    process_id: int


class HostActor:
    """A share of the fabric in its own process: transport, emulated host, loop thread."""

    def __init__(
        self,
        *,
        process: int,
        topology: Topology,
        placement: Placement,
        session: int,
        payload: bool,
        user_time: str,
        keys: Keys | None,
        scheme: str,
        ports: range | None,
    ) -> None:
        keep_memory()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        address = "127.0.0.1" if scheme != "tcp-remote" else ray.util.get_node_ip_address()
        self._transport = Transport(
            scheme=scheme.removesuffix("-remote"), address=address, name=f"{session:x}-{process}", keys=keys, ports=ports
        )
        self._process = process
        self._topology = topology
        self._placement = placement
        self._chooser = Chooser(topology)
        self._host = EmulatedHost(
            process=process,
            topology=topology,
            placement=placement,
            carrier=self._transport,
            session=session,
            payload=payload,
            user_time=user_time,
            choose_algorithm=self._chooser.choose,
        )
        self._host.on_killed = lambda rank, now_ps: os.kill(os.getpid(), signal.SIGKILL)
        self._page: FloorPage | None = None
        self._loop = threading.Thread(target=self._run_loop, name="emu-loop", daemon=True)

    def _run_loop(self) -> None:
        with contextlib.suppress(Exception):  # kept in host.fault, and the vigil tells the session
            self._host.loop()

    def describe(self) -> HostInfo:
        return HostInfo(
            endpoint=self._transport.endpoint,
            node_id=ray.get_runtime_context().get_node_id(),
            wall_ns=wall_ns(),
            process_id=os.getpid(),
        )

    def connect(self, peers: dict[int, str], page: str | None, clock_offset_ns: int) -> None:
        """Connect to the actors that this one sends to, map the page, start the loop, and greet."""
        placement = self._placement
        self._host.clock_offset_ns = clock_offset_ns
        if page is not None:
            self._page = FloorPage(Path(page), placement.n_processes, list(placement.channels))
        self._transport.connect(peers)
        self._loop.start()
        self._in_loop(self._host.greet)

    def greeted(self) -> bool:
        return self._host.greeted

    def _in_loop(self, action: Callable[[], None]) -> None:
        command = Command(action)
        self._host.command(command)
        deadline_ns = wall_ns() + int(CALL_TIMEOUT_S * 1e9)
        while not command.done.wait(WATCH_S):
            if self._host.ended.is_set():
                raise self._fault()
            if wall_ns() > deadline_ns:
                raise EmuError("the actor's loop does not answer")
        command.check()

    def _fault(self) -> EmuError:
        """Why the loop is over."""
        names = [
            node.name for node, owner in zip(self._topology.nodes, self._placement.owner, strict=True) if owner == self._process
        ]
        return EmuError(f"the loop of {', '.join(names)} failed: {self._host.fault!r}; open another session")

    def halt(self) -> None:
        self._in_loop(self._host.halt)

    def begin(self, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable, faults: tuple[Injection, ...]) -> None:
        self._topology = with_seed(self._topology, seed)
        self._host.topology = self._topology
        self._in_loop(
            lambda: self._host.begin(
                epoch=epoch, dilation=dilation, seed=seed, impairments=impairments, page=self._page, faults=faults
            )
        )

    def inject(self, faults: tuple[Injection, ...]) -> dict[str, int]:
        """Have faults take effect now; when they do, by those components that are hosted here."""
        found: dict[str, int] = {}
        host = self._host

        def act() -> None:
            now_ps = host.present_ps()
            for fault in faults:
                begin_ps = host.engine.injector.inject(fault, now_ps)
                if begin_ps is not None:
                    found[fault.component] = begin_ps

        self._in_loop(act)
        return found

    def present_ps(self) -> int:
        found: list[int] = []
        self._in_loop(lambda: found.append(self._host.present_ps()))
        return found[0]

    def lift(self, number: int) -> int:
        """End a fault now; returns the present model time."""
        found: list[int] = []
        host = self._host

        def act() -> None:
            found.append(host.present_ps())
            host.engine.injector.lift(number, found[0])

        self._in_loop(act)
        return found[0]

    def admit(self, members: tuple[int, ...], communicator: int, start_ps: int, anchor_ns: int, seed: int) -> None:
        """The hosted ranks will run; their cursors count from now on."""
        topology = self._topology
        ranks = [
            Rank(
                runtime=self._host.runtime,
                world_rank=world_rank,
                members=members,
                name=topology.nodes[topology.ranks[world_rank]].name,
                seed=seed,
                start_ps=start_ps,
                communicator=communicator,
            )
            for world_rank in members
            if world_rank in self._host.engine.endpoints
        ]
        self._in_loop(lambda: self._host.admit(ranks, start_ps, anchor_ns))

    def run(self, pickled: bytes) -> tuple[dict[int, Any], int]:
        """Run the function on every hosted rank to its end; (results, largest cursor)."""
        runtime = self._host.runtime
        function, args = cloudpickle.loads(pickled)
        runtime.launch(function, args)
        residents = list(runtime.residents.values())
        for resident in residents:
            if resident.thread is not None:
                while resident.thread.is_alive():
                    resident.thread.join(WATCH_S)
                    failure = runtime.first_failure()
                    if failure is not None:
                        raise failure
        failure = runtime.first_failure()
        if failure is not None:
            raise failure
        if runtime.failed is not None:
            raise runtime.failed
        results = runtime.results()
        check_sendable(results)
        return results, max((r.rank.cursor_ps for r in residents), default=0)

    def abort(self, error: EmuError) -> None:
        self._in_loop(lambda: self._host.runtime.fail(error))

    def rest(self) -> None:
        self._in_loop(self._host.rest)

    def leftovers(self) -> tuple[str | None, list[tuple[int, int, int, int]], int]:
        """A mismatch that a frame showed, messages that no call took (see :func:`emu.drivers.explain.unreceived`), and the
        time of the last event."""
        found: list[tuple[int, int, int, int]] = []
        runtime = self._host.runtime
        self._in_loop(lambda: found.extend(runtime.leftovers()))
        return runtime.suspicion, found, self._host.engine.now_ps

    def states(self) -> tuple[list[RankState], str | None, int]:
        """What the ranks do, a mismatch that a frame showed, and events so far."""
        runtime = self._host.runtime
        states: list[RankState] = []
        self._in_loop(lambda: states.extend(runtime.states()))
        return states, runtime.suspicion, self._host.engine.activity()

    def blocked(self, for_ever: bool) -> Blocked:
        """What holds back the ports here."""
        found: list[Blocked] = []
        self._in_loop(lambda: found.append(self._host.blocked(for_ever=for_ever)))
        return found[0]

    def record(self) -> None:
        """Note what happens, from the next ``begin`` on."""
        self._host.is_recording = True

    def recorder(self) -> Recorder | None:
        """What was noted."""
        return self._host.engine.recorder

    def counters(self, *, observed: bool = False) -> EngineCounters:
        """What was counted since ``begin``; ``observed``: with the scrapes of before."""
        found: list[EngineCounters] = []
        host = self._host

        def read() -> None:
            counters = host.counters
            found.append(
                replace(
                    EngineCounters.of(host.engine, host.runtime, observed=observed),
                    order_violations=counters.order_violations,
                    order_weight_ps=counters.order_weight_ps,
                    transport_backpressure=counters.transport_backpressure,
                    largest_lateness_ps=counters.largest_lateness_ps,
                    socket_payload_bytes=counters.socket_payload_bytes,
                )
            )

        self._in_loop(read)
        return found[0]

    def snapshot(self) -> tuple[float, Snapshot]:
        """When (Unix time), and what was counted since the session began."""
        found: list[Snapshot] = []
        self._in_loop(lambda: found.append(self._host.snapshot()))
        return unix_s(), found[0]

    def stop(self) -> None:
        """Stop the loop and close the sockets."""
        self._host.stop()
        if self._loop.is_alive():
            self._loop.join(STOP_TIMEOUT_S)
        self._transport.close()

    def vigil(self) -> None:
        """Never returns: the call fails when the loop does, or the actor dies."""
        self._host.ended.wait()
        if self._host.fault is not None:
            raise self._fault()
        threading.Event().wait()

    def process_id(self) -> int:
        return os.getpid()
