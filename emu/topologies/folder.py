"""Folders: the files of a folder of emu that extend it, and what is wrong with those that cannot be imported.

Law: a broken file takes nothing with it.  It is left out with one line on stderr, and whoever asks for it is told why.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import Final, NamedTuple

from emu.errors import ConfigError, fault

_log: Final = logging.getLogger("emu")


class Folder(NamedTuple):
    """Both by the file's name without ``.py``."""

    modules: Mapping[str, ModuleType]
    faults: Mapping[str, str]
    """What is wrong with each file that cannot be imported, in one line with its name."""


def read_folder(package: ModuleType) -> Folder:
    """Import every file of ``package``, once in a process."""
    return _read(package.__name__, tuple(package.__path__))


@lru_cache
def _read(package: str, path: tuple[str, ...]) -> Folder:
    modules, faults = {}, {}
    for name in sorted(module.name for module in pkgutil.iter_modules(path)):
        try:
            modules[name] = load_module(f"{package}.{name}", f"{package.replace('.', '/')}/{name}.py")
        except ConfigError as error:
            faults[name] = str(error)
            _log.warning("emu: left out: %s", error)
    return Folder(modules, faults)


def load_module(module_name: str, written: str) -> ModuleType:
    """Import it.  Raises ConfigError, whatever its file does."""
    try:
        return importlib.import_module(module_name)
    except SyntaxError as error:
        raise ConfigError(f"{written}: {error.filename}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        what = str(error) if isinstance(error, ImportError | ValueError) else fault(error)
        raise ConfigError(" ".join(f"{written} cannot be imported from {module_name}: {what}".split())) from None


def file_of(module: ModuleType) -> str:
    """The module's file, or its name where there is none."""
    return getattr(module, "__file__", None) or module.__name__


def first_line(docstring: str | None, name: str) -> str:
    """The first line of a docstring, without the name before it and the full stop."""
    return (docstring or "").strip().split("\n", 1)[0].rstrip(".").removeprefix(f"{name}: ")
