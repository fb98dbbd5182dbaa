"""throttle: the link keeps only a share of its rate, always or for a stretch of model time.

Law: the factor is a step function of model time.  A frame that straddles a
step is integrated over both rates exactly.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Self

from pydantic import Field, model_validator

from emu.impairments.base import FULL, BaseImpairment, Capacity
from emu.impairments.fields import Share
from emu.parameters import TimePs
from emu.units import format_time


class Impairment(BaseImpairment):
    """``factor=0.5``: half the rate.  ``from=500ms``, ``until=2.5s``: only in this stretch of model time."""

    factor: Share
    from_ps: TimePs = Field(default=0, alias="from")
    until_ps: TimePs | None = Field(default=None, alias="until")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.until_ps is not None and self.until_ps <= self.from_ps:
            raise ValueError(f"until={format_time(self.until_ps)} is not after from={format_time(self.from_ps)}; make it later")
        return self

    @property
    def changes_capacity(self) -> bool:
        return True

    def capacity(self, seed: int, link: int, now_ps: int) -> Capacity:
        if now_ps < self.from_ps:
            return Capacity(Fraction(1), self.from_ps)
        if self.until_ps is None or now_ps < self.until_ps:
            return Capacity(self.factor, self.until_ps)
        return FULL
