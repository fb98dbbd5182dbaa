"""Score: of what was wrong, how much was found; of what was found, how much was wrong; by cause and by severity.

A finding is right where cause and component are those of a fault that was there.  Precision is over all runs.  Recall is over all
faults, and again over those that cost at least :data:`TELLING_COST` of a step, as one that costs nothing need not be seen.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from emu.diagnosis.campaign import Outcome, Truth
from emu.diagnosis.cases import SEVERITIES
from emu.diagnosis.finding import Cause, Finding

TELLING_COST: Final = 0.05
NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCause:
    """``n_found`` of ``n_there`` faults; ``n_false`` findings of this cause that were not right.  ``telling_*``: of faults that
    cost enough.  ``by_severity``: (severity, there, found), the weakest first.  ``weakest``: the least severity of which all
    were found, and all of the greater ones."""

    cause: Cause
    n_there: int
    n_found: int
    n_false: int
    telling_there: int
    telling_found: int
    by_severity: tuple[tuple[float, int, int], ...]
    weakest: float | None

    @property
    def precision(self) -> float:
        found = self.n_found + self.n_false
        return self.n_found / found if found else 1.0

    @property
    def recall(self) -> float:
        return self.n_found / self.n_there if self.n_there else 1.0

    @property
    def telling_recall(self) -> float:
        return self.telling_found / self.telling_there if self.telling_there else 1.0

    @property
    def f1(self) -> float:
        return _f1(self.precision, self.recall)

    @property
    def telling_f1(self) -> float:
        """With precision over what was found of telling faults."""
        found = self.telling_found + self.n_false
        return _f1(self.telling_found / found if found else 1.0, self.telling_recall)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Iterations and model time from a fault's onset: median and 95th percentile, of those that were found."""

    iterations: tuple[float, float]
    microseconds: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``n_localised`` of ``n_located`` runs with a telling fault had one in first place, cause aside.  ``n_overloaded`` runs
    were said to be late by the host, which is no false alarm: a stopwatch says so.  ``confusion``: faults by cause, then by the
    cause that was named at their component."""

    n_runs: int
    n_healthy: int
    n_false_alarms: int
    n_overloaded: int
    causes: tuple[OfCause, ...]
    n_located: int
    n_localised: int
    to_detect: Delays | None
    to_localise: Delays | None
    confusion: dict[str, dict[str, int]]

    @property
    def macro_f1(self) -> float:
        """Mean over causes of which there were telling faults."""
        there = [one.telling_f1 for one in self.causes if one.telling_there]
        return statistics.fmean(there) if there else 1.0

    @property
    def localisation(self) -> float:
        return self.n_localised / self.n_located if self.n_located else 1.0

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        causes = [
            asdict(one)
            | {"precision": one.precision, "recall": one.recall, "f1": one.f1}
            | {"telling_recall": one.telling_recall, "telling_f1": one.telling_f1}
            for one in self.causes
        ]
        return asdict(self) | {"causes": causes, "macro_f1": self.macro_f1, "localisation": self.localisation}


def score(outcomes: Sequence[Outcome]) -> Score:
    """Of a campaign."""
    truths = [(outcome, truth) for outcome in outcomes for truth in outcome.truths]
    false = Counter[Cause]()
    for outcome in outcomes:
        right = {(truth.cause, truth.component) for truth in outcome.truths}
        false.update(one.cause for one in _said(outcome) if (one.cause, one.component) not in right)
    healthy = [outcome for outcome in outcomes if not outcome.truths]
    located = [one for one in outcomes if any(truth.cost >= TELLING_COST for truth in one.truths)]
    confusion: dict[str, dict[str, int]] = {}
    for outcome, truth in truths:
        row = confusion.setdefault(str(truth.cause), {})
        for named in _named(outcome, truth):
            row[named] = row.get(named, 0) + 1
    causes = [cause for cause in Cause if false[cause] or any(truth.cause is cause for _, truth in truths)]
    return Score(
        n_runs=len(outcomes),
        n_healthy=len(healthy),
        n_false_alarms=sum(len(_said(outcome)) for outcome in healthy),
        n_overloaded=sum(any(one.cause is Cause.OVERLOADED for one in outcome.findings) for outcome in outcomes),
        causes=tuple(_of_cause(cause, truths, false[cause]) for cause in causes),
        n_located=len(located),
        n_localised=sum(_is_localised(outcome) for outcome in located),
        to_detect=_delays(truth.detected for _, truth in truths),
        to_localise=_delays(truth.localised for _, truth in truths),
        confusion=confusion,
    )


def _said(outcome: Outcome) -> list[Finding]:
    """The findings, without that the host was late where that was no case's doing: then it was late indeed."""
    caused = any(truth.cause is Cause.OVERLOADED for truth in outcome.truths)
    return [one for one in outcome.findings if caused or one.cause is not Cause.OVERLOADED]


def _is_localised(outcome: Outcome) -> bool:
    said = _said(outcome)
    return bool(said) and said[0].component in {truth.component for truth in outcome.truths}


def _named(outcome: Outcome, truth: Truth) -> list[str]:
    if outcome.has(truth):
        return [str(truth.cause)]
    return [str(one.cause) for one in outcome.findings if one.component == truth.component] or [NONE]


def _of_cause(cause: Cause, truths: Iterable[tuple[Outcome, Truth]], n_false: int) -> OfCause:
    its = [(outcome.has(truth), truth) for outcome, truth in truths if truth.cause is cause]
    telling = [found for found, truth in its if truth.cost >= TELLING_COST]
    by_severity = []
    for severity in SEVERITIES.get(cause, (1,)):
        found = [found for found, truth in its if truth.severity == severity]
        if found:
            by_severity.append((float(severity), len(found), sum(found)))
    weakest = None
    for severity, n_there, n_found in reversed(by_severity):
        if n_found < n_there:
            break
        weakest = severity
    return OfCause(
        cause=cause,
        n_there=len(its),
        n_found=sum(found for found, _ in its),
        n_false=n_false,
        telling_there=len(telling),
        telling_found=sum(telling),
        by_severity=tuple(by_severity),
        weakest=weakest,
    )


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _delays(found: Iterable[tuple[int, int] | None]) -> Delays | None:
    there = [one for one in found if one is not None]
    if not there:
        return None
    return Delays(iterations=_quantiles([one[0] for one in there]), microseconds=_quantiles([one[1] / 1e6 for one in there]))


def _quantiles(values: list[int] | list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return float(statistics.median(ordered)), float(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))])
