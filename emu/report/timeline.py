"""The timeline of one iteration: a bar for each rank, cut along the call's critical path by what its time went to."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import Any, Final

from emu.errors import ConfigError
from emu.fabric.account import Cause
from emu.fabric.recorder import Called
from emu.report.figures import COLOURS, new_figure
from emu.telemetry.attribution import Attribution, describe
from emu.telemetry.record import RunRecord
from emu.units import format_bytes, microseconds

MOST_RANKS: Final = 32
"""Those that took longest are shown."""


def chosen(record: RunRecord, number: int | None) -> list[Called]:
    """The ``number``-th call of every rank, or of the number that took longest; not barriers where there is anything else.

    Raises ConfigError for a number that no rank has.
    """
    by_rank: defaultdict[int, list[Called]] = defaultdict(list)
    for call in record.calls:
        by_rank[call.rank].append(call)
    by_number: defaultdict[int, list[Called]] = defaultdict(list)
    for calls in by_rank.values():
        for index, call in enumerate(calls):
            by_number[index].append(call)
    if number is not None:
        if number not in by_number:
            raise ConfigError(f"--call {number}: the record has calls 0 to {len(by_number) - 1}; emu explain RECORD lists them")
        return by_number[number]
    return max(by_number.values(), key=lambda calls: (any(call.n_bytes for call in calls), _longest_ps(calls)), default=[])


def _longest_ps(calls: list[Called]) -> int:
    return max(call.completed_ps - call.started_ps for call in calls)


def describe_call(calls: list[Called], record: RunRecord) -> str:
    """What the timeline shows."""
    first = calls[0]
    index = [call for call in record.calls if call.rank == first.rank].index(first)
    what = f"call {index}: {first.collective} of {format_bytes(first.n_bytes)} by {first.algorithm}, {len(calls)} ranks"
    return what + (f"; the {MOST_RANKS} that took longest" if len(calls) > MOST_RANKS else "")


def timeline(record: RunRecord, calls: list[Called]) -> Any:
    """Raises ConfigError where the record lacks events of the call."""
    attribution = Attribution(record)
    calls = sorted(sorted(calls, key=lambda call: call.started_ps - call.completed_ps)[:MOST_RANKS], key=lambda call: call.rank)
    begin_ps = min(call.started_ps for call in calls)
    figure = new_figure("rank", height=max(300, 22 * len(calls) + 140))
    bars: defaultdict[Cause, list[tuple[str, float, float, str]]] = defaultdict(list)
    for call in calls:
        name = f"{call.rank} {escape(record.ends[call.rank])}"
        for part in attribution.parts(call._replace(submitted_ps=call.started_ps)):  # not what it queued behind
            way = f"<br>{describe(part.chunk)}" if part.chunk else ""
            told = f"{part.cause.name.lower()} {escape(part.place)}{way}"
            bars[part.cause].append((name, microseconds(part.begin_ps - begin_ps), microseconds(part.duration_ps), told))
    for cause, its in sorted(bars.items()):
        figure.add_bar(
            orientation="h",
            y=[bar[0] for bar in its],
            base=[bar[1] for bar in its],
            x=[bar[2] for bar in its],
            text=[bar[3] for bar in its],
            textposition="none",
            hovertemplate="%{text}<br>%{x:.4g} us from %{base:.6g} us on<extra></extra>",
            name=cause.name.lower().replace("_", " "),
            marker={"color": COLOURS[cause], "line": {"width": 0}},
        )
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_xaxes(title=f"us after {microseconds(begin_ps):.6g} us of model time")
    names = [f"{call.rank} {escape(record.ends[call.rank])}" for call in calls]
    figure.update_yaxes(type="category", autorange="reversed", categoryorder="array", categoryarray=names)
    return figure
