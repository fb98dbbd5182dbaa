"""Bus bandwidth: nccl-tests' sizes, counts and factors, exactly.

algbw is the size column over the time.  busbw is algbw times a factor that makes it
comparable with a link's rate whatever the number of ranks n:

    all_reduce                                    2 (n-1)/n
    all_gather, reduce_scatter, alltoall(v),
    gather, scatter                               (n-1)/n
    broadcast, reduce, sendrecv                   1

The size column is the larger of what a rank sends and what it receives: the whole
of what was asked for, rounded down.  Where a count is per rank or per peer, that
count is rounded down to a multiple of 16 bytes, so that tiny requests become 0.

Source: NVIDIA/nccl-tests 2.19, doc/PERFORMANCE.md and each test's GetCollByteCount
and GetBw.  Its alltoallv is not in NVIDIA's set; here it counts as alltoall does,
with the largest sum of counts that a rank sends or receives as its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from emu.errors import ConfigError
from emu.units import PS_PER_SECOND

ALIGNMENT_BYTES: Final = 16
WHOLE: Final = frozenset({"all_reduce", "broadcast", "reduce", "sendrecv"})
"""The count is the whole buffer's."""
SHARED: Final = frozenset({"all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"})
"""The count is per rank or per peer."""
BYTES_PER_GB: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """One row of nccl-tests.  ``send_count`` and ``recv_count`` are the elements of a rank's two buffers;
    with gather and scatter the larger one matters only at the root."""

    size_bytes: int
    count: int
    send_count: int
    recv_count: int


def counts(collective: str, requested_bytes: int, dtype_bytes: int, n_ranks: int) -> Counts:
    """What nccl-tests runs and prints when ``requested_bytes`` are asked for.  Raises ConfigError."""
    _check(collective, n_ranks)
    n_elements = requested_bytes // dtype_bytes
    if collective in WHOLE:
        return Counts(size_bytes=n_elements * dtype_bytes, count=n_elements, send_count=n_elements, recv_count=n_elements)
    aligned = max(1, ALIGNMENT_BYTES // dtype_bytes)
    share = n_elements // n_ranks // aligned * aligned
    total = share * n_ranks
    return Counts(
        size_bytes=total * dtype_bytes,
        count=share,
        send_count=share if collective in ("all_gather", "gather") else total,
        recv_count=share if collective in ("reduce_scatter", "scatter") else total,
    )


def busbw_factor(collective: str, n_ranks: int) -> Fraction:
    """busbw over algbw; 0 for 1 rank where data would go to others only.  Raises ConfigError."""
    _check(collective, n_ranks)
    if collective == "all_reduce":
        return Fraction(2 * (n_ranks - 1), n_ranks)
    return Fraction(1) if collective in WHOLE else Fraction(n_ranks - 1, n_ranks)


def algbw_gb_per_s(size_bytes: int, time_ps: int) -> Fraction:
    """Decimal gigabytes per second; 0 for no time, as nothing can be said then."""
    return Fraction(size_bytes * PS_PER_SECOND, time_ps * BYTES_PER_GB) if time_ps > 0 else Fraction(0)


def busbw_gb_per_s(collective: str, size_bytes: int, n_ranks: int, time_ps: int) -> Fraction:
    """algbw times the factor.  Raises ConfigError."""
    return algbw_gb_per_s(size_bytes, time_ps) * busbw_factor(collective, n_ranks)


def _check(collective: str, n_ranks: int) -> None:
    if collective not in WHOLE | SHARED:
        raise ConfigError(f"{collective} has no bus bandwidth; those that have: {', '.join(sorted(WHOLE | SHARED))}")
    if n_ranks < 1:
        raise ConfigError(f"bus bandwidth over {n_ranks} ranks: it needs 1 rank or more")
