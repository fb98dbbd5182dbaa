"""Fluid: an estimate of one call where no exact arithmetic fits: the longest chain and the busiest link.

    alltoall     load of the busiest link + the longest way
    ring         steps x max(a step, on average along a ring; a step's load of the busiest link) + the chunks behind the first

A *way* is a chunk's time over links that nobody else uses.  The first term bounds a chain of messages that wait for each
other, the second a link that is never idle; what is missed is that links wait for chains and chains for links.  Links that a
hash fills are taken to be as full as the fullest of as many links with that mean: m + sqrt(2 m ln k).

The estimate is of the last rank, and taken for all.  Credit is not modelled: the default windows cover their ways.
How far it is off is measured against the machines and against exact arithmetic (``tests/sim/test_scale_fluid.py``).  A ring's
is farthest off where a chain and a link take about as long; ``ring_slices.long_ring`` is nearer, and takes this as the least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from emu.collectives.layout import layout_of
from emu.collectives.ring import rings
from emu.scale.call import Answer, NotExact, OneCall
from emu.scale.loads import alltoall_loads
from emu.scale.wires import Wire, check_plain, wires_of
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder, DModK

_MEASURED: Final = {
    "direct": "from 20 % too fast to 11 % too slow on full fat trees and grids, within 8 % where hashes deal, up to 512 ranks",
    "ring": "up to 12 % too fast, or 32 % where blocks take one of several rings, against exact runs of 32 to 512 ranks",
}
RING_COLLECTIVES: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def fluid(call: OneCall) -> Answer:
    """Raises NotExact where there is no estimate either."""
    check_plain(call)
    wires = wires_of(call)
    if call.collective == "alltoall" and call.algorithm == "direct":
        return _alltoall(call, wires)
    if call.algorithm == "ring" and call.collective in RING_COLLECTIVES:
        return _ring(call, wires)
    raise NotExact(f"there is no estimate of {call.collective} by {call.algorithm}")


def _alltoall(call: OneCall, wires: list[Wire]) -> Answer:
    topology = call.topology
    chunk_bytes, sizes, _ = call.chunks(topology.n_ranks, exactly=False)
    loads = alltoall_loads(topology)
    messages_ps = [sum(map(wire.duration_ps, sizes)) for wire in wires]
    busy = loads
    if not isinstance(topology.router, DimensionOrder | DModK):
        _, same, n_alike = np.unique(np.round(loads), return_inverse=True, return_counts=True)
        is_hashed = (loads != topology.n_ranks - 1) & (n_alike[same] > 1)
        busy = np.where(is_hashed, loads + np.sqrt(2 * loads * np.log(n_alike[same])), loads)
    return _answer(
        call,
        time_ps=max(load * message_ps for load, message_ps in zip(busy.tolist(), messages_ps, strict=True))
        + _way_ps([wires[link] for link in _farthest(topology)], sizes[0])
        - max(wire.duration_ps(sizes[0]) for wire in wires),
        chunk_bytes=chunk_bytes,
        wire_bytes=[load * sum(map(wire.wire_bytes, sizes)) for load, wire in zip(loads.tolist(), wires, strict=True)],
    )


def _farthest(topology: Topology) -> tuple[int, ...]:
    """The longest way from the first rank."""
    first, *others = topology.ranks
    return max((topology.route(first, other, 0) for other in others), key=len)


def _ring(call: OneCall, wires: list[Wire]) -> Answer:
    topology = call.topology
    n = topology.n_ranks
    orders = rings(layout_of(topology, tuple(range(n))))
    is_dealt = call.collective == "all_reduce"
    chunk_bytes, sizes, _ = call.chunks(len(orders) * n if is_dealt else n, exactly=False)
    n_steps = (2 if is_dealt else 1) * (n - 1)
    share = 1 if is_dealt else 1 / len(orders)  # of a ring's places that send in a step: each block goes round one of the rings
    traffic = _Traffic(topology, wires, sizes)
    step_ps = 0.0
    for order in orders:
        ways_ps = (traffic.send(rank, order[(place + 1) % n]) for place, rank in enumerate(order))
        step_ps = max(step_ps, sum(ways_ps) / n)
    behind_ps = max(wire.duration_ps(sizes[0]) for wire in wires) * (len(sizes) - 1)
    return _answer(
        call,
        time_ps=n_steps * max(step_ps, share * traffic.busiest_ps(sizes)) + behind_ps,
        chunk_bytes=chunk_bytes,
        wire_bytes=[n_steps * share * load for load in traffic.wire_bytes()],
    )


class _Traffic:
    """Messages of some chunks over the links of a fabric."""

    def __init__(self, topology: Topology, wires: list[Wire], sizes_bytes: list[int]) -> None:
        self._topology = topology
        self._wires = wires
        self._sizes = sizes_bytes
        self._lanes = topology.router.spread
        self._known: dict[tuple[Wire, ...], float] = {}
        self._messages = [0.0] * len(wires)

    def send(self, source: int, target: int) -> float:
        """A message from rank to rank, its chunks over all lanes alike.  Returns its first chunk's way in picoseconds."""
        ranks, share = self._topology.ranks, 1 / self._lanes
        for lane in range(self._lanes):
            route = self._topology.route(ranks[source], ranks[target], lane)
            for link in route:
                self._messages[link] += share
        kinds = tuple([self._wires[link] for link in route])
        found = self._known.get(kinds)
        if found is None:
            found = self._known[kinds] = _way_ps(kinds, self._sizes[0])
        return found

    def busiest_ps(self, sizes_bytes: list[int]) -> float:
        """For how long the busiest link sends what messages of such chunks are."""
        message_ps = {wire: sum(map(wire.duration_ps, sizes_bytes)) for wire in set(self._wires)}
        return max(load * message_ps[wire] for load, wire in zip(self._messages, self._wires, strict=True))

    def wire_bytes(self) -> list[float]:
        """By link."""
        return [load * sum(map(wire.wire_bytes, self._sizes)) for load, wire in zip(self._messages, self._wires, strict=True)]


def _way_ps(way: Iterable[Wire], size_bytes: int) -> float:
    """A chunk's time over links that are free: it cuts through."""
    wires = tuple(way)
    slowest = max(wires, key=lambda wire: wire.duration_ps(size_bytes))
    firsts_ps = sum(wire.first_ps(size_bytes) + wire.latency_ps + wire.added_ps for wire in wires)
    return firsts_ps - slowest.first_ps(size_bytes) + slowest.duration_ps(size_bytes)


def _answer(call: OneCall, *, time_ps: float, chunk_bytes: int, wire_bytes: list[float]) -> Answer:
    topology = call.topology
    by_node: defaultdict[int, float] = defaultdict(float)
    for link, sent in zip(topology.links, wire_bytes, strict=True):
        by_node[link.source] += sent
    return Answer(
        completed_ps=(round(time_ps),) * topology.n_ranks,
        method=f"estimate, not exact, by the longest chain and the busiest link: {_MEASURED[call.algorithm]}",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=round(max(by_node[node] for node in topology.ranks)),
    )
