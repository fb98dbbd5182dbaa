"""Fixtures for runs with real actors and sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

STAR = {"ranks": "4", "rate": "1GB/s", "latency": "100us"}


def leftovers() -> set[str]:
    """What a session could leave behind: shared memory files, directories in /tmp, abstract sockets, child processes."""
    found = {str(path) for path in Path("/dev/shm").glob("*emu*")} | {str(path) for path in Path("/tmp").glob("emu-*")}
    found |= {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@emu-" in line}
    me = psutil.Process(os.getpid())
    found |= {
        f"process {child.pid} {child.name()}" for child in me.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE
    }
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test that leaves a process, a socket, a port or a file."""
    before = leftovers()
    yield
    psutil.wait_procs(psutil.Process(os.getpid()).children(recursive=True), timeout=5)
    assert leftovers() - before == set()
