"""The commands that show a run: emu top, emu report, emu trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def top(
    name: Annotated[str | None, typer.Argument(help="Which testbed. Default: the one that is up.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end, as without a terminal.")] = False,
    interval: Annotated[float, typer.Option("--interval", help="Wall seconds between two looks.")] = 2.0,
) -> int:
    """Watch a testbed: ranks, links by utilisation, queues, stalls by cause, faults, fidelity. q ends it."""
    from emu.testbed.top import top as run_top

    return run_top(name, once=once, interval_s=interval)


def report(
    files: Annotated[list[Path], typer.Argument(help="A run file (--run-file), a record (--record), or one of each.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page. Overwritten.")] = Path("report.html"),
    call: Annotated[int | None, typer.Option("--call", help="The call whose timeline is shown. Default: the slowest.")] = None,
) -> int:
    """Write a run as one HTML file that needs no network.

    emu bench all_reduce --fabric star --set ranks=8 -b 1M -e 16M --run-file run.json --record run.record

    emu report run.json run.record -o run.html
    """
    from emu.report.build import report as run_report

    return run_report(files, out, call=call)


def trace(
    record: Annotated[Path, typer.Argument(help="Written by emu bench --record.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File (.json or .json.gz), or folder where there is one file for each rank."),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="chrome (Perfetto), hta (chrome, one file per rank), or flight-recorder (one per rank)."),
    ] = "chrome",
) -> int:
    """Write a recorded run as a timeline: for ui.perfetto.dev, for Holistic Trace Analysis, or for torchfrtrace.

    emu trace run.record -o run.json.gz

    emu trace run.record --format hta -o traces

    emu trace run.record --format flight-recorder -o dumps; cd dumps; torchfrtrace -p rank_ .
    """
    from emu.report.trace_files import trace as run_trace

    return run_trace(record, out, form=form)


def register(app: typer.Typer) -> None:
    """Add them to the command line."""
    for command in (top, report, trace):
        app.command()(command)
