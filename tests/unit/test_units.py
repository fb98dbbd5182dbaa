"""Units: what is parsed, what is printed, and what is said of text that is neither."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.errors import ConfigError
from emu.impairments.fields import parse_share
from emu.parameters import parse_ratio
from emu.units import (
    duration_ps,
    format_bytes,
    format_rate,
    format_time,
    microseconds,
    parse_bytes,
    parse_nccl_size_bytes,
    parse_rate_bps,
    parse_time_ps,
)

FOUR_DIGITS = 5e-4
"""What printing with four significant digits may lose, relative."""
MANY = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("1us", 10**6), ("1.5us", 1_500_000), (" 2.5 ms ", 2_500_000_000), ("1s", 10**12), ("7ps", 7), ("3ns", 3000),
        ("0", 0), (0, 0), ("0.0000000000001s", 0), ("1e3ns", 10**6), ("2µs", 2 * 10**6), ("1.ms", 10**9), ("+1us", 10**6),
    ],
)  # fmt: skip
def test_times(text: str | int, time_ps: int) -> None:
    """Times are decimal numbers with a unit, exact to the picosecond; 0 alone needs none."""
    assert parse_time_ps(text) == time_ps


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("400Gbit/s", 400 * 10**9), ("50GB/s", 400 * 10**9), ("50 GB/s", 400 * 10**9), ("100Gbps", 10**11),
        ("1kB/s", 8000), ("1KiB/s", 8192), ("1bps", 1), ("0.5B/s", 4), ("3.35TB/s", 26_800_000_000_000), ("1Mibit/s", 2**20),
    ],
)  # fmt: skip
def test_rates(text: str, rate_bps: int) -> None:
    """Bytes per second count eightfold; k, M, G, T are decimal and Ki, Mi, Gi, Ti binary."""
    assert parse_rate_bps(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4096", 4096), (4096, 4096), ("0", 0), ("64KiB", 65536), ("16MB", 16_000_000), ("1.5GiB", 3 * 2**29), ("4kB", 4000),
        ("8B", 8),
    ],
)  # fmt: skip
def test_sizes(text: str | int, n_bytes: int) -> None:
    """Sizes are bytes, bare or with a unit."""
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("8", 8), ("64M", 64 * 2**20), ("64m", 64 * 2**20), ("1G", 2**30), ("4KB", 4096), ("64MiB", 64 * 2**20),
        ("1.5K", 1536), ("0", 0),
    ],
)  # fmt: skip
def test_nccl_sizes_are_binary(text: str, n_bytes: int) -> None:
    """The letters of nccl-tests' -b and -e are powers of 1024, in any case."""
    assert parse_nccl_size_bytes(text) == n_bytes


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_time_ps, "fast", "'fast' is not a time; write for example 1us, 2.5ms"),
        (parse_time_ps, "", "'' is not a time; write for example 1us, 2.5ms"),
        (parse_time_ps, "5", "'5' has no unit; a time is written like 1us, 2.5ms"),
        (parse_time_ps, "5min", "'5min': 'min' is not a unit of time; use one of ps, ns, us, µs, ms, s"),
        (parse_time_ps, "-1us", "'-1us' is negative; a time must be 0 or more"),
        (parse_rate_bps, "0", "'0': a rate must be more than 0; to take a link down use flap or throttle"),
        (parse_rate_bps, "0GB/s", "'0GB/s': a rate must be more than 0; to take a link down use flap or throttle"),
        (parse_rate_bps, "400", "'400' has no unit; a rate is written like 50GB/s, 400Gbit/s"),
        (parse_bytes, "1.5", "'1.5' has no unit; a size is written like 4096, 64KiB, 16MB"),
        (parse_bytes, "many", "'many' is not a size; write for example 4096, 64KiB, 16MB"),
        (parse_nccl_size_bytes, "-8", "'-8' is negative; a size must be 0 or more"),
        (parse_rate_bps, "-5GB/s", "'-5GB/s' is negative; a rate must be more than 0"),
        (parse_nccl_size_bytes, "foo", "'foo' is not a size; write for example 8, 64K, 16M, 1G"),
        (parse_nccl_size_bytes, "1.5", "'1.5' is 1.5 bytes; a size must be a whole number of bytes"),
        (parse_nccl_size_bytes, "1.1K", "'1.1K' is 1126.4 bytes; a size must be a whole number of bytes"),
        (parse_nccl_size_bytes, "8Q", "'8Q': 'Q' is not a unit of size; use one of K, M, G, T"),
    ],
)  # fmt: skip
def test_what_cannot_be_parsed_is_named_with_the_fix(parse: Callable[[str], int], text: str, message: str) -> None:
    """The complaint is one line: the text as it was written, what is wrong with it, and what to write."""
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        parse(text)


@pytest.mark.parametrize("parse", [parse_time_ps, parse_rate_bps, parse_bytes, parse_nccl_size_bytes, parse_ratio, parse_share])
@pytest.mark.parametrize("number", ["1e999999999", "1e-999999999", "9" * 5000])
@pytest.mark.parametrize("unit", ["", "s", "GB/s", "B"])
def test_a_number_that_nobody_means_is_refused_at_once(parse: Callable[[str], object], number: str, unit: str) -> None:
    """No text takes memory and time without end, or another error than its own: an exact 1e999999999 would."""
    with pytest.raises((ConfigError, ValueError), match=r"is not a|unit|at most"):
        parse(number + unit)


@pytest.mark.parametrize(("parse", "text"), [(parse_time_ps, "1e7s"), (parse_rate_bps, "1e30GB/s"), (parse_bytes, "1e30B")])
def test_a_quantity_beyond_what_is_counted_names_the_most(parse: Callable[[str], int], text: str) -> None:
    """Times, rates and sizes stay within what 64 bits hold, by a complaint that says how much that is."""
    with pytest.raises(ConfigError, match=re.escape(repr(text)) + " is more than emu counts; use at most 1?4?e6"):
        parse(text)


@pytest.mark.parametrize("text", ["400GBps/s", "1 Gb/s", "1G"])
def test_an_unknown_rate_unit_lists_the_known_ones(text: str) -> None:
    """Units that are near a rate but none are answered with the list of units."""
    with pytest.raises(ConfigError, match=r"is not a unit of rate; use one of B/s, .*GB/s.*Gbit/s.*Gbps"):
        parse_rate_bps(text)


@given(time_ps=st.integers(0, 10**16))
@MANY
def test_a_printed_time_reads_back(time_ps: int) -> None:
    """Formatting loses no more than the fourth digit."""
    assert abs(parse_time_ps(format_time(time_ps)) - time_ps) <= time_ps * FOUR_DIGITS


@given(rate_bps=st.integers(1, 10**15))
@MANY
def test_a_printed_rate_reads_back(rate_bps: int) -> None:
    """Formatting loses no more than the fourth digit, and less than a bit per second below that."""
    assert abs(parse_rate_bps(format_rate(rate_bps)) - rate_bps) <= max(1, rate_bps * FOUR_DIGITS)


@given(n_bytes=st.integers(0, 2**50))
@MANY
def test_a_printed_size_reads_back(n_bytes: int) -> None:
    """Formatting loses no more than the fourth digit."""
    assert abs(parse_bytes(format_bytes(n_bytes)) - n_bytes) <= max(1, n_bytes * FOUR_DIGITS)


@given(n_bytes=st.integers(0, 2**40))
@MANY
def test_whole_units_are_exact(n_bytes: int) -> None:
    """A whole number of any unit is that many times its size."""
    assert parse_bytes(f"{n_bytes}MiB") == n_bytes * 2**20
    assert parse_time_ps(f"{n_bytes}ns") == n_bytes * 1000
    assert parse_nccl_size_bytes(f"{n_bytes}K") == n_bytes * 1024


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_time(1_500_000), "1.5 us"), (format_time(0), "0 ps"), (format_time(999), "999 ps"),
        (format_rate(400 * 10**9), "50 GB/s"), (format_rate(1), "0.125 B/s"),
        (format_bytes(16 * 2**20), "16 MiB"), (format_bytes(1000), "1000 B"),
    ],
)  # fmt: skip
def test_quantities_are_printed_in_the_largest_unit_that_fits(shown: str, text: str) -> None:
    """Numbers are short, with the unit that a reader expects."""
    assert shown == text


@given(n_bytes=st.integers(0, 2**50), rate_bps=st.integers(1, 10**14))
@MANY
def test_a_duration_is_rounded_up_to_a_picosecond(n_bytes: int, rate_bps: int) -> None:
    """In the time given the bytes fit, and in a picosecond less they would not."""
    time_ps = duration_ps(n_bytes, rate_bps)
    assert (time_ps - 1) * rate_bps < n_bytes * 8 * 10**12 <= time_ps * rate_bps


def test_microseconds_are_for_printing() -> None:
    """Tables show microseconds."""
    assert microseconds(2_500_000) == 2.5
