"""Selections of algorithms, in the words of NCCL_ALGO."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emu.bench.fabrics import prepare, without_effect
from emu.bench.options import BenchOptions, given_algorithm, given_protocol
from emu.bench.table import Table
from emu.collectives.catalogue import algorithms_for
from emu.collectives.selection import is_choice, selected
from emu.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "collective", "names"),
    [
        ("auto", "broadcast", ("direct", "ring", "two_tree")),
        ("ring,tree", "all_reduce", ("ring", "tree")),
        ("Ring,Tree", "all_gather", ("ring",)),
        ("^TwoTree", "broadcast", ("direct", "ring")),
        ("^two_tree,direct", "broadcast", ("ring",)),
        ("allreduce:tree;broadcast:ring", "broadcast", ("ring",)),
        ("allreduce:tree;broadcast:ring", "reduce", ("direct", "ring", "two_tree")),
        ("ring,CollnetDirect;allreduce:NVLSTree", "all_reduce", ("nvlstree",)),
        ("ring,CollnetDirect;allreduce:NVLSTree", "all_gather", ("collnet_direct", "ring")),
        ("allreduce:^ring,tree", "all_reduce", None),
    ],
)
def test_nccls_words_select(text: str, collective: str, names: tuple[str, ...] | None) -> None:
    """Lists, exclusions and lists by collective leave what NCCL's rules leave."""
    wanted = tuple(name for name in algorithms_for(collective) if name not in ("ring", "tree")) if names is None else names
    assert selected(text, collective) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tree", "leaves nothing that does all_gather; use NCCL's collnet_direct, nvls, pat, ring, or emu's own bruck, direct, "),
        ("^bruck,collnet_direct,direct,halving_doubling,nvls,pat,ring,torus", "leaves nothing"),
        ("ring,,tree", "has an empty name"),
        ("ring,tere", "'tere' is not known, did you mean tree"),
        ("broadcast:rnig", "'rnig' is not known"),
    ],
)
def test_what_selects_nothing_is_refused(text: str, said: str) -> None:
    """In one line that says what there is."""
    with pytest.raises(ConfigError, match=said) as caught:
        selected(text, "all_gather")
    assert "\n" not in str(caught.value)


def test_one_name_is_no_choice() -> None:
    """A single algorithm, or a function of a module, goes by itself; a colon after a collective is a selection."""
    assert not is_choice("ring") and not is_choice("my_lab:build")
    assert is_choice("auto") and is_choice("ring,tree") and is_choice("^ring") and is_choice("AllReduce:ring")


def test_the_environment_speaks_where_the_option_does_not() -> None:
    """NCCL_ALGO counts when --algorithm is left out, and never for what NCCL makes of sends and receives."""
    said = {"NCCL_ALGO": " ring;allreduce:tree "}
    assert given_algorithm(None, "all_reduce", said) == "ring;allreduce:tree"
    assert given_algorithm("direct", "all_reduce", said) == "direct"
    assert given_algorithm(None, "alltoall", said) == given_algorithm(None, "sendrecv", said) == "auto"
    assert given_algorithm(None, "all_reduce", {}) == "auto"


def test_the_environment_selects_protocols_too() -> None:
    """NCCL_PROTO goes into a run's options as NCCL_ALGO does, checked; never for sends and receives."""
    said = {"NCCL_PROTO": " LL, LL128 "}
    assert given_protocol("AllReduce", said) == "LL, LL128"
    assert BenchOptions(collective="all_reduce", protocol="LL, LL128").protocol == "ll,ll128"
    assert given_protocol("alltoall", said) is given_protocol("sendrecv", said) is given_protocol("all_reduce", {}) is None
    with pytest.raises(ConfigError, match=r"^NCCL_PROTO: protocol 'LLL': use one of auto, simple, ll, ll128, or a list"):
        BenchOptions(collective="all_reduce", protocol="LLL")


@pytest.mark.parametrize(
    ("settings", "protocol"),
    [((), "^simple"), ((("protocol", "ll"),), "ll"), ((("protocol", "auto"),), "auto"), ((("mine.toml.protocol", "ll"),), "ll")],
)
def test_a_setting_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[tuple[str, str], ...], protocol: str
) -> None:
    """--protocol and --set count before NCCL_PROTO, which counts before the fabric's own."""
    monkeypatch.chdir(tmp_path)
    fabric = '[topology]\nkind = "star"\nranks = 2\n[endpoint]\nrate = "100GB/s"\nprotocol = "simple"\n'
    (tmp_path / "mine.toml").write_text(fabric)
    options = BenchOptions(collective="all_reduce", fabrics=("mine.toml",), settings=settings, protocol="^Simple")
    costs = prepare(options, "mine.toml", 0).topology.endpoint
    assert costs is not None
    assert costs.protocol == protocol


def test_nccl_proto_without_an_endpoint() -> None:
    """Where all protocols cost the same NCCL_PROTO fails nothing, and one line says that it has no effect."""
    options = BenchOptions(collective="all_reduce", fabrics=("star",), protocol="LL")
    case = prepare(options, "star", 0)
    said = "# NCCL_PROTO=ll has no effect: star has no [endpoint], so all protocols cost the same"
    assert Table(options).header(case, {}).count(said) == 1
    assert without_effect(case, replace(options, protocol=None)) == ""
