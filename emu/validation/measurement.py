"""Measurement: what a collective took on real hardware, and the tables of such figures that come with emu.

A table is a CSV file with a header and ``#`` comments.  Columns: collective, ranks, bytes (nccl-tests' size), time_us; and where
they are known fabric (the preset that stands for the machine), algorithm (empty: as NCCL chose) and source.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Final

from emu.collectives.catalogue import collective_name
from emu.errors import ConfigError

NEEDED: Final = ("collective", "ranks", "bytes", "time_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure.  ``table`` is the file that it stands in."""

    table: str
    collective: str
    n_ranks: int
    size_bytes: int
    time_us: float
    fabric: str = ""
    algorithm: str = ""
    source: str = ""


def read_table(lines: Iterable[str], name: str) -> tuple[Measurement, ...]:
    """Raises ConfigError."""
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{name}: no column {', '.join(missing)}; a table of measurements has {', '.join(NEEDED)}")
    found = []
    for row in reader:
        try:
            found.append(
                Measurement(
                    table=name,
                    collective=collective_name(row["collective"]),
                    n_ranks=int(row["ranks"]),
                    size_bytes=int(row["bytes"]),
                    time_us=float(row["time_us"]),
                    fabric=row.get("fabric") or "",
                    algorithm=row.get("algorithm") or "",
                    source=row.get("source") or "",
                )
            )
        except ValueError as error:
            raise ConfigError(f"{name}: row {dict(row)}: {error}; ranks and bytes are whole numbers, time_us a number") from None
    return tuple(found)


def shipped_tables() -> tuple[Measurement, ...]:
    """Every figure that comes with emu, file by file in order of name."""
    folder = resources.files("emu.validation") / "measured"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".csv")), key=lambda file: file.name)
    return tuple(
        measurement
        for file in files
        for measurement in read_table(file.read_text(encoding="utf-8").splitlines(), file.name.removesuffix(".csv"))
    )
