"""describe: figures that are known in closed form."""

from __future__ import annotations

import pytest

from emu.topologies import clos, full_mesh, mesh, ring, star, torus
from emu.topologies.describe import describe
from emu.topologies.extent import bisection_bps, diameter_links
from emu.topologies.graph import NodeKind, Topology

RATE_BPS = 400 * 10**9


@pytest.mark.parametrize(
    ("topology", "n_diameter", "n_bisection"),
    [
        (star.build(star.Parameters(ranks=8)), 2, 4),
        (ring.build(ring.Parameters(ranks=8)), 4, 2),
        (ring.build(ring.Parameters(ranks=2)), 1, 1),
        (full_mesh.build(full_mesh.Parameters(ranks=8)), 1, 16),
        (torus.build(torus.Parameters(shape=(4, 4))), 4, 8),
        (torus.build(torus.Parameters(shape=(2, 8))), 5, 4),
        (mesh.build(mesh.Parameters(shape=(4, 4))), 6, 4),
        (mesh.build(mesh.Parameters(shape=(2, 8))), 8, 2),
        (clos.build(clos.Parameters()), 4, 8),
    ],
    ids=["star", "ring", "pair", "full_mesh", "torus", "long torus", "mesh", "long mesh", "clos"],
)
def test_diameter_and_bisection_are_the_textbooks(topology: Topology, n_diameter: int, n_bisection: int) -> None:
    """Diameter in links and bisection in links' rates are those of the closed forms."""
    assert diameter_links(topology) == n_diameter
    assert bisection_bps(topology) == n_bisection * RATE_BPS


def test_oversubscription_shows_in_the_bisection() -> None:
    """A Clos oversubscribed 4:1 has a quarter of the bisection."""
    topology = clos.build(clos.Parameters.model_validate({"oversubscription": "4"}))
    assert bisection_bps(topology) == 2 * RATE_BPS


def test_links_are_counted_by_class() -> None:
    """Links that are alike make one class; counts of nodes, links and rates are those of the graph."""
    about = describe(clos.build(clos.Parameters(uplink_latency=5)))
    assert about.n_nodes == ((NodeKind.ACCELERATOR, 16), (NodeKind.SWITCH, 8))
    assert about.n_links == 64
    assert about.endpoint_rate_bps == (RATE_BPS, RATE_BPS)
    assert [(c.source.value, c.target.value, c.n_links, c.latency_ps) for c in about.link_classes] == [
        ("accelerator", "switch", 16, 1_000_000),
        ("switch", "accelerator", 16, 1_000_000),
        ("switch", "switch", 32, 5),
    ]


def test_what_is_injected_bounds_what_an_accelerator_sends() -> None:
    """An accelerator that hangs on its router sends at the rate of injection, which bounds the bisection too where it is less
    than the cables of the torus; the torus' own cables stay, and the diameter is two links more."""
    plain = describe(torus.build(torus.Parameters.model_validate({"shape": "4x4", "rate": "10GB/s"})))
    for rate_GBps, n_bisection in ((25, 80), (5, 40)):
        values = {"shape": "4x4", "rate": "10GB/s", "injection_rate": f"{rate_GBps}GB/s"}
        hung = describe(torus.build(torus.Parameters.model_validate(values)))
        assert hung.endpoint_rate_bps == (rate_GBps * 8 * 10**9,) * 2
        assert hung.bisection_bps == n_bisection * 8 * 10**9
        assert (hung.diameter_links, hung.n_links) == ((plain.diameter_links or 0) + 2, plain.n_links + 2 * 16)


def test_a_single_accelerator_has_no_bisection() -> None:
    """A fabric of one accelerator is described, without a bisection."""
    about = describe(ring.build(ring.Parameters(ranks=1)))
    assert (about.diameter_links, about.bisection_bps, about.n_links) == (0, None, 0)


def test_large_fabrics_are_described_without_a_search() -> None:
    """Figures that would take long on a large fabric are left out."""
    topology = star.build(star.Parameters(ranks=1200))
    assert bisection_bps(topology) is None
