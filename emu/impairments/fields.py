"""Types of the parameters that only impairments take; the common ones are in :mod:`emu.parameters`."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field

from emu.parameters import TimePs
from emu.units import parse_number


def parse_share(value: object) -> Fraction:
    """``"0.5"``, ``"1/4"`` or a number -> the exact fraction, more than 0 and at most 1.  Raises ValueError."""
    try:
        share = parse_number(str(value).strip())
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a number; write a share of the rate such as 0.5 or 1/4") from None
    if not 0 < share <= 1:
        raise ValueError(f"{value!r} is outside (0, 1]: write the share of the rate that is left, or use flap")
    return share


PositiveTimePs = Annotated[TimePs, Field(gt=0)]
"""A time of more than 0, written ``"500us"``; an int is picoseconds."""

Share = Annotated[Fraction, BeforeValidator(parse_share)]
"""A fraction in (0, 1], written ``"0.5"`` or ``"1/4"``."""
