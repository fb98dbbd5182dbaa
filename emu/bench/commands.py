"""The commands behind the command line: each takes what was parsed and gives an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
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
from emu.host import check_answers
from emu.parameters import Described, described_parameters
from emu.units import format_bytes, format_rate, format_time

if TYPE_CHECKING:
    from emu.session import Session


def open_session(case: Case, options: BenchOptions, *, simulate: bool, payload: bool) -> Session:
    """The real thing."""
    from emu.session import Session  # Ray is slow to import and a simulation does without

    return Session(
        case.topology,
        driver="simulate" if simulate else "emulate",
        seed=case.seed,
        impairments=case.impairments,
        accelerators_per_actor=options.accelerators_per_actor,
        address=None if simulate else options.address,
        timeout_s=options.timeout_s,
        payload=payload,
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
    terminal: Terminal | None = None,
    opened: OpenSession = open_session,
    repeats: run_file.RunFile | None = None,
) -> int:
    """``emu bench``, ``emu predict`` and ``emu rerun``.  Raises EmuError."""
    terminal = terminal or Terminal()
    for flag, path in (("--json", json_path), ("--run-file", run_path)):
        if path is not None:
            report.check_writable(flag, path)
    if options.address is not None:
        check_answers(options.address)
    started = utc_now()
    calibration = calibration_source(terminal, options.address, opened)
    try:
        results = run(options, terminal, open_session=opened, calibration=calibration)
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
        terminal.message(f"# json output: {report.write_new(json_path, report.document(record))}")
    if run_path is not None:
        terminal.message(f"# run file: {report.write_new(run_path, run_file.run_document(record))}")
    if repeats is not None:
        same, rows = run_file.same_model_times(repeats, record)
        terminal.message(f"# model times equal to those of {repeats.path}: {same} of {rows} rows")
    return exit_code(results, strict=options.strict)


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
        terminal.message(f"# json output: {written}")
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


def _extensions() -> tuple[tuple[str, Sequence[tuple[str, str]]], ...]:
    """(heading, (name, what it is)) of what is no fabric and is found by name all the same."""
    from emu.collectives.catalogue import algorithm_names
    from emu.impairments.spec import impairment_class, kinds
    from emu.topologies.extensions import described
    from emu.topologies.folder import first_line

    return (
        ("congestion controls, with --set congestion_control=NAME:", described("congestion")),
        ("balancing of equal links, with --set balancing=NAME:", described("balancing")),
        (
            "impairments, with --impair 'LINKS=NAME,key=value':",
            [(kind, first_line(sys.modules[impairment_class(kind).__module__].__doc__, kind)) for kind in kinds()],
        ),
        (
            "algorithms, with --algorithm NAME:",
            [(name, first_line(sys.modules[f"emu.collectives.{name}"].__doc__, name)) for name in algorithm_names()],
        ),
    )


def _parameters(entries: Sequence[Described]) -> list[str]:
    """``    leaves   4    Number of leaf switches.``"""
    names = max((len(entry.name) for entry in entries), default=0)
    defaults = max((len(entry.default) for entry in entries), default=0)
    return [f"    {entry.name:<{names}}  {entry.default:<{defaults}}  {entry.meaning}".rstrip() for entry in entries]


def fabrics(name: str | None, settings: Sequence[tuple[str, str]], *, terminal: Terminal | None = None) -> int:
    """``emu fabrics``: list them, or describe one with the sources of its numbers."""
    from emu.topologies.fabric_file import describe, list_fabrics, load
    from emu.topologies.switching_file import load_switching_preset, switching_keys, switching_presets

    terminal = terminal or Terminal()
    if name is None:
        listing = list_fabrics()
        width = max(len(entry.name) for entry in listing)
        headings = (
            ("preset", "presets:"),
            ("topology", "topologies, with --set key=value:"),
            ("switching", "what a full link does, with --set switching=NAME on any of them (all keys: emu fabrics switching):"),
        )
        for kind, heading in headings:
            terminal.lines(heading, *(f"  {entry.name:<{width}}  {entry.description}" for entry in listing if entry.kind == kind))
        for heading, entries in _extensions():
            terminal.lines(heading, *(f"  {name:<{width}}  {description}" for name, description in entries))
        return EXIT_OK
    if name == "switching":
        terminal.lines("switching: its keys, for [switching] of a fabric file and for --set key=value")
        terminal.lines(*_parameters(switching_keys()))
        return EXIT_OK
    if name in switching_presets() and not settings:
        preset = load_switching_preset(name, where=name)
        terminal.lines(f"{name}: {preset.description}", f"  use it with        --set switching={name}")
        for number, table in enumerate((preset.switching, *preset.classes)):
            prefix = f"class {number}: " if number else ""
            terminal.lines(*(f"  {prefix + key:<18} {value}" for key, value in table.items()))
        terminal.lines("  sources", *(f"    {what}: {source}" for what, source in preset.sources))
        terminal.lines("  all keys             emu fabrics switching")
        return EXIT_OK
    fabric = load(name, dict(settings))
    facts = describe(fabric.topology)
    least, most = (format_rate(rate_bps) for rate_bps in facts.endpoint_rate_bps)
    unknown = "not computed (too large)"
    terminal.lines(
        f"{facts.name}: {facts.description}",
        f"  ranks              {facts.n_ranks}",
        f"  nodes              {', '.join(f'{count} {kind}' for kind, count in facts.n_nodes)}",
        f"  accelerator sends  {least if least == most else f'{least} to {most}'}",
        f"  diameter           {unknown if facts.diameter_links is None else f'{facts.diameter_links} links'}",
        f"  bisection          {unknown if facts.bisection_bps is None else format_rate(facts.bisection_bps)}",
        f"  calibration        {facts.calibration}",
        f"  links              {facts.n_links}, each direction of a cable is one:",
    )
    for links in facts.link_classes:
        planes = f", {len(links.planes_bps)} planes" if links.planes_bps else ""
        window = f", window {format_bytes(links.window_bytes)}" if links.window_bytes is not None else ""
        terminal.lines(
            f"    {links.n_links:>6} {links.source} -> {links.target}: {format_rate(links.rate_bps)},"
            f" {format_time(links.latency_ps)}, MTU {links.mtu_bytes} + {links.header_bytes} B{planes}{window}"
        )
    stormy = [(node.name, node.pause_storm) for node in fabric.topology.nodes if node.pause_storm is not None]
    if stormy:
        told = (f"{node} pauses its senders from {format_time(start)} for {format_time(span)}" for node, (start, span) in stormy)
        terminal.lines("  storms", *(f"    {text}" for text in told))
    if fabric.impairments:
        terminal.lines("  impairments", *(f"    {impairment}" for impairment in fabric.impairments))
    if fabric.generic is not None:
        other = "" if fabric.generic.name == name else f" (those of {fabric.generic.name}, with its defaults)"
        terminal.lines(f"  parameters, with --set key=value{other}")
        terminal.lines(*_parameters(described_parameters(fabric.generic.parameters)))
    if facts.switching:
        terminal.lines("  switching", *(f"    {what:<16} {how}" for what, how in facts.switching))
    if facts.sources:
        terminal.lines("  sources", *(f"    {what}: {source}" for what, source in facts.sources))
    return EXIT_OK
