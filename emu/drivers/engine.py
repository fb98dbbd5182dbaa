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
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

from emu.collectives.executor import Operation
from emu.errors import EmuError
from emu.fabric.counters import AdapterStatistics, QueueStatistics
from emu.fabric.endpoint import Endpoint
from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine, LinkStatistics
from emu.impairments.base import BaseImpairment
from emu.topologies.graph import Topology

MIN_CHUNK_BYTES = 4 * 2**10
MIN_WINDOW_BYTES = 16 * 2**20
"""The default window of a connection is at least this: eight of the largest automatic chunks."""

ImpairmentTable = dict[int, tuple[tuple[BaseImpairment, int | None], ...]]


class Engine:
    """Machines for ``hosted`` nodes (None: all).  ``on_finished`` and ``on_mismatch`` tell the owner."""

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int,
        impairments: ImpairmentTable,
        hosted: frozenset[int] | None = None,
    ) -> None:
        self.topology = topology
        n = topology.n_ranks
        self._n_links = len(topology.links)
        self._submissions = self._n_links + n * n
        self.calendar: list[tuple[int, int, int, Any]] = []
        self.links: dict[int, LinkMachine] = {
            index: LinkMachine(link=link, index=index, seed=seed, impairments=impairments.get(index, ()))
            for index, link in enumerate(topology.links)
            if hosted is None or link.source in hosted
        }
        self.endpoints: dict[int, Endpoint] = {}
        for rank, node in enumerate(topology.ranks):
            if hosted is None or node in hosted:
                self.endpoints[rank] = Endpoint(
                    rank=rank, n_ranks=n, network=self, drain_rate_bps=topology.nodes[node].drain_rate_bps
                )
        self.now_ps = 0
        self.events = 0
        self.interrupted = False
        self.failure: EmuError | None = None
        """Why what is under way will never be there, once that is known."""
        self.hops: list[tuple[int, int]] | None = None
        """Where a list: (model time, payload) of each frame and hop, for those who predict the host's work."""
        self._sequence = 0
        self._spread = topology.router.spread
        self._windows: dict[tuple[int, int], int] = {}
        self._back_ps: dict[tuple[int, int], int] = {}
        self._ways_ps: dict[tuple[int, int], int] = {}
        self.on_finished: Callable[[int, Operation, int], None] = lambda rank, operation, now_ps: None
        self.on_mismatch: Callable[[int, Frame, Operation], None] = lambda rank, frame, operation: None

    # -- the loop ------------------------------------------------------------------------------

    def next_wakeup(self) -> int | None:
        """Model time of the next event, None when there is none."""
        return self.calendar[0][0] if self.calendar else None

    def run(self, limit_ps: int) -> None:
        """Handle every event up to and including ``limit_ps``, or until a rank's user code may go on (``interrupted``)."""
        calendar, step = self.calendar, self.step
        self.interrupted = False
        while calendar and calendar[0][0] <= limit_ps:
            step()
            if self.interrupted:
                return

    def progress(self) -> int:
        """A number that grows as long as the run comes nearer to its end."""
        return self.now_ps

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
            self.endpoints[item.target_rank].receive(item, now_ps)
            return
        link = path[hop]
        start_ps = self.links[link].receive(item, now_ps)
        item.hop = hop + 1
        self.forward(item, link, start_ps)

    def forward(self, frame: Frame, link: int, start_ps: int) -> None:
        """A link has decided when ``frame`` is due at its far end: here, in the same engine."""
        if self.hops is not None:
            self.hops.append((self.now_ps, frame.payload_bytes))
        self._sequence += 1
        due_ps = frame.tail_ps if frame.hop == len(frame.path) else frame.head_ps
        heappush(self.calendar, (due_ps, link, self._sequence, frame))

    # -- what endpoints ask for (fabric.endpoint.Network) ----------------------------------------

    def inject(self, frame: Frame, now_ps: int) -> int | None:
        path = frame.path
        if not path:
            self._at_connection(now_ps, frame)
            return now_ps
        link = path[0]
        machine = self.links[link]
        start_ps = machine.receive(frame, now_ps)
        left_ps = frame.tail_ps - machine.link.latency_ps
        frame.hop = 1
        self.forward(frame, link, start_ps)
        return left_ps

    def _at_connection(self, due_ps: int, frame: Frame) -> None:
        self._sequence += 1
        port = self._n_links + frame.source_rank * self.topology.n_ranks + frame.target_rank
        heappush(self.calendar, (due_ps, port, self._sequence, frame))

    def path(self, source_rank: int, target_rank: int, route_flow: int) -> tuple[int, ...]:
        ranks = self.topology.ranks
        if source_rank == target_rank:
            return ()
        return self.topology.route(ranks[source_rank], ranks[target_rank], route_flow)

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
        """The narrowest ``window`` of a link on the way; by default twice rate times round trip, at least 16 MiB."""
        key = (source_rank, target_rank)
        found = self._windows.get(key)
        if found is None:
            links = [self.topology.links[link] for link in self.path(source_rank, target_rank, 0)]
            given = [link.window_bytes for link in links if link.window_bytes is not None]
            if given:
                found = min(given)
            else:
                round_trip_ps = self.latency_ps(source_rank, target_rank) + self.latency_ps(target_rank, source_rank)
                rate_bps = min((link.rate_bps for link in links), default=0)
                found = max(MIN_WINDOW_BYTES, 2 * rate_bps * round_trip_ps // (8 * 10**12))
            self._windows[key] = found
        return found

    @cached_property
    def chunk_limit_bytes(self) -> int:
        """The largest chunk that emu picks itself: a quarter of the narrowest ``window`` in the fabric, 4 KiB if that is less."""
        given = [link.window_bytes for link in self.topology.links if link.window_bytes is not None]
        return max(MIN_CHUNK_BYTES, min(given) // 4) if given else MIN_WINDOW_BYTES

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

    def operation_finished(self, rank: int, operation: Operation, now_ps: int) -> None:
        if now_ps > self.now_ps:
            self.call_at(now_ps, rank, lambda at_ps: self.on_finished(rank, operation, at_ps))
        else:
            self.on_finished(rank, operation, now_ps)

    def mismatch(self, rank: int, frame: Frame, operation: Operation) -> None:
        self.on_mismatch(rank, frame, operation)

    def link_statistics(self) -> dict[int, LinkStatistics]:
        """Of the hosted links, by index."""
        return {index: machine.statistics() for index, machine in self.links.items()}

    def queue_statistics(self) -> dict[int, tuple[QueueStatistics, ...]]:
        """Of the hosted links, by index; of each, by class.  None where chunks are fluids."""
        return {}

    def adapter_statistics(self) -> dict[int, AdapterStatistics]:
        """Of the hosted ranks.  None where chunks are fluids."""
        return {}
