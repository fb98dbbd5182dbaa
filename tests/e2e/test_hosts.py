"""What a run takes of its host, and runs over several hosts (two raylets that are told apart by their host names)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import emu
from emu.actors import backend
from emu.transport import Keys

pytestmark = pytest.mark.slow
STAR = {"ranks": "4", "rate": "1GB/s", "latency": "1ms"}
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two raylets on this machine, which Ray says are on two hosts."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    nodes = ray.nodes

    def apart() -> list[dict[str, Any]]:
        return [{**node, "NodeManagerHostname": f"host{number}"} for number, node in enumerate(nodes())]

    monkeypatch.setattr(backend.ray, "nodes", apart)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def two_calls(rank: emu.Rank) -> tuple[int, int, float]:
    data = np.full(20_000, rank.index + 1, dtype=np.float32)
    times = [rank.comm.all_reduce(data, algorithm=algorithm).completed_ps for algorithm in ("direct", "ring")]
    return times[0], times[1], float(data[0])


def test_a_run_over_two_hosts_is_encrypted_and_has_the_simulators_times(
    two_hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a page that all actors share, over tcp and with keys of its own, a run gives the simulator's times and data; each
    host has an exporter for its actors, and Prometheus is told of both."""
    monkeypatch.setenv("EMU_FILE_SD", str(tmp_path))
    made: list[Keys] = []
    make = Keys.make
    monkeypatch.setattr(backend.Keys, "make", staticmethod(lambda: made.append(make()) or made[-1]))
    with emu.Session("star", settings=STAR, address=two_hosts, dilation=400, metrics="auto") as session:
        places = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        found = session.run(two_calls)
        assert session.counters().order_violations == 0
        (file,) = tmp_path.iterdir()
        assert [group["labels"]["node"] for group in json.loads(file.read_text())] == ["host0", "host1"]
        texts = [urllib.request.urlopen(url).read().decode() for url in session.metrics_endpoints()]
        actors = [set(re.findall(r'emu_actor_up{actor="(.+)"} 1', text)) for text in texts]
        assert all(actors) and not actors[0] & actors[1] and actors[0] | actors[1] == {"a0", "a1", "a2", "a3", "s0"}
    with emu.Session("star", settings=STAR, driver="simulate") as session:
        assert found == session.run(two_calls)
    assert len(made) == 1 and len(places) == 2


def test_few_file_descriptors_are_enough_or_are_asked_for() -> None:
    """With 256 descriptors a small run works; with too few for its actors it ends with one line that says what to do."""
    for limit, expect in ((256, 0), (40, 2)):
        command = f"ulimit -n {limit}; exec {sys.executable} -m emu bench all_reduce --fabric star --set ranks=2"
        done = subprocess.run(
            ["bash", "-c", f"{command} -b 1K -e 1K -n 1 --dilation 1000"],
            capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        assert done.returncode == expect, done.stderr
        assert "Traceback" not in done.stderr
        if expect:
            assert done.stderr.count("\n") == 1 and "file descriptors" in done.stderr and "ulimit -n" in done.stderr


def meet(rank: emu.Rank) -> int:
    rank.comm.barrier()
    return rank.index


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("driver", "n_sessions"), [("simulate", 200), ("emulate", 4)])
def test_sessions_leave_no_descriptor_open(driver: str, n_sessions: int) -> None:
    """However many sessions a process opens and closes, it holds as many descriptors as after the first."""
    settings = {"ranks": "2"}

    def one() -> int:
        with emu.Session("star", settings=settings, driver=driver, dilation=1, accelerators_per_actor=2) as session:
            assert session.run(meet) == [0, 1]
        return n_descriptors()

    if driver == "simulate":
        assert {one() for _ in range(n_sessions)} == {n_descriptors()}
        return
    with emu.Session("star", settings=settings, dilation=1):  # keeps Ray up
        counts = [one() for _ in range(n_sessions)]
    assert max(counts) == counts[0], counts
