"""Figures of a report, as plotly's: one function for each; None where there is nothing to show.

Law: what users named is escaped, as plotly takes labels for HTML.  Times are model time unless a label says otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import numpy as np

from emu.fabric.account import CAUSES, Cause, by_cause
from emu.report.source import Plain
from emu.telemetry.record import RunRecord
from emu.units import format_bytes, microseconds

COLOURS: Final = {
    Cause.SERIALISATION: "#2c7fb8",
    Cause.QUEUEING: "#f16913",
    Cause.CREDIT: "#9e9ac8",
    Cause.PAUSE: "#d7301f",
    Cause.RETRANSMISSION: "#7a0177",
    Cause.ENDPOINT: "#8c6d31",
    Cause.PROPAGATION: "#a8ddb5",
    Cause.PEER_LATE: "#fdd049",
    Cause.COMPUTE: "#bdbdbd",
}
N_BINS: Final = 120
"""Of the time axis of a heat map."""
MOST_LINKS: Final = 48
"""Links of a heat map: those that carried most."""


def busbw(rows: Sequence[Plain]) -> Any:
    """Bus bandwidth by size, as nccl-tests' users plot it; degraded rows are open circles."""
    if not rows:
        return None
    figure = new_figure("bus bandwidth, GB/s", height=360)
    for fabric in dict.fromkeys(row["out_of_place"]["emu"]["fabric"] for row in rows):
        its = [row for row in rows if row["out_of_place"]["emu"]["fabric"] == fabric]
        for side, dash in (("out_of_place", "solid"), ("in_place", "dot")):
            figure.add_scatter(
                x=[row["size"] for row in its],
                y=[row[side]["bus_bw"] for row in its],
                mode="lines+markers",
                name=f"{escape(fabric)}, {side.replace('_', ' ')}",
                line={"dash": dash},
                marker={"symbol": ["circle-open" if is_degraded(row[side]) else "circle" for row in its], "size": 8},
                hovertemplate="%{text}: %{y:.4g} GB/s",
                text=[format_bytes(row["size"]) for row in its],
            )
    _by_size(figure, rows)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _by_size(figure: Any, rows: Sequence[Plain]) -> None:
    """Sizes along a logarithmic axis, named as they are written."""
    sizes = sorted({row["size"] for row in rows if row["size"]})
    ticks = sizes[:: max(1, len(sizes) // 12)]
    figure.update_xaxes(type="log", title="size", tickvals=ticks, ticktext=[format_bytes(size) for size in ticks])


def causes_by_size(rows: Sequence[Plain]) -> Any:
    """What the time of each row went to, over all ranks."""
    its = [row for row in rows if row["out_of_place"]["emu"].get("time_by_cause")]
    if not its:
        return None
    many = len({row["out_of_place"]["emu"]["fabric"] for row in its}) > 1
    labels = [
        (f"{row['out_of_place']['emu']['fabric']}, " if many else "") + format_bytes(row["size"])
        for row in its
    ]  # fmt: skip
    shares = [[row["out_of_place"]["emu"]["time_by_cause"].get(name, 0.0) * 100 for name in CAUSES] for row in its]
    return _stacked([escape(label) for label in labels], shares, "share of the time, %")


def causes_by_rank(record: RunRecord) -> Any:
    """What the calls of each rank spent their time on, from when they ran, and what it computed."""
    spent: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(Cause))
    for call in record.calls:
        for cause, time_ps in enumerate(by_cause(list(call.account), call.started_ps, call.completed_ps)):
            spent[call.rank][cause] += time_ps
    for computed in record.computed:
        spent[computed.rank][Cause.COMPUTE] += computed.end_ps - computed.begin_ps
    if not spent:
        return None
    ranks = sorted(spent)
    values = [[microseconds(time_ps) for time_ps in spent[rank]] for rank in ranks]
    return _stacked([f"{rank} {escape(record.ends[rank])}" for rank in ranks], values, "time, us", title="rank")


def _stacked(labels: Sequence[str], values: Sequence[Sequence[float]], unit: str, *, title: str = "size") -> Any:
    figure = new_figure(unit, height=360)
    for cause in Cause:
        its = [of_one[cause] for of_one in values]
        if any(its):
            figure.add_bar(x=labels, y=its, name=cause.name.lower().replace("_", " "), marker={"color": COLOURS[cause]})
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title=title, type="category")
    return figure


def traffic(record: RunRecord) -> Any:
    """Payload from rank to rank."""
    n_ranks = max((call.rank for call in record.calls), default=-1) + 1
    if not record.sent or not n_ranks:
        return None
    n_bytes = np.zeros((n_ranks, n_ranks))
    for sent in record.sent:
        if sent.chunk.source_rank < n_ranks and sent.chunk.target_rank < n_ranks:
            n_bytes[sent.chunk.source_rank, sent.chunk.target_rank] += sent.n_bytes
    names = [f"{rank} {escape(name)}" for rank, name in enumerate(record.ends[:n_ranks])]
    figure = new_figure("from rank", height=max(360, min(900, 22 * n_ranks + 140)))
    figure.add_heatmap(
        x=names, y=names, z=n_bytes / 1e6, colorscale="Blues", colorbar={"title": "MB"},
        hovertemplate="%{y} to %{x}: %{z:.4g} MB<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title="to rank", type="category")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def link_use(record: RunRecord) -> Any:
    """How busy each link was, over time."""
    end_ps = max((hop.tail_ps for hop in record.hops), default=0)
    if not end_ps:
        return None
    begin_ps = min(hop.start_ps for hop in record.hops)
    width_ps = max(1, -(-(end_ps - begin_ps) // N_BINS))
    busy = np.zeros((len(record.links), N_BINS))
    for hop in record.hops:
        last_ps = max(hop.start_ps, hop.tail_ps - record.latencies_ps[hop.link])
        _spread(busy[hop.link], hop.start_ps - begin_ps, last_ps - begin_ps, width_ps)
    order = sorted(range(len(record.links)), key=lambda link: -busy[link].sum())
    shown = sorted(link for link in order[:MOST_LINKS] if busy[link].any())
    figure = new_figure("link", height=max(320, 18 * len(shown) + 140))
    figure.add_heatmap(
        x=[microseconds(begin_ps + (number + 0.5) * width_ps) for number in range(N_BINS)],
        y=[escape(record.links[link]) for link in shown],
        z=np.minimum(100, busy[shown] * 100 / width_ps),
        colorscale="YlOrRd", zmin=0, zmax=100, colorbar={"title": "busy %"},
        hovertemplate="%{y} at %{x:.4g} us: %{z:.3g} %<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title="model time, us")
    figure.update_yaxes(type="category", autorange="reversed")
    for mark in record.marks:
        figure.add_vline(x=microseconds(mark.time_ps), line={"dash": "dot", "color": "#d7301f"})
    return figure


def _spread(bins: Any, begin_ps: int, end_ps: int, width_ps: int) -> None:
    """Add a span of time to the bins that it lies in."""
    first, last = begin_ps // width_ps, min(N_BINS - 1, end_ps // width_ps)
    for number in range(first, last + 1):
        bins[number] += min(end_ps, (number + 1) * width_ps) - max(begin_ps, number * width_ps)


def lateness(rows: Sequence[Plain]) -> Any:
    """How far the stopwatch and the model are apart, by size."""
    its = [row for row in rows if row["out_of_place"]["emu"]["late"] is not None]
    if not its:
        return None
    figure = new_figure("measured over model - 1, %", height=280)
    for side in ("out_of_place", "in_place"):
        figure.add_scatter(
            x=[row["size"] for row in its],
            y=[(row[side]["emu"]["late"] or 0) * 100 for row in its],
            mode="markers",
            name=side.replace("_", " "),
            text=[format_bytes(row["size"]) for row in its],
            hovertemplate="%{text}: %{y:.3f} %",
        )
    figure.add_hrect(y0=-2, y1=2, fillcolor="#a8ddb5", opacity=0.3, line_width=0)
    _by_size(figure, its)
    return figure


def call_lateness(record: RunRecord) -> Any:
    """How late the host saw the end of each call: wall time."""
    if record.driver != "emulate" or not record.calls:
        return None
    figure = new_figure("calls", height=260)
    figure.add_histogram(x=[call.late_ns / 1e6 for call in record.calls], nbinsx=60, name="calls")
    figure.update_xaxes(title="seen so late, ms of wall time")
    return figure


def is_degraded(side: Plain) -> bool:
    return bool(side["emu"]["verdict"] == "degraded")


def new_figure(y_title: str, *, height: int) -> Any:
    """An empty one."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 20, "t": 40, "b": 50},  # above: room for plotly's buttons
        legend={"orientation": "h", "y": 1.15},
    )
    figure.update_yaxes(title=y_title)
    return figure
