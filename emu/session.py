"""Session: a testbed, from its start to its end.

Law: whatever a session starts it ends, on every way out: normal, an exception,
Ctrl-C, a failed start.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from emu.drivers.backend import Backend, Simulated
from emu.drivers.choice import Chooser
from emu.drivers.observing import Expectations, congestion, observe
from emu.drivers.simulate import DEFAULT_TIMEOUT_S
from emu.drivers.switching_guard import check_run
from emu.errors import ConfigError, EmuError, PeerLost
from emu.fabric.link import LinkStatistics
from emu.faults.book import FaultBook, FaultRecord
from emu.faults.spec import Injection, placed_impairments
from emu.impairments.spec import parse_impairment, resolve
from emu.protocols.legal import Reduction
from emu.telemetry import file_sd
from emu.telemetry.congestion import CongestionReport
from emu.telemetry.observation import Observation
from emu.telemetry.record import Mark, RunRecord
from emu.telemetry.snapshot import About
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed
from emu.units import PS_PER_SECOND

USER_TIMES = ("declared", "measured")
ASSUMED_HOST_BYTES_PER_S = 500 * 10**6
ASSUMED_HOP_S = 0.0005
"""What a small host surely moves, and how long a frame takes from actor to actor, where nothing was calibrated."""

if TYPE_CHECKING:
    from emu.telemetry.prometheus import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What happened since ``begin``.  ``frames`` counts chunk hops; bytes are those of the model's links.

    ``transport_backpressure``, lateness and order are the host's doing (0 under simulate).  ``socket_payload_bytes`` went over
    sockets: equal to the links' payload when every hop did.  ``congestion``: None on a fabric without ``switching``.
    ``stopped_s``: for how long actors' processes were stopped, by the name of their first node.
    """

    order_violations: int
    order_weight_ps: int
    transport_backpressure: int
    largest_lateness_ps: int
    wire_bytes_per_rank_max: int
    frames: int
    wire_bytes: int
    payload_bytes: int
    events: int
    socket_payload_bytes: int
    links: Mapping[str, LinkStatistics]
    congestion: CongestionReport | None = None
    stopped_s: Mapping[str, float] = field(default_factory=dict)


class Session:
    """Virtual accelerators on a fabric.

    ``fabric``: a generic topology, a preset, a TOML file, or a Topology; ``settings`` as ``--set``.  ``driver``: "emulate" (Ray
    actors, ZeroMQ, real payload) or "simulate" (virtual time, one process).  ``dilation``: wall seconds per model
    second; "auto" takes a cautious figure from the fabric alone (``emu bench`` calibrates and chooses per row); 0 is unpaced.
    ``user_time``: whether Python between calls costs nothing ("declared") or wall time over dilation ("measured").
    ``faults``: as ``--fault``; their times count from each :meth:`begin`.  ``payload``: False simulates without data.
    ``accelerators_per_actor``: None packs automatically.  ``address``: a Ray cluster's; None starts Ray here.
    ``record_hops``: simulate remembers (model time, payload bytes) of every frame and hop, see :meth:`hops`.  ``record``: notes
    calls, chunks and hops, see :meth:`record`; on a long run only the first of them.
    ``metrics``: ADDRESS:PORT at which an exporter on every node serves Prometheus ("auto": a free port of 127.0.0.1, or on
    several hosts as "node:0", of each node's own address).
    ``metrics_names``: "emu", or "nccl-inspector" for that plugin's beside them.
    ``transport``: "auto" (ipc on one host, else tcp), "ipc" or "tcp".

    Raises ConfigError before anything starts.
    """

    def __init__(
        self,
        fabric: str | Topology,
        *,
        settings: Mapping[str, str] | None = None,
        driver: str = "emulate",
        seed: int = 0,
        dilation: float | str = "auto",
        impairments: tuple[str, ...] = (),
        faults: tuple[str, ...] = (),
        accelerators_per_actor: int | None = None,
        address: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        payload: bool = True,
        user_time: str = "declared",
        transport: str = "auto",
        record_hops: bool = False,
        record: bool = False,
        metrics: str | None = None,
        metrics_names: str = "emu",
    ) -> None:
        specs = tuple(impairments)
        if isinstance(fabric, str):
            loaded = load(fabric, dict(settings or {}))
            topology = loaded.topology
            specs = tuple(loaded.impairments) + specs
        elif settings:
            raise ConfigError("settings go with a fabric's name, not with a Topology")
        else:
            topology = fabric
        if user_time not in USER_TIMES:
            raise ConfigError(f"user_time {user_time!r}: use one of {', '.join(USER_TIMES)}")
        if driver not in ("emulate", "simulate"):
            raise ConfigError(f"driver {driver!r}: use emulate or simulate")
        if driver == "simulate" and user_time == "measured":
            raise ConfigError("user_time 'measured' needs the wall clock of driver emulate; under simulate use declared")
        if metrics is not None and driver == "simulate":
            raise ConfigError("metrics: exporters go with driver emulate; a simulation has metrics_text()")
        endpoint = None if metrics is None else file_sd.parse_endpoint(metrics)
        if not timeout_s > 0:
            raise ConfigError(f"timeout {timeout_s:g} s: it must be more than 0")
        self.topology = with_seed(topology, seed)
        self.driver = driver
        self.seed = seed
        self.payload = payload
        self.user_time = user_time
        self.timeout_s = timeout_s
        self.record_hops = record_hops
        self._is_recording = record
        self.chooser = Chooser(self.topology)
        self.session_id = secrets.randbits(63)
        self._collector: Collector | None = None
        self._expectations = Expectations(self.topology, self.chooser)
        self._failure: EmuError | None = None
        self._about = About(
            session=f"{self.session_id:x}",
            fabric=topology.name,
            driver=driver,
            ranks=topology.n_ranks,
            seed=seed,
            inspector=file_sd.check_metrics_names(metrics_names),
        )
        self._impairments = resolve([parse_impairment(spec) for spec in specs], self.topology)
        self._faults = FaultBook(self.topology, faults)
        self._in_book = threading.Lock()
        self._check(self._faults.injections())
        self._epoch = 0
        self._runs = 0
        self._broken = False
        self._running = False
        self._closed = False
        self.dilation = _cautious_dilation(self.topology) if dilation == "auto" else _checked_dilation(dilation)
        self._backend: Backend
        if driver == "simulate":
            self._backend = Simulated(
                topology=self.topology,
                payload=payload,
                choose_algorithm=self.chooser.choose,
                timeout_s=timeout_s,
                record_hops=record_hops,
            )
        else:
            from emu.actors.backend import RayBackend  # heavy: only where actors are wanted

            self._backend = RayBackend(
                topology=self.topology,
                session_id=self.session_id,
                accelerators_per_actor=accelerators_per_actor,
                address=address,
                timeout_s=timeout_s,
                payload=payload,
                user_time=user_time,
                transport=transport,
                metrics=None if endpoint is None else (*endpoint, self._about),
            )
        try:
            if record:
                self._backend.record()
            self.begin()
        except BaseException:
            self._backend.close()
            raise

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks that are alive."""
        lost = self._backend.lost_nodes()
        return tuple(rank for rank, node in enumerate(self.topology.ranks) if node not in lost)

    @property
    def lost(self) -> tuple[str, ...]:
        """Nodes whose actors are known to have died: by what failed, or by :meth:`look`."""
        return tuple(self.topology.nodes[node].name for node in sorted(self._backend.lost_nodes()))

    def look(self) -> None:
        """See whether actors have died since the last run, which itself looks all the time; not while one is under way."""
        self._backend.look()

    def begin(self, dilation: float | None = None, seed: int | None = None) -> None:
        """A fresh model at time 0, counters at 0; optionally another dilation or seed."""
        if dilation is not None:
            self.dilation = _checked_dilation(dilation)
        if seed is not None:
            self.seed = seed
        if self._closed:
            raise EmuError("the session is closed; open another")
        with self._in_book:
            faults = self._faults.begin(self._backend.elapsed_ps() if self._epoch else 0, self.ranks)
            self._epoch += 1
            self._broken = False
            self._failure = None
            self._backend.record_hops = self.record_hops
            self._backend.begin(
                epoch=self._epoch, dilation=self.dilation, seed=self.seed, impairments=self._impairments, faults=faults
            )

    def _check(self, faults: tuple[Injection, ...]) -> None:
        """Raises ConfigError where impairments and faults do not go with the fabric's switching."""
        both = dict(self._impairments)
        for link, placed in placed_impairments(faults).items():
            both[link] = (*both.get(link, ()), *placed)
        check_run(self.topology, both)

    def add_fault(self, text: str, *, dry_run: bool = False) -> FaultRecord:
        """Inject a fault now, written as for ``--fault``; in any thread, also while a function runs.

        It takes effect at the present model time, from the next chunk on, and holds on over fresh models until its ``for``
        is used up or it is cleared.  With ``dry_run`` nothing happens but that what would be hit is said.  Raises ConfigError.
        """
        book = self._faults
        with self._in_book:
            entry = book.propose(text)
            self._check((*book.injections(), *entry.injections))
            if not dry_run:
                doomed = [one for one in entry.injections if one.kind == "killed" and one.fault.at_ps is None]
                if doomed:
                    entry.took_effect({one.component: self._backend.kill(one.rank) for one in doomed})
                else:
                    entry.took_effect(self._backend.inject(entry.injections))
                book.add(entry)
            return book.record(entry)

    def faults(self) -> tuple[FaultRecord, ...]:
        """All faults of this session, scheduled ones first."""
        with self._in_book:
            return self._faults.records()

    def clear_faults(self, number: int | None = None) -> tuple[FaultRecord, ...]:
        """End the fault of that number, or all, now and for good; what is decided stays.  In any thread.  Raises ConfigError."""
        book = self._faults
        with self._in_book:
            entries = book.chosen(number)
            for entry in entries:
                entry.ends(self._backend.lift(entry.number))
            return tuple(book.record(entry) for entry in entries)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run ``function(rank, *args)`` on every living rank; their results, in rank order.

        Model time goes on from run to run: a run starts once all is at rest that the one before has left under way (credits,
        acknowledgements, timers), the same under both drivers.
        After a failure the next run starts on a fresh model; ranks whose actors died are left out of it, and of the list.

        Raises RankFailed (with the rank and its traceback) when a function raised, and
        CollectiveMismatch, Deadlock, RankLeft, Stalled or PeerLost.
        """
        if self._closed:
            raise EmuError("the session is closed; open another")
        if self._running:
            raise EmuError("this session is already running a function; run them one after the other, or open another session")
        if self._broken:
            self.begin()
        members = self.ranks
        self._check_reachable(members)
        self._runs += 1
        self._running = True
        try:
            results = self._backend.run(function, args, members, self._runs)
        except BaseException as error:
            self._broken = True
            self._failure = error if isinstance(error, EmuError) else None
            raise
        finally:
            self._running = False
        return [results[rank] for rank in members]

    def _check_reachable(self, members: tuple[int, ...]) -> None:
        lost = self._backend.lost_nodes()
        if not members:
            raise PeerLost("no accelerator of this session is alive; close it and start another", ())
        if not lost:
            return
        topology = self.topology
        spread = topology.router.spread
        for source in members:
            for target in members:
                if source != target:
                    for flow in range(spread):
                        for link in topology.route(topology.ranks[source], topology.ranks[target], flow):
                            if topology.links[link].target in lost:
                                name = topology.nodes[topology.links[link].target].name
                                raise PeerLost(
                                    f"{name} is lost and ranks {source} and {target} have no way round it; close the session",
                                    (name,),
                                )

    def choose_algorithm(
        self, collective: str, n_bytes: int, root: int = 0, selection: str = "auto", reduction: Reduction | None = None
    ) -> str:
        """What ``auto``, or another selection, stands for on this fabric, for S = ``n_bytes`` over all living ranks."""
        return self.chooser.choose(collective, n_bytes, self.ranks, root, selection, reduction)

    def counters(self) -> Counters:
        """What happened since ``begin``, over all actors."""
        parts = self._backend.counters()
        topology = self.topology
        links: dict[str, LinkStatistics] = {}
        by_node: dict[int, int] = {}
        for part in parts:
            for index, statistics in part.links.items():
                link = topology.links[index]
                links[link.name] = statistics
                by_node[link.source] = by_node.get(link.source, 0) + statistics.wire_bytes
        return Counters(
            order_violations=sum(part.order_violations for part in parts),
            order_weight_ps=sum(part.order_weight_ps for part in parts),
            transport_backpressure=sum(part.transport_backpressure for part in parts),
            largest_lateness_ps=max((part.largest_lateness_ps for part in parts), default=0),
            wire_bytes_per_rank_max=max((by_node.get(node, 0) for node in topology.ranks), default=0),
            frames=sum(statistics.frames for statistics in links.values()),
            wire_bytes=sum(statistics.wire_bytes for statistics in links.values()),
            payload_bytes=sum(statistics.payload_bytes for statistics in links.values()),
            events=sum(part.events for part in parts),
            socket_payload_bytes=sum(part.socket_payload_bytes for part in parts),
            links=links,
            stopped_s=self._backend.stopped_s(),
            congestion=congestion(topology, parts, self._backend.elapsed_ps()),
        )

    def congestion(self) -> CongestionReport:
        """What ports and adapters counted since ``begin``: ``print`` it for a summary, ask its ``findings()`` what it points to.

        Raises ConfigError on a fabric without ``switching``, whose buffers are infinite.
        """
        found = self.counters().congestion
        if found is None:
            raise ConfigError(f"{self.topology.name} has no switching, so nothing is queued, paused or dropped; give it one")
        return found

    def hops(self) -> list[tuple[int, int]]:
        """(model time in ps, payload bytes) of every frame and hop since ``begin``, with ``record_hops`` under simulate."""
        return self._backend.hops()

    def observe(self) -> Observation:
        """What a monitoring system sees since :meth:`begin`, and what was to be expected.  In any thread."""
        return observe(
            self.topology,
            self._backend.observed(),
            self._expectations,
            model=self._epoch,
            is_running=self._running,
            seed=self.seed,
            dilation=self.dilation if self.driver == "emulate" else 0.0,
            elapsed_ps=self._backend.elapsed_ps(),
            stopped_s=self._backend.stopped_s(),
            failure=self._failure,
        )

    def record(self) -> RunRecord:
        """All that was noted since :meth:`begin`, with ``record``: for ``emu.telemetry.attribution``, or to be saved."""
        if not self._is_recording:
            raise ConfigError("this session keeps no record; open it with record=True")
        counters = self.counters()
        return RunRecord.of(
            self.topology,
            self._backend.recorders(),
            driver=self.driver,
            seed=self.seed,
            dilation=self.dilation if self.driver == "emulate" else 0.0,
            marks=_marks(self.faults()),
            largest_lateness_ps=counters.largest_lateness_ps,
            order_violations=counters.order_violations,
            observed=self.observe(),
        )

    def metrics_text(self) -> str:
        """What Prometheus would scrape now, of all actors; see ``emu.telemetry.catalogue``.  Under simulate between runs."""
        from emu.telemetry.prometheus import Collector  # prometheus_client: only where metrics are wanted

        if self._closed:
            raise EmuError("the session is closed; open another")
        if self._collector is None:
            self._collector = Collector(self.topology, about=self._about, readings=self._backend.readings)
        return self._collector.text()

    def metrics_endpoints(self) -> tuple[str, ...]:
        """Where the exporters are, one for each node; empty without ``metrics``."""
        return tuple(f"http://{endpoint}/metrics" for endpoint in self._backend.metrics_endpoints().values())

    def process_ids(self) -> dict[str, int]:
        """Process id of each node's actor (of this process, under simulate)."""
        return self._backend.process_ids()

    def close(self) -> None:
        """End every actor, socket and file of the session.  May be called twice."""
        self._closed = True
        self._backend.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _marks(faults: tuple[FaultRecord, ...]) -> list[Mark]:
    found = []
    for fault in faults:
        for effect in fault.effects:
            found.append(Mark(effect.begin_ps, effect.component, fault.text))
            if effect.end_ps is not None:
                found.append(Mark(effect.end_ps, effect.component, f"end of {fault.text}"))
    return found


def _checked_dilation(dilation: float | str) -> float:
    try:
        value = float(dilation)
    except ValueError:
        raise ConfigError(f"dilation {dilation!r}: use auto, 0 (unpaced) or a number more than 0") from None
    if not 0 <= value < 1e12:
        raise ConfigError(f"dilation {dilation}: use auto, 0 (unpaced) or a number more than 0, below 1e12")
    return value


def _cautious_dilation(topology: Topology) -> float:
    """Room for every accelerator to send at full rate, and for a socket hop in the smallest latency."""
    out = topology.out_links()
    injection_bps = sum(topology.links[link].rate_bps for node in topology.ranks for link in out[node])
    by_rate = 2 * injection_bps / 8 / ASSUMED_HOST_BYTES_PER_S
    latency_ps = min((link.latency_ps for link in topology.links if link.latency_ps), default=PS_PER_SECOND)
    return max(1.0, by_rate, ASSUMED_HOP_S * PS_PER_SECOND / latency_ps)
