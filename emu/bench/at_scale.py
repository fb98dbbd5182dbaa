"""Rows of large systems, without a session: one call of all ranks from a common start on a fabric at rest.

No warm-up, no barrier and no call behind it, unlike the loop (``bench/loop.py``): the table says so below its rows.  In a loop
the slowest rank paces all, so that the row has the time of the last rank; ``-a 0`` and ``-a 2`` ask for rank 0's and the first's.
Where all ranks leave a call together, as they began it, the loop is as many of it to the picosecond (:func:`row_of_equals`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from emu.bench.data import NCCL_DTYPES
from emu.bench.fabrics import Case
from emu.bench.forecast import fewest_chunks
from emu.bench.measure import over_ranks, row_counts, row_of
from emu.bench.options import NO_ALGORITHM, BenchOptions
from emu.bench.rows import Row, Side, Verdict
from emu.bench.sweep import sizes_bytes
from emu.collectives.busbw import Counts
from emu.collectives.call import ROOTED
from emu.collectives.catalogue import algorithm_name
from emu.collectives.reduce import DTYPES
from emu.collectives.selection import AUTO, is_choice
from emu.errors import ConfigError
from emu.impairments.spec import parse_impairment, resolve
from emu.scale.answer import MOST_LOOPED, answer, by_arithmetic, least_ps, leaves_barrier_together
from emu.scale.call import Answer, NotExact, OneCall

MOST_LOOPED_RANKS: Final = 1000
"""Ranks of a loop, each with a thread of its own."""
_AT_SCALE: Final = {
    "all_reduce": ("ring", "tree"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "alltoall": ("direct",),
}
"""What ``auto`` chooses from over many ranks or bytes: what can be counted.  Others take hours to predict."""


def is_at_scale(case: Case, options: BenchOptions) -> bool:
    """Whether these rows are of one call each.  Raises ConfigError where ``--method vectorised`` asks for what cannot be."""
    if options.method == "full":
        return False
    why_not = _why_not(case, options)
    if options.method == "vectorised":
        if why_not is not None:
            raise ConfigError(f"--method vectorised: {why_not}")
        return True
    if why_not is not None:
        return False
    return case.topology.n_ranks > MOST_LOOPED_RANKS or _is_long(case, options)


def _why_not(case: Case, options: BenchOptions) -> str | None:
    """Why no row can be of one call."""
    topology = case.topology
    reasons = {
        "it is for emu predict": not options.simulated,
        "no data moves, so nothing can be checked: leave out -c 1": options.checks,
        "faults need the machines": bool(options.faults),
        "name the --algorithm, for example ring": options.collective in NO_ALGORITHM or not _candidates(case, options),
        "the accelerators' own work costs time there": topology.endpoint is not None,
        "there is one rank": topology.n_ranks < 2,
        "the fabric has switching": topology.switching is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _is_long(case: Case, options: BenchOptions) -> bool:
    n_calls = options.warmup + options.iterations
    return fewest_chunks(case.topology, options, options.end_bytes, options.chunk_bytes) * n_calls > MOST_LOOPED


def _candidates(case: Case, options: BenchOptions) -> tuple[str, ...]:
    """The algorithm that was named; of ``auto`` over many ranks or bytes, those that are counted and not run.  None of other
    choices."""
    if not is_choice(options.algorithm):
        return (algorithm_name(options.algorithm),)
    is_large = options.algorithm == AUTO and (case.topology.n_ranks > MOST_LOOPED_RANKS or _is_long(case, options))
    return _AT_SCALE.get(options.collective, ()) if is_large else ()


def rows_at_scale(case: Case, options: BenchOptions) -> Iterator[Row]:
    """The rows of one fabric, as they come.  Raises ConfigError for what would take hours."""
    for size_bytes in sizes_bytes(options):
        size = row_counts(options, size_bytes, case.topology.n_ranks)
        call = _call(case, options, size)
        side: Side | None = None
        for name in _candidates(case, options):
            named = replace(call, algorithm=name)
            if side is None or least_ps(named) < (side.model_ps or 0):
                its = _side(_answer(named, options), named, options, case.seed)
                side = its if side is None else min(side, its, key=lambda one: one.model_ps or 0)
        assert side is not None
        yield row_of(options, size, case.topology.n_ranks, side, side)


def row_of_equals(case: Case, options: BenchOptions, size: Counts) -> Row | None:
    """The row of a loop that need not be run: all ranks leave the barrier before it together, and every call, which is counted.

    None where that is not certain: of a selection, with windows that a call's last credits may not have come back to, or where
    the loop itself is asked for.
    """
    topology = case.topology
    is_open = is_choice(options.algorithm) or options.method != "auto" or options.metrics is not None
    if is_open or _why_not(case, options) is not None or any(link.window_bytes is not None for link in topology.links):
        return None
    call = _call(case, options, size, algorithm_name(options.algorithm))
    try:
        found = by_arithmetic(call)
    except NotExact:
        return None
    if len(set(found.completed_ps)) > 1 or not leaves_barrier_together(call):
        return None
    side = _side(found, call, options, case.seed)
    side = replace(side, method=f"{side.method}; all ranks end together, so that the loop is {options.iterations} of it")
    side = replace(side, iteration_ps=side.iteration_ps * options.iterations)
    return row_of(options, size, topology.n_ranks, side, side)


def _call(case: Case, options: BenchOptions, size: Counts, algorithm: str = "") -> OneCall:
    dtype = NCCL_DTYPES[options.dtype]
    return OneCall(
        topology=case.topology,
        impairments=resolve([parse_impairment(text) for text in case.impairments], case.topology),
        collective=options.collective,
        algorithm=algorithm,
        count=size.count,
        itemsize=DTYPES[dtype].itemsize,
        dtype=dtype,
        op=options.reduction,
        root=options.root if options.collective in ROOTED else None,
        chunk_bytes=options.chunk_bytes,
        channels=options.channels,
    )


def _answer(call: OneCall, options: BenchOptions) -> Answer:
    try:
        return by_arithmetic(call)
    except NotExact as reason:
        if options.method == "vectorised":
            raise ConfigError(f"--method vectorised is not exact here: {reason}; use --method auto or full") from None
        return answer(call, why_not=str(reason))


def _side(found: Answer, call: OneCall, options: BenchOptions, seed: int) -> Side:
    time_ps = over_ranks(found.completed_ps, options.average, waits_for_last=True)
    return Side(
        measured_ps=None,
        model_ps=time_ps,
        late=None,
        verdict=Verdict.NONE,
        n_wrong=None,
        algorithm=call.algorithm,
        chunk_bytes=found.chunk_bytes,
        dilation=None,
        seed=seed,
        order_violations=0,
        order_weight=0.0,
        transport_backpressure=0,
        largest_lateness_ps=0,
        wire_bytes_per_rank_max=found.wire_bytes_per_rank_max,
        iteration_ps=(time_ps,),
        method=found.method,
    )
