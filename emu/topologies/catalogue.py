"""Names of topologies: ``ring`` is ``emu.topologies.ring``, ``my_lab.torus:build`` is that function.

Law: a name is a module's name; there is no registry.  A module is a topology when it holds a
pydantic class ``Parameters`` and a function ``build``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from pydantic import BaseModel

import emu.topologies
from emu.errors import ConfigError
from emu.parameters import did_you_mean
from emu.topologies.folder import file_of, first_line, load_module, read_folder
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
    modules = read_folder(emu.topologies).modules
    return {name: _read(module, name, "build") for name, module in modules.items() if not _lacks(module, "build")}


def resolve(name: str, *, where: str) -> Generic:
    """The topology called ``name``.  ``where`` is who asks.  Raises ConfigError."""
    module_name, colon, function = name.partition(":")
    if colon:
        return _complete(load_module(module_name, f"{where}: topology {name!r}"), name, function, where)
    modules, faults = read_folder(emu.topologies)
    if name in faults:
        raise ConfigError(f"{where}: {faults[name]}")
    if name in modules:
        return _complete(modules[name], name, "build", where)
    names = sorted(generic_topologies())
    raise ConfigError(f"{where}: unknown topology {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")


def in_folder(name: str) -> bool:
    """Whether the folder holds a file of this name, whatever it holds."""
    modules, faults = read_folder(emu.topologies)
    return name in modules or name in faults


def _complete(module: ModuleType, name: str, function: str, where: str) -> Generic:
    lacks = _lacks(module, function)
    if lacks:
        raise ConfigError(f"{where}: {file_of(module)} is no topology: it has no {lacks}; define it there")
    return _read(module, name, function)


def _lacks(module: ModuleType, function: str) -> str:
    """What the module must have to be a topology and has not."""
    parameters: object = getattr(module, "Parameters", None)
    if not (isinstance(parameters, type) and issubclass(parameters, BaseModel)):
        return "pydantic class Parameters"
    build: object = getattr(module, function, None)
    return "" if callable(build) and not isinstance(build, type) else f"function {function!r}"


def _read(module: ModuleType, name: str, function: str) -> Generic:
    return Generic(
        name=name,
        description=first_line(module.__doc__, name),
        parameters=cast("type[BaseModel]", module.Parameters),
        build=cast("Callable[[BaseModel], Topology]", getattr(module, function)),
    )
