"""Exactly predictable data: what each rank sends, what each must then hold, and how many elements are wrong.

Every rank's buffer is one pattern of :data:`PERIOD` elements, repeated.  PERIOD is
prime, so that no power-of-two count lands on its own repetition, and filling and
checking are copies and compares of whole periods, at memory speed.

Laws: patterns differ by rank and by position, so that a block of the wrong rank or at
the wrong place shows; values are whole, not negative, and so small that a sum over
the ranks is exact in the dtype in any order of addition, also in float16 and
bfloat16; a product is of ones and twos.  Results are compared bit by bit, but for
``avg`` of a floating point dtype, whose rounding depends on the order: there an
element is wrong when it is further off than n_ranks roundings of the dtype, and at
most half its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emu.collectives.reduce import DTYPES
from emu.errors import ConfigError
from emu.parameters import did_you_mean

Array = NDArray[Any]

PERIOD: Final = 65521
"""The largest prime below 2^16."""

NCCL_DTYPES: Final = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float16": "float16",
    "float": "float32",
    "float32": "float32",
    "double": "float64",
    "float64": "float64",
    "bfloat16": "bfloat16",
}
"""nccl-tests' names of dtypes (and numpy's) -> numpy's."""

_EXACT: Final = {"int8": 127, "uint8": 255, "float16": 2**11, "bfloat16": 2**8}
"""Up to here every whole number is exact; wider dtypes hold any sum of values below PERIOD."""
_WIDE: Final = 2**24
_ROUNDING: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_ROWS: Final = 16
"""Periods that are compared at once: their intermediate results stay in the cache."""
REDUCED: Final = -1
"""The source of a segment that is reduced over all ranks."""


class Segment(NamedTuple):
    """``n_elements`` of the pattern of rank ``source`` (or REDUCED), from position ``start`` of its buffer."""

    source: int
    start: int
    n_elements: int


def nccl_dtype(name: str) -> str:
    """nccl-tests' spelling of a dtype's name: ``float32`` -> ``float``.  Raises ConfigError."""
    if name not in NCCL_DTYPES:
        hint = did_you_mean(name, NCCL_DTYPES)
        raise ConfigError(f"-d {name!r} is not a type{hint}; use one of {', '.join(NCCL_DTYPES)}")
    return next(spelt for spelt, numpy_name in NCCL_DTYPES.items() if numpy_name == NCCL_DTYPES[name])


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: well spread bits, the same on every machine."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=1)
def _noise() -> NDArray[np.int64]:
    """A fixed permutation of 0..PERIOD-1, twice in a row so that any rotation of it is a slice."""
    order = np.argsort(_mixed(np.arange(1, PERIOD + 1, dtype=np.uint64)), kind="stable")
    return np.concatenate([order, order])


@lru_cache(maxsize=4096)
def _shift(source: int) -> int:
    """By how much rank ``source``'s pattern is rotated."""
    return int(_mixed(np.array([source + 0x9E3779B97F4A7C15], dtype=np.uint64))[0]) % PERIOD


@lru_cache(maxsize=8)
def _whole(dtype: str, n_ranks: int, op: str | None) -> NDArray[np.int64]:
    """Two periods of whole numbers, small enough for ``op`` over ``n_ranks`` to be exact in ``dtype``."""
    noise = _noise()
    exact = _EXACT.get(dtype, _WIDE)
    if op == "prod":
        return 1 + (noise < min(PERIOD // 2, 2 * PERIOD // n_ranks)).astype(np.int64)
    if op in ("sum", "avg") and n_ranks > exact:
        return (noise * (2 * n_ranks) < PERIOD * exact).astype(np.int64)
    limit = exact // n_ranks if op in ("sum", "avg") else exact
    return noise % min(limit + 1, PERIOD)


@lru_cache(maxsize=8)
def _typed(dtype: str, n_ranks: int, op: str | None) -> Array:
    return _frozen(_whole(dtype, n_ranks, op).astype(DTYPES[dtype]))


@lru_cache(maxsize=8)
def _reduced(dtype: str, n_ranks: int, op: str | None) -> Array:
    """One period of the result; float64 for ``avg`` of a floating point dtype."""
    combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(op or "", np.add)
    whole = _whole(dtype, n_ranks, op)
    total = whole[_shift(0) : _shift(0) + PERIOD].copy()
    for rank in range(1, n_ranks):
        combine(total, whole[_shift(rank) : _shift(rank) + PERIOD], out=total)
    if op != "avg":
        return _frozen(total.astype(DTYPES[dtype]))
    if DTYPES[dtype].kind in "iu":
        return _frozen((total // n_ranks).astype(DTYPES[dtype]))
    return _frozen(total / n_ranks)


def pattern(dtype: str, n_ranks: int, op: str | None, source: int) -> Array:
    """One period of rank ``source``'s buffer, or of the result where ``source`` is REDUCED; read only.

    ``op`` is None for collectives that only move data.  Integer ``avg`` is the sum over n, truncated (NCCL's).
    """
    if source == REDUCED:
        return _reduced(dtype, n_ranks, op)
    return _typed(dtype, n_ranks, op)[_shift(source) : _shift(source) + PERIOD]


def _frozen(values: Array) -> Array:
    values.flags.writeable = False
    return values


def _pieces(buffer: Array, period: Array, start: int) -> Iterator[tuple[Array, Array]]:
    """Parts of ``buffer`` beside the part of the period that belongs there; whole periods as matrices of a few rows."""
    offset = start % PERIOD
    head = min(len(buffer), PERIOD - offset) if offset else 0
    if head:
        yield buffer[:head], period[offset : offset + head]
    whole = (len(buffer) - head) // PERIOD
    rows = buffer[head : head + whole * PERIOD].reshape(whole, PERIOD)
    for row in range(0, whole, _ROWS):
        yield rows[row : row + _ROWS], period
    tail = len(buffer) - head - whole * PERIOD
    if tail:
        yield buffer[len(buffer) - tail :], period[:tail]


def fill(buffer: Array, segments: Sequence[Segment], *, dtype: str, n_ranks: int, op: str | None) -> None:
    """Write the segments one after the other into ``buffer`` (contiguous, one dimension)."""
    position = 0
    for segment in segments:
        period = pattern(dtype, n_ranks, op, segment.source)
        for part, values in _pieces(buffer[position : position + segment.n_elements], period, segment.start):
            part[...] = values
        position += segment.n_elements


def count_wrong(buffer: Array, segments: Sequence[Segment], *, dtype: str, n_ranks: int, op: str | None) -> int:
    """Elements of ``buffer`` that are not what the segments say."""
    rounding = _ROUNDING.get(dtype) if op == "avg" else None
    n_wrong = 0
    position = 0
    for segment in segments:
        period = pattern(dtype, n_ranks, op, segment.source)
        got = buffer[position : position + segment.n_elements]
        if segment.source == REDUCED and rounding is not None:
            share = min(0.5, n_ranks * rounding)
            for part, values in _pieces(got, period, segment.start):
                n_wrong += int(np.count_nonzero(~(np.abs(part.astype(np.float64) - values) <= share * values)))
        else:
            bits = np.dtype(f"u{buffer.dtype.itemsize}")
            for part, values in _pieces(got.view(bits), period.view(bits), segment.start):
                n_wrong += int(np.count_nonzero(part != values))
        position += segment.n_elements
    return n_wrong
