"""flap: the link goes down and comes back.

Law: while down its capacity is 0.  Nothing is lost: a frame waits where it is,
half sent or not begun, and goes on when the link is up.

Not modelled: training after link-up other than as part of ``down``, rerouting
other than by ``reroute`` in a fabric with switching, and packets in flight on the cable, which still arrive.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from emu.impairments.base import FULL, BaseImpairment, Capacity
from emu.impairments.fields import PositiveTimePs
from emu.keyed import below
from emu.parameters import TimePs
from emu.units import PS_PER_MICROSECOND, format_time

_SALT: Final = 0x666C6170
_MIN_PERIOD_PS: Final = PS_PER_MICROSECOND
_DOWN: Final = Fraction(0)


class Impairment(BaseImpairment):
    """``down=10ms,up=90ms``: down for 10 ms after each 90 ms up.

    ``start``: when it first goes down (default: after one ``up``; at once where there is no ``up``).
    ``count``: how often it goes down (default: for ever).  Without ``up`` it goes down once.
    ``random_phase=true``: ``start`` is put off by a draw from one period, by seed and link, so that
    links under one pattern do not flap together.
    """

    down_ps: PositiveTimePs = Field(alias="down")
    up_ps: PositiveTimePs | None = Field(default=None, alias="up")
    start_ps: TimePs | None = Field(default=None, alias="start")
    count: Annotated[int, Field(ge=1)] | None = None
    random_phase: bool = False

    @model_validator(mode="after")
    def _periodic(self) -> Self:
        if self.up_ps is None:
            if self.random_phase or (self.count is not None and self.count > 1):
                raise ValueError("flap repeats, or has a phase, only with up; add up=, the time between two outages")
        elif self.down_ps + self.up_ps < _MIN_PERIOD_PS:
            raise ValueError(
                f"down + up = {format_time(self.down_ps + self.up_ps)} is under "
                f"{format_time(_MIN_PERIOD_PS)}; for a share of the rate use throttle"
            )
        return self

    @property
    def changes_capacity(self) -> bool:
        return True

    def capacity(self, seed: int, link: int, now_ps: int) -> Capacity:
        period_ps = self.down_ps + (self.up_ps or 0)
        first_ps = (self.up_ps or 0) if self.start_ps is None else self.start_ps
        if self.random_phase:
            first_ps += below(period_ps, seed, _SALT, link)
        if now_ps < first_ps:
            return Capacity(Fraction(1), first_ps)
        n_outages = 1 if self.up_ps is None else self.count
        outage, into_ps = divmod(now_ps - first_ps, period_ps)
        if n_outages is not None and outage >= n_outages:
            return FULL
        if into_ps < self.down_ps:
            return Capacity(_DOWN, now_ps - into_ps + self.down_ps)
        if n_outages is not None and outage + 1 >= n_outages:
            return FULL
        return Capacity(Fraction(1), now_ps - into_ps + period_ps)
