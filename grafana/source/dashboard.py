"""A dashboard: sections of panels set side by side, the variables above them, the links to the others, the marks of faults.

Law: a fixed uid; the datasource is a variable; nothing stands over anything else; every dashboard of emu reaches every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana.source.panels import DATASOURCE, Json, Panel, text

SCHEMA_VERSION = 42
N_COLUMNS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A row: its title, how to read it, its panels."""

    title: str
    reading: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A variable: the values of ``label`` in ``metric``."""

    label: str
    metric: str
    words: str

    def variable(self) -> Json:
        matcher = "" if self.label == "session" else '{session=~"$session"}'
        query = f"label_values({self.metric}{matcher}, {self.label})"
        return {
            "name": self.label,
            "label": self.label.replace("_", " ").capitalize(),
            "description": self.words,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "refresh": 2,
            "sort": 7,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }


SESSION = Choice(
    label="session", metric="emu_run_info", words="Testbeds to show. Counts of several add up; quantiles are over all of them."
)


def dashboard(name: str, title: str, description: str, sections: Sequence[Section], choices: Sequence[Choice] = ()) -> Json:
    """The classic model of a dashboard, as ``dashboards/NAME.json`` holds it."""
    return {
        "uid": f"emu-{name}",
        "title": f"emu: {title}",
        "description": description,
        "tags": ["emu"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-15m", "to": "now"},
        "refresh": "5s",
        "links": [
            {
                "type": "dashboards", "title": "emu", "tooltip": "The other dashboards of emu", "icon": "external link",
                "tags": ["emu"], "asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False,
            }
        ],
        "templating": {"list": [_datasource(), *(choice.variable() for choice in (SESSION, *choices))]},
        "annotations": {"list": [_faults("link", "orange"), _faults("rank", "purple")]},
        "panels": _placed(sections),
    }  # fmt: skip


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "description": "The Prometheus that scrapes emu's exporters",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _faults(component: str, color: str) -> Json:
    """A mark over the time for which a fault was on: consecutive samples become one region."""
    return {
        "name": f"Faults on {component}s",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": color,
        "target": {
            "refId": "Annotation",
            "expr": f'emu_{component}_fault_active{{session=~"$session"}} > 0',
            "interval": "5s",
        },
        "titleFormat": f"{{{{fault}}}} on {component} {{{{{component}}}}}",
        "textFormat": "Injected fault",
    }


def _placed(sections: Sequence[Section]) -> list[Json]:
    """Panels get numbers and places: from left to right, a new line where one does not fit."""
    placed: list[Json] = []
    top = 0
    for section in sections:
        place = {"x": 0, "y": top, "w": N_COLUMNS, "h": 1}
        placed.append({"type": "row", "title": section.title, "collapsed": False, "panels": [], "gridPos": place})
        top += 1
        left = line = 0
        for panel in (text(section.reading), *section.panels):
            if left + panel.width > N_COLUMNS:
                top, left, line = top + line, 0, 0
            placed.append({**panel.body, "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height}})
            left, line = left + panel.width, max(line, panel.height)
        top += line
    return [{"id": number, **panel} for number, panel in enumerate(placed, 1)]
