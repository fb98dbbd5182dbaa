"""The exposition: names, cardinality, what dies, what is summed; and what calls are counted as."""

from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import replace
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_cases import ABOUT, reading, snapshot, some_calls
from prometheus_client.parser import text_string_to_metric_families

from emu.errors import ConfigError
from emu.fabric.account import CAUSES
from emu.telemetry.calls import Calls, LastCall
from emu.telemetry.catalogue import CATALOGUE, LABELS, MOST_CALL_SERIES, OTHER, SIZE_CLASSES, Clock, Kind, size_class
from emu.telemetry.file_sd import parse_endpoint, serving_host
from emu.telemetry.inspector import message_range
from emu.telemetry.prometheus import Collector
from emu.telemetry.snapshot import Reading
from emu.topologies.fabric_file import load
from emu.topologies.graph import Link, Node, NodeKind, Topology
from emu.topologies.switching import Discipline, Watchdog

MOST_SAMPLES = 8000


@cache
def star(switching: str = "") -> Topology:
    """Four ranks on a switch: nodes 0 to 3 and 4."""
    return load("star", {"ranks": "4", **({"switching": switching} if switching else {})}).topology


@cache
def watched() -> Topology:
    """The same with PFC, ECN and a watchdog."""
    topology = star("roce-dcqcn")
    assert topology.switching is not None
    watchdog = Watchdog(detection_ps=10**9, restoration_ps=10**9)
    return replace(topology, switching=replace(topology.switching, watchdog=watchdog))


@cache
def large() -> Topology:
    """64 ranks, 8 leaves and 4 spines of 16 ports, 256 links, 2 classes with PFC, ECN and a watchdog."""
    kinds = [NodeKind.ACCELERATOR] * 64 + [NodeKind.SWITCH] * 12
    nodes = tuple(Node(name=f"n{index}", kind=kind) for index, kind in enumerate(kinds))
    pairs = [(rank, 64 + rank // 8, 0) for rank in range(64)]
    pairs += [(64 + leaf, 72 + spine, plane) for leaf in range(8) for spine in range(4) for plane in range(2)]
    links = [(a, b, plane) for one, other, plane in pairs for a, b in ((one, other), (other, one))]
    switching = watched().switching
    assert switching is not None
    first = switching.classes[0]
    assert first.discipline is Discipline.PAUSE and first.marking is not None
    return Topology(
        name="large",
        nodes=nodes,
        links=tuple(
            Link(name=f"n{a}->n{b}#{plane}", source=a, target=b, rate_bps=10**9, latency_ps=10**6) for a, b, plane in links
        ),
        router=star().router,
        ranks=tuple(range(64)),
        switching=replace(switching, classes=(first, replace(first, name="other", priority=first.priority + 1))),
    )


def samples(readings: list[Reading], topology: Topology, **about: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scrape gives."""
    text = Collector(topology, about=replace(ABOUT, **about), readings=lambda: readings).text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: object) -> float:
    """The one sample of a name that has at least these labels."""
    wanted = {(key, str(value)) for key, value in labels.items()}
    (value,) = [value for (other, its), value in found.items() if other == name and wanted <= its]
    return value


def test_the_catalogue_keeps_prometheus_rules() -> None:
    """Counters end with _total, info is 1, help is a sentence, labels are described, and seconds say whose they are."""
    for name, metric in CATALOGUE.items():
        assert name.startswith("emu_") and metric.help.endswith(".")
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert name.endswith("_info") == (metric.kind is Kind.INFO)
        assert set(metric.labels) <= set(LABELS)
        assert (metric.clock is not Clock.NONE) == ("_second" in name), name


@given(st.integers(0, 2**40))
@settings(max_examples=50)
def test_a_size_has_one_class(n_bytes: int) -> None:
    """Classes are as their names say: 4 KiB, then sixteen times as much each, the bound within."""
    bounds = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
    assert size_class(n_bytes) == SIZE_CLASSES[sum(n_bytes > bound for bound in bounds)]


def large_readings() -> list[Reading]:
    """76 actors with a node each."""
    topology = large()
    return [
        reading(node.name, snapshot(topology, {index}, calls=some_calls((index,) if index < 64 else (), 2 * MOST_CALL_SERIES)))
        for index, node in enumerate(topology.nodes)
    ]


@pytest.mark.slow
def test_samples_stay_within_their_bound() -> None:
    """64 ranks, 256 links and 12 switches of 16 ports and 2 priorities, each call of which there are most: below 8,000, and
    not more than the formula in the catalogue says."""
    found = samples(large_readings(), large())
    queues, kinds = 12 * 16 * 2, MOST_CALL_SERIES + 1
    formula = 6 * 256 + 15 * 64 + queues * (3 + 7 + 1) + 12 * 2 + 2 * 76 + 19 * kinds + 15 * (8 + 2 * 2 + 2) + 40
    assert formula - 40 < len(found) <= formula < MOST_SAMPLES


def lint(text: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_promtool_finds_nothing() -> None:
    """`promtool check metrics` has no lint for an exposition in which every metric is."""
    topology = watched()
    faults = {("a0->s0", "slow"): 1, ("a1", "late"): 0}
    whole = snapshot(topology, set(range(5)), calls=some_calls((0, 1)), faults=faults)
    text = Collector(topology, about=ABOUT, readings=lambda: [reading("a0", whole)]).text()
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert set(CATALOGUE) - exposed == {"emu_switch_credit_wait_seconds_total", "emu_switch_trimmed_packets_total"}
    lint(text)


def test_an_actor_that_died_is_seen() -> None:
    """up is 0 and the time of its last word stays; its ranks and links are gone, what is summed over actors is not less."""
    topology = star()
    actors = [reading(f"a{index}", snapshot(topology, {index}, calls=some_calls((index,)))) for index in range(2)]
    before = samples(actors, topology)
    after = samples([actors[0], replace(actors[1], is_alive=False)], topology)
    assert (named(after, "emu_actor_up", actor="a0"), named(after, "emu_actor_up", actor="a1")) == (1, 0)
    last = "emu_exporter_last_update_timestamp_seconds"
    assert named(after, last, actor="a1") == named(before, last, actor="a1")
    gone = {(name, dict(labels).get("rank", dict(labels).get("link"))) for name, labels in before.keys() - after.keys()}
    assert {which for _, which in gone} == {"1", "a1->s0"}
    assert all(after[key] == before[key] for key in after if key[0] != "emu_actor_up")


def test_an_actor_that_has_not_answered_yet_is_up() -> None:
    """Nothing is known of it but that it lives: no time of an update, and no series of its own."""
    found = samples([reading("a0", None)], star())
    assert named(found, "emu_actor_up", actor="a0") == 1
    assert not any("last_update" in name or "rank_stall" in name for name, _ in found)


def test_pauses_sent_are_those_that_the_far_end_received() -> None:
    """A switch that paused an accelerator shows it as sent, though the accelerator's port counted it."""
    topology = star("roce-pfc")
    found = samples([reading("a2", snapshot(topology, {2}, n=7)), reading("s0", snapshot(topology, {4}, n=3))], topology)
    frames = "emu_switch_pfc_pause_frames_total"
    assert named(found, frames, port="s0->a2", direction="sent") == 7
    assert named(found, frames, port="s0->a2", direction="received") == 3


def test_storms_are_told_by_port_and_their_ends_by_switch() -> None:
    """What the watchdog of a port detected is the port's; what is over is summed over the ports of the switch."""
    found = samples([reading("s0", snapshot(watched(), {4}, n=3))], watched())
    assert named(found, "emu_switch_pfc_watchdog_storms_total", port="s0->a2") == 3
    assert named(found, "emu_switch_pfc_watchdog_restorations_total", switch="s0") == 4 * 3


def test_faults_are_told_by_what_they_are_on() -> None:
    """Those of links (and planes) by link, those of accelerators by rank; what is over is 0."""
    faults = {("a0->s0", "slow"): 1, ("s0->a1#0", "flap"): 0, ("a1", "late"): 1, ("a2->a3", "background"): 1}
    found = samples([reading("a0", snapshot(star(), {0}, faults=faults))], star())
    assert named(found, "emu_link_fault_active", link="a0->s0", fault="slow") == 1
    assert named(found, "emu_link_fault_active", link="s0->a1#0") == 0
    assert named(found, "emu_rank_fault_active", rank=1, fault="late") == 1
    assert named(found, "emu_rank_fault_active", rank=2, fault="background") == 1


def test_a_finding_is_counted_when_it_begins() -> None:
    """A cause that the counters point to counts once for as long as they do; all causes are there from the start."""
    topology = star("roce-pfc")
    quiet = reading("s0", snapshot(topology, set(range(5)), n=0))
    busy = reading("s0", snapshot(topology, set(range(5)), n=5, calls=Calls(model_ps=10)))
    now = [quiet]
    collector = Collector(topology, about=ABOUT, readings=lambda: now)

    def total() -> float:
        found = {family.name: family.samples for family in collector.collect()}["emu_diagnosis_findings"]
        assert {sample.labels["cause"] for sample in found} >= {"slow_receiver", "pause_storm", "hot_link", "congestion"}
        return sum(sample.value for sample in found)

    assert total() == 0
    now[:] = [busy]
    once = total()
    assert once > 0 and total() == once


def finished(rank: int = 0, *, position: int = 0, **changes: Any) -> Any:
    """An operation that took 100 us, on two ranks of which rank 1 started 30 us after rank 0."""
    call = {"collective": "all_reduce", "count": 1000, "itemsize": 4, "algorithm": "ring", "root": None}
    call |= {key: changes.pop(key) for key in list(changes) if key in call}
    values = {
        "call": SimpleNamespace(**call), "members": (0, 1), "position": position, "number": 0, "name": "world",
        "started_ps": 10**9, "completed_ps": 1_100_000_000, "first_start_ps": 10**9, "last_start_ps": 1_030_000_000,
        "last_rank": 1, "split_ps": tuple(range(len(CAUSES))), "send_counts": (), "receive_counts": (),
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def completed(*operations: tuple[int, Any], late_ns: int = 0) -> Calls:
    calls = Calls()
    for rank, operation in operations:
        calls.complete(rank, operation, seen_ns=1, late_ns=late_ns, dilation=1000)
    return calls


def test_a_call_counts_once_and_each_rank_of_it_has_a_duration() -> None:
    """Two ranks finish one call: one operation, its bytes once, one skew and last arrival, two durations, both splits."""
    calls = completed((0, finished()), (1, finished(position=1)))
    which = "all_reduce", "ring"
    assert calls.completed == {which: 1} and calls.n_bytes == {which: 4000}
    (kind,) = calls.kinds.values()
    assert (sum(kind.durations.counts), kind.durations.sum) == (2, 2 * 10**8)
    assert calls.skews["all_reduce"].sum == 30 * 10**6 and calls.last_arrivals == {1: 1}
    assert calls.spent_ps == {0: list(range(len(CAUSES))), 1: list(range(len(CAUSES)))}
    assert kind.last == (1, Fraction(4000), 10**8)


def test_arrivals_are_told_by_who_has_heard_from_all() -> None:
    """The root of a reduce counts it; a broadcast has no arrivals, as its root hears from nobody; nor has a call on time."""
    assert completed((0, finished(collective="reduce", root=1))).skews == {}
    assert completed((1, finished(collective="reduce", root=1, position=1))).last_arrivals == {1: 1}
    broadcast = completed((0, finished(collective="broadcast", root=0)))
    assert broadcast.skews == {} and broadcast.completed == {("broadcast", "ring"): 1}
    assert completed((0, finished(last_start_ps=10**9))).last_arrivals == {}


def test_a_call_is_late_by_its_own_duration() -> None:
    """2 % of 100 us at a dilation of 1000 are 2 ms of wall time."""
    assert completed((0, finished()), late_ns=1_999_999).n_late == 0
    assert completed((0, finished()), late_ns=2_000_001).n_late == 1


def test_kinds_beyond_the_most_share_a_series() -> None:
    """However many algorithms a user writes, kinds are bounded; what is merged keeps the kinds it had."""
    calls = completed(*((0, finished(algorithm=f"mine{number}")) for number in range(2 * MOST_CALL_SERIES)))
    assert len(calls.kinds) == MOST_CALL_SERIES + 1
    assert calls.completed[OTHER, OTHER] == MOST_CALL_SERIES
    merged = calls.emptied()
    merged.add(completed((0, finished(algorithm="new"))))
    merged.add(calls)
    assert merged.kinds.keys() == calls.kinds.keys() and sum(merged.completed.values()) == 2 * MOST_CALL_SERIES + 1


def test_inspector_names_are_there_on_demand() -> None:
    """With them each rank has its last call of at least 8 KiB as NCCL Inspector's gauges, without them none."""
    calls = Calls(
        last_by_rank={
            (1, ("all_reduce", "ring", "1-16MiB")): LastCall("world", (0, 1), 5 << 20, Fraction(10**6), 10**8),
            (1, ("send", "p2p", "1-16MiB")): LastCall("world", (0, 1), 8192, Fraction(8192), 10**6),
            (1, ("all_reduce", "ring", "0-4KiB")): LastCall("world", (0, 1), 8191, Fraction(8191), 10**6),
        }
    )
    readings = [reading("a1", snapshot(star(), {1}, calls=calls))]
    found = samples(readings, star(), inspector=True)
    which = {
        "gpu": "GPU1",
        "nranks": 2,
        "n_nodes": 1,
        "collective": "AllReduce",
        "message_size": "5-6MB",
        "algo_proto": "Ring_simple",
    }
    assert named(found, "nccl_bus_bandwidth_gbs", **which) == 10
    assert named(found, "nccl_collective_exec_time_microseconds", **which) == 100
    assert named(found, "nccl_p2p_exec_time_microseconds", p2p_operation="Send", message_size="8-9KB") == 1
    assert not any(name.startswith("nccl_") for name, _ in samples(readings, star()))


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0B"), (1, "1-2B"), (1023, "1023-1024B"), (4 << 30, "4-5GB"), (5 << 50, "5120-5121TB")]
)
def test_message_ranges_are_inspectors(n_bytes: int, text: str) -> None:
    """The binary unit, rounded down, and one more."""
    assert message_range(n_bytes) == text


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("auto", "auto", 0), ("127.0.0.1:9100", "127.0.0.1", 9100), ("localhost:0", "127.0.0.1", 0), ("node:0", "node", 0),
     ("[::1]:9100", "::1", 9100)],
)  # fmt: skip
def test_endpoints(text: str, host: str, port: int) -> None:
    """An address with a port, a free one of this host, or the node's own."""
    assert parse_endpoint(text) == (host, port)


def test_several_hosts_have_an_address_each() -> None:
    """auto is this host alone, or each node's own; one address cannot be that of several hosts."""
    assert [serving_host("auto", several=several) for several in (False, True)] == ["127.0.0.1", "node"]
    assert serving_host("127.0.0.1", several=False) == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"metrics 127\.0\.0\.1: .* use node:0"):
        serving_host("127.0.0.1", several=True)


@pytest.mark.parametrize("text", ["", "9100", "127.0.0.1", "127.0.0.1:70000", "127.0.0.1:x", "lab:9100", "0.0.0.0:0", "[::]:0"])
def test_bad_endpoints(text: str) -> None:
    """Anything else is refused in one line that says what to write; so is serving on every network."""
    with pytest.raises(ConfigError, match="metrics") as caught:
        parse_endpoint(text)
    assert "\n" not in str(caught.value)


def test_an_endpoint_that_cannot_be_served_is_refused() -> None:
    """A port that is taken and an address that is not the node's are refused in one line that says what to do."""
    collector = Collector(star(), about=ABOUT, readings=list)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics 127.0.0.1:{port}: Address already in use; use another port, or 0"):
            collector.serve("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"metrics 192\.0\.2\.1:0: Cannot assign requested address; name an address"):
        collector.serve("192.0.2.1", 0)
