"""Prometheus' configuration, recording rules and alerts, by Prometheus' own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from emu.telemetry.catalogue import CATALOGUE

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)")


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> set[str]:
    groups = yaml.safe_load((FOLDER / "rules" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


@needs_promtool
def test_the_configuration_is_valid() -> None:
    """Prometheus takes prometheus.yml, and finds the rules that it names."""
    assert "2 rule files found" in promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_the_rules_have_no_lint() -> None:
    """promtool finds nothing in the rules, with every check on."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules/recording.yml", "rules/alerts.yml")


@needs_promtool
@pytest.mark.parametrize("name", ["fabric", "instrument"])
def test_alerts_fire_when_they_should(name: str) -> None:
    """promtool's unit tests of the rules pass: each alert fires on its case, and not on the one beside it."""
    promtool("test", "rules", f"tests/{name}.yml")


def test_every_alert_is_tried() -> None:
    """Each alert stands in a unit test that makes it fire."""
    cases = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (FOLDER / "tests").iterdir()]
    tried = [case for file in cases for test in file["tests"] for case in test.get("alert_rule_test", [])]
    assert alerts() == {case["alertname"] for case in tried if case["exp_alerts"]}


def test_rules_ask_for_what_is_exported() -> None:
    """Every metric of emu in the rules stands in the catalogue."""
    for path in (FOLDER / "rules").iterdir():
        bare = re.sub(r"[\w:]*:[\w:]*", "", path.read_text(encoding="utf-8"))
        assert set(re.findall(r"\bemu_\w+", bare)) <= set(CATALOGUE)
