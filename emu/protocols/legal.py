"""Legal: which protocol, and which reduction, goes with which collective and algorithm, as NCCL has it.

Where a switch multicasts and reduces (NVLS, CollNet) and in PAT only Simple works; grouped sends and receives, of which alltoall,
gather and scatter are made, use LL for short messages or Simple.  All else takes any.

PAT's reduce_scatter scales nothing, so that it has no avg.  NVLink's switches (NVLS) add, and find the least and largest of
integers of 32 and 64 bits and of floats of 16; they have neither prod nor avg, nor integers of 8 or 16 bits.  Source: NCCL,
``src/graph/tuning.cc``, ``src/enqueue.cc`` and ``src/include/device.h``.  Not modelled: types that a CollNet plugin has not.
NCCL's premultiplied sums are no reduction of emu's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from emu.errors import ConfigError


class Protocol(StrEnum):
    SIMPLE = "simple"
    LL = "ll"
    LL128 = "ll128"


class Reduction(NamedTuple):
    """``dtype`` is None for data of no type, as a prediction's."""

    op: str
    dtype: str | None


AUTO: Final = "auto"
GROUPED: Final = frozenset({"alltoall", "alltoallv", "gather", "scatter", "send", "recv", "sendrecv"})
OPS: Final = ("sum", "avg", "prod", "min", "max")
_NVLS_OPS: Final = {
    **dict.fromkeys(("int32", "uint32", "int64", "uint64", "float16", "bfloat16"), ("sum", "min", "max")),
    **dict.fromkeys(("float32", "float64"), ("sum",)),
}
LL_GROUPED_BYTES: Final = 16 * 1024
"""Grouped sends up to this size use LL, longer ones Simple."""
_UNDIVIDED: Final = frozenset({"broadcast", "reduce", "send", "recv", "sendrecv"})
"""Whose messages are all of S, not a rank's share of it, where each goes straight to its receiver."""
_NVLS: Final = "nvls"
_COLLNET: Final = "collnet"


def is_grouped(collective: str, algorithm: str) -> bool:
    """Whether a call is made of grouped sends and receives: by its kind, or as every rank talks to every other."""
    return collective in GROUPED or algorithm == "direct"


def is_nvls(algorithm: str) -> bool:
    """Whether accelerators load and store through a switch of their host that reduces and multicasts."""
    return algorithm.startswith(_NVLS)


def is_collnet(algorithm: str) -> bool:
    """Whether switches between hosts reduce and multicast, and accelerators copy inside them."""
    return algorithm.startswith(_COLLNET)


def legal_protocols(collective: str, algorithm: str) -> tuple[Protocol, ...]:
    """In the order in which NCCL tries them."""
    if is_nvls(algorithm) or is_collnet(algorithm) or algorithm == "pat":
        return (Protocol.SIMPLE,)
    if is_grouped(collective, algorithm):
        return (Protocol.LL, Protocol.SIMPLE)
    return (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)


def usual_protocols(collective: str, algorithm: str, size_bytes: int, n_ranks: int) -> tuple[Protocol, ...]:
    """The legal ones without what NCCL never takes for a call of S: LL for grouped messages of more than LL_GROUPED_BYTES."""
    legal = legal_protocols(collective, algorithm)
    message_bytes = size_bytes if collective in _UNDIVIDED else -(-size_bytes // n_ranks)
    if is_grouped(collective, algorithm) and message_bytes > LL_GROUPED_BYTES:
        return tuple(one for one in legal if one != Protocol.LL)
    return legal


def reducing(names: tuple[str, ...], reduction: Reduction | None, collective: str) -> tuple[str, ...]:
    """The algorithms that can reduce so, all where nothing is reduced.  Raises ConfigError where none can."""
    if reduction is None:
        return names
    found = tuple(name for name in names if reduction.op in _ops(name, reduction.dtype))
    if not found:
        ops = _ops(names[0], reduction.dtype)
        of = f" of {reduction.dtype}" if reduction.dtype and is_nvls(names[0]) else ""
        what, use = (f"reduction {reduction.op}{of}", ops) if ops else (f"dtype {reduction.dtype}", tuple(_NVLS_OPS))
        raise ConfigError(f"{what} does not go with {names[0]} {collective}, as in NCCL; use {', '.join(use)}, or algorithm ring")
    return found


def _ops(algorithm: str, dtype: str | None) -> tuple[str, ...]:
    """None where it does not reduce that type at all."""
    if algorithm == "pat":
        return tuple(op for op in OPS if op != "avg")
    if is_nvls(algorithm):
        return _NVLS_OPS["int32"] if dtype is None else _NVLS_OPS.get(dtype, ())
    return OPS
