"""emu diagnose on a testbed that is up: a fault that was added to it, and a host that does not keep pace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emu import cli
from emu.clock import wall_ns

pytestmark = pytest.mark.slow
FABRIC = ["--fabric", "star", "--set", "ranks=3", "--set", "rate=1GB/s", "--set", "latency=100us"]
RUN = ["bench", "all_reduce", "--session", "lab", "-b", "256K", "-e", "256K", "-n", "3", "-w", "1"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    terminated = signal.getsignal(signal.SIGTERM)

    def emu(*arguments: str) -> str:
        exit_code = cli.main(arguments)
        out, err = capsys.readouterr()
        assert exit_code == 0, err + out
        return out

    try:
        emu("up", "lab", *FABRIC)
        yield emu
    finally:
        cli.main(["down", "--all"])
        signal.signal(signal.SIGTERM, terminated)


def test_a_testbed_is_diagnosed_while_it_is_up(lab: Any) -> None:
    """A host that cannot keep pace is reported and nothing else is; a link that becomes slow in a run is named while it lasts."""
    assert lab("diagnose", "lab").splitlines() == ["nothing is wrong"]
    lab(*RUN, "--dilation", "0.01")
    assert [one["cause"] for one in json.loads(lab("diagnose", "lab", "--json"))] == ["emulator overloaded"]
    long_run = [*RUN[:-4], "-n", "4000", "-w", "1", "--dilation", "50"]
    running = subprocess.Popen([sys.executable, "-m", "emu", *long_run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_ns = wall_ns() + int(60e9)
        while json.loads(lab("status", "lab", "--json"))["now"] is None:
            assert wall_ns() < deadline_ns
        lab("fault", "add", "lab", "a1->s0=slow,factor=0.5")
        found: list[dict[str, Any]] = []
        while not found and wall_ns() < deadline_ns:
            seen = json.loads(lab("diagnose", "lab", "--window", "1", "--json"))
            found = [one for one in seen if one["cause"] != "emulator overloaded"]
        assert running.poll() is None
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(60)
    assert [(one["cause"], one["component"]) for one in found] == [("slow link", "a1->s0")]
