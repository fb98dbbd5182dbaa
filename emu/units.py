"""Units: the only file that parses and formats quantities.

Inside emu every quantity is an ``int`` whose name ends in its unit:

    *_ps      time, picoseconds           *_bytes   size, bytes
    *_bps     rate, bits per second

Decimal prefixes are powers of ten (``GB`` = 10^9 bytes), binary ones are spelt
(``GiB``).  nccl-tests' size letters (``-b 64M``) are binary, as its users
expect; :func:`parse_nccl_size_bytes` is for those flags alone.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from emu.errors import ConfigError

FOREVER_PS: Final = 1 << 62
"""Later than any time that a run reaches."""
MOST_BPS: Final = 10**18
MOST_BYTES: Final = 1 << 60
"""More than anybody means: what is above is a slip of the finger."""
MOST_DIGITS: Final = 32
"""Of a number that somebody writes, and its largest exponent: an exact 1e999999999 would take all memory."""
PS_PER_SECOND: Final = 10**12
PS_PER_MILLISECOND: Final = 10**9
PS_PER_MICROSECOND: Final = 10**6
PS_PER_NANOSECOND: Final = 10**3

_TIME_PS: Final = {
    "ps": 1,
    "ns": PS_PER_NANOSECOND,
    "us": PS_PER_MICROSECOND,
    "µs": PS_PER_MICROSECOND,
    "ms": PS_PER_MILLISECOND,
    "s": PS_PER_SECOND,
}
_PREFIX: Final = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_BYTES: Final = {f"{prefix}B": scale for prefix, scale in _PREFIX.items()}
_RATE_BPS: Final = {f"{prefix}B/s": scale * 8 for prefix, scale in _PREFIX.items()}
_RATE_BPS.update({f"{prefix}bit/s": scale for prefix, scale in _PREFIX.items()})
_RATE_BPS.update({f"{prefix}bps": scale for prefix, scale in _PREFIX.items()})
_NCCL_SIZE: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_QUANTITY: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9]*)\s*")


_EXPONENT: Final = re.compile(r"[eE][+-]?0*([0-9]+)")


def parse_number(text: str) -> Fraction:
    """``"1.5e3"`` or ``"7/2"`` exactly.  Raises ValueError, also for more digits, or a larger exponent, than anybody means."""
    exponent = _EXPONENT.search(text)
    if len(text) > 2 * MOST_DIGITS or (exponent and (len(exponent[1]) > 2 or int(exponent[1]) > MOST_DIGITS)):
        raise ValueError(f"a number has at most {MOST_DIGITS} digits, and an exponent of at most {MOST_DIGITS}")
    return Fraction(text)


def _parse(
    text: str | int,
    units: dict[str, int],
    what: str,
    example: str,
    *,
    least: str = "0 or more",
    written: str | int | None = None,
) -> Fraction:
    """``written`` is what the user typed, where ``text`` is not that any more; complaints quote it."""
    shown = repr(str(text if written is None else written))
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ConfigError(f"{shown} is not a {what}; write for example {example}")
    number, unit = match.groups()
    if unit not in units:
        if unit == "":
            raise ConfigError(f"{shown} has no unit; a {what} is written like {example}")
        known = ", ".join(name for name in units if name)
        raise ConfigError(f"{shown}: {unit!r} is not a unit of {what}; use one of {known}")
    try:
        value = parse_number(number) * units[unit]
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from None
    if value < 0:
        raise ConfigError(f"{shown} is negative; a {what} must be {least}")
    return value


def _at_most(most: int, limit: str, value: int, text: str | int) -> int:
    if value > most:
        raise ConfigError(f"{str(text)!r} is more than emu counts; use at most {limit}")
    return value


def parse_time_ps(text: str | int) -> int:
    """``"1.5us"`` -> 1_500_000 ps.  A bare ``0`` needs no unit.  Raises ConfigError."""
    if str(text).strip() == "0":
        return 0
    return _at_most(FOREVER_PS, "4e6s", round(_parse(text, _TIME_PS, "time", "1us, 2.5ms")), text)


def parse_rate_bps(text: str | int) -> int:
    """``"50GB/s"`` or ``"400 Gbit/s"`` -> bits per second, more than 0.  Raises ConfigError."""
    example = "50GB/s, 400Gbit/s"
    rate_bps = 0 if str(text).strip() == "0" else round(_parse(text, _RATE_BPS, "rate", example, least="more than 0"))
    if rate_bps <= 0:
        raise ConfigError(f"{str(text)!r}: a rate must be more than 0; to take a link down use flap or throttle")
    return _at_most(MOST_BPS, "1e6Tbit/s", rate_bps, text)


def parse_bytes(text: str | int) -> int:
    """``"16MiB"``, ``"4kB"`` or a bare count of bytes -> bytes, rounded as printed sizes are.  Raises ConfigError."""
    bare = re.fullmatch(r"\s*[0-9]+\s*", str(text)) is not None
    size_bytes = round(_parse(f"{text}B" if bare else text, _BYTES, "size", "4096, 64KiB, 16MB", written=text))
    return _at_most(MOST_BYTES, "1e6TiB", size_bytes, text)


def parse_nccl_size_bytes(text: str | int) -> int:
    """nccl-tests' sizes: ``"64M"`` is 64 * 2^20 bytes.  Raises ConfigError, also for a part of a byte.

    Lower case letters, an explicit ``B`` and the spelt binary units (``64MiB``) are taken too.
    """
    body = str(text).strip().removesuffix("B").removesuffix("b").removesuffix("i")
    size_bytes = _parse(body.upper(), _NCCL_SIZE, "size", "8, 64K, 16M, 1G", written=text)
    if size_bytes.denominator != 1:
        raise ConfigError(f"{str(text)!r} is {float(size_bytes):g} bytes; a size must be a whole number of bytes")
    return int(size_bytes)


def _format(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in steps:
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    scale, unit = steps[-1]
    return f"{value / scale:.4g} {unit}"


def format_time(time_ps: float) -> str:
    """``1_500_000`` -> ``"1.5 us"``."""
    return _format(
        time_ps,
        ((PS_PER_SECOND, "s"), (PS_PER_MILLISECOND, "ms"), (PS_PER_MICROSECOND, "us"), (PS_PER_NANOSECOND, "ns"), (1, "ps")),
    )


def format_rate(rate_bps: float) -> str:
    """Bits per second -> bytes per second in decimal prefixes, ``"50 GB/s"``."""
    return _format(rate_bps / 8, ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s"), (1, "B/s")))


def format_bytes(size_bytes: float) -> str:
    """Bytes in binary prefixes, ``"16 MiB"``."""
    return _format(size_bytes, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def microseconds(time_ps: float) -> float:
    """Picoseconds -> microseconds, for printing."""
    return time_ps / PS_PER_MICROSECOND


def duration_ps(size_bytes: int, rate_bps: int) -> int:
    """Time to move ``size_bytes`` at ``rate_bps``, rounded up to a whole picosecond."""
    return -(-size_bytes * 8 * PS_PER_SECOND // rate_bps)
