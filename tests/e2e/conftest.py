"""Fixtures for runs with real actors and sockets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

STAR = {"ranks": "4", "rate": "1GB/s", "latency": "100us"}


def leftovers() -> set[str]:
    """What a session could leave behind: shared memory files, directories in /tmp, abstract sockets, child processes.

    What a living process that is none of ours holds is another emu's on this host, and its business.
    """
    me = psutil.Process(os.getpid())
    children = [child for child in me.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    ours = {me.pid, *(child.pid for child in children)}
    files = [*Path("/dev/shm").glob("*emu*"), *Path("/tmp").glob("emu-*")]
    found = {str(path) for path in files if not _is_others(path.name, ours)}
    sockets = psutil.net_connections(kind="unix")
    found |= {str(s.laddr) for s in sockets if "@emu-" in str(s.laddr) and (s.pid is None or s.pid in ours)}
    return found | {f"process {child.pid} {child.name()}" for child in children}


def _is_others(name: str, ours: set[int]) -> bool:
    """Whether a file's name bears the id of a living process that is not ours."""
    maker = re.search(r"emu-(\d+)-", name)
    return maker is not None and int(maker[1]) not in ours and psutil.pid_exists(int(maker[1]))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test that leaves a process, a socket, a port or a file."""
    before = leftovers()
    yield
    psutil.wait_procs(psutil.Process(os.getpid()).children(recursive=True), timeout=5)
    assert leftovers() - before == set()
