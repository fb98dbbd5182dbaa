"""Capacity of an impaired link over model time, and how long bytes take under it.

Law: the rate is a step function of time and is integrated exactly; the end of a
transmission is rounded up to a whole picosecond, and each step that it straddles
costs at most one more.  A rate of 0 makes it wait for the next step.  A stretch
that is reserved (for what is sent again later) is as good as down for the rest.

Work is counted in bit ps/s: ``n_bytes * 8 * 10^12``, so that rate x time is work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from fractions import Fraction

from emu.errors import ConfigError
from emu.impairments.base import BaseImpairment
from emu.keyed import mix
from emu.topologies.graph import Link
from emu.units import PS_PER_SECOND

WORK_PER_BYTE = 8 * PS_PER_SECOND
_MOST_STEPS = 100_000
"""Changes of capacity that one frame may wait through; two flaps out of step can keep a link down for ever."""


Seeded = tuple[tuple[BaseImpairment, int | None, int], ...]
"""(impairment, plane or None, its seed)."""


def seeded(impairments: Iterable[tuple[BaseImpairment, int | None]], seed: int) -> Seeded:
    """A seed of its own for each impairment of a link: two of one kind must not draw alike."""
    return tuple((impairment, plane, mix(seed, number)) for number, (impairment, plane) in enumerate(impairments))


def with_one_more(own: Seeded, impairment: BaseImpairment, plane: int | None, seed: int) -> Seeded:
    """``own`` and one more, with a seed by its place."""
    return (*own, (impairment, plane, mix(seed, len(own))))


def with_another(own: Seeded, place: int, impairment: BaseImpairment) -> Seeded:
    """``own`` with another impairment in a place, on the same plane and with the same seed."""
    _, plane, seed = own[place]
    return (*own[:place], (impairment, plane, seed), *own[place + 1 :])


class Capacity:
    """The rate that is left of one link: planes x impairments."""

    __slots__ = (
        "_begin_ps", "_denominator", "_impairments", "_link", "_numerator", "_outage_end_ps", "_plane_rates", "_reserved",
        "_until_ps", "down_ps", "idle_ps", "index", "n_outages", "plane_work",
    )  # fmt: skip

    def __init__(self, *, link: Link, index: int, impairments: Seeded) -> None:
        self.index = index
        self.down_ps = 0
        """How much of the last :meth:`finish` the rate was 0."""
        self.n_outages = 0
        """Stretches without any rate that something to send has met."""
        self.idle_ps = 0
        self._outage_end_ps = 0
        self.plane_work = [Fraction(0) for _ in link.planes_bps]
        self._link = link
        self._impairments: Seeded = ()
        self._plane_rates: tuple[Fraction, ...] = ()
        self._reserved: list[tuple[int, int]] = []
        self._begin_ps = 0
        self._until_ps: int | None = 0
        self._numerator = 0
        self._denominator = 1
        self.install(impairments)

    def install(self, impairments: Seeded) -> None:
        """What holds from the next question on."""
        self._impairments = tuple(entry for entry in impairments if entry[0].changes_capacity)
        self._until_ps = self._begin_ps

    def reserve(self, begin_ps: int, end_ps: int) -> None:
        """Keep everybody else off the wire from ``begin_ps`` to ``end_ps``."""
        merged = []
        for begin, end in self._reserved:
            if end < begin_ps or begin > end_ps:
                merged.append((begin, end))
            else:
                begin_ps, end_ps = min(begin, begin_ps), max(end, end_ps)
        merged.append((begin_ps, end_ps))
        merged.sort()
        self._reserved = merged

    def forget(self, now_ps: int) -> None:
        """Drop reservations that ended by ``now_ps``: nothing asks about the past."""
        while self._reserved and self._reserved[0][1] <= now_ps:
            del self._reserved[0]

    def _segment(self, time_ps: int) -> tuple[int, int, int | None]:
        """Rate at ``time_ps`` as numerator and denominator, and until when it holds."""
        until_ps = self._until_ps
        if time_ps < self._begin_ps or (until_ps is not None and time_ps >= until_ps):
            until_ps = self._evaluate(time_ps)
        if self._reserved:
            position = bisect_right(self._reserved, time_ps, key=lambda stretch: stretch[0])
            if position and time_ps < self._reserved[position - 1][1]:
                return 0, 1, self._reserved[position - 1][1]
            if position < len(self._reserved):
                begin_ps = self._reserved[position][0]
                until_ps = begin_ps if until_ps is None else min(until_ps, begin_ps)
        return self._numerator, self._denominator, until_ps

    def _evaluate(self, time_ps: int) -> int | None:
        common = Fraction(1)
        planes = [Fraction(plane_bps) for plane_bps in self._link.planes_bps]
        until_ps: int | None = None
        for impairment, plane, seed in self._impairments:
            factor, holds_until_ps = impairment.capacity(seed, self.index, time_ps)
            if holds_until_ps is not None and (until_ps is None or holds_until_ps < until_ps):
                until_ps = holds_until_ps
            if plane is None:
                common *= factor
            else:
                planes[plane] *= factor
        rate_bps = (sum(planes, Fraction(0)) if planes else Fraction(self._link.rate_bps)) * common
        self._plane_rates = tuple(plane * common for plane in planes)
        self._numerator, self._denominator = rate_bps.numerator, rate_bps.denominator
        self._begin_ps, self._until_ps = time_ps, until_ps
        return until_ps

    def _next_step(self, time_ps: int | None) -> int:
        if time_ps is None:
            raise ConfigError(f"link {self._link.name} stays down for ever; let its impairments bring it up again")
        return time_ps

    def is_up(self, time_ps: int) -> tuple[bool, int | None]:
        """Whether anything can be sent at ``time_ps``, and until when its rate stays as it is (None: for ever)."""
        numerator, _, until_ps = self._segment(time_ps)
        return numerator > 0, until_ps

    def available(self, time_ps: int) -> int:
        """The first moment from ``time_ps`` on at which the link can send.  ConfigError if there is none."""
        for _ in range(_MOST_STEPS):
            numerator, _, until_ps = self._segment(time_ps)
            if numerator:
                return time_ps
            time_ps = self._meet_outage(time_ps, until_ps)
        raise self._down_for_ever()

    def _meet_outage(self, time_ps: int, until_ps: int | None) -> int:
        """Count it, unless the wire is only reserved then or the outage is counted already; returns its end."""
        end_ps = self._next_step(until_ps)
        if time_ps >= self._outage_end_ps and not self._numerator:
            self.n_outages += 1
            self._outage_end_ps = end_ps
        return end_ps

    def finish(self, start_ps: int, n_bytes: int) -> int:
        """When ``n_bytes`` have left that start at ``start_ps``; at least 1 ps later."""
        return self._finish_work(start_ps, n_bytes * WORK_PER_BYTE)

    def _finish_work(self, time_ps: int, work: int) -> int:
        self.down_ps = 0
        for _ in range(_MOST_STEPS):
            numerator, denominator, until_ps = self._segment(time_ps)
            if numerator:
                end_ps = time_ps + max(1, -(-work * denominator // numerator))
                if until_ps is None or end_ps <= until_ps:
                    return end_ps
                work -= numerator * (until_ps - time_ps) // denominator
            else:
                self.down_ps += self._meet_outage(time_ps, until_ps) - time_ps
            time_ps = self._next_step(until_ps)
        raise self._down_for_ever()

    def _down_for_ever(self) -> ConfigError:
        return ConfigError(
            f"link {self._link.name}: its impairments leave it no capacity for {_MOST_STEPS} changes in a row;"
            " let one of them come to an end"
        )

    def finish_arriving(self, start_ps: int, n_bytes: int, first_bytes: int, head_ps: int, tail_ps: int) -> int:
        """When ``n_bytes`` are paid for that arrive evenly, ``first_bytes`` by ``head_ps`` and all by ``tail_ps``.

        At each step of the rate the bytes not yet sent are those not yet arrived or not yet served,
        and they have only the rates after it.  Without a step this is :meth:`finish`.  ``idle_ps`` is then for how long the wire
        had nothing to send.
        """
        self.idle_ps = 0
        sent = 0
        time_ps = start_ps
        down_ps = 0
        total = n_bytes * WORK_PER_BYTE
        while True:
            numerator, denominator, until_ps = self._segment(time_ps)
            if until_ps is None or until_ps >= tail_ps:
                break
            if not numerator:
                down_ps += until_ps - time_ps
            arriving_bytes = n_bytes - first_bytes
            arrived = first_bytes * WORK_PER_BYTE
            arrived += arriving_bytes * WORK_PER_BYTE * max(0, until_ps - head_ps) // (tail_ps - head_ps)
            offered = sent + numerator * (until_ps - time_ps) // denominator
            sent = min(arrived, offered)
            if numerator:
                self.idle_ps += (offered - sent) * denominator // numerator
            time_ps = until_ps
        end_ps = self._finish_work(time_ps, total - sent)
        self.down_ps += down_ps
        return end_ps

    def count_planes(self, begin_ps: int, end_ps: int) -> None:
        """Add to ``plane_work`` what each plane carries from ``begin_ps`` to ``end_ps``."""
        while begin_ps < end_ps:
            numerator, _, until_ps = self._segment(begin_ps)
            step_ps = end_ps if until_ps is None else min(until_ps, end_ps)
            if numerator:
                for plane, rate_bps in enumerate(self._plane_rates):
                    self.plane_work[plane] += rate_bps * (step_ps - begin_ps)
            begin_ps = step_ps


def apportion(total: int, weights: tuple[Fraction, ...]) -> tuple[int, ...]:
    """``total`` split in proportion to ``weights`` into ints that add up to it (largest remainder)."""
    whole = sum(weights, Fraction(0))
    if not whole:
        return tuple(0 for _ in weights)
    exact = [total * weight / whole for weight in weights]
    parts = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda plane: (parts[plane] - exact[plane], plane))
    for plane in by_remainder[: total - sum(parts)]:
        parts[plane] += 1
    return tuple(parts)
