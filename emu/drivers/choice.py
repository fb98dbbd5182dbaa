"""Choice: the algorithm that ``auto``, or another selection, stands for, by predicted time.

Law: a pure function of fabric, collective, size and members, so that all ranks
choose alike.  Each candidate is simulated once, without data; one whose lower
bound (its steps at the smallest latency, its bytes at the fastest injection) is
not below the best time so far is skipped.  Sizes are rounded up to a power of two, and cut.
One that cannot reduce as asked, as NCCL's PAT has no avg, is passed over.
What reduces in switches is left to a selection that names it, or to fabrics with an ``[endpoint]``: without an
accelerator's costs a switch that reduces for nothing would look better than it is.
An algorithm that declines the number of ranks (ConfigError) is passed over; one that is wrong (ScheduleError) too, with a
line on stderr.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np

from emu.collectives.call import n_counts_of
from emu.collectives.catalogue import cost_for, find_algorithm, schedule_for
from emu.collectives.layout import Layout, flat, layout_of
from emu.collectives.schedule import StepKind
from emu.collectives.selection import AUTO, selected
from emu.drivers.engine import Engine
from emu.drivers.simulate import Simulation
from emu.drivers.tuning import PREDICT, chosen
from emu.errors import ConfigError, ScheduleError
from emu.protocols.legal import Reduction, reducing
from emu.protocols.selection import goes_with
from emu.rank import Rank
from emu.topologies.graph import Topology
from emu.units import PS_PER_SECOND

MOST_MESSAGES = 100_000
"""Candidates with more messages than this are left out where a smaller one exists: what a message costs an accelerator
is not modelled, so that they would look better than they are, and predicting them takes minutes."""
MOST_RANK_BYTES = 1 << 27
"""Sizes beyond so many times the ranks are chosen for as that one: by then time grows with the bytes, whatever the algorithm, and
predicting them takes minutes."""
COUNTED_RANKS = 32
MOST_LAID_OUT = 256
"""Ranks up to which an algorithm is counted by building it that declines ranks of which nothing is known."""
_log: Final = logging.getLogger("emu")


class Chooser:
    """Remembers what it chose for a fabric."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._chosen: dict[tuple[str, int, tuple[int, ...], int, str, Reduction | None], str] = {}

    def choose(
        self,
        collective: str,
        n_bytes: int,
        members: tuple[int, ...],
        root: int,
        selection: str = AUTO,
        reduction: Reduction | None = None,
    ) -> str:
        """Name of the algorithm that the fabric's tuner takes; else, or where that knows none of them, of the smallest predicted
        time.  The first thread to ask predicts, the others wait."""
        endpoint = self._topology.endpoint
        if endpoint is not None and endpoint.tuner != PREDICT:
            algorithm = chosen(self._topology, endpoint.tuner, collective, n_bytes, members, reduction, selection)
            if algorithm:
                return algorithm
        size_bytes = min(1 << max(3, (n_bytes - 1).bit_length()), MOST_RANK_BYTES * len(members))
        key = (collective, size_bytes, members, root, selection, reduction)
        with self._lock:
            found = self._chosen.get(key)
            if found is None:
                found = self._chosen[key] = self._fastest(*key)
        return found

    def _fastest(
        self,
        collective: str,
        size_bytes: int,
        members: tuple[int, ...],
        root: int,
        selection: str,
        reduction: Reduction | None,
    ) -> str:
        names = reducing(selected(selection, collective), reduction, collective)
        in_switches = selection != AUTO or self._topology.endpoint is not None
        protocol = AUTO if self._topology.endpoint is None else self._topology.endpoint.protocol
        names = tuple(name for name in names if goes_with(protocol, collective, name))
        if not names:
            raise ConfigError(f"protocol {protocol} goes with none of the algorithms {selection} of {collective}; use auto")
        if len(names) == 1:
            return names[0]
        if len(members) == 1 and "direct" in names:
            return "direct"  # all of them do nothing there
        n, refusals, layout = len(members), list[str](), layout_of(self._topology, members)
        candidates = []
        for name in names:
            with _passed_over(refusals):
                n_sent = n_messages(collective, name, layout)
                candidates.append((n_sent, self._lower_bound_ps(collective, name, size_bytes, layout), name))
        fewest = min((n_sent for n_sent, _, _ in candidates), default=0)
        best_name, best_ps = "", None
        for n_sent, bound_ps, name in sorted(candidates, key=lambda candidate: candidate[1:]):
            if n_sent > max(MOST_MESSAGES, fewest) or (best_ps is not None and bound_ps >= best_ps):
                continue
            schedule = None
            with _passed_over(refusals):
                schedule = schedule_for(collective, name, n, root, layout)
            if schedule is None or (schedule.n_switches and not in_switches):
                continue
            time_ps = predict_ps(self._topology, collective, name, size_bytes, members, root) if n > 1 else 0
            if best_ps is None or time_ps < best_ps:
                best_name, best_ps = name, time_ps
        if not best_name:
            raise ConfigError(f"no algorithm does {collective} over {n} ranks: {'; '.join(refusals) or 'name one'}")
        return best_name

    def _lower_bound_ps(self, collective: str, name: str, size_bytes: int, layout: Layout) -> int:
        topology = self._topology
        latency_ps = _least_latency_ps(topology)
        injection_bps = max(sum(topology.links[link].rate_bps for link in out) for out in topology.out_links())
        cost = cost_for(collective, name, layout.n_ranks, layout)
        return int(cost.steps * latency_ps + cost.sent * size_bytes * 8 * PS_PER_SECOND / injection_bps)


@contextmanager
def _passed_over(refusals: list[str]) -> Iterator[None]:
    """What cannot be used is remembered, and said at once where it is wrong."""
    try:
        yield
    except ConfigError as error:
        refusals.append(str(error))
    except ScheduleError as error:
        refusals.append(str(error))
        _log.warning("emu: auto leaves out a wrong algorithm: %s", error)


def n_messages(collective: str, algorithm: str, layout: Layout) -> int:
    """Messages of the whole schedule; beyond :data:`COUNTED_RANKS` by how the number grows up to there.

    An algorithm that declines the numbers up to there is counted at the layout's own number of ranks.
    """
    n_ranks = layout.n_ranks
    if n_ranks > COUNTED_RANKS:
        with suppress(ConfigError):
            half, full = (_counted(collective, algorithm, flat(n)) for n in (COUNTED_RANKS // 2, COUNTED_RANKS))
            growth = full / half if half else 1.0
            return int(full * math.pow(growth, math.log2(n_ranks / COUNTED_RANKS)))
        if n_ranks > MOST_LAID_OUT and find_algorithm(algorithm).asks_layout:
            raise ConfigError(f"{algorithm} over more than {MOST_LAID_OUT} ranks is not tried or estimated: use ring")
    return _counted(collective, algorithm, layout)


def _counted(collective: str, algorithm: str, layout: Layout) -> int:
    programs = schedule_for(collective, algorithm, layout.n_ranks, 0, layout).programs
    return sum(step.kind == StepKind.SEND for program in programs for step in program)


def _least_latency_ps(topology: Topology) -> int:
    """No message takes less: the smallest sum of two hops where accelerators hang on switches, else of one."""
    is_rank = set(topology.ranks)
    direct = [link.latency_ps for link in topology.links if link.source in is_rank and link.target in is_rank]
    if direct:
        return min(direct)
    return 2 * min(link.latency_ps for link in topology.links)


def predict_ps(topology: Topology, collective: str, algorithm: str, size_bytes: int, members: tuple[int, ...], root: int) -> int:
    """Simulated time of one call of S = ``size_bytes``, without data, on an otherwise idle fabric."""
    return simulated(topology, collective, algorithm, size_bytes, members, root)[0]


def simulated(
    topology: Topology,
    collective: str,
    algorithm: str,
    size_bytes: int,
    members: tuple[int, ...],
    root: int,
    **options: Any,
) -> tuple[int, Engine]:
    """The time of :func:`predict_ps`, and the engine that has counted it.  ``options``: as for the collective's method."""
    n = len(members)
    simulation = Simulation(topology, seed=0, impairments={}, payload=False, choose_algorithm=_no_choice)
    ranks = [
        Rank(
            runtime=simulation.runtime,
            world_rank=world_rank,
            members=members,
            name="",
            seed=0,
            start_ps=0,
            communicator=1,
        )
        for world_rank in members
    ]
    per_rank = size_bytes // n_counts_of(collective, n)
    call = _CALLS[collective]
    results = simulation.run(lambda rank: call(rank, max(1, per_rank), algorithm, root, options), (), ranks)
    return max(int(time_ps) for time_ps in results.values()), simulation.engine


def _no_choice(*asked: object) -> str:
    raise AssertionError("a prediction names its algorithm")


def _blank(count: int) -> Any:
    return np.broadcast_to(np.zeros(1, dtype=np.uint8), (count,))


_Method = Callable[[Rank, int, str, int, dict[str, Any]], int]


def _plain(name: str, send_factor: int, recv_factor: int, *, root: bool = False) -> _Method:
    """Call a collective with arrays that hold no data; a factor of 0 is the number of ranks."""

    def call(rank: Rank, count: int, algorithm: str, root_rank: int, options: dict[str, Any]) -> int:
        n = rank.world_size
        options = {"algorithm": algorithm} | options | ({"root": root_rank} if root else {})
        method = getattr(rank.comm, name)
        work = method(_blank(count * (send_factor or n)), _blank(count * (recv_factor or n)), **options)
        return int(work.completed_ps)

    return call


def _barrier(rank: Rank, count: int, algorithm: str, root_rank: int, options: dict[str, Any]) -> int:
    return int(rank.comm.barrier().completed_ps)


_CALLS: dict[str, _Method] = {
    "all_reduce": _plain("all_reduce", 1, 1),
    "all_gather": _plain("all_gather", 1, 0),
    "reduce_scatter": _plain("reduce_scatter", 0, 1),
    "broadcast": _plain("broadcast", 1, 1, root=True),
    "reduce": _plain("reduce", 1, 1, root=True),
    "gather": _plain("gather", 1, 0, root=True),
    "scatter": _plain("scatter", 0, 1, root=True),
    "alltoall": _plain("alltoall", 0, 0),
    "barrier": _barrier,
}
