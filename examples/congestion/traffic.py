"""Flows for the studies beside this file: who sends what to whom, real bytes checked at their target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import emu


@dataclass(frozen=True)
class Flow:
    """``n_bytes`` from rank ``source`` to rank ``target``, sent at ``start_us``, in pieces of ``piece_bytes``."""

    source: int
    target: int
    n_bytes: int
    start_us: float = 0.0
    piece_bytes: int = 1 << 20


@dataclass(frozen=True)
class Arrival:
    """When the pieces of a flow had come, microseconds after the run began; ``n_wrong`` counts bytes.

    ``late_ns``: how long after the last piece was due by the clock the host saw it (emulated; 0 where it is simulated).
    """

    pieces_us: tuple[float, ...]
    n_wrong: int
    late_ns: int

    @property
    def end_us(self) -> float:
        return self.pieces_us[-1]


def carry(rank: Any, flows: Sequence[Flow]) -> dict[int, Arrival]:
    """What a rank runs: sends its flows, takes in what comes for it; gives the arrivals at this rank by flow."""
    begin_ps = rank.now_ps
    receives = {}
    for number, flow in enumerate(flows):
        if flow.target == rank.index:
            buffers = [np.zeros(n, np.uint8) for n in _pieces(flow)]
            receives[number] = [(buffer, rank.comm.recv(buffer, flow.source, async_op=True)) for buffer in buffers]
    for number, flow in sorted(enumerate(flows), key=lambda item: item[1].start_us):
        if flow.source == rank.index:
            wait_us = flow.start_us - (rank.now_ps - begin_ps) / 1e6
            if wait_us > 0:
                rank.compute(us=wait_us)
            for n in _pieces(flow):
                rank.comm.send(np.full(n, number % 251 + 1, np.uint8), flow.target, async_op=True)
    arrivals = {}
    for number, pieces in receives.items():
        ends_us = [(work.wait() - begin_ps) / 1e6 for _, work in pieces]
        late_ns = pieces[-1][1].completed_ns - pieces[-1][1].due_ns
        n_wrong = sum(int((buffer != number % 251 + 1).sum()) for buffer, _ in pieces) if rank.payload else 0
        arrivals[number] = Arrival(tuple(ends_us), n_wrong, late_ns)
    return arrivals


def _pieces(flow: Flow) -> list[int]:
    whole, rest = divmod(flow.n_bytes, flow.piece_bytes)
    return [flow.piece_bytes] * whole + ([rest] if rest else [])


def run(session: emu.Session, flows: Sequence[Flow]) -> list[Arrival]:
    """Carry the flows over a session's fabric: the arrivals in the order of the flows.  Raises ValueError for a wrong byte."""
    found: dict[int, Arrival] = {}
    for arrivals in session.run(carry, tuple(flows)):
        found.update(arrivals)
    if any(arrival.n_wrong for arrival in found.values()):
        raise ValueError("a byte came that nobody sent")
    return [found[number] for number in range(len(flows))]


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * len(ordered) * 1000) // 1000) - 1))]
