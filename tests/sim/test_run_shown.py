"""From one recorded run to everything that shows it, by the command line."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from emu import cli

RUN = [
    "predict",
    "alltoall",
    "--fabric",
    "clos",
    "--set",
    "switching=roce-dcqcn",
    "-b",
    "64K",
    "-e",
    "256K",
    "-f",
    "4",
    "-n",
    "2",
]


def test_a_run_is_shown_in_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page, a timeline, HTA's files and flight recorder dumps are written from one run's files; an unknown format, a folder
    that is a file and a run that is no record are usage mistakes of one line."""
    run, record = tmp_path / "run.json", tmp_path / "run.record"
    assert cli.main([*RUN, "--run-file", str(run), "--record", str(record)]) == 0
    assert cli.main(["report", str(run), str(record), "-o", str(tmp_path / "run.html"), "--call", "1"]) == 0
    assert "alltoall on clos" in (tmp_path / "run.html").read_text()
    for arguments in ([], ["--format", "hta"], ["--format", "flight-recorder", "-o", str(tmp_path / "dumps")]):
        assert cli.main(["trace", str(record), *arguments]) == 0
    events = json.loads(gzip.decompress((tmp_path / "run.trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) > 0
    assert len(list((tmp_path / "run.hta").iterdir())) == 16
    dumps = [pickle.loads(path.read_bytes()) for path in (tmp_path / "dumps").iterdir()]
    assert len(dumps) == 16
    assert {entry["profiling_name"] for dump in dumps for entry in dump["entries"]} == {"gloo:all_to_all", "gloo:barrier"}
    assert "torchfrtrace -p rank_" in capsys.readouterr().err
    for arguments, message in (
        (["trace", str(record), "--format", "chrom"], "did you mean 'chrome'"),
        (["trace", str(record), "--format", "hta", "-o", str(run)], "name a folder"),
        (["trace", str(run)], "Not a gzipped file"),
    ):
        assert cli.main(arguments) == 2
        told = capsys.readouterr().err
        assert message in told and told.count("\n") == 1
