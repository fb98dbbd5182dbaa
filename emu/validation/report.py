"""Report: errors as text, rows that parameters were fitted to apart from those that were held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from emu.units import format_bytes, microseconds
from emu.validation.aims import aim, misses, without_aim
from emu.validation.emulated import Emulated
from emu.validation.errors import Compared, groups, summary
from emu.validation.fit import Fitted
from emu.validation.shapes import Found
from emu.validation.tune import NCCL, Pair, Tuned

_HEADS: Final = ("fabric", "ranks", "collective", "rows", "geo mean %", "mean %", "median %", "worst %", "at", "aim %")
_WORDS: Final = frozenset({"fabric", "collective", "at", "parameter", "shape", "source", "unit", "by"})
UNEXPLAINED: Final = (
    "alltoall at 2, 16 and 32 KiB on the H100 jumps to twice its neighbours' time, and on the A100 times of short messages"
    " alternate between two levels: no size of a message, channel or protocol changes there",
    "on the B200 all_gather and reduce_scatter jump by 50 us at 16 MiB, where NCCL's tuner as published would stay with LL128",
    "Simple on 2 ranks takes up to a third longer between 1 and 32 MiB than the parameters that suit 8 ranks say",
    "NVLS on the B200 takes up to 30 % longer between 4 and 64 MiB than its rate at 256 MiB says",
    "on the RTX PRO 6000 times on 2 ranks come out a third to three quarters too long, short and long ones, 2.4 times at 256 KiB:"
    " two GPUs have up to 39 GB/s of bus bandwidth where eight have 24; how its host joins them is not published, and here all"
    " pairs are alike",
)
"""What the parameters leave over, for the end of the table."""


def table_lines(rows: Iterable[Compared], *, shipped: bool = True) -> list[str]:
    """Both tables, and of shipped measurements what was missed and what is not explained."""
    compared = list(rows)
    lines = []
    for fitted, title in (
        (False, "held out: nothing was fitted to these rows"),
        (True, "fitted: parameters come from these rows"),
    ):
        its = {key: found for key, found in groups(compared).items() if key[-1] == fitted}
        if not its:
            continue
        for table in dict.fromkeys(key[0] for key in its):
            cells = [_cells(key[1], found) for key, found in its.items() if key[0] == table]
            lines += [f"# {table}, {title}", *aligned(_HEADS, cells), ""]
    if not shipped:
        return lines
    missed = misses(compared)
    lines += [f"# aim missed: {text}" for text in missed] or ["# all aims met"]
    lines += [f"# no aim was set for {fabric}; its errors are as they come out" for fabric in without_aim(compared)]
    lines += [f"# not explained: {text}" for text in UNEXPLAINED]
    return lines


def size_lines(rows: Sequence[Compared]) -> list[str]:
    """Signed errors in % by size, a table for each fabric and number of ranks; ``*`` is a fitted row, a letter the protocol."""
    lines = []
    for fabric, n_ranks in dict.fromkeys((row.measurement.fabric, row.measurement.n_ranks) for row in rows):
        its = [row for row in rows if (row.measurement.fabric, row.measurement.n_ranks) == (fabric, n_ranks)]
        collectives = tuple(dict.fromkeys(row.measurement.collective for row in its))
        by_cell = {
            (row.measurement.size_bytes, row.measurement.collective): row for row in its if row.measurement.table == "one_node"
        }
        cells = [
            (format_bytes(size_bytes), *(_signed(by_cell.get((size_bytes, collective))) for collective in collectives))
            for size_bytes in sorted({size_bytes for size_bytes, _ in by_cell})
        ]
        lines += [f"# {fabric}, {n_ranks} ranks: error in %, * fitted", *aligned(("size", *collectives), cells), ""]
    return lines


def fit_lines(fitted: Fitted) -> list[str]:
    """The parameters with their confidence."""
    cells = [
        (its.prior.name, f"{its.value:.4g} {its.prior.unit}".rstrip(), f"{100 * its.deviation:.0f}", f"{100 * its.told:.0f}")
        for its in fitted.parameters
    ]
    return aligned(("parameter", "value", "+- %", "from rows %"), cells)


def shape_lines(rows: Sequence[Found]) -> list[str]:
    """Expected and found."""
    cells = [
        (
            row.shape.what,
            f"{row.shape.expected:.4g}",
            f"{row.value:.4g}",
            row.shape.unit or "x",
            f"{100 * row.error:+.1f}",
            f"{100 * row.shape.tolerance:.0f}",
            "yes" if row.holds else "MISS",
            row.shape.source,
        )
        for row in rows
    ]
    heads = ("shape", "expected", "found", "unit", "error %", "of %", "holds", "source")
    n_missed = sum(not row.holds for row in rows)
    return [*aligned(heads, cells), "", f"# {len(rows) - n_missed} of {len(rows)} shapes hold"]


def emulated_lines(rows: Sequence[Emulated]) -> list[str]:
    """Times of the sample: measured, simulated, and emulated with the guard's word on them."""
    cells = []
    for row in rows:
        its, side = row.compared.measurement, row.row.out_of_place
        cells.append(
            (
                its.fabric,
                str(its.n_ranks),
                its.collective,
                format_bytes(its.size_bytes),
                f"{row.compared.algorithm} {row.compared.protocol}",
                f"{its.time_us:.2f}",
                f"{row.compared.simulated_us:.2f}",
                f"{microseconds(side.time_ps):.2f}",
                "-" if side.late is None else f"{100 * side.late:+.2f}",
                str(side.verdict),
                str(side.n_wrong),
                f"{side.dilation or 0:g}",
            )
        )
    heads = ("fabric", "ranks", "collective", "size", "by", "measured us", "simulated us", "emulated us", "late %", "verdict")
    return aligned((*heads, "#wrong", "dilation"), cells)


TUNED_CAPTION: Final = (
    "# best: pair of algorithm and protocol of the smallest simulated time; * is emu's own, NCCL has no such algorithm",
    "# NCCL's best: of the pairs that NCCL's tuner knows; nccl: what it takes; predict: what emu takes",
    "# regret: time of the choice over that of the best pair, 1 is none; of its own: over NCCL's best",
    "# NCCL's tuner here knows ring, tree, nvls, nvlstree and grouped sends and receives, not CollNet or PAT",
)


def tuned_lines(rows: Sequence[Tuned]) -> list[str]:
    """Best pairs, choices and regrets by size."""

    def pair(its: Tuned, pair: Pair) -> tuple[str, str]:
        return " ".join(pair) + ("*" if pair in its.own else " "), f"{microseconds(its.times_ps[pair]):.1f}"

    def chosen(its: Tuned, tuner: str) -> tuple[str, ...]:
        found = pair(its, its.choices[tuner])[0], f"{its.regret(tuner):.2f}"
        return (*found, f"{its.known_regret:.2f}") if tuner == NCCL else found

    tuners = tuple(rows[0].choices) if rows else ()
    cells = [
        (
            format_bytes(its.size_bytes),
            *pair(its, its.best),
            *pair(its, its.best_known),
            *(cell for tuner in tuners for cell in chosen(its, tuner)),
        )
        for its in rows
    ]
    regrets = {tuner: ("regret", "of its own") if tuner == NCCL else ("regret",) for tuner in tuners}
    heads = ("size", "best ", "us", "NCCL's best ", "us", *(head for tuner in tuners for head in (f"{tuner} ", *regrets[tuner])))
    return [*TUNED_CAPTION, "", *aligned(heads, cells)]


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be, words to the left and figures to the right."""
    widths = [max(len(head), *(len(row[i]) for row in rows)) if rows else len(head) for i, head in enumerate(heads)]

    def line(cells: Sequence[str]) -> str:
        put = (
            cell.ljust(width) if head in _WORDS else cell.rjust(width)
            for head, cell, width in zip(heads, cells, widths, strict=True)
        )
        return "  ".join(put).rstrip()

    return [line(heads), "-" * len(line(heads)), *(line(row) for row in rows)]


def _cells(fabric: str, rows: Sequence[Compared]) -> tuple[str, ...]:
    found, its = summary(rows), rows[0].measurement
    wanted = aim(rows[0])
    shares = (found.geometric_mean, found.mean, found.median, abs(found.worst.error))
    return (
        fabric,
        str(its.n_ranks),
        its.collective,
        str(found.n_rows),
        *(f"{100 * share:.1f}" for share in shares),
        format_bytes(found.worst.measurement.size_bytes),
        "-" if wanted is None else f"{100 * wanted:.0f}",
    )


def _signed(row: Compared | None) -> str:
    return "-" if row is None else f"{100 * row.error:+.0f} {row.protocol}{'*' if row.fitted else ' '}"
