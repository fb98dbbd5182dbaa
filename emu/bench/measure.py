"""Measure one row on a session: run the loop on every rank, out of place and in place, and put the ranks together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from emu.bench.data import NCCL_DTYPES
from emu.bench.loop import LoopPlan, LoopResult, run_loop
from emu.bench.options import BenchOptions
from emu.bench.rows import Row, Side, judge
from emu.collectives.busbw import Counts, counts
from emu.collectives.reduce import DTYPES

if TYPE_CHECKING:
    from emu.session import Session


def loop_plan(options: BenchOptions, size: Counts, *, in_place: bool) -> LoopPlan:
    """The loop for one half of a row."""
    return LoopPlan(
        collective=options.collective,
        dtype=NCCL_DTYPES[options.dtype],
        op=options.reduction,
        root=options.printed_root,
        send_count=size.send_count,
        receive_count=size.recv_count,
        iterations=options.iterations,
        warmup=options.warmup,
        in_place=in_place,
        check=options.checks,
        algorithm=options.algorithm,
        channels=options.channels,
        chunk_bytes=options.chunk_bytes,
    )


def rehearse(session: Session, options: BenchOptions, size: Counts, *, seed: int) -> None:
    """Where no warm-up iterations are asked for, one unpaced call in a run of its own: routes, programs and memory that
    this host sets up at first use are no part of what is measured."""
    if options.warmup or options.simulated:
        return
    plan = replace(loop_plan(options, size, in_place=False), iterations=1, check=False)
    session.begin(0.0, seed)
    session.run(run_loop, plan)


def row_counts(options: BenchOptions, size_bytes: int, n_ranks: int) -> Counts:
    """nccl-tests' arithmetic of sizes and counts for one requested size."""
    return counts(options.collective, size_bytes, DTYPES[NCCL_DTYPES[options.dtype]].itemsize, n_ranks)


def measure_row(
    session: Session, options: BenchOptions, size: Counts, *, n_ranks: int, dilation: float, seed: int, in_place: bool = True
) -> Row:
    """Both halves of a row at one dilation (0: unpaced; it is not looked at where the session simulates).

    Without ``in_place`` only the first is measured, and stands for both.
    """
    halves = [
        _measure(session, options, loop_plan(options, size, in_place=half), dilation=dilation, seed=seed)
        for half in ((False, True) if in_place else (False,))
    ]
    return row_of(options, size, n_ranks, halves[0], halves[-1])


def row_of(options: BenchOptions, size: Counts, n_ranks: int, out_of_place: Side, in_place: Side) -> Row:
    """What was asked for, with what was found."""
    return Row(
        collective=options.collective,
        n_ranks=n_ranks,
        size_bytes=size.size_bytes,
        count=size.count,
        dtype=options.dtype,
        op=options.reduction or "none",
        root=options.printed_root,
        out_of_place=out_of_place,
        in_place=in_place,
    )


def over_ranks(values: Sequence[int], average: int, *, waits_for_last: bool) -> int:
    """nccl-tests' -a: 0 rank 0's, 1 the mean, 2 the least, 3 the largest.

    Where there is a root, or one call stands for a loop, some ranks have finished while the data is still under way, and a mean
    would put the bandwidth above the wire's.  There 1 is the largest, as in an nccl-tests process that waits for all its GPUs.
    """
    if average == 0:
        return values[0]
    if average == 1 and not waits_for_last:
        return round(statistics.fmean(values))
    return min(values) if average == 2 else max(values)


def _measure(session: Session, options: BenchOptions, plan: LoopPlan, *, dilation: float, seed: int) -> Side:
    over = partial(over_ranks, average=options.average, waits_for_last=plan.root >= 0)
    session.begin(dilation, seed)
    results: list[LoopResult] = session.run(run_loop, plan)
    counters = session.counters()
    model_ps = over([result.model_ps for result in results])
    measured_ps = None
    late = None
    if not options.simulated:
        measured_ps = round(over([result.wall_ns for result in results]) * 1000 / (dilation or 1))
        late = measured_ps / model_ps - 1 if model_ps and dilation else None
    order_weight = counters.order_weight_ps / model_ps if model_ps else 0.0
    per_rank = [result.iteration_ps for result in results]
    wrong = [result.n_wrong for result in results if result.n_wrong is not None]
    return Side(
        measured_ps=None if measured_ps is None else round(measured_ps / plan.iterations),
        model_ps=round(model_ps / plan.iterations),
        late=late,
        verdict=judge(late=late, order_weight=order_weight, was_stopped=bool(counters.stopped_s)),
        n_wrong=sum(wrong) if wrong else None,
        algorithm=results[0].algorithm,
        chunk_bytes=results[0].chunk_bytes,
        protocol=results[0].protocol,
        dilation=None if options.simulated else dilation,
        seed=seed,
        order_violations=counters.order_violations,
        order_weight=order_weight,
        transport_backpressure=counters.transport_backpressure,
        largest_lateness_ps=counters.largest_lateness_ps,
        wire_bytes_per_rank_max=round(counters.wire_bytes_per_rank_max / plan.n_calls),
        iteration_ps=tuple(over(times) for times in zip(*per_rank, strict=True)),
        spent_ps=tuple(map(sum, zip(*(result.spent_ps for result in results), strict=True))),
        congestion=counters.congestion,
        stopped_s=counters.stopped_s,
    )
