"""Choice: the algorithm that ``auto`` stands for, by predicted time.

Law: a pure function of fabric, collective, size and members, so that all ranks
choose alike.  Each candidate is simulated once, without data; one whose lower
bound (its steps at the smallest latency, its bytes at the fastest injection) is
not below the best time so far is skipped.  Sizes are rounded up to a power of two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from emu.collectives.call import PER_RANK
from emu.collectives.catalogue import algorithms_for, cost_for
from emu.drivers.simulate import Simulation
from emu.rank import Rank
from emu.topologies.graph import Topology
from emu.units import PS_PER_SECOND


class Chooser:
    """Remembers what it chose for a fabric."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._chosen: dict[tuple[str, int, tuple[int, ...], int], str] = {}

    def choose(self, collective: str, n_bytes: int, members: tuple[int, ...], root: int) -> str:
        """Name of the algorithm with the smallest predicted time.  The first thread to ask predicts, the others wait."""
        size_bytes = 1 << max(3, (n_bytes - 1).bit_length())
        key = (collective, size_bytes, members, root)
        with self._lock:
            found = self._chosen.get(key)
            if found is None:
                found = self._chosen[key] = self._fastest(collective, size_bytes, members, root)
        return found

    def _fastest(self, collective: str, size_bytes: int, members: tuple[int, ...], root: int) -> str:
        names = algorithms_for(collective)
        if len(names) == 1 or len(members) == 1:
            return names[0]
        bounds = sorted((self._lower_bound_ps(collective, name, size_bytes, len(members)), name) for name in names)
        best_name, best_ps = bounds[0][1], None
        for bound_ps, name in bounds:
            if best_ps is not None and bound_ps >= best_ps:
                continue
            time_ps = predict_ps(self._topology, collective, name, size_bytes, members, root)
            if best_ps is None or time_ps < best_ps:
                best_name, best_ps = name, time_ps
        return best_name

    def _lower_bound_ps(self, collective: str, name: str, size_bytes: int, n_ranks: int) -> int:
        topology = self._topology
        latency_ps = min(link.latency_ps for link in topology.links)
        injection_bps = max(sum(topology.links[link].rate_bps for link in out) for out in topology.out_links())
        cost = cost_for(collective, name, n_ranks)
        return int(cost.steps * latency_ps + cost.sent * size_bytes * 8 * PS_PER_SECOND / injection_bps)


def predict_ps(topology: Topology, collective: str, algorithm: str, size_bytes: int, members: tuple[int, ...], root: int) -> int:
    """Simulated time of one call of S = ``size_bytes``, without data, on an otherwise idle fabric."""
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
    per_rank = size_bytes // n if collective in PER_RANK else size_bytes
    call = _CALLS[collective]
    results = simulation.run(lambda rank: call(rank, max(1, per_rank), algorithm, root), (), ranks)
    return max(int(time_ps) for time_ps in results.values())


def _no_choice(collective: str, n_bytes: int, members: tuple[int, ...], root: int) -> str:
    raise AssertionError("a prediction names its algorithm")


def _blank(count: int) -> Any:
    return np.broadcast_to(np.zeros(1, dtype=np.uint8), (count,))


def _plain(name: str, send_factor: int, recv_factor: int, *, root: bool = False) -> Callable[[Rank, int, str, int], int]:
    """Call a collective with placeholder arrays; factors of 0 stand for the number of ranks."""

    def call(rank: Rank, count: int, algorithm: str, root_rank: int) -> int:
        n = rank.world_size
        options: dict[str, Any] = {"algorithm": algorithm} | ({"root": root_rank} if root else {})
        method = getattr(rank.comm, name)
        work = method(_blank(count * (send_factor or n)), _blank(count * (recv_factor or n)), **options)
        return int(work.completed_ps)

    return call


_CALLS: dict[str, Callable[[Rank, int, str, int], int]] = {
    "all_reduce": _plain("all_reduce", 1, 1),
    "all_gather": _plain("all_gather", 1, 0),
    "reduce_scatter": _plain("reduce_scatter", 0, 1),
    "broadcast": _plain("broadcast", 1, 1, root=True),
    "reduce": _plain("reduce", 1, 1, root=True),
    "gather": _plain("gather", 1, 0, root=True),
    "scatter": _plain("scatter", 0, 1, root=True),
    "alltoall": _plain("alltoall", 0, 0),
}
