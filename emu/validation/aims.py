"""Aims: the geometric mean of held-out errors that emu sets itself, by ranks; and which groups miss theirs.

8 ranks: 8 %, and 12 % for alltoall on the H100, whose figures jump.  2 ranks, with the same parameters: 15 %.  They are for
machines with NVLink: no aim was set for GPUs on PCIe, nor for published figures of other machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from emu.validation.errors import Compared, groups, summary
from emu.validation.split import FITTED_TABLE

AIMED: Final = frozenset({"a100-8-nccl", "b200-8-nccl", "h100-8-nccl"})
BY_RANKS: Final = {8: 0.08, 2: 0.15}
JUMPING: Final = ("h100-8-nccl", "alltoall", 8)
JUMPING_AIM: Final = 0.12


def aim(row: Compared) -> float | None:
    """Of the group that the row is in, as a fraction; None where there is none."""
    its = row.measurement
    if row.fitted or its.table != FITTED_TABLE or its.fabric not in AIMED:
        return None
    return JUMPING_AIM if (its.fabric, its.collective, its.n_ranks) == JUMPING else BY_RANKS.get(its.n_ranks)


def without_aim(rows: Iterable[Compared]) -> list[str]:
    """The fabrics for which none was set, though parameters are fitted to rows of theirs."""
    its = (row.measurement for row in rows if row.measurement.table == FITTED_TABLE)
    return list(dict.fromkeys(measurement.fabric for measurement in its if measurement.fabric not in AIMED))


def misses(rows: Iterable[Compared]) -> list[str]:
    """A line for each group whose error is beyond its aim."""
    found = []
    for (_, fabric, n_ranks, collective, _), its in groups(rows).items():
        wanted, error = aim(its[0]), summary(its).geometric_mean
        if wanted is not None and error > wanted:
            found.append(f"{fabric} {collective} over {n_ranks} ranks is off by {100 * error:.1f} %, aim {100 * wanted:.0f} %")
    return found
