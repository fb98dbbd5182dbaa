"""Handlers: what can be asked of a testbed.  Each has a thread of its own, answers on the connection and ends it.

What a handler raises as an EmuError ends the connection with its words and exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from emu.parameters import validate
from emu.telemetry.observation import Observation
from emu.testbed import faults, runs
from emu.testbed.protocol import Connection
from emu.testbed.testbed import Testbed

Handler = Callable[[Testbed, Mapping[str, Any], Connection], None]


def status(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    """What it is and does."""
    connection.end(value=testbed.status())


def bench(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    """A run; the main thread answers."""
    runs.submit(testbed, validate(runs.BenchRequest, arguments, where="bench"), connection)


def observe(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    """What a monitoring system sees of its last run."""
    connection.end(value=TypeAdapter(Observation).dump_python(testbed.observe(), mode="json"))


def down(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    """End it; answered when nothing is left."""
    testbed.end()
    testbed.closed.wait()
    connection.end()


HANDLERS: Final[Mapping[str, Handler]] = {
    "status": status,
    "bench": bench,
    "observe": observe,
    "down": down,
    "fault.add": faults.answer_add,
    "fault.list": faults.answer_list,
    "fault.clear": faults.answer_clear,
}
"""Request -> who answers."""
