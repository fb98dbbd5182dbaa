"""nccl-tests' output: its text table and its JSON (``-J``), of any version.

Text: the collective is that of the command line or of "Collective test starting", the ranks are counted from the device lines
``#  Rank  0 ...``.  Rows are split on white space, so that columns of later versions do no harm; out-of-place times are taken.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from emu.collectives.catalogue import collective_name
from emu.errors import ConfigError
from emu.validation.measurement import Measurement, read_table

_STARTING: Final = re.compile(r"Collective test starting:\s*(\w+)")
_PROGRAM: Final = re.compile(r"(\w+)_perf\b")
_RANK: Final = re.compile(r"^#\s+Rank\s+(\d+)\b", re.MULTILINE)
_SIZE, _TIME = 0, 5
"""Columns: size, count, type, redop, root, then the out-of-place time in us."""


def read_file(path: Path, *, collective: str | None = None, n_ranks: int | None = None) -> tuple[Measurement, ...]:
    """The rows of a file, of nccl-tests or a table of emu's.  What a file does not say, the caller may.  Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; give nccl-tests' output, its JSON (-J), or a .csv table") from None
    if path.suffix == ".csv":
        return read_table(text.splitlines(), path.name)
    found = (
        _from_json(text, path, collective, n_ranks)
        if text.lstrip().startswith("{")
        else _from_text(text, path, collective, n_ranks)
    )
    if not found:
        raise ConfigError(
            f"{path}: no row of nccl-tests' table; nccl-tests' output is wanted, its whole text or the JSON that -J wrote"
        )
    return found


def _from_text(text: str, path: Path, collective: str | None, n_ranks: int | None) -> tuple[Measurement, ...]:
    rows = [line.split() for line in text.splitlines() if line[:1].isspace() or line[:1].isdigit()]
    timed = [
        (int(row[_SIZE]), float(row[_TIME]))
        for row in rows
        if len(row) > _TIME and row[_SIZE].isdecimal() and len(row[_SIZE]) < 20 and _is_number(row[_TIME])
    ]
    if not timed:
        return ()
    said = _STARTING.search(text) or _PROGRAM.search(text)
    name = _named(collective or (said.group(1) if said else ""), path)
    ranks = n_ranks or len({int(match) for match in _RANK.findall(text)})
    return _measurements(timed, name, ranks, path)


def _from_json(text: str, path: Path, collective: str | None, n_ranks: int | None) -> tuple[Measurement, ...]:
    try:
        document: dict[str, Any] = json.loads(text)
        rows = [(int(row["size"]), row["out_of_place"]) for row in document["results"]]
        timed = [(size_bytes, float(row.get("time", row.get("cpu_time")))) for size_bytes, row in rows]
        arguments = " ".join(map(str, document.get("args") or []))
        ranks = n_ranks or len((document.get("config") or {}).get("devices") or [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: not the JSON that nccl-tests writes with -J ({type(error).__name__}: {error})") from None
    said = _PROGRAM.search(arguments)
    name = _named(collective or (said.group(1) if said else ""), path)
    return _measurements(timed, name, ranks, path)


def _measurements(timed: list[tuple[int, float]], name: str, n_ranks: int, path: Path) -> tuple[Measurement, ...]:
    if timed and n_ranks < 2:
        raise ConfigError(f"{path}: it lists {n_ranks} ranks; give the number that ran with --ranks")
    return tuple(
        Measurement(table=path.name, collective=name, n_ranks=n_ranks, size_bytes=size_bytes, time_us=time_us, source=str(path))
        for size_bytes, time_us in timed
        if size_bytes and time_us > 0
    )


def _named(text: str, path: Path) -> str:
    if not text:
        raise ConfigError(f"{path}: it does not say which collective ran; give it with --collective")
    return collective_name(text)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
