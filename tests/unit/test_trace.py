"""Timelines from a record: the structure that readers rely on, by format."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from emu.errors import ConfigError
from emu.rank import Rank
from emu.session import Session
from emu.telemetry.flight_recorder import dumps, write_dumps
from emu.telemetry.record import RunRecord
from emu.telemetry.trace import _Lanes, events, write_rank_traces, write_trace

Events = list[dict[str, Any]]


def function(rank: Rank) -> None:
    rank.compute(us=2)
    works = [rank.comm.all_reduce(np.ones(1 << 14, np.float32), algorithm="ring", async_op=True) for _ in range(2)]
    half = rank.comm.split(rank.index % 2, rank.index)
    for work in works:
        work.wait()
    half.all_gather(np.ones(8, np.float16), np.ones(16, np.float16), algorithm="ring")
    with rank.comm.group():
        rank.comm.send(np.ones(4, np.int32), (rank.index + 1) % 4)
        rank.comm.recv(np.ones(4, np.int32), (rank.index - 1) % 4)
    rank.comm.barrier()


@pytest.fixture(scope="module")
def record() -> RunRecord:
    settings = {"ranks": "4", "rate": "10GB/s", "latency": "1us", "switching": "roce-dcqcn"}
    faults = ("rank1=late,by=3us,at=1us", "a2->s0=slow,factor=0.5,at=2us,for=4us")
    with Session("star", settings=settings, driver="simulate", record=True, faults=faults) as session:
        session.run(function)
        return session.record()


@pytest.fixture(scope="module")
def timeline(record: RunRecord) -> Events:
    return list(events(record))


def tracks(found: Events, phases: str) -> dict[tuple[int, int], Events]:
    by_track: defaultdict[tuple[int, int], Events] = defaultdict(list)
    for event in found:
        if event["ph"] in phases:
            by_track[event["pid"], event["tid"]].append(event)
    return by_track


def test_slices_of_a_track_come_in_order_and_never_overlap(timeline: Events) -> None:
    """On each track time goes forward, and a slice begins when the one before it has ended, to the picosecond."""
    for its in tracks(timeline, "X").values():
        begins = [round(event["ts"] * 1e6) for event in its]
        ends = [round((event["ts"] + event["dur"]) * 1e6) for event in its]
        assert begins == sorted(begins)
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


def test_every_flow_has_both_ends_within_slices(timeline: Events, record: RunRecord) -> None:
    """Each chunk that both calls of are recorded is a flow: one start, a step for each link, one end, forward in time, and
    every point of it lies in a slice of its track."""
    flows: defaultdict[int, Events] = defaultdict(list)
    for event in timeline:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    assert len(flows) == len(record.sent) > 20
    slices = tracks(timeline, "X")
    for its in flows.values():
        its.sort(key=lambda event: "stf".index(event["ph"]))
        assert [event["ph"] for event in its] == ["s", "t", "t", "f"]
        assert [event["ts"] for event in its] == sorted(event["ts"] for event in its)
        for event in its:
            at = event["ts"]
            assert any(one["ts"] <= at <= one["ts"] + one["dur"] for one in slices[event["pid"], event["tid"]])


def test_every_track_is_named_once(timeline: Events, record: RunRecord) -> None:
    """There is a track for each rank and each link, and no event stands on one without a name."""
    names = [(event["pid"], event["tid"], event["args"]["name"]) for event in timeline if event["name"] == "thread_name"]
    named = {(process, track): name for process, track, name in names}
    assert set(tracks(timeline, "XCistf")) <= set(named)
    assert len({(process, name) for process, _, name in names}) == len({track for _, track, _ in names}) == len(names)
    assert set(record.links) <= set(named.values())
    assert {f"rank {rank} (a{rank})" for rank in range(4)} <= set(named.values())


def test_faults_are_instants_and_queues_are_counters(timeline: Events, record: RunRecord) -> None:
    """Each mark of the record is an instant at its time; each queue that had anything in it is a counter in bytes."""
    instants = [(event["ts"] * 1e6, event["args"]["component"], event["name"]) for event in timeline if event["ph"] == "i"]
    assert sorted(instants) == sorted((mark.time_ps, mark.component, mark.text) for mark in record.marks)
    assert len(instants) == 3
    counted = {event["name"] for event in timeline if event["ph"] == "C"}
    assert counted == {f"{record.links[hop.link]} queue" for hop in record.hops if hop.queued_bytes} != set()


def test_a_trace_file_is_json_and_gzipped_by_its_name(record: RunRecord, timeline: Events, tmp_path: Path) -> None:
    """Both files hold the same events; the same record gives the same bytes."""
    write_trace(record, tmp_path / "t.json")
    write_trace(record, tmp_path / "t.json.gz")
    plain = json.loads((tmp_path / "t.json").read_text())
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == plain
    assert plain["traceEvents"] == timeline
    with pytest.raises(ConfigError, match=r"No such file.*can be written"):
        write_trace(record, tmp_path / "nowhere" / "t.json")


def test_rank_files_are_what_hta_reads(record: RunRecord, tmp_path: Path) -> None:
    """A file for each rank names its rank as HTA's pattern finds it, has steps, kernels that its patterns take for communication,
    each launched once, and their sizes and groups in PyTorch's words."""
    paths = write_rank_traces(record, tmp_path)
    assert [path.name for path in paths] == [f"rank_{rank}.json.gz" for rank in range(4)]
    for rank, path in enumerate(paths):
        text = gzip.decompress(path.read_bytes()).decode()
        found = re.search(r'"rank":\s+(\d+)', text)
        assert found is not None and int(found[1]) == rank
        its = json.loads(text)["traceEvents"]
        steps = [event["name"] for event in its if event["cat"] == "user_annotation"]
        assert steps[0] == "ProfilerStep#0" and len(steps) == len(set(steps)) > 1
        kernels = {event["args"]["correlation"]: event for event in its if event["cat"] == "kernel"}
        launches = [event["args"]["correlation"] for event in its if event["cat"] == "cuda_runtime"]
        assert sorted(launches) == sorted(kernels)
        (gather,) = (one["args"] for one in kernels.values() if one["name"] == "ncclKernel_AllGather_RING_Half")
        assert (gather["In msg nelems"], gather["Out msg nelems"], gather["Group size"]) == (8, 16, 2)
        assert json.loads(gather["Process Group Ranks"]) == [rank % 2, rank % 2 + 2]


def test_dumps_are_what_torchfrtrace_reads(record: RunRecord, tmp_path: Path) -> None:
    """A pickle of plain containers for each rank: every call an entry, numbers that match over the ranks of a group, and the two
    halves of a pair that name each other."""
    paths = write_dumps(record, tmp_path)
    loaded = {int(path.name.removeprefix("rank_")): pickle.loads(path.read_bytes()) for path in paths}
    assert loaded == dumps(record)
    by_group: defaultdict[tuple[str, int], list[tuple[str, list[list[int]]]]] = defaultdict(list)
    for rank, dump in loaded.items():
        assert [entry["record_id"] for entry in dump["entries"]] == list(range(len(dump["entries"])))
        for entry in dump["entries"]:
            group = entry["process_group"][0]
            assert rank in json.loads(dump["pg_config"][group]["ranks"])
            if not entry["is_p2p"]:
                by_group[group, entry["collective_seq_id"]].append((entry["profiling_name"], entry["input_sizes"]))
        pairs = {(entry["process_group"][0], entry["profiling_name"]) for entry in dump["entries"] if entry["is_p2p"]}
        assert [entry["p2p_seq_id"] for entry in dump["entries"] if entry["is_p2p"]] == [1, 1]
        after, before = (rank + 1) % 4, (rank - 1) % 4
        assert pairs == {
            (f"1:{rank}->{after}", f"gloo:send {int(rank > after)}->{int(rank < after)}"),
            (f"1:{before}->{rank}", f"gloo:recv {int(rank > before)}<-{int(rank < before)}"),
        }
    assert all(len(set(map(repr, told))) == 1 for told in by_group.values())
    assert sorted(map(len, by_group.values())) == [2, 2, 4, 4, 4, 4]


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_lanes_hold_whatever_overlaps(spans: list[tuple[int, int]]) -> None:
    """Laid out in order of their beginnings, no two spans of a lane overlap, and there are no more lanes than overlap at once."""
    lanes = _Lanes()
    placed: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    ordered = sorted((begin, begin + length) for begin, length in spans)
    for begin, end in ordered:
        placed[lanes.place(begin, end)].append((begin, end))
    for its in placed.values():
        assert all(before[1] <= after[0] for before, after in pairwise(its))
    deepest = max((sum(b <= begin < max(e, b + 1) for b, e in ordered) for begin, _ in ordered), default=0)
    assert len(placed) <= max(deepest, bool(spans))
