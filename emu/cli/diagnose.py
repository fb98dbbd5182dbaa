"""The commands that find what was wrong with a run: emu diagnose, emu diagnose-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def diagnose(
    what: Annotated[
        str | None, typer.Argument(metavar="RECORD|TESTBED", help="Written by emu bench --record, or one that is up.")
    ] = None,
    window: Annotated[
        float | None, typer.Option("--window", metavar="SECONDS", help="Of a testbed: what happens in the next so many seconds.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> int:
    """Say what makes a run slow or fail: cause, component, evidence, share of the lost time, confidence.

    It sees what a monitoring system sees: counters, the ranks' timings, the fabric as configured. Of a testbed it looks at
    the measurement that is under way, else at the last one; of a sweep that is one half of one row.

    emu diagnose run.record

    emu diagnose lab

    emu diagnose lab --window 10
    """
    from emu.diagnosis.commands import diagnose as run_diagnose

    return run_diagnose(what, window_s=window, as_json=json)


def diagnose_eval(
    runs: Annotated[int, typer.Option("--runs", help="Cases; a third of them healthy. Default 620, emulated 48.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Of the first case.")] = 500_000,
    driver: Annotated[str, typer.Option("--driver", help="simulate, or emulate (one testbed of each fabric).")] = "simulate",
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures and every run; never overwrites.")] = None,
) -> int:
    """Break fabrics on purpose and publish how often the diagnosis is right, by cause and severity."""
    from emu.diagnosis.commands import evaluate as run_evaluate

    return run_evaluate(runs=runs, seed=seed, driver=driver, json_path=json)


def register(app: typer.Typer) -> None:
    """Put them on the command line."""
    app.command()(diagnose)
    app.command("diagnose-eval")(diagnose_eval)
