"""The commands behind ``emu up``, ``status``, ``down`` and ``--session``: each gives an exit code.  They raise EmuError."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, cast

from emu.bench.fabrics import prepare
from emu.bench.options import PROTOCOL_VARIABLE, BenchOptions
from emu.bench.report import check_writable
from emu.bench.terminal import Terminal
from emu.clock import wall_ns
from emu.errors import ConfigError, EmuError
from emu.host import check_answers
from emu.testbed import client
from emu.testbed.place import DEFAULT_NAME, Place, Process, claim, find, places, sweep_dead
from emu.testbed.plan import ENVIRONMENT, TestbedPlan
from emu.testbed.protocol import Connection, Request
from emu.testbed.status import Plain, cells, format_span, lines, table

END_S: Final = 30.0
"""How long a testbed may take to end by itself, then by SIGTERM, before it is killed."""
KILL_S: Final = 5.0


def up(name: str, plan: TestbedPlan, *, terminal: Terminal | None = None) -> int:
    """Start a testbed and come back when it is ready."""
    terminal = terminal or Terminal()
    options = plan.options
    prepare(options, options.fabrics[0], options.seed)  # what is wrong is found before anything starts
    if options.address is not None:
        check_answers(options.address)
    began_ns = wall_ns()
    place, swept = claim(name)
    _tell_swept(swept, terminal)
    ours, theirs = socket.socketpair()
    with place.log.open("wb") as log, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "emu.testbed", str(place.directory)],
            stdin=theirs.fileno(),
            stdout=log,
            stderr=log,
            start_new_session=True,  # neither Ctrl-C nor the end of this terminal is meant for it
        )
    try:
        with Connection(ours) as connection:
            reply = client.converse(connection, place, Request(request="up", arguments=plan.as_plain()), terminal)
    except BaseException:
        _end_process(Process.of(process.pid))
        process.wait()
        place.remove()
        raise
    if reply.exit_code:
        return reply.exit_code
    status = cast(Plain, reply.value)
    endpoints = status["metrics"]
    terminal.lines(
        f"{place.name} is up: {status['fabric']}, {status['n_ranks']} ranks in {status['n_actors']} actors,"
        f" ready in {format_span((wall_ns() - began_ns) / 1e9)}",
        *(f"  {'' if number else 'metrics':<8} {endpoint}" for number, endpoint in enumerate(endpoints)),
        f"  log      {place.log}",
        f"  next     emu bench all_reduce --session {place.name} -b 1M -e 64M -f 4",
        f"           emu status {place.name}",
        f"           emu down {place.name}",
    )
    return 0


def status(name: str | None, *, as_json: bool = False, terminal: Terminal | None = None) -> int:
    """One testbed in some lines, or all in a line each."""
    terminal = terminal or Terminal()
    _tell_swept(sweep_dead(), terminal)
    if name is not None:
        found = _ask_status(find(name))
        terminal.lines(*([json.dumps(found, indent=2)] if as_json else lines(found)))
        return 0
    every: list[Plain] = []
    for place in places():
        try:
            every.append(_ask_status(place))
        except EmuError as error:
            terminal.message(f"emu: {error}")
    if as_json:
        terminal.lines(json.dumps(every, indent=2))
    elif every:
        terminal.lines(*table([cells(one) for one in every]))
    else:
        terminal.message("emu: no testbed is up; start one with emu up")
    return 0


def down(name: str | None, *, every: bool = False, terminal: Terminal | None = None) -> int:
    """End a testbed, or all: when this is back, nothing is left."""
    terminal = terminal or Terminal()
    if every and name is not None:
        raise ConfigError(f"down {name} --all: name a testbed or end them all, not both")
    swept = sweep_dead()
    _tell_swept(swept, terminal)
    name = name or DEFAULT_NAME
    if every and not (living := [place for place in places() if place.alive]):
        terminal.message("emu: no testbed is up")
    ending = living if every else [] if name in swept else [find(name)]
    for place in ending:
        _end(place, terminal)
        terminal.lines(f"{place.name} is down")
    return 0


def bench(
    name: str,
    options: BenchOptions,
    *,
    given: Collection[str],
    wait: bool = False,
    arguments: Sequence[str] = (),
    json_path: Path | None = None,
    run_path: Path | None = None,
    terminal: Terminal | None = None,
) -> int:
    """``emu bench --session NAME``: the run is made in the testbed and printed here.  ``given``: the flags that were typed."""
    for flag, path in (("--json", json_path), ("--run-file", run_path)):
        if path is not None:
            check_writable(flag, path)
    if options.protocol is not None:
        said = f"# {PROTOCOL_VARIABLE}={options.protocol} has no effect: emu up fixes a testbed's protocol, with --set protocol="
        (terminal or Terminal()).message(said)
    return client.run(
        find(name),
        "bench",
        {
            "options": options.as_plain(),
            "given": sorted(given),
            "arguments": list(arguments),
            "environment": {key: value for key, value in os.environ.items() if key.startswith(ENVIRONMENT)},
            "json_path": None if json_path is None else str(json_path.absolute()),
            "run_path": None if run_path is None else str(run_path.absolute()),
            "wait": wait,
        },
        terminal or Terminal(),
    )


def _ask_status(place: Place) -> Plain:
    return cast(Plain, client.ask(place, "status"))


def _tell_swept(names: Sequence[str], terminal: Terminal) -> None:
    for name in names:
        terminal.message(f"emu: the process of testbed {name!r} was killed; what it left is swept")


def _end(place: Place, terminal: Terminal) -> None:
    """Ask it to end; one that does not is killed."""
    owner = place.owner()
    try:
        client.ask(place, "down", timeout_s=END_S)
    except EmuError as error:
        terminal.message(f"emu: {error}")
    _end_process(owner)
    sweep_dead()


def _end_process(process: Process | None) -> None:
    """Wait for its end; help where it does not come."""
    if process is None or process.ended(KILL_S):
        return
    process.kill(signal.SIGTERM)
    if not process.ended(END_S):
        process.kill(signal.SIGKILL)
        process.ended(KILL_S)
        process.kill_orphans()
