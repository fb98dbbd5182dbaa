"""Files that a user asked for are there whole, or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emu.bench.report import check_writable, write_new
from emu.errors import ConfigError
from emu.host import write_whole


@contextmanager
def little_room() -> Iterator[None]:
    """No file may be longer than 10 bytes, as if the disk were full; no longer than need be, as pytest writes to files too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_the_disk_is_full_the_error_names_the_file_and_no_stub_stays(tmp_path: Path) -> None:
    """What does not fit raises OSError with the file's name, and leaves the folder as it was."""
    with pytest.raises(OSError, match=r"out\.json"), little_room():
        write_whole(tmp_path / "out.json", "x" * 100)
    with pytest.raises(OSError, match=r"out\.json"), little_room():
        write_new(tmp_path / "out.json", {"key": "x" * 100})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_already_is_kept(tmp_path: Path) -> None:
    """JSON goes to the first free name, and asking whether there is room leaves nothing."""
    path = tmp_path / "out.json"
    path.write_text("mine", encoding="utf-8")
    assert [write_new(path, {}).name for _ in range(2)] == ["out.json.0", "out.json.1"]
    check_writable("--json", path)
    assert path.read_text(encoding="utf-8") == "mine"
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(ConfigError, match="--json"):
        check_writable("--json", tmp_path / "none" / "out.json")
