"""Call: what a rank asks of its communicator, and how its buffers are cut up.

Law: everything that two ranks must agree on is in the call's ``signature``; the
digest of it travels with every frame, so that a mismatch is seen at the first one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

from emu.errors import ConfigError

KIB = 1024
MIN_AUTO_CHUNK_BYTES = 128 * KIB
MAX_AUTO_CHUNK_BYTES = 2048 * KIB
MAX_CHUNK_BYTES = 64 * 1024 * KIB
MIN_CHANNEL_BYTES = 4 * KIB
"""A block is not dealt over several channels in pieces smaller than this."""

PER_RANK = frozenset({"all_gather", "reduce_scatter", "gather", "scatter", "alltoall"})
"""Collectives whose count is per rank (or per peer), as in NCCL's API."""
REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective, or one half of a send/recv pair.

    ``count``: elements, as NCCL counts them: the whole buffer for all_reduce, broadcast and
    reduce; per rank or per peer otherwise; the message for send and recv.
    """

    collective: str
    count: int
    dtype: str
    itemsize: int
    op: str | None = None
    root: int | None = None
    algorithm: str = "direct"
    channels: int = 1
    chunk_bytes: int = MAX_AUTO_CHUNK_BYTES
    protocol: str = ""
    """Of the kernels on the accelerator (``emu/protocols``); "" where they cost nothing."""
    n_hosts: int = 1
    """Hosts of its members, as over several of them kernels have fewer channels; 1 where they cost nothing."""
    traffic_class: int = 0
    """Index of the fabric's traffic class that its messages travel in."""

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """What every rank must say alike; a sender and a receiver agree on size and dtype."""
        kind = "p2p" if self.collective in ("send", "recv") else self.collective
        count = None if kind == "alltoallv" else self.count
        how = self.algorithm, self.channels, self.chunk_bytes, self.protocol, self.traffic_class
        return kind, count, self.dtype, self.op, self.root, *how

    @cached_property
    def digest(self) -> int:
        return int.from_bytes(hashlib.blake2b(repr(self.signature).encode(), digest_size=7).digest(), "little")

    def __str__(self) -> str:
        what = f"{self.collective} of {self.count} {self.dtype}"
        if self.op is not None:
            what += f" {self.op}"
        if self.root is not None:
            what += f" root {self.root}"
        if self.traffic_class:
            what += f" in traffic class {self.traffic_class}"
        return what


def auto_chunk_bytes(block_bytes: int, most_blocks: int = 1, mean_blocks: float = 1.0) -> int:
    """A quarter of a message, between 128 KiB and 2 MiB: enough chunks to fill a pipeline, few enough to be cheap.

    Where messages carry from one to ``most_blocks`` blocks, every one of them is cut into as many chunks as suit the
    mean one: cut by the largest, the many small ones would be crumbs.
    """
    message_bytes = math.ceil(block_bytes * mean_blocks)
    quarter = -(-message_bytes // 4)
    chunk_bytes = max(MIN_AUTO_CHUNK_BYTES, min(MAX_AUTO_CHUNK_BYTES, _power_of_two_from(quarter)))
    if most_blocks == 1:
        return chunk_bytes
    n_chunks = max(1, -(-message_bytes // chunk_bytes))
    return max(MIN_AUTO_CHUNK_BYTES, min(MAX_AUTO_CHUNK_BYTES, _power_of_two_from(block_bytes * most_blocks // n_chunks)))


def paced_chunk_bytes(block_bytes: int) -> int:
    """A sixteenth of a block from 16 to 128 KiB, then a thirty-second to 512 KiB: for schedules in which chunks wait for each
    other.  Short ones then fill the links while results come back, of long ones many keep the last few cheap."""
    sixteenth = _power_of_two_from(-(-block_bytes // 16))
    return max(16 * KIB, min(sixteenth, MIN_AUTO_CHUNK_BYTES), min(sixteenth // 2, 512 * KIB))


def _power_of_two_from(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def check_chunk_bytes(chunk_bytes: int) -> int:
    """Raises ConfigError outside 64 B to 64 MiB."""
    if not 64 <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise ConfigError(f"chunk of {chunk_bytes} bytes: it must be from 64 to {MAX_CHUNK_BYTES} (64M); see --chunk")
    return chunk_bytes


def chunk_elements(call: Call, block_elements: int, slots_per_message: int) -> int:
    """Elements of a block that go into one message, from sizes on which all ranks agree.

    At most ``chunk_bytes`` over all the slots of a message, and at least one chunk per
    channel where a block has :data:`MIN_CHANNEL_BYTES` for each.
    """
    elements = max(1, call.chunk_bytes // call.itemsize // slots_per_message)
    if call.channels > 1:
        share = -(-block_elements // call.channels)
        elements = min(elements, max(share, MIN_CHANNEL_BYTES // call.itemsize, 1))
    return elements


def n_counts_of(collective: str, n_ranks: int) -> int:
    """How many counts the longest buffer of a rank holds: one for each rank where counts are per rank or per peer."""
    return n_ranks if collective in PER_RANK else 1


def block_ranges(collective: str, count: int, n_ranks: int, n_blocks: int) -> tuple[list[int], list[int], list[int]]:
    """(First elements of the input's blocks, of the output's, lengths of the slots that :func:`placement` gives them).

    Counts per rank are each cut into the same blocks, the whole of one as the other.
    """
    n_counts = n_counts_of(collective, n_ranks)
    cut = split(count, n_blocks // n_counts)
    own = [start for start, _ in cut]
    whole = [number * count + start for number in range(n_counts) for start in own]
    lengths = [length for _ in range(n_counts) for _, length in cut]
    return own if collective == "all_gather" else whole, own if collective == "reduce_scatter" else whole, lengths


def split(count: int, n_blocks: int) -> list[tuple[int, int]]:
    """``count`` elements as ``n_blocks`` (start, length): equal shares, the last ones shorter or empty."""
    share = -(-count // n_blocks) if count else 0
    return [(min(count, b * share), max(0, min(count, (b + 1) * share) - b * share)) for b in range(n_blocks)]
