"""jitter: latency that varies, by one draw per flow and stretch of model time.

Law: the draw is keyed by (seed, link, flow, number of the interval in which the
frame's head leaves), so the frames of a flow in one interval share it and the
chunk size does not change it.  It only ever adds.  The link keeps frames in
order and never lets them catch up faster than its rate.

    uniform     bound                  0 .. bound, mean bound / 2
    normal      mean, sigma            cut off at 0: the mean rises when sigma > mean / 2
    lognormal   mean, sigma            mean and standard deviation of the added time itself
    pareto      mean, alpha > 1        Lomax (Pareto from 0): P(x) = (1 + x / (mean (alpha - 1)))^-alpha;
                                       the variance is infinite for alpha <= 2
    empirical   file                   one time per line ("12us"), each as likely as the other

``bound`` caps the others too (and so lowers their mean).
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Final, Self

from pydantic import Field, PrivateAttr, model_validator

from emu.errors import ConfigError
from emu.impairments.base import BaseImpairment, FrameKey
from emu.impairments.fields import PositiveTimePs
from emu.keyed import mix
from emu.parameters import TimePs
from emu.units import PS_PER_MICROSECOND, parse_time_ps

_SALT: Final = 0x6A697474
_STANDARD_NORMAL: Final = NormalDist()


class Distribution(StrEnum):
    """Shape of the added time."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"
    PARETO = "pareto"
    EMPIRICAL = "empirical"


_NEEDS: Final = {
    Distribution.UNIFORM: ("bound",),
    Distribution.NORMAL: ("mean", "sigma"),
    Distribution.LOGNORMAL: ("mean", "sigma"),
    Distribution.PARETO: ("mean", "alpha"),
    Distribution.EMPIRICAL: ("file",),
}


def _read_samples_ps(file: Path) -> tuple[int, ...]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file {str(file)!r} cannot be read as text ({error}); give one time per line") from None
    samples_ps = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                samples_ps.append(parse_time_ps(text))
            except ConfigError as error:
                raise ValueError(f"{file} line {number}: {error}") from None
    if not samples_ps:
        raise ValueError(f"file {str(file)!r} holds no times; write one per line such as 12us")
    return tuple(samples_ps)


class Impairment(BaseImpairment):
    """``distribution=uniform,bound=50us`` and so on, see the module; ``interval=100us``: how long a draw holds."""

    distribution: Distribution = Distribution.UNIFORM
    bound_ps: TimePs | None = Field(default=None, alias="bound")
    mean_ps: PositiveTimePs | None = Field(default=None, alias="mean")
    sigma_ps: TimePs | None = Field(default=None, alias="sigma")
    alpha: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = None
    file: Path | None = None
    interval_ps: PositiveTimePs = Field(default=100 * PS_PER_MICROSECOND, alias="interval")
    _samples_ps: tuple[int, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = {
            "bound": self.bound_ps,
            "mean": self.mean_ps,
            "sigma": self.sigma_ps,
            "alpha": self.alpha,
            "file": self.file,
        }
        needs = _NEEDS[self.distribution]
        for name, value in given.items():
            if value is None and name in needs:
                raise ValueError(f"{self.distribution} jitter needs {' and '.join(needs)}; {name} is missing")
            if value is not None and name not in (*needs, "bound"):
                raise ValueError(f"{self.distribution} jitter takes {' and '.join(needs)}, not {name}; leave it out")
        if self.file is not None:
            self._samples_ps = _read_samples_ps(self.file)
        return self

    @property
    def changes_delay(self) -> bool:
        return True

    @property
    def most_delay_ps(self) -> int | None:
        return max(self._samples_ps) if self.bound_ps is None and self._samples_ps else self.bound_ps

    def delay_ps(self, seed: int, key: FrameKey, now_ps: int) -> int:
        bits = mix(seed, _SALT, key.link, key.flow, now_ps // self.interval_ps)
        delay_ps = self._sample_ps(bits)
        return delay_ps if self.bound_ps is None else min(delay_ps, self.bound_ps)

    def _sample_ps(self, bits: int) -> int:
        """The quantile of the distribution at ``bits`` / 2^64."""
        if self.distribution is Distribution.UNIFORM:
            return (bits * ((self.bound_ps or 0) + 1)) >> 64
        if self.distribution is Distribution.EMPIRICAL:
            return self._samples_ps[(bits * len(self._samples_ps)) >> 64]
        quantile = ((bits >> 12) + 0.5) * 2.0**-52
        mean_ps = self.mean_ps or 0
        if self.distribution is Distribution.PARETO:
            alpha = self.alpha or math.inf
            return int(mean_ps * (alpha - 1.0) * math.expm1(-math.log1p(-quantile) / alpha))
        normal = _STANDARD_NORMAL.inv_cdf(quantile)
        sigma_ps = self.sigma_ps or 0
        if self.distribution is Distribution.NORMAL:
            return max(0, round(mean_ps + sigma_ps * normal))
        log_variance = math.log1p((sigma_ps / mean_ps) ** 2)
        return round(mean_ps * math.exp(math.sqrt(log_variance) * normal - log_variance / 2))
