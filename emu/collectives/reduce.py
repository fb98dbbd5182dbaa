"""Reductions on numpy arrays, with NCCL's semantics.

Integers wrap.  ``avg`` is a sum: floating point inputs are scaled by 1/n before
it (so that it cannot overflow where the mean does not), integers are divided
once at the end, truncating towards zero.  Sums in float16 and bfloat16 are kept
in that type, one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from emu.errors import ConfigError

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
}
DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)

_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
OPS = tuple(_COMBINE)


def check_dtype(dtype: np.dtype[Any]) -> str:
    """The dtype's name.  Raises ConfigError for one that no collective carries."""
    if dtype.name not in DTYPES or not dtype.isnative:
        raise ConfigError(f"dtype {dtype} is not supported; use one of {', '.join(DTYPES)}")
    return dtype.name


def check_op(op: str) -> str:
    """Raises ConfigError for an unknown reduction."""
    if op not in _COMBINE:
        raise ConfigError(f"reduction {op!r} is not known; use one of {', '.join(OPS)}")
    return op


def combine(op: str, mine: Array, received: Array, *, out: Array | None = None) -> Array:
    """op(mine, received), in ``out`` if there is one, else in a new array.  Call it within :func:`quiet`."""
    return _COMBINE[op](mine, received, out=out)  # type: ignore[no-any-return]


def quiet() -> np.errstate:
    """Sums may overflow, as they may on an accelerator: numpy is not to warn of it."""
    return np.errstate(over="ignore", invalid="ignore")


def prepare(op: str | None, value: Array, n_ranks: int) -> Array:
    """What a rank contributes: for a floating point ``avg``, its value over n."""
    if op != "avg" or value.dtype.kind in "iu" or n_ranks == 1:
        return value
    if value.dtype.itemsize >= 4:
        scaled: Array = value * value.dtype.type(1.0 / n_ranks)
        return scaled
    return (value.astype(np.float32) * np.float32(1.0 / n_ranks)).astype(value.dtype)


def finish(op: str | None, value: Array, n_ranks: int) -> Array:
    """What the caller gets: for an integer ``avg``, the sum over n, truncated towards zero."""
    if op != "avg" or value.dtype.kind not in "iu" or n_ranks == 1:
        return value
    wide = value.astype(np.int64) if n_ranks > np.iinfo(value.dtype).max else value
    divisor = wide.dtype.type(n_ranks)
    quotient = wide // divisor
    truncated: Array = (quotient + ((wide < 0) & (quotient * divisor != wide))).astype(value.dtype)
    return truncated
