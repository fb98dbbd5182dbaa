"""Limits: every threshold of the diagnosis, in one place.

They were set on campaigns of seeds below 1,000 and then left alone; what is published is of seeds from 200,000 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Shares are of what is expected, 0.03 is 3 %."""

    slow_share: float = 0.02
    """A link that sends at so much less than its rate is slow; counters are exact, this leaves room for rounding."""
    long_share: float = 0.15
    """A link whose mean delay exceeds its latency, and the median excess of all links, by so much of the latency is long;"""
    least_frames: int = 8
    """in an interval that is a part of the run; fewer vary by chance."""
    drain_share: float = 0.05
    """A receiver that takes in at so much less than its line brings is slow."""
    late_share: float = 0.01
    """Of a step: less is no lateness."""
    late_deviations: float = 4.0
    """The mean of n calls stands out beyond so many standard deviations / sqrt(n);"""
    repeats: int = 2
    """over so many calls at least,"""
    repeats_share: float = 0.2
    """and over so many of all,"""
    repeats_enough: int = 4
    """or over so many in any case; fewer are a single event,"""
    once_factor: float = 2.0
    """which must exceed so many times the limit: then the rank was stopped."""
    extra_share: float = 0.02
    """A node that sends so much more than its calls do sends something else."""
    unfit_ratio: float = 1.5
    """A choice is unfit where another takes so many times less."""
    unknown_share: float = 0.15
    """Transfers that take so much longer, with nothing found at all."""
    host_share: float = 0.02
    """An emulation that ends so much later than its model is overloaded, as in the verdict of a row."""
    order_share: float = 0.01
    """Weight of frames that the host took out of order, of the model time."""


LIMITS: Final = Limits()
