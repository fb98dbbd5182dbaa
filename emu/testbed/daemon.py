"""Daemon: the process of a testbed, ``python -m emu.testbed DIRECTORY``.

Its first client is the ``emu up`` that started it, at the other end of its standard input: that hands it the plan, hears how
the start goes, and ends it by hanging up before it is ready.  Afterwards it listens at the socket in its directory.
SIGTERM is ``emu down``.  However it ends by itself, nothing is left; when it is killed, Ray's processes die with it, and the
directory is swept by the next command.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from emu.bench.commands import calibration_source, open_session
from emu.bench.fabrics import prepare
from emu.bench.terminal import Terminal
from emu.errors import EmuError, fault
from emu.parameters import did_you_mean
from emu.testbed.handlers import HANDLERS, Handler
from emu.testbed.interrupt import interrupted_when
from emu.testbed.place import Place
from emu.testbed.plan import TestbedPlan
from emu.testbed.protocol import MAX_REQUEST_BYTES, REQUEST_TIMEOUT_S, Connection, ProtocolError, Reply, decode_request
from emu.testbed.testbed import STOPPED, Testbed

LAST_WORDS_S: Final = 2.0
"""How long the end waits for answers that are under way."""


class Listener:
    """Takes connections, each in a thread, and has the handlers answer."""

    def __init__(self, sock: socket.socket, testbed: Testbed, handlers: Mapping[str, Handler] = HANDLERS) -> None:
        self._sock = sock
        self._testbed = testbed
        self._handlers = handlers
        self._thread = threading.Thread(target=self._accept, name="emu-listen", daemon=True)
        self._answering: list[threading.Thread] = []

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no more, and let those that are there be answered."""
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()
        for thread in self._answering:
            thread.join(LAST_WORDS_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            self._answering = [thread for thread in self._answering if thread.is_alive()]
            thread = threading.Thread(target=self._answer, args=(Connection(sock),), name="emu-answer", daemon=True)
            self._answering.append(thread)
            thread.start()

    def _answer(self, connection: Connection) -> None:
        try:
            line = connection.read_line(most_bytes=MAX_REQUEST_BYTES, timeout_s=REQUEST_TIMEOUT_S)
            if line is None:
                connection.close()
                return
            request = decode_request(line)
            handler = self._handlers.get(request.request)
            if handler is None:
                known = ", ".join(self._handlers)
                raise ProtocolError(
                    f"request {request.request!r} is not known{did_you_mean(request.request, self._handlers)}: {known}"
                )
            handler(self._testbed, request.arguments, connection)
        except (EmuError, OSError) as error:
            connection.end(exit_code=getattr(error, "exit_code", 1), text=str(error))
        except Exception as error:
            traceback.print_exc()
            connection.end(exit_code=1, text=f"the testbed could not answer: {fault(error)}; see {self._testbed.place.log}")


class _Starting(Terminal):
    """What happens on the way up, told to ``emu up``."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def progress(self, text: str) -> None:
        self._connection.send(Reply(kind="progress", text=text))

    def message(self, text: str) -> None:
        self._connection.send(Reply(kind="message", text=text))


def start(place: Place, connection: Connection) -> Testbed:
    """The testbed that the request at ``connection`` asks for, ready.  Raises EmuError."""
    line = connection.read_line(most_bytes=MAX_REQUEST_BYTES, timeout_s=REQUEST_TIMEOUT_S)
    if line is None:
        raise KeyboardInterrupt
    plan = TestbedPlan.from_plain(dict(decode_request(line).arguments))
    options = plan.options
    case = prepare(options, options.fabrics[0], options.seed)
    terminal = _Starting(connection)
    if options.dilation is None:
        calibration_source(terminal, options.address, open_session)()  # before a session is up, which its own would disturb
    terminal.progress(f"{case.name}: starting {case.topology.n_ranks} ranks")
    session = open_session(case, options, simulate=False, payload=True)
    try:
        return Testbed(plan=plan, place=place, case=case, session=session)
    except BaseException:
        session.close()
        raise


def main(directory: Path) -> int:
    """The whole life of a testbed."""
    first = Connection(socket.socket(fileno=os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    place = Place(directory)
    place.own()
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupted_when(lambda: told.is_set() or first.stopped()):
            testbed = start(place, first)
    except BaseException as error:
        if not isinstance(error, EmuError | KeyboardInterrupt):
            traceback.print_exc()
        place.remove()
        text = str(error) if isinstance(error, EmuError) else "" if isinstance(error, KeyboardInterrupt) else fault(error)
        exit_code = STOPPED if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
        first.end(exit_code=exit_code, text=text)
        return exit_code
    signal.signal(signal.SIGTERM, lambda number, frame: testbed.end())
    if told.is_set():
        testbed.end()
    listener = Listener(place.listen(), testbed)
    listener.start()
    first.end(value=testbed.status())
    try:
        testbed.work()
    finally:
        testbed.close()
        listener.close()
    return 0
