"""Writes dashboards/*.json and provisioning/alerting/emu.yml from source/: ``python -m grafana.generate`` in the folder above.

The files are committed, so that Grafana needs no Python; a test compares them with the source.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from grafana.source import alerting, collectives, fidelity, links, overview, stalls, switches

FOLDER = Path(__file__).parent
DASHBOARDS = {
    "overview": overview,
    "collectives": collectives,
    "links": links,
    "switches": switches,
    "stalls": stalls,
    "fidelity": fidelity,
}
NOTICE = "# Made by grafana/generate.py of deploy/prometheus/rules/alerts.yml.\n"


def texts() -> dict[Path, str]:
    """File, from here -> its text."""
    made = {Path("dashboards", f"{name}.json"): json.dumps(page.build(), indent=1) + "\n" for name, page in DASHBOARDS.items()}
    rules = yaml.safe_dump(alerting.build(), sort_keys=False, width=120)
    return {**made, Path("provisioning", "alerting", "emu.yml"): NOTICE + rules}


def main() -> None:
    """Write every file."""
    for path, text in texts().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
