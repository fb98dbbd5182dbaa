"""The commands behind ``emu diagnose`` and ``emu diagnose-eval``: each gives an exit code.  They raise EmuError."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from emu.bench.report import check_writable, told, write_new
from emu.bench.runner import EXIT_OK
from emu.bench.terminal import Terminal
from emu.clock import sleep_s
from emu.diagnosis.diagnose import diagnose as diagnose_run
from emu.diagnosis.emulated import evaluate_emulated
from emu.diagnosis.evaluate import evaluate as evaluate_simulated
from emu.diagnosis.finding import Finding
from emu.diagnosis.report import finding_lines, score_lines
from emu.diagnosis.score import score
from emu.errors import ConfigError
from emu.telemetry.observation import Observation
from emu.telemetry.record import load_record
from emu.testbed import client
from emu.testbed.place import DEFAULT_NAME, find
from emu.units import format_time

LEAST_WINDOW_S, MOST_WINDOW_S = 0.1, 3600.0
ANSWER_S: Final = 60.0
"""How long a testbed may take: the first look at a kind of call has to predict it."""
DEFAULT_RUNS: Final = {"simulate": 620, "emulate": 48}


def diagnose(what: str | None, *, window_s: float | None = None, as_json: bool, terminal: Terminal | None = None) -> int:
    """Of a record, or of a testbed that is up, also while it runs; ``window_s``: only of what happens in so many seconds."""
    terminal = terminal or Terminal()
    seen = _observation(what) if window_s is None else _watched(what, window_s, terminal)
    if seen.is_running:
        terminal.message(f"# under way: {format_time(seen.begin_ps)} to {format_time(seen.elapsed_ps)} of its model time")
    if silent := sum(link.counted is None for link in seen.links):
        terminal.message(f"# {silent} of {len(seen.links)} links do not answer: their actors are dead, stopped, or busy")
    findings = diagnose_run(seen)
    if as_json:
        terminal.lines(json.dumps([_plain(finding) for finding in findings], indent=2))
    else:
        terminal.lines(*finding_lines(findings))
    return EXIT_OK


def _watched(what: str | None, window_s: float, terminal: Terminal) -> Observation:
    """Two looks at a testbed, and what came between them."""
    if what is not None and Path(what).exists():
        raise ConfigError(f"--window {window_s:g}: {what} is a record, which has its intervals; leave --window out")
    if not LEAST_WINDOW_S <= window_s <= MOST_WINDOW_S:
        raise ConfigError(f"--window {window_s:g} must be from {LEAST_WINDOW_S:g} to {MOST_WINDOW_S:g} seconds")
    earlier = _observation(what)
    sleep_s(window_s)
    seen = _observation(what)
    if seen.model != earlier.model:
        terminal.message("# another measurement has begun meanwhile, with counters of its own: this is since then")
    elif not seen.is_running and seen.elapsed_ps == earlier.elapsed_ps:
        terminal.message("# nothing has run meanwhile: leave --window out for what was last")
    return seen.since(earlier)


def _observation(what: str | None) -> Observation:
    if what is not None and Path(what).exists():
        observed = load_record(Path(what)).observed
        if observed is None:
            raise ConfigError(f"record {what}: it holds no counters; record the run with emu bench --record")
        return observed
    if what is not None and ("/" in what or "." in what):
        raise ConfigError(f"record {what}: there is no such file; give one that was written with --record, or a testbed's name")
    return TypeAdapter(Observation).validate_python(client.ask(find(what or DEFAULT_NAME), "observe", timeout_s=ANSWER_S))


def _plain(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"said": str(finding)}


def evaluate(*, runs: int, seed: int, driver: str, json_path: Path | None, terminal: Terminal | None = None) -> int:
    """Play a campaign and print what came of it."""
    terminal = terminal or Terminal()
    if driver not in DEFAULT_RUNS:
        raise ConfigError(f"--driver {driver!r}: use simulate or emulate")
    if runs < 0 or seed < 0:
        raise ConfigError(f"--runs {runs}, --seed {seed}: both must be 0 or more; 0 runs is the default number")
    if json_path is not None:
        check_writable("--json", json_path)
    seeds = range(seed, seed + (runs or DEFAULT_RUNS[driver]))

    def tell(n_done: int) -> None:
        terminal.progress(f"{n_done} of {len(seeds)} runs")

    outcomes = evaluate_simulated(seeds, tell=tell) if driver == "simulate" else evaluate_emulated(seeds, tell=tell)
    found = score(outcomes)
    terminal.lines(*score_lines(found))
    if json_path is not None:
        document = {"driver": driver, "seeds": [seeds.start, seeds.stop], "score": found.as_plain()}
        document["runs"] = TypeAdapter(list).dump_python(outcomes, mode="json")
        terminal.message(f"# json output: {told(json_path, write_new(json_path, document))}")
    return EXIT_OK
