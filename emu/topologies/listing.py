"""The list of all fabrics by family, and what the numbers of a preset are worth.

Law: each source of a preset begins with an evidence code and a colon; what is not read somewhere can be told from what is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from emu.topologies.catalogue import generic_topologies
from emu.topologies.fabric_file import preset_files, read_file
from emu.topologies.switching_file import load_switching_preset, switching_presets

FAMILIES: Final = (
    "scale-up of accelerators",
    "TPU pods",
    "scale-out clusters",
    "HPC systems",
    "coherent CPU systems",
    "boxes and memory pools",
)
"""The families of presets, in the order of the list."""

EVIDENCE: Final = {
    "V": "verified",  # read in an official or primary text, or found alike in two independent ones
    "S": "secondary",  # one secondary text
    "D": "derived",  # arithmetic on the former
    "M": "recalled",  # told from memory, not confirmed
    "E": "estimate",  # nothing published was found
    "N": "not found",  # and left out
}
"""Codes before the colon of a source, and how they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A line of ``emu fabrics``.  ``family``: of presets."""

    name: str
    kind: Literal["preset", "switching", "topology"]
    description: str
    family: str = ""


def list_fabrics() -> tuple[Listing, ...]:
    """Presets, presets of switching, then generic topologies, each in order of name, with a line about each."""
    files = {name: read_file(path, name) for name, path in preset_files().items()}
    presets = [
        Listing(name=name, kind="preset", description=file.description, family=file.family) for name, file in files.items()
    ]
    switching = [
        Listing(name=name, kind="switching", description=load_switching_preset(name, where=name).description)
        for name in switching_presets()
    ]
    generic = [Listing(name=name, kind="topology", description=found.description) for name, found in generic_topologies().items()]
    return (*presets, *switching, *generic)


def evidence(source: str) -> tuple[str, str]:
    """(what it is worth, the source without its code); nothing for one without a code."""
    code, colon, text = source.partition(": ")
    return (EVIDENCE[code], text) if colon and code in EVIDENCE else ("", source)
