"""The report as a page: one file that loads nothing, with whatever users named escaped."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from emu.bench.commands import bench
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.fabric.account import CAUSES
from emu.rank import Rank
from emu.report.build import build, report
from emu.report.figures import busbw, causes_by_rank, lateness, link_use, traffic
from emu.report.page import Page
from emu.report.source import Source, read
from emu.report.timeline import chosen, timeline
from emu.session import Session
from emu.telemetry.record import RunRecord, load_record

NASTY = "<script>alert(1)</script>&\"'"
OPTIONS = BenchOptions(
    collective="all_reduce", fabrics=("star",), settings=(("ranks", "4"),), driver="simulate", begin_bytes=1024, end_bytes=4096,
    step_factor=4.0, iterations=2, warmup=0, faults=("rank1=late,by=2us,at=1us",),
)  # fmt: skip


def quiet() -> Terminal:
    return Terminal(io.StringIO(), io.StringIO())


def function(rank: Rank) -> None:
    if rank.index == 1:
        rank.compute(us=3)
    rank.comm.all_reduce(np.ones(1 << 12, np.float32), algorithm="ring")
    rank.comm.barrier()


@pytest.fixture(scope="module")
def record() -> RunRecord:
    with Session("star", settings={"ranks": "4"}, driver="simulate", record=True) as session:
        session.run(function)
        return session.record()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run file and a record of one simulated run."""
    folder = tmp_path_factory.mktemp("run")
    paths = folder / "run.json", folder / "run.record"
    bench(OPTIONS, arguments=("emu", "predict", "all_reduce", "it's"), run_path=paths[0], record_path=paths[1], terminal=quiet())
    return paths


class _Reader(HTMLParser):
    """What a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data", "action", "srcset", "poster")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_is_well_formed(files: tuple[Path, Path]) -> None:
    """No element of it has an address, plotly's script is there once, every element is closed, every section is there."""
    text = build(read(files)).html()
    page = _Reader(text.replace(get_plotlyjs(), ""))
    assert page.addresses == [] and page.open == []
    assert not re.search(r"<link|@import|url\(\s*['\"]?http", text[: text.index("<script>")])
    assert text.count("plotly.js v") == 1
    sections = re.findall(r"<h2>(.*?)</h2>", text)
    assert sections == [
        "Results", "Bus bandwidth by size", "Calls in the record", "Time by cause", "Links", "Timeline of one iteration",
        "Fidelity", "How to reproduce",
    ]  # fmt: skip
    assert len(re.findall(r'id="figure-\d+"', text)) == 6
    assert "emu predict all_reduce &#x27;it&#x27;&quot;&#x27;&quot;&#x27;s&#x27;" in text and "emu rerun" in text


def test_a_run_file_or_a_record_alone_will_do(files: tuple[Path, Path]) -> None:
    """Each makes a page of the sections that it has; the run file's rows stand in the table as they are."""
    run_only, record_only = (build(read([path])).html() for path in files)
    assert "Timeline" not in run_only and "Links" not in re.findall(r"<h2>(.*?)</h2>", run_only)
    assert "Results" not in re.findall(r"<h2>(.*?)</h2>", record_only) and "Timeline" in record_only
    rows = json.loads(files[0].read_text())["report"]["results"]
    assert [row["size"] for row in rows] == [1024, 4096]
    for row in rows:
        assert f"<td>{row['out_of_place']['time']:.2f}</td>" in run_only
        assert sum(row["out_of_place"]["emu"]["time_by_cause"].values()) == pytest.approx(1)


def test_a_rows_causes_are_those_of_its_last_calls(files: tuple[Path, Path]) -> None:
    """What the run file says of a loop is, over all ranks, what the record says of the call that ended it."""
    side = json.loads(files[0].read_text())["report"]["results"][-1]["in_place"]["emu"]
    record = load_record(files[1])
    last = {call.rank: call.split_ps for call in record.calls if call.collective == "all_reduce"}
    spent = [sum(its) for its in zip(*last.values(), strict=True)]
    assert side["time_by_cause"] == pytest.approx({CAUSES[cause]: ps / sum(spent) for cause, ps in enumerate(spent) if ps})
    assert len(side["time_by_cause"]) > 2


def test_what_users_named_is_escaped(record: RunRecord, files: tuple[Path, Path]) -> None:
    """Names of nodes, links, fabrics and faults cannot open an element, in tables or in figures."""
    ends = (NASTY, *record.ends[1:])
    links = tuple(name.replace("a0", NASTY) for name in record.links)
    nasty = record.model_copy(update={"ends": ends, "links": links, "fabric": NASTY})
    plain: dict[str, Any] = json.loads(files[0].read_text().replace('"star"', json.dumps(NASTY)))["report"]
    text = build(Source(report=plain, run_path=Path(NASTY), record=nasty)).html()
    assert NASTY in "".join(plain["emu"]["options"]["fabrics"])
    assert "<script>alert" not in text and "\\u003cscript\\u003ealert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_figures_add_up(record: RunRecord) -> None:
    """Stacked causes of a rank sum to the time of its calls and computation; the traffic is what was sent; no link is busier than
    always; the bars of a timeline are the call's time."""
    stacked = causes_by_rank(record)
    of_rank_1 = sum(bar.y[1] for bar in stacked.data)
    calls = [call for call in record.calls if call.rank == 1]
    assert of_rank_1 == pytest.approx(3 + sum(call.completed_ps - call.started_ps for call in calls) / 1e6)
    assert np.sum(traffic(record).data[0].z) * 1e6 == pytest.approx(sum(sent.n_bytes for sent in record.sent))
    use = link_use(record).data[0].z
    assert 0 < np.max(use) <= 100
    slowest = chosen(record, None)
    assert {call.collective for call in slowest} == {"all_reduce"} and len(slowest) == 4
    drawn = sum(sum(bars.x) for bars in timeline(record, slowest).data)
    assert drawn == pytest.approx(sum(call.completed_ps - call.started_ps for call in slowest) / 1e6)


def test_figures_name_sizes_alike_and_leave_room_for_buttons(record: RunRecord, files: tuple[Path, Path]) -> None:
    """Bandwidth and lateness have the rows' sizes along the same axis; plotly's buttons, 30 pixels high, hide no cell."""
    rows = json.loads(files[0].read_text())["report"]["results"]
    for row in rows:
        row["out_of_place"]["emu"]["late"] = row["in_place"]["emu"]["late"] = 0.001
    axes = [draw(rows).layout.xaxis for draw in (busbw, lateness)]
    assert [axis.ticktext for axis in axes] == [("1 KiB", "4 KiB")] * 2
    assert link_use(record).layout.margin.t > 30


def test_a_timeline_that_lacks_events_says_so(record: RunRecord) -> None:
    """A record that was full still makes a page, which says what was left out and why there is no timeline."""
    short = record.model_copy(update={"hops": (), "n_left_out": len(record.hops)})
    text = build(Source(record=short)).html()
    assert "There is none: the record lacks" in text and "events: the record was full" in text


def test_what_is_no_run_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Missing and foreign files, two of a kind, a call without a record or beyond it: a ConfigError of one line with the fix."""
    run_path, record_path = files
    (tmp_path / "x.json").write_text("{}")
    cases: list[tuple[list[Path], int | None, str]] = [
        ([tmp_path / "none"], None, "No such file"),
        ([tmp_path / "x.json"], None, "emu_run_file is None"),
        ([run_path, run_path], None, "a second run file"),
        ([record_path, record_path], None, "a second record"),
        ([run_path], 1, "--call 1: only a record has calls"),
        ([record_path], 99, "--call 99: the record has calls 0 to"),
    ]
    for paths, call, message in cases:
        with pytest.raises(ConfigError, match=message) as caught:
            report(paths, tmp_path / "out.html", call=call, terminal=quiet())
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.html").exists()
    with pytest.raises(ConfigError, match=r"-o .*nowhere"):
        report([run_path], tmp_path / "nowhere" / "out.html", terminal=quiet())


def test_cells_are_aligned_by_what_they_are() -> None:
    """Words stand on the left, figures on the right, verdicts have their colour, and all of it is escaped."""
    page = Page("t")
    page.table(("verdict", "n"), [("degraded", "1"), ("ok", "<b>")])
    text = page.html()
    assert '<th class="word">verdict</th><th>n</th>' in text
    assert '<td class="word degraded">degraded</td><td>1</td>' in text and '<td class="word ok">ok</td><td>&lt;b&gt;</td>' in text
    assert "<script>" not in text
