"""NSCC: the window control of Ultra Ethernet's senders, by delay, ECN and trimming.

Source: UEC specification 1.0, section 3.6; constants as in the consortium's simulator, uet-htsim.

Every packet is acknowledged with its time and mark.  With d the delay of a packet beyond the empty fabric's round trip R, D the
target delay, B = rate x R, W the window, MSS an MTU's payload, a = B / 150 kB and b = D / 12 us (both relative to a reference
fabric of 100 Gbit/s and 12 us):

    mark  d        what an acknowledgement of n bytes does
    no    < D      proportional increase     I += 4 MSS a b (D - d) / D x n
    no    >= D     fair increase             I += 5 MSS a x n
    yes   >= D     multiplicative decrease   W *= max(1/2, 1 - 0.8 (A - D) / A), where A, the average of d, is above D; once per R
    yes   < D      nothing: the path is to be changed, which is the balancing's work

    every 8 MTUs, or R:    W += I / W, I = 0; and 0.15 MSS a, once per R
    fast increase          an empty path (d < R / 12) for a whole window: W += 0.25 a n with each acknowledgement
    quick adapt            once per R + D, if something was trimmed or lost, or d > 4 D, and less than 1/8 of the largest window
                           came through in that time: W is what came through, and what was outstanding then is not heeded
    trimmed, lost          otherwise W -= n

W begins at its largest, 1.5 B, and is at least one packet.  A is averaged with weight 1/80; a loss counts as R; an unmarked
packet beyond D as R / 4.

Law: integers; with nothing outstanding a packet may always go.  Units: bytes, ps.  Not modelled: choosing paths (entropies);
pacing by receiver credits (RCCC); the bandwidth of acknowledgements.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Final

from pydantic import Field

from emu.congestion.base import FOREVER_PS, Line, Parameters, Settings, settings_of
from emu.parameters import Ratio
from emu.topologies.headroom import nscc_marking

REFERENCE_BYTES: Final = 150_000
"""Bandwidth-delay product of the reference fabric: 100 Gbit/s x 12 us."""
REFERENCE_PS: Final = 12_000_000
_MTUS_PER_ADJUSTMENT: Final = 8
_AVERAGE_OVER: Final = 80

MARKING: Final = nscc_marking


class NsccSettings(Settings):
    """``target_delay``: D, of a round trip.  ``max_window``: of B.  ``gamma``: of the decrease; ``proportional``, ``fair`` and
    ``eta``: of the increases, in MSS a.  ``quick_adapt``: the delay that calls for it, in D; 0 for never."""

    target_delay: Ratio = Fraction(3, 4)
    max_window: Ratio = Fraction(3, 2)
    gamma: Annotated[Ratio, Field(le=1)] = Fraction(4, 5)
    proportional: Ratio = Fraction(4)
    fair: Ratio = Fraction(5)
    eta: Ratio = Fraction(3, 20)
    fast: Ratio = Fraction(1, 4)
    quick_adapt: Annotated[int, Field(ge=0)] = 4


class NsccSender:
    """The window."""

    __slots__ = (
        "_achieved_bytes", "_adjusted_ps", "_average_ps", "_base_ps", "_credit", "_decreased_ps", "_eta_bytes",
        "_fair_bytes", "_fast", "_fast_bytes", "_heed_after_bytes", "_ignored_bytes", "_increasing", "_line",
        "_max_bytes", "_min_bytes", "_mtu_bytes", "_proportional_bytes", "_quick_ps", "_received_bytes", "_settings",
        "_target_ps", "_triggered", "_window_bytes",
    )  # fmt: skip

    def __init__(self, line: Line, settings: NsccSettings) -> None:
        self._line = line
        self._settings = settings
        product_bytes = line.rate_bps * line.round_trip_ps // (8 * 10**12)
        scale_a = Fraction(product_bytes, REFERENCE_BYTES)
        self._base_ps = line.round_trip_ps
        self._target_ps = max(1, int(line.round_trip_ps * settings.target_delay))
        scale_b = Fraction(self._target_ps, REFERENCE_PS)
        mss = min(line.mtu_bytes, line.quantum_bytes)
        self._mtu_bytes = mss
        self._min_bytes = line.quantum_bytes
        self._max_bytes = max(line.quantum_bytes, int(product_bytes * settings.max_window))
        self._proportional_bytes = int(settings.proportional * mss * scale_a * scale_b)
        self._fair_bytes = int(settings.fair * mss * scale_a)
        self._eta_bytes = int(settings.eta * mss * scale_a)
        self._fast = settings.fast * scale_a
        self._window_bytes = self._max_bytes
        self._average_ps = 0
        self._credit = 0  # I, in bytes x bytes
        self._received_bytes = self._achieved_bytes = self._fast_bytes = 0
        self._ignored_bytes = self._heed_after_bytes = 0
        self._increasing = self._triggered = False
        self._adjusted_ps = self._decreased_ps = 0
        self._quick_ps = 0

    @property
    def asks(self) -> bool:
        return False

    @property
    def window_bytes(self) -> int:
        """What may be outstanding."""
        return self._window_bytes

    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        fits = not outstanding_bytes or outstanding_bytes + n_bytes <= self._window_bytes
        return now_ps if fits else FOREVER_PS

    def sent(self, now_ps: int, n_bytes: int) -> None:
        """The queue pair counts what is outstanding."""

    def acknowledged(self, now_ps: int, n_bytes: int, delay_ps: int, marked: bool) -> None:
        self._achieved_bytes += n_bytes
        self._received_bytes += n_bytes
        self._ignored_bytes += n_bytes
        delay_ps = max(0, delay_ps - self._base_ps)
        target_ps = self._target_ps
        late = delay_ps >= target_ps
        self._average(self._base_ps // 4 if late and not marked else delay_ps)
        if self._quickly_adapted(now_ps, False, marked, delay_ps):
            return
        if late and not marked:
            self._credit += self._fair_bytes * n_bytes
        elif not marked:
            self._increase(n_bytes, delay_ps)
        elif late:
            self._decrease(now_ps)
        self._bound()
        threshold = _MTUS_PER_ADJUSTMENT * self._mtu_bytes
        if self._received_bytes > threshold or now_ps - self._adjusted_ps > self._base_ps:
            self._adjust(now_ps)

    def notified(self, now_ps: int) -> None:
        """Marks come with acknowledgements."""

    def lost(self, now_ps: int, n_bytes: int, *, trimmed: bool) -> None:
        self._ignored_bytes += n_bytes
        self._average(self._base_ps)
        self._triggered = True
        if not self._quickly_adapted(now_ps, True, True, 0):
            self._window_bytes -= n_bytes
        self._bound()

    def timed_out(self, now_ps: int) -> None:
        self._window_bytes = self._min_bytes
        self._credit = 0

    def rate_bps(self, now_ps: int) -> int:
        return self._line.rate_bps

    def _bound(self) -> None:
        self._window_bytes = max(self._min_bytes, min(self._max_bytes, self._window_bytes))

    def _average(self, delay_ps: int) -> None:
        self._average_ps += (delay_ps - self._average_ps) // _AVERAGE_OVER

    def _increase(self, n_bytes: int, delay_ps: int) -> None:
        """Fast after a whole window on an empty path, else in proportion to what is left of the target."""
        if delay_ps * 12 < self._base_ps:
            self._fast_bytes += n_bytes
            if self._increasing or self._fast_bytes > self._window_bytes:
                self._increasing = True
                self._window_bytes += int(self._fast * n_bytes)
                return
        else:
            self._fast_bytes = 0
        self._increasing = False
        self._credit += self._proportional_bytes * n_bytes * (self._target_ps - delay_ps) // self._target_ps

    def _decrease(self, now_ps: int) -> None:
        self._increasing = False
        self._fast_bytes = 0
        average_ps, target_ps = self._average_ps, self._target_ps
        if average_ps <= target_ps or now_ps - self._decreased_ps <= self._base_ps:
            return
        gamma = self._settings.gamma
        cut = self._window_bytes * gamma.numerator * (average_ps - target_ps) // (gamma.denominator * average_ps)
        self._window_bytes -= min(cut, self._window_bytes // 2)
        self._decreased_ps = now_ps

    def _adjust(self, now_ps: int) -> None:
        self._window_bytes += self._credit // self._window_bytes
        if now_ps - self._adjusted_ps >= self._base_ps:
            self._window_bytes += self._eta_bytes
            self._adjusted_ps = now_ps
        self._credit = self._received_bytes = 0
        self._bound()

    def _quickly_adapted(self, now_ps: int, lost: bool, marked: bool, delay_ps: int) -> bool:
        """Whether the window was set by what came through, or this answer is to what was sent before it was."""
        settings = self._settings
        if not settings.quick_adapt:
            return False
        done = False
        if self._ignored_bytes < self._heed_after_bytes and marked:
            done = True
        elif now_ps > self._quick_ps:
            wanted = self._triggered or lost or delay_ps > settings.quick_adapt * self._target_ps
            if self._quick_ps and wanted and self._achieved_bytes < self._max_bytes // 8:
                self._heed_after_bytes, self._ignored_bytes = self._window_bytes, 0
                self._window_bytes = max(self._achieved_bytes, self._min_bytes)
                self._triggered = False
                done = True
            self._achieved_bytes = 0
            self._quick_ps = now_ps + self._base_ps + self._target_ps
        if done:
            self._credit = self._received_bytes = 0
        return done


class NsccReceiver:
    """Answers every packet."""

    @property
    def acknowledges(self) -> bool:
        return True

    @property
    def admits(self) -> int | None:
        return None

    def notifies(self, now_ps: int, marked: bool) -> bool:
        return False


@lru_cache(maxsize=64)
def _settings(parameters: frozenset[tuple[str, object]]) -> NsccSettings:
    return settings_of(NsccSettings, "nscc", dict(parameters))


def build(line: Line, parameters: Parameters) -> tuple[NsccSender, NsccReceiver]:
    """(sender, receiver).  Parameters: those of :class:`NsccSettings`."""
    return NsccSender(line, _settings(frozenset(parameters.items()))), NsccReceiver()
