"""During: an impairment that holds in a window of model time, and is the no-op before and after.

Law: the impairment sees times from the window's beginning on, so that a fault that begins later is the same fault.
"""

from __future__ import annotations

from fractions import Fraction

from emu.impairments.base import FULL, BaseImpairment, Capacity, FrameKey


class During(BaseImpairment):
    """``inner`` from ``begin_ps`` to ``end_ps`` (None: for ever)."""

    inner: BaseImpairment
    begin_ps: int
    end_ps: int | None

    def holds(self, now_ps: int) -> bool:
        return self.begin_ps <= now_ps and (self.end_ps is None or now_ps < self.end_ps)

    @property
    def changes_capacity(self) -> bool:
        return self.inner.changes_capacity

    @property
    def changes_delay(self) -> bool:
        return self.inner.changes_delay

    @property
    def loses(self) -> bool:
        return self.inner.loses

    def capacity(self, seed: int, link: int, now_ps: int) -> Capacity:
        if now_ps < self.begin_ps:
            return Capacity(Fraction(1), self.begin_ps)
        if not self.holds(now_ps):
            return FULL
        factor, until_ps = self.inner.capacity(seed, link, now_ps - self.begin_ps)
        ends = [
            time_ps for time_ps in (self.end_ps, None if until_ps is None else until_ps + self.begin_ps) if time_ps is not None
        ]
        return Capacity(factor, min(ends, default=None))

    def delay_ps(self, seed: int, key: FrameKey, now_ps: int) -> int:
        return self.inner.delay_ps(seed, key, now_ps - self.begin_ps) if self.holds(now_ps) else 0

    @property
    def most_delay_ps(self) -> int | None:
        return self.inner.most_delay_ps

    @property
    def lost_share(self) -> float:
        return self.inner.lost_share

    def loses_at(self, now_ps: int) -> bool:
        return self.holds(now_ps)

    def loses_packet(self, seed: int, key: FrameKey, packet: int, attempt: int) -> bool:
        return self.inner.loses_packet(seed, key, packet, attempt)

    def first_lost(self, seed: int, key: FrameKey, begin: int, end: int, attempt: int) -> int | None:
        return self.inner.first_lost(seed, key, begin, end, attempt)

    @property
    def timeout_ps(self) -> int:
        return self.inner.timeout_ps
