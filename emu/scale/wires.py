"""Wires: what chunks cost on the links of a fabric, and the rule of a link (``fabric/link.py``) for many chunks at once.

The rule for one chunk is in :mod:`emu.fabric.link`.  For chunks that a link takes one after the other, with a duration d each,
``free`` after the i-th is a maximum over those before it: ``start_i = max over j <= i of (head_j + d_j + ... + d_(i-1))``.

Impairments that hold for ever are part of a link's cost: a throttle without ``from`` and ``until``, added latency.  Others
are refused, and so are planes of their own, switching, endpoints with costs or a drain rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from emu.fabric.capacity import WORK_PER_BYTE
from emu.fabric.window import MIN_WINDOW_BYTES, window_bytes
from emu.impairments import latency, throttle
from emu.scale.call import NotExact, OneCall, Times
from emu.topologies.graph import Topology
from emu.units import FOREVER_PS


class Wire(NamedTuple):
    """What decides the times on a link; links that are alike have equal ones."""

    rate_bps: Fraction
    latency_ps: int
    added_ps: int
    mtu_bytes: int
    header_bytes: int
    window_bytes: int | None

    def wire_bytes(self, payload_bytes: int) -> int:
        return payload_bytes + max(1, -(-payload_bytes // self.mtu_bytes)) * self.header_bytes

    def duration_ps(self, payload_bytes: int) -> int:
        return self._ps(self.wire_bytes(payload_bytes))

    def first_ps(self, payload_bytes: int) -> int:
        return self._ps(min(self.wire_bytes(payload_bytes), self.mtu_bytes + self.header_bytes))

    def _ps(self, n_bytes: int) -> int:
        return max(1, -(-n_bytes * WORK_PER_BYTE * self.rate_bps.denominator // self.rate_bps.numerator))


def check_plain(call: OneCall) -> None:
    """Raises NotExact for what only the machines know."""
    topology = call.topology
    if topology.switching is not None:
        raise NotExact("the fabric has switching")
    if topology.endpoint is not None:
        raise NotExact("the accelerators' own work costs time")
    if any(topology.nodes[node].drain_rate_bps is not None for node in topology.ranks):
        raise NotExact("an accelerator takes in what comes at a rate of its own")
    if call.channels != 1:
        raise NotExact("blocks are dealt over several channels")
    if topology.n_ranks < 2:
        raise NotExact("there is one rank")


def check_window(wires: list[Wire], message_bytes: int) -> None:
    """Raises NotExact where a connection's only message would wait for credit."""
    given = [wire.window_bytes for wire in wires if wire.window_bytes is not None]
    if message_bytes > min(given, default=MIN_WINDOW_BYTES):
        raise NotExact("a message is larger than its connection's window")


def wires_of(call: OneCall) -> list[Wire]:
    """By link.  Raises NotExact for an impairment that changes with time or chance."""
    kept: dict[tuple[int, int, int, int, int | None], Wire] = {}
    found = []
    for link in call.topology.links:
        key = link.rate_bps, link.latency_ps, link.mtu_bytes, link.header_bytes, link.window_bytes
        wire = kept.get(key)
        if wire is None:
            wire = kept[key] = Wire(Fraction(key[0]), key[1], 0, *key[2:])
        found.append(wire)
    for index, placed in call.impairments.items():
        for impairment, plane in placed:
            wire = found[index]
            if isinstance(impairment, latency.Impairment):
                found[index] = wire._replace(added_ps=wire.added_ps + impairment.added_ps)
            elif (
                isinstance(impairment, throttle.Impairment)
                and plane is None
                and impairment.factor
                and not impairment.from_ps
                and impairment.until_ps is None
            ):
                found[index] = wire._replace(rate_bps=wire.rate_bps * impairment.factor)
            elif impairment.changes_capacity or impairment.changes_delay or impairment.loses:
                kind = type(impairment).__module__.rpartition(".")[2]
                raise NotExact(f"the impairment {kind} of {call.topology.links[index].name} changes with time, plane or chance")
    return found


def check_reach(wires: list[Wire], largest_bytes: int, n_crossings: int) -> None:
    """Raises NotExact where chunks of ``largest_bytes`` might take so long that 64 bits do not hold it: arrays would wrap round.

    ``n_crossings``: how many of them at most cross the slowest wire and wait for its latency, one after the other.
    """
    slowest_ps = max(wire.duration_ps(largest_bytes) + 2 * (wire.latency_ps + wire.added_ps) for wire in dict.fromkeys(wires))
    if n_crossings * slowest_ps > FOREVER_PS:
        raise NotExact("model time might pass 53 days")


def back_ps(topology: Topology, source: int, target: int) -> int:
    """How long a credit takes from node to node: the latencies, at least 1 ps each."""
    return max(1, sum(max(1, topology.links[link].latency_ps) for link in topology.route(source, target, 0)))


def connection_window_bytes(topology: Topology, source: int, target: int) -> int:
    """Of nodes, as the engine has it."""
    there = [topology.links[link] for link in topology.route(source, target, 0)]

    def round_trip_ps() -> int:
        back = [topology.links[link] for link in topology.route(target, source, 0)]
        return sum(link.latency_ps for link in (*there, *back))

    return window_bytes(there, round_trip_ps)


@dataclass(slots=True)
class Lanes:
    """The state of links that carry one chunk each at a time: one lane for each link."""

    free_ps: Times
    solid_ps: Times
    last_head_ps: Times
    flow_tail_ps: Times

    @classmethod
    def idle(cls, n: int) -> Lanes:
        return cls(*(np.zeros(n, np.int64) for _ in range(4)))

    def take(self, head: Times, tail: Times, duration: Times, first: Times) -> tuple[Times, Times]:
        """One chunk on each link, all of one flow per link.  Returns head and tail as they leave, without the latency."""
        start = np.maximum(head, self.free_ps)
        end = start + duration
        self.free_ps = end
        sparse = tail - head > duration - first
        if not sparse.any():
            self.solid_ps = end
            whole = duration == first
            tail_out = np.where(whole, np.maximum(end, self.flow_tail_ps), end) if whole.any() else end
            return start + first, tail_out
        tail_sparse = np.maximum(np.maximum(end, tail + first), self.flow_tail_ps)
        head_sparse = np.maximum(np.maximum(head, self.solid_ps) + first, self.last_head_ps)
        tail_dense = np.where(duration == first, np.maximum(end, self.flow_tail_ps), end)
        self.solid_ps = np.where(sparse, self.solid_ps, end)
        self.flow_tail_ps = np.where(sparse, tail_sparse, self.flow_tail_ps)
        self.last_head_ps = np.where(sparse, head_sparse, self.last_head_ps)
        return np.where(sparse, head_sparse, start + first), np.where(sparse, tail_sparse, tail_dense)

    def state(self) -> list[Times]:
        """All of it, each array once."""
        return list({id(its): its for its in (self.free_ps, self.solid_ps, self.last_head_ps, self.flow_tail_ps)}.values())


def most_wire_bytes(topology: Topology, wire_bytes: Times) -> int:
    """The most that the links of one rank have put on the wire, of all links' bytes."""
    sent = np.zeros(len(topology.nodes), np.int64)
    np.add.at(sent, [link.source for link in topology.links], wire_bytes)
    return int(sent[list(topology.ranks)].max())
