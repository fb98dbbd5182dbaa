"""Panels: what each panel type of Grafana is given, in one place.

Law: every panel has a title, a description, a unit and a width; where it stands is the dashboard's business
(:mod:`grafana.source.dashboard`).  Only panel types that a current Grafana has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
CLASSIC: Json = {"mode": "palette-classic"}
BY_THRESHOLD: Json = {"mode": "thresholds"}
GREEN_TO_RED: Json = {"mode": "continuous-GrYlRd"}
PLAIN = ((None, "text"),)
"""Thresholds that colour nothing."""
BAD_AT_ONE = ((None, "green"), (1, "red"))
NOW = frozenset({"stat", "bargauge", "table"})
"""Panel types that show the present moment: what ended is not shown as if it lasted."""
Thresholds = Sequence[tuple[float | None, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel.  ``table``: as rows instead of series."""

    expression: str
    legend: str = ""
    table: bool = False
    buckets: bool = False
    """Series by ``le`` are the rows of a heat map."""

    def target(self, reference: str, *, instant: bool) -> Json:
        return {
            "refId": reference,
            "datasource": DATASOURCE,
            "expr": self.expression,
            "legendFormat": self.legend or "__auto",
            "format": "table" if self.table else "heatmap" if self.buckets else "time_series",
            "instant": instant,
            "range": not instant,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel without its place; widths are columns of 24, heights are rows of about 30 pixels."""

    width: int
    height: int
    body: Json


def _panel(
    kind: str, title: str, description: str, queries: Sequence[Query], *, width: int, height: int, options: Json,
    defaults: Json | None = None, **more: Any,
) -> Panel:  # fmt: skip
    body = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": [query.target(chr(ord("A") + index), instant=kind in NOW) for index, query in enumerate(queries)],
        "fieldConfig": {"defaults": defaults or {}, "overrides": []},
        "options": options,
        **more,
    }
    return Panel(width=width, height=height, body=body)


def _thresholds(steps: Thresholds) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def _legend(*, shown: bool = True) -> Json:
    return {"displayMode": "table", "placement": "bottom", "showLegend": shown, "calcs": ["lastNotNull", "max"] if shown else []}


_TOOLTIP: Json = {"mode": "multi", "sort": "desc"}
_LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def timeseries(
    title: str, description: str, *queries: Query, unit: str, width: int = 12, height: int = 8, stacked: bool = False,
    logarithmic: bool = False, top: float | None = None,
) -> Panel:  # fmt: skip
    """Lines over time; ``stacked`` parts of a whole; ``top``: the axis' end."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 0,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "scaleDistribution": {"type": "log", "log": 10} if logarithmic else {"type": "linear"},
    }
    defaults: Json = {"unit": unit, "color": CLASSIC, "custom": custom}
    if not logarithmic:
        defaults["min"] = 0
    if top is not None:
        defaults["max"] = top
    return _panel(
        "timeseries", title, description, queries, width=width, height=height, defaults=defaults,
        options={"legend": _legend(), "tooltip": _TOOLTIP},
    )  # fmt: skip


def stat(
    title: str, description: str, *queries: Query, unit: str, width: int = 4, height: int = 4, thresholds: Thresholds = PLAIN,
    named: bool = False,
) -> Panel:  # fmt: skip
    """One large number for each series, of the present moment; ``named``: the series' name instead."""
    options: Json = {
        "reduceOptions": _LAST,
        "orientation": "auto",
        "textMode": "name" if named else "value",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }
    defaults: Json = {"unit": unit, "color": BY_THRESHOLD, "thresholds": _thresholds(thresholds)}
    return _panel("stat", title, description, queries, width=width, height=height, defaults=defaults, options=options)


def bars(
    title: str, description: str, *queries: Query, unit: str, width: int = 12, height: int = 8, top: float | None = None
) -> Panel:
    """One bar for each series, for the present moment."""
    options: Json = {
        "displayMode": "gradient",
        "legend": _legend(shown=False),
        "maxVizHeight": 24,
        "minVizHeight": 8,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": _LAST,
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    defaults: Json = {"unit": unit, "min": 0, "color": GREEN_TO_RED}
    if top is not None:
        defaults["max"] = top
    return _panel("bargauge", title, description, queries, width=width, height=height, defaults=defaults, options=options)


def buckets(title: str, description: str, query: Query, *, unit: str, width: int = 12, height: int = 8) -> Panel:
    """A histogram over time: darker where more fell."""
    options: Json = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {
            "mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64, "reverse": False
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "unit": unit},
    }  # fmt: skip
    return _panel("heatmap", title, description, [query], width=width, height=height, options=options)


def grid(
    title: str, description: str, query: Query, *, unit: str, top: float | None = None, width: int = 24, height: int = 10
) -> Panel:
    """A row for each series, a cell for each moment, coloured by value: a heat map of names by time."""
    options: Json = {
        "legend": _legend(shown=False), "tooltip": _TOOLTIP, "rowHeight": 0.9, "colWidth": 0.95, "showValue": "never",
        "perPage": 32,
    }  # fmt: skip
    defaults: Json = {"unit": unit, "min": 0, "color": GREEN_TO_RED, "custom": {"fillOpacity": 90, "lineWidth": 0}}
    if top is not None:
        defaults["max"] = top
    return _panel(
        "status-history", title, description, [query], width=width, height=height, defaults=defaults, options=options,
        maxDataPoints=80,
    )  # fmt: skip


def states(
    title: str, description: str, *queries: Query, texts: dict[str, tuple[str, str]], width: int = 24, height: int = 6
) -> Panel:
    """A band for each series; ``texts``: what a value is called, and its colour."""
    options: Json = {
        "legend": _legend(shown=False), "tooltip": _TOOLTIP, "rowHeight": 0.9, "showValue": "auto", "mergeValues": True,
        "alignValue": "left", "perPage": 32,
    }  # fmt: skip
    mappings = [
        {"type": "value", "options": {value: {"text": text, "color": color, "index": index}}}
        for index, (value, (text, color)) in enumerate(texts.items())
    ]
    defaults: Json = {"unit": "none", "color": BY_THRESHOLD, "mappings": mappings, "thresholds": _thresholds(PLAIN)}
    defaults["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    return _panel("state-timeline", title, description, queries, width=width, height=height, defaults=defaults, options=options)


def matrix(
    title: str, description: str, expression: str, *, row: str, column: str, unit: str, top: float | None = None, width: int = 12,
    height: int = 10,
) -> Panel:  # fmt: skip
    """Two labels against each other, each cell coloured by the present value."""
    pivot = {"id": "groupingToMatrix", "options": {"columnField": column, "rowField": row, "valueField": "Value"}}
    defaults: Json = {"unit": unit, "min": 0, "color": GREEN_TO_RED}
    defaults["custom"] = {"cellOptions": {"type": "color-background", "mode": "basic"}, "align": "center"}
    if top is not None:
        defaults["max"] = top
    return _panel(
        "table", title, description, [Query(expression=expression, table=True)], width=width, height=height, defaults=defaults,
        options={"frameIndex": 0, "showHeader": True, "cellHeight": "sm"}, transformations=[pivot],
    )  # fmt: skip


def table(title: str, description: str, expression: str, *, columns: Sequence[str], width: int = 12, height: int = 6) -> Panel:
    """The labels of an info metric, a line for each series."""
    keep = {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}}
    return _panel(
        "table", title, description, [Query(expression=expression, table=True)], width=width, height=height,
        options={"frameIndex": 0, "showHeader": True, "cellHeight": "sm"}, transformations=[keep],
    )  # fmt: skip


def text(content: str, *, height: int = 3) -> Panel:
    """How to read the panels below it, over the whole width."""
    body: Json = {
        "type": "text",
        "title": "",
        "transparent": True,
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"mode": "markdown", "content": content},
    }
    return Panel(width=24, height=height, body=body)
