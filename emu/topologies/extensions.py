"""Extensions: the files of a folder of emu, or modules of a user's, that are looked up by name.

``dcqcn`` is ``emu.congestion.dcqcn:build``, ``my_lab.control:build`` is that function.  What else a file says of itself stands
beside its function as attributes of the module, whoever wrote it, so that a copy under another name behaves alike.

Law: whatever is wrong with a file is one line that names what the user wrote, the file and what it lacks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import cast

from emu.errors import ConfigError, fault
from emu.parameters import did_you_mean
from emu.topologies.folder import file_of, first_line, load_module, read_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A file that was found.  ``written``: what the user wrote, for messages; ``function``: which one builds."""

    written: str
    module: ModuleType
    function: str

    def build(self, *arguments: object) -> object:
        """What the function makes of ``arguments``.  Raises its ConfigErrors, and one when it fails or gives nothing."""
        return self._call(self.function, *arguments)

    def _call(self, function: str, *arguments: object, **keywords: object) -> object:
        called = cast("Callable[..., object]", getattr(self.module, function))
        place = f"{self.written}: {function} of {file_of(self.module)}"
        try:
            found = called(*arguments, **keywords)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{place} failed with {fault(error)}") from error
        if found is None:
            raise ConfigError(f"{place} returned None; return what it builds")
        return found

    def flag(self, name: str) -> bool:
        """A bool that the module may hold; False where it does not.  Raises ConfigError."""
        value: object = getattr(self.module, name, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.written}: {file_of(self.module)}: {name} = {value!r} must be True or False")
        return value

    def rule(self, name: str) -> Callable[..., object] | None:
        """A function that the module may hold, which is called as :meth:`build` is.  Raises ConfigError when it is none."""
        value: object = getattr(self.module, name, None)
        if value is not None and not callable(value):
            raise ConfigError(f"{self.written}: {file_of(self.module)}: {name} = {value!r} must be a function")
        return None if value is None else partial(self._call, name)


def extension(folder: str, key: str, name: str) -> Extension:
    """The file ``name`` of emu/``folder``, or ``module:function``.  ``key`` is what users write.

    Raises ConfigError with the names that there are.
    """
    module_name, colon, function = name.partition(":")
    written = f"{key} = {name!r}"
    if colon:
        module = load_module(module_name, written)
    else:
        function = "build"
        modules, faults = read_folder(importlib.import_module(f"emu.{folder}"))
        if name in faults:
            raise ConfigError(f"{written}: {faults[name]}")
        if name not in modules:
            known = extension_names(folder)
            raise ConfigError(
                f"{written} is not known{did_you_mean(name, known)}; there are {', '.join(known)}, or module:function"
            )
        module = modules[name]
    if not callable(getattr(module, function, None)):
        raise ConfigError(f"{written}: {file_of(module)} has no function {function!r}; define it there")
    return Extension(written=written, module=module, function=function)


def extension_names(folder: str) -> tuple[str, ...]:
    """Files of emu/``folder`` that offer ``build``; broken ones are left out."""
    return tuple(name for name, _ in described(folder))


def described(folder: str) -> tuple[tuple[str, str], ...]:
    """(name, the first line of its docstring) of each."""
    modules = read_folder(importlib.import_module(f"emu.{folder}")).modules
    return tuple(
        (name, first_line(module.__doc__, name)) for name, module in modules.items() if callable(getattr(module, "build", None))
    )
