"""Testing: what tests of emu, and of things built on it, run against instead of actors and sockets.

Law: nothing here knows more than the drivers do.  :func:`simulated` and :func:`emulated_in_process` run
the same function on the same fabric under both drivers, the second with one thread per actor
and queues instead of sockets, so that the emulating loop can be tested without Ray and ZeroMQ.

Not modelled: processes.  All actors share one interpreter, so they are late whenever another one computes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from emu.clock import sleep_s, wall_ns
from emu.collectives.catalogue import algorithms_for, find_algorithm, schedule_for
from emu.collectives.layout import Layout, flat, layout_of
from emu.drivers.emulate import EmulatedHost
from emu.drivers.engine import ImpairmentTable
from emu.drivers.floors import FloorPage
from emu.drivers.placement import Placement
from emu.drivers.runtime import Runtime
from emu.drivers.simulate import Simulation
from emu.errors import ConfigError, EmuError
from emu.fabric.recorder import Recorder
from emu.faults.book import FaultBook
from emu.rank import Rank
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.routing import take_ranks
from emu.wire import FRAME, unpack_prefix

SESSION = 0x7E57
TIMEOUT_S = 20.0
LEAD_NS = 1_000_000
LOOK_S = 0.001
_Message = tuple[bytes, Any]
_RankFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Frames from actor to actor over ``channel`` wait until a first frame has gone over ``until``: (sender, receiver) each."""

    channel: tuple[int, int]
    until: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run gave: the function's results by rank, and what the host did to the run (0 when simulated)."""

    results: list[Any]
    order_violations: int = 0
    order_weight_ps: int = 0
    largest_lateness_ps: int = 0
    transport_backpressure: int = 0
    frames_sent: int = 0
    recorders: tuple[Recorder, ...] = ()
    """What was noted, with ``record``: by engine."""


class InMemoryNetwork:
    """Queues between the actors of one process, in order on every channel.  ``hold`` provokes another order between channels.

    With ``reject_every`` n, each n-th send says that it would block, as a full socket does.
    """

    def __init__(self, n_processes: int, *, hold: Hold | None = None, reject_every: int = 0) -> None:
        self.carriers = [InMemoryCarrier(self, process) for process in range(n_processes)]
        self.reject_every = reject_every
        self._hold = hold
        self._held: list[_Message] = []
        self._lock = threading.Lock()

    def deliver(self, sender: int, receiver: int, header: bytes, payload: Any) -> None:
        """Put a message into the receiver's queue, or keep it back."""
        hold = self._hold
        if hold is None or unpack_prefix(header, SESSION)[0] != FRAME:
            self.carriers[receiver].put(header, payload)
            return
        with self._lock:
            if self._hold is not None and (sender, receiver) == hold.channel:
                self._held.append((header, payload))
                return
            self.carriers[receiver].put(header, payload)
            if (sender, receiver) == hold.until:
                self._hold = None
                for held in self._held:
                    self.carriers[hold.channel[1]].put(*held)

    def close(self) -> None:
        for carrier in self.carriers:
            os.close(carrier.descriptor)


class InMemoryCarrier:
    """One actor's end of an :class:`InMemoryNetwork`: an ``emu.drivers.emulate.Carrier``."""

    def __init__(self, network: InMemoryNetwork, process: int) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self._network = network
        self._process = process
        self._queue: SimpleQueue[_Message] = SimpleQueue()
        self._sends = 0

    def put(self, header: bytes, payload: Any) -> None:
        """Called by senders, in their threads."""
        self._queue.put((header, payload))
        os.eventfd_write(self.descriptor, 1)

    def send(self, peer: int, header: bytes, payload: Any) -> bool:
        every = self._network.reject_every
        self._sends += 1
        if every and self._sends % every == 0:
            return False
        self._network.deliver(self._process, peer, header, payload)
        return True

    def receive(self) -> Iterator[_Message]:
        """All that is here now."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return

    def readable(self) -> bool:
        return not self._queue.empty()


def algorithms_over(collective: str, n_ranks: int) -> tuple[str, ...]:
    """Algorithms of emu's folder that do ``collective`` over so many ranks of which nothing is known: that do not decline."""
    return tuple(name for name in algorithms_for(collective) if _takes(collective, name, flat(n_ranks)))


@lru_cache
def fabrics_over(n_ranks: int) -> tuple[Topology, ...]:
    """Small fabrics that differ in what algorithms ask of them: a plain star; one node with a switch, and two leaves, that
    combine; nodes on rails, of each size that fits; a torus of two dimensions."""
    switches = {"multicast": "true"}
    leaf = -(-n_ranks // 2)
    found = [
        load_fabric("star", {"ranks": str(n_ranks)}),
        load_fabric("star", {"ranks": str(n_ranks), "host_size": str(n_ranks), "multicast": "true"}),
        take_ranks(load_fabric("clos", {"leaves": "2", "spines": "2", "accelerators_per_leaf": str(leaf), **switches}), n_ranks),
    ]
    for size in (size for size in range(2, n_ranks // 2 + 1) if n_ranks % size == 0):
        nodes = str(n_ranks // size)
        rails = {"nodes": nodes, "rails": str(size), "nodes_per_leaf": nodes, "host_size": str(size), "multicast": "true"}
        found += [load_fabric("rails", rails), load_fabric("torus", {"shape": f"{nodes}x{size}"})]
    return tuple(found)


def layouts_over(collective: str, algorithm: str, n_ranks: int) -> tuple[Layout, ...]:
    """How so many ranks may lie for an algorithm of emu's folder to do ``collective``: on :func:`fabrics_over`, or flat."""
    layouts = [flat(n_ranks)]
    if find_algorithm(algorithm).asks_layout:
        layouts += [layout_of(fabric, tuple(range(n_ranks))) for fabric in fabrics_over(n_ranks)[1:]]
    return tuple(layout for layout in layouts if _takes(collective, algorithm, layout))


def algorithms_on(collective: str, fabric: Topology) -> tuple[str, ...]:
    """Algorithms of emu's folder that do ``collective`` over all ranks of a fabric."""
    layout = layout_of(fabric, tuple(range(fabric.n_ranks)))
    return tuple(name for name in algorithms_for(collective) if _takes(collective, name, layout))


def fabric_over(collective: str, algorithm: str, n_ranks: int) -> Topology | None:
    """The first of :func:`fabrics_over` on which an algorithm does ``collective``."""
    return next((fabric for fabric in fabrics_over(n_ranks) if algorithm in algorithms_on(collective, fabric)), None)


def _takes(collective: str, algorithm: str, layout: Layout) -> bool:
    with contextlib.suppress(ConfigError):
        schedule_for(collective, algorithm, layout.n_ranks, 0, layout)
        return True
    return False


def one_actor_per_node(topology: Topology) -> tuple[int, ...]:
    """An owner for :class:`~emu.drivers.emulate.Placement`: every node, switches too, in an actor of its own."""
    return tuple(range(len(topology.nodes)))


def simulated(
    topology: Topology,
    function: _RankFunction,
    *args: Any,
    seed: int = 0,
    impairments: ImpairmentTable | None = None,
    faults: tuple[str, ...] = (),
    n_runs: int = 1,
    record: bool = False,
) -> Outcome:
    """Run ``function(rank, *args)`` on every rank under virtual time, ``n_runs`` times on one model; results of the last.

    Raises what the run raises.
    """
    simulation = Simulation(
        topology,
        seed=seed,
        impairments=impairments or {},
        payload=True,
        choose_algorithm=_no_choice,
        faults=FaultBook(topology, faults).injections(),
    )
    recorder = simulation.engine.recorder = Recorder() if record else None
    results: dict[int, Any] = {}
    start_ps = 0
    for _ in range(n_runs):
        ranks = _ranks(topology, simulation.runtime, seed, range(topology.n_ranks), start_ps)
        results = simulation.run(function, args, ranks)
        start_ps = max(simulation.engine.now_ps, *(rank.cursor_ps for rank in ranks))
    recorders = () if recorder is None else (recorder,)
    return Outcome(results=[results[rank] for rank in range(topology.n_ranks)], recorders=recorders)


def emulated_in_process(
    topology: Topology,
    function: _RankFunction,
    *args: Any,
    owner: tuple[int, ...],
    dilation: float,
    page: Path | None,
    seed: int = 0,
    impairments: ImpairmentTable | None = None,
    faults: tuple[str, ...] = (),
    hold: Hold | None = None,
    reject_every: int = 0,
    clock_offsets_ns: tuple[int, ...] = (),
    n_runs: int = 1,
    record: bool = False,
) -> Outcome:
    """Run ``function(rank, *args)`` on every rank under the emulating driver, one thread per actor of ``owner``.

    ``page`` is where the floor page is made; with None there is none, as between hosts, and order is
    kept by slack alone.  ``clock_offsets_ns`` is what each actor is told that its clock
    is ahead of the session's.  Of ``n_runs`` on one model (with a page) the results are the last one's.
    Raises the first failure of a rank, and EmuError when an actor's loop fails or the run takes longer than TIMEOUT_S.
    """
    placement = Placement.of(topology, owner)
    network = InMemoryNetwork(placement.n_processes, hold=hold, reject_every=reject_every)
    pages: list[FloorPage | None] = [None] * placement.n_processes
    if page is not None:
        FloorPage.create(page, placement.n_processes, len(placement.channels))
        pages = [FloorPage(page, placement.n_processes, list(placement.channels)) for _ in range(placement.n_processes)]
        for mapped in pages[:1]:
            if mapped is not None:
                mapped.clear()
    hosts = [
        EmulatedHost(
            process=process,
            topology=topology,
            placement=placement,
            carrier=network.carriers[process],
            session=SESSION,
            payload=True,
            user_time="declared",
            choose_algorithm=_no_choice,
            clock_offset_ns=clock_offsets_ns[process] if clock_offsets_ns else 0,
        )
        for process in range(placement.n_processes)
    ]
    loops = [threading.Thread(target=_loop, args=(host,), name=f"emu-loop-{host.process}", daemon=True) for host in hosts]
    try:
        for host, mapped in zip(hosts, pages, strict=True):
            host.is_recording = record
            host.begin(
                epoch=1,
                dilation=dilation,
                seed=seed,
                impairments=impairments or {},
                page=mapped,
                faults=FaultBook(topology, faults).injections(),
            )
        start_ps = 0
        for number in range(n_runs):
            if number:
                start_ps = _rested_ps(hosts, pages[0])
            anchor_ns = wall_ns() + LEAD_NS
            for host in hosts:
                ranks = _ranks(topology, host.runtime, seed, host.engine.endpoints, start_ps)
                _in_loop(host, partial(host.admit, ranks, start_ps, anchor_ns), is_running=number > 0)
            for loop in loops:
                if number == 0:
                    loop.start()
            for host in hosts:
                host.runtime.launch(function, args)
            _join(hosts)
    finally:
        for host in hosts:
            host.stop()
        for loop in loops:
            if loop.ident is not None:
                loop.join(TIMEOUT_S)
        for mapped in pages:
            if mapped is not None:
                mapped.close()
        network.close()
    results = {rank: result for host in hosts for rank, result in host.runtime.results().items()}
    return Outcome(
        results=[results[rank] for rank in range(topology.n_ranks)],
        order_violations=sum(host.counters.order_violations for host in hosts),
        order_weight_ps=sum(host.counters.order_weight_ps for host in hosts),
        largest_lateness_ps=max(host.counters.largest_lateness_ps for host in hosts),
        transport_backpressure=sum(host.counters.transport_backpressure for host in hosts),
        frames_sent=sum(host.counters.frames_sent for host in hosts),
        recorders=tuple(host.engine.recorder for host in hosts if host.engine.recorder is not None),
    )


def _loop(host: EmulatedHost) -> None:
    with contextlib.suppress(Exception):  # kept in host.fault
        host.loop()


def _in_loop(host: EmulatedHost, action: Callable[[], None], *, is_running: bool = True) -> None:
    if not is_running:
        action()
        return
    done = threading.Event()

    def act() -> None:
        action()
        done.set()

    host.command(act)
    if not done.wait(TIMEOUT_S):
        raise EmuError(f"actor {host.process} does not answer")


def _rested_ps(hosts: list[EmulatedHost], page: FloorPage | None) -> int:
    """When the next run may start: all has come to rest."""
    deadline_ns = wall_ns() + int(TIMEOUT_S * 1e9)
    for host in hosts:
        _in_loop(host, host.rest)
    while page is not None and not page.quiescent():
        if wall_ns() > deadline_ns:
            raise EmuError(f"the fabric is not at rest after {TIMEOUT_S:g} s")
        sleep_s(LOOK_S)
    cursors_ps = [resident.rank.cursor_ps for host in hosts for resident in host.runtime.residents.values()]
    return max(*cursors_ps, *(host.engine.now_ps for host in hosts))


def _join(hosts: list[EmulatedHost]) -> None:
    """Wait for every rank; end all of them when one fails, an actor's loop fails, or it takes too long."""
    threads = [resident.thread for host in hosts for resident in host.runtime.residents.values()]
    deadline_ns = wall_ns() + int(TIMEOUT_S * 1e9)
    error: BaseException | None = None
    for thread in threads:
        while thread is not None and thread.is_alive():
            thread.join(0.05)
            if error is None:
                error = next((found for host in hosts if (found := host.fault or host.runtime.first_failure())), None)
                if error is None and wall_ns() > deadline_ns:
                    error = EmuError(f"the run is not over after {TIMEOUT_S:g} s")
                if error is not None:
                    for host in hosts:
                        host.runtime.fail(error)
    error = error or next((found for host in hosts if (found := host.runtime.first_failure())), None)
    if error is not None:
        raise error


def _ranks(topology: Topology, runtime: Runtime, seed: int, hosted: Any, start_ps: int) -> list[Rank]:
    members = tuple(range(topology.n_ranks))
    return [
        Rank(
            runtime=runtime,
            world_rank=rank,
            members=members,
            name=topology.nodes[topology.ranks[rank]].name,
            seed=seed,
            start_ps=start_ps,
            communicator=1,
        )
        for rank in members
        if rank in hosted
    ]


def _no_choice(collective: str, *asked: object) -> str:
    raise EmuError(f"{collective}: name an algorithm; a test decides nothing by prediction")
