"""Whatever lies in the folders conforms: a topology, preset, impairment or algorithm that is dropped in is tested here.

The files are found as emu finds them; no name is written here.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emu.collectives
import emu.congestion
import emu.impairments
import emu.topologies
from emu.collectives.call import ROOTED
from emu.collectives.catalogue import algorithm_names, cost_for, find_algorithm, schedule_for
from emu.collectives.layout import flat, layout_of
from emu.collectives.verify import verify
from emu.congestion.base import FOREVER_PS, Line, Parameters, ReceiverControl, SenderControl
from emu.congestion.none import Uncontrolled
from emu.errors import ConfigError
from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine
from emu.fabric.next_links import NextLinks
from emu.impairments.base import BaseImpairment, FrameKey
from emu.impairments.spec import impairment_class, kinds, parse_impairment
from emu.testing import fabrics_over, layouts_over
from emu.topologies.catalogue import Generic, generic_topologies
from emu.topologies.checks import check
from emu.topologies.fabric_file import load_fabric, preset_files, read_file
from emu.topologies.folder import read_folder
from emu.topologies.graph import Link, Topology
from emu.topologies.listing import FAMILIES, evidence, list_fabrics

GENERIC = generic_topologies()
PRESETS = tuple(listing.name for listing in list_fabrics() if listing.kind == "preset")
ALGORITHM_NAMES = algorithm_names()
ALGORITHMS = [(name, collective) for name in ALGORITHM_NAMES for collective in sorted(find_algorithm(name).collectives)]
US = 10**6
MOST_LAID_OUT = 16
"""Ranks up to which algorithms that ask are tried on all small fabrics."""
WIRING = frozenset({
    "ranks", "shape", "oversubscription", "cables_per_pair", "leaves", "spines", "accelerators_per_leaf", "pods", "cores",
    "core_cables_per_pair", "core_oversubscription", "groups", "group_size", "switch_links", "switch_ports",
    "switches_per_group", "accelerators_per_switch", "global_cables", "nodes", "rails", "nodes_per_leaf", "ports", "joined",
    "links_per_plane", "cpus_per_leaf",
})  # fmt: skip
"""How many parts there are and how they are joined is one fact: a preset may give one source, ``wiring``, for all of it."""


def small(name: str) -> Topology:
    """The preset at the smallest of its scales; its own size is for tests/sim/test_catalogue.py."""
    scales = read_file(preset_files()[name], name).scales
    return load_fabric(name, {"scale": min(scales, key=int)} if scales else {})


every_topology = pytest.mark.parametrize("generic", GENERIC.values(), ids=GENERIC)
every_preset = pytest.mark.parametrize("name", PRESETS)
every_impairment = pytest.mark.parametrize("kind", kinds())


def control_module(name: str) -> Any:
    return importlib.import_module(f"emu.congestion.{name}")


def assert_routes_join(topology: Topology, sources: tuple[int, ...]) -> None:
    """Every rank is reached from ``sources`` over links that exist and touch, and no node is passed twice, hop by hop neither."""
    next_links = NextLinks(topology, seed=0, impairments={}, reroute_ps=0)
    for source in sources:
        for rank, target in enumerate(topology.ranks):
            if source != target:
                assert next_links.of(source, rank, 0), "raises ConfigError where ways do not agree"
    for source in sources:
        for target in topology.ranks:
            for flow in range(topology.router.spread):
                node, passed = source, {source}
                for index in topology.route(source, target, flow):
                    link = topology.links[index]
                    assert link.source == node, f"{link.name} does not begin where the link before it ends"
                    node = link.target
                    assert node not in passed, f"a route from {source} to {target} passes {topology.nodes[node].name} twice"
                    passed.add(node)
                assert node == target


# -- topologies ------------------------------------------------------------------------------------


@every_topology
def test_a_topology_builds_with_its_defaults(generic: Generic) -> None:
    """Nothing has to be set; the result is sound, is called as its file, and its accelerators a0, a1, ... are its ranks."""
    topology = generic.build(generic.parameters())
    check(topology, where=generic.name)
    assert topology.name == generic.name
    assert topology.n_ranks >= 2
    assert [topology.nodes[node].name for node in topology.ranks] == [f"a{rank}" for rank in range(topology.n_ranks)]
    assert topology.description and "\n" not in topology.description


@every_topology
def test_a_topology_routes_every_pair(generic: Generic) -> None:
    """From every rank to every rank, on every lane, there is a way without detours over the same node."""
    topology = generic.build(generic.parameters())
    assert_routes_join(topology, topology.ranks)


@every_topology
def test_a_topology_is_the_same_in_another_process(generic: Generic) -> None:
    """It pickles, equals its copy, and equals what the same parameters build again."""
    topology = generic.build(generic.parameters())
    copy: Topology = pickle.loads(pickle.dumps(topology))
    assert copy == topology == generic.build(generic.parameters())
    assert fingerprint(copy) == fingerprint(topology)


# -- presets ---------------------------------------------------------------------------------------


@every_preset
def test_a_preset_loads_and_routes(name: str) -> None:
    """It passes a topology's checks, says what it is and what its calibration is worth, and its first and last rank reach all."""
    topology = small(name)
    check(topology, where=name)
    assert topology.name == name
    assert topology.description and topology.calibration
    assert_routes_join(topology, (topology.ranks[0], topology.ranks[-1]))


@every_preset
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    """Each setting in the file, the kind of its topology apart, is told where it comes from; in the catalogue, with evidence."""
    file = tomllib.loads((resources.files("emu.presets") / f"{name}.toml").read_text(encoding="utf-8"))
    sources = dict(small(name).sources)
    settings_made = set(file["topology"]) - {"kind"} if "topology" in file else {"wiring", "rate", "latency"}
    assert settings_made, "a preset without numbers is a generic topology"
    sourced = set(sources) | (WIRING if "wiring" in sources else set())
    assert settings_made <= sourced, f"no source for {sorted(settings_made - sourced)}"
    assert all(len(text.split()) >= 3 for text in sources.values())
    assert all(evidence(text)[0] for text in sources.values()) or "family" not in file


@every_preset
def test_the_scales_of_a_preset_are_called_by_their_ranks(name: str) -> None:
    """A scale that is named has that many ranks, and a family is one of the list's."""
    file = read_file(preset_files()[name], name)
    assert file.family in ("", *FAMILIES)
    for scale in [scale for scale in file.scales if int(scale) <= 256]:
        assert load_fabric(name, {"scale": scale}).n_ranks == int(scale)


# -- impairments -----------------------------------------------------------------------------------


def example(kind: str) -> BaseImpairment:
    """The impairment that its docstring shows first (```added=1ms```), or one without keys where it shows none."""
    shown = re.search(r"``([a-z_]+=[^`]*)``", impairment_class(kind).__doc__ or "")
    settings_shown = f",{shown[1]}" if shown else ""
    return parse_impairment(f"*={kind}{settings_shown}")[1]


TIMES_PS = [number * 370_000 for number in range(60)] + [number * 131_071_003 for number in range(1, 60)] + [10**12 + 1]
"""The first microseconds, then milliseconds on, and a second."""
KEYS = (FrameKey(3, 7, 0), FrameKey(3, 7, 1), FrameKey(3, 8, 40), FrameKey(0, 65, 100_000))


def answers(impairment: BaseImpairment, times_ps: list[int]) -> dict[tuple[int, FrameKey], tuple[object, ...]]:
    return {
        (now_ps, key): (
            impairment.capacity(1, key.link, now_ps),
            impairment.delay_ps(1, key, now_ps),
            impairment.loses_packet(1, key, now_ps // US, 0),
            impairment.first_lost(1, key, now_ps // US, now_ps // US + 9, 1),
        )
        for now_ps in times_ps
        for key in KEYS
    }


@every_impairment
def test_an_impairment_is_made_from_what_its_docstring_shows(kind: str) -> None:
    """The first example in the class's docstring is a legal spec, and every key that can be set is spoken of."""
    assert isinstance(example(kind), BaseImpairment)
    cls = impairment_class(kind)
    module_text = importlib.import_module(cls.__module__).__doc__ or ""
    for name, field in cls.model_fields.items():
        assert (field.alias or name) in (cls.__doc__ or "") + module_text, f"{kind}: {field.alias or name} is not documented"


@every_impairment
def test_an_impairment_answers_alike_in_any_order(kind: str) -> None:
    """No answer depends on what was asked before, and a pickled copy gives the same ones."""
    impairment = example(kind)
    forward = answers(impairment, TIMES_PS)
    assert answers(impairment, TIMES_PS[::-1]) == forward
    copy = pickle.loads(pickle.dumps(impairment))
    assert copy == impairment
    assert answers(copy, TIMES_PS[::2] + TIMES_PS[1::2]) == forward


@every_impairment
def test_an_impairment_announces_what_it_overrides(kind: str) -> None:
    """A link asks only for what is announced, so that nothing that is written goes unasked, or is asked for in vain."""
    impairment, cls = example(kind), impairment_class(kind)
    assert impairment.changes_capacity == (cls.capacity is not BaseImpairment.capacity)
    assert impairment.changes_delay == (cls.delay_ps is not BaseImpairment.delay_ps)
    assert impairment.loses == (cls.loses_packet is not BaseImpairment.loses_packet)


@every_impairment
def test_a_capacity_is_an_exact_share_until_later(kind: str) -> None:
    """At any time, and wherever it says that it changes, it is an int or Fraction from 0 to 1 that holds until later than now."""
    impairment = example(kind)
    changes = []
    now_ps: int | None = 0
    while now_ps is not None and len(changes) < 60:
        changes += [now_ps, max(0, now_ps - 1)]
        now_ps = impairment.capacity(1, 3, now_ps).until_ps
    for now_ps in TIMES_PS + changes:
        for link in (0, 3):
            factor, until_ps = impairment.capacity(1, link, now_ps)
            assert type(factor) in (int, Fraction) and 0 <= factor <= 1
            assert until_ps is None or (type(until_ps) is int and until_ps > now_ps)


@every_impairment
def test_a_delay_is_whole_and_within_its_bound(kind: str) -> None:
    """It only adds picoseconds, and never more than ``most_delay_ps`` where there is a bound."""
    impairment = example(kind)
    most_ps = impairment.most_delay_ps
    assert most_ps is None or type(most_ps) is int
    for now_ps in TIMES_PS:
        for key in KEYS:
            delay_ps = impairment.delay_ps(1, key, now_ps)
            assert type(delay_ps) is int and delay_ps >= 0 and (most_ps is None or delay_ps <= most_ps)


@every_impairment
def test_what_loses_waits_and_agrees_with_itself(kind: str) -> None:
    """What loses waits before it sends again, tells the first that is lost of many packets, and lets each through in the end."""
    impairment = example(kind)
    assert type(impairment.timeout_ps) is int and (impairment.timeout_ps > 0 or not impairment.loses)
    for key in KEYS:
        for begin, attempt in ((0, 0), (250, 1), (100_000, 0)):
            lost = [packet for packet in range(begin, begin + 40) if impairment.loses_packet(1, key, packet, attempt)]
            assert impairment.first_lost(1, key, begin, begin + 40, attempt) == (lost[0] if lost else None)
            for packet in lost:
                assert not all(impairment.loses_packet(1, key, packet, again) for again in range(64)), "it never gets through"


@given(
    names=st.lists(st.sampled_from(kinds()), min_size=1, max_size=4),
    traffic=st.lists(
        st.tuples(st.integers(0, 10 * US), st.sampled_from((0, US, 9 * US)), st.integers(0, 20_000), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_impairments_compose_on_a_link(names: list[str], traffic: list[tuple[int, int, int, int]], seed: int) -> None:
    """Any of them together on a link lose no byte, keep heads in order and tails behind heads, and leave its books balanced."""
    link = Link(name="a->b", source=0, target=1, rate_bps=8 * 10**9, latency_ps=US, mtu_bytes=1000, header_bytes=50)
    machine = LinkMachine(link=link, index=3, seed=seed, impairments=tuple((example(name), None) for name in names))
    now_ps, last_head_ps = 0, 0
    for gap_ps, spread_ps, n_bytes, flow in traffic:
        now_ps += gap_ps
        frame = Frame((3,), source_rank=0, target_rank=1, flow=flow, route_flow=0, payload_bytes=n_bytes, head_ps=now_ps)
        frame.tail_ps = now_ps + spread_ps
        start_ps = machine.receive(frame, now_ps)
        assert start_ps >= now_ps
        assert frame.head_ps >= max(last_head_ps, start_ps + link.latency_ps)
        assert frame.tail_ps >= frame.head_ps
        last_head_ps = frame.head_ps
    machine.validate()
    statistics = machine.statistics()
    assert statistics.frames == len(traffic)
    assert statistics.payload_bytes == sum(n_bytes for _, _, n_bytes, _ in traffic)
    assert statistics.wire_bytes - statistics.resent_bytes >= statistics.payload_bytes


# -- algorithms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "collective"), ALGORITHMS, ids=[f"{name}-{collective}" for name, collective in ALGORITHMS])
def test_an_algorithm_is_right_and_costs_what_it_says(name: str, collective: str) -> None:
    """Over 1 to 33 ranks and more, however they lie, from any root of a few, it does its collective and meets its cost formula.

    Or it declines the number: by ConfigError, in one line, the same from any root, and not all numbers.
    """
    done = 0
    asks = find_algorithm(name).asks_layout
    for n_ranks in (*range(1, 18), 24, 31, 32, 33, 48):
        everyone = tuple(range(n_ranks))
        fabrics = fabrics_over(n_ranks) if asks and n_ranks <= MOST_LAID_OUT else ()
        for layout in (flat(n_ranks), *(layout_of(fabric, everyone) for fabric in fabrics)):
            verdicts = set()
            for root in {0, 1 % n_ranks, n_ranks // 2, n_ranks - 1} if collective in ROOTED else {0}:
                try:
                    verified = verify(schedule_for(collective, name, n_ranks, root, layout))
                except ConfigError as error:
                    assert "\n" not in str(error)
                    verdicts.add(False)
                else:
                    assert verified.cost == cost_for(collective, name, n_ranks, layout), f"{n_ranks} ranks, root {root}"
                    assert n_ranks > 1 or verified.n_messages == (0,), "a rank alone has nobody to send to"
                    verdicts.add(True)
            assert len(verdicts) == 1, f"{n_ranks} ranks: done from one root and declined from another"
            done += verdicts.pop()
    assert done > 0


def test_every_file_that_begins_an_algorithm_or_a_topology_ends_it() -> None:
    """A file with one of the names that make an algorithm, or a topology, has the others too; else it would go unseen."""
    for package, names in ((emu.collectives, {"COLLECTIVES", "cost"}), (emu.topologies, {"Parameters", "build"})):
        folder = read_folder(package)
        assert not folder.faults
        found = {*ALGORITHM_NAMES, "catalogue"} if package is emu.collectives else set(GENERIC)
        begun = {name for name, module in folder.modules.items() if names & set(vars(module))}
        assert begun <= found, f"these lack something: {sorted(begun - found)}"
    assert not read_folder(emu.impairments).faults


# -- congestion controls ---------------------------------------------------------------------------

CONTROLS = tuple(
    module.name for module in pkgutil.iter_modules(emu.congestion.__path__) if hasattr(control_module(module.name), "build")
)
LINE = Line(rate_bps=400 * 10**9, round_trip_ps=4_327_680, quantum_bytes=16384, mtu_bytes=4096)
CLEAN = (0,) * 12
"""What becomes of the packets at the end: nothing."""
SECOND = 10**12
Halves = tuple[SenderControl, ReceiverControl]
every_control = pytest.mark.parametrize("name", CONTROLS)


def halves(name: str, **parameters: int | str) -> Halves:
    build: Callable[[Line, Parameters], Halves] = control_module(name).build
    return build(LINE, parameters)


def drive(control: Halves, fates: list[int], delays_ps: list[int]) -> list[int]:
    """Send packets through a control, answered after the delays in turn: 0 come, 1 marked, 2 trimmed or 3 lost and sent again.

    Every fifth is a chunk's last, and shorter; behind them others come on an empty path, so that all must have been sent in the
    end.  Returns when each packet went.  The laws of a control are checked on the way.
    """
    sender, receiver = control
    now_ps, outstanding, times = 0, 0, []
    answers: list[tuple[int, int, int, int, int]] = []
    sizes = [LINE.quantum_bytes] * 4 + [1000]
    todo = deque((fate, sizes[number % 5]) for number, fate in enumerate([*fates, *CLEAN]))
    while todo or answers:
        n_bytes = todo[0][1] if todo else 0
        ready_ps = sender.ready_ps(now_ps, outstanding, n_bytes) if todo else FOREVER_PS
        if todo and ready_ps >= FOREVER_PS:
            assert outstanding, "nothing is outstanding, and the control waits for ever"
            assert receiver.acknowledges, "it waits for answers, which its receiver does not give"
        due_ps = min(answers)[0] if answers else FOREVER_PS
        if ready_ps <= due_ps:
            assert ready_ps <= now_ps + SECOND, "it is as good as stuck"
            between_ps = (now_ps + ready_ps) // 2
            if between_ps > now_ps:
                later_ps = sender.ready_ps(between_ps, outstanding, n_bytes)
                assert later_ps == ready_ps, "the time moves as it is waited for"
            now_ps = max(now_ps, ready_ps)
            assert sender.ready_ps(now_ps, outstanding, n_bytes) <= now_ps, "it does not keep to its word"
            fate, _ = todo.popleft()
            sender.sent(now_ps, n_bytes)
            outstanding += n_bytes
            times.append(now_ps)
            delay_ps = LINE.round_trip_ps + (delays_ps[len(times) % len(delays_ps)] if len(times) <= len(fates) else 0)
            answers.append((now_ps + delay_ps, len(times), fate, now_ps, n_bytes))
            continue
        answer = min(answers)
        answers.remove(answer)
        now_ps, _, fate, sent_ps, n_bytes = answer
        outstanding -= n_bytes
        match fate:
            case 2:
                sender.lost(now_ps, n_bytes, trimmed=True)
                todo.append((0, n_bytes))
            case 3:
                sender.timed_out(now_ps)
                todo.append((0, n_bytes))
            case _:
                if receiver.notifies(now_ps, fate == 1):
                    sender.notified(now_ps)
                if receiver.acknowledges:
                    sender.acknowledged(now_ps, n_bytes, now_ps - sent_ps, fate == 1)
        assert 0 < sender.rate_bps(now_ps) <= LINE.rate_bps
    return times


@every_control
def test_a_control_sends_at_once_until_it_hears_something(name: str) -> None:
    """Its first packet may go, it is at the line's rate, and an adapter that admits does so a chunk at a time or more."""
    sender, receiver = halves(name)
    assert sender.ready_ps(0, 0, LINE.quantum_bytes) == 0
    assert sender.rate_bps(0) == LINE.rate_bps
    assert sender.asks == (receiver.admits is not None)
    assert receiver.admits is None or receiver.admits >= 1


@every_control
def test_a_control_refuses_what_it_does_not_know(name: str) -> None:
    """A parameter that does not exist ends in one line that names it."""
    with pytest.raises(ConfigError, match="no_such_thing") as caught:
        halves(name, no_such_thing=1)
    assert "\n" not in str(caught.value)


@every_control
@given(
    fates=st.lists(st.integers(0, 3), min_size=1, max_size=60), delays=st.lists(st.integers(0, 30 * US), min_size=1, max_size=5)
)
@settings(max_examples=15, deadline=None)
def test_a_control_never_loses_a_wake_up(name: str, fates: list[int], delays: list[int]) -> None:
    """Whatever happens to the packets, all of them go in the end; a time that it names stays, and holds; again it is the same."""
    assert drive(halves(name), fates, delays) == drive(halves(name), fates, delays)


class Window(Uncontrolled):
    """As small a window control as there can be: eight packets, and half of it for each that is lost."""

    window_bytes = 8 * LINE.quantum_bytes
    acknowledges = True

    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps if not outstanding_bytes or outstanding_bytes + n_bytes <= self.window_bytes else FOREVER_PS

    def lost(self, now_ps: int, n_bytes: int, *, trimmed: bool) -> None:
        self.window_bytes //= 2


class Stuck(Window):
    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps if outstanding_bytes + n_bytes <= self.window_bytes else FOREVER_PS


class WholePackets(Window):
    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return FOREVER_PS if n_bytes != LINE.quantum_bytes else super().ready_ps(now_ps, outstanding_bytes, n_bytes)


class Unheard(Window):
    acknowledges = False


class TooLate(Window):
    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps if now_ps < US else FOREVER_PS - 1


def test_the_drive_passes_a_window() -> None:
    """A control that keeps the laws is found to do so, whatever is lost."""
    assert len(drive((Window(LINE), Window(LINE)), [0, 2, 1, 3] * 5, [9 * US])) == 20 + 10 + len(CLEAN)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Stuck, "nothing is outstanding"),
        (WholePackets, "nothing is outstanding"),
        (Unheard, "which its receiver does not give"),
        (TooLate, "as good as stuck"),
    ],
)
def test_the_drive_finds_a_broken_control(broken: type[Window], message: str) -> None:
    """One that never wakes is found, be it at the last moment or by the size of a packet, and one that waits for no answer."""
    with pytest.raises(AssertionError, match=message):
        drive((broken(LINE), broken(LINE)), [0] * 20 + [2] * 4, [30 * US])


# -- everything, in another process ----------------------------------------------------------------


def fingerprint(topology: Topology) -> str:
    """A digest of nodes, links and some routes."""
    far = topology.ranks[-1]
    routes = [topology.route(source, far, flow) for source in topology.ranks for flow in range(3)]
    return hashlib.sha256(repr((topology.nodes, topology.links, routes)).encode()).hexdigest()[:16]


def everything() -> Iterator[str]:
    """A line for each thing in the folders, which must be the same in every process."""
    for generic in GENERIC.values():
        yield f"{generic.name} {fingerprint(generic.build(generic.parameters()))}"
    for preset in PRESETS:
        yield f"{preset} {fingerprint(small(preset))}"
    for kind in kinds():
        yield f"{kind} {answers(example(kind), [number * US for number in range(40)])}"
    for name in CONTROLS:
        yield f"{name} {drive(halves(name), [0, 1, 1, 0, 2, 0, 3, 1] * 8, [0, 5 * US, 11 * US])}"
    for name, collective in ALGORITHMS:
        layout = next(layout for n in (6, *range(2, 65)) for layout in layouts_over(collective, name, n))
        schedule = schedule_for(collective, name, layout.n_ranks, 0, layout)
        yield f"{name} {collective} {hashlib.sha256(repr(schedule).encode()).hexdigest()[:16]}"


@pytest.mark.slow
def test_everything_is_the_same_in_a_process_with_other_hashes() -> None:
    """Routes, draws and schedules do not depend on Python's hash seed, which differs from process to process."""
    script = "import test_conformance as t; print(*t.everything(), sep='\\n')"
    here = os.path.dirname(__file__)
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
        printed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        assert printed.stdout.splitlines() == list(everything())
