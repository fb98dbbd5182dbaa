"""The commands behind the command line: each takes what was parsed and gives an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from emu.bench import calibrate as calibration_module
from emu.bench import compare as comparison
from emu.bench import report, run_file
from emu.bench.calibrate import Calibration
from emu.bench.compare_table import table_lines
from emu.bench.fabrics import Case, prepare
from emu.bench.options import BenchOptions
from emu.bench.rows import Verdict
from emu.bench.runner import EXIT_FIDELITY, EXIT_OK, EXIT_WRONG, OpenSession, exit_code, run
from emu.bench.terminal import Terminal
from emu.clock import utc_now
from emu.errors import ConfigError, EmuError
from emu.faults.spec import parse_fault
from emu.host import check_answers
from emu.telemetry import record as telemetry_record
from emu.units import format_rate, format_time

if TYPE_CHECKING:
    from emu.session import Session


def open_session(case: Case, options: BenchOptions, *, simulate: bool, payload: bool, record: bool = False) -> Session:
    """The real thing."""
    from emu.session import Session  # Ray is slow to import and a simulation does without

    return Session(
        case.topology,
        driver="simulate" if simulate else "emulate",
        seed=case.seed,
        impairments=case.impairments,
        faults=options.faults,
        accelerators_per_actor=options.accelerators_per_actor,
        address=None if simulate else options.address,
        timeout_s=options.timeout_s,
        transport=options.transport,
        payload=payload,
        record=record,
        metrics=None if simulate else options.metrics,
        metrics_names=options.metrics_names,
    )


def calibration_source(terminal: Terminal, address: str | None, opened: OpenSession) -> Callable[[], Calibration]:
    """This host's calibration: the kept one, or measured now and kept; asked for more than once, it is the same."""

    @cache
    def calibration() -> Calibration:
        kept = calibration_module.load(calibration_module.cache_file(address))
        return measure_calibration(terminal, address, opened) if kept is None else kept

    return calibration


def measure_calibration(terminal: Terminal, address: str | None, opened: OpenSession) -> Calibration:
    """Measure and keep.  Raises EmuError when the session does."""
    terminal.message("emu: calibrating this host, once; keep it idle for a few seconds")
    ranks = str(calibration_module.N_RANKS)
    options = BenchOptions(collective="all_reduce", fabrics=("star",), settings=(("ranks", ranks),), address=address)
    case = prepare(options, "star", 0)
    measured = calibration_module.measure(lambda: opened(case, options, simulate=False, payload=True))
    path = calibration_module.cache_file(address)
    try:
        calibration_module.save(measured, path)
    except OSError as error:
        terminal.message(f"emu: the calibration cannot be kept, the next run measures again: {error}")
    return measured


def bench(
    options: BenchOptions,
    *,
    arguments: Sequence[str] = (),
    json_path: Path | None = None,
    run_path: Path | None = None,
    record_path: Path | None = None,
    terminal: Terminal | None = None,
    opened: OpenSession = open_session,
    repeats: run_file.RunFile | None = None,
) -> int:
    """``emu bench``, ``emu predict`` and ``emu rerun``.  Raises EmuError."""
    terminal = terminal or Terminal()
    if record_path is not None:  # only the machines have events
        if options.method == "vectorised":
            raise ConfigError("--record notes the events of the loop, which --method vectorised does without; use --method full")
        options = replace(options, method="full")
    for flag, path in (("--json", json_path), ("--run-file", run_path), ("--record", record_path)):
        if path is not None:
            report.check_writable(flag, path)
    if options.address is not None:
        check_answers(options.address)
    if any(parse_fault(text).kind == "slow_compute" for text in options.faults):
        terminal.message("emu: slow_compute slows nothing here: these loops compute nothing; a function of yours may")
    started = utc_now()
    calibration = calibration_source(terminal, options.address, opened)
    recorded: list[telemetry_record.RunRecord] = []
    try:
        its = opened if record_path is None else partial(_recording, recorded)
        results = run(options, terminal, open_session=its, calibration=calibration)
    except EmuError:
        if record_path is not None and recorded:
            terminal.clear()
            recorded[-1].save(record_path)
            terminal.message(f"# record of what failed: {record_path}; emu diagnose reads it")
        raise
    finally:
        terminal.clear()
    record = report.RunRecord(
        options=options,
        results=results,
        arguments=tuple(arguments),
        started=started,
        ended=utc_now(),
        calibration=calibration() if options.dilation is None and not options.simulated else None,
    )
    if json_path is not None:
        terminal.message(f"# json output: {report.told(json_path, report.write_new(json_path, report.document(record)))}")
    if run_path is not None:
        terminal.message(f"# run file: {report.told(run_path, report.write_new(run_path, run_file.run_document(record)))}")
    if record_path is not None:
        recorded[-1].save(record_path)
        terminal.message(f"# record of the last row: {record_path}; emu explain and emu diagnose read it")
    if repeats is not None:
        same, rows = run_file.same_model_times(repeats, record)
        terminal.message(f"# model times equal to those of {repeats.path}: {same} of {rows} rows")
    return exit_code(results, strict=options.strict)


@contextmanager
def _recording(
    found: list[telemetry_record.RunRecord], case: Case, options: BenchOptions, *, simulate: bool, payload: bool
) -> Iterator[Session]:
    """A session that is asked for its record at the end, also of a run that failed; not one that only predicts."""
    record = simulate == options.simulated
    with open_session(case, options, simulate=simulate, payload=payload, record=record) as session:
        try:
            yield session
        except EmuError:
            with suppress(EmuError):  # what went wrong first is what counts
                found += [session.record()] if record else []
            raise
        if record:
            found.append(session.record())


def compare(
    options: BenchOptions,
    names: Sequence[str],
    *,
    arguments: Sequence[str] = (),
    json_path: Path | None = None,
    terminal: Terminal | None = None,
    opened: OpenSession = open_session,
) -> int:
    """``emu compare``: one collective under several disciplines, in one table.  Raises EmuError."""
    terminal = terminal or Terminal()
    if json_path is not None:
        report.check_writable("--json", json_path)
    if options.address is not None:
        check_answers(options.address)
    calibration = calibration_source(terminal, options.address, opened)
    try:
        found = comparison.compare(options, names, terminal, open_session=opened, calibration=calibration)
    finally:
        terminal.clear()
    n = options.iterations
    over = f"{options.n_seeds} seeds" if options.n_seeds > 1 else f"{n} iteration{'s' if n > 1 else ''}, seed {options.seed}"
    title = f"{options.collective} on {options.fabrics[0]}, {found.rows[0].row.n_ranks} ranks, driver {options.driver}, {over}"
    terminal.lines(title, "", *table_lines(found))
    if json_path is not None:
        written = report.write_new(json_path, comparison.compare_document(options, found, arguments))
        terminal.message(f"# json output: {report.told(json_path, written)}")
    if any(one.row.n_wrong for one in found.rows):
        return EXIT_WRONG
    return EXIT_FIDELITY if options.strict and any(one.row.verdict is Verdict.DEGRADED for one in found.rows) else EXIT_OK


def rerun(path: Path, *, terminal: Terminal | None = None, opened: OpenSession = open_session) -> int:
    """``emu rerun``: the same options on the same fabric.  Raises ConfigError when it is not the same any more."""
    terminal = terminal or Terminal()
    recorded = run_file.read(path)
    run_file.check_same_fabrics(recorded)
    now = report.versions()
    changed = [f"{name} {then} -> {now.get(name)}" for name, then in recorded.versions.items() if now.get(name) != then]
    if changed:
        terminal.message(f"# versions have changed: {', '.join(changed)}")
    return bench(recorded.options, arguments=("emu", "rerun", str(path)), terminal=terminal, opened=opened, repeats=recorded)


def calibrate(*, address: str | None = None, terminal: Terminal | None = None, opened: OpenSession = open_session) -> int:
    """``emu calibrate``: measure anew, whatever is kept."""
    terminal = terminal or Terminal()
    if address is not None:
        check_answers(address)
    measured = measure_calibration(terminal, address, opened)
    terminal.lines(
        f"host             {measured.host}, {measured.n_cpus} CPUs",
        f"frame and hop    {format_time(measured.frame_cost_ns * 1000)}",
        f"bytes            {format_rate(8 * measured.bytes_per_s)} over all links together",
        f"timers oversleep {format_time(measured.oversleep_p50_ns * 1000)} (median), "
        f"{format_time(measured.oversleep_p99_ns * 1000)} (99 %)",
        f"kept in          {calibration_module.cache_file(address)}",
    )
    return EXIT_OK
