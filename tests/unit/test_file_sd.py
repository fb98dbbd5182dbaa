"""The files that tell Prometheus of exporters: whole or not there, gone with their session."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from emu.telemetry.file_sd import directory, publish, sweep

ENDPOINTS = {"host-b": "10.0.0.2:9100", "host-a": "10.0.0.1:9100"}


def test_every_exporter_is_a_target_with_its_labels(tmp_path: Path) -> None:
    """One group for each node, with job, session and node, in file_sd's format."""
    path = publish(ENDPOINTS, "ab12", place=tmp_path / "new")
    assert json.loads(path.read_text()) == [
        {"targets": [f"10.0.0.{n}:9100"], "labels": {"job": "emu", "session": "ab12", "node": f"host-{name}"}}
        for n, name in ((1, "a"), (2, "b"))
    ]


def test_a_file_is_put_in_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that Prometheus reads there is nothing until all of it is written, and nothing else is left."""
    seen: list[tuple[list[str], str]] = []
    replaced = os.replace

    def spy(source: Path, target: Path) -> None:
        seen.append(([path.name for path in tmp_path.glob("*.json")], Path(source).read_text()))
        replaced(source, target)

    monkeypatch.setattr(os, "replace", spy)
    path = publish(ENDPOINTS, "ab12", place=tmp_path)
    assert seen == [([], path.read_text())]
    assert list(tmp_path.iterdir()) == [path] and path.suffix == ".json"


def test_files_of_processes_that_are_gone_are_swept(tmp_path: Path) -> None:
    """A session that was killed is forgotten by the next; those of the living and what is not emu's stay."""
    gone = 2**22 + 1  # above the largest process id of Linux
    for name in (f"emu-{gone}-aa.json", f"emu-{gone}-bb.new", "other.json", f"emu-{os.getppid()}-cc.json"):
        (tmp_path / name).write_text("[]")
    kept = publish(ENDPOINTS, "dd", place=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, "other.json", f"emu-{os.getppid()}-cc.json"}
    assert sweep(tmp_path) == ()


def test_where_the_files_are() -> None:
    """What the user says, else the runtime directory, else the home's cache."""
    assert directory({"EMU_FILE_SD": "/a", "XDG_RUNTIME_DIR": "/b"}) == Path("/a")
    assert directory({"XDG_RUNTIME_DIR": "/b"}) == Path("/b/emu/file_sd")
    assert directory({}) == Path.home() / ".cache/emu/file_sd"
