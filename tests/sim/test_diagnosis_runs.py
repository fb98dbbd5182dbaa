"""Diagnosis of simulated runs: faults on purpose, and what is said of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from emu.bench.commands import bench as bench_command
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.diagnosis.campaign import simulate
from emu.diagnosis.cases import FABRICS, draw
from emu.diagnosis.commands import diagnose as diagnose_command
from emu.diagnosis.diagnose import diagnose
from emu.diagnosis.emulated import drawn
from emu.diagnosis.finding import Cause
from emu.diagnosis.report import score_lines
from emu.diagnosis.score import score
from emu.errors import ConfigError, EmuError
from emu.rank import Rank
from emu.session import Session

RING = {"ranks": "8", "rate": "100MB/s", "latency": "1ms"}


def steps(rank: Rank, n_bytes: int, n_steps: int, algorithm: str = "torus") -> None:
    buffer = np.zeros(n_bytes // 4, np.float32)
    for number in range(n_steps):
        rank.compute(us=200 + (rank.index * 7 + number * 3) % 5)
        rank.comm.all_reduce(buffer, algorithm=algorithm)


@pytest.mark.parametrize("link", [f"a{n}->a{(n + 1) % 8}" for n in range(8)])
def test_a_half_rate_link_of_a_ring_is_named_by_its_direction(link: str) -> None:
    """Each of the eight links, and nothing else: neither the rank that waits behind it nor the one before it."""
    fault = f"{link}=slow,factor=0.5"
    with Session("ring", settings=RING, driver="simulate", payload=False, faults=(fault,)) as session:
        session.run(steps, 16 << 20, 2)
        (found,) = diagnose(session.observe())
    assert (found.cause, found.component) == (Cause.SLOW_LINK, link)
    assert found.evidence.value == "50 MB/s"
    assert found.share > 0.9


def test_a_late_rank_is_named_and_no_link_is_blamed() -> None:
    """A rank that enters every call 300 ms late is late, by so much; the transfer takes as long as without."""
    transfers = []
    for faults in ((), ("rank5=late,by=300ms",)):
        with Session("ring", settings=RING, driver="simulate", payload=False, faults=faults) as session:
            session.run(steps, 1 << 20, 3)
            seen = session.observe()
            found = diagnose(seen)
        calls = [[one for one in seen.timings if one.number == number] for number in range(3)]
        transfers.append(sum(max(o.completed_ps for o in call) - max(o.submitted_ps for o in call) for call in calls))
    (late,) = found
    assert (late.cause, late.component) == (Cause.LATE_RANK, "rank 5 (a5)")
    assert late.evidence.value.startswith("30") or late.evidence.value.startswith("29")
    assert late.share > 0.9
    assert transfers[1] == pytest.approx(transfers[0], rel=0.1)


@pytest.mark.parametrize("fabric", FABRICS[:2], ids=str)
def test_a_healthy_run_with_ordinary_jitter_has_no_finding(fabric: object) -> None:
    """Computation and delays that vary a little are not a fault."""
    seeds = [seed for seed in range(2_000, 2_400) if draw(seed).fabric == fabric and not draw(seed).faults][:3]
    assert [simulate(draw(seed)).findings for seed in seeds] == [()] * 3


def test_a_small_campaign_stays_above_its_bounds() -> None:
    """Of thirty cases on small fabrics the telling ones are found and named, and nothing is found in the healthy ones."""
    small = tuple(one for one in FABRICS if dict(one.settings).get("ranks") == "8" or dict(one.settings).get("shape") == "4x2")
    plain = tuple(one for one in small if "switching" not in dict(one.settings))
    found = score([simulate(draw(seed, plain)) for seed in range(3_000, 3_030)])
    assert found.n_runs == 30
    assert found.n_false_alarms == 0
    assert found.macro_f1 >= 0.95
    assert found.localisation >= 0.95
    assert any(line.startswith("macro F1") for line in score_lines(found))


LATE = {
    "a3->a4=slow,factor=0.9": (Cause.SLOW_LINK, "a3->a4"),
    "a3->a4=longer,added=200us": (Cause.LONG_LINK, "a3->a4"),
    "rank3=slow_receiver,rate=90MB/s": (Cause.SLOW_RECEIVER, "rank 3 (a3)"),
    "a0->a1=background,rate=60MB/s,message=64KiB": (Cause.BACKGROUND, "a0->a1"),
    "rank3=late,by=1ms": (Cause.LATE_RANK, "rank 3 (a3)"),
}


@pytest.mark.parametrize("fault", LATE)
def test_a_fault_of_the_last_tenth_of_a_run_is_found_with_its_interval(fault: str) -> None:
    """What begins at nine tenths of a run of 112 calls is named, nothing else is, and its interval is in the last fifth."""
    with Session("ring", settings=RING, driver="simulate", payload=False, faults=(f"{fault},at=1760ms",)) as session:
        session.run(steps, 1 << 20, 112)
        seen = session.observe()
    (found,) = diagnose(seen)
    assert (found.cause, found.component) == LATE[fault]
    assert 0.8 * seen.elapsed_ps < found.evidence.begin_ps < found.evidence.end_ps <= seen.elapsed_ps


def test_a_run_is_diagnosed_while_it_is_under_way() -> None:
    """Looked at in the middle, a session shows the slow link; what came between two looks shows it too, and no other thing."""
    seen = []
    with Session("ring", settings=RING, driver="simulate", payload=False, faults=("a3->a4=slow,factor=0.5,at=200ms",)) as session:

        def looked_at(rank: Rank) -> None:
            for _ in range(3):
                steps(rank, 1 << 20, 6)
                if rank.index == 0:
                    seen.append(session.observe())

        session.run(looked_at)
    assert [one.is_running for one in seen] == [True] * 3
    assert [[(one.cause, one.component) for one in diagnose(each)] for each in seen[1:]] == [[(Cause.SLOW_LINK, "a3->a4")]] * 2
    between = seen[2].since(seen[1])
    (found,) = diagnose(between)
    assert (found.cause, found.component, found.evidence.value) == (Cause.SLOW_LINK, "a3->a4", "50 MB/s")
    assert found.evidence.begin_ps == seen[1].elapsed_ps


def test_a_long_run_whose_first_timings_are_gone_has_no_finding() -> None:
    """600 calls of 8 ranks are more than are kept of their timings; the bytes of those that are gone are no traffic."""
    with Session("star", settings={"ranks": "8"}, driver="simulate", payload=False) as session:
        session.run(steps, 1024, 600, "direct")
        seen = session.observe()
    assert seen.known_ps > 0
    assert diagnose(seen) == ()


@pytest.mark.parametrize(("fault", "cause"), [("rank3=killed,at=100us", "dead rank"), ("rank3=skips", "mismatched collective")])
def test_a_run_that_failed_has_a_record_that_tells_why(fault: str, cause: str, tmp_path: Path) -> None:
    """emu predict --record of a run that a fault ends writes what there was, and emu diagnose names the rank."""
    path, out = tmp_path / "run.record", io.StringIO()
    options = BenchOptions(
        collective="all_reduce", fabrics=("star",), settings=(("ranks", "4"),), driver="simulate", faults=(fault,), iterations=4
    )
    with pytest.raises(EmuError):
        bench_command(options, record_path=path, terminal=Terminal(io.StringIO(), io.StringIO()))
    assert diagnose_command(str(path), as_json=True, terminal=Terminal(out)) == 0
    (found,) = json.loads(out.getvalue())
    assert (found["cause"], found["component"]) == (cause, "rank 3 (a3)")


def test_a_link_that_loses_packets_is_not_slow() -> None:
    """What passes while something is sent again leaves the wire idle at times, which is not counted as busy."""
    (found,) = simulate(drawn(600)).findings
    assert (found.cause, found.component) == (Cause.LOSSY_LINK, "s3->s1")


def test_queued_calls_that_overlap_are_as_fast_as_expected() -> None:
    """Gathers in a queue, of which one takes longer and the next as much less, are no slow transfers."""

    def gathers(rank: Rank) -> None:
        mine, all_of = np.zeros(1 << 17, np.uint8), np.zeros(1 << 20, np.uint8)
        for _ in range(6):
            work = rank.comm.gather(mine, all_of if rank.index == 0 else None, root=0, async_op=True)
        work.wait()

    with Session("dgx-a100-8", driver="simulate", payload=False) as session:
        session.run(gathers)
        assert diagnose(session.observe()) == ()


def test_a_mismatch_names_the_odd_rank() -> None:
    """A rank that calls for another size is the component, after the run has failed."""
    with Session("star", settings={"ranks": "4"}, driver="simulate", payload=False) as session:
        with pytest.raises(EmuError):
            session.run(_odd)
        assert [(one.cause, one.component) for one in diagnose(session.observe())] == [(Cause.MISMATCH, "rank 2 (a2)")]
        session.begin()
        assert diagnose(session.observe()) == ()


def _odd(rank: Rank) -> None:
    steps(rank, 4096 if rank.index == 2 else 8192, 1, "ring")


def test_a_record_is_diagnosed_from_its_file(tmp_path: Path) -> None:
    """emu diagnose RECORD finds what the session's observation shows; what is no record is refused."""
    path = tmp_path / "run.record"
    with Session("ring", settings=RING, driver="simulate", faults=("a3->a4=slow,factor=0.5",), record=True) as session:
        session.run(steps, 1 << 20, 2)
        session.record().save(path)
    out = io.StringIO()
    assert diagnose_command(str(path), as_json=True, terminal=Terminal(out)) == 0
    (found,) = json.loads(out.getvalue())
    assert (found["cause"], found["component"]) == ("slow link", "a3->a4")
    with pytest.raises(ConfigError, match="no such file"):
        diagnose_command(str(tmp_path / "none.record"), as_json=False)
