"""Pace: how long work takes at a rate that faults change for a while.

Law: the rate is a step function of model time and is integrated exactly; the end is rounded up to a whole picosecond.
Of several limits that hold at once rates give the least, and shares multiply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """From ``begin_ps`` to ``end_ps`` (None: for ever) no more than ``rate``, and ``share`` of what is left then."""

    number: int
    begin_ps: int
    end_ps: int | None
    rate: int | None = None
    share: Fraction = Fraction(1)


class Pace:
    """``base``: work per picosecond without limits, in a unit that the owner chooses; None is as fast as one likes.

    ``done_ps``: when all that was asked for so far is done; ``busy_ps``: how long it took, ``work`` in all.
    Limits may be changed by another thread than the one that asks.
    """

    __slots__ = ("base", "busy_ps", "done_ps", "limits", "work")

    def __init__(self, base: int | None) -> None:
        self.base = base
        self.done_ps = 0
        self.busy_ps = self.work = 0
        self.limits: tuple[Limit, ...] = ()

    def limit(self, limit: Limit) -> None:
        self.limits = (*self.limits, limit)

    def lift(self, number: int, now_ps: int) -> None:
        """The limits of that number end now, or when what was asked for is done."""
        end_ps = max(now_ps, self.done_ps)
        self.limits = tuple(ended(limit, end_ps) if limit.number == number else limit for limit in self.limits)

    def finish(self, start_ps: int, work: int) -> int:
        """When ``work`` is done that starts at ``start_ps``."""
        if self.limits:
            end_ps = self._finish_limited(start_ps, work)
        else:
            end_ps = start_ps if self.base is None else start_ps - (-work // self.base)
        if end_ps > start_ps:
            self.busy_ps += end_ps - start_ps
            self.work += work
        if end_ps > self.done_ps:
            self.done_ps = end_ps
        return end_ps

    def is_unlimited(self, now_ps: int) -> bool:
        """Whether work that starts now is done at once."""
        return self.base is None and (not self.limits or (self.done_ps <= now_ps and self._at(now_ps)[0] is None))

    def _finish_limited(self, time_ps: int, work: int) -> int:
        left = Fraction(work)
        while True:
            rate, until_ps = self._at(time_ps)
            if rate is None:
                return time_ps
            if rate:
                end_ps = time_ps - int(-left // rate)
                if until_ps is None or end_ps <= until_ps:
                    return end_ps
                left -= rate * (until_ps - time_ps)
            assert until_ps is not None, "only what ends by itself stops all work"
            time_ps = until_ps

    def _at(self, time_ps: int) -> tuple[Fraction | None, int | None]:
        """The rate at a time, and until when it stays so."""
        rate = None if self.base is None else Fraction(self.base)
        share = Fraction(1)
        changes = []
        for limit in self.limits:
            if time_ps < limit.begin_ps:
                changes.append(limit.begin_ps)
            elif limit.end_ps is None or time_ps < limit.end_ps:
                if limit.rate is not None:
                    rate = Fraction(limit.rate) if rate is None else min(rate, Fraction(limit.rate))
                share *= limit.share
                if limit.end_ps is not None:
                    changes.append(limit.end_ps)
        return None if rate is None else rate * share, min(changes, default=None)


def ended(limit: Limit, end_ps: int) -> Limit:
    """The limit, ending at ``end_ps`` at the latest."""
    return limit if limit.end_ps is not None and limit.end_ps <= end_ps else replace(limit, end_ps=max(end_ps, limit.begin_ps))
