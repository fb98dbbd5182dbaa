"""Faults of links: each is an impairment for a while.

A link that is down keeps what waits for it, or lets it be led round where a fabric's ``switching`` has ``reroute``.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from emu.faults.base import BaseFault, LastingFault, Target
from emu.impairments.base import BaseImpairment
from emu.impairments.fields import PositiveTimePs, Share
from emu.impairments.flap import Impairment as Flap
from emu.impairments.latency import Impairment as Latency
from emu.impairments.loss import Impairment as Loss
from emu.impairments.throttle import Impairment as Throttle
from emu.parameters import TimePs
from emu.units import PS_PER_MICROSECOND


class LinkFault(BaseFault):
    """A fault that hits links; :meth:`impairment` says how, with times from the fault's beginning on."""

    target: ClassVar[Target] = Target.LINKS

    @abstractmethod
    def impairment(self) -> BaseImpairment: ...


class Slow(LinkFault):
    """``factor=0.5``: the share of the rate that is left."""

    factor: Share

    def impairment(self) -> BaseImpairment:
        return Throttle(factor=self.factor)


class Longer(LinkFault):
    """``added=10us``: this much more latency, one way."""

    added_ps: TimePs = Field(alias="added")

    def impairment(self) -> BaseImpairment:
        return Latency(added=self.added_ps)


class Lossy(LinkFault):
    """``probability=1e-3``: of losing each wire packet.  ``timeout=100us``: until the sender starts again from it."""

    probability: float
    timeout_ps: PositiveTimePs = Field(default=100 * PS_PER_MICROSECOND, alias="timeout")

    @model_validator(mode="after")
    def _within(self) -> Self:
        self.impairment()
        return self

    def impairment(self) -> BaseImpairment:
        return Loss(probability=self.probability, timeout=self.timeout_ps)


class Flapping(LinkFault):
    """``period=1ms``: down once in each.  ``duty=0.5``: the share of each period for which it is down, first."""

    period_ps: PositiveTimePs = Field(alias="period")
    duty: Annotated[Share, Field(lt=1)] = Fraction(1, 2)

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if not 0 < self._down_ps() < self.period_ps:
            raise ValueError(f"period={self.period_ps} ps is too short for its duty; make it 1us or longer")
        self.impairment()
        return self

    def _down_ps(self) -> int:
        return round(self.period_ps * self.duty)

    def impairment(self) -> BaseImpairment:
        down_ps = self._down_ps()
        return Flap(down=down_ps, up=self.period_ps - down_ps, start=0)


class Down(LastingFault, LinkFault):
    """``for=5ms``: nothing passes; what waits goes on afterwards, or another way."""

    def impairment(self) -> BaseImpairment:
        return Flap(down=self.for_ps)


KINDS: Final[dict[str, type[BaseFault]]] = {
    "down": Down,
    "flapping": Flapping,
    "longer": Longer,
    "lossy": Lossy,
    "slow": Slow,
}
