"""What every fault has: when it begins and how long it lasts, in model time.

Law: a fault is data.  The same faults at the same times give the same run under both drivers.

``at`` counts from the start of the run's model (``Session.begin``, for ``emu bench`` each half of a row).  Left out it is
0 in a schedule, and now for a fault that is added while a run is under way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from emu.impairments.fields import PositiveTimePs
from emu.parameters import TimePs


class Target(StrEnum):
    """What a kind of fault can hit."""

    LINKS = "links"
    RANKS = "ranks"
    PAIR = "pair of endpoints"


class BaseFault(BaseModel):
    """``at``: when it begins.  ``for``: how long it lasts (default: until it is cleared)."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    target: ClassVar[Target]

    at_ps: TimePs | None = Field(default=None, alias="at")
    for_ps: PositiveTimePs | None = Field(default=None, alias="for")


class LastingFault(BaseFault):
    """A fault that must end by itself: while it lasts nothing goes on."""

    for_ps: PositiveTimePs = Field(alias="for")
