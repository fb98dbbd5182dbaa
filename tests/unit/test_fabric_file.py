"""Fabric files: what users write is built exactly, or refused in one line that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from emu.errors import ConfigError
from emu.topologies.fabric_file import Fabric, load, load_fabric
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.listing import list_fabrics

LISTED = """
description = "two accelerators and a switch"
calibration = "measured"
[[nodes]]
name = "left"
kind = "accelerator"
drain_rate = "1GB/s"
[[nodes]]
name = "right"
kind = "accelerator"
[[nodes]]
name = "sw"
kind = "switch"
[[links]]
between = ["left", "sw"]
rate = "400Gbit/s"
latency = "1us"
mtu = 1024
header = 26
planes = [1, 3]
window = "64KiB"
[[links]]
from = "sw"
to = "right"
rate = "1GB/s"
latency = 0
[[links]]
from = "right"
to = "sw"
rate = "2GB/s"
latency = "5ns"
[[links]]
between = ["right", "sw"]
rate = "3GB/s"
latency = "5ns"
suffix = "#1"
[sources]
rate = "measured in 2024"
"""

STAR = """
[topology]
kind = "star"
ranks = 4
rate = "50GB/s"
planes = [1, 1]
"""


def fabric(tmp_path: Path, text: str, settings: dict[str, str] | None = None) -> Fabric:
    path = tmp_path / "lab.toml"
    path.write_text(text, encoding="utf-8")
    return load(str(path), settings or {})


def by_name(topology: Topology) -> dict[str, tuple[int, int]]:
    return {link.name: (link.rate_bps, link.latency_ps) for link in topology.links}


def test_listed_nodes_and_links_are_built_as_written(tmp_path: Path) -> None:
    """A listing gives those nodes and links, one or both directions each, with rates of their own."""
    topology = fabric(tmp_path, LISTED).topology
    assert [(node.name, node.kind, node.drain_rate_bps) for node in topology.nodes] == [
        ("left", NodeKind.ACCELERATOR, 8 * 10**9),
        ("right", NodeKind.ACCELERATOR, None),
        ("sw", NodeKind.SWITCH, None),
    ]
    assert by_name(topology) == {
        "left->sw": (400 * 10**9, 1_000_000),
        "sw->left": (400 * 10**9, 1_000_000),
        "sw->right": (8 * 10**9, 0),
        "right->sw": (16 * 10**9, 5_000),
        "right->sw#1": (24 * 10**9, 5_000),
        "sw->right#1": (24 * 10**9, 5_000),
    }
    first = topology.links[0]
    assert (first.mtu_bytes, first.header_bytes, first.window_bytes) == (1024, 26, 65536)
    assert first.planes_bps == (100 * 10**9, 300 * 10**9)
    assert topology.ranks == (0, 1)
    assert (topology.name, topology.calibration) == ("lab", "measured")
    assert topology.sources == (("rate", "measured in 2024"),)


def test_a_listing_without_a_description_is_counted(tmp_path: Path) -> None:
    """What the user does not describe is told in figures; a topology's own words stay where a file has none."""
    listed = fabric(tmp_path, LISTED.replace('description = "two accelerators and a switch"', "")).topology
    assert listed.description == "2 x accelerator, 1 x switch; 6 listed links"
    assert fabric(tmp_path, LISTED).topology.description == "two accelerators and a switch"
    assert fabric(tmp_path, STAR).topology.description == "4 accelerators on one switch"


def test_a_file_may_set_a_topology(tmp_path: Path) -> None:
    """A file that names a topology gets it with its parameters, and --set overrides them."""
    assert load_fabric("star", {"ranks": "4"}).links == fabric(tmp_path, '[topology]\nkind = "star"\nranks = 4').topology.links
    assert fabric(tmp_path, STAR, {"ranks": "6"}).topology.n_ranks == 6


def test_overrides_change_the_links_they_match(tmp_path: Path) -> None:
    """An override changes what it says of the links it matches, planes in proportion; later ones win."""
    every = '[[overrides]]\nlinks = "a*->s0"\nrate = "10GB/s"\n'
    one = '[[overrides]]\nlinks = "a3->s0"\nrate = "5GB/s"\nlatency = "9us"\n'
    links = {link.name: link for link in fabric(tmp_path, STAR + every + one).topology.links}
    assert links["a0->s0"].rate_bps == 80 * 10**9
    assert links["a0->s0"].planes_bps == (40 * 10**9,) * 2
    assert (links["a3->s0"].rate_bps, links["a3->s0"].latency_ps) == (40 * 10**9, 9_000_000)
    assert links["s0->a3"].rate_bps == 400 * 10**9


def test_impairments_are_kept_as_specs(tmp_path: Path) -> None:
    """Impairments of a file come out as the specs that --impair takes."""
    text = STAR + '[[impairments]]\nlinks = "a3->s0"\nkind = "loss"\npackets = [3, 7]\ntimeout = "1ms"\n'
    assert fabric(tmp_path, text).impairments == ("a3->s0=loss,packets=3+7,timeout=1ms",)


def test_a_generic_topology_takes_settings() -> None:
    """The documented leaf-spine example builds 64 accelerators with uplinks of four accelerators each."""
    settings = {"leaves": "4", "spines": "4", "accelerators_per_leaf": "16", "rate": "50GB/s", "latency": "1us"}
    topology = load_fabric("clos", settings | {"oversubscription": "1"})
    assert topology.n_ranks == 64
    assert by_name(topology)["s3->s7"] == (1600 * 10**9, 1_000_000)


def test_a_function_of_a_users_module_is_a_fabric() -> None:
    """``module:function`` is taken wherever a topology's name is."""
    assert load_fabric("emu.topologies.ring:build", {"ranks": "3"}).n_ranks == 3


def test_the_list_names_presets_then_topologies() -> None:
    """Every listing has a name and one line; presets come first."""
    listings = list_fabrics()
    assert [listing.kind for listing in listings] == sorted(listing.kind for listing in listings)
    assert all(listing.description and "\n" not in listing.description for listing in listings)
    assert "star" in {listing.name for listing in listings}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx-h10-8", r"unknown fabric 'dgx-h10-8' \(did you mean 'dgx-h100-8'\?\); use a name that 'emu fabrics' lists"),
        ("toruss", "did you mean 'torus'"),
        ("nowhere/lab.toml", r"nowhere/lab\.toml: cannot be read"),
        ("no_such_lab:build", "cannot be imported"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name: str, message: str) -> None:
    """A name that is no fabric is a ConfigError with the nearest name and what there is."""
    with pytest.raises(ConfigError, match=message):
        load(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('rate = "400Gbit/s"', 'rate = "400Gbit"', r"\[\[links\]\] number 1: rate.*'Gbit' is not a unit"),
        ('rate = "400Gbit/s"', "rate = 400", "number 1: rate: '400' has no unit"),
        ('rate = "400Gbit/s"', 'rate = "0GB/s"', "number 1: rate.*more than 0"),
        ('rate = "400Gbit/s"', "", "number 1: 'rate' is missing"),
        ("mtu = 1024", "mtuu = 1024", r"number 1: unknown key 'mtuu' \(did you mean 'mtu'\?\)"),
        ("mtu = 1024", "mtu = 0", "number 1: mtu = '0': must be at least 1"),
        ('window = "64KiB"', "window = 0", "number 1: window = '0': must be at least 1"),
        ("planes = [1, 3]", "planes = [1, 0]", "number 1: planes"),
        ('["left", "sw"]', '["left", "sv"]', r"number 1: there is no node 'sv' \(did you mean 'sw'\?\); add it"),
        ('["left", "sw"]', '["left", "left"]', "left->left joins a node to itself"),
        ('["left", "sw"]', '["left"]', "number 1: between.1"),
        ('from = "sw"\n', "", "number 2: give either between"),
        ('suffix = "#1"', "", "two links are called 'sw->right'; give parallel links a suffix"),
        ("[sources]", '[[nodes]]\nname = "sw"\nkind = "switch"\n[sources]', "two nodes are called 'sw'"),
        ('kind = "switch"', 'kind = "swich"', r"\[\[nodes\]\] number 3: kind = 'swich': must be .*'switch'"),
        ('kind = "accelerator"', 'kind = "cpu"', "no accelerator; at least one node needs kind"),
        (
            'calibration = "measured"',
            'calibrated = "measured"',
            r"unknown key 'calibrated' \(did you mean 'calibration'\?\)",
        ),
        ('calibration = "measured"', "calibration = measured", r"not TOML: .*\(at line 3, column 15\)"),
        ("[sources]", '[topology]\nkind = "star"\n[sources]', "both"),
        (
            "[sources]",
            '[[overrides]]\nlinks = "left->sv"\n[sources]',
            r"number 1: no link matches 'left->sv' \(did you",
        ),
        ("[sources]", '[[overrides]]\nlinks = "*"\nrte = "1GB/s"\n[sources]', "did you mean 'rate'"),
        ("[sources]", '[[impairments]]\nlinks = "*"\n[sources]', "impairments.* number 1: 'kind' is missing"),
        ("[sources]", '[[impairments]]\nlinks = "a,b"\nkind = "none"\n[sources]', "links = 'a,b' has a ','"),
        (
            'calibration = "measured"',
            r'calibration = "x\n# Avg bus bandwidth : 9"',
            "calibration.*not one line of printable text",
        ),
        ('name = "left"', r'name = "le\u001b[31mft"', "number 1: name.*is not a name"),
        ('name = "left"', 'name = "a->b"', "number 1: name.*is not a name; .* no '->'"),
        ("planes = [1, 3]", f"planes = [{'9' * 5000}]", "not TOML: .*limit"),
        ("planes = [1, 3]", f"planes = {'[' * 5000}{']' * 5000}", "not TOML: .*recursion"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Each mistake in a file is a ConfigError of one line with the file, the place, the value and the fix."""
    assert old in LISTED
    text = LISTED.replace(old, new) if 'kind = "cpu"' in new else LISTED.replace(old, new, 1)
    with pytest.raises(ConfigError, match=message) as caught:
        fabric(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "lab.toml"))
    assert "\n" not in str(caught.value)


def test_a_graph_in_two_parts_is_refused(tmp_path: Path) -> None:
    """A node that cannot be reached, or cannot answer, is a ConfigError that names it."""
    lonely = LISTED + '\n[[nodes]]\nname = "far"\nkind = "accelerator"\n'
    one_way = lonely + '[[links]]\nfrom = "sw"\nto = "far"\nrate = "1GB/s"\nlatency = "1us"\n'
    lonely, one_way = (text.replace("[sources]\n" + 'rate = "measured in 2024"\n', "") for text in (lonely, one_way))
    with pytest.raises(ConfigError, match="no way from left to far"):
        fabric(tmp_path, lonely)
    with pytest.raises(ConfigError, match="no way from far to left"):
        fabric(tmp_path, one_way)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "says no fabric"),
        ("[topology]\nranks = 4", r"\[topology\] has no kind; use one of boardfly, clos"),
        ('[topology]\nkind = "tree"', "unknown topology 'tree'"),
        ('[topology]\nkind = "star"\nranks = 0', "ranks = '0': must be 1 to 4096"),
        ('[topology]\nkind = "star"\nlatency = 5', "latency: '5' has no unit"),
        ('[topology]\nkind = "clos"\noversubscription = 2\nuplink_rate = "1GB/s"', "twice"),
        ('[topology]\nkind = "torus"\nshape = [1000, 1000]', "1000000 accelerators; use 1 to 200000"),
        ('topology = "star"', "topology = 'star': must be a valid dictionary"),
        ('[topology]\nkind = "star"\n[scales]\nsmall = { ranks = 4 }', "'small': a scale is called by its number of ranks"),
    ],
)
def test_a_wrong_topology_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A mistake in [topology] is told with the file, the key and the fix."""
    with pytest.raises(ConfigError, match=message) as caught:
        fabric(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "lab.toml"))


def test_settings_need_parameters(tmp_path: Path) -> None:
    """--set on a file that lists its links is refused, for it has no parameters."""
    with pytest.raises(ConfigError, match=r"^--set ranks=4: .* lists its links"):
        fabric(tmp_path, LISTED, {"ranks": "4"})
