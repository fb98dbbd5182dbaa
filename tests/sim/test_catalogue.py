"""The catalogue: every system at its own size, against the figures that are published or follow from its wiring."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import NamedTuple

import pytest

from emu.topologies import boardfly, dragonfly, torus, twisted_torus
from emu.topologies.catalogue import generic_topologies
from emu.topologies.describe import describe, scaled
from emu.topologies.extent import bisection_bps, diameter_links
from emu.topologies.fabric_file import load, load_fabric, preset_files, read_file
from emu.topologies.graph import NodeKind, Topology

GBPS = 8 * 10**9


class Figures(NamedTuple):
    """Ranks, cables (planes counted apart), what an accelerator sends in GB/s, diameter in links, bisection in GB/s."""

    n_ranks: int
    n_cables: int
    endpoint_GBps: float
    n_diameter: int
    bisection_GBps: float
    """0 where it is not known."""


CATALOGUE = {
    "dgx-a100-8": Figures(8, 8 * 6, 300, 2, 1200),
    "dgx-h100-8": Figures(8, 8 * 4, 450, 2, 1800),
    "dgx-b200-8": Figures(8, 8 * 2, 900, 2, 3600),
    "gb200-nvl72": Figures(72, 1296, 900, 2, 32_400),
    "mi300x-8": Figures(8, 28, 448, 1, 1024),
    "helios-mi455x-72": Figures(72, 72 * 36, 1800, 2, 64_800),
    "ualink-1024": Figures(1024, 4096, 400, 2, 204_800),
    "sue-tomahawk-ultra-64": Figures(64, 64 * 12, 1200, 2, 38_400),
    "cloudmatrix384": Figures(384, 5376 + 384 * 14 + 192 * 7, 392, 4, 75_264),
    "tpu-v2-256": Figures(256, 512, 248, 16, 32 * 62),
    "tpu-v3-1024": Figures(1024, 2048, 280, 32, 64 * 70),
    "tpu-v4-4x4x4": Figures(64, 192, 300, 6, 1600),
    "tpu-v4-4096": Figures(4096, 12_288, 300, 24, 512 * 50),
    "tpu-v4-4x4x8-twisted": Figures(128, 384, 300, 6, 64 * 50),
    "tpu-v5e-256": Figures(256, 512, 200, 16, 32 * 50),
    "tpu-v6e-256": Figures(256, 512, 400, 16, 32 * 100),
    "tpu-v5p-8960": Figures(8960, 26_880, 600, 32, 640 * 100),
    "tpu-v7-9216": Figures(9216, 27_648, 600, 34, 512 * 100),
    "tpu-8t-9600": Figures(9600, 28_800, 1200, 32, 800 * 200),
    "tpu-8i-boardfly-1152": Figures(1152, 3456, 1200, 7, 336 * 200),
    "ib-ndr-leafspine-64": Figures(64, 128, 50, 4, 1600),
    "ib-ndr-2048": Figures(2048, 4096, 50, 4, 51_200),
    "ib-ndr-16384": Figures(16_384, 3 * 16_384, 50, 6, 409_600),
    "superpod-h100-1024": Figures(1024, 1024 * 2 + 32 * 16 * 2, 500, 4, 25_600),
    "deepseek-mpft-16384": Figures(16_384, 3 * 16_384, 210, 6, 409_600),
    "rail-only-1024": Figures(1024, 2048, 500, 4, 25_600),
    "roce-leafspine-32": Figures(32, 64, 50, 4, 800),
    "roce-meta-24k": Figures(24_576, 24_576 * 2 + 8 * 16 * 27, 50, 6, 24_576 / 2 * 50 / 7),
    "roce-hpn-15k": Figures(15_360, 15_360 * 3 + 240 * 60, 500, 4, 16 * (7 * 60 * 50 + 64 * 25)),
    "spectrum-x-colossus": Figures(512, 3 * 512, 50, 6, 12_800),
    "uec-leafspine-8192": Figures(8192, 16_384, 100, 4, 409_600),
    "mrc-multiplane": Figures(512, 8 * (512 + 16 * 8 * 4), 100, 4, 25_600),
    "ub-mesh-64": Figures(64, 448, 14 * 28, 2, 8 * 16 * 28),
    "omnipath-100-27648": Figures(27_648, 3 * 27_648, 12.5, 6, 172_800),
    "slingshot-dragonfly-272": Figures(272, 272 + 17 * 6 + 17 * 8, 25, 5, 1900),
    "perlmutter": Figures(7168, 7168 + 14 * 496 + 91 * 20, 25, 5, 49 * 20 * 25),
    "fugaku": Figures(768, 3840 + 768, 40.8, 9 + 2, 384 * 6.8),
    "sparc-m5-32": Figures(32, 112 + 192, 162, 2, 384),
    "sparc-m6-96": Figures(96, 336 + 576, 162, 3, 1728),
    "sparc-m7-8": Figures(8, 28, 217, 1, 16 * 31),
    "sparc-m7-32": Figures(32, 64, 62, 2, 992),
    "power5-book-16": Figures(8, 12, 38, 3, 4 * 7.6),
    "power5-64": Figures(32, 80, 53.2, 5, 16 * 7.6),
    "power6-32": Figures(32, 48 + 28, 94, 3, 16 * 18.8),
    "power9-e980-16": Figures(16, 48, 246, 2, 16 * 32),
    "pcie5-box-8": Figures(8, 10, 63, 4, 63),
    "cxl2-pool": Figures(8, 8, 63, 2, 252),
    "cxl3-fabric-4096": Figures(4096, 8192, 121, 4, 247_808),
}


def n_cables(topology: Topology) -> int:
    return sum(max(1, len(link.planes_bps)) for link in topology.links) // 2


def test_every_preset_is_held_to_figures() -> None:
    """No system of a family of the catalogue goes without counts, diameter and rates to check it by."""
    files = {name: read_file(path, name) for name, path in preset_files().items()}
    systems = {
        name for name, file in files.items() if file.family and not file.endpoint
    }  # others are calibrations of one of them
    assert systems <= set(CATALOGUE) <= set(files)


@pytest.mark.parametrize(("name", "expected"), CATALOGUE.items(), ids=CATALOGUE)
def test_a_system_adds_up_to_the_published_figures(name: str, expected: Figures) -> None:
    """At its own size a system has the ranks, cables, rates, diameter and bisection of the catalogue, and routes far apart."""
    topology = load_fabric(name)
    about = describe(topology)
    found = Figures(
        about.n_ranks,
        n_cables(topology),
        about.endpoint_rate_bps[1] / GBPS,
        about.diameter_links or 0,
        (about.bisection_bps or 0) / GBPS,
    )
    assert found == pytest.approx(expected, rel=1e-6)
    assert 0 < len(topology.route(topology.ranks[0], topology.ranks[-1], 0)) <= expected.n_diameter


@pytest.mark.parametrize("name", sorted(generic_topologies()))
def test_what_a_builder_knows_is_what_a_search_finds(name: str) -> None:
    """Diameter and bisection that a builder tells for large graphs are those of its graph where both can be had."""
    generic = generic_topologies()[name]
    topology = generic.build(generic.parameters())
    known = topology.structure
    assert known.diameter_links in (None, diameter_links(topology))
    assert known.bisection_bps in (None, bisection_bps(topology))


@pytest.mark.parametrize("name", sorted(name for name in preset_files() if read_file(preset_files()[name], name).scales))
def test_what_a_preset_knows_is_what_a_search_finds(name: str) -> None:
    """The same holds of every large system at its smallest scale, where that is small enough."""
    topology = load_fabric(name, {"scale": min(read_file(preset_files()[name], name).scales, key=int)})
    assert topology.structure.diameter_links in (None, diameter_links(topology))
    found_bps = bisection_bps(topology)
    assert found_bps is None or topology.structure.bisection_bps in (None, found_bps)


GEOMETRY = {
    "tpu-": "fewer chips on a ring",
    "power9-": "drawers of fewer peers, as they were sold",
    "fugaku": "shorter rings, by the diameter",
    "slingshot-": "as many cables for fewer groups",
    "perlmutter": "whole cables",
}
"""Systems of which a smaller instance cannot keep everything, and what it lacks."""


@pytest.mark.parametrize("name", sorted(name for name in preset_files() if read_file(preset_files()[name], name).scales))
def test_a_scale_keeps_the_ratios_or_says_what_it_changes(name: str) -> None:
    """A smaller instance has the injection, bisection per rank and diameter of the whole; dragonflies have their bisection per
    rank within 11 %; what else cannot be kept are the geometries listed, and the list of scales tells it."""
    fabric = load(name)
    whole = describe(fabric.topology)
    for scale in (scale for scale in fabric.scales if int(scale) < whole.n_ranks):
        part = describe(load_fabric(name, {"scale": scale}))
        told = scaled(whole, part)
        assert (told == "all kept") != name.startswith(tuple(GEOMETRY)), told
        assert part.endpoint_rate_bps == whole.endpoint_rate_bps or name.startswith("power9-")
        share = (part.bisection_bps or 0) * whole.n_ranks / ((whole.bisection_bps or 0) * part.n_ranks)
        if name.startswith(("perlmutter", "slingshot-")):
            assert part.diameter_links == whole.diameter_links
            assert share == pytest.approx(1, rel=0.11)
        assert (f"{share:.3g} times the bisection" in told) == (abs(share - 1) > 0.005)


@pytest.mark.parametrize("name", sorted(preset_files()))
def test_hosts_without_links_inside_are_told(name: str) -> None:
    """Where accelerators of several hosts have nothing but the network between them, the sources say that what joins them in a
    host is not modelled."""
    file = read_file(preset_files()[name], name)
    is_network = file.topology.get("kind") in ("clos", "fat_tree", "dragonfly") and not file.family.startswith("boxes")
    assert (is_network and "host_size" in file.topology) == ("inside_host" in file.sources)


def test_a_bixby_for_all_pairs_of_sockets_up_to_the_ports_there_are() -> None:
    """Any two sockets of M5-32 in different groups share two switches; of M6-96 as many pairs share one as its sources say."""
    shared = {}
    for name in ("sparc-m5-32", "sparc-m6-96"):
        topology = load_fabric(name)
        joined = [{topology.links[link].target for link in out} for out in topology.out_links()[: topology.n_ranks]]
        pairs = [(a, b) for a in topology.ranks for b in range(a) if a // 8 != b // 8]
        shared[name] = Counter(len((joined[a] & joined[b]) - set(topology.ranks)) > 0 for a, b in pairs)
    assert shared == {"sparc-m5-32": {True: 384}, "sparc-m6-96": {True: 1056, False: 3168}}
    most = 16 * 15 // 2 - 4  # of the 16 sockets of a switch at least 4 are second ones of the 12 groups
    assert 36 * most == 4176 < 1056 + 3168


def test_fugaku_puts_to_a_neighbour_as_fast_as_published() -> None:
    """8 B take 0.49 us to a neighbour, of which the bytes themselves take 2 ns."""
    topology = load_fabric("fugaku", {"scale": "96"})
    assert sum(topology.links[link].latency_ps for link in topology.route(0, 1, 0)) == 490_000


def test_cloudmatrix_has_5376_links_between_its_levels() -> None:
    """336 first-level switches x 16 = 112 second-level ones x 48 links of 28 GB/s; a node's uplinks are as fast as its NPUs, and
    with its CPUs it could send 1.20 times as much."""
    topology = load_fabric("cloudmatrix384", {"plane_mode": "hashed"})
    levels = [
        link for link in topology.links if topology.nodes[link.source].kind is topology.nodes[link.target].kind is NodeKind.SWITCH
    ]
    assert len(levels) == 2 * 5376 == 2 * 336 * 16 == 2 * 112 * 48
    assert {link.rate_bps for link in levels} == {28 * GBPS}
    ports = Counter(link.source for link in levels)
    assert Counter(ports.values()) == {16: 336, 48: 112}
    npus_GBps, cpus_GBps, uplinks_GBps = 8 * 392, 4 * 160, 7 * 16 * 28
    assert npus_GBps == uplinks_GBps and round((npus_GBps + cpus_GBps) / uplinks_GBps, 2) == 1.20


@pytest.mark.parametrize("mode", ["striped", "hashed"])
def test_cloudmatrix_carries_any_shift_of_all_npus_without_contention(mode: str) -> None:
    """When every NPU sends to the one k nodes further, all lanes together load no link with more than its share."""
    topology = load_fabric("cloudmatrix384", {"plane_mode": mode} | ({"scale": "32"} if mode == "hashed" else {}))
    n = topology.n_ranks
    for shift in (8, n - 16):
        load: Counter[int] = Counter()
        for source, lane in product(topology.ranks, range(topology.router.spread)):
            load.update(topology.route(source, (source + shift) % n, lane))
        assert max(load.values()) == 1


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("sparc-m5-32", 16),
        ("sparc-m6-96", 16),
        ("ib-ndr-16384", 64),
        ("superpod-h100-1024", 64),
        ("uec-leafspine-8192", 128),
        ("omnipath-100-27648", 48),
        ("perlmutter", 64),
    ],
)
def test_switches_have_the_ports_that_are_made(name: str, most: int) -> None:
    """No switch has more ports than the product that the system is built of (NVSwitches of nodes apart)."""
    topology = load_fabric(name)
    ports = Counter(link.source for link in topology.links if topology.nodes[link.source].kind is NodeKind.SWITCH)
    assert max(ports.values()) <= most


@pytest.mark.parametrize(
    ("shape", "n_diameter"), [((16, 16), 16), ((32, 32), 32), ((8, 8, 16), 16), ((16, 16, 16), 24), ((16, 20, 28), 32)]
)
def test_diameters_of_tori_are_the_published_ones(shape: tuple[int, ...], n_diameter: int) -> None:
    """The diameter of a torus is the sum of its half dimensions, as the search finds too where it is short."""
    topology = torus.build(torus.Parameters(shape=shape))
    assert topology.structure.diameter_links == n_diameter
    if topology.n_ranks <= 1024:
        assert diameter_links(topology) == n_diameter


@pytest.mark.parametrize(("groups", "n_diameter"), [(1, 3), (2, 4), (9, 6), (36, 7)])
def test_boardfly_reaches_any_chip_over_seven_links(groups: int, n_diameter: int) -> None:
    """Groups of 32 chips reach each other over at most 7 links at the full size, and every chip has six cables."""
    topology = boardfly.build(boardfly.Parameters(groups=groups))
    assert diameter_links(topology) == n_diameter
    degrees = {len(out) for out in topology.out_links()}
    assert degrees == {6} if groups > 1 else {4, 5}


def test_a_dragonfly_takes_three_hops_between_switches() -> None:
    """Accelerators of one switch, of one group and of two are 2, 3 and at most 5 links apart; long cables are dealt evenly."""
    topology = dragonfly.build(dragonfly.Parameters())
    ports = [len(out) for out, node in zip(topology.out_links(), topology.nodes, strict=True) if node.kind is NodeKind.SWITCH]
    assert max(ports) - min(ports) <= 1
    assert [len(topology.route(0, target, 0)) for target in (1, 2)] == [2, 3]
    assert max(len(topology.route(0, target, flow)) for target in topology.ranks for flow in range(4)) == 5


@pytest.mark.parametrize("name", ["superpod-h100-1024", "ib-ndr-16384", "deepseek-mpft-16384"])
def test_static_routes_carry_any_shift_of_all_ranks(name: str) -> None:
    """By D-mod-K no uplink carries two flows when every rank sends to the one k hosts further."""
    topology = load_fabric(name, {"scale": "64"})
    for shift in (8, 16, 24, 40):
        load: Counter[int] = Counter()
        for source in range(64):
            load.update(topology.route(source, (source + shift) % 64, 0))
        assert max(load.values()) == 1


def test_traffic_across_rails_goes_over_the_node() -> None:
    """Where spines join the rails a flow takes them; where none do it goes over the node's switch and a neighbour on the rail."""

    def passed(name: str) -> list[str]:
        topology = load_fabric(name, {"scale": "64"})
        return [topology.nodes[topology.links[link].target].kind.value for link in topology.route(0, 9, 0)]

    assert passed("superpod-h100-1024") == ["switch"] * 3 + ["accelerator"]
    assert passed("rail-only-1024") == ["switch", "accelerator"] * 2


@pytest.mark.parametrize(("shape", "published"), [((4, 4, 8), 1.63), ((4, 8, 8), 1.31)])
def test_a_twist_speeds_up_all_to_all_as_published(shape: tuple[int, ...], published: float) -> None:
    """The twisted tori of TPU v4 carry a uniform all-to-all 1.63 and 1.31 times as fast as the plain ones, within 15 %, with all
    directions loaded alike, and the diameter falls.

    All nodes of a torus look alike, so a direction's load is what two neighbours send along it; the plain torus' fullest links
    carry n k / 8 messages (see the tests of routing).
    """
    plain, twisted = torus.build(torus.Parameters(shape=shape)), twisted_torus.build(twisted_torus.Parameters(shape=shape))
    spread = twisted.router.spread
    load: Counter[int] = Counter()
    for source, target, lane in product((0, 1), twisted.ranks, range(spread)):
        load.update(link % (2 * len(shape)) for link in twisted.route(source, target, lane))
    fullest = max(load.values()) / (2 * spread)
    assert max(load.values()) <= 1.02 * min(load.values())
    assert plain.n_ranks * max(shape) / 8 / fullest == pytest.approx(published, rel=0.15)
    assert (diameter_links(twisted) or 0) < (diameter_links(plain) or 0)


def test_a_whole_system_routes_in_seconds() -> None:
    """A ring over all 16,384 ranks of a three-level fat tree finds its routes by a search for each leaf, not for each rank."""
    topology = load_fabric("ib-ndr-16384")
    hops = Counter(len(topology.route(rank, (rank + 1) % 16_384, 0)) for rank in range(16_384))
    assert hops == {2: 16_384 - 512, 4: 512 - 16, 6: 16}
