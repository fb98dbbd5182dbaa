"""Arithmetic over thousands of ranks gives the machines' times to the picosecond, or says that it cannot."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emu
from emu.bench.at_scale import is_at_scale, rows_at_scale
from emu.bench.fabrics import Case, prepare
from emu.bench.options import BenchOptions
from emu.drivers.once import call_once
from emu.errors import ConfigError
from emu.impairments.spec import parse_impairment, resolve
from emu.scale.answer import by_arithmetic
from emu.scale.call import NotExact, OneCall
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology

TREE = {"pods": "4", "leaves": "2", "spines": "4", "cores": "4", "accelerators_per_leaf": "4", "routing": "d_mod_k"}
CLOS = {"leaves": "4", "spines": "2", "accelerators_per_leaf": "4"}
HEADERS = {"rate": "50GB/s", "latency": "1us", "header": "58"}
INJECTION = {"rate": "10GB/s", "injection_rate": "15GB/s", "injection_latency": "0.3us"}
HALF = "throttle,factor=0.5"
LONGER = "latency,added=7us"


def asked(
    fabric: str,
    its: dict[str, str],
    collective: str,
    algorithm: str,
    count: int,
    *,
    impair: tuple[str, ...] = (),
    chunk_bytes: int | None = None,
) -> OneCall:
    """One call of float32."""
    topology = load(fabric, its).topology
    return OneCall(
        topology=topology,
        impairments=resolve([parse_impairment(text) for text in impair], topology),
        collective=collective,
        algorithm=algorithm,
        count=count,
        itemsize=4,
        dtype="float32",
        chunk_bytes=chunk_bytes,
    )


def by_machines(call: OneCall) -> tuple[tuple[int, ...], int]:
    """When each rank has completed it, and the most bytes that one put on the wire."""
    completed_ps, _, engine = call_once(
        call.topology,
        call.impairments,
        collective=call.collective,
        algorithm=call.algorithm,
        count=call.count,
        dtype=call.dtype,
        itemsize=call.itemsize,
        chunk_bytes=call.chunk_bytes,
    )
    sent = [0] * len(call.topology.nodes)
    for index, statistics in engine.link_statistics().items():
        sent[call.topology.links[index].source] += statistics.wire_bytes
    return completed_ps, max(sent[node] for node in call.topology.ranks)


def check_same(call: OneCall) -> str:
    """The method, after its times were compared."""
    found = by_arithmetic(call)
    assert (found.completed_ps, found.wire_bytes_per_rank_max) == by_machines(call)
    return found.method


@pytest.mark.parametrize(
    ("fabric", "its", "impair", "n_places"),
    [
        ("star", {"ranks": "8"}, (), "1 of 8"),
        ("star", {"ranks": "7", **HEADERS}, (), "1 of 7"),
        ("star", {"ranks": "9"}, (f"a3->s0={HALF}",), None),
        ("star", {"ranks": "9"}, (f"s0->a2={LONGER}",), None),
        ("ring", {"ranks": "6"}, (), "1 of 6"),
        ("torus", {"shape": "3x4x3"}, (), "12 of 36"),
        ("torus", {"shape": "4x4"}, (f"a0->a1={HALF}",), None),
        ("clos", CLOS, (), "4 of 16"),
        ("fat_tree", TREE, (), "8 of 32"),
        ("fat_tree", TREE, (f"s0->a1={HALF}",), None),
        ("tpu-v4-4096", {"scale": "64"}, (), "16 of 64"),
        ("torus", {"shape": "3x4x3", **INJECTION}, (), "12 of 36"),
    ],
)
def test_a_ring_by_steps_is_the_ring_of_the_machines(
    fabric: str, its: dict[str, str], impair: tuple[str, ...], n_places: str | None
) -> None:
    """All ranks complete when the full simulation says, with as many places looked at as differ."""
    method = check_same(asked(fabric, its, "all_reduce", "ring", 5 * 4032, impair=impair))
    assert method == (f"exact by symmetry, {n_places} places" if n_places else "exact, vectorised") + ", ring by steps"


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("count", [1, 70_000, 100_003])
def test_chunks_and_uneven_blocks(collective: str, count: int) -> None:
    """Blocks of several chunks, and a last block that is shorter, are timed as they are sent."""
    call = asked("star", {"ranks": "5", **HEADERS}, collective, "ring", count, impair=(f"a1->s0={HALF}",), chunk_bytes=32 * 1024)
    check_same(call)


def test_rings_that_share_their_accelerators_links() -> None:
    """One ring for each accelerator of a host, over links that they share, in the order in which their chunks come."""
    method = check_same(asked("fat_tree", {**TREE, "host_size": "4", "uplink_latency": "0.4us"}, "all_reduce", "ring", 1 << 14))
    assert method.startswith("exact by symmetry, 8 of 32 places")


@pytest.mark.parametrize("impair", [(), ("a2->s0=throttle,factor=0.1",), (f"s0->a4={LONGER}",)])
def test_a_window_that_does_not_cover_the_way(impair: tuple[str, ...]) -> None:
    """Where a window is narrower than rate times round trip, senders wait for the same credit as the machines'."""
    fabric = {"ranks": "8", "rate": "10GB/s", "latency": "40us"}
    narrow, wide = (
        asked("star", {**fabric, "window": window}, "all_reduce", "ring", 1 << 18, impair=impair, chunk_bytes=4096)
        for window in ("64KiB", "16MiB")
    )
    check_same(narrow)
    assert max(by_arithmetic(narrow).completed_ps) > max(by_arithmetic(wide).completed_ps)


@pytest.mark.parametrize(
    ("fabric", "its", "impair"),
    [
        ("star", {"ranks": "8"}, ()),
        ("star", {"ranks": "7", **HEADERS}, (f"a3->s0={HALF}", f"s0->a2={LONGER}")),
        ("star", {"ranks": "16"}, ("s0->a2=throttle,factor=0.3",)),
        ("clos", CLOS, ()),
        ("clos", {**CLOS, "uplink_latency": "3us"}, (f"a3->s0={HALF}",)),
        ("fat_tree", {**TREE, "routing": "ecmp"}, ()),
        ("cloudmatrix384", {"scale": "32"}, ()),
        ("torus", {"shape": "4x3", **INJECTION}, ()),
        ("torus", {"shape": "2x4x2", **INJECTION}, (f"a3->s3={HALF}", f"s0->s2={LONGER}")),
        ("torus", {"shape": "4x4", "rate": "10GB/s", "injection_rate": "10GB/s"}, ()),
        ("fugaku", {"shape": "2x2x3x2"}, ()),
    ],
)
def test_alltoall_by_levels_is_that_of_the_machines(fabric: str, its: dict[str, str], impair: tuple[str, ...]) -> None:
    """Chunks that meet on links are served in the calendar's order, one chunk of each message or several."""
    for count, chunk_bytes in ((1000, None), (2048, 4096)):
        check_same(asked(fabric, its, "alltoall", "direct", count, impair=impair, chunk_bytes=chunk_bytes))


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(2, 12),
    count=st.integers(1, 3000),
    factor=st.sampled_from(["0.1", "0.37", "1"]),
    added_ns=st.integers(0, 9000),
    collective=st.sampled_from(["all_reduce", "all_gather", "alltoall"]),
)
def test_any_star_with_an_impaired_link(n: int, count: int, factor: str, added_ns: int, collective: str) -> None:
    """Whatever the size and the impairment: where there is an answer it is the machines'."""
    impair = (f"a1->s0=throttle,factor={factor}", f"s0->a0=latency,added={added_ns}ns")
    algorithm = "direct" if collective == "alltoall" else "ring"
    call = asked("star", {"ranks": str(n), **HEADERS}, collective, algorithm, count * n, impair=impair)
    with suppress(NotExact):
        check_same(call)


@pytest.mark.parametrize(
    ("fabric", "its", "collective", "algorithm", "impair", "reason"),
    [
        ("star", {}, "all_reduce", "ring", ("a3->s0=loss,probability=0.1",), "loss of a3->s0"),
        ("star", {}, "all_reduce", "ring", ("a3->s0=throttle,factor=0.5,from=1us",), "throttle of a3->s0"),
        ("star", {"switching": "roce-pfc"}, "all_reduce", "ring", (), "switching"),
        ("star", {"window": "64KiB"}, "alltoall", "direct", (), "window"),
        ("star", {}, "broadcast", "two_tree", (), "no arithmetic for broadcast by two_tree"),
        ("star", {}, "alltoall", "pairwise", (), "no arithmetic"),
        ("star", {}, "broadcast", "ring", (), "chain"),
        ("star", {"rate": "1bit/s"}, "all_reduce", "ring", (), "53 days"),
        ("star", {"rate": "1bit/s"}, "alltoall", "direct", (), "53 days"),
        ("clos", {**CLOS, "rate": "100bit/s"}, "alltoall", "direct", (), "too long to be sorted"),
    ],
)
def test_what_is_not_exact_is_not_answered(
    fabric: str, its: dict[str, str], collective: str, algorithm: str, impair: tuple[str, ...], reason: str
) -> None:
    """Chance, time, packets and what 64 bits may not hold are left to the machines, by name: no number wraps round."""
    with pytest.raises(NotExact, match=reason):
        by_arithmetic(asked(fabric, its, collective, algorithm, 1 << 16, impair=impair))


def test_one_call_of_the_machines_is_that_of_a_session() -> None:
    """Without threads and user code the machines give what a session's first call takes."""
    call = asked("clos", CLOS, "all_reduce", "tree", 50_000)

    def function(rank: emu.Rank) -> Any:
        blank = np.broadcast_to(np.zeros(1, np.float32), call.count)
        work = rank.comm.all_reduce(blank, blank, algorithm="tree", async_op=True)
        work.wait()
        return work.completed_ps

    with emu.Session("clos", settings=CLOS, driver="simulate", payload=False) as session:
        assert by_machines(call)[0] == tuple(session.run(function))


def test_a_ring_that_repeats_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a step is the one before it, only later, the rest is counted: 1,022 of 1,024 ranks' steps are never done."""
    from emu.scale import rings

    done: list[int] = []
    do = rings._Steps._do

    def counted(steps: rings._Steps, step: int) -> None:
        done.append(step)
        do(steps, step)

    monkeypatch.setattr(rings._Steps, "_do", counted)
    topology: Topology = load("star", {"ranks": "1024"}).topology
    by_arithmetic(
        OneCall(topology=topology, impairments={}, collective="all_reduce", algorithm="ring", count=1 << 20, itemsize=4)
    )
    assert len(done) < 10


def predicted(**options: Any) -> tuple[Case, BenchOptions]:
    """``emu predict`` of an all_reduce on a star."""
    asked_for = BenchOptions(**{"collective": "all_reduce", "driver": "simulate", "fabrics": ("star",)} | options)
    return prepare(asked_for, "star", 0), asked_for


def test_predict_takes_arithmetic_where_the_loop_is_long() -> None:
    """auto runs the loop of a small system and answers one call of a large one; full never, vectorised always."""
    large = {"algorithm": "ring", "settings": (("ranks", "1024"),)}
    assert not is_at_scale(*predicted(algorithm="ring"))
    assert is_at_scale(*predicted(algorithm="ring", method="vectorised"))
    assert is_at_scale(*predicted(**large))
    assert is_at_scale(*predicted(settings=large["settings"]))
    assert not is_at_scale(*predicted())
    assert not is_at_scale(*predicted(**large, method="full"))
    assert not is_at_scale(*predicted(**large, check=True))


def test_auto_leaves_the_loop_where_bytes_are_many() -> None:
    """1 TiB over 8 ranks is answered by arithmetic, also where no algorithm is named; small sizes of few ranks are run."""
    large = {"begin_bytes": 1 << 40, "end_bytes": 1 << 40, "iterations": 1}
    assert is_at_scale(*predicted(**large))
    assert is_at_scale(*predicted(**large, algorithm="halving_doubling"))
    assert not is_at_scale(*predicted(begin_bytes=1 << 30, end_bytes=1 << 30, iterations=1))


def test_an_algorithm_that_cannot_win_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree sends more than a ring needs time for, so that 16 GiB are answered without it."""
    named: list[str] = []
    monkeypatch.setattr("emu.bench.at_scale.by_arithmetic", lambda call: named.append(call.algorithm) or by_arithmetic(call))
    (row,) = rows_at_scale(*predicted(begin_bytes=1 << 34, end_bytes=1 << 34))
    assert (row.out_of_place.algorithm, named) == ("ring", ["ring"])


def test_auto_takes_the_fastest_that_is_counted_over_many_ranks() -> None:
    """Of ring and tree for an all_reduce over 1,024 ranks: the tree where latency counts."""
    case, options = predicted(settings=(("ranks", "1024"),), begin_bytes=1 << 12, end_bytes=1 << 12)
    (row,) = rows_at_scale(case, options)
    assert row.out_of_place.algorithm == "tree"


def test_a_row_of_one_call_says_how_it_was_found() -> None:
    """It has the time of the last rank, or another average, nothing checked, and the method."""
    case, options = predicted(algorithm="ring", method="vectorised", begin_bytes=1 << 16, end_bytes=1 << 16, average=3)
    (row,) = rows_at_scale(case, options)
    call = asked("star", {}, "all_reduce", "ring", 1 << 14)
    assert row.out_of_place.time_ps == max(by_machines(call)[0])
    assert row.out_of_place.n_wrong is None
    assert row.out_of_place.method == "exact by symmetry, 1 of 8 places, ring by steps"


def test_predict_falls_back_to_the_machines_and_says_why() -> None:
    """What arithmetic cannot answer is simulated where that is feasible, refused where it would take hours."""
    case, options = predicted(algorithm="halving_doubling", begin_bytes=1 << 16, end_bytes=1 << 16)
    (row,) = rows_at_scale(case, options)
    assert row.out_of_place.method == "full simulation (there is no arithmetic for all_reduce by halving_doubling)"
    case, options = predicted(algorithm="halving_doubling", method="vectorised")
    with pytest.raises(ConfigError, match="vectorised is not exact here"):
        next(rows_at_scale(case, options))
    case, options = predicted(algorithm="pairwise", collective="alltoall", settings=(("ranks", "4096"),))
    with pytest.raises(ConfigError, match="hours of work"):
        next(rows_at_scale(case, options))
    with pytest.raises(ConfigError, match="leave out -c 1"):
        is_at_scale(*predicted(algorithm="ring", method="vectorised", check=True))
