"""Preset: a fabric file with a fitted endpoint, from the fabric that was fitted."""

from __future__ import annotations

import re
from pathlib import Path

from emu.protocols.costs import EndpointCosts
from emu.topologies.endpoint_file import write_endpoint
from emu.topologies.fabric_file import preset_files


def preset_text(name: str, costs: EndpointCosts, *, calibration: str) -> str:
    """The file that ``name`` is (a preset or a path), its ``[endpoint]`` and calibration replaced."""
    path = Path(name) if name.endswith(".toml") else preset_files()[name]
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^\[endpoint\][^\[]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^calibration\s*=.*\n", "", text, flags=re.MULTILINE)
    head, section, rest = text.partition("[")
    quoted = calibration.replace("\\", "\\\\").replace('"', '\\"')
    return f'{head.rstrip()}\ncalibration = "{quoted}"\n\n{section}{rest.rstrip()}\n\n{write_endpoint(costs)}'.lstrip()
