"""``emu explain``: where the time of a recorded run went, as plain tables.

A call's time is from its start on, as in the bench's table; what it queued behind the calls before it is told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from emu.bench.compare_table import aligned
from emu.bench.runner import EXIT_OK
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.fabric.account import CAUSES
from emu.fabric.recorder import Called
from emu.telemetry.attribution import Attribution, Part
from emu.telemetry.record import RunRecord, load_record
from emu.units import format_bytes, format_time

SHORT: Final = {"serialisation": "serial", "propagation": "propag", "retransmission": "retrans"}
"""Heads of the list, which is to fit 120 columns."""
MOST_CALLS: Final = 64
"""Lines of the list of calls."""


def explain(path: Path, *, call: int | None = None, rank: int | None = None, terminal: Terminal | None = None) -> int:
    """Print a record's calls with the causes of their time, or the critical path of one.  Raises ConfigError."""
    terminal = terminal or Terminal()
    record = load_record(path)
    attribution = Attribution(record)
    terminal.lines(*_heading(record))
    if call is None:
        terminal.lines(*_calls_table(attribution, rank))
    else:
        terminal.lines(*_path_table(attribution, _chosen(attribution, call, rank)))
    return EXIT_OK


def _heading(record: RunRecord) -> list[str]:
    host = f"host at most {format_time(record.largest_lateness_ps)} late" if record.driver == "emulate" else "no host time in it"
    lines = [f"{record.fabric}, driver {record.driver}, seed {record.seed}: {len(record.calls)} calls, {host}"]
    if record.n_left_out:
        lines.append(f"{record.n_left_out} events were left out: the record was full, later calls may be incomplete")
    lines += [f"{format_time(mark.time_ps)}  {mark.component}: {mark.text}" for mark in record.marks]
    return [*lines, ""]


def _chosen(attribution: Attribution, number: int, rank: int | None) -> Called:
    """The ``number``-th call of a rank; of the one that took longest over it, where none is named."""
    if rank is None:
        ranks = sorted({call.rank for call in attribution.record.calls})
        calls = [of_rank[number] for each in ranks if 0 <= number < len(of_rank := attribution.calls(each))]
        if calls:
            return max(calls, key=lambda call: (call.completed_ps - call.started_ps, -call.rank))
        raise ConfigError(f"--call {number}: no rank of the record has so many calls; emu explain RECORD lists them")
    of_rank = attribution.calls(rank)
    if not 0 <= number < len(of_rank):
        raise ConfigError(f"--call {number}: rank {rank} has calls 0 to {len(of_rank) - 1} in this record")
    return of_rank[number]


def _calls_table(attribution: Attribution, rank: int | None) -> list[str]:
    ranks = sorted({call.rank for call in attribution.record.calls}) if rank is None else [rank]
    n_calls = max((len(attribution.calls(each)) for each in ranks), default=0)
    chosen = [(number, _chosen(attribution, number, rank)) for number in range(min(n_calls, MOST_CALLS))]
    splits = [attribution.split_ps(_started(call)) for _, call in chosen]
    queued = any(call.started_ps > call.submitted_ps for _, call in chosen)
    causes = [cause for cause in range(len(CAUSES)) if any(split[cause] for split in splits)]
    rows = [
        [
            *("call", "collective", "size", "rank", "time", "mostly"),
            *(SHORT.get(CAUSES[cause], CAUSES[cause]) for cause in causes),
            *("skew", "last", *["queued"] * queued),
        ]
    ]
    for (number, call), split in zip(chosen, splits, strict=True):
        skew_ps = call.last_start_ps - call.first_start_ps
        rows.append(
            [
                str(number),
                call.collective,
                format_bytes(call.n_bytes),
                str(call.rank),
                format_time(call.completed_ps - call.started_ps),
                _mostly(attribution.parts(_started(call))),
                *(_share(split[cause], sum(split)) for cause in causes),
                format_time(skew_ps),
                str(call.last_rank) if skew_ps else "-",
                *[format_time(call.started_ps - call.submitted_ps)] * queued,
            ]
        )
    lines = aligned(rows, [head in ("collective", "mostly") for head in rows[0]])
    if n_calls > MOST_CALLS:
        lines.append(f"(and {n_calls - MOST_CALLS} more; --call N shows one)")
    which = "of each call the rank that took longest" if rank is None else f"rank {rank}"
    behind = ["queued: behind the calls before it, and not in its time"] * queued
    where = "mostly: the link or rank where most of its time went"
    return [*lines, "", f"{which}; --call N prints its critical path", where, *behind]


def _mostly(parts: Sequence[Part]) -> str:
    """The place that took most of a call's time, all causes together, with its share: ``a3->s0 68%``."""
    spent: dict[str, int] = {}
    for part in parts:
        place = part.place.partition(":")[0]  # of a rank that is late without what it was doing
        spent[place] = spent.get(place, 0) + part.duration_ps
    if not spent:
        return "-"
    most = max(spent, key=lambda place: spent[place])
    return f"{most} {100 * spent[most] / sum(spent.values()):.0f}%"


def _started(call: Called) -> Called:
    """The call as if it had been submitted when it started: without what it queued behind."""
    return call._replace(submitted_ps=call.started_ps)


def _path_table(attribution: Attribution, call: Called) -> list[str]:
    queued_ps = call.started_ps - call.submitted_ps
    behind = f"; queued {format_time(queued_ps)} before" if queued_ps else ""
    call = _started(call)
    parts = attribution.parts(call)
    total_ps = call.completed_ps - call.submitted_ps
    rows = [["after", "takes", "share", "cause", "where", "what"]]
    for part in parts:
        rows.append(
            [
                format_time(part.begin_ps - call.submitted_ps),
                format_time(part.duration_ps),
                _share(part.duration_ps, total_ps),
                CAUSES[part.cause],
                part.place,
                _chunk(part),
            ]
        )
    split = attribution.split_ps(call)
    summed = ", ".join(f"{CAUSES[cause]} {_share(ps, total_ps)}" for cause, ps in _largest_first(split))
    return [
        f"rank {call.rank}, {call.collective} of {format_bytes(call.n_bytes)} {call.dtype} by {call.algorithm}:"
        f" {format_time(total_ps)} from {format_time(call.submitted_ps)} on{behind}; {summed}",
        *(
            f"without {CAUSES[cause]} another path is the last here: of its {format_time(spent_ps)} that saves"
            f" {format_time(saved_ps)}, unless the other gets shorter too"
            for cause, (spent_ps, saved_ps) in enumerate(zip(split, attribution.saved_ps(call), strict=True))
            if saved_ps < spent_ps
        ),
        f"host: seen {call.late_ns / 1e6:.3f} ms late",
        "",
        *aligned(rows, [False, False, False, True, True, True]),
    ]


def _largest_first(split: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    return sorted(((cause, ps) for cause, ps in enumerate(split) if ps), key=lambda found: -found[1])


def _share(ps: int, total_ps: int) -> str:
    return f"{100 * ps / total_ps:.1f}%" if ps else "-"


def _chunk(part: Part) -> str:
    chunk = part.chunk
    return "" if chunk is None else f"{chunk.source_rank}>{chunk.target_rank} message {chunk.message} chunk {chunk.chunk}"
