"""``emu compare``: the same collective on the same fabric under several disciplines, one row each, in one table.

    size       bytes
    switching  the preset, with its changes as they were written
    algo       the algorithm: what ``auto`` stands for is chosen under the first preset and kept, so that all carry the same
    median     the model's time of one operation, us: over seeds, or over iterations with one seed; only out of place is run
               (unpaced, dilation 0, it is the stopwatch's)
    p99        nearest rank over the same
    pauses     time for which ports were paused, us; summed over ports, as the columns after it
    waits      time for which a packet waited for a pause or credits while the wire was free, us
    marks      packets marked by ECN
    drops      packets dropped, in switches and adapters
    resent     bytes that were sent again, end to end or by links
    trims      packets cut to their header
    cause      what the counters point to, see emu/telemetry/diagnosis.py
    late       how much longer the stopwatch says than the model, %; - under simulate
    verdict    whether the host kept pace; - under simulate

Counters are those of one whole loop with its warm-up; with several seeds their mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from emu.bench.calibrate import Calibration
from emu.bench.congestion import totals_document
from emu.bench.fabrics import prepare
from emu.bench.options import BenchOptions, parse_settings
from emu.bench.report import versions
from emu.bench.rows import Row, Side, over_seeds, percentile
from emu.bench.runner import Observer, OpenSession, seed_rows
from emu.errors import ConfigError
from emu.telemetry.congestion import CongestionReport
from emu.telemetry.diagnosis import diagnose, words
from emu.topologies.switching_file import SWITCHING_KEYS
from emu.units import format_bytes, microseconds

DEFAULT_SWITCHING: Final = ("roce-pfc", "roce-dcqcn", "roce-lossy", "infiniband", "ultra-ethernet")
COMPARE_VERSION: Final = 1
COLUMNS: Final = (
    "size", "switching", "algo", "median us", "p99 us", "pauses us", "waits us", "marks", "drops", "resent", "trims", "cause",
    "late %", "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One size under one preset.  ``times_ps``: of one operation, by seed, or by iteration with one seed."""

    switching: str
    row: Row
    times_ps: tuple[int, ...]

    @property
    def side(self) -> Side:
        return self.row.out_of_place

    @property
    def median_ps(self) -> int:
        return round(statistics.median(self.times_ps))

    @property
    def p99_ps(self) -> int:
        return percentile(self.times_ps, 99)

    @property
    def congestion(self) -> CongestionReport | None:
        return self.side.congestion


def with_switching(options: BenchOptions, text: str) -> BenchOptions:
    """The options with ``NAME`` or ``NAME,key=value,...`` as settings more, which override those that are there.

    After a key that ends in ``_parameters`` its value goes on until the next key of switching:
    ``roce-dcqcn,control_parameters=set=hpcc,g=1/256,kmin=100KiB``.  Raises ConfigError.
    """
    name, *parts = text.split(",")
    pairs: list[str] = []
    for part in parts:
        continues = bool(pairs) and pairs[-1].partition("=")[0].endswith("_parameters")
        if continues and part.partition("=")[0].strip() not in SWITCHING_KEYS:
            pairs[-1] += f",{part}"
        else:
            pairs.append(part.strip())
    try:
        changes = parse_settings(pairs)
    except ConfigError as error:
        raise ConfigError(f"--switching {text}: {str(error).removeprefix('--set ')}") from None
    return replace(options, settings=(*options.settings, ("switching", name.strip()), *changes))


def compare(
    options: BenchOptions,
    names: Sequence[str],
    observer: Observer,
    *,
    open_session: OpenSession,
    calibration: Callable[[], Calibration],
) -> tuple[Compared, ...]:
    """Every size under every preset, by size and then in the order of ``names``.

    Raises ConfigError before anything runs when a name is not known, is named twice, or --set has one too.
    """
    if len(set(names)) != len(names):
        raise ConfigError(f"--switching {', '.join(names)}: name each once")
    if any(key.rpartition(".")[2] == "switching" for key, _ in options.settings):
        raise ConfigError("--set switching=... contradicts --switching; name it there, once for each row")
    if len(options.fabrics) != 1:
        raise ConfigError(f"--fabric {', '.join(options.fabrics)}: compare looks at one fabric; emu predict compares several")
    seeds = range(options.seed, options.seed + options.n_seeds)
    fabric = options.fabrics[0]
    cases = [(name, [prepare(with_switching(options, name), fabric, seed) for seed in seeds]) for name in names]
    if options.dilation is None and not options.simulated:
        calibration()  # before a session is open, which its own would disturb
    found: list[Compared] = []
    algorithms: dict[int, str] = {}
    for name, per_seed in cases:
        by_seed = []
        for case in per_seed:
            named = replace(case, name=f"{case.name}, {name}")
            rows = seed_rows(named, options, observer, open_session, calibration, in_place=False, algorithms=algorithms)
            with closing(rows):
                by_seed.append(list(rows))
            algorithms = algorithms or {row.size_bytes: row.out_of_place.algorithm for row in by_seed[0]}
        found += [_compared(name, same_size) for same_size in zip(*by_seed, strict=True)]
    order = {name: number for number, name in enumerate(names)}
    return tuple(sorted(found, key=lambda one: (one.row.size_bytes, order[one.switching])))


def _compared(name: str, rows: Sequence[Row]) -> Compared:
    sides = [row.out_of_place for row in rows]
    if sides[0].unpaced:
        times = [side.time_ps for side in sides]
    else:
        times = [side.model_ps for side in sides] if len(sides) > 1 else list(sides[0].iteration_ps)
    return Compared(switching=name, row=over_seeds(rows), times_ps=tuple(times))


def cells(one: Compared) -> tuple[str, ...]:
    """A row of the table, by :data:`COLUMNS`."""
    congestion = one.congestion
    counted = ("-",) * 7
    if congestion is not None:
        n = congestion.n_runs
        counted = (
            f"{microseconds(congestion.pause_ps) / n:.1f}",
            f"{microseconds(congestion.wait_ps) / n:.1f}",
            f"{congestion.marked_packets / n:.0f}",
            f"{congestion.discards / n:.0f}",
            format_bytes(congestion.retransmitted_bytes / n),
            f"{congestion.trimmed_packets / n:.0f}",
            words(diagnose(congestion)),
        )
    return (
        format_bytes(one.row.size_bytes),
        one.switching,
        one.side.algorithm,
        f"{microseconds(one.median_ps):.2f}",
        f"{microseconds(one.p99_ps):.2f}",
        *counted,
        "-" if one.row.late is None else f"{100 * one.row.late:+.2f}",
        str(one.row.verdict),
    )


def compare_document(options: BenchOptions, found: Sequence[Compared], arguments: Sequence[str]) -> dict[str, Any]:
    """Plain data for --json; totals are sums over seeds."""
    return {
        "emu_compare_version": COMPARE_VERSION,
        "args": list(arguments),
        "versions": versions(),
        "options": options.as_plain(),
        "rows": [
            {
                "size": one.row.size_bytes,
                "switching": one.switching,
                "algorithm": one.side.algorithm,
                "median_us": microseconds(one.median_ps),
                "p99_us": microseconds(one.p99_ps),
                "times_us": [microseconds(time_ps) for time_ps in one.times_ps],
                "dilation": one.side.dilation,
                "late": one.row.late,
                "verdict": str(one.row.verdict),
                "nwrong": one.side.n_wrong,
                "congestion": None if one.congestion is None else totals_document(one.congestion),
            }
            for one in found
        ],
    }
