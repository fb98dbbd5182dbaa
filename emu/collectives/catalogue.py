"""Catalogue: the collectives and algorithms by name.

Law: a name resolves by convention.  ``"ring"`` is the file ``ring.py`` of this folder,
``"my_lab.algos:build"`` that function; the module of either also has
``COLLECTIVES``, the names that it does, and ``cost``.  Nothing is registered, and
no schedule leaves here that the verifier has not passed.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

from emu.collectives.call import ROOTED
from emu.collectives.schedule import Cost, Schedule, require_collective
from emu.collectives.verify import verify
from emu.errors import ConfigError, ScheduleError

COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
    "gather", "scatter", "alltoall", "alltoallv", "barrier",
)  # fmt: skip
ALIASES: Final = {"bcast": "broadcast", **{name.replace("_", ""): name for name in COLLECTIVES}}
"""Other spellings, in lower case and without separators."""
MAX_CACHED_SCHEDULES: Final = 64
_building: Final = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What an algorithm's module offers.  ``build(collective, n_ranks, root)``, ``cost(collective, n_ranks)``."""

    name: str
    collectives: frozenset[str]
    build: Callable[[str, int, int], Schedule]
    cost: Callable[[str, int], Cost]


def collective_name(text: str) -> str:
    """``"AllReduce"``, ``"all-reduce"`` or ``"all_reduce_perf"`` -> ``"all_reduce"``.  Raises ConfigError."""
    plain = text.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    if plain not in ALIASES:
        known = ", ".join(COLLECTIVES)
        raise ConfigError(f"collective {text!r} is not known{_nearest(plain, ALIASES)}; use one of {known}")
    return ALIASES[plain]


@cache
def algorithm_names() -> tuple[str, ...]:
    """The algorithms in this folder: every file that has COLLECTIVES, build and cost."""
    found = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return tuple(name for name in found if _offers_algorithm(importlib.import_module(f"emu.collectives.{name}")))


def algorithms_for(collective: str) -> tuple[str, ...]:
    """Names of those in this folder that do ``collective``.  Raises ConfigError for an unknown one."""
    name = collective_name(collective)
    return tuple(algorithm for algorithm in algorithm_names() if name in find_algorithm(algorithm).collectives)


def find_algorithm(name: str) -> Algorithm:
    """By name, in any case (``"Ring"``), or by ``"module:function"``.  Raises ConfigError."""
    module_name, colon, function = name.partition(":")
    if colon:
        return _load(module_name, function, name)
    plain = name.lower().replace("-", "_")
    if plain not in algorithm_names():
        near = _nearest(plain, algorithm_names())
        known = ", ".join(algorithm_names())
        raise ConfigError(f"algorithm {name!r} is not known{near}; use one of {known}, or module:function")
    return _load(f"emu.collectives.{plain}", "build", plain)


def schedule_for(collective: str, algorithm: str, n_ranks: int, root: int = 0) -> Schedule:
    """The verified schedule, the same object for the same request while it is cached.

    Names are taken as users write them.  ``root`` counts only where there is one.  Raises ConfigError for
    what cannot be asked for and ScheduleError when the algorithm is wrong.  Of many threads that ask at once
    the first one builds and the others wait.
    """
    name = collective_name(collective)
    with _building:
        return _schedule(name, _fitting(name, algorithm).name, n_ranks, root if name in ROOTED else 0)


def cost_for(collective: str, algorithm: str, n_ranks: int) -> Cost:
    """The algorithm's own formula for its steps and sent bytes.  Raises ConfigError."""
    name = collective_name(collective)
    if n_ranks < 1:
        raise ConfigError(f"{name} over {n_ranks} ranks: a collective needs 1 rank or more")
    return _fitting(name, algorithm).cost(name, n_ranks)


def _fitting(collective: str, algorithm: str) -> Algorithm:
    fitting = ", ".join(algorithms_for(collective))
    try:
        found = find_algorithm(algorithm)
        require_collective(collective, found.name, found.collectives)
    except ConfigError as error:
        raise ConfigError(f"{error}; for {collective}: {fitting}") from None
    return found


@lru_cache(maxsize=MAX_CACHED_SCHEDULES)
def _schedule(collective: str, algorithm: str, n_ranks: int, root: int) -> Schedule:
    schedule = find_algorithm(algorithm).build(collective, n_ranks, root)
    made = (schedule.collective, schedule.n_ranks, schedule.root)
    if made != (collective, n_ranks, root):
        raise ScheduleError(f"{algorithm} was asked for {(collective, n_ranks, root)} and built {made}")
    verify(schedule)
    return schedule


def _load(module_name: str, function: str, name: str) -> Algorithm:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"algorithm {name!r}: cannot import {module_name!r}: {error}; write module:function") from None
    offers = vars(module)
    for needed in (function, "cost"):
        if not callable(offers.get(needed)):
            raise ConfigError(f"algorithm {name!r}: module {module_name} has no function {needed!r}")
    if "COLLECTIVES" not in offers:
        raise ConfigError(f"algorithm {name!r}: module {module_name} has no COLLECTIVES, the set of names that it does")
    return Algorithm(name=name, collectives=frozenset(offers["COLLECTIVES"]), build=offers[function], cost=offers["cost"])


def _offers_algorithm(module: ModuleType) -> bool:
    return all(needed in vars(module) for needed in ("COLLECTIVES", "build", "cost"))


def _nearest(text: str, names: dict[str, str] | tuple[str, ...]) -> str:
    match = get_close_matches(text, names, n=1)
    if not match:
        return ""
    return f", did you mean {names[match[0]] if isinstance(names, dict) else match[0]}?"
