"""Settings: which ``--set`` pairs are a topology's, and which are of its switching.

Law: every pair goes to one of the two; a key that neither knows stays with the topology, which complains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from emu.errors import ConfigError
from emu.parameters import did_you_mean
from emu.topologies.switching_file import OF_ONE_CLASS, SWITCHING_KEYS

_SIZES: Final = ("shape", "leaves", "accelerators_per_leaf")
"""Parameters whose product is the number of ranks, where a topology does not take that itself."""
SWITCHING_SETTINGS: Final = ("switching", *SWITCHING_KEYS)


def split_settings(settings: Mapping[str, str], parameters: type[BaseModel] | None) -> tuple[dict[str, str], dict[str, str]]:
    """(for the topology, for its switching).  A key that both know is the topology's.

    Raises ConfigError for a key that is nearer to one of switching, and for ``ranks`` where they follow from others.
    """
    known = list(parameters.model_fields) if parameters is not None else []
    own: dict[str, str] = {}
    switching: dict[str, str] = {}
    for key, text in settings.items():
        if key not in known and key in SWITCHING_SETTINGS:
            switching[key] = text
            continue
        own[key] = text
        if not known or key in known:
            continue
        if key in OF_ONE_CLASS:
            raise ConfigError(f"--set: {key} is of one class; write it in [[classes]] of a fabric file: {OF_ONE_CLASS[key]}")
        sizes = [name for name in _SIZES if name in known]
        if key == "ranks" and sizes:
            size = "ranks follow from " + " x ".join(sizes)
            raise ConfigError(f"--set: unknown key 'ranks'; {size} here, set those (--ranks N takes the first N of them)")
        hint = did_you_mean(key, SWITCHING_SETTINGS, similarity=0.7)
        if hint and hint == did_you_mean(key, [*known, *SWITCHING_SETTINGS]):
            raise ConfigError(f"--set: unknown key {key!r}{hint}; keys of switching: {', '.join(SWITCHING_SETTINGS)}")
    return own, switching
