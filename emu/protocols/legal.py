"""Legal: which protocol goes with which collective and algorithm, as NCCL has it.

Where a switch multicasts and reduces (NVLS, CollNet) and in PAT only Simple works; grouped sends and receives, of which alltoall,
gather and scatter are made, use LL or Simple.  All else takes any.  Source: NCCL, ``src/graph/tuning.cc`` and ``src/enqueue.cc``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from emu.errors import ConfigError


class Protocol(StrEnum):
    SIMPLE = "simple"
    LL = "ll"
    LL128 = "ll128"


AUTO: Final = "auto"
GROUPED: Final = frozenset({"alltoall", "alltoallv", "gather", "scatter", "send", "recv", "sendrecv"})
_NVLS: Final = "nvls"
_COLLNET: Final = "collnet"


def is_grouped(collective: str, algorithm: str) -> bool:
    """Whether a call is made of grouped sends and receives: by its kind, or as every rank talks to every other."""
    return collective in GROUPED or algorithm == "direct"


def is_nvls(algorithm: str) -> bool:
    """Whether accelerators load and store through a switch of their host that reduces and multicasts."""
    return algorithm.startswith(_NVLS)


def legal_protocols(collective: str, algorithm: str) -> tuple[Protocol, ...]:
    """In the order in which NCCL tries them."""
    if is_nvls(algorithm) or algorithm.startswith(_COLLNET) or algorithm == "pat":
        return (Protocol.SIMPLE,)
    if is_grouped(collective, algorithm):
        return (Protocol.LL, Protocol.SIMPLE)
    return (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)


def check_protocol(name: str) -> str:
    """``"LL"`` -> ``"ll"``, or ``"auto"``.  Raises ConfigError."""
    plain = name.lower()
    if plain != AUTO and plain not in set(Protocol):
        raise ConfigError(f"protocol {name!r}: use one of {AUTO}, {', '.join(Protocol)}")
    return plain


def goes_with(protocol: str, collective: str, algorithm: str) -> bool:
    """Whether ``algorithm`` can do ``collective`` with ``protocol``, which may be auto."""
    return protocol == AUTO or protocol in legal_protocols(collective, algorithm)


def require_legal(protocol: str, collective: str, algorithm: str) -> None:
    """Raises ConfigError where it does not."""
    if not goes_with(protocol, collective, algorithm):
        legal = legal_protocols(collective, algorithm)
        raise ConfigError(f"protocol {protocol} does not go with {algorithm} {collective}; use auto or {', '.join(legal)}")
