"""Grafana's alert rules, made of Prometheus' (deploy/prometheus/rules/alerts.yml), so that there is one definition of each.

Where Prometheus has no Alertmanager, Grafana can notify.  The recording rules stay Prometheus' in any case.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from grafana.source.panels import Json

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "alerts.yml"
DATASOURCE_UID = "emu-prometheus"
INTERVAL_S = 10
"""Grafana evaluates in whole tens of seconds."""


def build() -> Json:
    """What ``provisioning/alerting/emu.yml`` holds."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": group["name"],
                "folder": "emu",
                "interval": f"{INTERVAL_S}s",
                "rules": [_rule(rule) for rule in group["rules"]],
            }
            for group in groups
        ],
    }


def _rule(rule: Json) -> Json:
    """Whatever the expression returns fires, whichever its value: also a zero."""
    query = {"refId": "A", "expr": " ".join(rule["expr"].split()), "instant": True, "range": False}
    condition = {"refId": "B", "type": "math", "expression": "is_number($A)"}
    return {
        "uid": re.sub(r"(?<!^)(?=[A-Z])", "-", rule["alert"]).lower(),
        "title": rule["alert"],
        "condition": "B",
        "data": [
            {"refId": "A", "relativeTimeRange": {"from": 600, "to": 0}, "datasourceUid": DATASOURCE_UID, "model": query},
            {"refId": "B", "relativeTimeRange": {"from": 600, "to": 0}, "datasourceUid": "__expr__", "model": condition},
        ],
        "for": rule.get("for", "0s"),
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": rule["labels"],
        "annotations": {name: text.replace("$value", "$values.A.Value") for name, text in rule["annotations"].items()},
    }
