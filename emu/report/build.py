"""Build: the sections of a report, each from the run file or the record, whichever has what it shows."""

from __future__ import annotations

import shlex
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Final

from emu.bench.compare_table import aligned
from emu.bench.report import check_writable
from emu.bench.runner import EXIT_OK
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.fabric.recorder import Called
from emu.host import write_whole
from emu.report import figures
from emu.report.page import Page, check_plotly
from emu.report.source import Plain, Source, read
from emu.report.timeline import chosen, describe_call, timeline
from emu.telemetry.record import RunRecord
from emu.units import format_bytes, format_rate, format_time, microseconds

_HEADS: Final = (
    "size", "count", "type", "op", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "model us", "late %", "verdict", "algo",
    "dilation",
)  # fmt: skip


def report(paths: list[Path], out: Path, *, call: int | None = None, terminal: Terminal | None = None) -> int:
    """``emu report``: write the page.  Raises ConfigError."""
    terminal = terminal or Terminal()
    check_plotly()
    source = read(paths)
    if call is not None and source.record is None:
        raise ConfigError(f"--call {call}: only a record has calls; give the file that emu bench --record wrote as well")
    if not out.exists():
        check_writable("-o", out)
    try:
        write_whole(out, build(source, call=call).html())
    except OSError as error:
        raise ConfigError(f"-o {out}: {error.strerror}; name a file in a folder that exists and is yours") from None
    terminal.message(f"# report: {out}")
    return EXIT_OK


def build(source: Source, *, call: int | None = None) -> Page:
    """The page of a run.  Raises ConfigError for a call that is not there."""
    page = Page(_title(source))
    _summary(page, source)
    if source.report is not None:
        _results(page, source.report)
    if source.record is not None:
        _calls(page, source.record)
    _causes(page, source)
    if source.record is not None:
        _links(page, source.record)
        _iteration(page, source.record, call)
    _fidelity(page, source)
    if source.report is not None:
        _reproduce(page, source.report, source.run_path)
    return page


def _title(source: Source) -> str:
    if source.report is not None:
        options = source.report["emu"]["options"]
        return f"{options['collective']} on {', '.join(options['fabrics'])}"
    assert source.record is not None
    return f"a recorded run on {source.record.fabric}"


def _summary(page: Page, source: Source) -> None:
    facts: list[tuple[str, str]] = []
    if source.report is not None:
        told, average = source.report["emu"], source.report["average_bus_bandwidth"]["bandwidth"]
        for fabric in told["fabrics"]:
            facts.append(("fabric", f"{fabric['name']}: {fabric['description']}, {fabric['ranks']} ranks"))
            facts.append(("worth", fabric["calibration"]))
            facts += [("impairment", text) for text in fabric["impairments"]]
        facts += [("fault", text) for text in told["options"]["faults"]]
        facts.append(("average busbw", "-" if average is None else f"{average:.2f} GB/s, without degraded rows"))
        facts.append(("wrong elements", str(source.report["out_of_bounds"]["count"])))
        facts.append(("run", f"{source.report['start_time']} to {source.report['end_time']} on {told['host']}"))
    if source.record is not None:
        record = source.record
        ended_ps = max((its.completed_ps for its in record.calls), default=0)
        ranks = len({its.rank for its in record.calls})
        which = f"{record.fabric}, driver {record.driver}, seed {record.seed}"
        facts.append(("record", f"{which}: {len(record.calls)} calls of {ranks} ranks in {format_time(ended_ps)} of model time"))
        facts += [("took effect", f"{format_time(mark.time_ps)}  {mark.component}: {mark.text}") for mark in record.marks]
        if record.n_left_out:
            facts.append(("left out", f"{record.n_left_out} events: the record was full, what is from it is of the first part"))
    page.facts(facts)


def _results(page: Page, report: Plain) -> None:
    page.section("Results")
    rows = report["results"]
    several = len(report["emu"]["fabrics"]) > 1
    heads = ("fabric", *_HEADS) if several else _HEADS
    page.table(heads, [_result(row, several=several) for row in rows])
    page.note(
        "Out of place. time is the stopwatch over the dilation (simulated: the model's), model what the fabric alone would take,"
        " late how far they are apart."
    )
    page.section("Bus bandwidth by size")
    page.figure(figures.busbw(rows), "Open circles: degraded, the host did not keep pace.")


def _result(row: Plain, *, several: bool) -> tuple[str, ...]:
    side = row["out_of_place"]
    its = side["emu"]
    cells = (
        format_bytes(row["size"]),
        str(row["count"]),
        row["type"],
        row["redop"],
        f"{side['time']:.2f}",
        f"{side['alg_bw']:.2f}",
        f"{side['bus_bw']:.2f}",
        "N/A" if side["nwrong"] is None else str(side["nwrong"]),
        "-" if its["model_us"] is None else f"{its['model_us']:.2f}",
        "-" if its["late"] is None else f"{its['late'] * 100:.2f}",
        its["verdict"] or "-",
        its["algorithm"],
        "-" if its["dilation"] is None else f"{its['dilation']:g}",
    )
    return (its["fabric"], *cells) if several else cells


def _calls(page: Page, record: RunRecord) -> None:
    """What was called, by collective and size."""
    found: defaultdict[tuple[str, int, str], list[Called]] = defaultdict(list)
    for call in record.calls:
        found[call.collective, call.n_bytes, call.algorithm].append(call)
    rows = []
    for (collective, n_bytes, algorithm), calls in found.items():
        times = [call.completed_ps - call.started_ps for call in calls]
        skews = [call.last_start_ps - call.first_start_ps for call in calls]
        middle, largest = statistics.median(times), max(times)
        its = (f"{microseconds(ps):.2f}" for ps in (middle, largest, max(skews)))
        rows.append((collective, format_bytes(n_bytes), algorithm, str(len(calls)), *its))
    page.section("Calls in the record")
    page.table(("collective", "size", "algo", "calls x ranks", "median us", "max us", "largest skew us"), rows)


def _causes(page: Page, source: Source) -> None:
    page.section("Time by cause")
    by_size = figures.causes_by_size(source.rows)
    by_rank = None if source.record is None else figures.causes_by_rank(source.record)
    page.figure(by_size, "By size: what the loop's time went to along each call's critical path, over all ranks.")
    page.figure(by_rank, "By rank, over the recorded calls, from when each began to run.")
    if by_size is None and by_rank is None:
        page.note("Neither file has it; a run file of this version and a record do.")


def _links(page: Page, record: RunRecord) -> None:
    page.section("Links")
    page.figure(figures.traffic(record), "Payload from rank to rank.")
    most = figures.MOST_LINKS
    which = f"the {most} links that were busiest" if len(record.links) > most else "all links that were used"
    page.figure(figures.link_use(record), f"Share of the time for which bytes took the wire: {which}. Dotted lines: faults.")


def _iteration(page: Page, record: RunRecord, number: int | None) -> None:
    calls = chosen(record, number)
    if not calls:
        return
    page.section("Timeline of one iteration")
    try:
        figure = timeline(record, calls)
    except ConfigError as error:
        page.note(f"There is none: {error}")
        return
    choice = "" if number is not None else " It took longest; --call N shows another."
    page.figure(figure, f"{describe_call(calls, record)}, each along its critical path.{choice}")


def _fidelity(page: Page, source: Source) -> None:
    page.section("Fidelity")
    report, record = source.report, source.record
    if report is not None:
        sides = [row[side]["emu"] for row in source.rows for side in ("out_of_place", "in_place")]
        paced = [its for its in sides if its["verdict"] is not None]
        if paced:
            n_ok = sum(its["verdict"] == "ok" for its in paced)
            page.facts(
                [
                    ("verdicts", f"{n_ok} ok, {len(paced) - n_ok} degraded (halves of rows)"),
                    ("late", f"at most {max(abs(its['late'] or 0) for its in paced) * 100:.2f} %; ok is within 2 %"),
                    ("dilation", _range([its["dilation"] for its in paced])),
                    ("largest lateness of a frame", f"{max(its['largest_lateness_us'] for its in paced):.1f} us of model time"),
                    ("order violations", str(sum(its["order_violations"] for its in paced))),
                    ("sockets that pushed back", str(sum(its["transport_backpressure"] for its in paced))),
                ]
            )
            page.figure(figures.lateness(source.rows), "Within the band a row is ok.")
        else:
            page.note("Nothing was paced, so there is no verdict: the times are the model's, or (dilation 0) the host's.")
        if (calibration := report["emu"]["calibration"]) is not None:
            page.facts(
                [
                    ("host", f"{calibration['host']}, {calibration['n_cpus']} CPUs, calibrated {calibration['measured_at']}"),
                    ("frame and hop", format_time(calibration["frame_cost_ns"] * 1000)),
                    ("bytes", f"{format_rate(8 * calibration['bytes_per_s'])} over all links together"),
                    ("timers oversleep", _oversleep(calibration)),
                ]
            )
    if record is not None and record.driver == "emulate":
        late = f"{format_time(record.largest_lateness_ps)} of model time at most, dilation {record.dilation:g}"
        page.facts([("recorded row: frames late", late), ("order violations", str(record.order_violations))])
        page.figure(figures.call_lateness(record), "When the host saw the end of each recorded call, after it was due.")
    elif record is not None:
        page.note("The record is of a simulation: no host time is in it.")


def _oversleep(calibration: Plain) -> str:
    middle, most = (format_time(calibration[f"oversleep_{which}_ns"] * 1000) for which in ("p50", "p99"))
    return f"{middle} (median), {most} (99 %)"


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _reproduce(page: Page, report: Plain, run_path: Path | None) -> None:
    page.section("How to reproduce")
    arguments = report["args"]
    command = shlex.join(["emu", *arguments[1:]]) if arguments else "(it was called from Python)"
    page.code(f"{command}\n\nemu rerun {shlex.quote(str(run_path))}")
    versions = aligned([[name, version] for name, version in report["emu"]["versions"].items()], [True, True])
    page.code("\n".join([*versions, *report["env"]]))
