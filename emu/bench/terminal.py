"""What a run says: tables on stdout as the rows come, progress on stderr where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, TextIO

from emu.bench.fabrics import Case
from emu.bench.options import BenchOptions
from emu.bench.report import versions
from emu.bench.rows import Row
from emu.bench.runner import FabricResult
from emu.bench.table import Table

_CLEAR_LINE = "\r\x1b[K"
_WIDE: Final = 250
"""Characters of a line where nobody's window has an edge."""


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

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1) -> None:
        """A table of data, on stdout; the first ``n_left`` columns to the left, the others to the right.  It is as wide as
        it needs to be where stdout is no terminal."""
        from rich.box import SIMPLE_HEAD  # only this needs it, and the other commands are to be quick
        from rich.console import Console
        from rich.table import Table as RichTable

        self.clear()
        table = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD)
        for number, column in enumerate(columns):
            table.add_column(
                column, justify="left" if number < n_left else "right", overflow="fold", no_wrap=not self.out.isatty()
            )
        for row in rows:
            table.add_row(*row)
        Console(file=self.out, width=None if self.out.isatty() else _WIDE, highlight=False, markup=False).print(table)
        self.out.flush()

    def begin(self, case: Case, options: BenchOptions) -> None:
        self._table = Table(options, ratio=options is self._options)  # a second fabric of the same run
        self._options = options
        self.lines(*self._table.header(case, versions()))

    def row(self, row: Row, ratio: float | None) -> None:
        if self._table is not None:
            self.lines(self._table.row(row, ratio))

    def end(self, result: FabricResult) -> None:
        if self._table is not None:
            self.lines(*self._table.footer(result))
