"""Condition: what faults do to one accelerator: it computes slowly, begins its calls late, stops, or is gone.

Law: told the time, and nothing else.  Computation goes by ``compute``, a call begins at :meth:`begins_ps`, and whatever the
accelerator does at a time it does at :meth:`acts_ps` of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from emu.fabric.pace import Limit, Pace
from emu.units import FOREVER_PS


@dataclass(slots=True)
class Lateness:
    """Calls from ``begin_ps`` to ``end_ps`` begin ``by_ps`` late, or are left out (None); ``n_left`` of them, None is all."""

    number: int
    begin_ps: int
    end_ps: int | None
    by_ps: int | None
    n_left: int | None

    def hits(self, now_ps: int) -> bool:
        """Whether it hits a call now.  Asked once for each call."""
        if self.n_left == 0 or now_ps < self.begin_ps or (self.end_ps is not None and now_ps >= self.end_ps):
            return False
        if self.n_left is not None:
            self.n_left -= 1
        return True


class Condition:
    """Of one rank.  ``is_well``: nothing was ever wrong with it, so nobody need ask."""

    __slots__ = ("_latenesses", "_stops", "compute", "is_well", "killed_ps")

    def __init__(self) -> None:
        self.is_well = True
        self.compute = Pace(1)
        """Work is the model time that computation takes when all is well."""
        self.killed_ps = FOREVER_PS
        self._stops = Pace(None)
        self._latenesses: list[Lateness] = []

    def slow(self, number: int, begin_ps: int, end_ps: int | None, share: Fraction) -> None:
        """It computes at ``share`` of its speed."""
        self.is_well = False
        self.compute.limit(Limit(number=number, begin_ps=begin_ps, end_ps=end_ps, share=share))

    def stop(self, number: int, begin_ps: int, end_ps: int) -> None:
        """It does nothing."""
        self.slow(number, begin_ps, end_ps, Fraction(0))
        self._stops.limit(Limit(number=number, begin_ps=begin_ps, end_ps=end_ps, rate=0))

    def delay(self, lateness: Lateness) -> None:
        """Its calls begin late, or are left out."""
        self.is_well = False
        self._latenesses.append(lateness)

    def kill(self, killed_ps: int) -> None:
        """It is gone from then on."""
        self.is_well = False
        self.killed_ps = min(self.killed_ps, killed_ps)

    def lift(self, number: int, now_ps: int) -> None:
        """That fault is over."""
        self.compute.lift(number, now_ps)
        self._stops.lift(number, now_ps)
        for lateness in self._latenesses:
            if lateness.number == number:
                lateness.end_ps = now_ps if lateness.end_ps is None else min(now_ps, lateness.end_ps)

    def acts_ps(self, now_ps: int) -> int:
        """When it does what it would do now: at once, once it is not stopped any more, or never (FOREVER_PS)."""
        acts_ps = self._stops.finish(now_ps, 1)
        return acts_ps if acts_ps < self.killed_ps else FOREVER_PS

    def begins_ps(self, now_ps: int) -> int:
        """When a call begins that could begin now.  Asked once for each call."""
        return now_ps + sum(one.by_ps for one in self._latenesses if one.by_ps is not None and one.hits(now_ps))

    def skips(self, now_ps: int) -> bool:
        """Whether a call that would be made now is left out.  Asked once for each call, by the user's thread."""
        return any(one.by_ps is None and one.hits(now_ps) for one in self._latenesses)
