"""Rings: all_reduce, all_gather and reduce_scatter by ``ring``, as a recurrence over steps.

In a ring every place sends its k-th message when the (k-1)-th has come from the place before it.  So the times of step k of
all places follow from those of step k-1 by a few operations on arrays, one set for each level of links: nothing is ever waited
for that is not in the step before.  2 (n-1) steps of n messages cost 2 (n-1) sets of operations.

By symmetry: places whose ways, and those of all places after them, cost the same have the same times.  The sequence of
the places' ways is cut down to its shortest period, which is exact because the recurrence only looks one place back.
A fat tree's is one pod, a star's a single place; an impaired link leaves the whole ring.

By repetition: the recurrence knows no absolute time.  Where all that it depends on is, one period of steps later, what it was,
only later, the rest of the steps is so many times that, and is not gone through.

Where rings share a link (one for each accelerator of a host) a step's chunks are taken by the time of their heads, then by the
link that they came by, as the calendar does.  That all of a step come before any of the next is checked, not assumed: where it
fails, as where a window of credit would have to be shared, it is NotExact.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from emu.collectives.layout import layout_of
from emu.collectives.ring import rings
from emu.scale.call import Answer, NotExact, OneCall, Times
from emu.scale.ring_links import Level, Users, Way, levels, users_of
from emu.scale.ring_windows import Windows
from emu.scale.wires import Wire, check_plain, check_reach, wires_of
from emu.topologies.graph import Topology

COLLECTIVES: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def ring(call: OneCall) -> Answer:
    """Raises NotExact."""
    if call.collective not in COLLECTIVES:
        raise NotExact(f"{call.collective} by ring is a chain")
    check_plain(call)
    topology = call.topology
    n = topology.n_ranks
    orders = rings(layout_of(topology, tuple(range(n))))
    n_rings = len(orders)
    if n_rings > 1 and call.collective != "all_reduce":
        raise NotExact(f"{call.collective} deals its blocks over {n_rings} rings")
    n_blocks = n_rings * n if call.collective == "all_reduce" else n
    chunk_bytes, full, short = call.chunks(n_blocks)
    n_steps = (2 if call.collective == "all_reduce" else 1) * (n - 1)
    wires = wires_of(call)
    ways = _ways(topology, orders)
    users = users_of(ways, n)
    most_users = max(len(its.uses) for its in users.values())
    check_reach(wires, max(full), n_steps * len(full) * max(len(way.links) for way in ways) * most_users)
    period = n if full != short else _period(ways, wires, users, n_rings, n)
    kept = [way for way in ways if way.place < period]
    uneven = short if full != short else None
    steps = _Steps(
        kept,
        levels(kept, wires, users, period, full, uneven),
        Windows(call, kept, sorted({*full, *short})),
        period=period,
        n_chunks=len(full),
        short_ring=-1 if uneven is None else n_rings - 1,
    )
    arrived, left = steps.run(n_steps)
    places = np.empty((n_rings, n), np.int64)
    for number, order in enumerate(orders):
        places[number, list(order)] = np.arange(n)
    first = np.arange(n_rings)[:, None] * period
    completed = np.maximum(arrived[first + (places - 1) % period], left[first + places % period]).max(axis=0)
    counted = f"exact by symmetry, {period} of {n} places" if period < n else "exact, vectorised"
    return Answer(
        completed_ps=tuple(completed.tolist()),
        method=f"{counted}, ring by steps",
        chunk_bytes=chunk_bytes,
        wire_bytes_per_rank_max=_most_wire_bytes(topology, ways, wires, n_steps, full, short),
    )


def _ways(topology: Topology, orders: tuple[tuple[int, ...], ...]) -> list[Way]:
    """What each place of each ring sends over, rings one after the other."""
    ranks, spread = topology.ranks, topology.router.spread
    found = []
    for number, order in enumerate(orders):
        for place, rank in enumerate(order):
            source, target = ranks[rank], ranks[order[(place + 1) % len(order)]]
            lanes = {topology.route(source, target, lane) for lane in range(spread)}
            if len(lanes) > 1:
                raise NotExact("chunks of a connection take turns over several ways")
            found.append(Way(number, place, source, target, lanes.pop()))
    return found


def _period(ways: list[Way], wires: list[Wire], users: dict[int, Users], n_rings: int, n: int) -> int:
    """The shortest shift along the rings under which costs, and who shares links with whom and in which order, stay."""
    kinds: dict[Wire, int] = {}
    kind_of = [kinds.setdefault(wire, len(kinds)) for wire in wires]
    interned: dict[object, int] = {}
    labels = np.empty((n_rings, n), np.int64)
    for way in ways:
        shared = [
            tuple((ring, (place - way.place) % n, hop) for ring, place, hop in users[link].uses)
            if len(users[link].uses) > 1
            else ()
            for link in way.links
        ]
        label = tuple(kind_of[link] for link in way.links), tuple(shared)
        labels[way.ring, way.place] = interned.setdefault(label, len(interned))
    together = np.unique(labels, axis=1, return_inverse=True)[1].reshape(-1)
    for period in range(1, n):
        if n % period == 0 and np.array_equal(together, np.roll(together, period)):
            return period
    return n


def _most_wire_bytes(
    topology: Topology, ways: list[Way], wires: list[Wire], n_steps: int, full: list[int], short: list[int]
) -> int:
    """The most that one rank's links put on the wire."""
    n = topology.n_ranks
    by_node: defaultdict[int, int] = defaultdict(int)
    last = max(way.ring for way in ways)
    for way in ways:
        n_short = sum(step % n == way.place for step in range(n_steps)) if full != short and way.ring == last else 0
        for link in way.links:
            wire = wires[link]
            sent = (n_steps - n_short) * sum(map(wire.wire_bytes, full)) + n_short * sum(map(wire.wire_bytes, short))
            by_node[topology.links[link].source] += sent
    return max(by_node.get(node, 0) for node in topology.ranks)


class _Steps:
    """The recurrence over the places of one period of every ring."""

    def __init__(
        self, ways: list[Way], levels: list[Level], windows: Windows, *, period: int, n_chunks: int, short_ring: int
    ) -> None:
        """``short_ring``: the ring with the last block, where that is smaller than the others; -1 is none."""
        self._levels = levels
        self._windows = windows
        self._shares = any(level.shared for level in levels)
        self._period = period
        self._n_chunks = n_chunks
        self._short_ring = short_ring
        self._arrived = [np.zeros(len(ways), np.int64) for _ in range(n_chunks)]
        self._left = np.zeros(len(ways), np.int64)
        self._before = np.array([way.ring * period + (way.place - 1) % period for way in ways], np.int64)

    def run(self, n_steps: int) -> tuple[Times, Times]:
        """When the last message of each place has come to the next, and when its last byte had left."""
        n_chunks, period = self._n_chunks, self._period
        self._windows.begin(n_steps * n_chunks)
        seen: tuple[int, Times] | None = None
        step = 0
        while step < n_steps:
            self._do(step)
            step += 1
            if step % period or n_steps - step <= period or not self._windows.repeats(period * n_chunks):
                continue
            state = self._state(step * n_chunks)
            if seen is not None and np.array_equal(state[1], seen[1]):
                n_skipped = (n_steps - step) // period
                self._shift(n_skipped * (state[0] - seen[0]))
                n_steps -= n_skipped * period
            seen = state
        return self._arrived[-1], self._left

    def _do(self, step: int) -> None:
        short = self._short_ring * self._period + step % self._period if self._short_ring >= 0 else -1
        for chunk in range(self._n_chunks):
            message = step * self._n_chunks + chunk
            asked = self._arrived[chunk][self._before]
            sent = self._windows.release(message, asked)
            if self._shares and sent is not asked and (sent != asked).any():
                raise NotExact("connections over a shared link wait for credit")
            head, tail = sent.copy(), sent.copy()
            for level in self._levels:
                level.pass_on(head, tail, self._left, asked, chunk, short, begins=not step)
            self._arrived[chunk] = tail
            self._windows.consumed(message, tail)

    def _state(self, n_messages: int) -> tuple[int, Times]:
        """A moment, and all that matters for what comes after it, relative to it: nothing older than that moment does."""
        floor_ps = min(int(its.min()) for its in self._arrived)
        parts = [its for level in self._levels for its in level.state()] + self._arrived
        return floor_ps, np.concatenate(
            [*(np.maximum(part.reshape(-1) - floor_ps, 0) for part in parts), self._windows.state(n_messages, floor_ps)]
        )

    def _shift(self, time_ps: int) -> None:
        """Be later by so much."""
        for its in (*self._arrived, self._left, *(its for level in self._levels for its in level.state())):
            its += time_ps
        self._windows.shift(time_ps)
