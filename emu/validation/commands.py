"""The commands validate, calibrate-fabric and tune: each takes what was parsed and gives an exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final

from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.host import write_whole
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.units import format_bytes
from emu.validation.compare import compare, simulated, with_costs
from emu.validation.emulated import emulate, sample
from emu.validation.errors import Compared
from emu.validation.fit import Fitted, fit
from emu.validation.measurement import Measurement, shipped_tables
from emu.validation.nccl_tests import read_file
from emu.validation.page import check_plotly, write_page
from emu.validation.preset import Evidence, base_document, preset_text
from emu.validation.report import emulated_lines, fit_lines, shape_lines, size_lines, table_lines, tuned_lines
from emu.validation.shapes import SHAPES, find
from emu.validation.split import is_every_second
from emu.validation.tune import tune as tuned_sizes

EXIT_OK: Final = 0


def validate(
    fabrics: Sequence[str], *, sizes: bool, html: Path | None, json_path: Path | None, terminal: Terminal | None = None
) -> int:
    """``emu validate``: every shipped measurement of the named fabrics (none: all) through the simulator."""
    terminal = terminal or Terminal()
    wanted = _measurements(fabrics)
    for flag, path in (("--html", html), ("--json", json_path)):
        _check_new(flag, path)
    if html is not None:
        check_plotly()
    rows = list(compare(wanted, terminal.progress))
    terminal.lines(*(size_lines(rows) if sizes else ()), *table_lines(rows))
    if html is not None:
        write_page(rows, html)
        terminal.message(f"# page: {html}")
    if json_path is not None:
        write_whole(json_path, json.dumps([_plain(row) for row in rows], indent=1))
        terminal.message(f"# json output: {json_path}")
    return EXIT_OK


def validate_shapes(terminal: Terminal | None = None) -> int:
    """``emu validate --shapes``: ratios and figures of whole systems, measured and by emu's mechanisms."""
    terminal = terminal or Terminal()
    terminal.lines(*shape_lines(list(find(SHAPES, terminal.progress))))
    return EXIT_OK


def validate_emulated(fabrics: Sequence[str], n_rows: int, terminal: Terminal | None = None) -> int:
    """``emu validate --emulate N``: so many of the measured rows through the emulator, beside the simulator."""
    terminal = terminal or Terminal()
    terminal.lines(*emulated_lines(list(emulate(sample(_measurements(fabrics), n_rows), terminal))))
    return EXIT_OK


def calibrate_fabric(
    files: Sequence[Path],
    *,
    fabric: str,
    collective: str | None,
    n_ranks: int | None,
    only: str | None,
    fit_collectives: Sequence[str],
    fit_ranks: int | None,
    output: Path | None,
    terminal: Terminal | None = None,
) -> int:
    """``emu calibrate-fabric``: fit to every second size of what was measured, judge on the rest, write a fabric file.

    ``only``: rows of a table that name this fabric.  ``fit_collectives`` and ``fit_ranks``: what may be fitted to; the rest is
    held out.
    """
    terminal = terminal or Terminal()
    _check_new("--output", output)
    base, document = load(fabric).topology, base_document(fabric)
    measurements = [row for file in files for row in read_file(file, collective=collective, n_ranks=n_ranks)]
    if only is not None:
        measurements = [row for row in measurements if row.fabric == only]
    to_fit = [row for row in measurements if _may_be_fitted(row, fit_collectives, fit_ranks)]
    fitted = fit(base, to_fit, terminal.progress)
    rows = _compared(base, fitted, measurements, to_fit)
    terminal.lines(*fit_lines(fitted), "", *table_lines(rows, shipped=False))
    text = preset_text(fabric, document, fitted, Evidence(files=files, rows=rows, day=date.today()))
    if output is None:
        terminal.lines("", text)
    else:
        write_whole(output, text)
        terminal.message(f"# fabric file: {output}")
    return EXIT_OK


def tune(topology: Topology, collective: str, sizes_bytes: list[int], terminal: Terminal | None = None) -> int:
    """``emu tune``: each tuner's choice by size and its regret."""
    terminal = terminal or Terminal()
    rows = []
    for its in tuned_sizes(topology, collective, sizes_bytes):
        terminal.progress(f"{collective} of {format_bytes(its.size_bytes)}")
        rows.append(its)
    terminal.lines(*tuned_lines(rows))
    return EXIT_OK


def _measurements(fabrics: Sequence[str]) -> list[Measurement]:
    """Those that emu ships, of the named fabrics or of all.  Raises ConfigError."""
    shipped = shipped_tables()
    known = list(dict.fromkeys(measurement.fabric for measurement in shipped))
    for name in fabrics:
        if name not in known:
            raise ConfigError(f"--fabric {name!r}: there are no measurements of it; use one of {', '.join(known)}")
    return [measurement for measurement in shipped if not fabrics or measurement.fabric in fabrics]


def _may_be_fitted(row: Measurement, collectives: Sequence[str], n_ranks: int | None) -> bool:
    return is_every_second(row) and (not collectives or row.collective in collectives) and n_ranks in (None, row.n_ranks)


def _compared(
    topology: Topology, fitted: Fitted, measurements: Sequence[Measurement], to_fit: Sequence[Measurement]
) -> list[Compared]:
    fabric, used = with_costs(topology, fitted.costs), set(to_fit)
    return [simulated(fabric, replace(row, fabric=topology.name), fitted=row in used) for row in measurements]


def _check_new(flag: str, path: Path | None) -> None:
    if path is not None and path.exists():
        raise ConfigError(f"{flag} {path}: it exists; name a file that does not")
    if path is not None and not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {path}: nothing can be written in {path.parent}; name a folder that is there and is yours")


def _plain(row: Compared) -> dict[str, object]:
    its = row.measurement
    return {
        "fabric": its.fabric,
        "collective": its.collective,
        "ranks": its.n_ranks,
        "bytes": its.size_bytes,
        "algorithm": row.algorithm,
        "protocol": row.protocol,
        "measured_us": its.time_us,
        "simulated_us": row.simulated_us,
        "error": row.error,
        "fitted": row.fitted,
        "source": its.source,
    }
