"""Preset: a fabric file with a fitted endpoint, made of the file of the fabric that was fitted.

Law: what is written says of each of the endpoint's numbers where it is from: which rows, of which files and on what day; what no
row told and so is the fit's prior; what the other file had.  All else stays as it was, comments included, but for those beside a
value that changed.  Nothing is written that emu would not load.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from emu.errors import ConfigError
from emu.topologies.endpoint_file import write_endpoint
from emu.topologies.fabric_file import load_fabric, preset_files
from emu.validation.errors import Compared, summary
from emu.validation.fit import PRIORS, Fitted

FITTED_KEYS: Final = frozenset(key for prior in PRIORS for key in prior.keys)
AT_PRIOR: Final = 0.1
"""A parameter of which the rows told less than this share is not fitted: it is the prior."""
OWN_SOURCES: Final = frozenset({"message", "endpoint", "endpoint_prior", "endpoint_base"})
MOST_SOURCES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a fit rests on: the ``rows`` of ``files``, those that were held out too."""

    files: Sequence[Path]
    rows: Sequence[Compared]
    day: date

    @property
    def fitted(self) -> list[Compared]:
        return [row for row in self.rows if row.fitted]

    @property
    def file_names(self) -> str:
        return ", ".join(path.name for path in self.files)

    @property
    def held_out(self) -> str:
        """``148 held out are off by 4.8 % (geometric mean)``."""
        rows = [row for row in self.rows if not row.fitted]
        if not rows:
            return "none was held out, so nothing says what it is worth"
        return f"{len(rows)} held out are off by {100 * summary(rows).geometric_mean:.1f} % (geometric mean)"


def base_document(name: str) -> tomlkit.TOMLDocument:
    """The file that ``name`` is (a preset or a path), to be edited.  Raises ConfigError."""
    presets = preset_files()
    if name not in presets and not name.endswith(".toml") and "/" not in name:
        raise ConfigError(f"--fabric {name}: it is no file that could be given an endpoint; name a preset or a .toml file")
    try:
        return tomlkit.parse((presets[name] if name in presets else Path(name)).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise ConfigError(f"--fabric {name}: cannot be read: {error}; give a preset's name or a TOML file") from None


def preset_text(name: str, document: tomlkit.TOMLDocument, fitted: Fitted, evidence: Evidence) -> str:
    """``document``, which is ``name``'s, with the fitted endpoint, its calibration and its sources.  Raises ConfigError."""
    written: dict[str, Any] = tomlkit.parse(write_endpoint(fitted.costs)).unwrap()["endpoint"]
    endpoint, sources = _table(document, "endpoint"), _table(document, "sources")
    for key in set(endpoint) - set(written):
        del endpoint[key]
    for key, value in written.items():
        _put(endpoint, key, value)
    worth = f"calibrated: endpoint fitted to {len(evidence.fitted)} measured times ({evidence.file_names})"
    _put(document, "calibration", f"{worth}; {evidence.held_out}")
    its_sources = _sources(name, fitted, evidence, written)
    for key in set(sources) & (OWN_SOURCES | FITTED_KEYS - {"rate"}) - set(its_sources):
        del sources[key]
    for key, value in its_sources.items():
        _put(sources, key, value)
    text = tomlkit.dumps(document)
    _check_loads(text, fitted)
    return text


def _sources(name: str, fitted: Fitted, evidence: Evidence, written: Iterable[str]) -> dict[str, str]:
    """Of an endpoint with the keys ``written``.  What stands under ``rate`` is of the link's, and stays."""
    said = [f"{its.prior.name} {100 * its.told:.0f} %" for its in fitted.parameters if its.told >= AT_PRIOR]
    unsaid = [its.prior.name for its in fitted.parameters if its.told < AT_PRIOR]
    decided = {key for its in fitted.parameters for key in its.prior.keys}
    kept = [key for key in written if key not in decided | OWN_SOURCES]
    counts = Counter((row.measurement.collective, row.measurement.n_ranks) for row in evidence.fitted)
    rows = ", ".join(f"{n} {collective} over {n_ranks} ranks" for (collective, n_ranks), n in counts.items())
    origins = {row.measurement.source for row in evidence.fitted} - {"", *map(str, evidence.files)}
    origin = f" ({'; '.join(sorted(origins))})" if 0 < len(origins) <= MOST_SOURCES else ""
    found = {
        "message": "E: 200 ns for all machines; too few rows tell",
        "endpoint": f"D: fitted by emu calibrate-fabric on {evidence.day.isoformat()} to {len(evidence.fitted)} rows ({rows}) of"
        f" {evidence.file_names}{origin}; {evidence.held_out}. Share that the rows decide, the rest is the fit's prior:"
        f" {', '.join(said)}",
    }
    if unsaid:
        found["endpoint_prior"] = f"E: not fitted, the fit's prior, as the rows do not tell: {', '.join(unsaid)}"
    if kept:
        found["endpoint_base"] = f"not fitted, as {Path(name).name} has it: {', '.join(kept)}"
    return found


def _table(document: tomlkit.TOMLDocument, key: str) -> MutableMapping[str, Any]:
    if key not in document:
        document[key] = tomlkit.table()
    found = document[key]
    assert isinstance(found, MutableMapping), "the fabric was loaded, so its tables are tables"
    return found


def _put(table: MutableMapping[str, Any], key: str, value: object) -> None:
    """A comment beside another value does not hold for this one."""
    if table.get(key) == value:
        return
    table[key] = value
    trivia = table[key].trivia
    trivia.comment, trivia.comment_ws = "", ""


def _check_loads(text: str, fitted: Fitted) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fitted.toml"
        path.write_text(text, encoding="utf-8")
        try:
            found = load_fabric(str(path)).endpoint
        except ConfigError as error:
            raise ConfigError(
                f"nothing is written, as emu would not load it: {str(error).replace(str(path), path.name)}"
            ) from None
    if found is None or write_endpoint(found) != write_endpoint(fitted.costs):
        raise ConfigError("nothing is written, as the file would not say what was fitted; give --fabric a plainer file")
