"""Place: the private directory of a testbed, which holds its name: whose it is, its socket, its log.

Law: a name belongs to the process that made its directory, told by id, start time and boot, so that a number used again is
not taken for it.  What a dead process left is swept by the next command that sees it, which says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from emu.clock import sleep_s, wall_ns
from emu.errors import ConfigError
from emu.host import process_stat, sweep
from emu.parameters import did_you_mean
from emu.telemetry import file_sd

DEFAULT_NAME: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWNER: Final = "process.json"
_LOOK_S: Final = 0.02
_SESSION, _START = 3, 19
"""Places of a process's session and start time after its name in /proc/PID/stat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of this host, once and for all.  ``start_ticks`` is its start since boot, in the kernel's clock ticks."""

    pid: int
    start_ticks: int
    boot: str

    @staticmethod
    def of(pid: int) -> Process | None:
        """The process that has this id now; None where there is none, or only its remains."""
        stat = process_stat(pid)
        return Process(pid=pid, start_ticks=int(stat[_START]), boot=_boot()) if stat and stat[0] not in "ZX" else None

    @staticmethod
    def this() -> Process:
        found = Process.of(os.getpid())
        assert found is not None, "a process can read its own entry in /proc"
        return found

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def ended(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came in time."""
        deadline_ns = wall_ns() + int(timeout_s * 1e9)
        while self.alive:
            if wall_ns() > deadline_ns:
                return False
            sleep_s(_LOOK_S)
        return True

    def kill(self, number: signal.Signals) -> None:
        """Send a signal, unless it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_orphans(self) -> None:
        """End what a dead leader of a session has left in it: Ray's agents would look for their master for a minute.

        The kernel gives a number to nobody else while it is a session's; one that somebody has is not this process's any more.
        """
        if Process.of(self.pid) is not None or self.boot != _boot():
            return
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and process_stat(int(entry.name))[_SESSION : _SESSION + 1] == [str(self.pid)]:
                with contextlib.suppress(OSError):
                    os.kill(int(entry.name), signal.SIGKILL)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def home() -> Path:
    """Where testbeds have their directories: $XDG_RUNTIME_DIR/emu/testbeds, else ~/.cache/emu/testbeds."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or ""
    return (Path(runtime) if os.path.isabs(runtime) else Path.home() / ".cache") / "emu" / "testbeds"


def check_name(name: str) -> str:
    """Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"testbed {name!r}: a name is 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of a testbed that is up, starts, or was killed."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def owner(self) -> Process | None:
        """Whose it is; None where that cannot be read."""
        try:
            return Process(**json.loads((self.directory / _OWNER).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    @property
    def alive(self) -> bool:
        owner = self.owner()
        return owner is not None and owner.alive

    def own(self) -> None:
        """It is this process's from now on; replaced whole."""
        _write_owner(self.directory)

    def remove(self) -> None:
        """Free the name at once, then clear up."""
        gone = self.directory.with_name(f".{os.getpid()}-{wall_ns()}")
        with contextlib.suppress(OSError):  # it is gone already
            self.directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def last_words(self) -> str:
        """The last line of the log, for when the process could say nothing any more."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def listen(self) -> socket.socket:
        """The socket at which commands ask; only this user can reach it."""
        listener = socket.socket(socket.AF_UNIX)
        with self._reach("socket") as path:
            listener.bind(path)
            os.chmod(path, 0o600)
        listener.listen()
        return listener

    def connect(self) -> socket.socket:
        """Raises OSError where nobody listens."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            with self._reach("socket") as path:
                sock.connect(path)
        except OSError:
            sock.close()
            raise
        return sock

    @contextlib.contextmanager
    def _reach(self, file: str) -> Iterator[str]:
        """A path to ``file`` that is short however long the directory's is: a socket's may have 107 bytes."""
        folder = os.open(self.directory, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{folder}/{file}"
        finally:
            os.close(folder)


def claim(name: str) -> tuple[Place, list[str]]:
    """The directory of a new testbed, this process's, and the names of killed ones that were swept.

    Raises ConfigError when the name is taken.
    """
    place = Place(home() / check_name(name))
    place.directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    swept = sweep_dead()
    made = Path(tempfile.mkdtemp(prefix=f".{os.getpid()}-", dir=place.directory.parent))  # mode 0700
    try:
        _write_owner(made)
        made.rename(place.directory)  # of two that want the name one gets it, with all that is in it
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not place.directory.exists():
            raise
        raise ConfigError(
            f"testbed {name!r} is up already; use it (emu bench --session {name}), end it (emu down {name}), or take another name"
        ) from None
    return place, swept


def places() -> list[Place]:
    """All there are, by name; also those whose process was killed."""
    try:
        found = sorted(path for path in home().iterdir() if _NAME.fullmatch(path.name) and path.is_dir())
    except OSError:
        return []
    return [Place(path) for path in found]


def sweep_dead() -> list[str]:
    """Remove what killed testbeds have left; their names."""
    dead = [place for place in places() if not place.alive]
    for place in dead:
        owner = place.owner()
        if owner is not None:
            owner.kill_orphans()
        place.remove()
    for path in home().glob(".*-*"):  # of a command that was killed on its way
        maker = path.name[1:].partition("-")[0]
        if maker.isdigit() and Process.of(int(maker)) is None:
            shutil.rmtree(path, ignore_errors=True)
    if dead:
        sweep()
        file_sd.sweep()
    return [place.name for place in dead]


def find(name: str) -> Place:
    """A living testbed.  Raises ConfigError that names those there are."""
    living = {place.name: place for place in places() if place.alive}
    if check_name(name) in living:
        return living[name]
    others = f"those that are: {', '.join(living)}" if living else "start one with emu up"
    raise ConfigError(f"testbed {name!r} is not up{did_you_mean(name, living)}; {others}")


def _write_owner(directory: Path) -> None:
    beside = directory / f".{_OWNER}"
    beside.write_text(json.dumps(asdict(Process.this())), encoding="utf-8")
    beside.replace(directory / _OWNER)
