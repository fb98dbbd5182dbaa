"""What a benchmark prints and writes of a congestion report: comment lines below a table, and plain data for JSON.

The counters span one loop: its timed iterations, the warm-up before, the barriers around them, and a check's own call.
"""

from __future__ import annotations

from typing import Any

from emu.telemetry.congestion import CongestionReport


def comment_lines(report: CongestionReport) -> list[str]:
    """Totals of a row, its worst ports, and what they point to."""
    first, *rest = str(report).splitlines()
    return [f"# {first.removesuffix(':')} (last row, out of place, with warm-up):", *(f"# {line}" for line in rest), "#"]


def totals_document(report: CongestionReport) -> dict[str, Any]:
    """Totals and causes, for each side of a row."""
    causes = [{"cause": str(found.cause), "where": found.where, "evidence": found.evidence} for found in report.findings()]
    return {**report.totals(), "verdicts": causes}


def ports_document(report: CongestionReport) -> dict[str, Any]:
    """Every port that carried or held anything, and every adapter."""
    ports = [port for port in report.ports if port.queue.packets or port.held_ps or port.n_lost]
    return {
        "ports": [port.as_plain() for port in ports],
        "adapters": [adapter.as_plain() for adapter in report.adapters],
    }
