"""What users write to impair links: ``"LINKS=KIND,key=value,..."``.

LINKS is a link's name (``a3->s0``), a glob pattern (``*``, ``a*->s0``), or either with the
number of one striped plane (``a3->s0#2``).  A link whose own name ends in ``#2`` wins over
the plane.  KIND is a file of this folder, or the dotted name of a module of your own that
defines ``Impairment``.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import emu.impairments
from emu.errors import ConfigError
from emu.impairments.base import BaseImpairment
from emu.parameters import did_you_mean, validate
from emu.topologies.graph import Topology

PlacedImpairment = tuple[BaseImpairment, int | None]
"""An impairment and the plane it is on; None is the whole link."""


def _load(module_name: str) -> type[BaseImpairment] | None:
    found: object = getattr(importlib.import_module(module_name), "Impairment", None)
    return found if isinstance(found, type) and issubclass(found, BaseImpairment) else None


def kinds() -> tuple[str, ...]:
    """Every kind in this folder, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(emu.impairments.__path__))
    return tuple(name for name in names if _load(f"{emu.impairments.__name__}.{name}") is not None)


def impairment_class(kind: str) -> type[BaseImpairment]:
    """The class behind a kind (``"jitter"``) or a dotted module name.  Raises ConfigError."""
    if kind in kinds():
        module_name = f"{emu.impairments.__name__}.{kind}"
    elif "." in kind:
        module_name = kind
    else:
        near = did_you_mean(kind, kinds())
        raise ConfigError(f"{kind!r} is not a kind of impairment{near}; use one of {', '.join(kinds())}")
    try:
        found = _load(module_name)
    except ImportError as error:
        raise ConfigError(f"impairment {kind!r} cannot be imported ({error}); check the module's name") from None
    if found is None:
        raise ConfigError(f"module {kind!r} has no class Impairment(BaseImpairment); define it there")
    return found


def parse_impairment(text: str) -> tuple[str, BaseImpairment]:
    """``"a3->s0=latency,added=1ms"`` -> (``"a3->s0"``, the impairment).  Raises ConfigError."""
    pattern, equals, rest = (part.strip() for part in text.partition("="))
    kind, *settings = (part.strip() for part in rest.split(","))
    if not (pattern and equals and kind):
        raise ConfigError(f"{text!r} is not LINKS=KIND,key=value,...; write for example 'a0->s0=latency,added=1ms'")
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"{text!r}: {setting!r} is not key=value; write for example added=1ms")
        if key in values:
            raise ConfigError(f"{text!r}: {key} is given twice; keep one")
        values[key] = value
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
