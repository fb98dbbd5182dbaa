"""``emu trace``: a record as timelines for other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from emu.bench.runner import EXIT_OK
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.parameters import did_you_mean
from emu.telemetry.flight_recorder import write_dumps
from emu.telemetry.record import RunRecord, load_record
from emu.telemetry.trace import write_rank_traces, write_trace

CHROME: Final = "chrome"
BY_RANK: Final[dict[str, Callable[[RunRecord, Path], list[Path]]]] = {"hta": write_rank_traces, "flight-recorder": write_dumps}
"""Formats that are a file for each rank."""
FORMATS: Final = (CHROME, *BY_RANK)


def trace(record_path: Path, out: Path | None = None, *, form: str = CHROME, terminal: Terminal | None = None) -> int:
    """Write the timeline, or one for each rank.  ``out``: default beside the record.  Raises ConfigError."""
    terminal = terminal or Terminal()
    if form not in FORMATS:
        raise ConfigError(f"--format {form!r} is not known{did_you_mean(form, FORMATS)}; use one of {', '.join(FORMATS)}")
    record = load_record(record_path)
    if record.n_left_out:
        terminal.message(f"# {record.n_left_out} events were left out of the record: what comes late is missing here too")
    if form == CHROME:
        path = out or record_path.with_name(f"{record_path.stem}.trace.json.gz")
        write_trace(record, path)
        terminal.message(f"# trace: {path}; open it at ui.perfetto.dev or in chrome://tracing")
        return EXIT_OK
    folder = out or record_path.with_name(f"{record_path.stem}.{form}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"-o {folder}: {error.strerror}; name a folder, there is a file for each rank") from None
    written = BY_RANK[form](record, folder)
    reader = "TraceAnalysis(trace_dir=...) reads them" if form == "hta" else f"torchfrtrace -p rank_ {folder} compares them"
    terminal.message(f"# {len(written)} files: {folder}/rank_*; {reader}")
    return EXIT_OK
