"""Schedule files: faults with times, as TOML.

[[faults]]
target = "a3->s0"
kind = "slow"
factor = 0.5
at = "2ms"
for = "5ms"
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from emu.errors import ConfigError
from emu.faults.spec import parse_fault
from emu.parameters import as_text, did_you_mean


def read_schedule(path: Path) -> tuple[str, ...]:
    """The file's faults as ``--fault`` takes them.  Raises ConfigError that names the file and the fault's number."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--faults {path}: cannot be read as TOML: {' '.join(str(error).split())}") from None
    strange = next((key for key in tables if key != "faults"), None)
    if strange is not None:
        raise ConfigError(
            f"--faults {path}: unknown key {strange!r}{did_you_mean(strange, ['faults'])}; it holds [[faults]] only"
        )
    faults = tables.get("faults", [])
    if not isinstance(faults, list) or not all(isinstance(fault, dict) for fault in faults):
        raise ConfigError(f"--faults {path}: write each fault as a table [[faults]]")
    return tuple(_text(f"--faults {path}: fault {number}", fault) for number, fault in enumerate(faults, 1))


def _text(where: str, fault: dict[str, object]) -> str:
    missing = next((key for key in ("target", "kind") if not isinstance(fault.get(key), str)), None)
    if missing is not None:
        raise ConfigError(f"{where}: {missing!r} is missing; a fault has a target, a kind and the kind's keys")
    settings = [f"{key}={as_text(value)}" for key, value in fault.items() if key not in ("target", "kind")]
    text = f"{fault['target']}={','.join([str(fault['kind']), *settings])}"
    try:
        parse_fault(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return text
