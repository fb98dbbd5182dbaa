"""The studies of examples/congestion show, at reduced sizes, what they say they show."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "congestion"
STUDIES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("traffic", "figures"))


@pytest.fixture(autouse=True)
def studies_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A study imports its neighbours, as when it is run from the shell."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in STUDIES or name in ("traffic", "figures"):
            del sys.modules[name]


def study(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help names --plot, and asks for no plotting library."""
    with pytest.raises(SystemExit) as ended:
        study(name).main(["--help"])
    assert ended.value.code == 0
    assert "--plot" in capsys.readouterr().out
    assert "matplotlib" not in sys.modules


def test_incast_rules_differ_as_operators_know() -> None:
    """PFC fills the link fairly without a drop; tuned DCQCN comes near it; with neither, packets drop and every byte is right."""
    module = study("incast")
    pause, tuned, neither = (module.study(4, 4 << 20, module.RULES[name]) for name in ("PFC", "DCQCN, tuned", "neither"))
    assert pause["goodput_percent"] >= 95 and pause["jain"] >= 0.98 and pause["drops"] == 0 and pause["pauses"] > 0
    assert tuned["goodput_percent"] >= 90 and tuned["drops"] == 0 and tuned["marks"] > 0
    assert neither["drops"] > 0 and neither["resent_MB"] > 0


def test_a_slow_receiver_pauses_for_what_it_lacks() -> None:
    """At 78.3 % of the line: 21.7 % of the time within 2 points, nothing dropped, and it is named."""
    found = study("slow_receiver").study(0.783, 32 << 20)
    assert abs(found["pause_percent"] - 21.7) <= 2
    assert found["drops"] == 0
    assert "slow receiver" in found["verdict"]


def test_two_rings_on_one_adapter_get_half_each() -> None:
    """Within 1 %."""
    found = study("two_rings").study(8 << 20)
    assert found["job A beside B"] / found["job A alone"] == pytest.approx(0.5, rel=0.01)


def test_only_the_naive_order_of_an_alltoall_makes_an_incast() -> None:
    """It takes at least half as long again, with pauses; the shifted one pauses nobody."""
    naive, shifted = study("alltoall_order").study(1 << 20).values()
    assert naive[0] > 1.5 * shifted[0]
    assert naive[1] > 0 and shifted[1] == 0


def test_a_storm_hurts_flows_that_never_meet_the_stuck_host_and_the_watchdog_spares_them() -> None:
    """Every flow waits for the end of the storm without the watchdog; with it those with other targets hardly notice."""
    module = study("pause_storm")
    n_bytes = 2 << 20
    healthy, storm, watched = (module.study(n_bytes, *case) for case in ((0.0, False), (3000.0, False), (3000.0, True)))
    others = [number for number, (_, target) in enumerate(module.FLOWS) if target != 0]
    assert all(storm[0][number].end_us > 2 * healthy[0][number].end_us for number in others)
    assert all(watched[0][number].end_us < healthy[0][number].end_us + 600 for number in others)  # it takes 200 us to see it
    assert watched[1]["pfcwd_storms"] >= 1 and storm[1]["pfcwd_storms"] == 0


def test_credits_keep_the_tail_that_a_rate_control_cannot() -> None:
    """An incast that the buffer cannot hold ends at least three times as late under DCQCN, even with selective repeat."""
    module = study("tails")
    controlled, _ = module.study(module.RULES["DCQCN, selective repeat"], 24, 1 << 19)
    granted, totals = module.study(module.RULES["credits"], 24, 1 << 19)
    assert controlled[-1] > 3 * granted[-1]
    assert totals["discards"] == 0


def test_the_ring_deadlocks_on_cyclic_ways_only(tmp_path: Path) -> None:
    """The cycle is named; up-down ways and a second lane end with all bytes right."""
    module = study("deadlock")
    found = {name: module.study(*case, 1 << 20, tmp_path) for name, case in module.CASES.items()}
    assert found["pauses, clockwise"][0] is None and "s0->s1 waits for s1->s2" in found["pauses, clockwise"][1]
    assert found["credits, clockwise"][0] is None
    assert found["pauses, up-down"][0] is not None and found["credits, two lanes"][0] is not None


def test_hashed_flows_collide_and_sprayed_ones_do_not() -> None:
    """Over a few seeds ECMP's slowest flow takes well over what adaptive routing and spraying give."""
    module = study("ecmp_collisions")
    slowdown = {
        name: sum(module.study(module.POLICIES[name], seed, 128 << 10) for seed in range(4)) / 4
        for name in ("ecmp", "adaptive", "spray")
    }
    assert slowdown["ecmp"] > 1.4 * max(slowdown["adaptive"], slowdown["spray"])


def test_two_flows_share_under_dcqcn() -> None:
    """In the second half of their time together within 10 % of each other, with NVIDIA's parameters."""
    module = study("fair_shares")
    arrivals = module.study(module.CONTROLS["DCQCN, NVIDIA's parameters"], 48 << 20, 200.0)
    end_us = min(arrival.end_us for arrival in arrivals)
    first, second = module.shares(arrivals, 1 << 18, 200 + (end_us - 200) / 2, end_us)
    assert first == pytest.approx(second, rel=0.1)


def test_who_sees_a_slow_link() -> None:
    """One uplink at 25 % under all-to-all: static and spray are held to it, adaptive routing goes around it."""
    rows = {row.policy: row for row in study("balancing").compare(1, 16 << 10)}
    assert set(rows) == {"static", "ecmp", "flowlet", "adaptive", "spray"}
    for blind in ("static", "spray"):
        assert rows[blind].median_ps > 1.5 * rows[blind].healthy_ps
    assert rows["adaptive"].median_ps < 1.25 * rows["adaptive"].healthy_ps
    assert all(row.healthy_ps <= row.median_ps <= row.p99_ps for row in rows.values())
