"""The dashboards on a real run: every query of every panel, asked of a real Prometheus that scraped it, has an answer."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import emu
from grafana import generate

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian package prometheus)"),
]

ROOT = Path(__file__).parents[2]
N_SCRAPES = 6
MOST_S = 90
"""The run goes on until it was scraped so often, however slow the host; then something is wrong."""
ALL = re.compile(r'"\$\w+"')
"""Variables are matched by, and all of their values are chosen."""
VARIABLES = {"$__rate_interval": "8s", "$__range": "60s"}

FABRIC = """
[topology]
kind = "star"
ranks = 4
rate = "100MB/s"
latency = "100us"
[switching]
quantum = "16KiB"
buffer = "2MiB"
alpha = "1/32"
discipline = "pause"
watchdog_detection = "200ms"
kmin = "16KiB"
kmax = "64KiB"
pmax = "1"
recovery = "selective_repeat"
timeout = "20ms"
[[classes]]
name = "training"
priority = 3
congestion_control = "dcqcn"
[[classes]]
name = "storage"
priority = 4
discipline = "drop"
trims = true
[[classes]]
name = "control"
priority = 5
discipline = "credit"
credits = "16KiB"
"""
"""A class of each discipline, so that there are pauses, marks, trims and waits for credits in one run."""


def step(rank: emu.Rank) -> None:
    """In each class: a late rank, two collectives, and an incast to rank 0."""
    mine = np.ones(1 << 15, np.float32)
    for comm in (rank.comm, *(rank.comm.split(0, rank.index, priority=priority) for priority in (4, 5))):
        assert comm is not None
        rank.compute(us=100 * rank.index)
        comm.all_reduce(mine)
        comm.alltoall(mine, np.zeros_like(mine))
        if rank.index:
            comm.send(mine, 0)
        else:
            with comm.group():
                for peer in range(1, rank.world_size):
                    comm.recv(np.zeros_like(mine), peer)


@dataclass(slots=True, kw_only=True)
class Scraped:
    """A Prometheus that has seen a run, from one Unix time to another."""

    address: str
    began_s: float = 0
    ended_s: float = 0

    def ask(self, path: str, **form: object) -> Any:
        """The ``data`` of an answer of its HTTP interface."""
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(form)}", timeout=10
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{form}: {error.read().decode()}") from None

    def await_ready(self) -> None:
        """Until it answers.  Raises URLError when it does not within half a minute."""
        deadline_s = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).close()
                return
            except urllib.error.URLError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)

    def n_scrapes(self) -> int:
        """How often model time was seen to have gone on."""
        found = self.ask("query", query="changes(emu_model_time_seconds_total[5m])")["result"]
        return sum(int(series["value"][1]) for series in found)

    def values(self, expression: str, *, instant: bool) -> list[float]:
        """What a panel would draw: samples that are numbers."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        expression = ALL.sub('".*"', expression)
        if instant:
            found = self.ask("query", query=expression, time=self.ended_s)["result"]
            samples = [series["value"] for series in found]
        else:
            found = self.ask("query_range", query=expression, start=self.began_s, end=self.ended_s, step=1)["result"]
            samples = [sample for series in found for sample in series["values"]]
        return [number for number in (float(text) for _, text in samples) if math.isfinite(number)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def configured(place: Path) -> Path:
    """The project's own configuration, but for more scrapes and evaluations."""
    written = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    written["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    written["scrape_configs"][0]["file_sd_configs"][0]["refresh_interval"] = "1s"
    (place / "rules").mkdir()
    for path in (ROOT / "deploy" / "prometheus" / "rules").iterdir():
        rules = path.read_text(encoding="utf-8").replace("interval: 5s", "interval: 1s")
        (place / "rules" / path.name).write_text(rules, encoding="utf-8")
    path = place / "prometheus.yml"
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    assert PROMETHEUS is not None
    place = tmp_path_factory.mktemp("prometheus")
    (place / "file_sd").mkdir()
    (place / "mixed.toml").write_text(FABRIC, encoding="utf-8")
    prometheus = Scraped(address=f"127.0.0.1:{free_port()}")
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                PROMETHEUS, f"--config.file={configured(place)}", f"--storage.tsdb.path={place / 'data'}",
                f"--web.listen-address={prometheus.address}", "--log.level=warn",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        prometheus.await_ready()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EMU_FILE_SD", str(place / "file_sd"))
            run(place / "mixed.toml", prometheus)
        yield prometheus
    finally:
        server.terminate()
        server.wait(20)


def run(fabric: Path, prometheus: Scraped) -> None:
    """Calls and faults, until they were scraped often enough."""
    with emu.Session(
        str(fabric), dilation=10.0, seed=1, accelerators_per_actor=2, metrics="127.0.0.1:0",
        impairments=["a1->s0=loss,probability=0.01"],
    ) as session:  # fmt: skip
        prometheus.began_s = time.time()
        session.add_fault("s0->a2=slow,factor=0.5")
        session.add_fault("rank3=late,by=300us")
        while prometheus.n_scrapes() < N_SCRAPES:
            assert time.time() < prometheus.began_s + MOST_S
            session.run(step)
        prometheus.ended_s = time.time()


@pytest.mark.parametrize("name", generate.DASHBOARDS)
def test_every_panel_has_data(name: str, scraped: Scraped) -> None:
    """Each query of each panel returns numbers for a run that has faults, losses and every discipline in it."""
    empty = [
        f"{panel['title']}: {target['expr']}"
        for panel in generate.DASHBOARDS[name].build()["panels"]
        for target in panel.get("targets", [])
        if not scraped.values(target["expr"], instant=target["instant"])
    ]
    assert not empty, "\n".join(empty)


@pytest.mark.parametrize("name", generate.DASHBOARDS)
def test_every_variable_has_values_and_faults_are_marked(name: str, scraped: Scraped) -> None:
    """Each choice above the panels offers something, and both kinds of fault leave marks."""
    board = generate.DASHBOARDS[name].build()
    for variable in board["templating"]["list"][1:]:
        selector, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        found = scraped.ask(f"label/{label}/values", **{"match[]": ALL.sub('".*"', selector)})
        assert found, variable["query"]["query"]
    for mark in board["annotations"]["list"]:
        assert scraped.values(mark["target"]["expr"], instant=False), mark["name"]


def test_alerts_of_a_run_with_faults_fire(scraped: Scraped) -> None:
    """The rules that Prometheus loaded see the injected faults, and call no actor dead."""
    seen = scraped.ask("query", query='last_over_time(ALERTS{alertstate="firing"}[5m])')["result"]
    firing = {series["metric"]["alertname"] for series in seen}
    assert {"EmuLinkFault", "EmuRankFault"} <= firing
    assert not firing & {"EmuActorDead", "EmuLinkDown"}
