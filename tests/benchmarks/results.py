"""What the benchmark programs share: repeated timing, medians, a small table, and the same numbers as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

Row = dict[str, str | int | float | None]


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """An argument parser that shows the program's docstring, with ``--json``."""
    made = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return made


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = perf_counter()
    action()
    return perf_counter() - begin


def spread(values: Sequence[float]) -> str:
    """``0.95..1.20``: the smallest and the largest value over the median, to show how quiet the machine was."""
    middle = median(values) or 1.0
    return f"{min(values) / middle:.2f}..{max(values) / middle:.2f}"


def show(rows: Sequence[Row], *, as_json: bool) -> None:
    """The rows as a table with a line about the machine, or as JSON with the same content."""
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    if as_json:
        print(json.dumps({"machine": machine, "rows": list(rows)}, indent=2))
        return
    print(f"# {machine}")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
