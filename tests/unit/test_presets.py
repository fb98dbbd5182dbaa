"""Presets: each loads, states its sources, and adds up to the published figures."""

from __future__ import annotations

import pytest

from emu.errors import ConfigError
from emu.topologies.fabric_file import load, load_fabric, preset_files, read_file
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.listing import list_fabrics

PRESETS = [listing.name for listing in list_fabrics() if listing.kind == "preset"]
GBPS = 8 * 10**9


def path_latency_ps(topology: Topology, source: int, target: int) -> int:
    return sum(topology.links[i].latency_ps for i in topology.route(source, target, 0))


def test_the_promised_presets_are_there() -> None:
    """The presets that the documentation names are shipped."""
    promised = {"dgx-h100-8", "gb200-nvl72", "mi300x-8", "tpu-v4-4x4x4", "ib-ndr-leafspine-64"}
    assert promised <= set(PRESETS)


def test_a_scale_is_taken_and_changed_further() -> None:
    """--set scale=N takes the instance of that size, other settings change it, and one that is not there is refused in a line."""
    assert load_fabric("tpu-v4-4096", {"scale": "64"}).n_ranks == 64
    smaller = load_fabric("tpu-v4-4096", {"scale": "64", "shape": "2x4x4"})
    assert smaller.n_ranks == 32 and smaller.calibration.endswith("changed: scale=64, shape=2x4x4")
    with pytest.raises(ConfigError, match=r"^--set: scale = '7': tpu-v4-4096 is given .* 64, 512 ranks; use one of those$"):
        load_fabric("tpu-v4-4096", {"scale": "7"})
    with pytest.raises(ConfigError, match="unknown key 'scale'"):
        load_fabric("star", {"scale": "64"})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_loads_and_says_what_it_is_worth(name: str) -> None:
    """A preset builds, is described in a line, says that it is not calibrated and where its numbers are from."""
    scales = read_file(preset_files()[name], name).scales
    topology = load(name, {"scale": min(scales, key=int)} if scales else {}).topology
    assert topology.name == name
    assert topology.description and "\n" not in topology.description
    assert "calibrated" in topology.calibration
    what = dict(topology.sources)
    assert {"rate", "latency"} <= set(what)
    assert all(len(text) > 10 for text in what.values())


def test_dgx_h100_planes_are_5_4_4_5_links() -> None:
    """A DGX H100's four planes carry 125, 100, 100 and 125 GB/s."""
    planes = {link.planes_bps for link in load_fabric("dgx-h100-8").links}
    assert planes == {(125 * GBPS, 100 * GBPS, 100 * GBPS, 125 * GBPS)}


def test_infiniband_latencies_are_the_published_ones() -> None:
    """Same leaf 2.8 us and cross leaf 3.7 us, as published for 64 B end to end."""
    topology = load_fabric("ib-ndr-leafspine-64")
    assert path_latency_ps(topology, 0, 1) == 2_800_000
    assert path_latency_ps(topology, 0, 63) == 3_700_000


def test_infiniband_headers_cost_six_per_mille() -> None:
    """26 B of headers per 4 KiB leave 99.4 % of the rate."""
    link = load_fabric("ib-ndr-leafspine-64").links[0]
    assert round(link.mtu_bytes / (link.mtu_bytes + link.header_bytes), 3) == 0.994


def test_infiniband_leaves_are_full_64_port_switches_at_most() -> None:
    """No switch of the leaf-spine has more ports than an NDR switch, 64."""
    topology = load_fabric("ib-ndr-leafspine-64")
    ports = [len(out) for out, node in zip(topology.out_links(), topology.nodes, strict=True) if node.kind is NodeKind.SWITCH]
    assert max(ports) <= 64


def test_settings_change_a_preset_and_its_calibration() -> None:
    """--set overrides a preset's parameter, and the calibration says what was changed."""
    topology = load_fabric("dgx-h100-8", {"ranks": "4", "rate": "45GB/s"})
    assert topology.n_ranks == 4
    assert topology.links[0].rate_bps == sum(topology.links[0].planes_bps) == 45 * GBPS
    assert topology.calibration.endswith("changed: ranks=4, rate=45GB/s")


def test_a_wrong_setting_of_a_preset_blames_the_setting() -> None:
    """A bad --set value on a preset is told as one of --set, an unknown key with the nearest one."""
    with pytest.raises(ConfigError, match=r"^--set: ranks = '0'"):
        load("dgx-h100-8", {"ranks": "0"})
    with pytest.raises(ConfigError, match=r"^--set: unknown key 'latncy' \(did you mean 'latency'\?\)"):
        load("dgx-h100-8", {"latncy": "1us"})
