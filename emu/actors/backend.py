"""Backend: starts, watches and ends the actors of a session, and explains what ended a run.

Law: the backend ends what it started.  Actors die with it, sockets leave no file, the shared page is unlinked as soon as
everyone has mapped it, and Ray itself is shut down, with its directory, when it was started here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from emu.actors.actor import CALL_TIMEOUT_S, DEATHS, STOP_TIMEOUT_S, WATCH_S, HostActor, HostInfo
from emu.actors.cluster import Cluster, clock_offsets
from emu.actors.exporter import Exporters, Watch, watched
from emu.actors.pickling import cause_of, pickled
from emu.actors.stopped import StopWatch
from emu.clock import sleep_s, wall_ns
from emu.drivers.backend import EngineCounters
from emu.drivers.blocked import Blocked, CycleWatch, merged
from emu.drivers.engine import ImpairmentTable
from emu.drivers.explain import explain, unreceived
from emu.drivers.floors import FloorPage
from emu.drivers.placement import place
from emu.errors import ConfigError, EmuError, PeerLost, Stalled
from emu.fabric.recorder import Recorder
from emu.faults.spec import Injection
from emu.host import DIRECTORY_PREFIX, descriptor_limit, descriptors_needed, memory_directory
from emu.telemetry.snapshot import About, Reading
from emu.topologies.graph import Topology
from emu.transport import Keys, data_ports

START_TIMEOUT_S = 120.0
QUIET_LOOKS = 3
"""Looks in a row that must find nothing able to move before it is called a deadlock."""
LEFTOVER_S, LEFTOVER_LOOK_S = 10.0, 0.002
"""How long the end of a run waits for frames under way that nobody waits for, and how often it looks."""
OBSERVE_S = 10.0
"""How long those who look at a run wait for the actors; a host that is busy answers late."""
LEAD_NS = 20_000_000
"""A run starts this long after the session says so, for the word to reach every actor."""


class RayBackend:
    """The emulating driver behind a session."""

    def __init__(
        self,
        *,
        topology: Topology,
        session_id: int,
        accelerators_per_actor: int | None,
        address: str | None,
        timeout_s: float,
        payload: bool,
        user_time: str,
        transport: str,
        metrics: tuple[str, int, About] | None = None,
    ) -> None:
        """``metrics``: where exporters serve (host, port), and of what."""
        if transport not in ("auto", "ipc", "tcp"):
            raise ConfigError(f"transport {transport!r}: use auto, ipc or tcp")
        self._topology = topology
        self._timeout_s = timeout_s
        self._placement = place(topology, accelerators_per_actor)
        self._actors: dict[int, Any] = {}
        self._node_of: dict[int, str] = {}
        self._exporters = Exporters()
        self._watch_all: Watch | None = None
        self._dead: dict[int, tuple[str, ...]] = {}
        self._vigils: dict[Any, int] = {}
        self._stops = StopWatch({})
        self.record_hops = False
        self._cluster = Cluster()
        self._page: FloorPage | None = None
        self._start_ps = 0
        self._seed = 0
        self._closed = False
        self._check_descriptors()
        try:
            self._cluster.start(address)
            self._create(session_id, payload, user_time, transport)
            self._join_up()
            if metrics is not None:
                self._exporters.start(*metrics, topology, watched(topology, self._placement, self._actors, self._node_of))
        except BaseException:
            self.close()
            raise

    # -- start -----------------------------------------------------------------------------------

    def _check_descriptors(self) -> None:
        outgoing: dict[int, int] = {}
        for sender, _, _ in self._placement.channels:
            outgoing[sender] = outgoing.get(sender, 0) + 1
        needed = descriptors_needed(max(outgoing.values(), default=0))
        if needed > descriptor_limit():
            raise ConfigError(
                f"an actor needs about {needed} file descriptors and the limit is {descriptor_limit()}: raise it with"
                f" 'ulimit -n {2 * needed}' or let more accelerators share an actor (--accelerators-per-actor)"
            )

    def _create(self, session_id: int, payload: bool, user_time: str, transport: str) -> None:
        nodes = sorted((node["NodeManagerHostname"], node["NodeID"]) for node in ray.nodes() if node["Alive"])
        several_hosts = len({host for host, _ in nodes}) > 1
        if several_hosts and transport == "ipc":
            raise ConfigError("transport ipc needs all actors on one host; this cluster has several, use tcp")
        keys = Keys.make() if several_hosts else None
        ports = data_ports()
        scheme = "tcp-remote" if several_hosts else "ipc" if transport == "auto" else transport
        topology, placement = ray.put(self._topology), ray.put(self._placement)
        for process in range(self._placement.n_processes):
            dealt = NodeAffinitySchedulingStrategy(node_id=nodes[process % len(nodes)][1], soft=False)
            actor_class = ray.remote(HostActor).options(num_cpus=0, max_concurrency=9, max_restarts=0, scheduling_strategy=dealt)
            self._actors[process] = actor_class.remote(
                process=process,
                topology=topology,
                placement=placement,
                session=session_id,
                payload=payload,
                user_time=user_time,
                keys=keys,
                scheme=scheme,
                ports=ports,
            )

    def _join_up(self) -> None:
        placement = self._placement
        described = {actor.describe.remote(): process for process, actor in self._actors.items()}
        ready, waiting = ray.wait(list(described), num_returns=len(described), timeout=START_TIMEOUT_S)
        if waiting:
            raise EmuError(
                f"{len(ready)} of {len(described)} actors started within {START_TIMEOUT_S:g} s; missing: "
                + ", ".join(self._names_of(described[ref])[0] for ref in waiting[:8])
                + "; use fewer actors (--accelerators-per-actor) or a larger cluster"
            )
        info: dict[int, HostInfo] = {described[ref]: found for ref, found in zip(ready, self._get(ready), strict=True)}
        self._node_of = {process: found.node_id for process, found in info.items()}
        here = ray.get_runtime_context().get_node_id()
        self._stops = StopWatch({process: found.process_id for process, found in info.items() if found.node_id == here})
        page_path: Path | None = None
        if {found.node_id for found in info.values()} == {here}:
            page_path = memory_directory() / f"{DIRECTORY_PREFIX}{os.getpid()}-{wall_ns():x}.page"
            FloorPage.create(page_path, placement.n_processes, len(placement.channels))
        try:
            offsets = clock_offsets(info, here, lambda process: self._get([self._actors[process].describe.remote()])[0])
            peers: dict[int, dict[int, str]] = {process: {} for process in self._actors}
            for sender, receiver, _ in placement.channels:
                peers[sender][receiver] = info[receiver].endpoint
            if page_path is not None:
                self._page = FloorPage(page_path, placement.n_processes, list(placement.channels))
            self._all(
                lambda process, actor: actor.connect.remote(
                    peers[process], None if page_path is None else str(page_path), offsets.get(info[process].node_id, 0)
                )
            )
        finally:
            if page_path is not None:
                page_path.unlink(missing_ok=True)
        self._vigils = {actor.vigil.remote(): process for process, actor in self._actors.items()}
        deadline_ns = wall_ns() + int(CALL_TIMEOUT_S * 1e9)
        while not all(self._all(lambda _, actor: actor.greeted.remote()).values()):
            if wall_ns() > deadline_ns:
                raise EmuError(f"the actors could not all reach each other within {CALL_TIMEOUT_S:g} s; check the firewall")
            sleep_s(0.02)

    # -- Ray calls ---------------------------------------------------------------------------------

    def _get(self, refs: list[Any]) -> list[Any]:
        """Answers while the actors are started.  Raises EmuError, also when one dies on the way."""
        try:
            return list(ray.get(refs, timeout=START_TIMEOUT_S))
        except DEATHS as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            told = lines[-1 if "creation task" in lines[0] else 0].strip()  # there the exception of __init__ comes last
            raise EmuError(f"an actor died while it was started: {told}") from None
        except ray.exceptions.RayTaskError as error:
            raise cause_of(error) from None

    def _all(self, call: Callable[[int, Any], Any], among: set[int] | None = None) -> dict[int, Any]:
        """Call every living actor (of ``among``); a death on the way becomes PeerLost."""
        refs = {
            call(process, actor): process
            for process, actor in self._actors.items()
            if process not in self._dead and (among is None or process in among)
        }
        results: dict[int, Any] = {}
        for ref, process in refs.items():
            try:
                results[process] = ray.get(ref, timeout=START_TIMEOUT_S)
            except DEATHS:
                self._bury(process)
                raise self._lost() from None
            except ray.exceptions.RayTaskError as error:
                raise cause_of(error) from None
            except ray.exceptions.GetTimeoutError:
                self._stops.look(wall_ns())
                why = self._stopped() if self._stops.now else f"{self._names_of(process)[0]} does not answer"
                raise EmuError(f"{why} for {START_TIMEOUT_S:g} s; let it go on, or close the session") from None
        return results

    def _names_of(self, process: int) -> tuple[str, ...]:
        return tuple(self._topology.nodes[i].name for i, owner in enumerate(self._placement.owner) if owner == process)

    def _bury(self, process: int) -> None:
        self._dead[process] = self._names_of(process)

    def _lost(self) -> PeerLost:
        names = tuple(name for found in self._dead.values() for name in found)
        ranks = [r for r, node in enumerate(self._topology.ranks) if self._topology.nodes[node].name in names]
        told = f" (ranks {', '.join(map(str, ranks))})" if ranks else ""
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        return PeerLost(f"the actor of {shown}{told} died; what it carried is lost to this session", names)

    def lost_nodes(self) -> frozenset[int]:
        return frozenset(i for i, owner in enumerate(self._placement.owner) if owner in self._dead)

    def look(self) -> None:
        """Bury the actors that died while nobody looked."""
        waiting = {ref: process for ref, process in self._vigils.items() if process not in self._dead}
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for ref in ready:
            try:
                ray.get(ref)
            except DEATHS:
                self._bury(waiting[ref])
            except ray.exceptions.RayTaskError:
                pass  # its loop failed, which the next run says

    # -- runs ----------------------------------------------------------------------------------------

    def begin(
        self, *, epoch: int, dilation: float, seed: int, impairments: ImpairmentTable, faults: tuple[Injection, ...]
    ) -> None:
        self._seed = seed
        self._start_ps = self._elapsed_ps = 0
        try:
            self._halt()
        except PeerLost:
            self._halt()  # a death that nobody had seen yet: those that are left begin without it
        if self._page is not None:
            self._page.clear()  # only now does nobody write to it
        self._stops.clear()
        self._all(lambda _, actor: actor.begin.remote(epoch, dilation, seed, impairments, faults))

    def inject(self, faults: tuple[Injection, ...]) -> dict[str, int]:
        """First those who are hit, then the rest, who learn when it was."""
        topology, owner = self._topology, self._placement.owner
        owners = {owner[topology.links[one.link].source if one.link >= 0 else topology.ranks[one.rank]] for one in faults}
        found: dict[str, int] = {}
        for told in self._all(lambda _, actor: actor.inject.remote(faults), owners).values():
            found |= told
        if topology.switching is not None or any(one.peer >= 0 for one in faults):  # ways round, and whose traffic it is
            known = tuple(replace(one, begin_ps=found.get(one.component, one.begin_ps)) for one in faults)
            self._all(lambda _, actor: actor.inject.remote(known), set(self._actors) - owners)
        return found

    def kill(self, rank: int) -> int:
        """End the actor of a rank, as a crash would.  Returns its model time."""
        process = self._placement.owner[self._topology.ranks[rank]]
        present_ps: int = self._all(lambda _, actor: actor.present_ps.remote(), {process})[process]
        ray.kill(self._actors[process])
        return present_ps

    def lift(self, number: int) -> int:
        return max(self._all(lambda _, actor: actor.lift.remote(number)).values(), default=0)

    def stopped_s(self) -> dict[str, float]:
        return {self._names_of(process)[0]: seconds for process, seconds in self._stops.seconds().items()}

    def _stopped(self) -> str:
        """Whose processes are stopped now, for messages."""
        return f"process stopped: {', '.join(self._names_of(process)[0] for process in sorted(self._stops.now))}"

    def _halt(self) -> None:
        self._all(lambda _, actor: actor.halt.remote())

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], members: tuple[int, ...], communicator: int
    ) -> dict[int, Any]:
        sent = pickled(function, args)
        anchor_ns = wall_ns() + LEAD_NS
        self._all(lambda _, actor: actor.admit.remote(members, communicator, self._start_ps, anchor_ns, self._seed))
        hosting = {self._placement.owner[self._topology.ranks[rank]] for rank in members}
        refs = {self._actors[process].run.remote(sent): process for process in sorted(hosting)}
        pending = list(refs)
        try:
            results = self._follow(refs, pending)
            self._check_nothing_left(hosting)
        except KeyboardInterrupt:
            with contextlib.suppress(EmuError):
                self._abort(EmuError("the run was interrupted"), pending)
            raise
        return results

    def _follow(self, refs: dict[Any, int], pending: list[Any]) -> dict[int, Any]:
        """Wait for the ranks of a run; their results.  ``pending``, all of them at first, is what has not come."""
        results: dict[int, Any] = {}
        quiet, progress, since_ns = 0, -1, wall_ns()
        cycles = CycleWatch(self._topology, self._gather_blocked, since_ns)
        while pending:
            vigils = [ref for ref, process in self._vigils.items() if process not in self._dead]
            ready, _ = ray.wait([*pending, *vigils], num_returns=len(pending), timeout=WATCH_S)
            self._stops.look(wall_ns())
            for ref in ready:
                process = refs.get(ref, self._vigils.get(ref, 0))
                try:
                    found, cursor_ps = ray.get(ref)
                except DEATHS:
                    self._bury(process)
                    self._abort(self._lost(), pending)
                except ray.exceptions.RayTaskError as error:
                    self._abort(cause_of(error), pending)
                else:
                    pending.remove(ref)
                    results.update(found)
                    self._elapsed_ps = max(self._elapsed_ps, cursor_ps)
            if not pending:
                break
            quiet, progress, since_ns = self._watch(pending, cycles, quiet, progress, since_ns)
        return results

    def _check_nothing_left(self, hosting: set[int]) -> None:
        """Let what is under way come to rest, then see that every message was taken and none was of another call."""
        self._all(lambda _, actor: actor.rest.remote())
        deadline_ns = wall_ns() + int(LEFTOVER_S * 1e9)
        while self._page is not None and not self._page.quiescent() and wall_ns() < deadline_ns:
            sleep_s(LEFTOVER_LOOK_S)
        ended = self._all(lambda _, actor: actor.leftovers.remote())
        self._start_ps = max(self._elapsed_ps, *(now_ps for _, _, now_ps in ended.values()))
        hint = next((suspicion for suspicion, _, _ in ended.values() if suspicion is not None), None)
        if hint is not None:
            states = self._all(lambda _, actor: actor.states.remote(), hosting)
            self._abort(explain([state for found in states.values() for state in found[0]], hint=hint), [])
        error = unreceived([frame for _, frames, _ in ended.values() for frame in frames])
        if error is not None:
            self._abort(error, [])

    def _watch(self, pending: list[Any], cycles: CycleWatch, quiet: int, progress: int, since_ns: int) -> tuple[int, int, int]:
        """Look for a deadlock or a stall; raises what explains it."""
        now_ns = wall_ns()
        page = self._page
        if page is not None:
            events = int(page.progress.sum())
            quiet = quiet + 1 if page.quiescent() else 0
        else:
            events = progress
            if now_ns - since_ns > min(self._timeout_s, 1.0) * 1e9:
                events = sum(found[2] for found in self._all(lambda _, actor: actor.states.remote()).values())
        if events != progress:
            if (cycle := cycles.behind_timers(now_ns)) is not None:
                self._abort(cycle, pending)
            return quiet, events, now_ns
        stalled = now_ns - since_ns > self._timeout_s * 1e9
        if quiet < QUIET_LOOKS and not stalled:
            return quiet, progress, since_ns
        if self._stops.now:
            self._abort(Stalled(f"no progress for {self._timeout_s:g} s; {self._stopped()}; let it go on (SIGCONT)"), pending)
        gathered = self._all(lambda _, actor: actor.states.remote())
        states = [state for found in gathered.values() for state in found[0]]
        if not any(state.status == "waiting" for state in states):
            return 0, progress, now_ns  # user code may take as long as it likes while nobody waits for it
        hint = next((found[1] for found in gathered.values() if found[1] is not None), None)
        error = explain(states, hint=hint, timeout_s=self._timeout_s if stalled else None)
        self._abort(cycles.now() or error, pending)
        return quiet, progress, since_ns

    def _gather_blocked(self, for_ever: bool) -> Blocked:
        return merged(self._all(lambda _, actor: actor.blocked.remote(for_ever)).values())

    def _abort(self, error: EmuError, pending: list[Any]) -> None:
        """End the run on every living actor, wait for their ranks to stop, and raise."""
        deaf = self._stops.now.union(self._dead)
        alive = [actor for process, actor in self._actors.items() if process not in deaf]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait([actor.abort.remote(error) for actor in alive], num_returns=len(alive), timeout=CALL_TIMEOUT_S)
            if pending:
                ray.wait(pending, num_returns=len(pending), timeout=STOP_TIMEOUT_S)
        raise error

    def record(self) -> None:
        self._all(lambda _, actor: actor.record.remote())

    def recorders(self) -> list[Recorder]:
        return [found for found in self._all(lambda _, actor: actor.recorder.remote()).values() if found is not None]

    def counters(self) -> list[EngineCounters]:
        return list(self._all(lambda _, actor: actor.counters.remote()).values())

    def observed(self) -> list[EngineCounters]:
        """Of the living that answer: one that is stopped, or died just now, must not stop who looks."""
        deaf = self._stops.now.union(self._dead)
        refs = [actor.counters.remote(observed=True) for process, actor in self._actors.items() if process not in deaf]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=OBSERVE_S) if refs else ([], [])
        found = []
        for ref in ready:
            with contextlib.suppress(ray.exceptions.RayError):
                found.append(ray.get(ref))
        return found

    def elapsed_ps(self) -> int:
        return self._elapsed_ps

    def metrics_endpoints(self) -> dict[str, str]:
        """HOST:PORT of each node's exporter."""
        return dict(self._exporters.endpoints)

    def readings(self) -> list[Reading]:
        """What every actor has counted, now."""
        if self._watch_all is None:
            self._watch_all = Watch(watched(self._topology, self._placement, self._actors))
        return self._watch_all.readings()

    def hops(self) -> list[tuple[int, int]]:
        """Nothing: an emulated run is measured, not predicted."""
        return []

    def process_ids(self) -> dict[str, int]:
        """Process id of each node's actor, for tests and for the curious."""
        ids = self._all(lambda _, actor: actor.process_id.remote())
        return {node.name: ids[self._placement.owner[i]] for i, node in enumerate(self._topology.nodes)}

    # -- end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._exporters.close()
        with contextlib.suppress(Exception):
            if self._actors and ray.is_initialized():
                alive = [actor for process, actor in self._actors.items() if process not in self._dead]
                if alive and not self._cluster.is_ours:
                    ray.wait([actor.stop.remote() for actor in alive], num_returns=len(alive), timeout=STOP_TIMEOUT_S)
                for actor in alive:
                    ray.kill(actor)
        self._actors.clear()
        if self._page is not None:
            self._page.close()
            self._page = None
        self._cluster.stop()
