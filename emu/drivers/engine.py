"""Engine: the machines of some of a fabric's nodes, and one calendar for them.

Law: the engine is told how far it may go (``run(limit)``) and handles events in the
one order that every driver keeps: by (time, port, sequence).  It never reads a
clock.  The simulating driver has one engine for the whole fabric; the emulating
driver has one per actor and carries frames between them.

The calendar holds tuples (time_ps, port, sequence, item):

    port < n_links                 a frame's head (or, at its target, its tail) arrives over that link
    n_links <= port < submissions  credits and loopback, by connection
    port >= submissions            what a rank asked for, by rank

An item is a Frame, or a callable that is given the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from typing import Any

from emu.collectives.executor import Operation
from emu.collectives.recipe import plan
from emu.drivers.injector import Injector
from emu.errors import EmuError, PeerLost
from emu.fabric.aggregator import Aggregator
from emu.fabric.capacity import WORK_PER_BYTE
from emu.fabric.counters import AdapterStatistics, DelayCounts, IntakeStatistics, QueueStatistics
from emu.fabric.device import endpoint
from emu.fabric.endpoint import Endpoint
from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine, LinkStatistics
from emu.fabric.pace import Pace
from emu.fabric.recorder import Recorder
from emu.fabric.window import MIN_WINDOW_BYTES, chunk_limit_bytes, window_bytes
from emu.impairments.base import BaseImpairment
from emu.telemetry.scrapes import Scraper
from emu.topologies.graph import Topology
from emu.topologies.tiers import link_tiers
from emu.units import format_time

"""The default window of a connection is at least this: eight of the largest automatic chunks."""

ImpairmentTable = dict[int, tuple[tuple[BaseImpairment, int | None], ...]]


def impaired(
    topology: Topology, impairments: ImpairmentTable, hosted: frozenset[int] | None = None
) -> frozenset[tuple[str, str]]:
    """(link, kind) of what is on the links of ``hosted`` nodes (None: all)."""
    return frozenset(
        (topology.links[link].name, type(impairment).__module__.rpartition(".")[2])
        for link, placed in impairments.items()
        if hosted is None or topology.links[link].source in hosted
        for impairment, _ in placed
    )


class Engine:
    """Machines for ``hosted`` nodes (None: all).  ``on_finished`` and ``on_mismatch`` tell the owner."""

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int,
        impairments: ImpairmentTable,
        hosted: frozenset[int] | None = None,
        payload: bool = True,
    ) -> None:
        self.topology = topology
        self._hosted = hosted
        self.injector = Injector(self, payload=payload)
        self._n_ranks = topology.n_ranks
        self._addresses = topology.addresses
        self._n_links = len(topology.links)
        self._submissions = self._n_links + len(self._addresses) ** 2
        self.calendar: list[tuple[int, int, int, Any]] = []
        self.delays: dict[int, DelayCounts] = {}
        """By tier of links."""
        self.links: dict[int, LinkMachine] = {
            index: LinkMachine(
                link=link, index=index, seed=seed, impairments=impairments.get(index, ()), delay_counts=self._delays_of(index)
            )
            for index, link in enumerate(topology.links)
            if hosted is None or link.source in hosted
        }
        self.endpoints: dict[int, Endpoint] = {}
        for rank, node in enumerate(topology.ranks):
            if hosted is None or node in hosted:
                self.endpoints[rank] = endpoint(self, topology, rank, drain_rate_bps=topology.nodes[node].drain_rate_bps)
        self.aggregators = self._make_aggregators()
        """By address, of the switches that combine and multicast."""
        self._ends: dict[int, Endpoint | Aggregator] = {**self.endpoints, **self.aggregators}
        self.now_ps = 0
        self.events = 0
        self.interrupted = False
        self.failure: EmuError | None = None
        """Why what is under way will never be there, once that is known."""
        self.hops: list[tuple[int, int]] | None = None
        """Where a list: (model time, payload) of each frame and hop, for those who predict the host's work."""
        self.recorder: Recorder | None = None
        """Where there is one, it is told what happens."""
        self.scraper = Scraper(len(self.links))
        self._sequence = 0
        self._spread = topology.router.spread
        self._windows: dict[tuple[int, int], int] = {}
        self._back_ps: dict[tuple[int, int], int] = {}
        self._ways_ps: dict[tuple[int, int], int] = {}
        self.on_finished: Callable[[int, Operation, int], None] = lambda rank, operation, now_ps: None
        self.on_mismatch: Callable[[int, Frame, Operation], None] = lambda rank, frame, operation: None
        self.on_killed: Callable[[int, int], None] = self._lose
        self.on_clash: Callable[[str, Frame, Frame], None] = lambda switch, frame, other: None

    def _make_aggregators(self) -> dict[int, Aggregator]:
        return {
            address: Aggregator(
                address=address,
                n_ranks=self._n_ranks,
                network=self,
                plan=partial(plan, topology=self.topology, address=address),
                clash=self._clash,
            )
            for address, node in enumerate(self._addresses)
            if address >= self._n_ranks and self.hosts(node)
        }

    def _clash(self, address: int, frame: Frame, other: Frame) -> None:
        self.on_clash(self.topology.nodes[self._addresses[address]].name, frame, other)

    # -- the loop ------------------------------------------------------------------------------

    def next_wakeup(self) -> int | None:
        """Model time of the next event, None when there is none."""
        return self.calendar[0][0] if self.calendar else None

    def run(self, limit_ps: int) -> None:
        """Handle every event up to and including ``limit_ps``, or until a rank's user code may go on (``interrupted``)."""
        calendar, step = self.calendar, self.step
        self.interrupted = False
        if self.now_ps >= self.scraper.due_ps:
            self.scraper.look(self)
        while calendar and calendar[0][0] <= limit_ps:
            step()
            if self.interrupted:
                return

    def progress(self) -> int:
        """A number that grows as long as the run comes nearer to its end."""
        return self._n_steps() if self.injector.has_traffic else self.now_ps

    def activity(self) -> int:
        """A number that grows as long as something happens; where there is background traffic, something else than that."""
        return self._n_steps() if self.injector.has_traffic else self.events

    def _n_steps(self) -> int:
        return sum(endpoint.n_steps for endpoint in self.endpoints.values())

    def held_back(self) -> str:
        """What a stalled run adds to its message: who keeps data from going; empty where nobody does."""
        return ""

    def step(self) -> None:
        """Handle the first event."""
        now_ps, _, _, item = heappop(self.calendar)
        self.now_ps = now_ps
        self.events += 1
        if type(item) is not Frame:
            item(now_ps)
            return
        hop = item.hop
        path = item.path
        if hop == len(path):
            self._ends[item.target_rank].receive(item, now_ps)
            return
        link = path[hop]
        start_ps = self.links[link].receive(item, now_ps)
        item.hop = hop + 1
        self.forward(item, link, start_ps)

    def forward(self, frame: Frame, link: int, start_ps: int) -> None:
        """A link has decided when ``frame`` is due at its far end: here, in the same engine."""
        if self.hops is not None:
            self.hops.append((self.now_ps, frame.payload_bytes))
        if self.recorder is not None:
            self.recorder.frame_hop(frame, link, start_ps)
        self._sequence += 1
        heappush(self.calendar, (self.due_ps(frame), link, self._sequence, frame))

    def due_ps(self, frame: Frame) -> int:
        """When the frame is an event at the end of the link that it is on: where it ends at a rank it has come to its tail."""
        ends = frame.hop == len(frame.path) and frame.target_rank < self._n_ranks
        return frame.tail_ps if ends else frame.head_ps

    # -- what endpoints ask for (fabric.endpoint.Network) ----------------------------------------

    def inject(self, frame: Frame, now_ps: int) -> int | None:
        path = frame.path
        if not path:
            frame.is_whole(now_ps)
            self._note_sent(frame)
            self._at_connection(now_ps, frame)
            return now_ps
        self._note_sent(frame)
        link = path[0]
        machine = self.links[link]
        start_ps = machine.receive(frame, now_ps)
        left_ps = frame.tail_ps - machine.link.latency_ps
        frame.hop = 1
        self.forward(frame, link, start_ps)
        return left_ps

    def _note_sent(self, frame: Frame) -> None:
        if self.recorder is not None:
            self.recorder.send(frame)

    def _at_connection(self, due_ps: int, frame: Frame) -> None:
        self._sequence += 1
        port = self._n_links + frame.source_rank * len(self._addresses) + frame.target_rank
        heappush(self.calendar, (due_ps, port, self._sequence, frame))

    def path(self, source_rank: int, target_rank: int, route_flow: int) -> tuple[int, ...]:
        nodes = self._addresses
        if source_rank == target_rank:
            return ()
        return self.topology.route(nodes[source_rank], nodes[target_rank], route_flow)

    def spread(self) -> int:
        return self._spread

    def latency_ps(self, source_rank: int, target_rank: int) -> int:
        """Sum of the latencies on the way, without impairments."""
        key = (source_rank, target_rank)
        found = self._back_ps.get(key)
        if found is None:
            links = self.topology.links
            found = self._back_ps[key] = sum(links[link].latency_ps for link in self.path(source_rank, target_rank, 0))
        return found

    def delay_ps(self, links: tuple[int, ...]) -> int:
        """How long a word that waits in no queue takes over these links: their latencies, at least 1 ps each."""
        return sum(max(1, self.topology.links[link].latency_ps) for link in links)

    def way_ps(self, source_rank: int, target_rank: int) -> int:
        """:meth:`delay_ps` from rank to rank, at least 1 ps."""
        key = (source_rank, target_rank)
        found = self._ways_ps.get(key)
        if found is None:
            found = self._ways_ps[key] = max(1, self.delay_ps(self.path(source_rank, target_rank, 0)))
        return found

    def window_bytes(self, source_rank: int, target_rank: int) -> int:
        """See ``fabric/window.py``; by default at least an endpoint's own buffer."""
        key = (source_rank, target_rank)
        found = self._windows.get(key)
        if found is None:
            links = [self.topology.links[link] for link in self.path(source_rank, target_rank, 0)]
            endpoint = self.topology.endpoint
            found = self._windows[key] = window_bytes(
                links,
                lambda: self.latency_ps(source_rank, target_rank) + self.latency_ps(target_rank, source_rank),
                least_bytes=MIN_WINDOW_BYTES if endpoint is None else max(MIN_WINDOW_BYTES, endpoint.buffer_bytes),
            )
        return found

    @cached_property
    def chunk_limit_bytes(self) -> int:
        """The largest chunk that emu picks itself."""
        return chunk_limit_bytes(self.topology)

    def send_credit(self, taken: Frame, n_bytes: int, now_ps: int) -> None:
        source_rank, target_rank = taken.target_rank, taken.source_rank
        due_ps = now_ps + self.way_ps(source_rank, target_rank)
        frame = Frame(
            self.path(source_rank, target_rank, 0),
            source_rank=source_rank,
            target_rank=target_rank,
            flow=0,
            route_flow=0,
            payload_bytes=0,
            head_ps=due_ps,
            communicator=taken.communicator,
            operation=taken.operation,
            credit_bytes=n_bytes,
        )
        self.forward_credit(frame, now_ps)

    def forward_credit(self, frame: Frame, now_ps: int) -> None:
        """Credits use no bandwidth: the whole way back is one event."""
        frame.hop = len(frame.path)
        self._at_connection(frame.head_ps, frame)

    def call_at(self, time_ps: int, rank: int, action: Any) -> None:
        self._sequence += 1
        heappush(self.calendar, (time_ps, self._submissions + rank, self._sequence, action))

    def cancel(self, action: Any, after_ps: int) -> None:
        """Forget that ``action`` was to be called later than ``after_ps``."""
        calendar = self.calendar
        kept = [entry for entry in calendar if entry[3] is not action or entry[0] <= after_ps]
        if len(kept) < len(calendar):
            calendar[:] = kept
            heapify(calendar)

    def killed(self, rank: int, now_ps: int) -> None:
        self.on_killed(rank, now_ps)

    def _lose(self, rank: int, now_ps: int) -> None:
        """The run cannot go on without the rank."""
        name = self.topology.nodes[self.topology.ranks[rank]].name
        if self.failure is None:
            self.failure = PeerLost(f"{name} (rank {rank}) was killed by a fault at {format_time(now_ps)}", (name,))
        self.interrupted = True

    def operation_finished(self, rank: int, operation: Operation, now_ps: int) -> None:
        if now_ps > self.now_ps:
            self.call_at(now_ps, rank, lambda at_ps: self.on_finished(rank, operation, at_ps))
        else:
            self.on_finished(rank, operation, now_ps)

    def mismatch(self, rank: int, frame: Frame, operation: Operation) -> None:
        self.on_mismatch(rank, frame, operation)

    @property
    def untouched_ps(self) -> int:
        """The first model time of which nothing has been handled."""
        return self.now_ps + 1 if self.events else 0

    # -- what the injector asks for --------------------------------------------------------------

    def hosts(self, node: int) -> bool:
        return self._hosted is None or node in self._hosted

    def decided_ps(self, link: int) -> int:
        return self.links[link].decided_ps if link in self.links else 0

    def impair(self, link: int, impairment: BaseImpairment, plane: int | None) -> int:
        return self.links[link].impair(impairment, plane) if link in self.links else -1

    def replace(self, link: int, place: int, impairment: BaseImpairment) -> None:
        if link in self.links:
            self.links[link].replace(place, impairment)

    def drain(self, rank: int) -> Pace:
        return self.endpoints[rank].drain

    # -- what is known ---------------------------------------------------------------------------

    def _delays_of(self, link: int) -> DelayCounts:
        return self.delays.setdefault(link_tiers(self.topology)[link], DelayCounts())

    def hosted_ranks(self) -> tuple[int, ...]:
        return tuple(self.endpoints)

    def active_faults(self) -> set[tuple[str, str]]:
        """(component, kind) of what is in force here now."""
        return {(one.component, one.kind) for one, _, _ in self.injector.active(self.now_ps)}

    def link_statistics(self) -> dict[int, LinkStatistics]:
        """Of the hosted links, by index."""
        return {index: machine.statistics() for index, machine in self.links.items()}

    def intake_statistics(self) -> dict[int, IntakeStatistics]:
        """Of the hosted ranks."""
        return {
            rank: IntakeStatistics(
                busy_bytes=self.drain(rank).work // WORK_PER_BYTE,
                busy_ps=self.drain(rank).busy_ps,
                stuck_ps=endpoint.stuck_ps,
            )
            for rank, endpoint in self.endpoints.items()
        }

    def queue_statistics(self) -> dict[int, tuple[QueueStatistics, ...]]:
        """Of the hosted links, by index; of each, by class.  None where chunks are fluids."""
        return {}

    def queue_bytes(self) -> dict[int, tuple[int, ...]]:
        """What waits now at the hosted links, by index; of each, by class.  None where chunks are fluids."""
        return {}

    def adapter_statistics(self) -> dict[int, AdapterStatistics]:
        """Of the hosted ranks.  None where chunks are fluids."""
        return {}
