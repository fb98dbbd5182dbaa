"""Names of collectives and algorithms: found by convention, forgiving in spelling, precise in refusal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

from emu.cli.options import ALGORITHM_HELP
from emu.collectives import ring
from emu.collectives.catalogue import (
    COLLECTIVES,
    NCCLS,
    algorithm_names,
    algorithms_for,
    collective_name,
    cost_for,
    find_algorithm,
    schedule_for,
)
from emu.collectives.schedule import Cost, Schedule
from emu.errors import ConfigError, ScheduleError


def make_module(monkeypatch: pytest.MonkeyPatch, **offers: object) -> None:
    """A user's module ``my_lab``."""
    module = ModuleType("my_lab")
    vars(module).update(offers)
    monkeypatch.setitem(sys.modules, "my_lab", module)


def test_every_collective_has_an_algorithm() -> None:
    """No collective is offered that nothing can do, and no algorithm does what is not offered."""
    assert all(algorithms_for(collective) for collective in COLLECTIVES)
    assert all(find_algorithm(name).collectives <= set(COLLECTIVES) for name in algorithm_names())


def test_algorithms_are_the_files_of_the_folder() -> None:
    """The files that offer an algorithm are found, and the machinery beside them is not."""
    assert {"ring", "tree", "direct", "halving_doubling", "bruck", "dissemination"} <= set(algorithm_names())
    assert not {"schedule", "verify", "catalogue", "busbw", "executor"} & set(algorithm_names())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("all_reduce", "all_reduce"), ("allreduce", "all_reduce"), ("AllReduce", "all_reduce"),
        ("all-gather", "all_gather"), ("all_reduce_perf", "all_reduce"), ("bcast", "broadcast"),
        ("all_to_all", "alltoall"), ("AlltoAllv", "alltoallv"), ("ReduceScatter", "reduce_scatter"),
    ],
)  # fmt: skip
def test_collectives_are_known_by_their_usual_names(text: str, name: str) -> None:
    """NCCL's, MPI's, PyTorch's and nccl-tests' spellings mean the same collective."""
    assert collective_name(text) == name


def test_unknown_names_are_refused_with_the_nearest() -> None:
    """A misspelt name is answered with the nearest one and with those that fit."""
    with pytest.raises(ConfigError, match=r"did you mean all_reduce\?; use one of all_reduce, "):
        collective_name("al_reduce")
    with pytest.raises(ConfigError, match=r"did you mean ring\?;.*for reduce use NCCL's ring, or emu's own direct, two_tree$"):
        schedule_for("reduce", "Rign", 4)
    with pytest.raises(ConfigError, match=r"ring cannot do alltoall;.*use NCCL's direct, pxn, or emu's own bruck, pairwise"):
        schedule_for("alltoall", "ring", 4)


@pytest.mark.parametrize(
    ("algorithm", "collective", "use"),
    [
        ("tree", "broadcast", "NCCL's ring, or emu's own direct, two_tree"),
        ("Tree", "reduce", "NCCL's ring, or emu's own direct, two_tree"),
        ("two_tree", "all_reduce", "NCCL's collnet_chain, collnet_direct, nvls, nvlstree, ring, tree, or emu's own direct"),
        ("tree", "all_gather", "NCCL's collnet_direct, nvls, pat, ring, or emu's own bruck"),
        ("nvlstree", "reduce_scatter", "NCCL's collnet_direct, nvls, pat, ring, or emu's own direct"),
        ("pat", "all_reduce", "NCCL's collnet_chain"),
        ("nvls", "broadcast", "NCCL's ring, or emu's own"),
    ],
)
def test_what_nccl_does_not_do_so_is_refused_by_name(algorithm: str, collective: str, use: str) -> None:
    """In one line that names the pair, and what can be used: NCCL's and emu's own apart."""
    line = f"{algorithm.lower()} cannot do {collective}; it does .*; for {collective} use {use}"
    for ask in (schedule_for, cost_for):
        with pytest.raises(ConfigError, match=line) as said:
            ask(collective, algorithm, 4)
        assert "\n" not in str(said.value)


def test_nccls_algorithms_do_what_nccl_has_them_do_and_no_more() -> None:
    """Broadcast and reduce by ring only, all_reduce by all but PAT, two by four; only direct does more, as emu's own."""
    legal = {name: {collective for collective, names in NCCLS.items() if name in names} for name in set().union(*NCCLS.values())}
    assert {name: set(find_algorithm(name).collectives) for name in legal if name != "direct"} == {
        name: its for name, its in legal.items() if name != "direct"
    }
    assert legal["direct"] <= find_algorithm("direct").collectives
    assert NCCLS["all_reduce"] | {"pat", "direct", "pxn"} == set(legal)
    assert NCCLS["all_gather"] == NCCLS["reduce_scatter"] == {"ring", "pat", "nvls", "collnet_direct"}
    assert NCCLS["broadcast"] == NCCLS["reduce"] == {"ring"}


def test_the_docs_table_is_the_catalogues() -> None:
    """Every collective has its row, NCCL's algorithms and emu's own apart, and no other stands there; --help names them all."""

    def cell(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in sorted(names)) or "-"

    rows = []
    for collective in COLLECTIVES:
        its, nccls = set(algorithms_for(collective)), NCCLS.get(collective, frozenset())
        rows.append(f"| {collective} | {cell(its & nccls)} | {cell(its - nccls)} |")
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    head = "| collective | NCCL's | emu's own |\n| --- | --- | --- |\n"
    assert head + "\n".join(rows) + "\n\n" in page
    assert set(algorithm_names()) - {"dissemination"} <= set(re.findall(r"\w+", ALGORITHM_HELP))


def test_nccls_spelling_of_algorithms_is_taken() -> None:
    """Ring and Tree are ring and tree, and the answer is one cached object."""
    assert schedule_for("AllReduce", "Ring", 4) is schedule_for("all_reduce", "ring", 4)
    assert schedule_for("all_reduce", "Tree", 4).algorithm == "tree"


def test_root_counts_only_where_there_is_one() -> None:
    """A root given to an all-reduce changes nothing; one given to a broadcast does."""
    assert schedule_for("all_reduce", "ring", 4, 2) is schedule_for("all_reduce", "ring", 4)
    assert schedule_for("broadcast", "ring", 4, 2).root == 2


def test_cost_is_the_algorithms_own() -> None:
    """The catalogue passes the formula on, and refuses what no schedule could be built for."""
    assert cost_for("allreduce", "Ring", 8) == ring.cost("all_reduce", 8)
    with pytest.raises(ConfigError, match="needs 1 rank or more"):
        cost_for("all_reduce", "ring", 0)


def test_a_users_function_is_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """module:function is used like a file of the folder."""
    make_module(monkeypatch, COLLECTIVES={"all_reduce"}, mine=ring.build, cost=ring.cost)
    assert schedule_for("all_reduce", "my_lab:mine", 3).programs == ring.build("all_reduce", 3).programs
    with pytest.raises(ConfigError, match="my_lab:mine cannot do reduce"):
        schedule_for("reduce", "my_lab:mine", 3)


def test_an_incomplete_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is named: the module, the function, the cost or the collectives."""
    with pytest.raises(ConfigError, match="cannot be imported from no_such_lab"):
        find_algorithm("no_such_lab:build")
    with pytest.raises(ConfigError, match=r"no such collective, did you mean all_reduce\?; collectives are all_reduce, "):
        find_algorithm("allredux:tree")
    make_module(monkeypatch, build=ring.build)
    with pytest.raises(ConfigError, match="no function 'other'"):
        find_algorithm("my_lab:other")
    with pytest.raises(ConfigError, match="no function 'cost'"):
        find_algorithm("my_lab:build")
    make_module(monkeypatch, build=ring.build, cost=ring.cost, Ring=Schedule)
    with pytest.raises(ConfigError, match="no COLLECTIVES"):
        find_algorithm("my_lab:build")
    with pytest.raises(ConfigError, match="no function 'Ring'"):
        find_algorithm("my_lab:Ring")


def test_a_wrong_algorithm_never_leaves_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that does not do the job, or another job than was asked for, is an error at its first use."""

    def forgetful(collective: str, n_ranks: int, root: int = 0) -> Schedule:
        return replace(ring.build(collective, n_ranks, root), programs=((),) * n_ranks)

    def stubborn(collective: str, n_ranks: int, root: int = 0) -> Schedule:
        return ring.build(collective, 2)

    def faulty(collective: str, n_ranks: int, root: int = 0) -> Schedule:
        raise KeyError(collective)

    def silent(collective: str, n_ranks: int, root: int = 0) -> None:
        return None

    functions = {"forgetful": forgetful, "stubborn": stubborn, "faulty": faulty, "silent": silent}
    make_module(monkeypatch, COLLECTIVES={"all_gather"}, cost=ring.cost, **functions)
    with pytest.raises(ScheduleError, match="ends empty"):
        schedule_for("all_gather", "my_lab:forgetful", 3)
    with pytest.raises(ScheduleError, match="was asked for"):
        schedule_for("all_gather", "my_lab:stubborn", 3)
    with pytest.raises(
        ScheduleError, match=r"my_lab:faulty all_gather over 3 ranks: build failed with KeyError: 'all_gather' \("
    ):
        schedule_for("all_gather", "my_lab:faulty", 3)
    with pytest.raises(ScheduleError, match="build returned NoneType; it must return a Schedule"):
        schedule_for("all_gather", "my_lab:silent", 3)


def test_a_cost_that_is_wrong_for_many_ranks_is_found_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula that holds up to 8 ranks only is an error beyond, with both figures: ``auto`` relies on it."""

    def cost(collective: str, n_ranks: int) -> Cost:
        return ring.cost(collective, n_ranks) if n_ranks <= 8 else Cost(1, Fraction(1))

    make_module(monkeypatch, COLLECTIVES={"all_gather"}, cost=cost, optimist=ring.build)
    assert schedule_for("all_gather", "my_lab:optimist", 8).n_ranks == 8
    with pytest.raises(ScheduleError, match=r"takes 8 steps and sends 8/9 S, but its cost\(\) says 1 and 1 S"):
        schedule_for("all_gather", "my_lab:optimist", 9)
