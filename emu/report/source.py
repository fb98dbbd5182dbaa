"""What a report is made from: a run file (``emu bench --run-file``), a record (``--record``), or one of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from emu.bench import run_file
from emu.errors import ConfigError
from emu.telemetry.record import RunRecord, load_record

Plain = dict[str, Any]
_GZIP: Final = b"\x1f\x8b"
"""Records are gzipped, run files are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was read.  ``report`` is the run file's, in nccl-tests' structure."""

    report: Plain | None = None
    run_path: Path | None = None
    record: RunRecord | None = None

    @property
    def rows(self) -> list[Plain]:
        return [] if self.report is None else list(self.report["results"])


def read(paths: Sequence[Path]) -> Source:
    """Raises ConfigError: a file that is neither, or two of a kind."""
    found = Source()
    for path in paths:
        if _is_gzipped(path):
            if found.record is not None:
                raise ConfigError(f"{path}: a second record; a report is of one run, give one record and one run file at most")
            found = Source(report=found.report, run_path=found.run_path, record=load_record(path))
        else:
            if found.report is not None:
                raise ConfigError(f"{path}: a second run file; a report is of one run, give one record and one run file at most")
            found = Source(report=run_file.read(path).report, run_path=path, record=found.record)
    return found


def _is_gzipped(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == _GZIP
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give what emu bench --run-file or --record wrote") from None
