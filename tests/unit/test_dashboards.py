"""The dashboards: committed as generated, valid for a current Grafana, and true to the catalogue of metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from emu.telemetry.catalogue import CATALOGUE, Clock, Kind
from grafana import generate
from grafana.source.dashboard import N_COLUMNS, SCHEMA_VERSION

FOLDER = Path(generate.__file__).parent
NAMES = tuple(generate.DASHBOARDS)
each = pytest.mark.parametrize("name", NAMES)

SCRAPED = {"job", "instance", "session", "node"}
"""Labels that every series has by being scraped, whatever the metric."""
PROMETHEUS_OWN = {"ALERTS", "up", "scrape_samples_scraped", "scrape_duration_seconds"}
TWO_CLOCKS = {"Pace"}
"""Panels whose very subject is how one clock goes against the other."""


@cache
def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Without rows and texts."""
    return [panel for panel in committed(name)["panels"] if panel["type"] not in ("row", "text")]


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """(metric, matchers) of every metric in a query."""
    bare = re.sub(r"\b(by|on|ignoring|group_left) *\([^)]*\)", "", expression)
    for found in re.finditer(r"([a-zA-Z_:][\w:]*)(\{[^}]*\})?(?![\w(]| *\()", re.sub(r'"[^"]*"', '""', bare)):
        if found[2] or found[1].startswith("emu_"):
            yield found[1], found[2] or ""


def metric_of(series: str) -> str:
    """Without what a histogram's series have behind its name."""
    return series if series in CATALOGUE else re.sub(r"_(bucket|count|sum)$", "", series)


GENERATED = generate.texts()


@pytest.mark.parametrize("path", GENERATED, ids=str)
def test_committed_files_are_what_the_source_says(path: Path) -> None:
    """Every file in dashboards/ and the alert rules are what ``python -m grafana.generate`` writes."""
    assert (FOLDER / path).read_text(encoding="utf-8") == GENERATED[path]


def test_no_dashboard_is_left_over() -> None:
    """Each file in dashboards/ has a source."""
    assert {path.stem for path in (FOLDER / "dashboards").iterdir()} == set(NAMES)


@cache
def validators() -> dict[str, jsonschema.Draft7Validator]:
    """Panel type -> what checks such a panel; ``""``: what checks a dashboard without its panels."""
    schema = json.loads((FOLDER / "schema" / "dashboard.schema.json").read_text(encoding="utf-8"))
    found = {"": jsonschema.Draft7Validator(schema)}
    for definition in schema["definitions"].values():
        kind = definition.get("properties", {}).get("type", {}).get("const")
        if kind is not None and "gridPos" in definition["properties"]:
            found[kind] = jsonschema.Draft7Validator({**definition, "definitions": schema["definitions"]})
    return found


@each
def test_a_dashboard_fits_grafanas_schema(name: str) -> None:
    """No key, value or panel type that the types of the Grafana release named in schema/generate.sh do not have."""
    board = committed(name)
    validators()[""].validate({**board, "panels": []})
    for panel in board["panels"]:
        assert panel["type"] in validators(), f"{panel['type']} is no panel type that Grafana has"
        validators()[panel["type"]].validate(panel)


@each
def test_a_dashboard_is_reached_and_filtered_alike(name: str) -> None:
    """A fixed short uid, the tag and links of emu, one time axis, a datasource and variables that a reader understands."""
    board = committed(name)
    assert board["uid"] == f"emu-{name}" and 8 <= len(board["uid"]) <= 40
    assert board["schemaVersion"] == SCHEMA_VERSION and board["graphTooltip"] == 1 and board["tags"] == ["emu"]
    assert [link["tags"] for link in board["links"]] == [["emu"]]
    datasource, *choices = board["templating"]["list"]
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    for choice in choices:
        assert choice["description"] and choice["multi"] and choice["includeAll"] and choice["allValue"] == ".*"
        found = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", choice["query"]["query"])
        assert found and found[2] in {*CATALOGUE[metric_of(found[1])].labels, *SCRAPED}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@each
def test_panels_lie_side_by_side(name: str) -> None:
    """Within 24 columns, none over another, and without a hole."""
    taken: set[tuple[int, int]] = set()
    for panel in committed(name)["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= N_COLUMNS
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    assert len(taken) == N_COLUMNS * (1 + max(y for _, y in taken))


@each
def test_a_reader_is_told_what_is_seen(name: str) -> None:
    """Every panel has a title, a description, a unit and the variable datasource; every row begins with how to read it."""
    for panel in panels(name):
        assert panel["title"] and panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        info = [target["expr"].startswith("emu_run_info") for target in panel["targets"]]
        assert all(info) or panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "heatmap"
    board = committed(name)["panels"]
    for row, after in pairwise(board):
        assert row["type"] != "row" or (after["type"] == "text" and after["options"]["content"])


@each
def test_queries_ask_for_what_is_exported(name: str) -> None:
    """Each metric stands in the catalogue, each label that is matched is one of its own, and every session can be chosen."""
    for panel in panels(name):
        for target in panel["targets"]:
            found = list(selectors(target["expr"]))
            assert found, f"{panel['title']}: no metric in {target['expr']}"
            for series, matchers in found:
                metric = CATALOGUE.get(metric_of(series))
                assert metric or series in PROMETHEUS_OWN, f"{panel['title']}: {series} is not in the catalogue"
                labels = set(re.findall(r"(\w+)=", matchers))
                assert "session" in labels
                assert metric is None or labels <= {*metric.labels, *SCRAPED}, f"{panel['title']}: {series} has no {labels}"


@each
def test_counters_are_never_shown_raw_over_time(name: str) -> None:
    """A counter over time stands in a rate or an increase, with a window that fits the scrape interval."""
    for panel in panels(name):
        for target in panel["targets"]:
            if target["instant"]:
                continue
            bare = re.sub(r"(rate|increase)\([^\]]*\[\$__(rate_interval|range)\]\)", "", target["expr"])
            raw = [s for s, _ in selectors(bare) if metric_of(s) in CATALOGUE and CATALOGUE[metric_of(s)].kind is Kind.COUNTER]
            assert not raw, f"{panel['title']}: {raw}"


@each
def test_one_axis_has_one_clock(name: str) -> None:
    """Model time and wall time are never mixed in a panel, but where that is the subject."""
    for panel in panels(name):
        metrics = {metric_of(series) for target in panel["targets"] for series, _ in selectors(target["expr"])}
        clocks = {CATALOGUE[metric].clock for metric in metrics & set(CATALOGUE)} - {Clock.NONE}
        assert len(clocks) <= 1 or panel["title"] in TWO_CLOCKS, f"{panel['title']}: {clocks}"


@each
def test_no_mean_stands_alone(name: str) -> None:
    """Beside every mean over ranks, links or ports stands the worst of them: a mean hides the straggler."""
    for panel in panels(name):
        expressions = [target["expr"] for target in panel["targets"]]
        for expression in expressions:
            if expression.startswith("avg"):
                assert expression.replace("avg", "max", 1) in expressions, panel["title"]


def test_every_metric_is_shown() -> None:
    """What is exported can be seen on some dashboard."""
    shown = {
        metric_of(series)
        for name in NAMES
        for panel in panels(name)
        for target in panel["targets"]
        for series, _ in selectors(target["expr"])
    }
    assert set(CATALOGUE) <= shown


def test_faults_are_marked_while_they_last() -> None:
    """The annotations' queries have a sample for as long as a fault is on, and for links and ranks alike."""
    for name in NAMES:
        marks = committed(name)["annotations"]["list"]
        assert {re.findall(r"emu_\w+", mark["target"]["expr"])[0] for mark in marks} == {
            "emu_link_fault_active",
            "emu_rank_fault_active",
        }
        assert all(mark["enable"] and mark["target"]["expr"].endswith("> 0") for mark in marks)


def test_grafana_finds_what_is_provisioned() -> None:
    """The alert rules ask the datasource that is provisioned, each has a uid that Grafana takes, and none is paused in "
    "silence."""
    place = FOLDER / "provisioning"
    source = yaml.safe_load((place / "datasources" / "emu.yml").read_text(encoding="utf-8"))["datasources"][0]
    (group,) = yaml.safe_load((place / "alerting" / "emu.yml").read_text(encoding="utf-8"))["groups"]
    assert int(group["interval"].removesuffix("s")) % 10 == 0
    for rule in group["rules"]:
        query, condition = rule["data"]
        assert query["datasourceUid"] == source["uid"] and condition["refId"] == rule["condition"]
        assert re.fullmatch(r"[a-z0-9-]{1,40}", rule["uid"])
        assert "$value " not in rule["annotations"]["summary"]
