"""Selection: which algorithms may be taken, in the words of NCCL_ALGO.

    auto                                     all that do the collective
    ring                                     that one; also module:function
    ring,tree                                one of these
    ^tree                                    all but this (and what follows in the list)
    allreduce:tree;broadcast:ring            by collective; those that are not named take all
    ring,collnetdirect;allreduce:tree        a list without a collective is for those that are not named

Names are emu's or NCCL's, in any case.  Of a list, what does not do the collective is passed over, unless nothing is left.
"""

from __future__ import annotations

from typing import Final

from emu.collectives.catalogue import algorithms_for, collective_name, find_algorithm, listed
from emu.errors import ConfigError

AUTO: Final = "auto"


def is_choice(text: str) -> bool:
    """Whether the text leaves a choice, or names a collective; else it is the name of one algorithm."""
    return text == AUTO or any(mark in text for mark in ",;^") or _collective_of(text) is not None


def selected(text: str, collective: str) -> tuple[str, ...]:
    """The algorithms, one at least, that may do ``collective``.  Raises ConfigError."""
    able = algorithms_for(collective)
    if text == AUTO:
        return able
    general = named = None
    for part in text.split(";"):
        where = _collective_of(part)
        if where is None:
            general = _list(part, text)
        elif where == collective:
            named = _list(part.partition(":")[2], text)
        else:
            _list(part.partition(":")[2], text)
    excludes, names = named or general or (True, ())
    found = tuple(name for name in able if (name in names) != excludes)
    if not excludes:
        found += tuple(name for name in names if ":" in name and collective in find_algorithm(name).collectives)
    if not found:
        raise ConfigError(f"algorithm {text!r} leaves nothing that does {collective}; use {listed(collective)}")
    return found


def _collective_of(part: str) -> str | None:
    """The collective before a colon, if it is one."""
    before, colon, _ = part.strip().partition(":")
    try:
        return collective_name(before) if colon else None
    except ConfigError:
        return None


def _list(text: str, whole: str) -> tuple[bool, tuple[str, ...]]:
    """(Whether they are excluded, names).  Raises ConfigError."""
    plain = text.strip()
    excludes = plain.startswith("^")
    names = [name.strip() for name in plain.removeprefix("^").split(",")]
    if not all(names):
        raise ConfigError(f"algorithm {whole!r} has an empty name; write for example ring,tree or ^tree or allreduce:tree")
    return excludes, tuple(find_algorithm(name).name for name in names)
