"""The packet engine alone: the way back of a link's pauses and credits, and what its ports tell of who is blocked."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from emu.drivers.blocked import Blocked, CycleWatch, explain_blocked, merged
from emu.drivers.packet_engine import PacketEngine
from emu.fabric.frame import Frame
from emu.fabric.packet import Notice, NoticeKind, Packet
from emu.telemetry.congestion import collect
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Node, NodeKind, Topology, full_duplex
from emu.topologies.routers import ShortestPath

STAR = {"ranks": "2", "rate": "100Gbit/s", "latency": "1us", "discipline": "pause"}
NS = 1000


def with_parallel_links(order: tuple[int, ...], suffixes: tuple[str, str]) -> Topology:
    """a0 with two cables to s0, of 100 and 900 ns, in any order of their four links."""
    made = load_fabric("star", STAR)
    names = ["a0", "a1", "s0"]
    kinds = [NodeKind.ACCELERATOR, NodeKind.ACCELERATOR, NodeKind.SWITCH]
    cables = [
        link
        for suffix, latency_ps in zip(suffixes, (100 * NS, 900 * NS), strict=True)
        for link in full_duplex(names, 0, 2, rate_bps=10**11, latency_ps=latency_ps, suffix=suffix)
    ]
    only = full_duplex(names, 1, 2, rate_bps=10**11, latency_ps=500 * NS)
    return replace(
        made,
        nodes=tuple(Node(name=name, kind=kind) for name, kind in zip(names, kinds, strict=True)),
        links=(*(cables[number] for number in order), *only),
        router=ShortestPath(),
        ranks=(0, 1),
    )


def back_ps(topology: Topology) -> dict[str, int]:
    engine = PacketEngine(topology, seed=0, impairments={})
    return {link.name: engine._reverse_ps[index] for index, link in enumerate(topology.links)}


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
def test_what_goes_back_takes_the_cable_that_the_data_came_by(order: tuple[int, ...]) -> None:
    """Of parallel cables each link's way back is the one of its suffix, in whatever order the file has them."""
    found = back_ps(with_parallel_links(order, ("#1", "#2")))
    assert {found["a0->s0#1"], found["s0->a0#1"]} == {100 * NS}
    assert {found["a0->s0#2"], found["s0->a0#2"]} == {900 * NS}
    assert {found["a1->s0"], found["s0->a1"]} == {500 * NS}


def test_parallel_cables_without_common_suffixes_are_matched_by_their_order() -> None:
    """The first link there and the first back are one cable."""
    topology = with_parallel_links((0, 1, 2, 3), ("#1", "#2"))
    renamed = tuple(replace(link, name=f"cable{number}") for number, link in enumerate(topology.links))
    assert list(back_ps(replace(topology, links=renamed)).values()) == [
        100 * NS,
        100 * NS,
        900 * NS,
        900 * NS,
        500 * NS,
        500 * NS,
    ]


# -- who is blocked, of several processes ------------------------------------------------------------

HALVES = (
    Blocked(n_packets={(0, 0): (3, 10)}, holders={(2, 0): frozenset({(0, 0)})}, n_accepted=5, n_timeouts=1),
    Blocked(n_packets={(2, 0): (4, 20)}, holders={(0, 0): frozenset({(2, 0)})}, n_accepted=6, n_timeouts=2),
)


def test_a_cycle_across_processes_is_named_from_what_each_knows() -> None:
    """Neither half has one; together they have."""
    topology = load_fabric("star", STAR)
    assert all(explain_blocked(half, topology) is None for half in HALVES)
    found = str(explain_blocked(merged(HALVES), topology))
    names = [topology.links[link].name for link in (0, 2, 0)]
    assert found.startswith(f"PFC deadlock: {' waits for '.join(names)}; class 'data' holds 7 packets there")


@pytest.mark.parametrize(
    ("n_timeouts", "n_accepted", "is_dead"),
    [(4, 11, True), (3, 11, False), (4, 12, False)],
    ids=["timers only", "nothing yet", "packets came"],
)
def test_behind_timers_a_cycle_counts_once_they_run_out_and_nothing_else_happens(
    n_timeouts: int, n_accepted: int, is_dead: bool
) -> None:
    """Two looks a second apart, between which a sender timed out and no packet was of use."""
    topology = load_fabric("star", STAR | {"recovery": "go_back_n"})
    looks = [merged(HALVES), replace(merged(HALVES), n_timeouts=n_timeouts, n_accepted=n_accepted)]
    watch = CycleWatch(topology, lambda for_ever: looks.pop(0), 0)
    assert watch.behind_timers(10**9 - 1) is None and len(looks) == 2
    assert watch.behind_timers(10**9) is None and len(looks) == 1
    assert (watch.behind_timers(2 * 10**9) is not None) is is_dead


def packet_of(n_bytes: int) -> Packet:
    """The whole of a small chunk for rank 1."""
    frame = Frame((), source_rank=0, target_rank=1, flow=0, route_flow=0, payload_bytes=n_bytes, head_ps=0)
    frame.communicator = 1
    return Packet(frame, queue_pair=0, queue=0, sequence=0, offset_bytes=0, payload_bytes=n_bytes, entropy=0, sent_ps=0)


def test_pauses_of_parallel_cables_are_told_of_the_cable_that_they_go_over() -> None:
    """In a report the pauses that a node sent stand at its end of the cable of the same suffix, whatever the order."""
    topology = with_parallel_links((0, 3, 2, 1), ("#1", "#2"))
    engine = PacketEngine(topology, seed=0, impairments={})
    paused = next(index for index, link in enumerate(topology.links) if link.name == "a0->s0#2")
    engine.ports[paused].pause(0, True, 0)
    engine.now_ps = 1000
    report = collect(topology, queues=engine.queue_statistics(), adapters={}, links={}, elapsed_ps=1000)
    assert {port.link: port.sent_pause_ps for port in report.ports if port.sent_pause_ps} == {"s0->a0#2": 1000}


def test_what_forwards_and_what_takes_in_free_one_account_of_credits() -> None:
    """A forwarding accelerator owes less than a step of a link's buffer in all: its switch and its adapter count together."""
    settings = STAR | {"ranks": "3", "discipline": "credit", "credits": "64KiB", "quantum": "4KiB"}
    topology = load_fabric("ring", settings)
    engine = PacketEngine(topology, seed=0, impairments={})
    node, step = topology.ranks[1], 8 * 1024
    link = next(index for index, link in enumerate(topology.links) if link.target == node)
    engine.switches[node].released(link, 0, step - 100, 0)
    assert engine.calendar == []
    engine.adapters[1].receive(packet_of(100), link, 0)
    grants = [item for _, _, _, item in engine.calendar if isinstance(item, Notice) and item.kind is NoticeKind.CREDIT]
    assert [(grant.link, grant.value) for grant in grants] == [(link, step)]
