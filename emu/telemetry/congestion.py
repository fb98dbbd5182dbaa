"""Congestion: what the ports and adapters of a fabric with a ``switching`` counted, in one report.

Plain names are those of the hardware's counters, for all ports of a kind alike:

    rx_pause, rx_pause_duration_us, rx_pause_transition     pause frames that stop this port (mlx5, ``ethtool -S``)
    tx_pause, tx_pause_duration_us                          the same, of those that its node sent to the other end
    port_xmit_wait_us                                       data to send and a free wire, but no credit or a pause (PortXmitWait)
    ecn_marked, np_ecn_marked_roce_packets                  marked where they queued; received with the mark
    np_cnp_sent, rp_cnp_handled                             congestion notifications (mlx5 hardware counters)
    out_of_sequence, packet_seq_err, duplicate_request      as mlx5's; packet_seq_err counts NACKs, at the receiver that sent them
    local_ack_timeout_err, retransmitted_packets / _bytes   timeouts, and what was sent again end to end
    discards, discarded_bytes, trimmed                      buffer full: dropped, or cut to the header
    rx_discards                                             dropped by an adapter whose receive buffer was full
    pfcwd_storms, pfcwd_restored, pfcwd_dropped             SONiC's PFC watchdog
    link_lost, link_retries, link_retry_bytes               lost to a damaged link, repeated by the link (LLR)

Law: in a report pauses received and sent are the same frames, so their totals are equal; durations of several
ports add up, of a port's lanes the longest counts.  There is no receiver-not-ready: a receive is never missing, its
bytes wait.

Sources: Linux kernel, Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; InfiniBand
Architecture Specification 1, PortXmitWait; SONiC, PFC watchdog design.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from emu.fabric.counters import AdapterStatistics, QueueStatistics
from emu.fabric.link import LinkStatistics
from emu.topologies.graph import NodeKind, Topology
from emu.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from emu.telemetry.diagnosis import Finding

Plain = dict[str, int | float | str]
_S = TypeVar("_S", QueueStatistics, AdapterStatistics)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReport:
    """One port and traffic class: ``link`` leaves ``node`` for ``peer``.  ``sent_*``: pauses that ``node`` sent to ``peer``."""

    link: str
    node: str
    peer: str
    peer_is_accelerator: bool
    priority: int
    rate_bps: int
    queue: QueueStatistics
    sent_pause_frames: int = 0
    sent_pause_ps: int = 0
    node_is_accelerator: bool = False
    busy_ps: int = 0
    """Time for which the link sent, for all its classes together."""
    wire_bytes: int = 0
    """What it sent in that time, headers included."""

    @property
    def held_ps(self) -> int:
        """Time for which it was not allowed to send: paused, or without credits."""
        return max(self.queue.pause_ps, self.queue.wait_ps)

    @property
    def n_lost(self) -> int:
        """Packets dropped or trimmed."""
        return self.queue.dropped_packets + self.queue.trimmed_packets + self.queue.watchdog_packets

    def as_plain(self) -> Plain:
        queue = self.queue
        return {
            "link": self.link,
            "class": queue.class_name,
            "priority": self.priority,
            "packets": queue.packets,
            "payload_bytes": queue.payload_bytes,
            "rx_pause": queue.pause_frames,
            "rx_pause_duration_us": microseconds(queue.pause_ps),
            "rx_pause_transition": queue.pause_transitions,
            "tx_pause": self.sent_pause_frames,
            "tx_pause_duration_us": microseconds(self.sent_pause_ps),
            "port_xmit_wait_us": microseconds(queue.wait_ps),
            "ecn_marked": queue.marked_packets,
            "discards": queue.dropped_packets,
            "discarded_bytes": queue.dropped_bytes,
            "trimmed": queue.trimmed_packets,
            "pfcwd_storms": queue.watchdog_events,
            "pfcwd_restored": queue.watchdog_restorations,
            "pfcwd_dropped": queue.watchdog_packets,
            "peak_queue_bytes": queue.peak_queue_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterReport:
    """One rank's adapter.  ``line_rate_bps``: of its fastest incoming link; ``drain_rate_bps``: None takes in at once."""

    rank: int
    line_rate_bps: int
    drain_rate_bps: int | None
    counted: AdapterStatistics

    @property
    def is_slow(self) -> bool:
        """Whether it takes data in more slowly than a link can bring it."""
        return self.drain_rate_bps is not None and self.drain_rate_bps < self.line_rate_bps

    def as_plain(self) -> Plain:
        counted = self.counted
        return {
            "rank": self.rank,
            "name": counted.name,
            "tx_pause_transition": counted.pauses_sent,
            "np_cnp_sent": counted.cnp_sent,
            "rp_cnp_handled": counted.cnp_received,
            "np_ecn_marked_roce_packets": counted.marked_packets,
            "out_of_sequence": counted.out_of_sequence,
            "packet_seq_err": counted.nacks_sent,
            "duplicate_request": counted.duplicates,
            "local_ack_timeout_err": counted.timeouts,
            "retransmitted_packets": counted.resent_packets,
            "retransmitted_bytes": counted.resent_bytes,
            "trimmed_received": counted.trimmed_packets,
            "rx_discards": counted.discarded_packets,
            "peak_receive_bytes": counted.peak_receive_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CongestionReport:
    """All ports (by link, then class) and adapters (by rank) of one run.  ``elapsed_ps``: its model time so far; over several
    runs (:func:`merged`) the sum."""

    elapsed_ps: int
    ports: tuple[PortReport, ...]
    adapters: tuple[AdapterReport, ...]
    link_lost: int
    link_retries: int
    link_retry_bytes: int
    n_runs: int = 1

    def longest_pause(self) -> PortReport | None:
        """The port that was paused longest; None where none was."""
        return max((port for port in self.ports if port.queue.pause_ps), key=lambda port: port.queue.pause_ps, default=None)

    def longest_wait(self) -> PortReport | None:
        """The port that waited longest; None where none did."""
        return max((port for port in self.ports if port.queue.wait_ps), key=lambda port: port.queue.wait_ps, default=None)

    @property
    def pause_ps(self) -> int:
        """Summed over ports."""
        return sum(port.queue.pause_ps for port in self.ports)

    @property
    def wait_ps(self) -> int:
        """Summed over ports."""
        return sum(port.queue.wait_ps for port in self.ports)

    @property
    def marked_packets(self) -> int:
        return sum(port.queue.marked_packets for port in self.ports)

    @property
    def discards(self) -> int:
        """Packets dropped for want of room, in switches and adapters."""
        dropped = sum(port.queue.dropped_packets for port in self.ports)
        return dropped + sum(adapter.counted.discarded_packets for adapter in self.adapters)

    @property
    def trimmed_packets(self) -> int:
        return sum(port.queue.trimmed_packets for port in self.ports)

    @property
    def retransmitted_bytes(self) -> int:
        """Sent again: end to end, and by links."""
        return sum(adapter.counted.resent_bytes for adapter in self.adapters) + self.link_retry_bytes

    def totals(self) -> Plain:
        """Sums over ports and adapters, by the module's names."""
        queues = [port.queue for port in self.ports]
        counted = [adapter.counted for adapter in self.adapters]
        return {
            "elapsed_us": microseconds(self.elapsed_ps),
            "rx_pause": sum(queue.pause_frames for queue in queues),
            "rx_pause_duration_us": microseconds(self.pause_ps),
            "rx_pause_transition": sum(queue.pause_transitions for queue in queues),
            "tx_pause": sum(port.sent_pause_frames for port in self.ports),
            "port_xmit_wait_us": microseconds(self.wait_ps),
            "ecn_marked": self.marked_packets,
            "np_ecn_marked_roce_packets": sum(one.marked_packets for one in counted),
            "np_cnp_sent": sum(one.cnp_sent for one in counted),
            "rp_cnp_handled": sum(one.cnp_received for one in counted),
            "out_of_sequence": sum(one.out_of_sequence for one in counted),
            "packet_seq_err": sum(one.nacks_sent for one in counted),
            "duplicate_request": sum(one.duplicates for one in counted),
            "local_ack_timeout_err": sum(one.timeouts for one in counted),
            "retransmitted_packets": sum(one.resent_packets for one in counted),
            "retransmitted_bytes": sum(one.resent_bytes for one in counted),
            "discards": sum(queue.dropped_packets for queue in queues),
            "discarded_bytes": sum(queue.dropped_bytes for queue in queues),
            "rx_discards": sum(one.discarded_packets for one in counted),
            "trimmed": self.trimmed_packets,
            "pfcwd_storms": sum(queue.watchdog_events for queue in queues),
            "pfcwd_restored": sum(queue.watchdog_restorations for queue in queues),
            "pfcwd_dropped": sum(queue.watchdog_packets for queue in queues),
            "link_lost": self.link_lost,
            "link_retries": self.link_retries,
            "link_retry_bytes": self.link_retry_bytes,
        }

    def worst_ports(self, most: int = 3) -> tuple[PortReport, ...]:
        """Ports that lost packets, were held or marked: by packets lost, then time held, then marks."""
        telling = [port for port in self.ports if port.n_lost or port.held_ps or port.queue.marked_packets]
        telling.sort(key=lambda port: (-port.n_lost, -port.held_ps, -port.queue.marked_packets, port.link))
        return tuple(telling[:most])

    def held_share(self, port: PortReport) -> float:
        """Part of the time for which a port was held, 0 to 1: what lasts on after the last rank's end does not make it more."""
        return min(1.0, port.held_ps / self.elapsed_ps) if self.elapsed_ps else 0.0

    def findings(self) -> tuple[Finding, ...]:
        """What the counters point to: :func:`emu.telemetry.diagnosis.diagnose`."""
        from emu.telemetry.diagnosis import diagnose  # which reads reports

        return diagnose(self)

    def __str__(self) -> str:
        """A summary of some lines: totals, the three worst ports, and the causes."""
        found = self.totals()
        runs = "" if self.n_runs == 1 else f" over {self.n_runs} seeds"
        lines = [
            f"Congestion in {format_time(self.elapsed_ps)} of model time{runs}:",
            f"  pauses {found['rx_pause']} frames, {found['rx_pause_transition']} transitions,"
            f" {format_time(self.pause_ps)} over all ports; xmit wait {format_time(self.wait_ps)} over all ports; pfcwd storms"
            f" {found['pfcwd_storms']}",
            f"  ecn marked {found['ecn_marked']}, cnp sent {found['np_cnp_sent']}, cnp handled {found['rp_cnp_handled']};"
            f" discards {self.discards}, trimmed {found['trimmed']}, link lost {found['link_lost']}, link retries"
            f" {found['link_retries']}",
            f"  out of sequence {found['out_of_sequence']}, nacks {found['packet_seq_err']}, timeouts"
            f" {found['local_ack_timeout_err']}, duplicates {found['duplicate_request']},"
            f" retransmitted {format_bytes(self.retransmitted_bytes)}",
        ]
        lines += [f"  port {self._told(port)}" for port in self.worst_ports()]
        return "\n".join([*lines, *(f"  cause: {finding}" for finding in self.findings())])

    def _told(self, port: PortReport) -> str:
        queue = port.queue
        return (
            f"{port.link} priority {port.priority}: held {100 * self.held_share(port):.1f} %,"
            f" {queue.pause_transitions} pauses, marked {queue.marked_packets}, discards {queue.dropped_packets},"
            f" trimmed {queue.trimmed_packets}, longest queue {format_bytes(queue.peak_queue_bytes)}"
        )


def collect(
    topology: Topology,
    *,
    queues: Mapping[int, Sequence[QueueStatistics]],
    adapters: Mapping[int, AdapterStatistics],
    links: Mapping[int, LinkStatistics],
    elapsed_ps: int,
) -> CongestionReport:
    """One report from what all engines of a run counted: queues and links by link, adapters by rank."""
    switching = topology.switching
    assert switching is not None
    names = [node.name for node in topology.nodes]
    paused_by: dict[int, list[int]] = {}  # by link, those whose pauses go over it
    for index, back in enumerate(topology.reverse_links()):
        if back is not None:
            paused_by.setdefault(back, []).append(index)
    ports = []
    for index in sorted(queues):
        link, sent = topology.links[index], links.get(index)
        paused = [queues[other] for other in paused_by.get(index, ()) if other in queues]
        for number, queue in enumerate(queues[index]):
            ports.append(
                PortReport(
                    link=link.name,
                    node=names[link.source],
                    peer=names[link.target],
                    peer_is_accelerator=topology.nodes[link.target].kind is NodeKind.ACCELERATOR,
                    priority=switching.classes[number].priority,
                    rate_bps=link.rate_bps,
                    queue=queue,
                    sent_pause_frames=sum(by_class[number].pause_frames for by_class in paused),
                    sent_pause_ps=sum(by_class[number].pause_ps for by_class in paused),
                    node_is_accelerator=topology.nodes[link.source].kind is NodeKind.ACCELERATOR,
                    busy_ps=sent.busy_ps if sent is not None else 0,
                    wire_bytes=sent.wire_bytes if sent is not None else 0,
                )
            )
    line_bps: dict[int, int] = {}
    for link in topology.links:
        line_bps[link.target] = max(line_bps.get(link.target, 0), link.rate_bps)
    lost = sum(link.lost_packets for link in links.values())
    return CongestionReport(
        elapsed_ps=elapsed_ps,
        ports=tuple(ports),
        adapters=tuple(
            AdapterReport(
                rank=rank,
                line_rate_bps=line_bps.get(topology.ranks[rank], 0),
                drain_rate_bps=topology.nodes[topology.ranks[rank]].drain_rate_bps,
                counted=adapters[rank],
            )
            for rank in sorted(adapters)
        ),
        link_lost=0 if switching.link_retry else lost,
        link_retries=lost if switching.link_retry else 0,
        link_retry_bytes=sum(link.resent_bytes for link in links.values()),
    )


def merged(reports: Iterable[CongestionReport]) -> CongestionReport | None:
    """Several runs of one fabric as one report: counts and times are summed, peaks are the largest; None of none."""
    all_of = list(reports)
    if len(all_of) < 2:
        return all_of[0] if all_of else None
    first = all_of[0]
    return replace(
        first,
        elapsed_ps=sum(one.elapsed_ps for one in all_of),
        ports=tuple(
            replace(
                same[0],
                queue=_summed([port.queue for port in same]),
                sent_pause_frames=sum(port.sent_pause_frames for port in same),
                sent_pause_ps=sum(port.sent_pause_ps for port in same),
                busy_ps=sum(port.busy_ps for port in same),
                wire_bytes=sum(port.wire_bytes for port in same),
            )
            for same in zip(*(one.ports for one in all_of), strict=True)
        ),
        adapters=tuple(
            replace(same[0], counted=_summed([adapter.counted for adapter in same]))
            for same in zip(*(one.adapters for one in all_of), strict=True)
        ),
        link_lost=sum(one.link_lost for one in all_of),
        link_retries=sum(one.link_retries for one in all_of),
        link_retry_bytes=sum(one.link_retry_bytes for one in all_of),
        n_runs=sum(one.n_runs for one in all_of),
    )


def _summed(same: Sequence[_S]) -> _S:
    """Field by field: words of the first, the largest of peaks, sums of the rest."""
    values: dict[str, Any] = {}
    for field in fields(same[0]):
        found = [getattr(one, field.name) for one in same]
        if not isinstance(found[0], str):
            values[field.name] = max(found) if field.name.startswith("peak_") else sum(found)
    return replace(same[0], **values)
