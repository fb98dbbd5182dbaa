"""Faults of a testbed: what ``emu fault`` asks, what the testbed answers, and how that is printed.

The session takes faults in any thread, so that a run which is under way suffers them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict

from emu.bench.terminal import Terminal
from emu.faults.book import FaultRecord
from emu.faults.spec import parse_fault
from emu.parameters import validate
from emu.testbed import client
from emu.testbed.place import find
from emu.testbed.protocol import Connection

if TYPE_CHECKING:
    from emu.testbed.testbed import Testbed

Plain = dict[str, Any]
ANSWER_S = 60.0
"""How long a testbed may take: a host that is busy answers late."""


class _Add(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    fault: str
    dry_run: bool = False


class _Clear(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    number: int | None = None


# -- in the testbed ------------------------------------------------------------------------------


def answer_add(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    asked = validate(_Add, arguments, where="fault.add")
    connection.end(value=[_plain(testbed.session.add_fault(asked.fault, dry_run=asked.dry_run))])


def answer_list(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    connection.end(value=[_plain(record) for record in testbed.session.faults()])


def answer_clear(testbed: Testbed, arguments: Mapping[str, Any], connection: Connection) -> None:
    asked = validate(_Clear, arguments, where="fault.clear")
    connection.end(value=[_plain(record) for record in testbed.session.clear_faults(asked.number)])


def _plain(record: FaultRecord) -> Plain:
    return {**asdict(record), "said": str(record)}


# -- at the terminal -----------------------------------------------------------------------------


def add(name: str, fault: str, *, dry_run: bool, as_json: bool, terminal: Terminal | None = None) -> int:
    parse_fault(fault)  # what is wrong with the words is said here
    (record,) = _ask(name, "fault.add", {"fault": fault, "dry_run": dry_run})
    if not dry_run:
        return _print([record], as_json, terminal)
    said = f"would hit {', '.join(record['components'])}; carried out by the actors of {', '.join(record['nodes'])}"
    return _print([{**record, "said": said}], as_json, terminal)


def list_all(name: str, *, as_json: bool, terminal: Terminal | None = None) -> int:
    return _print(_ask(name, "fault.list", {}), as_json, terminal)


def clear(name: str, number: int | None, *, as_json: bool, terminal: Terminal | None = None) -> int:
    return _print(_ask(name, "fault.clear", {"number": number}), as_json, terminal)


def _ask(name: str, request: str, arguments: Plain) -> list[Plain]:
    return cast("list[Plain]", client.ask(find(name), request, arguments, timeout_s=ANSWER_S))


def _print(records: list[Plain], as_json: bool, terminal: Terminal | None) -> int:
    terminal = terminal or Terminal()
    if as_json:
        terminal.lines(json.dumps(records, indent=2))
    elif records:
        terminal.lines(*(record["said"] for record in records))
    else:
        terminal.message("emu: no faults")
    return 0
