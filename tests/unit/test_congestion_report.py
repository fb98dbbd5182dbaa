"""The congestion report: sums, pairs of pause counters, merging, and the word for a clear cause."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from emu.bench.congestion import comment_lines, ports_document, totals_document
from emu.drivers.backend import EngineCounters
from emu.fabric.counters import AdapterStatistics, QueueStatistics
from emu.fabric.link import LinkStatistics
from emu.session import Session
from emu.telemetry.congestion import AdapterReport, CongestionReport, PortReport, collect, merged
from emu.telemetry.diagnosis import Cause, Finding, diagnose, places, words
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Switching, TrafficClass

MS = 10**9
GBPS = 10**9
QUEUE = QueueStatistics(
    class_name="data", packets=0, payload_bytes=0, pause_frames=0, pause_transitions=0, pause_ps=0, wait_ps=0,
    marked_packets=0, dropped_packets=0, dropped_bytes=0, trimmed_packets=0, watchdog_events=0, watchdog_restorations=0,
    watchdog_packets=0,
    peak_queue_bytes=0,
)  # fmt: skip
ADAPTER = AdapterStatistics(
    name="a0", cnp_sent=0, cnp_received=0, marked_packets=0, out_of_sequence=0, duplicates=0, nacks_sent=0, resent_packets=0,
    resent_bytes=0, timeouts=0, trimmed_packets=0, discarded_packets=0, peak_receive_bytes=0, pauses_sent=0,
)  # fmt: skip
LINK = LinkStatistics(
    name="", frames=0, payload_bytes=0, wire_bytes=0, resent_bytes=0, lost_packets=0, busy_ps=0, queued_ps=0, planes_bytes=()
)


def port(node: str, peer: str, **counted: int) -> PortReport:
    """A port whose far end is an accelerator where its name begins with a."""
    return PortReport(
        link=f"{node}->{peer}",
        node=node,
        peer=peer,
        peer_is_accelerator=peer.startswith("a"),
        priority=3,
        rate_bps=400 * GBPS,
        queue=replace(QUEUE, packets=1, **counted),
    )


def report(*ports: PortReport, drains: dict[str, int] | None = None, **adapters: int) -> CongestionReport:
    """Of 1 ms; ``drains``: Gbit/s by slow accelerator; ``adapters``: packets discarded by accelerator."""
    names = sorted({name for one in ports for name in (one.node, one.peer) if name.startswith("a")} | set(adapters))
    return CongestionReport(
        elapsed_ps=MS,
        ports=ports,
        adapters=tuple(
            AdapterReport(
                rank=rank,
                line_rate_bps=400 * GBPS,
                drain_rate_bps=(drains or {}).get(name, 0) * GBPS or None,
                counted=replace(ADAPTER, name=name, discarded_packets=adapters.get(name, 0)),
            )
            for rank, name in enumerate(names)
        ),
        link_lost=0,
        link_retries=0,
        link_retry_bytes=0,
    )


def star() -> Topology:
    """Two accelerators on one switch, two classes that pause."""
    classes = tuple(TrafficClass(name=name, priority=p, discipline=Discipline.PAUSE) for name, p in (("bulk", 3), ("fast", 5)))
    switching = Switching(
        classes=classes, quantum_bytes=4096, buffer_bytes=1 << 20, alpha=Fraction(1), reserved_bytes=0, headroom_bytes=1 << 16,
        xon_offset_bytes=4096, receive_buffer_bytes=1 << 18,
    )  # fmt: skip
    return replace(load("star", {"ranks": "2", "rate": "400Gbit/s"}).topology, switching=switching)


def collected(topology: Topology, **links: LinkStatistics) -> CongestionReport:
    queues = {
        index: tuple(
            replace(QUEUE, class_name=c.name, pause_frames=10 * index + number, pause_ps=100 * index)
            for number, c in enumerate(topology.switching.classes if topology.switching else ())
        )
        for index in range(len(topology.links))
    }
    adapters = {rank: replace(ADAPTER, name=f"a{rank}", resent_bytes=100) for rank in range(topology.n_ranks)}
    indexed = {topology.links.index(link): links[link.name.replace("->", "_")] for link in topology.links
               if link.name.replace("->", "_") in links}  # fmt: skip
    return collect(topology, queues=queues, adapters=adapters, links=indexed, elapsed_ps=MS)


def test_pauses_received_at_one_end_were_sent_at_the_other() -> None:
    """Of each class, what stops a->s is what s sent to a: so totals of rx and tx are equal."""
    topology = star()
    found = {(one.link, one.queue.class_name): one for one in collected(topology).ports}
    for link in topology.links:
        back = next(other for other in topology.links if (other.source, other.target) == (link.target, link.source))
        for name in ("bulk", "fast"):
            assert found[link.name, name].sent_pause_frames == found[back.name, name].queue.pause_frames
            assert found[link.name, name].sent_pause_ps == found[back.name, name].queue.pause_ps
    totals = collected(topology).totals()
    assert totals["rx_pause"] == totals["tx_pause"] > 0


def test_ports_carry_the_priority_of_their_class() -> None:
    """A port's rows are told apart by the priority that operators configure."""
    assert {(one.queue.class_name, one.priority) for one in collected(star()).ports} == {("bulk", 3), ("fast", 5)}


def test_lost_packets_are_retries_where_links_repeat() -> None:
    """With link retry a damaged packet is a retry of the link; without, it is lost."""
    topology = star()
    assert topology.switching is not None
    damaged = {"a0_s0": replace(LINK, lost_packets=7, resent_bytes=28)}
    lossy = collected(topology, **damaged)
    retrying = collected(replace(topology, switching=replace(topology.switching, link_retry=True)), **damaged)
    assert (lossy.link_lost, lossy.link_retries) == (7, 0)
    assert (retrying.link_lost, retrying.link_retries) == (0, 7)
    assert retrying.retransmitted_bytes == 200 + 28


def test_runs_are_merged_by_sums_and_peaks_by_the_largest() -> None:
    """Two runs give sums of counts and times, and the larger of their peaks."""
    one = report(port("a0", "s0", pause_frames=1, pause_ps=5, peak_queue_bytes=10), a0=2)
    two = report(port("a0", "s0", pause_frames=2, pause_ps=6, peak_queue_bytes=7), a0=3)
    both = merged([one, two])
    assert both is not None and merged([]) is None and merged([one]) is one
    queue = both.ports[0].queue
    assert (queue.pause_frames, queue.pause_ps, queue.peak_queue_bytes, queue.class_name) == (3, 11, 10, "data")
    assert (both.adapters[0].counted.discarded_packets, both.elapsed_ps, both.n_runs) == (5, 2 * MS, 2)


def test_the_worst_ports_lost_most_then_were_held_longest() -> None:
    """Losses come before time held, time held before marks, and ports without any are no news."""
    ports = [port("s0", f"a{number}", **counted) for number, counted in enumerate(
        ({}, {"pause_ps": 9}, {"wait_ps": 20}, {"dropped_packets": 1}, {"marked_packets": 5})
    )]  # fmt: skip
    assert [one.peer for one in report(*ports).worst_ports(3)] == ["a3", "a2", "a1"]


HELD = {"pause_frames": 9, "pause_ps": MS // 5}


@pytest.mark.parametrize(
    ("ports", "drains", "cause", "where"),
    [
        ([port("s0", "a1", **HELD), port("a0", "s0", **HELD)], {"a1": 300}, Cause.SLOW_RECEIVER, "a1"),
        ([port("s0", "a1", **HELD), port("a0", "s0", **HELD)], {}, Cause.PAUSE_STORM, "a1"),
        ([port("s0", "a1", wait_ps=MS // 5)], {}, Cause.FEW_CREDITS, "a1"),
        ([port("a0", "s0", **HELD), port("s0", "a1", peak_queue_bytes=100), port("s0", "a2", peak_queue_bytes=49)], {},
         Cause.INCAST, "s0->a1"),
        ([port("a0", "s0", **HELD), port("s0", "s1", peak_queue_bytes=100), port("s0", "a2", peak_queue_bytes=1)], {},
         Cause.HOT_LINK, "s0->s1"),
        ([port("a0", "s0", **HELD), port("s0", "a1", peak_queue_bytes=100), port("s0", "a2", peak_queue_bytes=50)], {},
         Cause.CONGESTION, "s0"),
        ([port("s0", "a1", dropped_packets=3), port("s0", "a2", trimmed_packets=3)], {}, Cause.INCAST, "s0->a1"),
        ([port("s0", "s1", marked_packets=9), port("s0", "a2")], {}, Cause.HOT_LINK, "s0->s1"),
        ([port("s0", f"a{n}", dropped_packets=3) for n in range(3)], {}, Cause.CONGESTION, "s0"),
        ([port("s0", "a1", watchdog_events=1)], {}, Cause.PAUSE_STORM, "a1"),
    ],
)  # fmt: skip
def test_a_clear_cause_gets_its_word(ports: list[PortReport], drains: dict[str, int], cause: Cause, where: str) -> None:
    """Whoever holds others and is not held itself is the cause, by what it is; counts tell where nobody is held."""
    found = diagnose(report(*ports, drains=drains))
    assert [(one.cause, one.where) for one in found] == [(cause, where)]


def test_what_is_short_or_circular_gets_no_word() -> None:
    """Holds below 1 % of the time say nothing, and in a circle of holds nobody is the end."""
    brief = {"pause_frames": 1, "pause_ps": MS // 101}
    assert diagnose(report(port("a0", "s0", **brief), port("s0", "a1", peak_queue_bytes=10))) == ()
    assert diagnose(report(port("s0", "s1", **HELD), port("s1", "s0", **HELD))) == ()
    assert words(()) == "-"


def test_a_full_receive_buffer_is_a_slow_receiver() -> None:
    """Packets that an adapter had no room for name it, once."""
    found = diagnose(report(port("s0", "a1"), drains={"a1": 300}, a1=4))
    assert [(one.cause, one.where) for one in found] == [(Cause.SLOW_RECEIVER, "a1")]
    assert "300" in found[0].evidence or "37.5 GB/s" in found[0].evidence


@pytest.mark.parametrize(("drain_gbps", "cause"), [(0, Cause.PAUSE_STORM), (400, Cause.SLOW_RECEIVER)])
def test_an_adapter_that_pauses_is_named_though_it_forwards_and_is_held(drain_gbps: int, cause: Cause) -> None:
    """On a ring everyone is held and passes it on; only the adapter that sent pauses of its own is the cause."""
    held = {"pause_frames": 5, "pause_ps": MS // 2, "peak_queue_bytes": 4096}
    ring = report(*(port(f"a{n}", f"a{(n + 1) % 3}", **held) for n in range(3)), drains={"a1": drain_gbps})
    assert diagnose(ring) == ()
    paused = [replace(one, counted=replace(one.counted, pauses_sent=2)) if one.rank == 1 else one for one in ring.adapters]
    found = diagnose(replace(ring, adapters=tuple(paused)))
    assert [(one.cause, one.where) for one in found] == [(cause, "a1")]


def test_comment_lines_are_comments_and_name_ports_and_cause() -> None:
    """Whatever parses the table above skips them; the three worst ports and the cause are in them."""
    ports = [port("s0", f"a{n}", dropped_packets=n) for n in range(6)]
    lines = comment_lines(report(*ports))
    assert all(line.startswith("#") for line in lines)
    assert [line.split()[2] for line in lines if " port " in line] == ["s0->a5", "s0->a4", "s0->a3"]
    assert any("cause: congestion at s0" in line for line in lines)


def test_a_report_prints_its_summary_and_knows_its_findings() -> None:
    """str gives the command line's lines without their marks, and findings() is the diagnosis."""
    found = report(port("s0", "a1", dropped_packets=3))
    assert found.findings() == diagnose(found) != ()
    told = str(found).splitlines()
    assert told[0] == "Congestion in 1 ms of model time:" and told[-1] == f"  cause: {found.findings()[0]}"
    assert comment_lines(found)[1:-1] == [f"# {line}" for line in told[1:]]


BUSY, SPARE, EXHAUSTED = {"busy_ps": MS * 96 // 100}, {"busy_ps": MS // 4}, {"busy_ps": MS * 6 // 10}
FULL_RATE = {"wire_bytes": 50_000 * 96 // 100 * 1000}
"""400 Gbit/s is 50 000 bytes in a us."""


def sending(node: str, peer: str, *, busy_ps: int, wire_bytes: int = 1000, **counted: int) -> PortReport:
    one = port(node, peer, **counted)
    return replace(one, node_is_accelerator=node.startswith("a"), busy_ps=busy_ps, wire_bytes=wire_bytes)


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([sending("a3", "s0", **BUSY), sending("a1", "s0", **SPARE), sending("a2", "s0", **SPARE)], "hot link a3->s0"),
        ([sending("s0", "a3", **BUSY), sending("s0", "a1", **SPARE), sending("s0", "a2", **SPARE)], "hot link s0->a3"),
        ([sending("s0", "a3", **BUSY, **FULL_RATE), sending("s0", "a1", **SPARE), sending("s0", "a2", **SPARE)],
         "incast at s0->a3"),
        ([sending("s0", "s4", **BUSY, trimmed_packets=3), sending("s0", "s5", **SPARE, trimmed_packets=3),
          sending("s0", "s6", **SPARE, trimmed_packets=3)], "hot link s0->s4"),
        ([sending("a3", "s0", **BUSY), sending("a1", "s0", **EXHAUSTED), sending("a2", "s0", **EXHAUSTED)], "-"),
        ([sending("a3", "s0", busy_ps=MS * 95 // 100), sending("a1", "s0", **SPARE), sending("a2", "s0", **SPARE)], "-"),
    ],
)  # fmt: skip
def test_a_link_that_is_busy_alone_is_hot(ports: list[PortReport], expected: str) -> None:
    """Above 95 % where the median of its kind is below 60 %: hot link; or incast, where an accelerator gets its full rate."""
    assert places(diagnose(report(*ports))) == expected


def test_other_words_come_before_a_busy_link() -> None:
    """A slow receiver is not called a hot link because its link is also busy."""
    ports = [sending("s0", "a1", **BUSY, **HELD), sending("s0", "a2", **SPARE), sending("s0", "a3", **SPARE)]
    assert places(diagnose(report(*ports, drains={"a1": 300}))) == "slow receiver a1"


def test_several_places_of_a_cause_are_counted() -> None:
    """A cell names the first place and says how many there are besides."""
    found = [Finding(cause=Cause.INCAST, where=f"s0->a{n}", evidence="") for n in range(3)]
    slow = Finding(cause=Cause.SLOW_RECEIVER, where="a7", evidence="")
    assert places([*found, slow]) == "incast at s0->a0 (and 2 more), slow receiver a7"
    assert places([]) == "-"


def test_documents_are_plain_and_leave_idle_ports_out() -> None:
    """Totals carry the causes; of the ports those that did anything."""
    idle = replace(port("s0", "a9"), queue=QUEUE)
    found = report(port("s0", "a1", dropped_packets=2, dropped_bytes=9), idle)
    totals = totals_document(found)
    assert (totals["discards"], totals["discarded_bytes"], totals["verdicts"][0]["cause"]) == (2, 9, "incast")
    assert [one["link"] for one in ports_document(found)["ports"]] == ["s0->a1"]


def test_a_session_puts_the_engines_parts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports and adapters of all engines are in one report; its time is the run's, and before one ended the latest engine's."""
    topology = star()
    queue = tuple(replace(QUEUE, class_name=c.name) for c in topology.switching.classes) if topology.switching else ()
    parts = [
        EngineCounters(links={0: LINK}, events=1, queues={0: queue}, adapters={0: ADAPTER}, now_ps=5),
        EngineCounters(links={1: LINK}, events=1, queues={1: queue, 2: queue}, adapters={1: ADAPTER}, now_ps=9),
    ]
    for elapsed_ps, expected_ps in ((7, 7), (0, 9)):
        backend = SimpleNamespace(
            counters=lambda: parts, elapsed_ps=lambda now=elapsed_ps: now, stopped_s=lambda: 0.0, close=lambda: None
        )
        with Session(topology, driver="simulate") as session:
            monkeypatch.setattr(session, "_backend", backend)
            found = session.congestion()
        assert (len(found.ports), len(found.adapters), found.elapsed_ps) == (6, 2, expected_ps)


def test_a_port_is_held_for_all_of_the_time_at_most() -> None:
    """A pause that lasts on after the last rank's end makes no more than the whole."""
    held = port("s0", "a1", pause_frames=9, pause_ps=3 * MS)
    assert report(held).held_share(held) == 1.0
