"""Names of topologies: ``ring`` is ``emu.topologies.ring``, ``my_lab.torus:build`` is that function.

Law: a name is a module's name; there is no registry.  A module is a topology when it holds a
pydantic class ``Parameters`` and a function ``build``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from pydantic import BaseModel

import emu.topologies
from emu.errors import ConfigError
from emu.parameters import did_you_mean
from emu.topologies.graph import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Generic:
    """A topology that is built from parameters."""

    name: str
    description: str
    parameters: type[BaseModel]
    build: Callable[[BaseModel], Topology]


def generic_topologies() -> dict[str, Generic]:
    """All topologies in the folder, by name."""
    found = {}
    for module in pkgutil.iter_modules(emu.topologies.__path__):
        generic = _read(importlib.import_module(f"emu.topologies.{module.name}"), module.name, "build")
        if generic is not None:
            found[module.name] = generic
    return found


def resolve(name: str, *, where: str) -> Generic:
    """The topology called ``name``.  ``where`` is who asks.  Raises ConfigError."""
    module_name, colon, function = name.partition(":")
    if colon:
        try:
            generic = _read(importlib.import_module(module_name), name, function)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{where}: topology {name!r} cannot be imported: {error}") from None
        if generic is None:
            raise ConfigError(f"{where}: {module_name} must hold a pydantic class Parameters and a function {function}")
        return generic
    if name in {module.name for module in pkgutil.iter_modules(emu.topologies.__path__)}:
        generic = _read(importlib.import_module(f"emu.topologies.{name}"), name, "build")
        if generic is not None:
            return generic
    names = sorted(generic_topologies())
    raise ConfigError(f"{where}: unknown topology {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")


def _read(module: ModuleType, name: str, function: str) -> Generic | None:
    parameters: object = getattr(module, "Parameters", None)
    build: object = getattr(module, function, None)
    if not (isinstance(parameters, type) and issubclass(parameters, BaseModel) and callable(build)):
        return None
    first_line = (module.__doc__ or "").strip().split("\n", 1)[0].rstrip(".")
    description = first_line.removeprefix(f"{name}: ")
    return Generic(
        name=name,
        description=description,
        parameters=parameters,
        build=cast("Callable[[BaseModel], Topology]", build),
    )
