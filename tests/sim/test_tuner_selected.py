"""NCCL's tuner chooses among the algorithms that are selected; protocols are selected as NCCL_PROTO does, and told."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from emu.bench.commands import bench
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.drivers.choice import Chooser
from emu.drivers.tuning import protocol_of, question_of
from emu.errors import ConfigError
from emu.protocols import nccl, predict
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.tiers import Same

MEMBERS = tuple(range(8))
MIB = 1 << 20


@pytest.fixture(scope="module")
def h100() -> Topology:
    """With NCCL's tuner."""
    fabric = load_fabric("h100-8-nccl", {"tuner": "nccl"})
    assert fabric.endpoint is not None
    return fabric


@pytest.mark.parametrize(
    ("selection", "size_bytes", "algorithm"),
    [
        ("auto", 1024, "ring"),
        ("^ring", 1024, "tree"),
        ("^ring", MIB, "nvls"),
        ("nvls,tree", 1024, "tree"),
        ("nvls,tree", MIB, "nvls"),
        ("halving_doubling,tree", MIB, "tree"),
        ("allreduce:tree;broadcast:ring", MIB, "tree"),
    ],
)
def test_nccl_chooses_among_what_is_selected(h100: Topology, selection: str, size_bytes: int, algorithm: str) -> None:
    """What NCCL has not is never taken while the selection leaves something that it has, and its own tables decide."""
    assert Chooser(h100).choose("all_reduce", size_bytes, MEMBERS, 0, selection) == algorithm


def test_what_nccl_does_not_know_is_predicted(h100: Topology) -> None:
    """Where the selection leaves nothing of NCCL's, emu's own prediction chooses, of algorithms and of protocols."""
    by_emu = replace(h100, endpoint=replace(h100.endpoint, tuner="predict"))
    for collective, selection in (("all_reduce", "direct,halving_doubling"), ("alltoall", "bruck,pairwise")):
        assert Chooser(h100).choose(collective, 4096, MEMBERS, 0, selection) == Chooser(by_emu).choose(
            collective, 4096, MEMBERS, 0, selection
        )
    assert h100.endpoint is not None
    its = question_of(Same(h100), h100.endpoint, "all_reduce", ("halving_doubling",), 1024, MEMBERS)
    assert nccl.choose(its) is None
    assert protocol_of(h100, "all_reduce", "halving_doubling", 1024, MEMBERS) == predict.choose(its).protocol


def test_protocols_that_are_selected_decide_on_algorithms(h100: Topology) -> None:
    """Without Simple there is no NVLS; a protocol that leaves none of the selected algorithms is refused by name."""
    costs = h100.endpoint
    assert costs is not None
    flagged = replace(h100, endpoint=replace(costs, protocol="^simple"))
    assert Chooser(flagged).choose("all_reduce", MIB, MEMBERS, 0, "^ring") == "tree"
    assert protocol_of(flagged, "all_reduce", "ring", 64 * MIB, MEMBERS) == "ll128"
    assert protocol_of(h100, "all_reduce", "ring", 64 * MIB, MEMBERS, "LL, Simple") == "simple"
    assert protocol_of(flagged, "alltoall", "direct", 64 * MIB, MEMBERS) == "ll"
    with pytest.raises(ConfigError, match=r"protocol \^simple goes with none of the algorithms nvls,collnet_direct"):
        Chooser(flagged).choose("all_reduce", MIB, MEMBERS, 0, "nvls,collnet_direct")
    with pytest.raises(ConfigError, match="protocol \\^simple does not go with nvls all_reduce; use auto or simple"):
        protocol_of(flagged, "all_reduce", "nvls", MIB, MEMBERS)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "alltoall", "sendrecv"])
def test_the_protocol_is_told(collective: str, tmp_path: Path) -> None:
    """JSON has each half's protocol and the table a column, for one rank too; a fabric without an endpoint has an empty one."""
    for fabric, n_ranks in (("h100-8-nccl", 4), ("h100-8-nccl", 1), ("star", 4)):
        options = BenchOptions(
            collective=collective, begin_bytes=1024, end_bytes=MIB, step_factor=1024, iterations=1, warmup=0,
            fabrics=(fabric,), n_ranks=n_ranks, driver="simulate",
        )  # fmt: skip
        out, path = io.StringIO(), tmp_path / f"{fabric}{n_ranks}.json"
        assert bench(options, json_path=path, terminal=Terminal(out=out, err=io.StringIO())) == 0
        rows = json.loads(path.read_text())["results"]
        told = [row[half]["emu"]["protocol"] for row in rows for half in ("out_of_place", "in_place")]
        columns = [line.split()[17] for line in out.getvalue().splitlines() if not line.startswith("#")]
        if fabric == "star":
            assert told == [""] * 4 and columns == ["-", "-"]
        else:
            assert columns == told[::2] and set(told) <= {"ll", "ll128", "simple"} and told[0] == "ll"
