"""The table of ``emu compare``: words are never folded, and columns that say nothing are left out by name.

    size       bytes
    switching  the preset, with its changes as they were written
    algo       the algorithm, the same for all rows of a size
    median us  the model's time of one operation, until the last rank has it: over seeds, or over iterations with one seed
               (unpaced, dilation 0, it is the stopwatch's)
    p99 us     nearest rank over the same; ``max us`` where there are fewer than 100 values, of which it is the largest
    pauses us  time for which a port was paused: of the one where it was longest, with its name
    waits us   time for which a packet waited for a pause or credits while the wire was free: of the port where it was longest
    marks      packets marked by ECN
    drops      packets dropped, in switches and adapters
    resent     bytes that were sent again, end to end or by links
    trims      packets cut to their header
    cause      what the counters point to and where, see emu/telemetry/diagnosis.py
    late %     how much longer the stopwatch says than the model; - under simulate
    verdict    whether the host kept pace; - under simulate

pauses to trims are per call of the collective: what one loop counted, with its warm-up, over its calls; marks to trims are summed
over ports, which times must not be: many ports wait at once, and their sum would exceed the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emu.bench.compare import Compared, Comparison
from emu.telemetry.diagnosis import diagnose, places
from emu.units import format_bytes, microseconds

_LEFT: Final = ("size", "switching", "algo", "cause")
"""Columns of words."""
_ALWAYS: Final = ("size", "switching", "algo", "median us", "p99 us", "max us")
_FEWEST_FOR_P99: Final = 100
_NOTHING: Final = frozenset({"-", "0", "0.0", "0 B"})


def columns(found: Comparison) -> tuple[str, ...]:
    """Heads of all columns, those that say nothing among them."""
    few = all(len(one.times_ps) < _FEWEST_FOR_P99 for one in found.rows)
    tail = "max us" if few else "p99 us"
    counted = ("pauses us", "waits us", "marks", "drops", "resent", "trims")
    return "size", "switching", "algo", "median us", tail, *counted, "cause", "late %", "verdict"


def cells(one: Compared) -> tuple[str, ...]:
    """A row, by :func:`columns`."""
    congestion, n_calls = one.congestion, one.n_calls
    counted = ("-",) * 7
    if congestion is not None:
        paused, waiting = congestion.longest_pause(), congestion.longest_wait()
        counted = (
            "0" if paused is None else f"{_each(microseconds(paused.queue.pause_ps), n_calls)} {paused.link}",
            "0" if waiting is None else f"{_each(microseconds(waiting.queue.wait_ps), n_calls)} {waiting.link}",
            _each(congestion.marked_packets, n_calls),
            _each(congestion.discards, n_calls),
            format_bytes(-(-congestion.retransmitted_bytes // n_calls)),
            _each(congestion.trimmed_packets, n_calls),
            places(diagnose(congestion)),
        )
    return (
        format_bytes(one.row.size_bytes),
        one.switching,
        one.side.algorithm,
        f"{microseconds(one.median_ps):.2f}",
        f"{microseconds(one.p99_ps):.2f}",
        *counted,
        "-" if one.row.late is None else f"{100 * one.row.late:+.2f}",
        str(one.row.verdict),
    )


def _each(total: float, n_calls: int) -> str:
    """Per call; what is not 0 never looks like it."""
    if not total:
        return "0"
    each = total / n_calls
    return "<0.1" if each < 0.05 else f"{each:.1f}"


def table_lines(found: Comparison) -> list[str]:
    """The table, then what it leaves out, how the presets differ, and which were refused."""
    heads, rows = columns(found), [cells(one) for one in found.rows]
    kept = [number for number, head in enumerate(heads) if head in _ALWAYS or not {row[number] for row in rows} <= _NOTHING]
    lines = aligned([[row[number] for number in kept] for row in (heads, *rows)], [heads[number] in _LEFT for number in kept])
    lines.insert(1, "-" * max(map(len, lines)))
    left_out = [head for number, head in enumerate(heads) if number not in kept]
    if left_out:
        lines.append(f"(nothing in any row: {', '.join(left_out)})")
    lines.append("")
    width = max((len(name) for name, _ in found.differences), default=0)
    lines += [f"{name:<{width}}  {line}" for name, line in found.differences]
    lines += [f"skipped {name}: {reason}" for name, reason in found.refused]
    return lines


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart, without spaces at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if is_left else f"{cell:>{width}}" for cell, width, is_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
