"""The answer to one call: by arithmetic where that is exact, else by the machines."""

from __future__ import annotations

from typing import Final

from emu.collectives.layout import layout_of
from emu.drivers.choice import n_messages
from emu.drivers.once import call_once
from emu.errors import ConfigError
from emu.scale.alltoall import alltoall
from emu.scale.call import Answer, NotExact, OneCall
from emu.scale.rings import ring
from emu.topologies.graph import Topology

MOST_LOOPED: Final = 1_000_000
"""Messages up to which a benchmark's whole loop is run by the machines: a minute or so."""
MOST_RUN: Final = 3_000_000
"""Messages of one call up to which it is run by the machines: beyond, they take hours."""


def estimated_messages(topology: Topology, collective: str, algorithm: str) -> int:
    """About how many messages one call takes, each of one chunk."""
    n = topology.n_ranks
    if algorithm == "ring" and collective == "all_reduce":
        return 2 * n * (n - 1)
    if collective == "alltoall" and algorithm in ("direct", "pairwise"):
        return n * (n - 1)
    return n_messages(collective, algorithm, layout_of(topology, tuple(range(n))))


def by_arithmetic(call: OneCall) -> Answer:
    """Raises NotExact."""
    if call.algorithm == "ring":
        return ring(call)
    if call.algorithm == "direct" and call.collective == "alltoall":
        return alltoall(call)
    raise NotExact(f"there is no arithmetic for {call.collective} by {call.algorithm}")


def answer(call: OneCall, *, why_not: str) -> Answer:
    """By the machines, as arithmetic is not exact: ``why_not``.  Raises ConfigError where that would take hours."""
    topology = call.topology
    n_sent = estimated_messages(topology, call.collective, call.algorithm)
    if n_sent > MOST_RUN:
        raise ConfigError(
            f"{call.collective} by {call.algorithm} over {topology.n_ranks} ranks is about {n_sent:,} messages, hours of work"
            f" one by one, and arithmetic is not exact: {why_not}; use fewer --ranks, another --algorithm, or --method full"
        )
    completed_ps, its, engine = call_once(
        topology,
        call.impairments,
        collective=call.collective,
        algorithm=call.algorithm,
        count=call.count,
        dtype=call.dtype,
        itemsize=call.itemsize,
        op=call.op,
        root=call.root,
        channels=call.channels,
        chunk_bytes=call.chunk_bytes,
    )
    by_node: dict[int, int] = {}
    for index, statistics in engine.link_statistics().items():
        node = topology.links[index].source
        by_node[node] = by_node.get(node, 0) + statistics.wire_bytes
    return Answer(
        completed_ps=completed_ps,
        method=f"full simulation ({why_not})",
        chunk_bytes=its.chunk_bytes,
        wire_bytes_per_rank_max=max(by_node.get(node, 0) for node in topology.ranks),
    )
