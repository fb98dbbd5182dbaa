"""Parameters: what users write in fabric files and behind ``--set``, parsed into integers.

Law: text carries its unit and is parsed by :mod:`emu.units`; Python code may hand over
integers in emu's base units (ps, bit/s, bytes).  Every complaint is a
:class:`~emu.errors.ConfigError` of one line that names where the value was written, the key,
the value, and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Annotated, Final, TypeVar, get_args, get_origin, get_type_hints

import annotated_types
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo

from emu.errors import ConfigError
from emu.units import format_bytes, format_rate, format_time, parse_bytes, parse_number, parse_rate_bps, parse_time_ps

Model = TypeVar("Model", bound=BaseModel)

_RANGE_ERRORS: Final = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})


def _auto(value: object) -> object:
    return None if value == "auto" else value


AUTO: Final = BeforeValidator(_auto)
"""On a parameter that may be None: written ``auto``, for what a formula gives."""


def _from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator that parses text and lets everything else through; ConfigError becomes pydantic's ValueError."""

    def convert(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(convert)


def parse_shape(text: str) -> tuple[int, ...]:
    """``"4x4x2"`` -> (4, 4, 2).  Raises ConfigError."""
    if not re.fullmatch(r"\s*[0-9]+(\s*x\s*[0-9]+)*\s*", text):
        raise ConfigError(f"{text!r} is not a shape; write the size of each dimension, for example 4x4x4")
    return tuple(int(size) for size in text.split("x"))


def parse_planes(text: str) -> tuple[int, ...]:
    """``"4"`` -> four equal planes (1, 1, 1, 1); ``"5+4+4+5"`` -> planes of so many lanes each.  Raises ConfigError."""
    if not re.fullmatch(r"\s*[0-9]+(\s*\+\s*[0-9]+)*\s*", text):
        raise ConfigError(f"{text!r} is not a number of planes; write for example 4, or the lanes of each: 5+4+4+5")
    lanes = tuple(int(part) for part in text.split("+"))
    return _equal_planes(lanes[0]) if len(lanes) == 1 else lanes


def parse_ratio(text: str) -> Fraction:
    """``"2"``, ``"1.5"``, ``"7:1"`` or ``"7/2"`` -> an exact ratio.  Raises ConfigError."""
    try:
        return parse_number(text.strip().replace(":", "/"))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{text!r} is not a ratio; write for example 1, 1.5 or 7:1") from None


def _equal_planes(n_planes: int) -> tuple[int, ...]:
    if not 1 <= n_planes <= 256:
        raise ConfigError(f"{n_planes} planes are out of range; use 1 to 256")
    return (1,) * n_planes


TimePs = Annotated[int, Field(ge=0), _from_text(parse_time_ps)]
"""A time written with its unit (``1.5us``); an int is picoseconds."""

RateBps = Annotated[int, Field(gt=0), _from_text(parse_rate_bps)]
"""A rate written with its unit (``50GB/s``, ``400Gbit/s``); an int is bits per second."""

SizeBytes = Annotated[int, Field(ge=0), _from_text(parse_bytes)]
"""A size (``4096``, ``64KiB``); an int is bytes."""

PositiveBytes = Annotated[int, Field(ge=1), _from_text(parse_bytes)]
"""A size of at least a byte, written alike."""

Shape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=16), _from_text(parse_shape)]
"""Sizes of a grid's dimensions (``4x4x4``)."""

Planes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=256), _from_text(parse_planes)]
"""Lanes in each parallel plane (``4`` or ``5+4+4+5``); the rate is split in proportion."""

Ratio = Annotated[Fraction, Field(gt=0), _from_text(parse_ratio)]
"""An exact ratio (``2``, ``1.5``, ``7:1``)."""


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} is not one line of printable text; leave out line breaks and control characters")
    return text


def _name(text: str) -> str:
    if "->" in text or not text.isprintable() or not re.fullmatch(r"[^\s,=*?@#]+", text):
        raise ValueError(f"{text!r} is not a name; write letters, digits, '.', '_' or '-', for example a0, and no '->'")
    return text


OneLine = Annotated[str, AfterValidator(_one_line)]
"""Text that tables show: none of it can pass for another line of theirs, or for a command to the terminal."""

Name = Annotated[str, AfterValidator(_name)]
"""What options name (``--impair a0->s0=...``, ``--map a0,a1``), so it has none of their signs."""


def as_text(value: object) -> object:
    """Numbers and booleans of a TOML file as the text a user would type, so that a bare ``5`` is missed its unit."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return value


def did_you_mean(word: str, known: Iterable[str], *, similarity: float = 0.5) -> str:
    """``" (did you mean 'rate'?)"`` for the nearest known word, or nothing when none is as near as ``similarity`` (0 to 1)."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=similarity)
    return f" (did you mean {near[0]!r}?)" if near else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One parameter, for a listing: its default as a user would write it, and what it means."""

    name: str
    default: str
    meaning: str


def described_parameters(model: type[BaseModel]) -> tuple[Described, ...]:
    """What ``model`` takes, in its order.  A default of None is ``auto`` where that can be written, else ``-``; the meaning is
    the attribute's docstring."""
    hints = get_type_hints(model, include_extras=True)
    return tuple(
        Described(
            name=field.alias or name,
            default="required" if field.is_required() else _default_text(hints.get(name), field.default),
            meaning=" ".join((field.description or "").split()),
        )
        for name, field in model.model_fields.items()
    )


def _default_text(hint: object, default: object) -> str:
    if default is None:
        return "auto" if AUTO in get_args(hint) else "-"
    for unit, text in ((RateBps, format_rate), (TimePs, format_time), (SizeBytes, format_bytes), (PositiveBytes, format_bytes)):
        if isinstance(default, int) and unit in (hint, *get_args(hint)):
            return text(default)
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ("+" if Planes in (hint, *get_args(hint)) else "x").join(map(str, default)) or "none"
    return str(default)


def validate(
    model: type[Model], values: Mapping[str, object], *, where: str, where_by_key: Mapping[str, str] | None = None
) -> Model:
    """``values`` as an instance of ``model``.

    ``where`` is what the user would look for (a file's name or ``--set``); ``where_by_key``
    names another place for single keys.  Raises ConfigError.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise config_error(error, model, where=where, where_by_key=where_by_key, written=values) from None


def config_error(
    error: ValidationError,
    model: type[BaseModel],
    *,
    where: str,
    where_by_key: Mapping[str, str] | None = None,
    written: Mapping[str, object] | None = None,
) -> ConfigError:
    """The first complaint of ``error`` in one line: place, key, value (as ``written``), allowed range, fix."""
    complaints = error.errors(include_url=False)
    # A misspelt key that was required makes two complaints: that it is unknown says more than that it is missing.
    first = min(complaints, key=lambda complaint: complaint["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    key = path[0] if path else ""
    place = (where_by_key or {}).get(key, where)
    known = [field.alias or name for name, field in model.model_fields.items()]
    value = repr((written or {}).get(key, first["input"]) if len(path) == 1 else first["input"])
    allowed = _allowed_range(model, key)
    match first["type"]:
        case "extra_forbidden":
            text = f"{place}: unknown key {key!r}{did_you_mean(key, known)}; known keys: {', '.join(known)}"
        case "missing" if len(path) == 1:
            text = f"{place}: {key!r} is missing; known keys: {', '.join(known)}"
        case "value_error":
            problem = str(first["ctx"]["error"])
            shown = "" if not key or value in problem else f" = {value}"
            text = f"{place}: {'.'.join(path)}{shown}: {problem}" if key else f"{place}: {problem}"
        case kind:
            problem = first["msg"].replace("Input should be", "must be")
            if allowed and len(path) == 1:
                problem = f"must be {allowed}" if kind in _RANGE_ERRORS else f"{problem}, {allowed}"
            text = f"{place}: {'.'.join(path)} = {value}: {problem}"
    if len(complaints) > 1:
        text += f" (and {len(complaints) - 1} more mistake{'s' if len(complaints) > 2 else ''})"
    return ConfigError(" ".join(text.split()))


def _allowed_range(model: type[BaseModel], key: str) -> str:
    """``"1 to 4096"``, ``"at least 1, or auto"``, ``"more than 0, at most 1"``, or nothing for a field without bounds."""
    field = model.model_fields.get(key)
    if field is None:
        return ""
    at_least = at_most = more_than = None
    for bound in (*field.metadata, *_bounds_within(field.annotation)):
        if isinstance(bound, annotated_types.Ge):
            at_least = bound.ge
        elif isinstance(bound, annotated_types.Le):
            at_most = bound.le
        elif isinstance(bound, annotated_types.Gt):
            more_than = bound.gt
    otherwise = ", or auto" if AUTO in field.metadata else ""
    if at_least is not None:
        return (f"{at_least} to {at_most}" if at_most is not None else f"at least {at_least}") + otherwise
    if more_than is None:
        return ""
    return f"more than {more_than}" + (f", at most {at_most}" if at_most is not None else "") + otherwise


def _bounds_within(annotation: object) -> list[object]:
    """The bounds of a type that may be None as well: pydantic leaves them inside."""
    parts = [get_args(part)[1:] for part in get_args(annotation) if get_origin(part) is Annotated]
    return [bound for field in chain(*parts) for bound in (field.metadata if isinstance(field, FieldInfo) else [field])]


def key_values(settings: Iterable[str], *, where: str, example: str) -> dict[str, object]:
    """What ``key=value`` texts say, by key.  Raises ConfigError, which begins with ``where``, on another form or a key twice."""
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"{where}: {setting!r} is not key=value; write for example {example}")
        if key in values:
            raise ConfigError(f"{where}: {key} is given twice; keep one")
        values[key] = value
    return values
