"""Host: what this machine gives to a run, and takes back: memory, descriptors, directories; and whether another answers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

from emu.errors import ConfigError

DIRECTORY_PREFIX: Final = "emu-"
ANSWER_S: Final = 5.0
_M_TRIM_THRESHOLD: Final = -1  # <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 512 * 2**20
MALLOC: Final = {"MALLOC_ARENA_MAX": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Settings of the environment for processes that move chunks.

One arena: blocks that another than the first holds go back to the system whatever the thresholds of :func:`keep_memory`, and a
switch that took in 64 MiB chunks faulted 60,000 pages a collective, in ZeroMQ's thread.  Huge pages, where the system has them to
give: a ring all-reduce over tcp took 4 % less time.
"""


def keep_memory() -> None:
    """Have malloc keep chunk-sized blocks instead of giving them back: a page fault per 4 KiB costs more than the copy."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def memory_directory() -> Path:
    """Where a file lies in memory, if this host has such a place."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def new_directory() -> Path:
    """A temporary directory that bears this process's number, so that it can be told when its owner is gone."""
    return Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{os.getpid()}-"))


def write_whole(path: Path, data: str | bytes, *, mode: str = "w") -> None:
    """All of ``data`` in a file, or none of it: where the disk is full no stub stays.  Raises OSError, which names the file.

    ``mode``: "w", or "x" where there must be no such file yet.
    """
    file = path.open(mode + "b")  # what fails from here on leaves a stub
    try:
        with file:
            file.write(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        if path.is_file():
            path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def process_stat(process_id: int) -> list[str]:
    """What proc(5) tells of a process, from its third field, the state, on; nothing where there is none."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def sweep() -> None:
    """Remove directories and pages of sessions whose process was killed."""
    if not Path("/proc").is_dir():
        return
    for place in {Path(tempfile.gettempdir()), memory_directory()}:
        for path in place.glob(f"{DIRECTORY_PREFIX}*-*"):
            owner = path.name.removeprefix(DIRECTORY_PREFIX).split("-")[0]
            if not owner.isdigit() or is_alive(int(owner)):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def descriptors_needed(n_connections: int) -> int:
    """File descriptors that an actor with so many outgoing (and as many incoming) connections opens, with a reserve."""
    return 40 + 4 * n_connections


def is_alive(process_id: int) -> bool:
    """Whether there is such a process on this host, and not only its remains, which nobody may ever collect in a container."""
    return process_stat(process_id)[:1] not in ([], ["Z"], ["X"])


def is_stopped(process_id: int) -> bool:
    """Whether a process of this host is stopped (SIGSTOP, a debugger); False where it is gone."""
    return process_stat(process_id)[:1] in (["T"], ["t"])


def descriptor_limit() -> int:
    """The soft limit of this process."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check_answers(address: str) -> None:
    """Ray retries a dead address for a minute and fills stderr; ask first.  Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if address == "auto" or "://" in address:
        return
    if not host or not port.isdigit():
        raise ConfigError(f"--address {address}: write HOST:PORT of a Ray cluster's head, such as 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise ConfigError(
            f"--address {address}: nothing answers there ({error}); start a cluster with 'ray start --head'"
        ) from None
