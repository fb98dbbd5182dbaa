"""Emulated: a sample of the measured rows by Ray actors that move and check the data, each with the guard's verdict.

The sample is stated: of a table's rows up to :data:`MOST_BYTES` steps of the golden ratio through all of them, by collective and
size, so that any number is spread over collectives, sizes and machines.  Each is one call on a session of its own, at the
dilation that suits this host, with the algorithm that the simulator took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from emu.bench.commands import calibration_source, open_session
from emu.bench.fabrics import prepare
from emu.bench.options import BenchOptions
from emu.bench.rows import Row
from emu.bench.runner import seed_rows
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.validation.compare import compare
from emu.validation.errors import Compared
from emu.validation.measurement import Measurement
from emu.validation.split import FITTED_TABLE

MOST_BYTES: Final = 16 * 2**20
"""Longer calls would keep a small host busy for minutes."""
GOLDEN: Final = 0.618034


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """A measured row, what the simulator says of it, and what the emulator did."""

    compared: Compared
    row: Row


def sample(measurements: Sequence[Measurement], n_rows: int) -> list[Measurement]:
    """So many of them, all different.  Raises ConfigError where there are not as many."""
    able = [row for row in measurements if row.table == FITTED_TABLE and row.size_bytes <= MOST_BYTES]
    if not 1 <= n_rows <= len(able):
        raise ConfigError(f"--emulate {n_rows}: use 1 to {len(able)}, the rows of up to {MOST_BYTES // 2**20} MiB")
    left = sorted(able, key=lambda row: (row.collective, row.size_bytes))
    return [left.pop(int((number + 1) * GOLDEN % 1 * len(left))) for number in range(n_rows)]


def emulate(measurements: Sequence[Measurement], terminal: Terminal) -> Iterator[Emulated]:
    """Row by row.  Raises EmuError."""
    calibration = calibration_source(terminal, None, open_session)
    calibration()  # before a session is open, which its own would disturb
    for compared in compare(measurements, terminal.progress):
        its = compared.measurement
        options = BenchOptions(
            collective=its.collective,
            fabrics=(its.fabric,),
            n_ranks=its.n_ranks,
            begin_bytes=its.size_bytes,
            end_bytes=its.size_bytes,
            step_factor=2,
            iterations=1,
            warmup=0,
            dtype="half",
            algorithm=compared.algorithm,
        )
        rows = seed_rows(prepare(options, its.fabric, 0), options, terminal, open_session, calibration, in_place=False)
        for row in rows:
            yield Emulated(compared=compared, row=row)
