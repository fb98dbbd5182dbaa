"""How users write switching: the ``[switching]`` table and ``[[classes]]`` of a fabric file, presets, and ``--set``.

Law: what is written is merged, then checked as a whole: a preset's keys, over them the file's, over them ``--set``'s.
Parameters are of the control (or balancing) that they were written for: where another one is named over it, they go with it.
Keys of a class that stand in ``[switching]`` hold for every class that does not say otherwise; by ``--set``, for all::

    [switching]
    preset = "roce-dcqcn"          # any of emu/presets/switching; optional
    buffer = "16MiB"
    alpha = "1/8"

    [[classes]]                    # left out: one class, "data", of priority 3
    name = "data"
    priority = 3
    discipline = "pause"           # drop, pause, credit; nvlink and ualink: credit, and links repeat what they damage
    congestion_control = "dcqcn"
    control_parameters = { set = "paper" }

``"auto"`` stands for the formulas of :mod:`emu.topologies.headroom`.  Sizes, times and ratios are written as anywhere.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from emu.errors import ConfigError
from emu.parameters import (
    AUTO,
    Described,
    PositiveBytes,
    Ratio,
    SizeBytes,
    TimePs,
    as_text,
    described_parameters,
    did_you_mean,
    validate,
)
from emu.units import parse_bytes, parse_rate_bps, parse_time_ps

NO_SWITCHING: Final = "none"
DEFAULT_CLASS: Final[Mapping[str, object]] = {"name": "data", "priority": "3"}

Value = int | Fraction | str
"""Of a parameter that is handed on to a congestion control or a balancing."""

_UNITS: Final[Mapping[str, Callable[[str], int]]] = {"ps": parse_time_ps, "bps": parse_rate_bps, "bytes": parse_bytes}
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_RATIO: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(/[0-9]+)?")


def parse_parameters(written: object) -> tuple[tuple[str, Value], ...]:
    """A table, or ``"set=hpcc,g=1/256"`` -> pairs in order of name.

    Whole numbers and ratios become such; where a name ends in ``_ps``, ``_bps`` or ``_bytes``, text may carry a unit.
    Raises ValueError.
    """
    if isinstance(written, str):
        entries = [part.partition("=") for part in written.split(",")] if written.strip() else []
        if bad := [key for key, equals, text in entries if not (equals and key.strip() and text.strip())]:
            raise ValueError(f"{bad[0]!r} must be key=value; write for example set=paper,g=1/256")
        table: Mapping[str, object] = {key.strip(): text.strip() for key, _, text in entries}
    elif isinstance(written, Mapping):
        table = written
    elif isinstance(written, tuple):
        return written
    else:
        raise ValueError("write a table, for example { set = 'paper' }")
    return tuple(sorted((key, _value(key, as_text(value))) for key, value in table.items()))


def _value(key: str, value: object) -> Value:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ";".join(value)
    if not isinstance(value, str):
        raise ValueError(f"{key} = {value!r} is neither a number, nor text, nor a list of texts")
    if _NUMBER.fullmatch(value):
        return int(value)
    parse = _UNITS.get(key.rpartition("_")[2])
    if parse is not None:
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(f"{key}: {error}") from None
    if _RATIO.fullmatch(value) and not value.endswith("/0"):
        ratio = Fraction(value)
        return ratio if ratio.denominator > 1 else int(ratio)
    return {"true": 1, "false": 0}.get(value, value)


AutoBytes = Annotated[PositiveBytes | None, AUTO]
AutoSize = Annotated[SizeBytes | None, AUTO]
AutoTime = Annotated[TimePs | None, AUTO]
AutoCount = Annotated[Annotated[int, Field(ge=0)] | None, AUTO]
AutoShare = Annotated[Annotated[Ratio, Field(le=1)] | None, AUTO]
Handed = Annotated[tuple[tuple[str, Value], ...], BeforeValidator(parse_parameters)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ClassEntry(_Entry):
    """One traffic class, as written."""

    name: str = Field(min_length=1)
    priority: int = Field(ge=0, le=7)
    discipline: Literal["drop", "pause", "credit", "nvlink", "ualink"]
    """drop, pause, credit; nvlink and ualink: credit, and links repeat what they damage."""
    congestion_control: str = "none"
    """A file of emu/congestion, or module:function."""
    control_parameters: Handed = ()
    """Of the congestion control, as set=hpcc,g=1/256."""
    recovery: Literal["auto", "none", "go_back_n", "selective_repeat"] = "auto"
    """auto: none where nothing is lost, selective_repeat where a switch trims or flows are taken apart, else go_back_n."""
    strict: bool = False
    """Goes before all classes that are not, the highest priority first."""
    weight: int = Field(default=1, ge=1, le=1024)
    """Share of what strict classes leave."""
    kmin: AutoBytes = None
    """ECN marks above this queue; left out with kmax and pmax, only where the congestion control needs marks."""
    kmax: AutoBytes = None
    """ECN marks all above this queue."""
    pmax: AutoShare = None
    """Share that is marked at kmax."""
    trims: bool = False
    """Cut the payload off what does not fit, instead of dropping it (discipline drop)."""
    credits: AutoBytes = None
    """Input buffer of a link, for each lane (discipline credit); auto: one flow keeps the link busy."""
    timeout: TimePs = 1_000_000_000
    """Until what is not acknowledged goes again."""


class FabricEntry(_Entry):
    """What all classes share, as written."""

    quantum: AutoBytes = None
    """Payload of a packet; auto: as coarse as thresholds and round trip allow, at most 64 KiB."""
    buffer: AutoBytes = None
    """A switch's packet memory; auto: a Tomahawk 5's in proportion to its ports."""
    alpha: Ratio = Fraction(1, 8)
    """A queue may hold alpha x what is free of the shared pool."""
    reserved: SizeBytes = 4096
    """Of its own, for each port and class."""
    headroom: AutoSize = None
    """For each port and class that pauses; auto: what is under way while a pause takes effect."""
    xon_offset: SizeBytes = 3072
    """How far below its threshold a paused queue resumes."""
    receive_buffer: AutoBytes = None
    """An adapter's, for each link, class and lane that drops or pauses; auto: by headroom and round trip."""
    pause_response: AutoTime = None
    """From a pause's arrival until the sender obeys; auto: by rate, 905 quanta (1.16 us) at 400 Gbit/s."""
    watchdog_detection: TimePs | None = None
    """A queue paused for so long drops what it holds; left out, there is no watchdog."""
    watchdog_restoration: TimePs | None = None
    """Until the watchdog believes that the storm is over; left out, as long as its detection."""
    balancing: str = "ecmp"
    """A file of emu/balancing, or module:function."""
    balancing_parameters: Handed = ()
    """Of the balancing, as key=value,key=value."""
    queue_pairs: int = Field(default=1, ge=1, le=64)
    """Over which the chunks between two ranks are dealt."""
    lanes: int = Field(default=1, ge=1, le=15)
    """Virtual lanes of each class."""
    link_retry: bool | None = None
    """Links repeat what they damaged; left out, only with nvlink and ualink."""
    reorder_packets: AutoCount = None
    """A missing packet is asked for once so many later ones are here; auto: 0 where flows stay together, else two round trips."""
    reroute: TimePs = 0
    """From a link's going down until the switches beside it route around it; 0: never."""
    trim_size: PositiveBytes = 64
    """What is left of a trimmed packet."""


_FABRIC_KEYS: Final = tuple(FabricEntry.model_fields)
_CLASS_KEYS: Final = tuple(key for key in ClassEntry.model_fields if key not in DEFAULT_CLASS)
_PARAMETERS_OF: Final[Mapping[str, str]] = {"congestion_control": "control_parameters", "balancing": "balancing_parameters"}
OF_ONE_CLASS: Final[Mapping[str, str]] = {"name": "any word", "priority": "0 to 7, another one for each"}
"""Keys that stand in ``[[classes]]`` only, and what they may be."""
SWITCHING_KEYS: Final = (*_CLASS_KEYS, *_FABRIC_KEYS)
"""What ``[switching]`` and ``--set`` take, besides a preset's name."""


def switching_keys() -> tuple[Described, ...]:
    """Each of :data:`SWITCHING_KEYS` with its default and meaning; ``auto`` where formulas fill it in."""
    found = {one.name: one for model in (ClassEntry, FabricEntry) for one in described_parameters(model)}
    return tuple(found[key] for key in SWITCHING_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A fabric's switching as merged; ``sources``: (key, where a preset's number is from)."""

    fabric: FabricEntry
    classes: tuple[ClassEntry, ...]
    where: str
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named switching, as its file has it: everything is text."""

    name: str
    description: str
    switching: Mapping[str, object]
    classes: tuple[Mapping[str, object], ...]
    sources: tuple[tuple[str, str], ...]


class _PresetFile(_Entry):
    description: str
    switching: dict[str, object] = {}
    classes: tuple[dict[str, object], ...] = ()
    sources: dict[str, str] = {}


def switching_presets() -> dict[str, Traversable]:
    """Files of emu/presets/switching, by name."""
    folder = resources.files("emu.presets") / "switching"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files}


def load_switching_preset(name: str, *, where: str) -> Preset:
    """The preset called ``name``; ``where`` is who asks.  Raises ConfigError."""
    files = switching_presets()
    if name not in files:
        raise ConfigError(f"{where}: unknown switching {name!r}{did_you_mean(name, files)}; there are {', '.join(files)}")
    file = validate(_PresetFile, tomllib.loads(files[name].read_text(encoding="utf-8")), where=name)
    return Preset(
        name=name,
        description=file.description,
        switching=_texts(file.switching),
        classes=tuple(_texts(table) for table in file.classes),
        sources=tuple(file.sources.items()),
    )


def read_switching(
    table: Mapping[str, object],
    classes: tuple[Mapping[str, object], ...],
    settings: Mapping[str, str],
    *,
    where: str,
) -> Written | None:
    """What a file's ``[switching]`` and ``[[classes]]`` and the ``--set`` pairs (keys of switching only) say together.

    None where nothing is said, or ``switching=none``.  Raises ConfigError.
    """
    place = f"{where}: [switching]"
    written, entries = _texts(table), [_texts(entry) for entry in classes]
    named = written.pop("preset", None)
    own = {key: text for key, text in settings.items() if key != "switching"}
    if "switching" in settings:
        # Another preset starts anew: the file's keys were written for its own.
        named, written, entries, place = settings["switching"], {}, [], "--set"
        if named == NO_SWITCHING and own:
            raise ConfigError(f"--set switching=none: {', '.join(own)} would do nothing; leave one of them out")
        if named == NO_SWITCHING:
            return None
    if not (named or written or entries or own):
        return None
    sources: tuple[tuple[str, str], ...] = ()
    if named:
        preset = load_switching_preset(str(named), where=place)
        changed = {*written, *own}
        for name, parameters in _PARAMETERS_OF.items():
            theirs = {table.get(name) for table in (preset.switching, *preset.classes)}
            if not {table[name] for table in (written, own) if name in table} <= theirs:
                changed.add(parameters)
        sources = tuple((key, text) for key, text in preset.sources if key not in changed)
        written = _over(preset.switching, written)
        entries = entries or [dict(entry) for entry in preset.classes]
    _check_keys(written, place)
    where_by_key = dict.fromkeys(own, "--set")
    fabric = validate(FabricEntry, _only(_over(written, own), _FABRIC_KEYS), where=place, where_by_key=where_by_key)
    shared, forced = _only(written, _CLASS_KEYS), _only(own, _CLASS_KEYS)
    found = [
        _class(_over(_over(shared, entry), forced), f"{where}: [[classes]] number {number}", where_by_key)
        for number, entry in enumerate(entries, 1)
    ]
    if not found:
        found = [_class({**DEFAULT_CLASS, **_over(shared, forced)}, place if written else "--set", where_by_key)]
    return Written(fabric=fabric, classes=tuple(found), where=where, sources=sources)


def _over(lower: Mapping[str, object], upper: Mapping[str, object]) -> dict[str, object]:
    """``upper`` over ``lower``, without parameters of what is not used any more."""
    merged = {**lower, **upper}
    for name, parameters in _PARAMETERS_OF.items():
        if parameters not in upper and name in upper and upper[name] != lower.get(name):
            merged.pop(parameters, None)
    return merged


def _class(values: Mapping[str, object], place: str, where_by_key: Mapping[str, str]) -> ClassEntry:
    if "discipline" not in values:
        presets, disciplines = ", ".join(switching_presets()), "drop, pause, credit, nvlink or ualink"
        if place == "--set":
            given = ", ".join(where_by_key)
            raise ConfigError(
                f"--set: {given} is of switching, and discipline is missing; add --set switching=PRESET ({presets})"
                f" or --set discipline={disciplines}"
            )
        raise ConfigError(f"{place}: discipline is missing; use {disciplines}, or a preset: {presets}")
    return validate(ClassEntry, values, where=place, where_by_key=where_by_key)


def _check_keys(table: Mapping[str, object], place: str) -> None:
    known = ("preset", *SWITCHING_KEYS)
    for key in table:
        if key in OF_ONE_CLASS:
            raise ConfigError(f"{place}: {key} is of one class; write it in [[classes]]: {OF_ONE_CLASS[key]}")
        if key not in known:
            raise ConfigError(f"{place}: unknown key {key!r}{did_you_mean(key, known)}; known keys: {', '.join(known)}")


def _only(table: Mapping[str, object], keys: tuple[str, ...]) -> dict[str, object]:
    return {key: value for key, value in table.items() if key in keys}


def _texts(table: Mapping[str, object]) -> dict[str, object]:
    return {key: as_text(value) for key, value in table.items()}
