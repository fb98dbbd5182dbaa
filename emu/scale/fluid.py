"""Fluid: an estimate of one call where no exact arithmetic fits: the longest chain and the busiest link.

    alltoall     load of the busiest link + the longest way + the longest delay added to a link that is used
    ring         steps x max(a step, on average along a ring; a step's load of the busiest link) + the chunks behind the first

A *way* is a chunk's time over links that nobody else uses.  The first term bounds a chain of messages that wait for each
other, the second a link that is never idle; what is missed is that links wait for chains and chains for links.  Links that a
hash fills are taken to be as full as the fullest of as many links with that mean: m + sqrt(2 m ln k); an impaired one as m.

The estimate is of the last rank, and taken for all.  Credit is not modelled: the default windows cover their ways.
How far it is off is measured against the machines and against exact arithmetic (``tests/sim/test_scale_fluid.py``).  A ring's
is farthest off where a chain and a link take about as long; ``ring_slices.long_ring`` is nearer, and takes this as the least.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from emu.collectives.layout import layout_of
from emu.collectives.ring import rings
from emu.scale.call import Answer, NotExact, OneCall
from emu.scale.loads import Loads, alltoall_loads
from emu.scale.wires import Wire, check_plain, wires_of
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder, DModK

_RINGS_MEASURED: Final = (
    "up to 12 % too fast, or 32 % where blocks take one of several rings, against exact runs of 32 to 512 ranks"
)
_LARGE_BYTES: Final = 1 << 16
_MEASURED_BYTES: Final = (1 << 6, 1 << 24)
_MEASURED: Final = {
    ("hashed routes", False): ((10, 8), (12, 10)),
    ("hashed routes", True): ((18, 32), (18, 15)),
    ("static routes", False): ((17, 1), (19, 1)),
    ("static routes", True): ((17, 17), (19, 3)),
    ("static routes over parallel cables", False): ((10, 6), (39, 1)),
    ("static routes over parallel cables", True): ((51, 12), (55, 16)),
    ("tori", False): ((10, 48), (13, 6)),
    ("tori", True): ((10, 60), (13, 13)),
    ("meshes", False): ((1, 35), (1, 12)),
    ("meshes", True): ((1, 67), (1, 29)),
}
"""An alltoall's estimate against exact runs, by family and whether one link is impaired: (% too fast, % too slow) where a block
is smaller than 64 KiB, and where it is not."""
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
        is_hashed[list(call.impairments)] = False  # one link is filled as many are on average
        busy = np.where(is_hashed, loads + np.sqrt(2 * loads * np.log(n_alike[same])), loads)
    elif isinstance(topology.router, DModK) and topology.router.spread > 1:
        busy = loads * _share_of_one_cable(call, len(sizes))
    way = [wires[link]._replace(added_ps=0) for link in _farthest(topology)]
    return _answer(
        call,
        time_ps=max(load * message_ps for load, message_ps in zip(busy.tolist(), messages_ps, strict=True))
        + _way_ps(way, sizes[0])
        + max(wire.added_ps for load, wire in zip(loads.tolist(), wires, strict=True) if load)
        - max(wire.duration_ps(sizes[0]) for wire in wires),
        chunk_bytes=chunk_bytes,
        wire_bytes=[load * sum(map(wire.wire_bytes, sizes)) for load, wire in zip(loads.tolist(), wires, strict=True)],
        measured=_measured(call, sum(sizes)),
    )


def _share_of_one_cable(call: OneCall, n_chunks: int) -> Loads:
    """By link: what the fullest of its parallel cables carries of messages, times the even share.  Lanes deal chunks in turn.

    Raises NotExact where it would matter which one is impaired.
    """
    topology = call.topology
    parallel = Counter((link.source, link.target) for link in topology.links)
    n_cables = np.array([min(parallel[link.source, link.target], topology.router.spread) for link in topology.links])
    if any(n_chunks % n_cables[link] for link in call.impairments):
        raise NotExact("messages load an impaired cable otherwise than those beside it")
    share: Loads = -(-n_chunks // n_cables) * n_cables / n_chunks
    return share


def _measured(call: OneCall, block_bytes: int) -> str:
    """How far such estimates were off, or that they were not looked at."""
    router = call.topology.router
    if isinstance(router, DimensionOrder):
        family = "tori" if router.wrap else "meshes"
    elif isinstance(router, DModK):
        family = "static routes" if router.spread == 1 else "static routes over parallel cables"
    else:
        family = "hashed routes"
    n_impaired, is_large = len(call.impairments), block_bytes >= _LARGE_BYTES
    least_bytes, most_bytes = _MEASURED_BYTES
    if n_impaired > 1:
        return f"how far it is off was not measured with {n_impaired} impaired links"
    if not least_bytes <= block_bytes <= most_bytes:
        return f"how far it is off was not measured for blocks of {block_bytes:,} bytes, only from {least_bytes} B to 16 MiB"
    too_fast, too_slow = _MEASURED[family, bool(n_impaired)][is_large]
    links = "one impaired link" if n_impaired else "no impaired link"
    blocks = "64 KiB to 16 MiB" if is_large else "64 B to 64 KiB"
    return (
        f"from {too_fast} % too fast to {too_slow} % too slow on {family} with {links}, blocks of {blocks},"
        " against exact runs of 25 to 512 ranks"
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
        measured=_RINGS_MEASURED,
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


def _answer(call: OneCall, *, time_ps: float, chunk_bytes: int, wire_bytes: list[float], measured: str) -> Answer:
    topology = call.topology
    by_node: defaultdict[int, float] = defaultdict(float)
    for link, sent in zip(topology.links, wire_bytes, strict=True):
        by_node[link.source] += sent
    return Answer(
        completed_ps=(round(time_ps),) * topology.n_ranks,
        method=f"estimate, not exact, by the longest chain and the busiest link: {measured}",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=round(max(by_node[node] for node in topology.ranks)),
    )
