"""``--dilation auto``: how much slower than the model the wall must run for this host to keep pace.

Two things need room.  The work: the frames and bytes of the case, as a simulation
counts them, at what they cost on this host, with some headroom.  And the clock: an
end that is late by the host's timer jitter must be less than 1 % of the loop.  The
larger of the two is taken, and never more; below 1 the emulation runs faster than the
hardware would.  A row that comes out degraded is run once more at twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from emu.bench.calibrate import Calibration
from emu.bench.loop import LoopPlan, run_loop
from emu.units import PS_PER_SECOND

if TYPE_CHECKING:
    from emu.session import Session

HEADROOM: Final = 1.6
"""Wall time granted to the work, over what it costs when nothing is paced."""
JITTER_SHARE: Final = 0.01
JITTER_FLOOR_S: Final = (0.15, 0.45)
"""The shortest timed loop on the wall is the 99th percentile of oversleep over JITTER_SHARE, kept within these."""
PREDICTED_ITERATIONS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One operation, as simulated: how long it takes and what the host must do for it; means over iterations."""

    model_ps: float
    frames: float
    wire_bytes: float


def predict(session: Session, plan: LoopPlan, seed: int) -> Prediction:
    """Simulate a few iterations of ``plan`` on a session without payload."""
    short = replace(plan, iterations=min(plan.iterations, PREDICTED_ITERATIONS), warmup=0, check=False)
    session.begin(1.0, seed)
    results = session.run(run_loop, short)
    counters = session.counters()
    return Prediction(
        model_ps=max(result.model_ps for result in results) / short.iterations,
        frames=counters.frames / short.iterations,
        wire_bytes=counters.wire_bytes / short.iterations,
    )


def choose(calibration: Calibration, prediction: Prediction, iterations: int) -> float:
    """The smallest dilation that leaves room for the work and for the jitter, to two digits, rounded up."""
    if prediction.model_ps <= 0:
        return 1.0
    work_s = prediction.frames * calibration.frame_cost_ns / 1e9 + prediction.wire_bytes / calibration.bytes_per_s
    model_s = prediction.model_ps / PS_PER_SECOND
    least_s, most_s = JITTER_FLOOR_S
    floor_s = min(most_s, max(least_s, calibration.oversleep_p99_ns / 1e9 / JITTER_SHARE))
    return _two_digits_up(max(HEADROOM * work_s / model_s, floor_s / (model_s * iterations)))


def _two_digits_up(value: float) -> float:
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / scale - 1e-9) * scale


class Pacer:
    """Chooses the dilation of each row.  ``fixed`` is the user's; None is auto.

    The simulated session is opened at the first need and closed by :meth:`close`.
    """

    def __init__(self, fixed: float | None, calibration: Callable[[], Calibration], simulated: Callable[[], Session]) -> None:
        self.fixed = fixed
        self._calibration = calibration
        self._open = simulated
        self._session: Session | None = None

    def dilation(self, plan: LoopPlan, seed: int) -> float:
        """The dilation for ``plan``."""
        if self.fixed is not None:
            return self.fixed
        if self._session is None:
            self._session = self._open()
        return choose(self._calibration(), predict(self._session, plan, seed), plan.iterations)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
