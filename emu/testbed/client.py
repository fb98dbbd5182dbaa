"""Client: asks a testbed, prints what it answers as it comes, and hangs up for Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from emu.bench.terminal import Terminal
from emu.errors import EmuError
from emu.testbed.place import Place
from emu.testbed.protocol import MAX_REPLY_BYTES, Connection, Reply, Request, decode_reply

ANSWER_S: Final = 15.0
"""How long a testbed may take to answer what it answers at once."""
STOP_S: Final = 30.0
"""How long it may take to stop a run."""


class TestbedError(EmuError):
    """What a testbed answered when it could not do what was asked, with its exit code."""

    __test__ = False

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return str(self.args[0])


def ask(place: Place, request: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = ANSWER_S) -> object:
    """The value that a testbed answers at once.  Raises EmuError, also when it does not answer."""
    with _connected(place) as connection:
        connection.send(Request(request=request, arguments=dict(arguments or {})))
        return _hear(connection, place, Terminal(), timeout_s=timeout_s).value


def run(place: Place, request: str, arguments: Mapping[str, Any], terminal: Terminal) -> int:
    """Have a testbed run something, and print what it says; the exit code.  Ctrl-C stops the run and not the testbed.

    Raises EmuError.
    """
    with _connected(place) as connection:
        return converse(connection, place, Request(request=request, arguments=dict(arguments)), terminal).exit_code


def converse(connection: Connection, place: Place, request: Request, terminal: Terminal) -> Reply:
    """Ask for something that takes its time; the end of the answer.  Ctrl-C hangs up, waits for the end, and goes on."""
    connection.send(request)
    try:
        return _hear(connection, place, terminal, timeout_s=None)
    except KeyboardInterrupt:
        terminal.clear()
        connection.stop()
        with contextlib.suppress(TestbedError):  # that it was stopped
            _hear(connection, place, terminal, timeout_s=STOP_S)
        raise
    finally:
        terminal.clear()


def _connected(place: Place) -> Connection:
    try:
        return Connection(place.connect())
    except OSError as error:
        raise EmuError(
            f"testbed {place.name!r} does not answer ({error}); it starts, ends or hangs: emu down {place.name} ends it"
        ) from None


def _hear(connection: Connection, place: Place, terminal: Terminal, *, timeout_s: float | None) -> Reply:
    """Print replies until the last, which is returned.  Raises TestbedError for its error, EmuError when it never comes."""
    while True:
        try:
            line = connection.read_line(most_bytes=MAX_REPLY_BYTES, timeout_s=timeout_s)
        except (TimeoutError, ConnectionError) as error:
            raise EmuError(f"testbed {place.name!r} does not answer: {error}; emu down {place.name} ends it") from None
        if line is None:
            raise EmuError(f"testbed {place.name!r} has died: {place.last_words() or 'its process was killed'}")
        reply = decode_reply(line)
        if reply.kind == "line":
            terminal.lines(reply.text)
        elif reply.kind == "message":
            terminal.message(reply.text)
        elif reply.kind == "progress":
            terminal.progress(reply.text)
        elif reply.text:
            raise TestbedError(reply.text, reply.exit_code)
        else:
            return reply
