"""What a run says: tables on stdout as the rows come, progress on stderr where that is a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from emu.bench.fabrics import Case
from emu.bench.options import BenchOptions
from emu.bench.report import versions
from emu.bench.rows import Row
from emu.bench.runner import FabricResult
from emu.bench.table import Table

_CLEAR_LINE = "\r\x1b[K"


class Terminal:
    """An observer that prints.  The progress line is taken back before anything else is printed."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.err = sys.stderr if err is None else err
        self._live = self.err.isatty()
        self._shown = False
        self._options: BenchOptions | None = None
        self._table: Table | None = None

    def progress(self, text: str) -> None:
        if self._live:
            self.err.write(f"{_CLEAR_LINE}{text} ...")
            self.err.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the progress line back."""
        if self._shown:
            self.err.write(_CLEAR_LINE)
            self.err.flush()
            self._shown = False

    def message(self, text: str) -> None:
        """A line that stays, on stderr."""
        self.clear()
        self.err.write(f"{text}\n")
        self.err.flush()

    def lines(self, *lines: str) -> None:
        """Lines of data, on stdout."""
        self.clear()
        self.out.write("".join(f"{line}\n" for line in lines))
        self.out.flush()

    def begin(self, case: Case, options: BenchOptions) -> None:
        is_second = options is self._options  # fabric of the same run
        self._table = Table(options, ratio=is_second, proto=case.topology.endpoint is not None)
        self._options = options
        self.lines(*self._table.header(case, versions()))

    def row(self, row: Row, ratio: float | None) -> None:
        if self._table is not None:
            self.lines(self._table.row(row, ratio))

    def end(self, result: FabricResult) -> None:
        if self._table is not None:
            self.lines(*self._table.footer(result))
