"""Scales: smaller instances of a large system, which its file lists by their number of ranks.

Law: a scale is a set of parameters in the file's own words, so what stays the same and what shrinks can be read there::

    [scales]
    64 = { groups = 4, switches_per_group = 4 }

``--set scale=64`` takes it; other ``--set`` pairs then change it further.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator

from emu.errors import ConfigError

KEY: Final = "scale"


def _of_ranks(name: str) -> str:
    if not re.fullmatch("[1-9][0-9]*", name):
        raise ValueError("a scale is called by its number of ranks; write for example 64 = { ranks = 64 }")
    return name


Scale = Annotated[str, AfterValidator(_of_ranks)]
"""The name of a scale in a file."""


def at_scale(
    table: Mapping[str, object], scales: Mapping[str, Mapping[str, object]], settings: Mapping[str, str], *, where: str
) -> tuple[dict[str, object], dict[str, str]]:
    """The file's ``table`` of parameters at the scale that is set, and the settings without it.  Raises ConfigError."""
    others = dict(settings)
    wanted = others.pop(KEY, None) if scales else None
    if wanted is None:
        return dict(table), others
    if wanted not in scales:
        known = ", ".join(scales)
        raise ConfigError(f"--set: {KEY} = {wanted!r}: {where} is given at its own size and with {known} ranks; use one of those")
    return {**table, **scales[wanted]}, others
