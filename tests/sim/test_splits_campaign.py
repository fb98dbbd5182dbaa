"""Where the time of calls goes, at large: it sums to 100 %, and what a cause is said to cost is saved when it is removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from emu.fabric.account import Cause
from emu.telemetry.attribution import Attribution
from tests.sim.splits import at_ps, duration_ps, one_call, pair, recorded, slowest

KIB = 2**10
MIB = 2**20
N_CASES = 50
FABRICS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("star", {"ranks": 5}),
    ("torus", {"shape": "3x2"}),
    ("clos", {"leaves": 2, "spines": 2, "accelerators_per_leaf": 2}),
    ("star", {"ranks": 4, "window": "64KiB"}),
)
SWITCHINGS = ("roce-pfc", "roce-dcqcn", "roce-lossy", "infiniband", "ultra-ethernet")
COLLECTIVES = {
    "all_reduce": ("ring", "tree", "halving_doubling", "direct"),
    "all_gather": ("ring", "direct", "bruck"),
    "reduce_scatter": ("ring", "direct"),
    "alltoall": ("direct", "bruck"),
    "broadcast": ("ring", "two_tree"),
    "reduce": ("two_tree",),
    "gather": ("direct",),
}
IMPAIRMENTS = (
    "*=loss,probability=0.02,timeout=20us",
    "*=jitter,bound=3us,interval=2us",
    "a1->s0=throttle,factor=0.3",
    "*=flap,up=40us,down=10us",
    "*=latency,added=2us",
)


def drawn(number: int) -> tuple[str, dict[str, Any], tuple[str, ...], tuple[Any, ...], dict[str, Any]]:
    """The fabric, its settings, impairments, and the call of a case, by its number alone."""
    draw = Random(number)
    fabric, settings = draw.choice(FABRICS)
    settings = settings | {"rate": draw.choice(("100Gbit/s", "25Gbit/s")), "latency": draw.choice(("500ns", "2us"))}
    if number % 2 and "window" not in settings:
        settings["switching"] = draw.choice(SWITCHINGS)
    impair = (draw.choice(IMPAIRMENTS),) if draw.random() < 0.6 else ()
    if "switching" in settings and "loss" in str(impair) and settings["switching"] in ("roce-pfc", "infiniband"):
        impair = ()  # nothing recovers a loss there
    if "switching" in settings and ("jitter" in str(impair) or "latency" in str(impair)):
        impair = ()  # headroom is made for the delays of the fabric alone
    if "s0" in str(impair) and fabric == "torus":
        impair = ()
    collective = draw.choice(sorted(COLLECTIVES))
    algorithm = draw.choice(COLLECTIVES[collective])
    late = tuple(draw.choice((0.0, 0.0, 5.0, 120.0)) for _ in range(4))
    n_bytes = draw.choice((4, 3 * KIB, 64 * KIB, 300 * KIB))
    options = {"algorithm": algorithm, "chunk_bytes": draw.choice((8 * KIB, 64 * KIB))}
    return fabric, settings, impair, (collective, n_bytes, late), options


@pytest.mark.parametrize("number", range(N_CASES))
def test_the_causes_sum_to_all_of_the_time(number: int) -> None:
    """For every rank of two calls in a row parts and online split sum to the whole, exactly, and agree where neither was cut."""
    fabric, settings, impair, arguments, options = drawn(number)

    def function(rank: Any) -> None:
        for _ in range(2):
            one_call(rank, *arguments, **options)

    found = recorded(fabric, function, seed=number, impair=impair, **settings)  # which checks every call
    assert len(found.record.calls) == 2 * len({call.rank for call in found.record.calls})
    assert found.record.n_left_out == 0


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A case and the same without one cause; ``cause`` at ``place`` costs ``share`` of what it is said to be there.

    Chosen so that the cause makes up most of the slowest call and the way that is critical with it would be among the
    longest without it, since a share is that of one path: where another path is as long, removing the cause saves less.
    """

    what: str
    function: Any = one_call
    arguments: tuple[Any, ...]
    without: tuple[Any, ...] = ()
    impair: tuple[str, ...] = ()
    cause: Cause
    place: str = ""
    share: float = 1.0
    rank: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


STAR = {"fabric": "star", "ranks": 6, "rate": "100Gbit/s", "latency": "2us"}
CLOS = {"fabric": "clos", "leaves": 2, "spines": 2, "accelerators_per_leaf": 3, "rate": "100Gbit/s", "latency": "1us"}
TORUS = {"fabric": "torus", "shape": "3x2", "rate": "100Gbit/s", "latency": "1us"}


def late(fabric: dict[str, Any], collective: str, *us: float) -> Removal:
    return Removal(
        what=f"{collective} late", settings=fabric, arguments=(collective, 256 * KIB, us), without=(collective, 256 * KIB),
        cause=Cause.PEER_LATE,
    )  # fmt: skip


def lossy(fabric: dict[str, Any], link: str, n_bytes: int) -> Removal:
    return Removal(
        what=f"loss {n_bytes} {link}", settings=fabric, function=pair, arguments=((0,), 1, n_bytes),
        impair=(f"{link}=loss,probability=0.02,timeout=200us",), cause=Cause.RETRANSMISSION, rank=1,
    )  # fmt: skip


def longer(fabric: dict[str, Any], link: str, us: int) -> Removal:
    return Removal(
        what=f"longer {us}", settings=fabric, function=pair, arguments=((0,), 1, 256 * KIB),
        impair=(f"{link}=latency,added={us}us",), cause=Cause.PROPAGATION, place=link, rank=1,
    )  # fmt: skip


def slower(fabric: dict[str, Any], link: str, factor: float, n_bytes: int, *, first: bool) -> Removal:
    """The sender's own link takes a share of ``1 - factor`` longer; one behind it only what it takes longer than that."""
    return Removal(
        what=f"slower {link} {factor}", settings=fabric, function=pair, arguments=((0,), 1, n_bytes), rank=1,
        cause=Cause.SERIALISATION, impair=(f"{link}=throttle,factor={factor}",), place=link, share=1 - factor if first else 1.0,
    )  # fmt: skip


def crowded(n_others: int, n_bytes: int) -> Removal:
    others = tuple(range(2, 2 + n_others))
    return Removal(
        what=f"incast {n_others} {n_bytes}", settings=STAR, function=pair, arguments=((*others, 0), 1, n_bytes),
        without=((0,), 1, n_bytes), cause=Cause.QUEUEING, place="s0->a1", rank=1,
    )  # fmt: skip


REMOVALS = (
    late(STAR, "all_reduce", 0, 300), late(STAR, "broadcast", 999), late(CLOS, "all_gather", 0, 600),
    late(TORUS, "alltoall", 0, 900),
    lossy(STAR, "a0->s0", MIB), lossy(STAR, "s0->a1", 4 * MIB), lossy(CLOS, "a0->s0", 2 * MIB), lossy(STAR, "a0->s0", 3 * MIB),
    longer(STAR, "a0->s0", 500), longer(STAR, "s0->a1", 200), longer(CLOS, "a0->s0", 300), longer(STAR, "a0->s0", 90),
    slower(STAR, "a0->s0", 0.1, 2 * MIB, first=True), slower(CLOS, "a0->s0", 0.25, 8 * MIB, first=True),
    slower(STAR, "s0->a1", 0.2, 2 * MIB, first=False), slower(CLOS, "s0->a1", 0.1, 4 * MIB, first=False),
    crowded(1, MIB), crowded(2, MIB), crowded(4, 256 * KIB), crowded(3, 4 * MIB),
)  # fmt: skip


def test_another_path_that_is_nearly_as_long_limits_what_is_saved() -> None:
    """Two blocks come to rank 0, one over a slow link and one over a long way: without serialisation the other is the last, so
    that all but its latency is saved, which simulating it again on links that are fast shows within 5 %."""

    def gather(rank: Any) -> None:
        one_call(rank, "gather", 128 * KIB, algorithm="direct", chunk_bytes=128 * KIB)

    impair = ("a1->s0=throttle,factor=0.1", "a2->s0=latency,added=60us")
    found = recorded("star", gather, impair=impair, ranks=3, rate="100Gbit/s", latency="1us")
    fast = recorded("star", gather, impair=impair, ranks=3, rate="100Tbit/s", latency="1us")
    call = found.calls(0)[0]
    saved_ps = found.saved_ps(call)[Cause.SERIALISATION]
    assert saved_ps == duration_ps(call) - 61_000_000
    assert saved_ps < found.split_ps(call)[Cause.SERIALISATION] / 2
    assert duration_ps(call) - duration_ps(fast.calls(0)[0]) == pytest.approx(saved_ps, rel=0.05)


def call_of(found: Attribution, rank: int | None) -> Any:
    return slowest(found) if rank is None else found.calls(rank)[-1]


@pytest.mark.parametrize("case", REMOVALS, ids=lambda case: f"{case.what} {case.settings['fabric']}".replace(" ", "-"))
def test_removing_a_cause_saves_its_share(case: Removal) -> None:
    """Simulated again without the cause, the call takes less by what the cause was said to cost, within 5 % of that."""
    settings = {key: value for key, value in case.settings.items() if key != "fabric"}
    fabric = case.settings["fabric"]
    found = recorded(fabric, case.function, *case.arguments, impair=case.impair, **settings)
    without = recorded(fabric, case.function, *(case.without or case.arguments), **settings)
    call = call_of(found, case.rank)
    said_ps = case.share * at_ps(found, call, case.cause, case.place)
    if case.cause is Cause.PROPAGATION:
        said_ps -= at_ps(without, call_of(without, case.rank), case.cause, case.place)
    saved_ps = duration_ps(call) - duration_ps(call_of(without, case.rank))
    assert said_ps > 0.3 * duration_ps(call), "the cause does not dominate: choose another case"
    assert abs(saved_ps - said_ps) <= 0.05 * said_ps, (saved_ps, said_ps)
