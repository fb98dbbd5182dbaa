"""Testbeds that stay, from the command line: up, runs, a death, down, and nothing left; also when the process is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from emu import cli

pytestmark = pytest.mark.slow
FABRIC = ["--fabric", "star", "--set", "ranks=3", "--set", "rate=1GB/s", "--set", "latency=100us"]
SMALL = ["--dilation", "50", "-b", "8K", "-e", "8K", "-n", "2"]


class Shell:
    """The command line, with testbeds that are this test's own."""

    def __init__(self, runtime: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.runtime = runtime
        self._capture = capture

    def emu(self, *arguments: str, expect: int = 0) -> tuple[str, str]:
        """What it says on stdout and on stderr."""
        exit_code = cli.main(arguments)
        out, err = self._capture.readouterr()
        assert exit_code == expect, err + out
        return out, err

    def status(self) -> Any:
        return json.loads(self.emu("status", "lab", "--json")[0])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    terminated = signal.getsignal(signal.SIGTERM)
    shell = Shell(tmp_path, capsys)
    try:
        yield shell
    finally:
        cli.main(["down", "--all"])
        signal.signal(signal.SIGTERM, terminated)


def of_session(leader: int) -> list[psutil.Process]:
    """Every living process of the session that ``leader`` leads, which are all that a testbed starts."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def files_of(leader: int, runtime: Path) -> list[Path]:
    here = [path for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob(f"emu-{leader}-*")]
    return here + [path for path in (runtime / "emu").rglob("*") if not path.is_dir()]


def test_up_two_runs_a_death_and_down(shell: Shell) -> None:
    """Runs find the actors up and print the same model times; a frame of emu top shows what they did; a killed actor is named
    and the others go on; after down no process, file or socket is left."""
    told, _ = shell.emu("up", "lab", *FABRIC)
    assert "lab is up: star ranks=3" in told and "/metrics" in told and "emu down lab" in told
    before = shell.status()
    assert (before["n_ranks"], before["n_actors"], before["n_runs"], before["dead"]) == (3, 4, 0, [])
    assert len(of_session(before["pid"])) > before["n_actors"]
    rows = [shell.emu("bench", "all_reduce", "--session", "lab", *SMALL)[0] for _ in range(2)]
    models = [[line.split()[13] for line in text.splitlines() if line and not line.startswith("#")] for text in rows]
    assert models[0] == models[1] and len(models[0]) == 1
    after = shell.status()
    assert {actor["pid"] for actor in after["session"]["actors"]} == {actor["pid"] for actor in before["session"]["actors"]}
    assert [run["outcome"] for run in after["runs"]] == ["ok", "ok"]
    frame, _ = shell.emu("top", "lab", "--once")
    assert "4 of 4 actors up" in frame and "a0->s0" in frame and "2 runs, last ok" in frame and "serialisation" in frame
    assert shell.emu("up", "lab", expect=2)[1].startswith("emu: testbed 'lab' is up already")
    victim = next(actor["pid"] for actor in after["session"]["actors"] if "a1" in actor["nodes"])
    os.kill(victim, signal.SIGKILL)
    for _ in range(100):  # Ray takes a moment to see it
        status = shell.status()
        if status["dead"]:
            break
        time.sleep(0.1)
    assert status["dead"] == ["a1"]
    assert [rank["alive"] for rank in status["session"]["ranks"]] == [True, False, True]
    assert "rank 1 (a1): dead" in shell.emu("status", "lab")[0]
    _, messages = shell.emu("bench", "all_gather", "--session", "lab", *SMALL)
    assert "# testbed lab: a1 dead; 2 of 3 ranks run\n" in messages
    assert shell.emu("down", "lab")[0] == "lab is down\n"
    assert of_session(status["pid"]) == [] and files_of(status["pid"], shell.runtime) == []


def test_a_killed_testbed_is_swept(shell: Shell) -> None:
    """After kill -9 of its process the next command says so, and neither Ray nor a file of it is left."""
    shell.emu("up", "lab", *FABRIC, "--ranks", "2", "--dilation", "0")
    owner = json.loads((shell.runtime / "emu" / "testbeds" / "lab" / "process.json").read_text())["pid"]
    os.kill(owner, signal.SIGKILL)
    _, messages = shell.emu("status")
    assert "the process of testbed 'lab' was killed; what it left is swept" in messages
    psutil.wait_procs(of_session(owner), timeout=5)
    assert of_session(owner) == [] and files_of(owner, shell.runtime) == []
