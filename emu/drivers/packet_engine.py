"""PacketEngine: the engine of a fabric with a ``switching``.  Chunks become packets that queue, are paused, marked and lost.

The laws of :mod:`emu.drivers.engine` hold; its calendar has more ports, in this order at equal times:

    0 .. n_links              packets, by the link they arrive over
    n_links ..                credits of connections and loopback, by ranks
    submissions ..            what a rank asked for; its adapter's timers
    notices ..                words about a link, to its sender, then wake-ups of its port
    answers ..                words between ranks
    nodes ..                  a node's own timers

Whoever handles an event touches one node only, and what it does elsewhere is due a link's latency later at the earliest:
so processes that share a fabric need no other order than the calendar's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any, cast

from emu.balancing.base import Place, Policy
from emu.congestion.base import Line, ReceiverControl, SenderControl
from emu.drivers.blocked import Blocked, blocked_in, explain_blocked, explain_held_back
from emu.drivers.engine import Engine, ImpairmentTable
from emu.errors import Deadlock, Stalled
from emu.fabric.adapter import Adapter
from emu.fabric.counters import AdapterStatistics, QueueStatistics
from emu.fabric.device import endpoint
from emu.fabric.frame import Frame
from emu.fabric.link import LinkStatistics
from emu.fabric.next_links import NextLinks
from emu.fabric.pace import Pace
from emu.fabric.packet import Notice, NoticeKind, Packet
from emu.fabric.port import Port
from emu.fabric.queue_pair import SendQueuePair
from emu.fabric.switch import Switch
from emu.impairments.base import BaseImpairment
from emu.topologies.extensions import extension
from emu.topologies.graph import Topology
from emu.topologies.switching import TrafficClass
from emu.units import FOREVER_PS, duration_ps, format_time

MOST_SILENT_TIMEOUTS = 64
"""A queue pair gives up after so many timeouts without a new acknowledgement, as adapters do after their retry count."""


class PacketEngine(Engine):
    """Ports, switches and adapters of ``hosted`` nodes (None: all)."""

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int,
        impairments: ImpairmentTable,
        hosted: frozenset[int] | None = None,
        payload: bool = True,
    ) -> None:
        super().__init__(topology, seed=seed, impairments={}, hosted=frozenset(), payload=payload)
        self._hosted = hosted
        switching = topology.switching
        assert switching is not None
        self.switching = switching
        self.seed = seed
        n, n_links = topology.n_ranks, len(topology.links)
        self._notices = self._submissions + n
        self._wakes = self._notices + n_links
        self._answers = self._wakes + n_links
        self._nodes = self._answers + n * n
        nodes = range(len(topology.nodes)) if hosted is None else sorted(hosted)
        self._hosts_all = len(nodes) == len(topology.nodes)
        self._rank_node = topology.ranks
        self._targets = [link.target for link in topology.links]
        back = [index if way is None else way for index, way in enumerate(topology.reverse_links())]
        self._reverse_ps = [max(1, topology.links[way].latency_ps) for way in back]
        self._next_links = NextLinks(topology, seed=seed, impairments=impairments, reroute_ps=switching.reroute_ps)
        self._lines: dict[tuple[int, int], Line] = {}
        self.is_stuck = False
        """Whether nothing but timers is left while ports wait for each other in a cycle."""
        self._controls = {c.name: extension("congestion", "congestion_control", c.control) for c in switching.classes}
        balancing = extension("balancing", "balancing", switching.balancing)
        out: list[list[int]] = topology.out_links()
        into: list[dict[int, Any]] = [{} for _ in topology.nodes]
        for index, link in enumerate(topology.links):
            into[link.target][index] = link
        self.ports: dict[int, Port] = {}
        self.switches: dict[int, Switch] = {}
        self.adapters: dict[int, Adapter] = {}
        names = [topology.nodes[node].name for node in topology.ranks]
        rank_of = {node: rank for rank, node in enumerate(topology.ranks)}
        for node in nodes:
            ports = {
                index: Port(
                    link=topology.links[index],
                    index=index,
                    switching=switching,
                    wire=self,
                    seed=seed,
                    impairments=impairments.get(index, ()),
                    delay_counts=self._delays_of(index),
                )
                for index in out[node]
            }
            self.ports.update(ports)
            place = Place(topology=topology, node=node, seed=seed)
            policy = cast(Policy, balancing.build(place, dict(switching.balancing_parameters)))
            switch = self.switches[node] = Switch(
                node=node,
                name=topology.nodes[node].name,
                switching=switching,
                ports=ports,
                ingress=into[node],
                policy=policy,
                plane=self,
                seed=seed,
            )
            rank = rank_of.get(node)
            if rank is not None:
                self.endpoints[rank] = endpoint(self, topology, rank)
                self.adapters[rank] = Adapter(
                    rank=rank,
                    names=names,
                    switching=switching,
                    switch=switch,
                    ingress=into[node],
                    plane=self,
                    drain_rate_bps=topology.nodes[node].drain_rate_bps,
                    payload=payload,
                    pause_storm=topology.nodes[node].pause_storm,
                )
        self._port_wakes = {index: port.wake for index, port in self.ports.items()}

    # -- the loop ------------------------------------------------------------------------------

    def progress(self) -> int:
        """Packets that were of use to their receivers: timers and what is sent in vain do not count."""
        return super().progress() if self.injector.has_traffic else sum(a.n_accepted for a in self.adapters.values())

    def held_back(self) -> str:
        return explain_held_back(self.adapters.values(), self.now_ps)

    def step(self) -> None:
        """Handle the first event."""
        now_ps, port, _, item = heappop(self.calendar)
        self.now_ps = now_ps
        self.events += 1
        kind = type(item)
        if kind is Packet:
            node = self._targets[port]
            if self._rank_node[item.frame.target_rank] == node:
                self.adapters[item.frame.target_rank].receive(item, port, now_ps)
            else:
                self.switches[node].receive(item, port, now_ps)
        elif kind is Notice:
            self._noticed(item, now_ps)
        elif kind is Frame:
            self.endpoints[item.target_rank].receive(item, now_ps)
        else:
            item(now_ps)

    def _noticed(self, notice: Notice, now_ps: int) -> None:
        if notice.link < 0:
            to_rank = notice.target_rank if notice.kind is NoticeKind.REQUEST else notice.source_rank
            self.adapters[to_rank].answered(notice, now_ps)
        elif notice.kind is NoticeKind.PAUSE:
            self.ports[notice.link].pause(notice.queue, bool(notice.value), now_ps)
        else:
            self.ports[notice.link].grant(notice.queue, notice.value, now_ps)

    # -- what endpoints ask for ----------------------------------------------------------------

    def inject(self, frame: Frame, now_ps: int) -> int | None:
        """Hand a chunk to its rank's adapter, which tells later when it has left."""
        frame.is_whole(now_ps)
        self._note_sent(frame)
        if frame.source_rank == frame.target_rank:
            self._at_connection(now_ps, frame)
            return now_ps
        self.adapters[frame.source_rank].send(frame, frame.traffic_class, now_ps)
        return None

    # -- what ports ask for (fabric.port.Wire) ---------------------------------------------------

    def transmit(self, packet: Packet, link: int) -> None:
        if self.hops is not None:
            self.hops.append((self.now_ps, packet.payload_bytes))
        self._note(packet, link)
        self._arrives(packet, link, self._due_ps(packet, link))

    def _note(self, packet: Packet, link: int) -> None:
        if self.recorder is not None:
            self.recorder.packet_hop(packet, link, self.now_ps, self.ports[link].holds_bytes)

    def _arrives(self, packet: Packet, link: int, due_ps: int) -> None:
        self._sequence += 1
        heappush(self.calendar, (due_ps, link, self._sequence, packet))

    def _due_ps(self, packet: Packet, link: int) -> int:
        """When a packet that comes over ``link`` is an event: its head's arrival, at its target its tail's."""
        at_end = self._rank_node[packet.frame.target_rank] == self._targets[link]
        return packet.tail_ps if at_end else packet.head_ps

    def wake_port(self, link: int, time_ps: int) -> None:
        if time_ps >= FOREVER_PS:
            return
        self._sequence += 1
        heappush(self.calendar, (time_ps, self._wakes + link, self._sequence, self._port_wakes[link]))

    # -- what switches and adapters ask for ------------------------------------------------------

    def notify_link(self, notice: Notice, now_ps: int) -> None:
        due_ps = now_ps + self._reverse_ps[notice.link]
        if notice.kind is NoticeKind.PAUSE:
            due_ps += self.switching.pause_response_ps
        self.forward_notice(notice, self._notices + notice.link, due_ps)

    def notify_rank(self, notice: Notice, to_rank: int, from_rank: int, now_ps: int) -> None:
        due_ps = now_ps + self.way_ps(from_rank, to_rank)
        self.forward_notice(notice, self._answers + from_rank * self.topology.n_ranks + to_rank, due_ps)

    def forward_notice(self, notice: Notice, port: int, due_ps: int) -> None:
        """Here, in the same engine, the whole way is one event."""
        if self.hops is not None:
            n_hops = 1 if notice.link >= 0 else len(self.path(*divmod(port - self._answers, self.topology.n_ranks), 0))
            self.hops.extend([(self.now_ps, 0)] * n_hops)
        self._sequence += 1
        heappush(self.calendar, (due_ps, port, self._sequence, notice))

    def call_rank(self, rank: int, time_ps: int, action: Callable[[int], None]) -> None:
        self.call_at(time_ps, rank, action)

    def call_node(self, node: int, time_ps: int, action: Callable[[int], None]) -> None:
        self._sequence += 1
        heappush(self.calendar, (time_ps, self._nodes + node, self._sequence, action))

    def deliver(self, frame: Frame, packet: Packet, now_ps: int) -> None:
        if self.recorder is not None:
            self.recorder.assemble(packet, now_ps)
        self.endpoints[frame.target_rank].receive(frame, now_ps)

    def left(self, frame: Frame, now_ps: int) -> None:
        self.endpoints[frame.source_rank].left(frame, now_ps)

    def control(self, traffic_class: TrafficClass, source_rank: int, target_rank: int) -> tuple[SenderControl, ReceiverControl]:
        line = self._line(source_rank, target_rank)
        halves = self._controls[traffic_class.name].build(line, dict(traffic_class.control_parameters))
        return cast("tuple[SenderControl, ReceiverControl]", halves)

    def _line(self, source_rank: int, target_rank: int) -> Line:
        key = source_rank, target_rank
        found = self._lines.get(key)
        if found is None:
            links = [self.topology.links[link] for link in self.path(source_rank, target_rank, 0)] or list(self.topology.links)
            quantum = self.switching.quantum_bytes
            there_ps = sum(link.latency_ps for link in links)
            back_ps = self.latency_ps(target_rank, source_rank)
            rate_bps = min(link.rate_bps for link in links)
            hop_ps = duration_ps(quantum, rate_bps)
            found = self._lines[key] = Line(
                rate_bps=rate_bps,
                round_trip_ps=there_ps + back_ps + hop_ps,
                quantum_bytes=quantum,
                mtu_bytes=links[0].mtu_bytes,
            )
        return found

    def candidates(self, node: int, target_rank: int, now_ps: int) -> tuple[int, ...]:
        return self._next_links.of(node, target_rank, now_ps)

    def stalled(self, link: int, now_ps: int, end_ps: int) -> None:
        """What waits for a link that goes down is led another way once that is known."""
        due_ps = self._next_links.avoided_ps(link, now_ps, end_ps)
        if due_ps is not None:
            self.call_node(self.topology.links[link].source, due_ps, partial(self._divert, link))

    def _divert(self, link: int, now_ps: int) -> None:
        node = self.topology.links[link].source
        self.switches[node].divert(link, now_ps)
        for adapter in self.adapters.values():
            if self._rank_node[adapter.rank] == node:
                adapter.divert(now_ps)

    def timed_out(self, rank: int, pair: SendQueuePair) -> None:
        """Timers alone would go on for ever: end the run where ports wait in a cycle and nothing else is left, or where a
        queue pair has tried too often."""
        if pair.silent_timeouts >= MOST_SILENT_TIMEOUTS:
            traffic_class = self.switching.classes[pair.queue]
            self.failure = Stalled(
                f"rank {rank} gives up on rank {pair.peer}: {pair.silent_timeouts} timeouts of"
                f" {format_time(traffic_class.timeout_ps)} in a row, and nothing more was acknowledged; see what loses or holds"
                f" class {traffic_class.name!r} there, or raise its timeout{self.held_back()}"
            )
            self.interrupted = True
        if not self._hosts_all:
            return
        if any(type(item) is Packet or (type(item) is Notice and item.link >= 0) for _, _, _, item in self.calendar):
            return
        if any(port.is_busy for port in self.ports.values()):
            return
        if explain_blocked(blocked_in(self.ports, for_ever=True), self.topology) is not None:
            self.is_stuck = self.interrupted = True

    def blocked(self, *, for_ever: bool) -> Blocked:
        """What holds back the ports of hosted nodes, see :func:`emu.drivers.blocked.blocked_in`."""
        return blocked_in(self.ports, self.adapters.values(), for_ever=for_ever)

    def deadlock(self) -> Deadlock | None:
        """The cycle of ports that wait for each other, once nothing moves any more."""
        return explain_blocked(blocked_in(self.ports, for_ever=self.is_stuck), self.topology)

    # -- what the injector asks for --------------------------------------------------------------

    def decided_ps(self, link: int) -> int:
        return self.ports[link].decided_ps if link in self.ports else 0

    def impair(self, link: int, impairment: BaseImpairment, plane: int | None) -> int:
        place = self._next_links.impair(link, impairment, plane)
        if link in self.ports:
            self.ports[link].impair(impairment, plane)
        return place

    def replace(self, link: int, place: int, impairment: BaseImpairment) -> None:
        self._next_links.replace(link, place, impairment)
        if link in self.ports:
            self.ports[link].replace(place, impairment)

    def drain(self, rank: int) -> Pace:
        return self.adapters[rank].drain

    # -- what is known ---------------------------------------------------------------------------

    def link_statistics(self) -> dict[int, LinkStatistics]:
        return {index: port.statistics() for index, port in self.ports.items()}

    def queue_statistics(self) -> dict[int, tuple[QueueStatistics, ...]]:
        return {index: port.queue_statistics(self.now_ps) for index, port in self.ports.items()}

    def queue_bytes(self) -> dict[int, tuple[int, ...]]:
        n = len(self.switching.classes)
        return {index: tuple(sum(port.queued_bytes[c::n]) for c in range(n)) for index, port in self.ports.items()}

    def adapter_statistics(self) -> dict[int, AdapterStatistics]:
        return {rank: adapter.statistics() for rank, adapter in self.adapters.items()}
