"""Records of runs: a file round trip, refusals, the limit of events, and the command that reads them."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from emu.bench.explain import explain
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.fabric.frame import Frame
from emu.fabric.recorder import Recorder
from emu.rank import Rank
from emu.session import Session
from emu.telemetry.attribution import Attribution
from emu.telemetry.record import RunRecord, load_record


def function(rank: Rank) -> None:
    if rank.index == 1:
        rank.compute(us=3)
    rank.comm.all_reduce(np.ones(8, np.float32), algorithm="ring")
    rank.comm.barrier()


@pytest.fixture(scope="module")
def record() -> RunRecord:
    faults = ("rank0=late,by=1us,at=2us",)
    with Session("star", settings={"ranks": "2"}, driver="simulate", record=True, faults=faults) as session:
        session.run(function)
        return session.record()


def test_what_is_loaded_is_what_was_saved(record: RunRecord, tmp_path: Path) -> None:
    """Calls, computation, chunks, hops and marks survive the file."""
    record.save(tmp_path / "run.gz")
    loaded = load_record(tmp_path / "run.gz")
    assert loaded == record
    assert (len(record.calls), len(record.computed)) == (4, 1)
    assert [(mark.component, mark.time_ps) for mark in record.marks] == [("a0", 2_000_000)]
    assert len(record.hops) == 2 * len(record.sent) > 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "No such file"),
        (b"junk", "Not a gzipped file"),
        (gzip.compress(b"x" * 100)[:-9], "cut short or damaged"),
        (gzip.compress(b"{}"), "Field required"),
    ],
    ids=["missing", "no gzip", "short", "empty"],
)
def test_what_is_no_record_is_refused(data: bytes | None, message: str, tmp_path: Path) -> None:
    """A missing, foreign, damaged or empty file is a ConfigError of one line that names it."""
    path = tmp_path / "run.gz"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=message) as caught:
        load_record(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_record_of_another_version_is_refused(record: RunRecord, tmp_path: Path) -> None:
    """The version is checked, and the message says which one is read."""
    plain = json.loads(record.model_dump_json()) | {"version": 99}
    (tmp_path / "run.gz").write_bytes(gzip.compress(json.dumps(plain).encode()))
    with pytest.raises(ConfigError, match=r"version: .*records of version 1"):
        load_record(tmp_path / "run.gz")


def test_events_beyond_the_limit_are_counted_and_missed(record: RunRecord) -> None:
    """A recorder keeps so many events and counts the others; what needs one that is not there says so."""
    recorder = Recorder(limit=2)
    frame = Frame((0,), source_rank=0, target_rank=1, flow=0, route_flow=0, payload_bytes=1, head_ps=0)
    for _ in range(5):
        recorder.frame_hop(frame, 0, 0)
    assert (len(recorder.hops), recorder.n_left_out) == (2, 3)
    short = record.model_copy(update={"hops": (), "n_left_out": len(record.hops)})
    with pytest.raises(ConfigError, match="events were left out"):
        Attribution(short).parts(record.calls[0])


def printed(path: Path, **options: int) -> list[str]:
    out = io.StringIO()
    assert explain(path, terminal=Terminal(out, io.StringIO()), **options) == 0
    return out.getvalue().splitlines()


def test_explain_lists_calls_and_prints_a_critical_path(record: RunRecord, tmp_path: Path) -> None:
    """The list has a line for each call, the slowest rank's; a path names who was late and every link in order."""
    path = tmp_path / "run.gz"
    record.save(path)
    lines = printed(path)
    assert any(line.split()[:5] == ["0", "all_reduce", "32", "B", "0"] and line.endswith("3 us     1") for line in lines), lines
    assert any(" mostly " in line for line in lines) and any(re.search(r" us  a1 +\d+%  ", line) for line in lines), lines
    lines = printed(path, call=0, rank=0)
    cells = [line.split() for line in lines if "%" in line]
    assert any(row[-2:] == ["a1:", "computing"] for row in cells)
    places = [place for row in cells for place in row if "->" in place]
    assert list(dict.fromkeys(places)) == ["a1->s0", "s0->a0", "a0->s0"]


def queue_two(rank: Rank) -> None:
    works = [rank.comm.all_reduce(np.ones(1024, np.float32), algorithm="ring", async_op=True) for _ in range(2)]
    for work in works:
        work.wait()


def test_explain_tells_queueing_behind_earlier_calls_apart(tmp_path: Path) -> None:
    """Of two equal calls queued at once both take the same time, and the second has waited for as long as the first took."""
    with Session("star", settings={"ranks": "2"}, driver="simulate", record=True) as session:
        session.run(queue_two)
        session.record().save(tmp_path / "run.gz")
    first, second = (line.split() for line in printed(tmp_path / "run.gz") if " all_reduce " in line)
    assert first[5:7] == second[5:7] == second[-2:] != first[-2:] == ["0", "ps"]


def test_explain_refuses_a_call_or_rank_that_is_not_there(record: RunRecord, tmp_path: Path) -> None:
    """The message names what there is."""
    path = tmp_path / "run.gz"
    record.save(path)
    with pytest.raises(ConfigError, match="rank 0 has calls 0 to 1"):
        printed(path, call=2, rank=0)
    with pytest.raises(ConfigError, match="ranks with calls: 0, 1"):
        printed(path, rank=9)
    with pytest.raises(ConfigError, match="no rank of the record has so many calls"):
        printed(path, call=77)
