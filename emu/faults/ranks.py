"""Faults of ranks: what an accelerator does late, slowly, or not any more.

The network interface of a rank that is stopped goes on: what was handed to it leaves, and what comes lies there.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, ClassVar, Final

from pydantic import Field

from emu.faults.base import BaseFault, LastingFault, Target
from emu.impairments.fields import PositiveTimePs
from emu.parameters import RateBps, Ratio


class RankFault(BaseFault):
    """A fault that hits accelerators."""

    target: ClassVar[Target] = Target.RANKS


class SlowCompute(RankFault):
    """``factor=2``: computation takes twice its time, declared or (``user_time="measured"``) measured."""

    factor: Annotated[Ratio, Field(ge=1)]

    @property
    def share(self) -> Fraction:
        """The speed that is left."""
        return 1 / self.factor


class Late(RankFault):
    """``by=300us``: every call begins this much later than it could.  ``count=1``: only so many calls."""

    by_ps: PositiveTimePs = Field(alias="by")
    count: Annotated[int, Field(ge=1)] | None = None


class Skips(RankFault):
    """``count=1``: it leaves out so many of its collective calls, as a program does whose ranks take different branches; what it
    calls next does not match what the others do."""

    count: Annotated[int, Field(ge=1)] = 1


class Stopped(LastingFault, RankFault):
    """``for=5ms``: it neither computes, nor sends, nor takes anything in."""


class Killed(RankFault):
    """``at=1ms``: it dies at its first action from then on.  Its actor's process is killed, and whoever shares it; in a
    simulation PeerLost is raised alike."""


class SlowReceiver(RankFault):
    """``rate=10GB/s``: what it takes in at most, from all its senders together."""

    rate_bps: RateBps = Field(alias="rate")


KINDS: Final[dict[str, type[BaseFault]]] = {
    "killed": Killed,
    "late": Late,
    "skips": Skips,
    "slow_compute": SlowCompute,
    "slow_receiver": SlowReceiver,
    "stopped": Stopped,
}
