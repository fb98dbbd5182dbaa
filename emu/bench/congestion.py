"""What a benchmark prints and writes of a congestion report: comment lines below a table, and plain data for JSON.

The counters span one loop: its timed iterations, the warm-up before, the barriers around them, and a check's own call.
"""

from __future__ import annotations

from typing import Any

from emu.telemetry.congestion import CongestionReport, PortReport
from emu.telemetry.diagnosis import diagnose
from emu.units import format_bytes, format_time

WORST_PORTS = 3


def comment_lines(report: CongestionReport) -> list[str]:
    """Totals of a row, its worst ports, and what they point to."""
    found = report.totals()
    runs = "" if report.n_runs == 1 else f" over {report.n_runs} seeds"
    lines = [
        f"# Congestion in {format_time(report.elapsed_ps)} of model time{runs} (last row, out of place, with warm-up):",
        f"#   pauses {found['rx_pause']} frames, {found['rx_pause_transition']} transitions,"
        f" {format_time(report.pause_ps)}; xmit wait {format_time(report.wait_ps)}; pfcwd storms {found['pfcwd_storms']}",
        f"#   ecn marked {found['ecn_marked']}, cnp sent {found['np_cnp_sent']}, cnp handled {found['rp_cnp_handled']};"
        f" discards {report.discards}, trimmed {found['trimmed']}, link lost {found['link_lost']}, link retries"
        f" {found['link_retries']}",
        f"#   out of sequence {found['out_of_sequence']}, nacks {found['packet_seq_err']}, timeouts"
        f" {found['local_ack_timeout_err']}, duplicates {found['duplicate_request']},"
        f" retransmitted {format_bytes(report.retransmitted_bytes)}",
    ]
    lines += [f"#   port {_port(report, port)}" for port in report.worst_ports(WORST_PORTS)]
    return [*lines, *(f"#   verdict: {finding}" for finding in diagnose(report)), "#"]


def _port(report: CongestionReport, port: PortReport) -> str:
    queue = port.queue
    return (
        f"{port.link} priority {port.priority}: held {100 * report.held_share(port):.1f} %,"
        f" {queue.pause_transitions} pauses, marked {queue.marked_packets}, discards {queue.dropped_packets},"
        f" trimmed {queue.trimmed_packets}, longest queue {format_bytes(queue.peak_queue_bytes)}"
    )


def totals_document(report: CongestionReport) -> dict[str, Any]:
    """Totals and causes, for each side of a row."""
    causes = [{"cause": str(found.cause), "where": found.where, "evidence": found.evidence} for found in diagnose(report)]
    return {**report.totals(), "verdicts": causes}


def ports_document(report: CongestionReport) -> dict[str, Any]:
    """Every port that carried or held anything, and every adapter."""
    ports = [port for port in report.ports if port.queue.packets or port.held_ps or port.n_lost]
    return {
        "ports": [port.as_plain() for port in ports],
        "adapters": [adapter.as_plain() for adapter in report.adapters],
    }
