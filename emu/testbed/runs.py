"""Runs: ``emu bench`` and ``emu predict`` in a testbed's process, on the session that it has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from emu.bench.commands import bench, open_session
from emu.bench.fabrics import Case
from emu.bench.options import BenchOptions
from emu.bench.rows import Row
from emu.bench.run_file import resolved_fabric
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.session import Session
from emu.testbed.plan import ENVIRONMENT, run_options
from emu.testbed.protocol import Connection, Reply
from emu.testbed.testbed import Run, Testbed
from emu.units import format_bytes


class BenchRequest(BaseModel):
    """What a client asks for.  Paths are absolute; ``given`` are the flags of the testbed's that were on the command line."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    options: dict[str, Any]
    given: list[str] = []
    arguments: list[str] = []
    environment: dict[str, str] = {}
    json_path: str | None = None
    run_path: str | None = None
    wait: bool = False


class _Remote(Terminal):
    """A terminal at the other end of a connection; a client that does not listen any more ends the run."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def _send(self, reply: Reply) -> None:
        if not self._run.connection.send(reply):
            raise KeyboardInterrupt

    def progress(self, text: str) -> None:
        self._run.doing = text
        self._send(Reply(kind="progress", text=text))

    def clear(self) -> None:
        """The client takes its progress line back itself."""

    def message(self, text: str) -> None:
        self._send(Reply(kind="message", text=text))

    def lines(self, *lines: str) -> None:
        for line in lines:
            self._send(Reply(kind="line", text=line))

    def row(self, row: Row, ratio: float | None) -> None:
        self._run.n_rows += 1
        super().row(row, ratio)


def submit(testbed: Testbed, asked: BenchRequest, connection: Connection) -> None:
    """Have the testbed run it.  Raises EmuError for what it cannot, before anything starts."""
    options = run_options(
        testbed.place.name, testbed.plan.options, BenchOptions.from_plain(asked.options, where="bench"), asked.given
    )
    verb = "predict" if options.simulated else "bench"
    sizes = format_bytes(options.begin_bytes)
    if options.end_bytes != options.begin_bytes:
        sizes += f" to {format_bytes(options.end_bytes)}"

    def make(run: Run) -> int:
        terminal = _Remote(run)
        opener = _Opener(testbed, options, terminal)
        opener.look()
        with _environment(asked.environment):
            return bench(
                options,
                arguments=asked.arguments,
                json_path=None if asked.json_path is None else Path(asked.json_path),
                run_path=None if asked.run_path is None else Path(asked.run_path),
                terminal=terminal,
                opened=opener,
            )

    testbed.submit(Run(what=f"{verb} {options.collective} {sizes}", connection=connection, make=make), wait=asked.wait)


class _Opener:
    """Lends the testbed's session to the run itself; what else it wants, such as a simulation of the case, it opens."""

    def __init__(self, testbed: Testbed, options: BenchOptions, terminal: Terminal) -> None:
        self._testbed = testbed
        self._session = testbed.session
        self._options = options
        self._terminal = terminal

    def __call__(self, case: Case, options: BenchOptions, *, simulate: bool, payload: bool) -> AbstractContextManager[Session]:
        if options is not self._options:
            return open_session(case, options, simulate=simulate, payload=payload)
        if simulate:
            return open_session(self._survivors(case), options, simulate=True, payload=payload)
        name = self._testbed.place.name
        if resolved_fabric(case) != resolved_fabric(self._testbed.case):
            raise ConfigError(
                f"fabric {case.name!r} has changed since testbed {name!r} was started; emu down {name}, then emu up"
            )
        return nullcontext(self._session)

    def look(self) -> None:
        """See who is left, and say so where some are not.  Raises ConfigError for a root that none of them is."""
        session, n_ranks = self._session, self._session.topology.n_ranks
        session.look()
        n_left = len(session.ranks)
        if session.lost:
            dead = ", ".join(session.lost)
            self._terminal.message(f"# testbed {self._testbed.place.name}: {dead} dead; {n_left} of {n_ranks} ranks run")
        if n_left and self._options.printed_root >= n_left:
            raise ConfigError(f"-r {self._options.root}: {n_left} ranks are left; use 0 to {n_left - 1}")

    def _survivors(self, case: Case) -> Case:
        """The case of the ranks that are left, as the session runs it."""
        topology = case.topology
        left = tuple(topology.ranks[rank] for rank in self._session.ranks)
        return case if len(left) in (0, topology.n_ranks) else replace(case, topology=replace(topology, ranks=left))


@contextmanager
def _environment(theirs: Mapping[str, str]) -> Iterator[None]:
    """The client's variables while its run lasts."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}
    try:
        _set_environment(theirs)
        yield
    finally:
        _set_environment(ours)


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT)]:
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if name.startswith(ENVIRONMENT)})
