"""Trees: all_reduce by ``tree``, in slices of time.

A rank takes a chunk from its children in their order, and sends it on to its parent when it has all; the root sends it back
down, and everyone passes it on.  What happens within a slice at all ranks is done at once: arrivals, in the calendar's order,
then crossings of links.

Credit is the connections' own (``fabric/connection.py``), counted in chunks of one size: the k-th that a connection was asked
to carry may go when so many groups of chunks have been consumed, and credit for a group takes the way back.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from emu.collectives.layout import layout_of
from emu.collectives.tree import Tree, all_reduce_trees
from emu.scale.call import Answer, NotExact, OneCall, Times
from emu.scale.connections import HOP_BITS, Connections
from emu.scale.slices import Chunks, Links, run_in_windows, together
from emu.scale.wires import check_plain, check_reach, most_wire_bytes, wires_of

LATER: Final = 1 << 62
MOST_CROSSINGS: Final = 60_000_000
"""Chunks times links: half a microsecond each."""
MOST_IN_TREE: Final = 16_384
"""Chunks of a tree: 1.5 ms each, in slices that hold little where ranks are few."""
HOPS_ASSUMED: Final = 6
FEWEST_CHUNKS: Final = 16


def tree(call: OneCall) -> Answer:
    """Raises NotExact."""
    trees = _trees(call)
    chunk_bytes, full, short = call.chunks(len(trees))
    flow = _Flow(call, trees, full, short)
    if flow.n_crossings > MOST_CROSSINGS:
        raise NotExact(f"chunks cross links {flow.n_crossings:,} times")
    if len(full) > MOST_IN_TREE:
        raise NotExact(f"a tree has {len(full):,} chunks")
    flow.run()
    return Answer(
        completed_ps=tuple(flow.completed_ps.tolist()),
        method="exact, vectorised, tree in slices of time",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=most_wire_bytes(call.topology, flow.wire_bytes),
    )


def long_tree(call: OneCall) -> Answer:
    """An estimate: the first of many chunks exactly, the others at the pace of the second half of those.  Raises NotExact."""
    trees = _trees(call)
    chunk_bytes, full, _ = call.chunks(len(trees), exactly=False)
    n_places = call.topology.n_ranks * len(trees)
    n_first = min(MOST_CROSSINGS // (3 * HOPS_ASSUMED * 2 * n_places), MOST_IN_TREE // 8)
    if not FEWEST_CHUNKS <= n_first <= len(full) // 2:
        raise NotExact(f"of {len(full)} chunks {n_first} fit, too few to tell the pace of the others")
    flows = [_Flow(call, trees, full[:number], full[:number]) for number in (n_first, 2 * n_first)]
    for flow in flows:
        flow.run()
    once, twice = (int(flow.completed_ps.max()) for flow in flows)
    behind_ps = (len(full) - 2 * n_first) * (twice - once) // n_first
    return Answer(
        completed_ps=tuple((flows[1].completed_ps + behind_ps).tolist()),
        method=f"estimate, not exact: {2 * n_first} of {len(full)} chunks, the others at the pace of the second half of"
        " those: within 5 % of exact runs of 16 to 64 ranks",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=most_wire_bytes(call.topology, flows[1].wire_bytes) * len(full) // (2 * n_first),
    )


def _trees(call: OneCall) -> tuple[Tree, ...]:
    check_plain(call)
    return all_reduce_trees(layout_of(call.topology, tuple(range(call.topology.n_ranks))))


class _Flow:
    """All chunks over all edges.

    A *place* is a rank in a tree, tree after tree.  Place p has an edge up, p, and one down to it, ``n_places`` + p; chunks of
    an edge are numbered edge x ``n_chunks`` + chunk, and a message is that number and how many links it has crossed.
    """

    def __init__(self, call: OneCall, trees: tuple[Tree, ...], full: list[int], short: list[int]) -> None:
        topology = call.topology
        n = topology.n_ranks
        self._n_ports = len(topology.links) + n
        self._n_chunks = len(full)
        self._n_places = n_places = n * len(trees)
        self._n_full = n_places - n if full != short else n_places
        """Places of the trees with full blocks, which come first."""
        self._rank = np.tile(np.arange(n), len(trees))
        self._parent = np.full(n_places, -1, np.int64)
        n_children = max(len(below) for its in trees for below in its.children)
        self._children = np.full((n_places, n_children), -1, np.int64)
        self._turn = np.zeros(n_places, np.int64)
        """Which of its parent's children a place is."""
        for number, its in enumerate(trees):
            for rank, below in enumerate(its.children):
                for turn, child in enumerate(below):
                    self._children[number * n + rank, turn] = number * n + child
                    self._parent[number * n + child] = number * n + rank
                    self._turn[number * n + child] = turn
        places = np.flatnonzero(self._parent >= 0)
        ends = np.stack([self._rank[places], self._rank[self._parent[places]]])
        edges = np.concatenate([places, n_places + places])
        sources, targets = np.concatenate([ends, ends[::-1]], axis=1)
        self._source = np.full(2 * n_places, -1, np.int64)
        self._target = self._source.copy()
        self._source[edges], self._target[edges] = sources, targets
        self._connections = Connections(call, self._source, self._target, edges, full, short)
        wires = wires_of(call)
        check_reach(wires, max(full), 4 * self.n_crossings)
        self._links = Links(wires, [*full, *short])
        self._has_come = np.repeat(self._children < 0, self._n_chunks, axis=0)
        """By place and chunk, and child: nothing has to come from those that are not there."""
        self.completed_ps = np.zeros(n, np.int64)
        """By rank: all has come to it, and all that it sent has left."""

    @property
    def n_crossings(self) -> int:
        return self._connections.n_crossings

    @property
    def wire_bytes(self) -> Times:
        """By link."""
        return self._links.wire_bytes

    def run(self) -> None:
        run_in_windows(self._links, self._connections.followers(), self._n_ports, self._start(), self._cross, self._arrive)

    def _start(self) -> Chunks:
        """Leaves' messages: of each rank chunk after chunk, and of each chunk those to the farthest first."""
        leaves = np.flatnonzero((self._children[:, 0] < 0) & (self._parent >= 0))
        hops = self._connections.hops(leaves)
        n_leaves = len(leaves)
        edge, chunk = np.repeat(leaves, self._n_chunks), np.tile(np.arange(self._n_chunks), n_leaves)
        order = np.lexsort((edge, -np.repeat(hops, self._n_chunks), chunk, self._rank[edge]))
        nothing = np.zeros(len(edge), np.int64)
        return self._connections.send(edge[order], edge[order] * self._n_chunks + chunk[order], nothing, nothing)

    def _cross(self, chunks: Chunks) -> Chunks:
        number, hop = chunks.message >> HOP_BITS, chunks.message & (1 << HOP_BITS) - 1
        edge, chunk = np.divmod(number, self._n_chunks)
        is_short = edge % self._n_places >= self._n_full
        head, tail, left = self._links.cross(
            chunks.link, chunks.time, chunks.tail, np.where(is_short, self._n_chunks + chunk, chunk)
        )
        begins = hop == 0
        np.maximum.at(self.completed_ps, self._source[edge[begins]], left[begins])
        onward = self._connections.link(number, hop + 1)
        return Chunks(np.where(onward < 0, tail, head), tail, chunks.message + 1, onward, chunks.link)

    def _arrive(self, chunks: Chunks) -> Chunks:
        """Chunks in the calendar's order.  Returns what credit for them lets go, and what is sent for them."""
        edge, chunk = np.divmod(chunks.message >> HOP_BITS, self._n_chunks)
        np.maximum.at(self.completed_ps, self._target[edge], chunks.time)
        is_up = edge < self._n_places
        up = np.flatnonzero(is_up)
        parent = self._parent[edge[up]]
        spots, row = np.unique(parent * self._n_chunks + chunk[up], return_inverse=True)
        causes = np.where(self._has_come[spots], -1, LATER)
        causes[row, self._turn[edge[up]]] = up
        self._has_come[spots] = causes < LATER
        causes = np.maximum.accumulate(causes, axis=1)
        done = causes[causes[:, -1] < LATER, -1]
        place = edge - self._n_places
        place[up] = parent
        sends = np.sort(np.concatenate([np.flatnonzero(~is_up), done]))
        goes_up = is_up[sends] & (self._parent[place[sends]] >= 0)
        children = self._children[place[sends[~goes_up]]]
        sent_for = np.concatenate([sends[goes_up], np.repeat(sends[~goes_up], children.shape[1])[children.reshape(-1) >= 0]])
        edges = np.concatenate([place[sends[goes_up]], self._n_places + children[children >= 0]])
        order = np.argsort(sent_for, kind="stable")
        sent_for, edges = sent_for[order], edges[order]
        sent_of, sent_chunk, sent_time, sent_by = edges, chunk[sent_for], chunks.time[sent_for], chunks.by[sent_for]
        freed = []
        if self._connections.have_credit:
            of, turn = np.nonzero((causes >= 0) & (causes < LATER) & (self._children[spots // self._n_chunks] >= 0))
            taken_for = np.concatenate([np.flatnonzero(~is_up), causes[of, turn]])
            edges = np.concatenate([edge[~is_up], self._children[spots[of] // self._n_chunks, turn]])
            order = np.argsort(taken_for, kind="stable")
            freed.append(self._connections.consume(edges[order], chunks.time[taken_for[order]]))
        return together([*freed, self._connections.send(sent_of, sent_of * self._n_chunks + sent_chunk, sent_time, sent_by)])
