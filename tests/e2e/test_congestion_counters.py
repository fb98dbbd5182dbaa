"""Counters of ports and adapters under real actors and sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emu import Session
from emu.telemetry.congestion import CongestionReport

SETTINGS = {"ranks": "4", "rate": "1GB/s", "latency": "1ms", "switching": "roce-pfc"}
N_BYTES = 1 << 20


def incast(rank: Any) -> bool:
    """All send to rank 0; whether it is right there."""
    buffers = [np.full(N_BYTES, 0 if rank.index == 0 else rank.index, np.uint8) for _ in range(rank.world_size)]
    with rank.comm.group():
        for peer in range(1, rank.world_size):
            if rank.index == 0:
                rank.comm.recv(buffers[peer], peer)
            elif rank.index == peer:
                rank.comm.send(buffers[peer], 0)
    return all(bool((buffers[peer] == peer).all()) for peer in range(1, rank.world_size)) or rank.index > 0


def counted(driver: str, **options: Any) -> CongestionReport:
    with Session("star", settings=SETTINGS, driver=driver, **options) as session:
        assert all(session.run(incast))
        return session.congestion()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_actors_count_what_the_simulator_counts() -> None:
    """Every port, class and rank is in the report once; packets and payload of each port are the simulator's, nothing is
    dropped, and pauses that were sent were received.  (Unpaced, when a pause comes is the host's doing.)"""
    simulated, emulated = counted("simulate"), counted("emulate", dilation=0, accelerators_per_actor=2)
    carried = [
        [(port.link, port.queue.class_name, port.queue.packets, port.queue.payload_bytes) for port in report.ports]
        for report in (simulated, emulated)
    ]
    assert carried[0] == carried[1]
    assert [adapter.rank for adapter in emulated.adapters] == [0, 1, 2, 3]
    totals = emulated.totals()
    assert (totals["discards"], totals["retransmitted_bytes"]) == (0, 0)
    assert totals["rx_pause"] == totals["tx_pause"]
    assert emulated.elapsed_ps > 0
