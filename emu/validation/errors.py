"""Errors: how far simulated times are from measured ones, in figures.

The relative error of a row is simulated / measured - 1.  Its size is what counts in a group: geometric mean (an error under
:data:`LEAST` counts as that, so that one lucky row does not make a group), mean, median, and the worst row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from emu.validation.measurement import Measurement

LEAST: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured row and what emu says.  ``fitted``: whether parameters were fitted to it."""

    measurement: Measurement
    simulated_us: float
    algorithm: str
    protocol: str
    fitted: bool

    @property
    def error(self) -> float:
        return self.simulated_us / self.measurement.time_us - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of a group, as fractions; ``worst`` is its row."""

    n_rows: int
    geometric_mean: float
    mean: float
    median: float
    worst: Compared


def summary(rows: Sequence[Compared]) -> Summary:
    """Of one row or more."""
    sizes = [abs(row.error) for row in rows]
    return Summary(
        n_rows=len(rows),
        geometric_mean=math.exp(fmean(math.log(max(LEAST, size)) for size in sizes)),
        mean=fmean(sizes),
        median=median(sizes),
        worst=max(rows, key=lambda row: abs(row.error)),
    )


def groups(rows: Iterable[Compared]) -> dict[tuple[str, str, int, str, bool], list[Compared]]:
    """By table, fabric, ranks, collective, and whether they were fitted; in the order of their first rows."""
    found: dict[tuple[str, str, int, str, bool], list[Compared]] = {}
    for row in rows:
        its = row.measurement
        found.setdefault((its.table, its.fabric, its.n_ranks, its.collective, row.fitted), []).append(row)
    return found
