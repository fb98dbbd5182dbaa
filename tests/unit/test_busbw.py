"""nccl-tests' sizes, counts and factors."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.collectives.busbw import (
    SHARED,
    WHOLE,
    Counts,
    algbw_gb_per_s,
    busbw_factor,
    busbw_gb_per_s,
    counts,
)
from emu.errors import ConfigError


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("all_reduce", Counts(size_bytes=1 << 20, count=1 << 18, send_count=1 << 18, recv_count=1 << 18)),
        ("sendrecv", Counts(size_bytes=1 << 20, count=1 << 18, send_count=1 << 18, recv_count=1 << 18)),
        ("all_gather", Counts(size_bytes=1 << 20, count=1 << 15, send_count=1 << 15, recv_count=1 << 18)),
        ("gather", Counts(size_bytes=1 << 20, count=1 << 15, send_count=1 << 15, recv_count=1 << 18)),
        ("reduce_scatter", Counts(size_bytes=1 << 20, count=1 << 15, send_count=1 << 18, recv_count=1 << 15)),
        ("scatter", Counts(size_bytes=1 << 20, count=1 << 15, send_count=1 << 18, recv_count=1 << 15)),
        ("alltoall", Counts(size_bytes=1 << 20, count=1 << 15, send_count=1 << 18, recv_count=1 << 18)),
    ],
)
def test_counts_of_a_mebibyte_of_floats_over_8_ranks(collective: str, expected: Counts) -> None:
    """Size and count columns and both buffers are nccl-tests'."""
    assert counts(collective, 1 << 20, 4, 8) == expected


@pytest.mark.parametrize("collective", sorted(SHARED))
def test_tiny_shares_are_rounded_down_to_nothing(collective: str) -> None:
    """127 bytes over 8 ranks are less than 16 bytes each, so the size column becomes 0; 128 bytes are 16 each."""
    assert counts(collective, 127, 1, 8) == Counts(size_bytes=0, count=0, send_count=0, recv_count=0)
    assert counts(collective, 128, 4, 8).size_bytes == 128


def test_whole_sizes_are_rounded_to_elements_only() -> None:
    """An all-reduce of 11 bytes of floats is 2 elements, 8 bytes."""
    assert counts("all_reduce", 11, 4, 3).size_bytes == 8


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    collective=st.sampled_from(sorted(WHOLE | SHARED)),
    requested_bytes=st.integers(0, 1 << 34),
    dtype_bytes=st.sampled_from([1, 2, 4, 8]),
    n_ranks=st.integers(1, 400),
)
def test_size_is_what_the_larger_buffer_holds(collective: str, requested_bytes: int, dtype_bytes: int, n_ranks: int) -> None:
    """The size never exceeds the request, and misses less than 16 bytes per rank and one element."""
    row = counts(collective, requested_bytes, dtype_bytes, n_ranks)
    assert row.size_bytes == max(row.send_count, row.recv_count) * dtype_bytes
    assert row.size_bytes == row.count * dtype_bytes * (1 if collective in WHOLE else n_ranks)
    assert 0 <= requested_bytes - row.size_bytes < 16 * n_ranks + dtype_bytes
    if collective in SHARED:
        assert row.count * dtype_bytes % 16 == 0


def test_factors_are_exact() -> None:
    """All-reduce 2(n-1)/n, shares (n-1)/n, and 1 where the whole buffer goes one way."""
    assert busbw_factor("all_reduce", 3) == Fraction(4, 3)
    assert {busbw_factor(name, 3) for name in SHARED} == {Fraction(2, 3)}
    assert {busbw_factor(name, 3) for name in WHOLE - {"all_reduce"}} == {Fraction(1)}
    assert busbw_factor("all_reduce", 1) == 0


def test_a_published_row_is_reproduced() -> None:
    """1 MiB all-reduce over 8 ranks in 45.45 us: algbw 23.07, busbw 40.38 GB/s, as far as its digits go."""
    assert round(float(algbw_gb_per_s(1 << 20, 45_450_000)), 2) == 23.07
    assert abs(busbw_gb_per_s("all_reduce", 1 << 20, 8, 45_450_000) - Fraction("40.38")) < Fraction("0.01")


def test_nothing_in_no_time_is_no_bandwidth() -> None:
    """0 bytes or 0 time give 0, not an error."""
    assert algbw_gb_per_s(0, 0) == algbw_gb_per_s(0, 5) == algbw_gb_per_s(8, 0) == 0
    assert busbw_gb_per_s("all_reduce", 8, 1, 100) == 0


def test_what_has_no_bandwidth_is_refused() -> None:
    """A barrier and a negative number of ranks are the caller's error."""
    with pytest.raises(ConfigError, match="barrier has no bus bandwidth"):
        busbw_factor("barrier", 4)
    with pytest.raises(ConfigError, match="over 0 ranks"):
        counts("all_reduce", 8, 4, 0)
