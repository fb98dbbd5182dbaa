"""Drawings: every fabric finds places that show its structure, and files are written or refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu import cli
from emu.drawing.layout import places
from emu.drawing.picture import legend, picture
from emu.topologies import boardfly, clos, dragonfly, rails, star, torus
from emu.topologies.catalogue import Generic, generic_topologies
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import NodeKind, Topology

GENERIC = generic_topologies()


def heights(topology: Topology, first: int, n: int) -> set[float]:
    return {round(y, 6) for _, y in places(topology)[first : first + n]}


@pytest.mark.parametrize("generic", GENERIC.values(), ids=GENERIC)
def test_every_topology_has_a_place_for_each_node(generic: Generic) -> None:
    """No two nodes lie on each other, and every cable, in planes every one of its parts, is counted once in the legend."""
    topology = generic.build(generic.parameters())
    drawn = picture(topology)
    assert len({(round(dot.x, 6), round(dot.y, 6)) for dot in drawn.dots}) == len(drawn.dots)
    n_cables = sum(max(1, len(link.planes_bps)) for link in topology.links) // 2
    assert sum(int(strands.label.split()[0]) for strands in drawn.strands) == n_cables
    assert sum(int(key.label.split()[0]) for key in legend(drawn)) == len(drawn.dots) >= len(topology.nodes)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_a_grid_of_any_shape_has_no_two_nodes_in_one_place(shape: list[int]) -> None:
    """Up to six dimensions, blocks beside each other do not overlap node on node, nor does what hangs on them."""
    for topology in (
        torus.build(torus.Parameters(shape=tuple(shape))),
        torus.build(torus.Parameters(shape=tuple(shape), injection_rate=10**9)),
    ):
        assert len({(round(x, 6), round(y, 6)) for x, y in places(topology)}) == len(topology.nodes)


def test_switches_stand_in_levels() -> None:
    """A Clos has its accelerators in one row, its leaves above, its spines on top; switches of hosts are below them."""
    topology = clos.build(clos.Parameters())
    (ends,), (leaves,), (spines,) = (heights(topology, first, n) for first, n in ((0, 16), (16, 4), (20, 4)))
    assert ends < leaves < spines
    topology = rails.build(rails.Parameters())
    (hosts,), (ends,), (leaves,) = (heights(topology, first, n) for first, n in ((8, 4), (0, 8), (12, 4)))
    assert hosts < ends < leaves


@pytest.mark.parametrize(
    ("name", "settings_made"),
    [(name, {}) for name in ("power5-64", "power6-32", "power9-e980-16", "dragonfly")] + [("perlmutter", {"scale": "64"})],
)
def test_no_cable_between_groups_runs_through_a_node(name: str, settings_made: dict[str, str]) -> None:
    """Of circles of four a cable passes no other node's centre within 0.25 % of the drawing, as it would if they were not turned
    on each other."""
    topology = load_fabric(name, settings_made)
    where = places(topology)
    near = 0.0025 * (max(x for x, _ in where) - min(x for x, _ in where))
    for link in topology.links:
        (ax, ay), (bx, by) = where[link.source], where[link.target]
        dx, dy = bx - ax, by - ay
        for node, (x, y) in enumerate(where):
            along = ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy)
            if 0 < along < 1 and node not in (link.source, link.target):
                assert abs((x - ax) * dy - (y - ay) * dx) > near * math.hypot(dx, dy), (link.name, topology.nodes[node].name)


def test_groups_stand_together() -> None:
    """A chip of a Boardfly is nearer to those of its board than to any of other groups; so is a switch of a dragonfly."""
    for topology, first, block, n in (
        (boardfly.build(boardfly.Parameters(groups=3)), 0, 32, 96),
        (dragonfly.build(dragonfly.Parameters()), 32, 4, 16),
    ):
        where = places(topology)[first : first + n]

        def apart(i: int, j: int, where: list[tuple[float, float]] = where) -> float:
            return (where[i][0] - where[j][0]) ** 2 + (where[i][1] - where[j][1]) ** 2

        inside = max(apart(0, j) for j in range(4))
        assert inside < min(apart(0, j) for j in range(block, n))


def test_planes_are_drawn_as_the_switches_that_they_are() -> None:
    """NVL72 is drawn with 18 switches and 1,296 cables; a switch without planes stays one."""
    drawn = picture(load_fabric("gb200-nvl72"))
    assert sum(dot.kind is NodeKind.SWITCH for dot in drawn.dots) == 18
    assert [strands.label.split(",")[0] for strands in drawn.strands] == ["1296 cables"]
    assert sum(dot.kind is NodeKind.SWITCH for dot in picture(star.build(star.Parameters())).dots) == 1


def test_cables_that_close_rings_are_told_apart() -> None:
    """A 4x4 torus has 8 of its 32 cables closing rings, also where two nodes are joined by one cable only none does."""
    labels = [strands.label for strands in picture(torus.build(torus.Parameters(shape=(4, 4)))).strands]
    assert labels == ["24 cables, 50 GB/s, 1 us", "8 cables, 50 GB/s, 1 us, closing rings"]
    assert len(picture(torus.build(torus.Parameters(shape=(2, 2)))).strands) == 1


def test_one_cable_is_told_in_the_singular() -> None:
    """A cable that is the only one of its kind is labelled as one."""
    labels = [strands.label for strands in picture(star.build(star.Parameters(ranks=1))).strands]
    assert labels == ["1 cable, 50 GB/s, 500 ns"]


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "vendor", "begins"), [(".png", "matplotlib", b"\x89PNG"), (".html", "plotly", b"<html>")])
def test_a_large_system_is_drawn_smaller_and_says_so(
    suffix: str, vendor: str, begins: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--draw writes the file that its name says, and a system of thousands at a scale that can be read, with a word about it."""
    pytest.importorskip(vendor)
    path = tmp_path / f"drawn{suffix}"
    assert cli.main(["fabrics", "tpu-v4-4096", "--draw", str(path)]) == 0
    assert path.read_bytes().startswith(begins)
    assert "drawn with 64 of its 4096 accelerators (--set scale=64)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dgx-h100-8", "--draw", "x.gif"], "must end in .png or .html"),
        (["star", "--set", "ranks=4096", "--draw", "x.png"], "--draw: star has 4097 nodes; use --set to draw 2000 or fewer"),
        (["--draw", "x.png"], "--draw needs the fabric that it is for"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_a_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name without a known ending, a fabric too large to read, and no fabric at all are mistakes of usage."""
    assert cli.main(["fabrics", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
