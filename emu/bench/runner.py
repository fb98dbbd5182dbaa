"""Run a benchmark: every fabric, every seed, every size, on sessions that are opened and closed here.

The driver is behind ``open_session``, so that the whole of this is tested without one.
What was measured is handed on as it comes, through :class:`Observer`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from emu.bench.at_scale import is_at_scale, row_of_equals, rows_at_scale
from emu.bench.calibrate import Calibration
from emu.bench.dilation import Pacer
from emu.bench.fabrics import Case, prepare, reduction_of
from emu.bench.forecast import FEW_S, TELLING_S, check_feasible, forecast
from emu.bench.measure import loop_plan, measure_row, rehearse, row_counts
from emu.bench.options import BenchOptions
from emu.bench.rows import Row, Verdict, average_busbw_gb_per_s, over_seeds
from emu.bench.sweep import sizes_bytes
from emu.collectives.busbw import Counts
from emu.collectives.selection import is_choice
from emu.errors import ConfigError
from emu.units import format_bytes

if TYPE_CHECKING:
    from emu.session import Session

MIN_BW_VARIABLE: Final = "NCCL_TESTS_MIN_BW"
MIN_BW_SHARE: Final = 0.9
"""nccl-tests fails a run whose average bus bandwidth is below this share of NCCL_TESTS_MIN_BW (GB/s)."""
EXIT_OK: Final = 0
EXIT_WRONG: Final = 3
EXIT_THRESHOLD: Final = 4
EXIT_FIDELITY: Final = 5


class OpenSession(Protocol):
    """How a session is opened on a case: ``simulate`` without any process, or for real; a lent one outlives the run."""

    def __call__(
        self, case: Case, options: BenchOptions, *, simulate: bool, payload: bool
    ) -> AbstractContextManager[Session]: ...


class Observer(Protocol):
    """Who is told what happens while it happens."""

    def progress(self, text: str) -> None:
        """A short word on what is being done."""

    def message(self, text: str) -> None:
        """A line that stays, beside the data."""

    def begin(self, case: Case, options: BenchOptions) -> None:
        """A fabric's table begins."""

    def row(self, row: Row, ratio: float | None) -> None:
        """A row is there; ``ratio`` is its time over that of the first fabric's row, None for the first."""

    def end(self, result: FabricResult) -> None:
        """A fabric's table is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricResult:
    """All rows of one fabric.  ``case`` is that of the first seed; ``minimum`` the threshold in GB/s, if any."""

    case: Case
    rows: tuple[Row, ...]
    minimum: float | None

    @property
    def average(self) -> float | None:
        """Average bus bandwidth, GB/s; None when every row is degraded."""
        return average_busbw_gb_per_s(self.rows)

    @property
    def n_wrong(self) -> int:
        return sum(row.n_wrong for row in self.rows)

    @property
    def n_degraded(self) -> int:
        return sum(row.verdict is Verdict.DEGRADED for row in self.rows)

    @property
    def meets_minimum(self) -> bool:
        """Whether the average is at least 0.9 x the threshold; an average that cannot be given does not."""
        return self.minimum is None or (self.average is not None and self.average >= MIN_BW_SHARE * self.minimum)


def minimum_bandwidth(environment: dict[str, str] | None = None) -> float | None:
    """NCCL_TESTS_MIN_BW in GB/s, or None.  Raises ConfigError when it is no number."""
    text = (os.environ if environment is None else environment).get(MIN_BW_VARIABLE, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(f"{MIN_BW_VARIABLE}={text!r} must be a bandwidth in GB/s, for example 40") from None


def exit_code(results: tuple[FabricResult, ...], *, strict: bool) -> int:
    """Wrong data first, then lost fidelity (without which no threshold can be judged), then the threshold."""
    if any(result.n_wrong for result in results):
        return EXIT_WRONG
    if strict and any(result.n_degraded for result in results):
        return EXIT_FIDELITY
    return EXIT_OK if all(result.meets_minimum for result in results) else EXIT_THRESHOLD


def run(
    options: BenchOptions,
    observer: Observer,
    *,
    open_session: OpenSession,
    calibration: Callable[[], Calibration],
) -> tuple[FabricResult, ...]:
    """Run everything that ``options`` asks for.

    ``calibration`` is asked only where --dilation is auto; it may be slow once.
    Raises EmuError; sessions are closed however it ends.
    """
    minimum = minimum_bandwidth()
    seeds = range(options.seed, options.seed + options.n_seeds)
    cases = [[prepare(options, name, seed) for seed in seeds] for name in options.fabrics]
    if options.dilation is None and not options.simulated:
        calibration()  # before a session is open, which its own would disturb
    results: list[FabricResult] = []
    for per_seed in cases:
        rows: list[Row] = []
        with closing(_rows(per_seed, options, observer, open_session, calibration)) as measured:
            for row in measured:
                observer.row(row, _ratio(row, results[0].rows[len(rows)]) if results else None)
                rows.append(row)
        results.append(FabricResult(case=per_seed[0], rows=tuple(rows), minimum=minimum))
        observer.end(results[-1])
    return tuple(results)


def _rows(
    per_seed: Sequence[Case],
    options: BenchOptions,
    observer: Observer,
    open_session: OpenSession,
    calibration: Callable[[], Calibration],
) -> Generator[Row]:
    """The rows of one fabric: as they come with one seed, over all seeds at the end with several.

    Its table begins once a session is open, so that what a session refuses has no heading.
    """
    begin = partial(observer.begin, per_seed[0], options)
    first = seed_rows(per_seed[0], options, observer, open_session, calibration, opened=begin)
    if len(per_seed) == 1:
        yield from first
        return
    by_seed = [list(first)]
    by_seed += [list(seed_rows(case, options, observer, open_session, calibration)) for case in per_seed[1:]]
    for same_size in zip(*by_seed, strict=True):
        yield over_seeds(same_size)


def seed_rows(
    case: Case,
    options: BenchOptions,
    observer: Observer,
    open_session: OpenSession,
    calibration: Callable[[], Calibration],
    *,
    in_place: bool = True,
    algorithms: Mapping[int, str] | None = None,
    opened: Callable[[], None] = lambda: None,
) -> Generator[Row]:
    """The rows of one fabric at one seed, as they come, on a session of its own.

    Without ``in_place`` the first half stands for both.  ``algorithms``: what ``auto`` stands for, by the row's size.
    ``opened``: told when the session is open.
    """
    if is_at_scale(case, options):
        opened()
        observer.progress(f"{case.name}: {options.collective} by {options.algorithm}, {case.topology.n_ranks} ranks")
        yield from rows_at_scale(case, options)
        return
    if options.simulated:
        check_feasible(case, options)
    pacer = Pacer(
        0.0 if options.simulated else options.dilation,
        calibration,
        lambda: open_session(case, options, simulate=True, payload=False),
    )
    in_place = in_place and (options.checks or not options.simulated)  # unchecked and simulated, both halves are the same
    observer.progress(f"{case.name}: starting {case.topology.n_ranks} ranks")
    with closing(pacer), open_session(case, options, simulate=options.simulated, payload=options.payload) as session:
        opened()
        if options.metrics is not None:
            for endpoint in session.metrics_endpoints():
                observer.message(f"# metrics: {endpoint}")
        n_ranks = len(session.ranks)  # fewer than the fabric has, where a session is lent that has lost some
        for size_bytes in sizes_bytes(options):
            size = row_counts(options, size_bytes, n_ranks)
            row_options = _with_algorithm(session, options, size, (algorithms or {}).get(size.size_bytes))
            if options.simulated and (expected := forecast(case, row_options, size_bytes)).seconds > FEW_S:
                if n_ranks == case.topology.n_ranks and (equals := row_of_equals(case, row_options, size)) is not None:
                    yield equals
                    continue
                if expected.seconds > TELLING_S:
                    observer.message(f"# {case.name}, {format_bytes(size_bytes)}: {expected}")
            dilation = pacer.dilation(loop_plan(row_options, size, in_place=False), case.seed)
            what = f"{case.name}: {options.collective}, {format_bytes(size_bytes)}, seed {case.seed}"
            observer.progress(what if options.simulated else f"{what}, dilation {dilation:g}")
            rehearse(session, row_options, size, seed=case.seed)
            measure = partial(measure_row, session, row_options, size, n_ranks=n_ranks, seed=case.seed, in_place=in_place)
            row = measure(dilation=dilation)
            if row.verdict is Verdict.DEGRADED and options.dilation is None and not row.stopped_s:
                late = max(abs(side.late or 0.0) for side in (row.out_of_place, row.in_place))
                observer.progress(f"{what}: {100 * late:.1f} % late, once more at dilation {2 * dilation:g}")
                row = measure(dilation=2 * dilation)
            yield row


def _with_algorithm(session: Session, options: BenchOptions, size: Counts, given: str | None = None) -> BenchOptions:
    """``auto``, or another selection, resolved once, here, instead of by every actor."""
    if not is_choice(options.algorithm) or options.collective in ("alltoallv", "sendrecv", "barrier"):
        return options
    root = max(0, options.printed_root)
    what = options.collective, size.size_bytes, root, options.algorithm, reduction_of(options)
    chosen = given or session.choose_algorithm(*what)
    return replace(options, algorithm=chosen)


def _ratio(row: Row, first: Row) -> float | None:
    time_ps = first.out_of_place.time_ps
    return row.out_of_place.time_ps / time_ps if time_ps else None
