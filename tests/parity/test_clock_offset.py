"""Hosts whose clocks differ: an actor paces by the session's clock, which it knows from its own and the offset."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from emu.clock import wall_ns
from emu.drivers import emulate, runtime
from emu.rank import Rank
from emu.testing import emulated_in_process, simulated
from emu.topologies.fabric_file import load_fabric

AHEAD_NS = 1_500_000_000
"""What the clock of the second actor's host shows more than the session's."""
DILATION = 2.0
OF_THE_SECOND_HOST = ("emu-loop-1", "emu-rank-1")


def there_and_back(rank: Rank) -> tuple[int, int]:
    """Rank 0 sends 64 KiB to rank 1 and gets them back, twice; model time and checksum."""
    array = np.arange(16384, dtype=np.int32)
    for _ in range(2):
        for sender, receiver in ((0, 1), (1, 0)):
            if rank.index == sender:
                rank.comm.send(array, receiver, chunk_bytes=16384)
            else:
                rank.comm.recv(array, sender, chunk_bytes=16384)
    return rank.now_ps, int(array.sum())


def lateness_ns(rank: Rank) -> int:
    """By how much a barrier's end is seen later than it is due."""
    work = rank.comm.barrier(async_op=True)
    work.wait()
    return work.completed_ns - work.due_ns


def wall_ns_of_two_hosts() -> int:
    """The monotonic clock of the host that this thread is of."""
    return wall_ns() + (AHEAD_NS if threading.current_thread().name in OF_THE_SECOND_HOST else 0)


@pytest.mark.parametrize("told", [True, False])
def test_an_actor_paces_by_the_sessions_clock(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor whose clock is ahead keeps the pace when it is told so, and finds all of it late when it is not; the model
    times are the simulator's both times."""
    for module in (emulate, runtime):
        monkeypatch.setattr(module, "wall_ns", wall_ns_of_two_hosts)
    topology = load_fabric("star", {"ranks": "2", "rate": "4MB/s", "latency": "1ms"})
    names = [node.name for node in topology.nodes]
    owner = tuple(int(name == "a1") for name in names)
    began_ns = wall_ns()
    found = emulated_in_process(
        topology, there_and_back, owner=owner, dilation=DILATION, page=None, clock_offsets_ns=(0, AHEAD_NS if told else 0)
    )
    took_ns = wall_ns() - began_ns
    expected = simulated(topology, there_and_back)
    assert found.results == expected.results
    late_ns = found.largest_lateness_ps * DILATION / 1000
    assert late_ns < AHEAD_NS / 2 if told else late_ns > AHEAD_NS * 0.9
    if told:
        model_ps = max(now_ps for now_ps, _ in expected.results)
        assert took_ns >= model_ps * DILATION / 1000


def test_what_keeps_the_order_between_hosts_is_not_lateness() -> None:
    """Every event waits for the slack, the start of what is measured as well as its end: no call is late by that, nor was the
    host, by what it counts."""
    latency_s, dilation = 0.001, 1000.0
    topology = load_fabric("star", {"ranks": "2", "rate": "1GB/s", "latency": "1ms"})
    found = emulated_in_process(topology, lateness_ns, owner=(0, 1, 1), dilation=dilation, page=None)
    slack_ns = latency_s / 4 * dilation * 1e9
    assert all(late_ns < slack_ns / 2 for late_ns in found.results)
    assert found.largest_lateness_ps * dilation / 1000 < slack_ns
