"""Pickling: what crosses between the session and its actors besides frames, a user's function there and its results back."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ray import cloudpickle

from emu.errors import ConfigError, EmuError


def pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function with its module, so that an actor needs no copy of the user's files.  Raises ConfigError."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    by_value = module is not None and module.__name__ != "__main__" and not _installed(module)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps((function, args))  # type: ignore[no-any-return]
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise ConfigError(f"the function or its arguments cannot be sent to the actors: {first_line(error)}") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def check_sendable(results: dict[int, Any]) -> None:
    """Raises EmuError that names the rank whose result does not pickle.  Arrays are looked at, not copied."""
    for world_rank, result in results.items():
        try:
            cloudpickle.dumps(result, protocol=5, buffer_callback=lambda _: False)
        except Exception as error:
            raise EmuError(
                f"what rank {world_rank} returned ({type(result).__name__}) cannot be sent back: {first_line(error)};"
                " return numbers, text, numpy arrays, or lists and dicts of them"
            ) from None


def _installed(module: ModuleType) -> bool:
    """Whether an actor can import the module by itself: emu's own, and what lies in site-packages."""
    file = getattr(module, "__file__", None) or ""
    return module.__name__.split(".")[0] == "emu" or "site-packages" in file or not file


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def cause_of(error: Any) -> EmuError:
    """The emu error inside Ray's wrapping."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, EmuError):
        return cause
    return EmuError(first_line(cause if cause is not None else error))
