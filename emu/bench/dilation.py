"""``--dilation auto``: how much slower than the model the wall must run for this host to keep pace.

The host is taken for one server that works off the frames of the case, as a simulation
counts and times them, at what they cost here.  Three things need room.  The work as a
whole, with some headroom.  The end: what falls due at once must be worked off, and how late
that makes the end must be a small share of the loop.  And the clock: timers oversleep.
The largest of the three is taken, and never more than three times the unpaced work, or 0.8
seconds a loop; below 1 the emulation runs faster than the hardware would.  A row that
comes out degraded is run once more at twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from emu.bench.calibrate import Calibration
from emu.bench.loop import LoopPlan, run_loop
from emu.units import PS_PER_SECOND

if TYPE_CHECKING:
    from emu.session import Session

HEADROOM: Final = 1.5
"""Wall time granted to the work, over what it costs when nothing is paced."""
LATE_SHARE: Final = 0.006
"""How late the end of the timed loop may be expected to be, over the loop."""
JITTER_FLOOR_S: Final = (0.3, 0.8)
"""The shortest timed loop on the wall is the 99th percentile of oversleep over LATE_SHARE, kept within these."""
MOST_SLOWDOWN: Final = 3.0
"""A loop takes at most this times the unpaced work, unless that is less than the longest jitter floor."""
PREDICTED_ITERATIONS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One operation, as simulated: how long it takes and what the host must do for it; means over iterations.

    ``frames``: what goes over sockets, hop by hop, with the pauses, grants and answers of packets.
    ``hops``: (model time, payload bytes) of each frame and hop of the predicted iterations.
    """

    model_ps: float
    frames: float
    wire_bytes: float
    hops: tuple[tuple[int, int], ...] = ()

    def end_lateness_s(self, dilation: float, frame_cost_s: float, byte_cost_s: float) -> float:
        """How long after the last frame fell due the host is still at work, at ``dilation``."""
        if not self.hops:
            return 0.0
        times_ps, n_bytes = np.array(sorted(self.hops), dtype=np.int64).T
        still_to_do_s = np.cumsum((frame_cost_s + n_bytes * byte_cost_s)[::-1])[::-1]
        time_left_s = (times_ps[-1] - times_ps) * (dilation / PS_PER_SECOND)
        return float((still_to_do_s - time_left_s).max())


def predict(session: Session, plan: LoopPlan, seed: int) -> Prediction:
    """Simulate a few iterations of ``plan`` on a session without payload."""
    short = replace(plan, iterations=min(plan.iterations, PREDICTED_ITERATIONS), warmup=0, check=False)
    session.record_hops = True
    session.begin(1.0, seed)
    results = session.run(run_loop, short)
    counters, hops = session.counters(), tuple(session.hops())
    return Prediction(
        model_ps=max(result.model_ps for result in results) / short.iterations,
        frames=max(counters.frames, len(hops)) / short.iterations,
        wire_bytes=counters.wire_bytes / short.iterations,
        hops=hops,
    )


def choose(calibration: Calibration, prediction: Prediction, iterations: int) -> float:
    """The smallest dilation that leaves room for the work and for the jitter, to two digits, rounded up."""
    if prediction.model_ps <= 0:
        return 1.0
    frame_cost_s, byte_cost_s = calibration.frame_cost_ns / 1e9, 1 / calibration.bytes_per_s
    work_s = prediction.frames * frame_cost_s + prediction.wire_bytes * byte_cost_s
    model_s = prediction.model_ps / PS_PER_SECOND
    least_s, most_s = JITTER_FLOOR_S
    floor_s = min(most_s, max(least_s, calibration.oversleep_p99_ns / 1e9 / LATE_SHARE))
    dilation = max(HEADROOM * work_s / model_s, floor_s / (model_s * iterations))
    most = max(MOST_SLOWDOWN * work_s / model_s, most_s / (model_s * iterations))
    while dilation < most:
        loop_s = dilation * model_s * iterations
        if prediction.end_lateness_s(dilation, frame_cost_s, byte_cost_s) <= LATE_SHARE * loop_s:
            break
        dilation = min(most, 1.1 * dilation)
    return _two_digits_up(dilation)


def _two_digits_up(value: float) -> float:
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / scale - 1e-9) * scale


class Pacer:
    """Chooses the dilation of each row.  ``fixed`` is the user's; None is auto.

    The simulated session is opened at the first need and closed by :meth:`close`.
    """

    def __init__(
        self,
        fixed: float | None,
        calibration: Callable[[], Calibration],
        simulated: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        self.fixed = fixed
        self._calibration = calibration
        self._open = simulated
        self._opened = ExitStack()
        self._session: Session | None = None

    def dilation(self, plan: LoopPlan, seed: int) -> float:
        """The dilation for ``plan``."""
        if self.fixed is not None:
            return self.fixed
        if self._session is None:
            self._session = self._opened.enter_context(self._open())
        return choose(self._calibration(), predict(self._session, plan, seed), plan.iterations)

    def close(self) -> None:
        self._opened.close()
        self._session = None
