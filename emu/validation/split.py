"""Split: which rows the presets' parameters are fitted to; all others are held out.

Of every machine all_reduce and alltoall over 8 ranks, and of those every second size: 1 KiB, 4 KiB, 16 KiB, ...
"""

from __future__ import annotations

from typing import Final

from emu.validation.measurement import Measurement

FITTED_TABLE: Final = "one_node"
FITTED_COLLECTIVES: Final = frozenset({"all_reduce", "alltoall"})
FITTED_RANKS: Final = 8


def is_fitted(measurement: Measurement) -> bool:
    """Whether the shipped presets were fitted to this row."""
    its = measurement
    ours = its.table == FITTED_TABLE and its.collective in FITTED_COLLECTIVES and its.n_ranks == FITTED_RANKS
    return ours and is_every_second(its)


def is_every_second(measurement: Measurement) -> bool:
    """Sizes that are even powers of two, as nccl-tests' ``-f 2`` has every second one; of others about a half."""
    return measurement.size_bytes.bit_length() % 2 == 1
