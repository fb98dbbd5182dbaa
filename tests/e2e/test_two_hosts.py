"""A Ray cluster of two hosts that are namespaces of this one: networks, names, processes and clocks of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import emu
from emu.bench.measure import measure_row, row_counts
from tests.e2e.two_hosts_session import N_RANKS, OPTIONS, SIZE_BYTES, STAR

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "two_hosts.sh"
SESSION = ROOT / "tests" / "e2e" / "two_hosts_session.py"
CLOCK_OFFSET_S = 100_000
ADDRESSES = {"emu-host1": "10.77.0.1", "emu-host2": "10.77.0.2"}


def why_not() -> str | None:
    """What keeps this host from making namespaces."""
    for tool in ("unshare", "setpriv", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    asked = ["unshare", "--net", "--uts", "--mount", "--pid", "--time", "--monotonic", "1", "--fork", "--mount-proc"]
    asked += ["ip", "link", "add", "name", "emu0", "type", "veth"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    return f"namespaces are not permitted: {done.stderr.strip()}" if done.returncode else None


REASON = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@contextmanager
def two_hosts(*arguments: str, programs: Path = Path(sys.executable).parent) -> Iterator[subprocess.Popen[str]]:
    """The script, which is ended if it has not come to its end."""
    variables = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "EMU_DATA_PORTS": "20000-24999",
    }
    script = subprocess.Popen(
        [SCRIPT, *arguments], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield script
    finally:
        script.terminate()
        try:
            script.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            script.kill()  # and with it its hosts
            script.communicate()


def simulated_model_ps() -> int:
    with emu.Session("star", settings=STAR, driver="simulate") as session:
        size = row_counts(OPTIONS, SIZE_BYTES, N_RANKS)
        row = measure_row(session, OPTIONS, size, n_ranks=N_RANKS, dilation=1, seed=0, in_place=False)
    return row.out_of_place.model_ps


def test_a_session_spans_two_hosts_whose_clocks_differ() -> None:
    """Actors on both bind their node's address and a data port, and let in over the network who has the session's key, not
    one without a key or with its own; a collective is right, has the simulator's times and the verdict ok; Prometheus is told
    of an exporter on each, which answers for the actors there; nothing is left."""
    with two_hosts("--clock-offset", str(CLOCK_OFFSET_S), sys.executable, str(SESSION)) as script:
        printed, errors = script.communicate(timeout=180)
    assert (script.returncode, errors) == (0, "")
    found = json.loads(printed)
    assert found["n_wrong"] == 0
    assert found["model_ps"] == simulated_model_ps()
    assert (found["verdict"], found["order_violations"]) == ("ok", 0), found

    wall_ns: dict[str, int] = {}
    for actor in found["actors"]:
        scheme, address, port = actor["endpoint"].replace("//", "").split(":")
        assert (scheme, address) == ("tcp", ADDRESSES[actor["host"]])
        assert 20_000 <= int(port) < 25_000
        wall_ns[actor["host"]] = actor["wall_ns"]
    assert wall_ns.keys() == ADDRESSES.keys()
    assert abs((wall_ns["emu-host2"] - wall_ns["emu-host1"]) / 1e9 - CLOCK_OFFSET_S) < 60

    knocks = found["knocks"]
    assert all("CONNECTED" in seen for seen in knocks.values()), knocks
    assert [name for name, seen in knocks.items() if "HANDSHAKE_SUCCEEDED" in seen] == ["the session's key"], knocks

    assert {node: target.split(":")[0] for node, target in found["exporters"].items()} == ADDRESSES
    assert {node: len(up) for node, up in found["actor_up"].items()} == dict.fromkeys(ADDRESSES, 2)
    assert {state for up in found["actor_up"].values() for state in up.values()} == {1}
    assert found["files_left"] == [] and not Path(found["shared"]).exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_hosts_end_with_the_script(how: signal.Signals) -> None:
    """Whatever ends the script ends every process of both hosts; kill -9 alone leaves its directory, nothing mounted there."""
    with two_hosts("sleep", "600") as script:
        shared, family = hosts_up(script)
        try:
            script.send_signal(how)
            assert script.wait(timeout=10) == (143 if how == signal.SIGTERM else -how)
            _, alive = psutil.wait_procs(family, timeout=10)
            assert alive == []
            assert shared.exists() == (how == signal.SIGKILL)
            assert str(shared) not in Path("/proc/self/mounts").read_text(encoding="utf-8")
            assert how == signal.SIGTERM or list((shared / "host").iterdir()) == []
        finally:
            shutil.rmtree(shared, ignore_errors=True)


@pytest.mark.parametrize("host", [1, 2])
def test_a_failed_start_is_told_and_leaves_nothing(tmp_path: Path, host: int) -> None:
    """Where Ray does not start on a host, one line says what Ray said last, the status is 1, and hosts and directory are gone."""
    (tmp_path / "ray").write_text(
        f"#!/bin/sh\nsleep 0.5\necho $SHARED: no room\n[ $(hostname) != emu-host{host} ]\n", encoding="utf-8"
    )
    (tmp_path / "ray").chmod(0o755)
    with two_hosts("true", programs=tmp_path) as script:
        _, errors = script.communicate(timeout=60)
    told = re.fullmatch(r"two_hosts\.sh: ray does not start: (\S+): no room\n", errors)
    assert script.returncode == 1 and told is not None, errors
    assert not Path(told[1]).exists()


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:  # it is gone
        return {}


def hosts_up(script: subprocess.Popen[str]) -> tuple[Path, list[psutil.Process]]:
    """The script's directory, and its processes once both hosts are there."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
        family = psutil.Process(script.pid).children(recursive=True)
        shared = [Path(place) for one in family if (place := environment(one).get("SHARED"))]
        if shared and (shared[0] / "up.1").exists() and (shared[0] / "up.2").exists():
            assert len(family) >= 4, "of each host the process that holds it, and one inside"
            return shared[0], family
    raise AssertionError("the hosts did not come up")
