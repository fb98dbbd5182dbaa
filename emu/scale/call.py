"""OneCall: the question that this room answers, and what it answers.

All ranks make the call at model time 0 on a fabric at rest: no warm-up, no barrier before it, no call behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from emu.collectives.call import PER_RANK, Call, auto_chunk_bytes, check_chunk_bytes, chunk_elements, split
from emu.fabric.window import chunk_limit_bytes
from emu.impairments.base import BaseImpairment
from emu.topologies.graph import Topology

Times: TypeAlias = npt.NDArray[np.int64]
"""Picoseconds, or other whole numbers, of many at once."""


class NotExact(Exception):
    """Why arithmetic does not give what the machines would: then they have to be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCall:
    """``count``: elements as NCCL counts them; ``chunk_bytes`` None is automatic."""

    topology: Topology
    impairments: dict[int, tuple[tuple[BaseImpairment, int | None], ...]]
    collective: str
    algorithm: str
    count: int
    itemsize: int
    dtype: str = "uint8"
    op: str | None = None
    root: int | None = None
    chunk_bytes: int | None = None
    channels: int = 1

    def chunks(self, n_blocks: int, *, exactly: bool = True) -> tuple[int, list[int], list[int]]:
        """(chunk_bytes, the chunks of a full block, those of the last block), in bytes.  Blocks are messages of one slot.

        Raises NotExact where, ``exactly``, blocks are left empty, or the last one has fewer chunks: then steps fall away.
        """
        if self.collective in PER_RANK:
            share = last = self.count
        else:
            blocks = split(self.count, n_blocks)
            share, last = blocks[0][1], blocks[-1][1]
        chunk_bytes = self.chunk_bytes
        if chunk_bytes is None:
            size_bytes = self.count * self.itemsize
            block_bytes = size_bytes if self.collective in PER_RANK else -(-size_bytes // n_blocks)
            chunk_bytes = min(auto_chunk_bytes(block_bytes), chunk_limit_bytes(self.topology))
        call = Call(
            collective=self.collective,
            count=self.count,
            dtype=self.dtype,
            itemsize=self.itemsize,
            chunk_bytes=check_chunk_bytes(chunk_bytes),
        )
        per_chunk = chunk_elements(call, share, 1)
        full, short = (
            [min(per_chunk, length - begin) * self.itemsize for begin in range(0, length, per_chunk)] for length in (share, last)
        )
        if exactly and (not short or len(full) != len(short)):
            raise NotExact(f"{self.count} elements leave the last of {n_blocks} blocks with fewer chunks than the others")
        return chunk_bytes, full, short


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``completed_ps``: by rank.  ``method``: how it was found, for the table."""

    completed_ps: tuple[int, ...]
    method: str
    chunk_bytes: int
    wire_bytes_per_rank_max: int
