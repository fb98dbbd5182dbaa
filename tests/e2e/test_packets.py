"""Packets over real sockets between real actors: the simulator's times, its counters, and failures that are told at once."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import emu
from emu.errors import Deadlock, EmuError
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Recovery, Switching, TrafficClass

pytestmark = pytest.mark.slow

N_BYTES = 512 * 1024
PAUSE = TrafficClass(name="data", priority=3, discipline=Discipline.PAUSE)
DROP = replace(
    PAUSE, discipline=Discipline.DROP, recovery=Recovery.SELECTIVE_REPEAT, trims=True, timeout_ps=10_000_000_000
)  # fmt: skip


def star(traffic_class: TrafficClass, *, headroom_bytes: int = 400_000) -> Topology:
    """50 MB/s and 1 ms, so that the host keeps pace at dilation 1; a shared pool of 200 kB beside the headroom."""
    made = load_fabric("star", {"ranks": "4", "rate": "50MB/s", "latency": "1ms"})
    switching = Switching(
        classes=(traffic_class,),
        quantum_bytes=16_384,
        buffer_bytes=200_000 + 4 * headroom_bytes,
        alpha=Fraction(1, 4),
        reserved_bytes=0,
        headroom_bytes=headroom_bytes,
        xon_offset_bytes=4096,
        receive_buffer_bytes=1 << 20,
    )
    return replace(made, switching=switching)


def incast(rank: emu.Rank) -> tuple[int, bool]:
    """All send to rank 0, which looks at what came: when that was, and whether it is right."""
    if rank.index:
        rank.comm.send(np.full(N_BYTES, rank.index, np.uint8), 0)
        return rank.now_ps, True
    buffers = [np.zeros(N_BYTES, np.uint8) for _ in range(rank.world_size - 1)]
    with rank.comm.group():
        for peer, buffer in enumerate(buffers, 1):
            rank.comm.recv(buffer, peer)
    return rank.now_ps, all(bool((buffer == peer).all()) for peer, buffer in enumerate(buffers, 1))


@pytest.mark.parametrize("per_actor", [1, 2])
@pytest.mark.parametrize("traffic_class", [PAUSE, DROP], ids=["pause", "trims"])
def test_an_incast_has_the_simulators_times_and_counters(traffic_class: TrafficClass, per_actor: int, nothing_left: None) -> None:
    """Every time, every count of every port, and the data are what the simulating driver says; every payload byte crossed."""
    topology = star(traffic_class)
    with emu.Session(topology, driver="simulate", seed=3) as session:
        expected, counted = session.run(incast), session.counters()
    with emu.Session(topology, dilation=1.0, seed=3, accelerators_per_actor=per_actor) as session:
        found, counters = session.run(incast), session.counters()
    assert found == expected
    assert all(right for _, right in found)
    assert counters.order_violations == 0
    assert counters.links == counted.links
    assert counters.socket_payload_bytes == counters.payload_bytes == counted.payload_bytes


def test_a_switch_whose_loop_fails_is_named_at_once(nothing_left: None) -> None:
    """Without headroom a paused packet finds no room in the switch, which hosts no rank: the session says so within seconds."""
    with emu.Session(star(PAUSE, headroom_bytes=0), dilation=1.0, timeout_s=60) as session:
        began_s = time.monotonic()
        with pytest.raises(EmuError, match="the loop of s0 failed: AssertionError"):
            session.run(incast)
        assert time.monotonic() - began_s < 5
        with pytest.raises(EmuError, match="open another session"):
            session.run(incast)


CLOCKWISE = "; ".join(f"a{i} s{i} s{(i + 1) % 4} s{(i + 2) % 4} a{(i + 2) % 4}" for i in range(4))


def ring_file(recovery: str) -> str:
    """Four switches in a ring, all ways clockwise, and credits of 64 KiB."""
    nodes = "".join(
        f'[[nodes]]\nname = "{kind[0]}{i}"\nkind = "{kind}"\n' for kind in ("accelerator", "switch") for i in range(4)
    )
    cables = [(f"a{i}", f"s{i}") for i in range(4)] + [(f"s{i}", f"s{(i + 1) % 4}") for i in range(4)]
    links = "".join(f'[[links]]\nbetween = ["{a}", "{b}"]\nrate = "100Gbit/s"\nlatency = "500ns"\n' for a, b in cables)
    rules = f'discipline = "credit"\ncredits = "64KiB"\nquantum = "4KiB"\nrecovery = "{recovery}"\nbalancing = "planned"\n'
    return f'{nodes}{links}[switching]\n{rules}balancing_parameters = {{ paths = "{CLOCKWISE}" }}\n'


def across(rank: emu.Rank) -> None:
    """Everyone sends to the rank across the ring."""
    n = rank.world_size
    buffer = np.zeros(1 << 20, np.uint8)
    with rank.comm.group():
        rank.comm.send(np.ones(1 << 20, np.uint8), (rank.index + 2) % n)
        rank.comm.recv(buffer, (rank.index + 2) % n)


@pytest.mark.parametrize("recovery", ["none", "go_back_n"])
def test_a_deadlock_across_actors_is_named_soon(recovery: str, tmp_path: Path, nothing_left: None) -> None:
    """Each actor knows its own ports only; with timers that go on, and without, the whole cycle is named within seconds."""
    path = tmp_path / "ring.toml"
    path.write_text(ring_file(recovery))
    with emu.Session(str(path), driver="emulate", dilation=500.0) as session:
        begin_s = time.monotonic()
        with pytest.raises(Deadlock, match=r"^credit deadlock: s0->s1 waits for s1->s2 waits for s2->s3 waits for s3->s0 waits"):
            session.run(across)
        assert time.monotonic() - begin_s < 15
