"""The answer to one call: by exact arithmetic, else by the machines, or by an estimate where they take too long."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from emu.collectives.call import ROOTED, auto_chunk_bytes, n_counts_of
from emu.collectives.catalogue import cost_for
from emu.collectives.layout import layout_of
from emu.collectives.ring import rings
from emu.drivers.choice import n_messages
from emu.drivers.once import call_once
from emu.errors import ConfigError
from emu.scale.alltoall import alltoall
from emu.scale.call import Answer, NotExact, OneCall
from emu.scale.fluid import fluid
from emu.scale.grids import alltoall_on_grid
from emu.scale.ring_slices import long_ring, ring_in_slices
from emu.scale.rings import ring
from emu.scale.trees import long_tree, tree
from emu.scale.wires import check_plain
from emu.topologies.graph import Topology
from emu.topologies.routers import DimensionOrder
from emu.units import PS_PER_SECOND

MOST_LOOPED: Final = 1_000_000
"""Chunks up to which a benchmark's whole loop is run by the machines: a minute or so."""
MOST_RUN: Final = 300_000
"""Chunks of one call up to which it is run by the machines where there is an estimate: a minute."""
MOST_PATIENCE: Final = 3_000_000
"""Where there is none: beyond, they take hours."""


def estimated_chunks(topology: Topology, collective: str, algorithm: str, size_bytes: int, chunk_bytes: int | None) -> int:
    """About how many messages one call takes, times the chunks of each.  ``size_bytes``: as in the table."""
    n = topology.n_ranks
    layout = layout_of(topology, tuple(range(n)))
    if algorithm == "ring" and collective == "all_reduce":
        n_rings = len(rings(layout))
        n_sent, n_blocks = 2 * n_rings * n * (n - 1), n_rings * n
    elif algorithm == "tree":
        n_blocks = 2 * (len(layout.nodes[0]) if layout.rails else 1)
        n_sent = 2 * n_blocks * (n - 1)
    elif collective == "alltoall" and algorithm in ("direct", "pairwise"):
        n_sent, n_blocks = n * (n - 1), n
    else:
        n_sent = n_messages(collective, algorithm, layout)
        sent_share = 1 if collective in ROOTED else cost_for(collective, algorithm, n, layout).sent
        n_blocks = max(1, int(n_sent / (n * sent_share))) if sent_share else n_sent
    block_bytes = max(1, size_bytes // max(1, n_blocks))
    return n_sent * -(-block_bytes // (chunk_bytes or auto_chunk_bytes(block_bytes)))


def least_ps(call: OneCall) -> int:
    """It takes no less: the bytes of the rank that sends most, at the fastest rate at which a rank can send."""
    topology, out_links = call.topology, call.topology.out_links()
    n = topology.n_ranks
    rate_bps = max(sum(topology.links[link].rate_bps for link in out_links[node]) for node in topology.ranks)
    sent = cost_for(call.collective, call.algorithm, n, layout_of(topology, tuple(range(n)))).sent
    return int(sent * _size_bytes(call) * 8 * PS_PER_SECOND / rate_bps)


def _size_bytes(call: OneCall) -> int:
    """As in the table."""
    return call.count * call.itemsize * n_counts_of(call.collective, call.topology.n_ranks)


def leaves_barrier_together(call: OneCall) -> bool:
    """Whether all ranks leave a barrier on its fabric together if they came together; run by the machines."""
    completed_ps, _, _ = call_once(
        call.topology, call.impairments, collective="barrier", algorithm="dissemination", count=0, dtype="uint8", itemsize=1
    )
    return len(set(completed_ps)) == 1


def by_arithmetic(call: OneCall) -> Answer:
    """Raises NotExact."""
    if not call.count and call.collective != "barrier":
        check_plain(call)
        return Answer(
            completed_ps=(0,) * call.topology.n_ranks,
            method="exact, nothing is sent",
            chunk_bytes=call.chunk_bytes or auto_chunk_bytes(0),
            wire_bytes_per_rank_max=0,
        )
    if call.algorithm == "ring":
        with suppress(NotExact):
            return ring(call)
        return ring_in_slices(call)
    if call.algorithm == "direct" and call.collective == "alltoall":
        return alltoall_on_grid(call) if isinstance(call.topology.router, DimensionOrder) else alltoall(call)
    if call.algorithm == "tree":
        return tree(call)
    raise NotExact(f"there is no arithmetic for {call.collective} by {call.algorithm}")


def _estimate(call: OneCall) -> Answer:
    """Raises NotExact where there is none."""
    estimates = {"tree": long_tree, "ring": long_ring}
    return estimates.get(call.algorithm, fluid)(call)


def answer(call: OneCall, *, why_not: str) -> Answer:
    """By the machines, as arithmetic is not exact: ``why_not``; by an estimate where that would take minutes.

    Raises ConfigError where there is none, and it would take hours.
    """
    topology = call.topology
    n_sent = estimated_chunks(topology, call.collective, call.algorithm, _size_bytes(call), call.chunk_bytes)
    if n_sent > MOST_RUN:
        try:
            return _estimate(call)
        except NotExact as reason:
            why_not = f"{why_not}; nor is there an estimate: {reason}"
    if n_sent > MOST_PATIENCE:
        raise ConfigError(
            f"{call.collective} by {call.algorithm} over {topology.n_ranks} ranks is about {n_sent:,} chunks, hours of work"
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
