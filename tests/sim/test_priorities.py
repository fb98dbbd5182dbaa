"""Traffic classes of communicators: two tenants on one link, strict and weighted."""

from __future__ import annotations

from typing import Any

import pytest
from packet_stars import LINE_BPS, QUANTUM_BYTES, packet_star, pausing
from simulated import MIB, blank, refusal, session

from emu import Session
from emu.errors import CollectiveMismatch
from emu.units import duration_ps

SIZE_BYTES = 8 * MIB
LINKS = 2


def two_tenants(rank: Any, sizes: dict[int, int]) -> dict[int, int]:
    """Both ranks have a communicator of each priority; rank 0 sends on all at once.  When each was received, less the start."""
    comms = {priority: rank.comm.split(0, priority=priority) for priority in sizes}
    rank.comm.barrier()
    begin_ps = rank.now_ps
    call = "send" if rank.index == 0 else "recv"
    works = {p: getattr(comms[p], call)(blank(n), 1 - rank.index, async_op=True) for p, n in sizes.items()}
    return {priority: work.wait() and work.completed_ps - begin_ps for priority, work in works.items()}


def ends(topology: Any, sizes: dict[int, int]) -> dict[int, int]:
    with Session(topology, driver="simulate", payload=False) as opened:
        found: dict[int, int] = opened.run(two_tenants, sizes)[1]
        return found


def test_a_strict_tenant_is_not_slowed_by_another() -> None:
    """It ends when it would end alone, but for a packet of the other that is on the wire, once for each link."""
    topology = packet_star(2, pausing("bulk", 1), pausing("fast", 5, strict=True))
    alone = ends(topology, {5: SIZE_BYTES})[5]
    both = ends(topology, {1: SIZE_BYTES, 5: SIZE_BYTES})
    assert alone <= both[5] <= alone + LINKS * duration_ps(QUANTUM_BYTES, LINE_BPS)
    assert both[1] >= 1.95 * alone


def test_weights_share_the_link_three_to_one() -> None:
    """With equal messages the heavy one ends when 4/3 of its bytes have passed, the light one when all have; within 5 %."""
    topology = packet_star(2, pausing("light", 1), pausing("heavy", 5, weight=3))
    alone = ends(topology, {5: SIZE_BYTES})[5]
    both = ends(topology, {1: SIZE_BYTES, 5: SIZE_BYTES})
    assert both[5] / alone == pytest.approx(4 / 3, rel=0.05)
    assert both[1] / alone == pytest.approx(2, rel=0.05)


def test_equal_classes_share_equally() -> None:
    """Two tenants of one class end together, and so do those of two classes of one weight."""
    both = ends(packet_star(2, pausing("one", 1), pausing("other", 5)), {1: SIZE_BYTES, 5: SIZE_BYTES})
    assert both[1] == pytest.approx(both[5], rel=0.01)


def test_counters_are_kept_by_class() -> None:
    """Each tenant's bytes are counted in its own class, and children of a communicator stay in it."""

    def run(rank: Any) -> None:
        child = rank.comm.create_group([0, 1], priority=5).split(0)
        child.all_reduce(blank(MIB))

    with Session(packet_star(2, pausing("bulk", 1), pausing("fast", 5)), driver="simulate", payload=False) as opened:
        opened.run(run)
        report = opened.congestion()
    n_bytes = {name: sum(p.queue.payload_bytes for p in report.ports if p.queue.class_name == name) for name in ("bulk", "fast")}
    assert n_bytes["fast"] >= 2 * LINKS * MIB
    assert n_bytes["bulk"] == 0


def test_a_collective_in_a_class_is_exact() -> None:
    """Data of a communicator with a priority is right, beside another's."""
    import numpy as np

    def run(rank: Any) -> bool:
        fast, world = rank.comm.split(0, priority=5), rank.comm
        a, b = np.full(10_000, rank.index + 1, np.int32), np.full(20_000, 10 * (rank.index + 1), np.int32)
        works = [fast.all_reduce(a, async_op=True), world.all_reduce(b, async_op=True)]
        for work in works:
            work.wait()
        return bool((a == 6).all() and (b == 60).all())

    with Session(packet_star(3, pausing("bulk", 1), pausing("fast", 5, strict=True)), driver="simulate") as opened:
        assert opened.run(run) == [True] * 3


def test_a_priority_without_a_class_is_refused() -> None:
    """The classes that there are are named; a fabric without switching has none."""

    def run(rank: Any) -> None:
        rank.comm.create_group([rank.index], priority=4)

    with Session(packet_star(2, pausing("bulk", 1), pausing("fast", 5)), driver="simulate") as opened:
        text = refusal(opened, run)
        assert "priority 4" in text and "1 (bulk), 5 (fast)" in text
    with session(ranks=2) as opened:
        assert "no traffic classes" in refusal(opened, run)


def test_ranks_of_one_colour_must_agree_on_the_priority() -> None:
    """Different priorities in one split are refused; in one group they are a mismatch that names the difference."""

    def split(rank: Any) -> None:
        rank.comm.split(0, priority=(1, 5)[rank.index])

    def group(rank: Any) -> None:
        rank.comm.create_group([0, 1], priority=(1, 5)[rank.index]).all_reduce(blank(1000))

    with Session(packet_star(2, pausing("bulk", 1), pausing("fast", 5)), driver="simulate", payload=False) as opened:
        assert "another priority" in refusal(opened, split)
        with pytest.raises(CollectiveMismatch, match="traffic class"):
            opened.run(group)
