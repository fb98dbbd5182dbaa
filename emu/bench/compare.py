"""``emu compare``: the same collective on the same fabric under several disciplines, one row each (``compare_table.py``).

What ``auto`` stands for is chosen under the first preset and kept, so that all rows carry the same traffic.  Only out of place
is run.  A time is that of the last rank (nccl-tests' ``-a 3``): a mean would hide a host that is stuck.

Law: a preset that the fabric, an impairment or a control refuses costs its own rows and no other's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from emu.bench.calibrate import Calibration
from emu.bench.congestion import totals_document
from emu.bench.fabrics import Case, prepare, without_effect
from emu.bench.options import BenchOptions, parse_settings
from emu.bench.report import versions
from emu.bench.rows import Row, Side, over_seeds, percentile
from emu.bench.runner import Observer, OpenSession, seed_rows
from emu.errors import ConfigError
from emu.telemetry.congestion import CongestionReport
from emu.topologies.describe import switching_line
from emu.topologies.switching_file import NO_SWITCHING, SWITCHING_KEYS, load_switching_preset
from emu.units import microseconds

DEFAULT_SWITCHING: Final = ("roce-pfc", "roce-dcqcn", "roce-lossy", "infiniband", "ultra-ethernet")
COMPARE_VERSION: Final = 1
LARGEST: Final = 3
"""Of nccl-tests' -a: the time of the rank that is last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One size under one preset.  ``times_ps``: of one operation, by seed, or by iteration with one seed.

    ``n_calls``: how often the collective ran while the counters of ``congestion`` were counting, over all seeds.
    """

    switching: str
    row: Row
    times_ps: tuple[int, ...]
    n_calls: int

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``rows``: by size, then in the order of the presets.  ``differences``: (preset, its switching in a line) of these rows;
    ``refused``: (preset, why) of those that did not run."""

    rows: tuple[Compared, ...]
    differences: tuple[tuple[str, str], ...]
    refused: tuple[tuple[str, str], ...]


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
) -> Comparison:
    """Every size under every preset of ``names``, by the time of the last rank.

    Raises ConfigError before anything runs when a name is not known, is named twice, or --set has one too; and when every
    preset is refused.
    """
    options = replace(options, average=LARGEST)
    if len(set(names)) != len(names):
        raise ConfigError(f"--switching {', '.join(names)}: name each once")
    if any(key.rpartition(".")[2] == "switching" for key, _ in options.settings):
        raise ConfigError("--set switching=... contradicts --switching; name it there, once for each row")
    if len(options.fabrics) != 1:
        raise ConfigError(f"--fabric {', '.join(options.fabrics)}: compare looks at one fabric; emu predict compares several")
    seeds = range(options.seed, options.seed + options.n_seeds)
    fabric = options.fabrics[0]
    switched = {name: with_switching(options, name) for name in names}
    for name in names:
        _check_known(name)
    cases: dict[str, list[Case]] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            cases[name] = [prepare(switched[name], fabric, seed) for seed in seeds]
        except ConfigError as error:
            refused[name] = str(error)
    if cases and (without := without_effect(next(iter(cases.values()))[0], options)):
        observer.message(f"# {without}")
    if cases and options.dilation is None and not options.simulated:
        calibration()  # before a session is open, which its own would disturb
    found: list[Compared] = []
    algorithms: dict[int, str] = {}
    for name, per_seed in cases.items():
        by_seed = []
        try:
            for case in per_seed:
                named = replace(case, name=f"{case.name}, {name}")
                rows = seed_rows(named, options, observer, open_session, calibration, in_place=False, algorithms=algorithms)
                with closing(rows):
                    by_seed.append(list(rows))
                algorithms = algorithms or {row.size_bytes: row.out_of_place.algorithm for row in by_seed[0]}
        except ConfigError as error:
            refused[name] = str(error)
            continue
        n_calls = len(seeds) * (options.warmup + options.iterations)
        found += [_compared(name, same_size, n_calls) for same_size in zip(*by_seed, strict=True)]
    order = {name: number for number, name in enumerate(names)}
    refusals = tuple((name, refused[name]) for name in names if name in refused)
    if not found:
        raise _all_refused(refusals)
    return Comparison(
        rows=tuple(sorted(found, key=lambda one: (one.row.size_bytes, order[one.switching]))),
        differences=tuple((name, _switching_line(cases[name][0])) for name in names if name not in refused),
        refused=refusals,
    )


def _check_known(text: str) -> None:
    """A slip of the name is no refusal: the whole command waits for its mending.  Raises ConfigError."""
    name = text.partition(",")[0].strip()
    if name != NO_SWITCHING:
        load_switching_preset(name, where="--switching")


def _all_refused(refused: Sequence[tuple[str, str]]) -> ConfigError:
    """One line: what all say alike, with all their names, else the first with its own."""
    name, reason = refused[0]
    if len(refused) > 1 and all(other == reason for _, other in refused):
        return ConfigError(f"{reason} (with each --switching: {', '.join(name for name, _ in refused)})")
    more = f" (and {len(refused) - 1} more refused)" if len(refused) > 1 else ""
    return ConfigError(f"--switching {name}: {reason}{more}")


def _switching_line(case: Case) -> str:
    switching = case.topology.switching
    return "infinite buffers, no packets" if switching is None else switching_line(switching)


def _compared(name: str, rows: Sequence[Row], n_calls: int) -> Compared:
    sides = [row.out_of_place for row in rows]
    if sides[0].unpaced:
        times = [side.time_ps for side in sides]
    else:
        times = [side.model_ps for side in sides] if len(sides) > 1 else list(sides[0].iteration_ps)
    return Compared(switching=name, row=over_seeds(rows), times_ps=tuple(times), n_calls=n_calls)


def compare_document(options: BenchOptions, found: Comparison, arguments: Sequence[str]) -> dict[str, Any]:
    """Plain data for --json; totals are sums over calls and seeds."""
    return {
        "emu_compare_version": COMPARE_VERSION,
        "args": list(arguments),
        "versions": versions(),
        "options": replace(options, average=LARGEST).as_plain(),
        "differences": dict(found.differences),
        "refused": dict(found.refused),
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
                "calls": one.n_calls,
                "congestion": None if one.congestion is None else totals_document(one.congestion),
            }
            for one in found.rows
        ],
    }
