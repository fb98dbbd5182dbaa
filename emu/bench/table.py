"""nccl-tests' table, which parsers of its output still read, with emu's columns at the end.

The first 13 columns of a row are nccl-tests': size, count, type, redop, root, then
time, algbw, busbw and #wrong out of place and in place.  ``time`` is the measured time,
or the model's where nothing was paced.  After them, in this order:

    model    model time of one operation out of place, us
    late     how much longer the stopwatch says than the model, %; the worse of the two halves
    verdict  ok, degraded or - (not paced); the worse of the two halves
    algo     the algorithm that ran
    proto    (a fabric with an endpoint) the protocol that its kernels used
    dilation wall time over model time; - under simulate
    p5 p95   (--seeds) out-of-place time over the seeds, us
    i_min i_max i_p99 i_cv%   (-I) the model's times of single iterations out of place, us
    ratio    (several --fabric) time over that of the first fabric's table

Lines that begin with ``#`` are comments; on a fabric with switching some of them, below the table, tell of congestion.
Layout: NVIDIA/nccl-tests 2.19, src/common.cu.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from emu.bench.congestion import comment_lines
from emu.bench.fabrics import Case, without_effect
from emu.bench.options import ALGORITHM_VARIABLE, NO_ALGORITHM, PROTOCOL_VARIABLE, BenchOptions
from emu.bench.rows import Row, Side, percentile
from emu.bench.runner import MIN_BW_SHARE, FabricResult
from emu.collectives.busbw import busbw_gb_per_s
from emu.collectives.selection import is_choice, selected
from emu.topologies.graph import Topology
from emu.units import format_bytes, format_rate, microseconds

_HEADS: Final = (
    "#                                                              out-of-place                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
)
_WIDTHS: Final = (7, 6, 6, 6)
"""Of time, algbw, busbw and #wrong."""

_WHOSE: Final = ("rank 0's", "the last rank's", "the first rank's", "the last rank's")
"""The time of one call that stands for a loop, by -a."""


def _said(options: BenchOptions) -> str:
    """Who chose the algorithm, where it was the environment."""
    return f" ({ALGORITHM_VARIABLE})" if options.algorithm == os.environ.get(ALGORITHM_VARIABLE, "").strip() else ""


def _protocol(options: BenchOptions, topology: Topology) -> str:
    """What the endpoint says of protocols, where there is one."""
    costs = topology.endpoint
    if costs is None:
        return ""
    said = f" ({PROTOCOL_VARIABLE})" if costs.protocol == options.protocol else ""
    return f" protocol {costs.protocol}{said}, tuner {costs.tuner},"


def fixed(value: float, width: int) -> str:
    """At most two decimals (four below 1), fewer where they do not fit ``width``; never cut."""
    decimals = 4 if 0 < value < 1 else 2
    while decimals and len(f"{value:.{decimals}f}") > width:
        decimals -= 1
    return f"{value:.{decimals}f}"


def _algorithms(options: BenchOptions) -> tuple[str, ...]:
    """Names that may stand in the column of algorithms."""
    if options.collective in NO_ALGORITHM:
        return (options.algorithm,)
    return selected(options.algorithm, options.collective) if is_choice(options.algorithm) else (options.algorithm,)


class Table:
    """The text of one run's tables.  ``ratio``: whether this fabric is compared with a first one; ``proto``: whether protocols
    differ on it."""

    def __init__(self, options: BenchOptions, *, ratio: bool = False, proto: bool = False) -> None:
        self.options, self.proto = options, proto
        self.columns: list[tuple[str, str, int]] = [
            ("model", "(us)", 9),
            ("late", "(%)", 7),
            ("verdict", "", 8),
            ("algo", "", max(8, *map(len, _algorithms(options)))),
            *([("proto", "", 6)] if proto else []),
            ("dilation", "", 8),
        ]
        if options.n_seeds > 1:
            self.columns += [("p5", "(us)", 9), ("p95", "(us)", 9)]
        if options.per_iteration:
            self.columns += [("i_min", "(us)", 9), ("i_max", "(us)", 9), ("i_p99", "(us)", 9), ("i_cv%", "", 7)]
        if ratio:
            self.columns.append(("ratio", "", 7))

    def header(self, case: Case, versions: Mapping[str, str]) -> list[str]:
        """Everything above the first row."""
        options, topology = self.options, case.topology
        grows = f"{options.step_factor:g}(factor)" if options.step_factor > 1 else f"{options.step_bytes}(bytes)"
        iterations = f"warmup iters: {options.warmup} iters: {options.iterations} agg iters: 1"
        lines = [
            "# " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            f"# Collective test starting: {options.collective}_perf",
            f"# nThread 1 nGpus {topology.n_ranks} minBytes {options.begin_bytes} maxBytes {options.end_bytes}"
            f" step: {grows} {iterations} validation: {int(options.checks)} graph: 0",
            "#",
            f"# Fabric {case.name}: {topology.description or topology.name}",
            f"# Calibration: {topology.calibration}",
            f"# Driver {options.driver}, {self._pace()}, seed {self._seeds()}, algorithm {options.algorithm}{_said(options)},"
            f"{_protocol(options, topology)} channels {options.channels}, chunk {options.chunk_bytes or 'auto'}",
        ]
        if without := without_effect(case, options):
            lines.append(f"# {without}")
        if options.rank_map is not None:
            lines.append(f"# Ranks: {_shortened([topology.nodes[node].name for node in topology.ranks])}")
        lines += [f"# Impairment: {impairment}" for impairment in case.impairments]
        lines += [f"# Fault: {fault}" for fault in options.faults]
        return [*lines, "#", *self._column_heads()]

    def _pace(self) -> str:
        options = self.options
        if options.simulated:
            return "time is the model's" + ("" if options.payload else ", no payload")
        if options.dilation == 0:
            return "unpaced: time is this host's, not the fabric's"
        return f"dilation {'auto' if options.dilation is None else f'{options.dilation:g}'}"

    def _seeds(self) -> str:
        first, n = self.options.seed, self.options.n_seeds
        return str(first) if n == 1 else f"{first} to {first + n - 1} (median)"

    def _column_heads(self) -> list[str]:
        width = len(_HEADS[1])
        extra = ("", *("".join(f"  {column[part]:>{column[2]}}" for column in self.columns) for part in (0, 1)))
        return [f"{head:<{width}}{more}".rstrip() for head, more in zip(_HEADS, extra, strict=True)]

    def row(self, row: Row, ratio: float | None = None) -> str:
        """One line.  What does not fit its column pushes the rest to the right, so that splitting at spaces works."""
        line = f"{row.size_bytes:12d}  {row.count:12d}  {row.dtype:>8}  {row.op:>6}  {row.root:>6}"
        for side in row.sides:
            wrong = "N/A" if side.n_wrong is None else str(side.n_wrong)
            values = (
                fixed(microseconds(side.time_ps), _WIDTHS[0]),
                fixed(row.algbw_gb_per_s(side), _WIDTHS[1]),
                fixed(row.busbw_gb_per_s(side), _WIDTHS[2]),
                wrong,
            )
            line += "".join(f"  {value:>{width}}" for value, width in zip(values, _WIDTHS, strict=True))
        extra = self._extra(row, ratio)
        return line + "".join(f"  {text:>{width}}" for text, (_, _, width) in zip(extra, self.columns, strict=True))

    def _extra(self, row: Row, ratio: float | None) -> list[str]:
        out = row.out_of_place
        values = [
            "-" if out.unpaced else fixed(microseconds(out.model_ps), 9),
            "-" if row.late is None else f"{100 * row.late:+.2f}",
            str(row.verdict),
            out.algorithm,
            *([out.protocol or "-"] if self.proto else []),
            "-" if out.dilation is None else f"{out.dilation:g}",
        ]
        if self.options.n_seeds > 1:
            values += [fixed(microseconds(time_ps or 0), 9) for time_ps in (out.p5_ps, out.p95_ps)]
        if self.options.per_iteration:
            values += _iteration_columns(out)
        if len(values) < len(self.columns):
            values.append("-" if ratio is None else f"{ratio:.3f}")
        return values

    def footer(self, result: FabricResult) -> list[str]:
        """Everything below the last row."""
        out_of_bounds = f"# Out of bounds values : {result.n_wrong} {'OK' if result.n_wrong == 0 else 'FAILED'}"
        average = "N/A" if result.average is None else f"{result.average:g}"
        bounded = ""
        if result.minimum is not None:
            met = "OK" if result.meets_minimum else "FAILED"
            bounded = f" {met} (at least {MIN_BW_SHARE:g} x {result.minimum:g} asked for)"
        unchecked = all(side.n_wrong is None for row in result.rows for side in row.sides)
        not_checked = ["# Not checked          : no result was compared with what it must be; -c 1 checks"] if unchecked else []
        methods = dict.fromkeys(row.out_of_place.method for row in result.rows if row.out_of_place.method)
        whose = _WHOSE[self.options.average]
        not_checked += [f"# Method               : one call from a common start, {whose} time, {method}" for method in methods]
        lines = [out_of_bounds, *not_checked, f"# Avg bus bandwidth    : {average}{bounded}"]
        if result.n_degraded:
            lines.append(
                f"# Degraded rows        : {result.n_degraded} of {len(result.rows)}, not in the average: the host did not"
                " keep pace; use a larger --dilation, fewer ranks, or --driver simulate"
            )
        for row in result.rows:
            lines += [
                f"# Process stopped      : {name}, {seconds:.1f} s of wall time at {format_bytes(row.size_bytes)}"
                for name, seconds in row.stopped_s.items()
            ]
        sides = [side for row in result.rows for side in row.sides]
        violations = sum(side.order_violations for side in sides)
        if violations:
            worst = max(side.order_weight for side in sides)
            lines.append(
                f"# Order violations     : {violations} frames were served late behind later ones; that held frames back"
                f" by up to {100 * worst:.2g} % of a row's model time"
            )
        congestion = result.rows[-1].out_of_place.congestion if result.rows else None
        told = [] if congestion is None else comment_lines(congestion)
        return [*told, *lines, "#", f"# Collective test concluded: {self.options.collective}_perf", "#"]


def _iteration_columns(side: Side) -> list[str]:
    """The nearest-rank p99 is the largest of fewer than 100 iterations."""
    times = side.iteration_ps
    mean = statistics.fmean(times)
    variation = 100 * statistics.pstdev(times) / mean if mean else 0.0
    values = [fixed(microseconds(time_ps), 9) for time_ps in (min(times), max(times), percentile(times, 99))]
    return [*values, f"{variation:.2f}"]


def _shortened(names: Sequence[str], most: int = 64) -> str:
    return " ".join(names[:most]) + (f" ... ({len(names)} in all)" if len(names) > most else "")


def reading(first: FabricResult, other: FabricResult) -> str:
    """One line that compares two fabrics at the largest size, by the model's times."""
    mine, theirs = first.rows[-1], other.rows[-1]
    times_ps = [row.out_of_place.model_ps for row in (mine, theirs)]
    rates = [
        format_rate(8e9 * float(busbw_gb_per_s(row.collective, row.size_bytes, row.n_ranks, time_ps)))
        for row, time_ps in zip((mine, theirs), times_ps, strict=True)
    ]
    return (
        f"{other.case.name} takes {times_ps[1] / max(1, times_ps[0]):.2f} x the time of {first.case.name}:"
        f" {rates[1]} of bus bandwidth against {rates[0]}."
    )
