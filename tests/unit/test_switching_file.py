"""Switching as users write it: files, presets and --set; the formulas for what is left out; what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from emu import cli
from emu.drivers.switching_guard import check_run
from emu.errors import ConfigError
from emu.fabric.credits import CREDIT_SHARE
from emu.fabric.port import wire_bytes
from emu.impairments.spec import parse_impairment, resolve
from emu.topologies import headroom
from emu.topologies.describe import describe
from emu.topologies.fabric_file import load, load_fabric
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.listing import list_fabrics
from emu.topologies.switching import Discipline, Marking, Recovery, Switching, Watchdog
from emu.topologies.switching_checks import check_switching
from emu.topologies.switching_file import SWITCHING_KEYS, load_switching_preset, switching_presets

GBPS = 10**9
PRESETS = tuple(switching_presets())
FAST = {"rate": "400Gbit/s", "latency": "2us"}


def switched(fabric: str = "star", **settings: str) -> Switching:
    found = load_fabric(fabric, (FAST if fabric == "star" else {}) | settings).switching
    assert found is not None
    return found


def fabric_file(tmp_path: Path, text: str, topology: str = 'kind = "star"\nlatency = "2us"') -> str:
    path = tmp_path / "lab.toml"
    path.write_text(f"[topology]\n{topology}\n{text}", encoding="utf-8")
    return str(path)


# -- what is written ---------------------------------------------------------------------------------


def test_without_a_word_there_is_no_switching() -> None:
    """A fabric has infinite buffers until its user says otherwise."""
    assert load_fabric("star").switching is None


def test_one_discipline_makes_one_class() -> None:
    """--set discipline=pause is a class "data" of priority 3 whose formulas are filled in."""
    found = switched(discipline="pause")
    (data,) = found.classes
    assert (data.name, data.priority, data.discipline, data.control) == ("data", 3, Discipline.PAUSE, "none")
    assert found.headroom_bytes > 0 and found.balancing == "ecmp" and data.marking is None


def test_every_key_of_set_lands_where_it_belongs() -> None:
    """Values given are values taken, each in its field."""
    found = switched(
        discipline="pause", buffer="16MiB", alpha="1/4", reserved="8KiB", headroom="512KiB", xon_offset="6KiB", quantum="16KiB",
        receive_buffer="2MiB", pause_response="2us", queue_pairs="4", lanes="2", link_retry="true", reorder_packets="7",
        reroute="1ms", trim_size="128", watchdog_detection="200us", watchdog_restoration="400us", recovery="go_back_n",
        kmin="100kB", kmax="400kB", pmax="0.2", timeout="5ms", weight="3", strict="true",
    )  # fmt: skip
    (data,) = found.classes
    assert found == Switching(
        classes=(data,), quantum_bytes=16384, buffer_bytes=16 << 20, alpha=Fraction(1, 4), reserved_bytes=8192,
        headroom_bytes=1 << 19, xon_offset_bytes=6144, receive_buffer_bytes=2 << 20, pause_response_ps=2_000_000,
        trim_bytes=128, watchdog=Watchdog(detection_ps=200_000_000, restoration_ps=400_000_000), n_queue_pairs=4, n_lanes=2,
        link_retry=True, reorder_packets=7, reroute_ps=10**9,
    )  # fmt: skip
    assert data.marking == Marking(kmin_bytes=100_000, kmax_bytes=400_000, pmax=Fraction(1, 5))
    assert (data.recovery, data.timeout_ps, data.weight, data.strict) == (Recovery.GO_BACK_N, 5 * 10**9, 3, True)


def test_classes_of_a_file_share_what_the_table_says(tmp_path: Path) -> None:
    """A class's own key wins over [switching], and --set over both."""
    text = """
        [switching]
        discipline = "pause"
        timeout = "2ms"
        quantum = "8KiB"
        [[classes]]
        name = "bulk"
        priority = 3
        weight = 2
        congestion_control = "dcqcn"
        control_parameters = { set = "paper", g = "1/128", cnp_interval_ps = "20us" }
        [[classes]]
        name = "urgent"
        priority = 5
        strict = true
        discipline = "drop"
    """
    path = fabric_file(tmp_path, text)
    found = load_fabric(path).switching
    assert found is not None
    bulk, urgent = found.classes
    assert (bulk.discipline, urgent.discipline) == (Discipline.PAUSE, Discipline.DROP)
    assert (urgent.strict, urgent.recovery, bulk.weight) == (True, Recovery.GO_BACK_N, 2)
    assert bulk.timeout_ps == urgent.timeout_ps == 2 * 10**9
    assert bulk.control_parameters == (("cnp_interval_ps", 20_000_000), ("g", Fraction(1, 128)), ("set", "paper"))
    changed = load_fabric(path, {"timeout": "3ms"}).switching
    assert changed is not None and {c.timeout_ps for c in changed.classes} == {3 * 10**9}


def test_parameters_by_set_are_text() -> None:
    """key=value pairs behind --set become numbers, ratios and words; units are taken where the name ends in one."""
    found = switched(discipline="pause", congestion_control="dcqcn", control_parameters="set=hpcc,g=1/256,rate_ai_bps=50Mbit/s")
    assert found.classes[0].control_parameters == (("g", Fraction(1, 256)), ("rate_ai_bps", 50_000_000), ("set", "hpcc"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"congestion_control": "nscc"}, ("nscc", ())),
        ({"congestion_control": "nscc", "control_parameters": "gamma=1/2"}, ("nscc", (("gamma", Fraction(1, 2)),))),
        ({"congestion_control": "dcqcn"}, ("dcqcn", (("set", "nvidia"),))),
        ({"control_parameters": ""}, ("dcqcn", ())),
    ],
)
def test_another_control_leaves_the_presets_parameters_behind(
    settings: dict[str, str], expected: tuple[str, tuple[tuple[str, object], ...]]
) -> None:
    """They were written for the preset's; the same control keeps them, and they can be emptied."""
    found = switched(switching="roce-dcqcn", **settings).classes[0]
    assert (found.control, found.control_parameters) == expected
    sources = dict(load_fabric("star", FAST | {"switching": "roce-dcqcn"} | settings).sources)
    assert ("switching control_parameters" in sources) == (expected == ("dcqcn", (("set", "nvidia"),)))


def test_another_balancing_leaves_the_files_parameters_behind(tmp_path: Path) -> None:
    """In a file over a preset, and by --set over a file; of classes each for itself."""
    text = """
        [switching]
        preset = "roce-dcqcn"
        balancing = "planned"
        balancing_parameters = { paths = "a0 s0 a1" }
        [[classes]]
        name = "data"
        priority = 3
        discipline = "pause"
        congestion_control = "none"
        [[classes]]
        name = "more"
        priority = 4
        discipline = "pause"
        congestion_control = "dcqcn"
        control_parameters = { set = "hpcc" }
    """
    path = fabric_file(tmp_path, text)
    found = load_fabric(path).switching
    assert found is not None and found.balancing_parameters == (("paths", "a0 s0 a1"),)
    assert [c.control_parameters for c in found.classes] == [(), (("set", "hpcc"),)]
    other = load_fabric(path, {"balancing": "ecmp", "congestion_control": "nscc"}).switching
    assert other is not None and other.balancing_parameters == ()
    assert [(c.control, c.control_parameters) for c in other.classes] == [("nscc", ()), ("nscc", ())]


def test_a_list_of_ways_reaches_the_balancing_as_text(tmp_path: Path) -> None:
    """balancing_parameters pass through; a list of texts is joined by semicolons."""
    text = """
        [switching]
        discipline = "drop"
        balancing = "planned"
        balancing_parameters = { paths = ["a0 s0 a1", "a1 s0 a0"] }
    """
    found = load_fabric(fabric_file(tmp_path, text)).switching
    assert found is not None and found.balancing_parameters == (("paths", "a0 s0 a1;a1 s0 a0"),)


def test_a_file_that_lists_its_links_takes_switching_by_set(tmp_path: Path) -> None:
    """--set has no topology to change there, but a switching."""
    path = tmp_path / "pair.toml"
    path.write_text(
        '[[nodes]]\nname = "a0"\nkind = "accelerator"\n[[nodes]]\nname = "a1"\nkind = "accelerator"\n'
        '[[links]]\nbetween = ["a0", "a1"]\nrate = "50GB/s"\nlatency = "1us"\n',
        encoding="utf-8",
    )
    found = load_fabric(str(path), {"discipline": "credit"}).switching
    assert found is not None and found.classes[0].discipline is Discipline.CREDIT


def test_a_storm_is_the_node_s(tmp_path: Path) -> None:
    """[[storms]] marks an accelerator, and is refused where nothing pauses."""
    storm = '[[storms]]\nnode = "a1"\nstart = "10us"\nduration = "1ms"\n'
    nodes = load_fabric(fabric_file(tmp_path, storm + '[switching]\npreset = "roce-pfc"')).nodes
    assert [node.pause_storm for node in nodes[:3]] == [None, (10_000_000, 10**9), None]
    with pytest.raises(ConfigError, match=r"storm at a1: needs an accelerator, and a class with discipline = pause"):
        load(fabric_file(tmp_path, storm))


@pytest.mark.parametrize(("name", "discipline"), [("nvlink", "nvlink"), ("ualink", "ualink")])
def test_link_level_names_are_credits_with_retry(name: str, discipline: str) -> None:
    """nvlink and ualink are credits on links that repeat what they damaged, with nothing to recover end to end."""
    found = switched(discipline=discipline)
    assert (found.classes[0].discipline, found.classes[0].recovery, found.link_retry) == (Discipline.CREDIT, Recovery.NONE, True)


def test_no_key_of_switching_is_a_topology_s() -> None:
    """The same word never means two things behind --set."""
    from emu.topologies.catalogue import generic_topologies

    for generic in generic_topologies().values():
        assert not set(generic.parameters.model_fields) & {"switching", *SWITCHING_KEYS}


# -- presets -----------------------------------------------------------------------------------------


def test_the_promised_switchings_are_there() -> None:
    """The names that the documentation gives are shipped, and emu fabrics lists them."""
    roce = {"roce-pfc", "roce-dcqcn", "roce-tuned", "roce-lossy", "meta-cts"}
    promised = roce | {"infiniband", "infiniband-adaptive", "ultra-ethernet", "nvlink", "drop"}
    assert promised == set(PRESETS) == {entry.name for entry in list_fabrics() if entry.kind == "switching"}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("fabric", ["star", "ib-ndr-leafspine-64", "torus"])
def test_a_preset_fits_any_fabric(name: str, fabric: str) -> None:
    """Its formulas fill in what its own checks, its controls and its balancing accept, and its sources are the fabric's."""
    topology = load_fabric(fabric, {"switching": name})
    check_run(topology, {})
    assert topology.switching is not None
    assert set(dict(topology.sources)) >= {f"switching {key}" for key in load_switching_preset(name, where=name).switching}
    assert describe(topology).switching


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    """Each key is told where it comes from, in a sentence."""
    preset = load_switching_preset(name, where=name)
    sources = dict(preset.sources)
    assert set(preset.switching) == set(sources)
    assert all(len(text.split()) >= 3 for text in sources.values())


def test_keys_override_a_preset_and_its_sources() -> None:
    """--set beside switching=NAME wins, and a number that was changed is not the source's any more."""
    topology = load_fabric("star", {"switching": "roce-dcqcn", "alpha": "2", "kmin": "400kB"})
    assert topology.switching is not None and topology.switching.alpha == 2
    assert topology.switching.classes[0].marking == Marking(kmin_bytes=400_000, kmax_bytes=3_200_000, pmax=Fraction(1, 5))
    assert not {"switching alpha", "switching kmin"} & set(dict(topology.sources))


def test_another_preset_by_set_starts_anew(tmp_path: Path) -> None:
    """--set switching=NAME replaces all of a file's switching; none takes it away."""
    path = fabric_file(tmp_path, '[switching]\npreset = "roce-pfc"\nalpha = "1/2"')
    other = load_fabric(path, {"switching": "infiniband"}).switching
    assert other is not None and other.alpha == Fraction(1, 8) and other.classes[0].discipline is Discipline.CREDIT
    assert load_fabric(path, {"switching": "none"}).switching is None


# -- formulas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gbps", "quanta"), [(1, 67), (10, 67), (25, 80), (100, 394), (200, 453), (300, 679), (400, 905), (1600, 905)]
)
def test_pause_quanta_are_the_table_s(gbps: int, quanta: int) -> None:
    """The published rates have their published quanta; between them it is linear."""
    assert headroom.pause_quanta(gbps * GBPS) == quanta


def test_headroom_is_round_trip_response_and_two_packets() -> None:
    """At 400 Gbit/s and 1 us a link: 2 us + 1.1584 us at 50 GB/s, and two packets of 16 KiB."""
    found = switched(discipline="pause", quantum="16KiB")
    assert found.pause_response_ps == 905 * 512 * 10**12 // (400 * GBPS) == 1_158_400
    assert found.headroom_bytes == (2_000_000 + 1_158_400) * 50 // 1000 + 2 * 16384


def test_the_largest_need_counts(tmp_path: Path) -> None:
    """One long cable sets the headroom of all ports."""
    long = '[switching]\npreset = "roce-pfc"\nquantum = "4KiB"\n[[overrides]]\nlinks = "a3->s0"\nlatency = "11us"'
    found = load_fabric(fabric_file(tmp_path, long)).switching
    assert found is not None
    assert found.headroom_bytes == (12_000_000 + 1_158_400) * 50 // 1000 + 2 * 4096


def test_credits_cover_their_way_back() -> None:
    """Seven eighths of the credits, as one eighth waits to be sent, are a round trip, two packets and an MTU at least."""
    found = switched(discipline="credit", quantum="16KiB")
    need = 2_000_000 * 50 // 1000 + 2 * 16384 + 4096
    assert 0 <= found.classes[0].credit_bytes * 7 - need * 8 < 7
    assert headroom.CREDIT_SHARE == CREDIT_SHARE


def test_packets_are_counted_as_ports_count_them() -> None:
    """Payload and a header for every MTU."""
    link = load_fabric("ib-ndr-leafspine-64").links[0]
    for payload in (1, 4096, 4097, 65536):
        assert link.wire_bytes(payload) == wire_bytes(link, payload)


@pytest.mark.parametrize(
    ("gbps", "kmin", "kmax", "pmax"),
    [
        (100, 400_000, 1_600_000, "1/5"),
        (200, 300_000, 1_200_000, "4/5"),
        (400, 800_000, 3_200_000, "1/5"),
        (800, 1_600_000, 6_400_000, "1/5"),
    ],
)
def test_marking_follows_the_rate(gbps: int, kmin: int, kmax: int, pmax: str) -> None:
    """DCQCN's thresholds are the published ones by rate; 800 Gbit/s has twice those of 400."""
    found = switched(rate=f"{gbps}Gbit/s", discipline="pause", congestion_control="dcqcn").classes[0]
    assert found.marking == Marking(kmin_bytes=kmin, kmax_bytes=kmax, pmax=Fraction(pmax))


@pytest.mark.parametrize(
    ("settings", "quantum"),
    [
        ({"discipline": "pause"}, 16384),
        ({"discipline": "pause", "latency": "1us"}, 8192),
        ({"discipline": "pause", "latency": "100us"}, 65536),
        ({"discipline": "pause", "latency": "100us", "kmin": "100kB", "kmax": "1MB"}, 16384),
        ({"discipline": "credit", "latency": "100us", "credits": "100kB"}, 8192),
        ({"discipline": "drop", "latency": "100us", "buffer": "2MiB"}, 32768),
        ({"discipline": "pause", "mtu": "1500", "latency": "2us"}, 24000),
        ({"discipline": "pause", "rate": "1MB/s"}, 4096),
    ],
)
def test_the_quantum_resolves_the_thresholds(settings: dict[str, str], quantum: int) -> None:
    """The largest MTU x 2^n within 1/8 of round trip, credits and alpha x buffer, 1/4 of kmin and 64 KiB."""
    assert switched(**settings).quantum_bytes == quantum


def test_the_round_trip_is_that_of_the_longest_way() -> None:
    """A leaf-spine's is over the spine, a torus's half way round."""
    assert headroom.longest_round_trip_ps(load_fabric("clos", {"latency": "1us"})) == 8_000_000
    assert headroom.longest_round_trip_ps(load_fabric("torus", {"shape": "4x4", "latency": "1us"})) == 8_000_000


def test_packets_that_overtake_are_waited_for() -> None:
    """Flows that stay together ask at once; sprayed ones after two round trips' worth of packets."""
    assert switched(switching="roce-lossy").reorder_packets == 0
    sprayed = switched(switching="ultra-ethernet")
    assert sprayed.reorder_packets == 2 * 200_000 // sprayed.quantum_bytes


def test_a_buffer_is_a_tomahawk_s_share() -> None:
    """64 ports of 800 Gbit/s have 165,660,324 bytes, and fewer ports their part of it."""
    assert switched(discipline="drop", ranks="64", rate="800Gbit/s").buffer_bytes == 165_660_324
    assert switched(discipline="drop", ranks="8", rate="800Gbit/s").buffer_bytes == 165_660_324 // 8


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discipline": "pause", "bufer": "1MiB"}, r"^--set: unknown key 'bufer' \(did you mean 'buffer'\?\)"),
        ({"discipline": "paus"}, r"^--set: discipline = 'paus': must be 'drop', 'pause'"),
        ({"buffer": "16MiB"}, r"^--set: buffer .*discipline is missing; add --set switching=PRESET .*roce-pfc"),
        ({"switching": "roce-dcqn"}, r"^--set: unknown switching 'roce-dcqn' \(did you mean 'roce-dcqcn'\?\)"),
        ({"switching": "none", "alpha": "1"}, r"^--set switching=none: alpha would do nothing"),
        ({"discipline": "pause", "headroom": "100KiB"}, r"headroom = 102400 B is too little .* need 190688 B"),
        ({"discipline": "pause", "buffer": "1MiB"}, r"buffer = 1048576 B is too little: the 8 ports of s0 need \d+ B"),
        ({"discipline": "drop", "buffer": "48KiB"}, r"buffer = 49152 B is too little: .* a packet within alpha"),
        ({"discipline": "drop", "alpha": "0"}, r"^--set: alpha = '0': must be more than 0"),
        ({"discipline": "drop", "buffer": "16"}, r"buffer = 16 B is too little"),
        ({"discipline": "drop", "buffer": "16M"}, r"^--set: buffer: '16M': 'M' is not a unit of size"),
        ({"discipline": "drop", "kmin": "2MB", "kmax": "1MB"}, r"class data: kmin = 2000000 B must be less than kmax = 1000000"),
        ({"discipline": "drop", "kmin": "1MB", "kmax": "2MB", "pmax": "1.5"}, r"pmax = '1.5': must be more than 0, at most 1"),
        ({"discipline": "drop", "pmax": "0"}, r"^--set: pmax = '0': must be more than 0, at most 1, or auto"),
        ({"discipline": "drop", "quantum": "0"}, r"^--set: quantum = '0': must be at least 1, or auto"),
        ({"discipline": "drop", "trims": "true", "trim_size": "5000"}, r"trim_size = 5000 B; use 1 to 4096 B, the smallest MTU"),
        ({"discipline": "drop", "priority": "9"}, r"priority is of one class; write it in \[\[classes\]\] .* 0 to 7"),
        ({"discipline": "pause", "watchdog_restoration": "1ms"}, r"watchdog_restoration without watchdog_detection does nothing"),
        ({"discipline": "drop", "watchdog_detection": "1ms"}, r"no class has discipline = pause; leave watchdog_detection out"),
        ({"discipline": "credit", "quantum": "64KiB", "credits": "32KiB"}, r"credits = 32768 B let no packet of 65536 B go"),
        ({"discipline": "drop", "recovery": "none"}, r"recovery = none never sends them again"),
        (
            {"discipline": "pause", "recovery": "none", "watchdog_detection": "1ms", "watchdog_restoration": "1ms"},
            r"the watchdog drops packets, recovery = none never sends them again",
        ),
        ({"discipline": "pause", "trims": "true"}, r"trims = true with discipline = pause"),
        ({"discipline": "drop", "quantum": "1KiB"}, r"quantum = 1024 B is less than the MTU; use 4096 B"),
        ({"discipline": "drop", "timeout": "1us"}, r"timeout = 1 us is over before an answer can come; use more than 4.328 us"),
        ({"discipline": "drop", "latency": "1ps"}, r"link a0->s0: latency = 0; packets that queue need at least 1ps"),
        ({"discipline": "drop", "queue_pairs": "65"}, r"queue_pairs = '65': must be 1 to 64"),
        ({"discipline": "drop", "receive_buffer": "1KiB"}, r"receive_buffer = 1024 B is less than a packet"),
        ({"discipline": "pause", "receive_buffer": "64KiB"}, r"receive_buffer = 65536 B must hold the headroom"),
        ({"discipline": "drop", "congestion_control": "dcqnc"}, r"'dcqnc' is not known \(did you mean 'dcqcn'\?\); there are .*"),
        ({"discipline": "drop", "balancing": "base"}, r"balancing = 'base': .*base.py has no function 'build'"),
        ({"discipline": "drop", "balancing": "no_such_lab:build"}, r"cannot be imported"),
        ({"switching": "ultra-ethernet", "reorder_packets": "0"}, r"reorder_packets = 0 takes each packet that spray lets"),
        ({"discipline": "drop", "control_parameters": "g"}, r"'g' must be key=value"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_line(settings: dict[str, str], message: str) -> None:
    """The complaint names the key, the value, what is needed and what to write."""
    with pytest.raises(ConfigError, match=message) as caught:
        load("star", FAST | settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[switching]\nbufer = "1MiB"', r"lab.toml: \[switching\]: unknown key 'bufer' \(did you mean 'buffer'\?\)"),
        ('[switching]\npreset = "roce"', r"unknown switching 'roce'"),
        ('[switching]\npriority = 9', r"lab.toml: \[switching\]: priority is of one class; write it in \[\[classes\]\]: 0 to 7"),
        ('[[classes]]\nname = "x"\npriority = 8\ndiscipline = "drop"', r"\[\[classes\]\] number 1: priority = '8': must be 0"),
        ('[[classes]]\nname = "x"\npriority = 1', r"\[\[classes\]\] number 1: discipline is missing"),
        (
            '[switching]\ndiscipline = "drop"\n[[classes]]\nname = "x"\npriority = 1\n[[classes]]\nname = "y"\npriority = 1',
            r"two classes have priority 1",
        ),
        ('[switching]\ndiscipline = "drop"\ncontrol_parameters = { g = { a = 1 } }', r"neither a number, nor text"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_told_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    """The file, the table and the key are named."""
    with pytest.raises(ConfigError, match=message):
        load(fabric_file(tmp_path, text))


def test_pauses_and_credits_need_a_way_back() -> None:
    """A ring of one-way links can drop, but nobody could pause it."""
    ring = load_fabric("ring", {"ranks": "4"})
    one_way = replace(ring, links=tuple(link for link in ring.links if (link.target - link.source) % 4 == 1))
    for discipline, message in (("pause", "no way back for its pauses"), ("credit", "no way back for its credits")):
        with pytest.raises(ConfigError, match=message):
            check_switching(replace(one_way, switching=switched(discipline=discipline)), where="ring")
    check_switching(replace(one_way, switching=switched(discipline="drop")), where="ring")


def guarded(topology: Topology, *specs: str) -> None:
    check_run(topology, resolve([parse_impairment(spec) for spec in specs], topology))


def test_a_run_whose_losses_nobody_repairs_is_refused() -> None:
    """loss on a link needs a recovery, or links that repeat."""
    with pytest.raises(ConfigError, match=r"loss on a0->s0: class data has recovery = none"):
        guarded(load_fabric("star", {"discipline": "pause"}), "a0->s0=loss,probability=1e-3")
    guarded(load_fabric("star", {"discipline": "pause", "recovery": "go_back_n"}), "a0->s0=loss,probability=1e-3")
    guarded(load_fabric("star", {"discipline": "nvlink"}), "a0->s0=loss,probability=1e-3")


def test_delays_that_headroom_does_not_cover_are_refused() -> None:
    """Added latency needs headroom of its own, and jitter a bound; then it passes."""
    topology = load_fabric("star", {"discipline": "pause"})
    with pytest.raises(ConfigError, match=r"headroom = 124304 B is too little .* use 624304 B"):
        guarded(topology, "a0->s0=latency,added=10us")
    with pytest.raises(ConfigError, match=r"jitter without a bound on a0->s0"):
        guarded(topology, "a0->s0=jitter,distribution=pareto,mean=1us,alpha=3")
    roomy = load_fabric("star", {"discipline": "pause", "headroom": "624304"})
    guarded(roomy, "a0->s0=latency,added=10us")
    guarded(roomy, "a0->s0=jitter,distribution=uniform,bound=10us")


def test_parameters_that_a_control_does_not_have_are_refused() -> None:
    """Controls and policies are asked before anything starts."""
    for settings in ({"congestion_control": "dcqcn", "control_parameters": "gg=1"}, {"balancing_parameters": "gap_ps=1"}):
        with pytest.raises(ConfigError, match=r"gg|gap_ps"):
            check_run(load_fabric("star", {"discipline": "drop", **settings}), {})


def test_accelerators_set_the_adapter_s_rate() -> None:
    """Thresholds by rate go by the accelerators' links, not by the spines'."""
    topology = load_fabric("clos", {"uplink_rate": "1600Gbit/s", "rate": "400Gbit/s"})
    assert topology.nodes[0].kind is NodeKind.ACCELERATOR
    assert headroom.access_rate_bps(topology) == 400 * GBPS


def test_emu_fabrics_describes_a_switching(capsys: pytest.CaptureFixture[str]) -> None:
    """emu fabrics NAME prints a preset of switching with its sources, and a fabric with what formulas filled in."""
    assert cli.main(["fabrics", "roce-dcqcn"]) == 0
    preset = capsys.readouterr().out
    assert "--set switching=roce-dcqcn" in preset and "SIGCOMM 2015" in preset
    assert cli.main(["fabrics", "star", "--set", "switching=roce-pfc", "--set", "rate=400Gbit/s"]) == 0
    assert "of headroom, resumes 2.93 KiB below the threshold, obeyed after 1.158 us" in capsys.readouterr().out


def test_a_fabric_without_links_has_nothing_to_switch() -> None:
    """A ring of one rank works without switching, and is refused with it, however it was made."""
    alone = load_fabric("ring", {"ranks": "1"})
    assert alone.links == ()
    with pytest.raises(ConfigError, match=r"^ring: a fabric without links has nothing to switch; use 2 ranks or more"):
        load("ring", {"ranks": "1", "discipline": "pause"})
    with pytest.raises(ConfigError, match=r"^mine: a fabric without links has nothing to switch"):
        check_switching(replace(alone, switching=switched(discipline="pause")), where="mine")
