"""What is said of findings, and of a campaign: plain tables."""

from __future__ import annotations

from collections.abc import Sequence

from emu.bench.compare_table import aligned
from emu.diagnosis.finding import Finding
from emu.diagnosis.score import TELLING_COST, Delays, OfCause, Score


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """The costliest first."""
    if not findings:
        return ["nothing is wrong"]
    rows = [["#", "cause", "component", "share", "sure", "evidence"]]
    for number, one in enumerate(findings, 1):
        flows = f"; {', '.join(one.flows)} meet there" if one.flows else ""
        rows.append(
            [
                str(number),
                str(one.cause),
                one.component,
                f"{100 * one.share:.0f}%",
                f"{100 * one.confidence:.0f}%",
                f"{one.evidence}{flows}",
            ]
        )
    return [*aligned(rows, [False, True, True, False, False, True]), "", "share: of the time that was lost"]


def score_lines(found: Score) -> list[str]:
    """Figures by cause and severity, then those of the whole campaign."""
    rows = [["cause", "there", "found", "false", "precision", "recall", "F1", "F1 >= 5%", "weakest", "found by severity"]]
    rows += [_cause_row(one) for one in found.causes]
    least = f"{100 * TELLING_COST:.0f} %"
    lines = aligned(rows, [True, *[False] * 8, True])
    lines += [
        "",
        f"runs                         {found.n_runs}",
        f"false alarms                 {found.n_false_alarms} in {found.n_healthy} healthy runs",
        f"host overload reported       {found.n_overloaded} runs",
        f"macro F1, cost >= {least:<10} {found.macro_f1:.4f}",
        f"top-1 localisation, the same {found.localisation:.4f} ({found.n_localised} of {found.n_located})",
        f"time to detect               {_delay_text(found.to_detect)}",
        f"time to localise             {_delay_text(found.to_localise)}",
        "",
        "named instead, where the cause was not:",
    ]
    missed = [f"  {truth}: {named} ({n})" for truth, row in found.confusion.items() for named, n in row.items() if named != truth]
    return [*lines, *(missed or ["  nothing"])]


def _cause_row(one: OfCause) -> list[str]:
    return [
        str(one.cause),
        str(one.n_there),
        str(one.n_found),
        str(one.n_false),
        f"{one.precision:.3f}",
        f"{one.recall:.3f}",
        f"{one.f1:.3f}",
        f"{one.telling_f1:.3f}" if one.telling_there else "-",
        "-" if one.weakest is None else f"{one.weakest:g}",
        ", ".join(f"{severity:g}: {n_found}/{n_there}" for severity, n_there, n_found in one.by_severity),
    ]


def _delay_text(delays: Delays | None) -> str:
    if delays is None:
        return "-"
    (median, late), (median_us, late_us) = delays.iterations, delays.microseconds
    return f"{median:g} iterations ({late:g} at the 95th percentile), {median_us:.0f} us of model time ({late_us:.0f})"
