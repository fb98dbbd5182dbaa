"""The run file: everything to repeat a run, and a refusal where the case is not the same any more."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import CALIBRATION, FakeOpener, Recorder

from emu.bench import commands, report, run_file, runner
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.errors import ConfigError

FABRIC = """
[topology]
kind = "star"
ranks = 3
rate = "1GB/s"
"""
OPTIONS = BenchOptions(
    collective="all_reduce",
    begin_bytes=1024,
    end_bytes=2048,
    step_factor=2,
    driver="simulate",
    settings=(("ranks", "4"),),
    seed=7,
)


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FABRIC)
    return path


def written(options: BenchOptions, path: Path) -> Path:
    results = runner.run(options, Recorder(), open_session=FakeOpener(), calibration=lambda: CALIBRATION)
    record = report.RunRecord(options=options, results=results, arguments=(), started="s", ended="e", calibration=None)
    return report.write_new(path, run_file.run_document(record))


def rerun(path: Path, **how: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = commands.rerun(path, terminal=Terminal(out, err), opened=FakeOpener(**how))
    return code, out.getvalue(), err.getvalue()


def test_options_survive(fabric: Path, tmp_path: Path) -> None:
    """What is read from a run file are the options that were written, to the last field."""
    options = replace(OPTIONS, fabrics=(str(fabric),), impairments=("a0->s0=latency,added=1us",), chunk_bytes=65536)
    assert run_file.read(written(options, tmp_path / "run.json")).options == options


def test_another_switching_is_another_fabric(tmp_path: Path) -> None:
    """A run file holds the switching, exact fractions too, and a rerun under other rules is refused."""
    options = replace(OPTIONS, fabrics=("star",), settings=(("ranks", "4"), ("rate", "400Gbit/s"), ("switching", "roce-pfc")))
    recorded = run_file.read(written(options, tmp_path / "run.json"))
    assert recorded.fabrics[0]["switching"]["classes"][0]["discipline"] == "pause"
    run_file.check_same_fabrics(recorded)
    recorded.fabrics[0]["switching"]["alpha"] = "1/3"
    with pytest.raises(ConfigError, match="switching of fabric 'star' changed"):
        run_file.check_same_fabrics(recorded)


def test_rerun_repeats_and_compares(fabric: Path, tmp_path: Path) -> None:
    """A rerun prints the table again and says how many rows have the same model times."""
    path = written(replace(OPTIONS, fabrics=(str(fabric),)), tmp_path / "run.json")
    code, out, err = rerun(path)
    assert code == 0 and "# Collective test concluded: all_reduce_perf" in out
    assert "2 of 2 rows" in err
    assert "0 of 2 rows" in rerun(path, model_ps=10_000_001)[2]


def test_a_changed_fabric_is_refused(fabric: Path, tmp_path: Path) -> None:
    """When the fabric's file now says something else, the rerun names the fabric and what changed, and runs nothing."""
    path = written(replace(OPTIONS, fabrics=(str(fabric),)), tmp_path / "run.json")
    fabric.write_text(FABRIC.replace("1GB/s", "2GB/s"))
    with pytest.raises(ConfigError, match=r"links of fabric .*mine\.toml.* changed"):
        rerun(path)


def test_changed_versions_are_told(fabric: Path, tmp_path: Path) -> None:
    """Another version of numpy is no reason to refuse, but is said."""
    path = written(replace(OPTIONS, fabrics=(str(fabric),)), tmp_path / "run.json")
    plain = json.loads(path.read_text())
    plain["report"]["emu"]["versions"]["numpy"] = "0.1"
    path.write_text(json.dumps(plain))
    assert "# versions have changed: numpy 0.1 -> " in rerun(path)[2]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"emu_run_file": 2}', '{"emu_run_file": 1}', '{"emu_run_file": 1, "report": 3}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """What is no run file is a ConfigError that names the file and how to make one."""
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json.*write one with emu bench --run-file"):
        run_file.read(path)


def test_unknown_option_is_refused() -> None:
    """An option of another version is named, with the nearest that is known."""
    with pytest.raises(ConfigError, match=r"option 'sed' is not known \(did you mean 'seed'"):
        BenchOptions.from_plain({"collective": "all_reduce", "sed": 1})


def test_resolved_fabric_says_everything() -> None:
    """The resolved fabric has every node and link, the router with its seed, and the placement."""
    case = runner.prepare(replace(OPTIONS, fabrics=("clos",), settings=(), rank_map="a3,a1"), "clos", 7)
    plain = run_file.resolved_fabric(case)
    assert plain["router"] == {"kind": "ShortestPath", "seed": 7, "spread": 1}
    assert plain["ranks"] == ["a3", "a1"]
    assert len(plain["links"]) == len(case.topology.links) and len(plain["nodes"]) == len(case.topology.nodes)
    assert plain["links"][0]["rate_bps"] == case.topology.links[0].rate_bps
