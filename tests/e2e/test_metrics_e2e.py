"""The exporter beside real actors: what it says, who dies, what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from emu import Session

SETTINGS = {"ranks": "3", "rate": "1GB/s", "latency": "100us", "switching": "roce-dcqcn"}
N_RUNS = 50
Key = tuple[str, frozenset[tuple[str, str]]]


def step(rank: Any) -> None:
    data = np.ones(1 << 14, dtype=np.float32)
    for _ in range(2):
        rank.compute(us=100)
        rank.comm.all_reduce(data)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def values(text: str) -> dict[Key, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_actor(found: dict[Key, float], name: str, actor: str) -> float:
    return found[name, frozenset({("actor", actor)})]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_an_exporter_outlives_its_actors_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus is told where it is; a scrape is what the session says and has no lint; counters go on over
    50 runs, which leave as many series as one; an actor that is stopped keeps its values and their time, one that is killed is
    down with its series gone; nothing is left."""
    monkeypatch.setenv("EMU_FILE_SD", str(tmp_path))
    up, last = "emu_actor_up", "emu_exporter_last_update_timestamp_seconds"
    with Session("star", settings=SETTINGS, metrics="auto", accelerators_per_actor=1) as session:
        (url,) = session.metrics_endpoints()
        (file,) = tmp_path.iterdir()
        (group,) = json.loads(file.read_text())
        assert url == f"http://{group['targets'][0]}/metrics"
        assert group["labels"]["session"] == f"{session.session_id:x}"
        session.run(step)
        text = fetch(url)
        first = values(text)
        changes = {key[0] for key in first.items() ^ values(session.metrics_text()).items()}
        assert {name for name, _ in changes} <= {last, "emu_diagnosis_findings_total"}
        assert first["emu_collective_operations_total", frozenset({
            ("collective", "all_reduce"), ("algorithm", "direct"), ("status", "ok")})] == 2  # fmt: skip
        sent = {name: statistics.wire_bytes for name, statistics in session.counters().links.items()}
        assert {link: first["emu_link_transmit_bytes_total", frozenset({("link", link)})] for link in sent} == sent
        if shutil.which("promtool") is not None:
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
            assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        for _ in range(N_RUNS - 1):
            session.begin(dilation=1.0)
            session.run(step)
        second = values(fetch(url))
        assert second.keys() == first.keys()
        assert all(second[key] >= first[key] for key in first if key[0].endswith(("_total", "_bucket", "_sum", "_count")))

        process = session.process_ids()["a1"]
        os.kill(process, signal.SIGSTOP)
        stopped = values(fetch(url))
        os.kill(process, signal.SIGCONT)
        assert of_actor(stopped, up, "a1") == 1
        assert of_actor(stopped, last, "a1") == of_actor(second, last, "a1") < of_actor(stopped, last, "a0")
        assert {key: stopped[key] for key in second if ("rank", "1") in key[1]} == {
            key: value for key, value in second.items() if ("rank", "1") in key[1]
        }
        os.kill(process, signal.SIGKILL)
        dead: dict[Key, float] = {}
        for _ in range(20):  # until Ray has noticed
            dead = values(fetch(url))
            if not of_actor(dead, up, "a1"):
                break
        assert (of_actor(dead, up, "a1"), of_actor(dead, up, "a0")) == (0, 1)
        assert of_actor(dead, last, "a1") < of_actor(dead, last, "a0")
        gone = {key for key in stopped if key not in dead}
        assert gone and all(labels & {("rank", "1"), ("link", "a1->s0"), ("port", "s0->a1")} for _, labels in gone)
        assert not any(labels & {("rank", "1"), ("link", "a1->s0")} for name, labels in dead if "last_arrivals" not in name)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(urllib.error.URLError):
        fetch(url)
