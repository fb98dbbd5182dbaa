"""Catalogue: the collectives and algorithms by name.

Law: a name resolves by convention.  ``"ring"`` is the file ``ring.py`` of this folder, ``"my_lab.algos:build"`` that
function.  Nothing is registered, and no schedule leaves here that the verifier has not passed or whose cost is not the
algorithm's formula.

To add an algorithm, drop a file here, or write one anywhere that can be imported.  It holds

* ``COLLECTIVES``: the set of names that it does, out of :data:`COLLECTIVES` below;
* ``build(collective: str, n_ranks: int, root: int) -> Schedule``, for any number of ranks from 1 and any root.  A number
  that it cannot do it declines by ConfigError: ``auto`` then passes it over.  Collectives without a root are given 0;
* ``cost(collective: str, n_ranks: int) -> Cost``: exactly what the schedule costs, as :attr:`Verified.cost` counts it, from
  any root.  ``auto`` leaves out candidates by this formula, so a wrong one is a ScheduleError when a schedule is built.

One that asks how the ranks lie on the fabric has a last parameter ``layout: Layout | None = None`` in both, see
:mod:`emu.collectives.layout`.  Both call :func:`emu.collectives.schedule.require_collective` first.
``tests/unit/test_conformance.py`` finds the file.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Final

import emu.collectives
from emu.collectives.call import ROOTED
from emu.collectives.layout import Layout, flat
from emu.collectives.schedule import Cost, Schedule, require_collective
from emu.collectives.verify import verify
from emu.errors import ConfigError, ScheduleError, fault
from emu.topologies.folder import file_of, load_module, read_folder

COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
    "gather", "scatter", "alltoall", "alltoallv", "barrier",
)  # fmt: skip
ALIASES: Final = {"bcast": "broadcast", **{name.replace("_", ""): name for name in COLLECTIVES}}
"""Other spellings, in lower case and without separators."""
_SHARED: Final = frozenset({"ring", "pat", "nvls", "collnet_direct"})
NCCLS: Final = {
    "all_reduce": frozenset({"ring", "tree", "nvls", "nvlstree", "collnet_direct", "collnet_chain"}),
    "all_gather": _SHARED, "reduce_scatter": _SHARED,
    "broadcast": frozenset({"ring"}), "reduce": frozenset({"ring"}),
    "gather": frozenset({"direct"}), "scatter": frozenset({"direct"}),
    "alltoall": frozenset({"direct", "pxn"}), "alltoallv": frozenset({"direct"}),
}  # fmt: skip
"""What NCCL does each collective by (``src/graph/tuning.cc``; the last four are grouped sends and receives, PXN a way of theirs).
All else is emu's own."""
MAX_CACHED_SCHEDULES: Final = 64
_building: Final = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What an algorithm's module offers.  ``build(collective, n_ranks, root)``, ``cost(collective, n_ranks)``; with a layout
    behind, where they ask for it."""

    name: str
    collectives: frozenset[str]
    build: Callable[..., Schedule]
    cost: Callable[..., Cost]

    @property
    def asks_layout(self) -> bool:
        """Whether schedules differ by how the ranks lie on the fabric."""
        return _asks(self.build)


def collective_name(text: str) -> str:
    """``"AllReduce"``, ``"all-reduce"`` or ``"all_reduce_perf"`` -> ``"all_reduce"``.  Raises ConfigError."""
    plain = text.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    if plain not in ALIASES:
        known = ", ".join(COLLECTIVES)
        raise ConfigError(f"collective {text!r} is not known{_nearest(plain, ALIASES)}; use one of {known}")
    return ALIASES[plain]


def algorithm_names() -> tuple[str, ...]:
    """The algorithms in this folder: every file that has COLLECTIVES, build and cost."""
    return tuple(name for name, module in read_folder(emu.collectives).modules.items() if not _lacks(module, "build"))


def algorithms_for(collective: str) -> tuple[str, ...]:
    """Names of those in this folder that do ``collective``.  Raises ConfigError for an unknown one."""
    name = collective_name(collective)
    return tuple(algorithm for algorithm in algorithm_names() if name in find_algorithm(algorithm).collectives)


def listed(collective: str) -> str:
    """Those that do ``collective``, NCCL's and emu's own apart, for messages.  Raises ConfigError for an unknown one."""
    names, nccls = algorithms_for(collective), NCCLS.get(collective_name(collective), frozenset())
    both = {"NCCL's": [name for name in names if name in nccls], "emu's own": [name for name in names if name not in nccls]}
    return ", or ".join(f"{whose} {', '.join(its)}" for whose, its in both.items() if its)


def find_algorithm(name: str) -> Algorithm:
    """By name, in any case and spelling (``"Ring"``, ``"CollnetDirect"``), or by ``"module:function"``.  Raises ConfigError."""
    module_name, colon, function = name.partition(":")
    if colon:
        if module_name.isidentifier() and module_name not in sys.modules and find_spec(module_name) is None:
            near = _nearest(module_name.lower().replace("_", ""), ALIASES)
            raise ConfigError(
                f"algorithm {name!r} cannot be imported from {module_name}: there is no such module, and no such collective"
                f"{near}; collectives are {', '.join(COLLECTIVES)}"
            )
        return _offered(load_module(module_name, f"algorithm {name!r}"), function, name)
    plain = name.lower().replace("-", "_")
    modules, faults = read_folder(emu.collectives)
    if plain not in modules:
        bare = plain.replace("_", "")
        plain = next((known for known in modules if known.replace("_", "") == bare), plain)
    if plain in faults:
        raise ConfigError(f"algorithm {name!r}: {faults[plain]}")
    if plain not in modules:
        names = algorithm_names()
        raise ConfigError(
            f"algorithm {name!r} is not known{_nearest(plain, names)}; use one of {', '.join(names)}, or module:function"
        )
    return _offered(modules[plain], "build", plain)


@lru_cache
def algorithm_name(text: str) -> str:
    """``"CollnetDirect"`` -> ``"collnet_direct"``.  Raises ConfigError."""
    return find_algorithm(text).name


def schedule_for(collective: str, algorithm: str, n_ranks: int, root: int = 0, layout: Layout | None = None) -> Schedule:
    """The verified schedule, the same object for the same request while it is cached.

    Names are taken as users write them.  ``root`` counts only where there is one, ``layout`` for those who ask; None is
    ranks of which nothing is known.  Raises ConfigError for
    what cannot be asked for and ScheduleError when the algorithm is wrong.  Of many threads that ask at once
    the first one builds and the others wait.
    """
    with _building:
        return _as_written(collective, algorithm, n_ranks, root, layout or flat(n_ranks))


def cost_for(collective: str, algorithm: str, n_ranks: int, layout: Layout | None = None) -> Cost:
    """The algorithm's own formula for its steps and sent bytes.  Raises ConfigError."""
    name = collective_name(collective)
    if n_ranks < 1:
        raise ConfigError(f"{name} over {n_ranks} ranks: a collective needs 1 rank or more")
    return _priced(_fitting(name, algorithm), name, layout or flat(n_ranks))


def _fitting(collective: str, algorithm: str) -> Algorithm:
    try:
        found = find_algorithm(algorithm)
        require_collective(collective, found.name, found.collectives)
    except ConfigError as error:
        raise ConfigError(f"{error}; for {collective} use {listed(collective)}") from None
    return found


@lru_cache(maxsize=MAX_CACHED_SCHEDULES)
def _as_written(collective: str, algorithm: str, n_ranks: int, root: int, layout: Layout) -> Schedule:
    """Every call of a rank asks; what its words stand for is looked up once."""
    name = collective_name(collective)
    found = _fitting(name, algorithm)
    return _schedule(name, found.name, root if name in ROOTED else 0, layout if found.asks_layout else flat(n_ranks))


@lru_cache(maxsize=MAX_CACHED_SCHEDULES)
def _schedule(collective: str, algorithm: str, root: int, layout: Layout) -> Schedule:
    found, n_ranks = find_algorithm(algorithm), layout.n_ranks
    over = f"{algorithm} {collective} over {n_ranks} ranks"
    try:
        schedule: object = found.build(collective, n_ranks, root, *([layout] if found.asks_layout else ()))
    except ConfigError as error:
        raise ConfigError(f"algorithm {algorithm}: {error}") from None
    except Exception as error:
        raise ScheduleError(f"{over}: build failed with {fault(error)}") from error
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"{over}: build returned {type(schedule).__name__}; it must return a Schedule")
    made = (schedule.collective, schedule.n_ranks, schedule.root)
    if made != (collective, n_ranks, root):
        raise ScheduleError(f"{algorithm} was asked for {(collective, n_ranks, root)} and built {made}")
    costs, says = verify(schedule).cost, _priced(found, collective, layout)
    if costs != says:
        raise ScheduleError(
            f"{over}: it takes {costs.steps} steps and sends {costs.sent} S, but its cost() says {says.steps} and {says.sent} S"
        )
    return schedule


def _priced(algorithm: Algorithm, collective: str, layout: Layout) -> Cost:
    over = f"{algorithm.name} {collective} over {layout.n_ranks} ranks"
    try:
        cost: object = algorithm.cost(collective, layout.n_ranks, *([layout] if _asks(algorithm.cost) else ()))
    except ConfigError:
        raise
    except Exception as error:
        raise ScheduleError(f"{over}: cost failed with {fault(error)}") from error
    if not isinstance(cost, Cost):
        raise ScheduleError(f"{over}: cost returned {type(cost).__name__}; it must return a Cost")
    return cost


def _offered(module: ModuleType, function: str, name: str) -> Algorithm:
    lacks = _lacks(module, function)
    if lacks:
        raise ConfigError(f"algorithm {name!r}: {file_of(module)} has no {lacks}; define it there")
    offers = vars(module)
    return Algorithm(name=name, collectives=frozenset(offers["COLLECTIVES"]), build=offers[function], cost=offers["cost"])


@lru_cache
def _asks(function: Callable[..., object]) -> bool:
    return "layout" in signature(function).parameters


def _lacks(module: ModuleType, function: str) -> str:
    """What the module must have to be an algorithm and has not."""
    offers = vars(module)
    found = {needed: offers.get(needed) for needed in (function, "cost")}
    missing = [f"function {name!r}" for name, offer in found.items() if not callable(offer) or isinstance(offer, type)]
    if not isinstance(offers.get("COLLECTIVES"), set | frozenset | tuple | list):
        missing.append("COLLECTIVES, the set of names that it does")
    return " and no ".join(missing)


def _nearest(text: str, names: dict[str, str] | tuple[str, ...]) -> str:
    match = get_close_matches(text, names, n=1)
    if not match:
        return ""
    return f", did you mean {names[match[0]] if isinstance(names, dict) else match[0]}?"
