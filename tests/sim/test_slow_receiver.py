"""A receiver below its line's rate, under priority flow control: the line is paused for what the receiver lacks.

Seen by operators as NVIDIA/daqiri issue 252: 21.7 % of the line's time paused, no drop, on a receiver that drained 78.3 %.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packet_stars import LINE_BPS, packet_star, pausing
from simulated import MIB, blank

from emu import Session
from emu.telemetry.congestion import CongestionReport
from emu.telemetry.diagnosis import Cause, diagnose

SHARE = 0.783
SIZE_BYTES = 32 * MIB


def one_flow(rank: Any) -> int:
    if rank.index == 0:
        rank.comm.send(blank(SIZE_BYTES), 1)
    elif rank.index == 1:
        rank.comm.recv(blank(SIZE_BYTES), 0)
    return int(rank.now_ps)


@pytest.fixture(scope="module")
def seen() -> tuple[CongestionReport, int]:
    """The report, and when the receiver had it all."""
    topology = packet_star(3, pausing(), drain_bps={1: int(SHARE * LINE_BPS)})
    with Session(topology, driver="simulate", payload=False) as session:
        ends = session.run(one_flow)
        return session.congestion(), ends[1]


def test_its_line_is_paused_for_what_it_lacks(seen: tuple[CongestionReport, int]) -> None:
    """The pause share of the receiver's line is 21.7 +- 2 points."""
    report, end_ps = seen
    line = next(port for port in report.ports if port.link == "s0->a1")
    assert line.queue.pause_ps / end_ps == pytest.approx(1 - SHARE, abs=0.02)
    assert line.queue.pause_transitions > 10


def test_it_takes_in_at_its_own_rate(seen: tuple[CongestionReport, int]) -> None:
    """The message takes as long as the receiver needs to drain it, within 1 %."""
    _, end_ps = seen
    assert end_ps == pytest.approx(SIZE_BYTES * 8 * 10**12 / (SHARE * LINE_BPS), rel=0.01)


def test_nothing_is_dropped_and_the_receiver_is_named(seen: tuple[CongestionReport, int]) -> None:
    """No drop anywhere, pauses on the way to the receiver only, and the verdict is slow receiver, at it."""
    report, _ = seen
    assert report.discards == 0
    assert {port.link for port in report.ports if port.queue.pause_frames} <= {"s0->a1", "a0->s0"}
    assert [(found.cause, found.where) for found in diagnose(report)] == [(Cause.SLOW_RECEIVER, "a1")]


def test_a_receiver_as_fast_as_its_line_pauses_nobody() -> None:
    """The same flow into a receiver that keeps up: no pause, no verdict."""
    with Session(packet_star(3, pausing(), drain_bps={1: LINE_BPS}), driver="simulate", payload=False) as session:
        session.run(one_flow)
        report = session.congestion()
    assert report.totals()["rx_pause"] == 0
    assert diagnose(report) == ()


def test_many_senders_to_a_fast_receiver_are_an_incast() -> None:
    """Three senders at once: the switch pauses them for its egress queue, and the verdict is incast at that port."""

    def incast(rank: Any) -> None:
        with rank.comm.group():
            for peer in range(1, 4) if rank.index == 0 else ():
                rank.comm.recv(blank(4 * MIB), peer)
            if rank.index:
                rank.comm.send(blank(4 * MIB), 0)

    with Session(packet_star(4, pausing()), driver="simulate", payload=False) as session:
        session.run(incast)
        report = session.congestion()
    assert [(found.cause, found.where) for found in diagnose(report)] == [(Cause.INCAST, "s0->a0")]
    assert report.discards == 0


def test_a_stuck_receiver_is_a_pause_storm() -> None:
    """A receiver that takes everything in and pauses its line nevertheless is named as a storm, not as slow."""
    topology = packet_star(3, pausing())
    nodes = list(topology.nodes)
    stuck = topology.ranks[1]
    nodes[stuck] = replace(nodes[stuck], pause_storm=(0, 500_000_000))
    with Session(replace(topology, nodes=tuple(nodes)), driver="simulate", payload=False) as session:
        session.run(one_flow)
        report = session.congestion()
    assert [(found.cause, found.where) for found in diagnose(report)] == [(Cause.PAUSE_STORM, "a1")]
    assert report.discards == 0
