"""What users write to impair links: ``"LINKS=KIND,key=value,..."``.

LINKS is a link's name (``a3->s0``), a glob pattern (``*``, ``a*->s0``), or either with the
number of one striped plane (``a3->s0#2``).  A link whose own name ends in ``#2`` wins over
the plane.  KIND is a file of this folder (``jitter``), or a class of your own, ``module:Class``; a module's name alone
stands for its class ``Impairment``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from types import ModuleType

import emu.impairments
from emu.errors import ConfigError
from emu.impairments.base import BaseImpairment
from emu.parameters import did_you_mean, key_values, validate
from emu.topologies.folder import file_of, load_module, read_folder
from emu.topologies.graph import Topology

PlacedImpairment = tuple[BaseImpairment, int | None]
"""An impairment and the plane it is on; None is the whole link."""


def kinds() -> tuple[str, ...]:
    """Every kind in this folder, in alphabetical order."""
    return tuple(name for name, module in read_folder(emu.impairments).modules.items() if _class_of(module, "Impairment"))


def impairment_class(kind: str) -> type[BaseImpairment]:
    """The class behind a kind (``"jitter"``), ``"module:Class"`` or a module's name.  Raises ConfigError."""
    modules, faults = read_folder(emu.impairments)
    module_name, _, name = kind.partition(":")
    if kind in faults:
        raise ConfigError(f"impairment {kind!r}: {faults[kind]}")
    if kind in modules:
        module = modules[kind]
    elif kind == module_name and "." not in kind and find_spec(kind) is None:
        near = did_you_mean(kind, kinds())
        raise ConfigError(
            f"{kind!r} is not a kind of impairment{near}; use one of {', '.join(kinds())}, or module:Class for one of your own"
        )
    else:
        module = load_module(module_name, f"impairment {kind!r}")
    found = _class_of(module, name or "Impairment")
    if found is None:
        raise ConfigError(
            f"impairment {kind!r}: {file_of(module)} has no class {name or 'Impairment'}(BaseImpairment);"
            " define it there, or write module:Class"
        )
    return found


def _class_of(module: ModuleType, name: str) -> type[BaseImpairment] | None:
    found: object = getattr(module, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseImpairment) else None


def parse_impairment(text: str) -> tuple[str, BaseImpairment]:
    """``"a3->s0=latency,added=1ms"`` -> (``"a3->s0"``, the impairment).  Raises ConfigError."""
    pattern, equals, rest = (part.strip() for part in text.partition("="))
    kind, *settings = (part.strip() for part in rest.split(","))
    if not (pattern and equals and kind):
        raise ConfigError(f"{text!r} is not LINKS=KIND,key=value,...; write for example 'a0->s0=latency,added=1ms'")
    values = key_values(settings, where=repr(text), example="added=1ms")
    return pattern, validate(impairment_class(kind), values, where=f"{pattern}={kind}")


def match_links(pattern: str, topology: Topology) -> tuple[tuple[int, ...], int | None]:
    """Indices of the links that ``pattern`` names, and the plane if it names one.

    The whole pattern is tried as a name, then as a glob, then as either with a plane.
    Raises ConfigError when nothing matches or there is no such plane.
    """
    names = [link.name for link in topology.links]
    whole = _match(pattern, names)
    if whole:
        return whole, None
    with_plane = re.fullmatch(r"(.+)#([0-9]+)", pattern)
    links = _match(with_plane[1], names) if with_plane is not None else ()
    if with_plane is None or not links:
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
        nearest = f"the nearest name is {near[0]!r}" if near else "it has no links"
        raise ConfigError(f"no link of {topology.name} matches {pattern!r}; {nearest}, and '*' is all {len(names)}")
    plane = int(with_plane[2])
    for index in links:
        n_planes = len(topology.links[index].planes_bps)
        if plane >= n_planes:
            has = f"its planes are #0 to #{n_planes - 1}" if n_planes else "it is not striped, leave out the #"
            raise ConfigError(f"{pattern!r}: link {names[index]} has no plane #{plane}; {has}")
    return links, plane


def _match(pattern: str, names: Sequence[str]) -> tuple[int, ...]:
    exact = tuple(index for index, name in enumerate(names) if name == pattern)
    return exact or tuple(index for index, name in enumerate(names) if fnmatchcase(name, pattern))


def resolve(specs: Iterable[tuple[str, BaseImpairment]], topology: Topology) -> dict[int, tuple[PlacedImpairment, ...]]:
    """What is on each link, by link index, in the order given; links without any are left out.

    Raises ConfigError: no such link or plane, or a plane for what does not change capacity
    (a frame is striped over all planes, so delay and loss have no plane of their own).
    """
    placed: dict[int, tuple[PlacedImpairment, ...]] = {}
    for pattern, impairment in specs:
        links, plane = match_links(pattern, topology)
        if plane is not None and (impairment.changes_delay or impairment.loses):
            raise ConfigError(
                f"{pattern!r} names a plane, but frames are striped over all planes: only flap and throttle take one; "
                f"write {pattern.rpartition('#')[0]!r}"
            )
        for index in links:
            placed[index] = (*placed.get(index, ()), (impairment, plane))
    return placed
