"""Connections: the ways of the chunks between pairs of ranks, dealt over lanes in turn, and the credit that they wait for."""

from __future__ import annotations

from typing import Final

import numpy as np

from emu.fabric.window import MIN_WINDOW_BYTES
from emu.scale.call import NotExact, OneCall, Times
from emu.scale.slices import Chunks
from emu.scale.wires import back_ps, connection_window_bytes

HOP_BITS: Final = 6
"""Of a message: how many links it has crossed; the number of its chunk is above them."""
NEVER_PS: Final = 1 << 62
MOST_KEPT: Final = 100_000_000
"""Chunks and grants that are remembered."""


class Connections:
    """Those of the edges of a pattern; two edges between the same ranks share one."""

    def __init__(
        self,
        call: OneCall,
        sources: Times,
        targets: Times,
        edges: Times,
        full: list[int],
        short: list[int],
        *,
        n_times: int = 1,
        with_credit: bool = True,
    ) -> None:
        """``sources``, ``targets``: ranks, by edge; ``edges``: those that there are, each with one chunk of every size, so many
        times."""
        topology = call.topology
        n, ranks = topology.n_ranks, topology.ranks
        self._spread = topology.router.spread
        self._n_links = len(topology.links)
        keys, of_edge, n_edges = np.unique(sources[edges] * n + targets[edges], return_inverse=True, return_counts=True)
        self._of_edge = np.full(len(sources), -1, np.int64)
        self._of_edge[edges] = of_edge
        self._target = keys % n
        pairs = [divmod(key, n) for key in keys.tolist()]
        routes = [topology.route(ranks[a], ranks[b], lane) for a, b in pairs for lane in range(self._spread)]
        lengths = np.array([len(route) for route in routes], np.int64)
        self._way_starts = np.cumsum(lengths + 1) - lengths - 1
        self._ways = np.array([link for route in routes for link in (*route, -1)], np.int64)
        self._hops = lengths[:: self._spread]
        n_messages = n_edges * len(full) * n_times
        self.n_crossings = int((n_messages[:, None] * lengths.reshape(-1, self._spread)).sum()) // self._spread
        self._start = np.zeros(len(sources) * len(full), np.int32)
        """By chunk: where its way begins."""
        self._asked = np.zeros(len(keys), np.int64)
        self._consumed = np.zeros(len(keys), np.int64)
        self.have_credit = False
        is_given = any(link.window_bytes is not None for link in topology.links)
        size = max(*full, *short)
        if with_credit and (is_given or int(n_messages.max()) * size > MIN_WINDOW_BYTES):
            windows = np.array([connection_window_bytes(topology, ranks[a], ranks[b]) for a, b in pairs], np.int64)
            self._group = -(-windows // (4 * size))
            self._most = np.maximum(windows // size - 1, (windows - 1) // (4 * size))
            self.have_credit = bool((n_messages > self._most + 1).any())
        if self.have_credit:
            if len({*full, *short}) > 1:
                raise NotExact("connections that carry uneven chunks wait for credit")
            n_kept = len(keys) * int(n_messages.max())
            if n_kept > MOST_KEPT:
                raise NotExact(f"{n_kept:,} chunks may wait for credit")
            self._back = np.array([back_ps(topology, ranks[b], ranks[a]) for a, b in pairs], np.int64)
            self._granted = np.full((len(keys), int((n_messages // self._group).max()) + 2), NEVER_PS, np.int64)
            self._granted[:, 0] = 0
            self._blocked = np.full((len(keys), int(n_messages.max())), -1, np.int32)

    def followers(self) -> tuple[Times, Times, Times]:
        """Links and what comes after them on a way, each two once; and the last links of ways."""
        inner = (self._ways[:-1] >= 0) & (self._ways[1:] >= 0)
        joined = np.unique(self._ways[:-1][inner] * self._n_links + self._ways[1:][inner])
        before, after = np.divmod(joined, self._n_links)
        return before, after, self._ways[np.flatnonzero(self._ways < 0) - 1]

    def hops(self, edges: Times) -> Times:
        """Links on their first lanes' ways."""
        hops: Times = self._hops[self._of_edge[edges]]
        return hops

    def link(self, numbers: Times, hops: Times) -> Times:
        """The links of chunks after so many others; -1 at the target."""
        links: Times = self._ways[self._start[numbers] + hops]
        return links

    def send(self, edges: Times, numbers: Times, time: Times, by: Times) -> Chunks:
        """Chunks that are asked for, in order; returned are those that are known to go, and when."""
        its = self._of_edge[edges]
        way = its
        if self._spread > 1 or self.have_credit:
            turn = _turns(self._asked, its)
            way = its * self._spread + turn % self._spread
        self._start[numbers] = self._way_starts[way]
        if self.have_credit:
            grant = np.maximum(-(-(turn - self._most[its]) // self._group[its]), 0)
            granted = self._granted[its, grant]
            blocked = granted == NEVER_PS
            self._blocked[its[blocked], turn[blocked]] = numbers[blocked]
            by = np.where((granted >= time) & (grant > 0), self._n_links + self._target[its], by)
            time = np.maximum(time, granted)
            goes = ~blocked
            numbers, time, by = numbers[goes], time[goes], by[goes]
        return Chunks(time, time, numbers << HOP_BITS, self._ways[self._start[numbers]], by)

    def consume(self, edges: Times, time: Times) -> Chunks:
        """Chunks that were taken, in order; returned are those that credit for them lets go."""
        its = self._of_edge[edges]
        count = _turns(self._consumed, its) + 1
        pays = count % self._group[its] == 0
        its, grant = its[pays], count[pays] // self._group[its[pays]]
        due = time[pays] + self._back[its]
        self._granted[its, grant] = due
        most = int(self._group.max())
        ahead = np.arange(most)
        turn = ((grant - 1) * self._group[its] + self._most[its] + 1)[:, None] + ahead
        waits = (ahead < self._group[its][:, None]) & (turn < self._asked[its][:, None])
        row, column = np.nonzero(waits)
        numbers = self._blocked[its[row], turn[row, column]].astype(np.int64)
        time = due[row]
        return Chunks(time, time, numbers << HOP_BITS, self._ways[self._start[numbers]], self._n_links + self._target[its[row]])


def _turns(counts: Times, values: Times) -> Times:
    """How many times each value came before, here and as counted so far; they are counted."""
    turns = counts[values]
    np.add.at(counts, values, 1)
    again = np.flatnonzero(counts[values] - turns > 1)
    order = again[np.argsort(values[again], kind="stable")]
    in_order = values[order]
    place = np.arange(len(order))
    begins = np.concatenate([[True], in_order[1:] != in_order[:-1]])[: len(order)]
    turns[order] += place - np.maximum.accumulate(np.where(begins, place, 0))
    return turns
