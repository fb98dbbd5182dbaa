"""Selection: which protocols may be taken, in the words of NCCL_PROTO.

    auto                         all that go with the call
    LL                           that one
    LL,LL128                     one of these
    ^Simple                      all but this (and what follows in the list)
    allreduce:LL;broadcast:^LL   by collective; those that are not named take all
    Simple;allreduce:LL          a list without a collective is for those that are not named

Law: a selection is checked once, where it is read; what is checked is in lower case and without blanks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from emu.errors import ConfigError
from emu.protocols.legal import AUTO, Protocol, legal_protocols

NAMED: Final = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
"""Collectives that a selection may name, without separators: NCCL has no protocols for others to select."""


def check_protocol(text: str) -> str:
    """``"LL, LL128"`` -> ``"ll,ll128"``.  Raises ConfigError."""
    plain = "".join(text.lower().split())
    for part in plain.split(";") if plain != AUTO else ():
        where, colon, names = part.rpartition(":")
        if colon and _bare(where) not in NAMED:
            raise ConfigError(f"protocol {text!r}: protocols cannot be selected for {where!r}, only for {', '.join(NAMED)}")
        if not set(names.removeprefix("^").split(",")) <= set(Protocol):
            every = ", ".join(Protocol)
            raise ConfigError(f"protocol {text!r}: use one of {AUTO}, {every}, or a list such as ll,ll128 or ^simple")
    return plain


def left_by(selection: str, collective: str, protocols: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Of some protocols those that the selection leaves, which may be none."""
    return tuple(one for one in protocols if one in _selected(selection, _bare(collective)))


def goes_with(selection: str, collective: str, algorithm: str) -> bool:
    """Whether ``algorithm`` can do ``collective`` with a protocol of the selection."""
    return bool(left_by(selection, collective, legal_protocols(collective, algorithm)))


def require_legal(selection: str, collective: str, algorithm: str) -> None:
    """Raises ConfigError where it cannot."""
    if not goes_with(selection, collective, algorithm):
        legal = legal_protocols(collective, algorithm)
        raise ConfigError(f"protocol {selection} does not go with {algorithm} {collective}; use auto or {', '.join(legal)}")


@lru_cache
def _selected(selection: str, collective: str) -> frozenset[Protocol]:
    every, left = frozenset(Protocol), {}
    for part in selection.split(";") if selection != AUTO else ():
        where, _, names = part.rpartition(":")
        listed = frozenset(map(Protocol, names.removeprefix("^").split(",")))
        left[_bare(where)] = every - listed if names.startswith("^") else listed
    return left.get(collective, left.get("", every))


def _bare(collective: str) -> str:
    return collective.replace("_", "").replace("-", "")
