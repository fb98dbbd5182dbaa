"""Parameters: text with units becomes integers, and complaints are one line that helps."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from emu.errors import ConfigError
from emu.parameters import (
    AUTO,
    Planes,
    PositiveBytes,
    RateBps,
    Ratio,
    Shape,
    SizeBytes,
    TimePs,
    as_text,
    described_parameters,
    did_you_mean,
    validate,
)


class Example(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rate: RateBps = 8
    latency: TimePs = 0
    mtu: SizeBytes = 4096
    shape: Shape = (2,)
    planes: Planes = (1,)
    ratio: Ratio = Fraction(1)
    ranks: int = Field(default=1, ge=1, le=16)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("rate", "50GB/s", 400 * 10**9),
        ("rate", "400 Gbit/s", 400 * 10**9),
        ("latency", "1.5us", 1_500_000),
        ("latency", "0", 0),
        ("mtu", "4KiB", 4096),
        ("mtu", "256", 256),
        ("shape", "4x4x2", (4, 4, 2)),
        ("shape", ["4", "2"], (4, 2)),
        ("planes", "4", (1, 1, 1, 1)),
        ("planes", "5+4+4+5", (5, 4, 4, 5)),
        ("ratio", "7:1", Fraction(7)),
        ("ratio", "1.5", Fraction(3, 2)),
        ("ranks", "12", 12),
        ("rate", 1000, 1000),
    ],
)
def test_text_becomes_an_exact_value(key: str, text: object, value: object) -> None:
    """Text is read in its unit into an exact value; an int from Python is taken in base units."""
    assert getattr(validate(Example, {key: text}, where="--set"), key) == value


@pytest.mark.parametrize(
    ("key", "text", "needles"),
    [
        ("rate", "50GB", ["x.toml", "rate", "'50GB'", "GB/s"]),
        ("rate", "5", ["no unit"]),
        ("rate", "0", ["more than 0"]),
        ("latency", "1GB", ["latency", "us"]),
        ("shape", "4by4", ["4x4x4"]),
        ("shape", "0x4", ["shape", "1"]),
        ("planes", "0", ["1 to 256"]),
        ("planes", "many", ["5+4+4+5"]),
        ("ratio", "1:0", ["7:1"]),
        ("ranks", "17", ["ranks", "'17'", "1 to 16"]),
        ("ranks", "few", ["ranks", "'few'", "integer", "1 to 16"]),
        ("rnks", "4", ["'rnks'", "did you mean 'ranks'", "latency"]),
    ],
)
def test_a_complaint_is_one_line_with_place_key_value_and_fix(key: str, text: str, needles: list[str]) -> None:
    """A wrong value gives a ConfigError of one line that names where it stands, the key, the value and the fix."""
    with pytest.raises(ConfigError) as caught:
        validate(Example, {key: text}, where="x.toml")
    message = str(caught.value)
    assert message.startswith("x.toml: ")
    assert "\n" not in message
    for needle in needles:
        assert needle in message


def test_a_complaint_names_the_place_of_its_key() -> None:
    """A value that came from --set is blamed on --set although the rest came from a file."""
    with pytest.raises(ConfigError, match=r"^--set: ranks"):
        validate(Example, {"ranks": "0"}, where="x.toml", where_by_key={"ranks": "--set"})


def test_further_complaints_are_counted() -> None:
    """Of several wrong values the first is told and the others are counted."""
    with pytest.raises(ConfigError, match=r"\(and 1 more mistake\)$"):
        validate(Example, {"ranks": "0", "rate": "x"}, where="--set")


def test_numbers_of_a_file_are_read_as_text() -> None:
    """Numbers of a TOML file become the text a user would type, inside lists too."""
    assert as_text([4, 1.5, True, "x"]) == ["4", "1.5", "true", "x"]


def test_nothing_is_suggested_for_a_far_word() -> None:
    """A word that resembles nothing gets no suggestion."""
    assert did_you_mean("zzz", ["rate", "latency"]) == ""


def test_parameters_are_described_as_users_write_them() -> None:
    """Defaults carry their units, and what is required, left to a formula or to nobody says so."""

    class Told(BaseModel):
        model_config = ConfigDict(use_attribute_docstrings=True)

        needed: int
        rate: RateBps = 400 * 10**9
        """How fast."""
        latency: TimePs | None = 2_000_000
        shape: Shape = (2, 4)
        planes: Planes = (5, 4)
        flag: bool = True
        window: SizeBytes | None = None
        formula: Annotated[SizeBytes | None, AUTO] = None

    found = described_parameters(Told)
    assert [one.default for one in found] == ["required", "50 GB/s", "2 us", "2x4", "5+4", "true", "-", "auto"]
    assert (found[1].name, found[1].meaning) == ("rate", "How fast.")


class _Bounded(BaseModel):
    share: Annotated[Ratio, Field(le=1)] = Fraction(1)
    size: Annotated[PositiveBytes | None, AUTO] = None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": "5"}, r"^here: share = '5': must be more than 0, at most 1$"),
        ({"size": "0"}, r"^here: size = '0': must be at least 1, or auto$"),
    ],
)
def test_both_ends_of_a_range_are_named_and_what_may_stand_instead(values: dict[str, str], message: str) -> None:
    """Also where one end is open, and where the parameter may be left to a formula."""
    assert validate(_Bounded, {"size": "auto"}, where="here").size is None
    with pytest.raises(ConfigError, match=message):
        validate(_Bounded, values, where="here")
