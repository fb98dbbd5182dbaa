"""The command line on real actors: the promises of the first table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
F100 = ["--fabric", "star", "--set", "ranks=8", "--set", "rate=100MB/s", "--set", "latency=1ms"]
RING = ["--algorithm", "ring", "--channels", "1", "-b", "16M", "-e", "16M"]


def emu(*arguments: str, expect: int = 0, timeout_s: float = 240) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "emu", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == expect, done.stderr
    return done.stdout


def sides(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    return [result[side]["emu"] for result in document["results"] for side in ("out_of_place", "in_place")]


@pytest.mark.parametrize(
    ("settings", "expected_ms"),
    [
        (["--chunk", "2M"], 307.6),
        (["--chunk", "2M", "--set", "rate=50MB/s"], 601.0),
        (["--chunk", "2M", "--set", "latency=10ms"], 433.6),
        (["--chunk", "512K"], 294.6),
    ],
)
def test_predictions_agree_with_the_closed_forms(settings: list[str], expected_ms: float, tmp_path: Path) -> None:
    """Ring all-reduce of 16 MiB on 8 ranks: 2(n-1)(L + S/nB), and pipelined 2(n-1)/n S/B + L, within 0.5 %."""
    emu("predict", "all_reduce", *F100, *RING, *settings, "-n", "5", "--json", str(tmp_path / "out.json"))
    for side in sides(tmp_path / "out.json"):
        assert side["model_us"] / 1000 == pytest.approx(expected_ms, rel=0.005)


def test_an_emulated_row_is_ok_and_agrees_with_its_prediction(tmp_path: Path) -> None:
    """The model equals the prediction exactly, the stopwatch within 2 %, and the row says ok."""
    emu("predict", "all_reduce", *F100, *RING, "--chunk", "2M", "-n", "5", "--json", str(tmp_path / "predicted.json"))
    for _ in range(3):  # a host that falters for a moment says degraded, as it must; one that always does is a failure
        emu("bench", "all_reduce", *F100, *RING, "--chunk", "2M", "-n", "5", "--json", str(tmp_path / "measured.json"))
        if all(side["verdict"] == "ok" for side in sides(tmp_path / "measured.json")):
            break
    for predicted, measured in zip(sides(tmp_path / "predicted.json"), sides(tmp_path / "measured.json"), strict=True):
        assert measured["verdict"] == "ok"
        assert measured["model_us"] == predicted["model_us"]
        assert measured["measured_us"] == pytest.approx(measured["model_us"], rel=0.02)
        assert measured["order_violations"] == 0


def test_an_overloaded_host_says_so(tmp_path: Path) -> None:
    """16 ranks with links of 2 GB/s at dilation 1 cannot be kept up with on a small host: degraded, and --strict exits 5."""
    if (os.cpu_count() or 1) > 16:
        pytest.skip("this host may be fast enough")
    path = tmp_path / "out.json"
    emu(
        "bench", "all_reduce", "--fabric", "star", "--set", "ranks=16", "--set", "rate=2GB/s", "--dilation", "1",
        "-b", "64M", "-e", "64M", "-n", "2", "-c", "0", "--strict", "--json", str(path), expect=5,
    )  # fmt: skip
    assert {side["verdict"] for side in sides(path)} == {"degraded"}
