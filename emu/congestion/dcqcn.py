"""DCQCN: rate control of RoCE by ECN marks and CNPs.

Source: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.

Receiver: a marked packet is answered with a CNP, at most one per ``cnp_interval_ps``.  Sender, with C the current rate, T the
target rate, and alpha from 1 down:

    CNP               T = C,  C = C (1 - alpha / 2),  alpha = (1 - g) alpha + g;  the rates at most once per ``reduce_period_ps``
    alpha timer       alpha = (1 - g) alpha, every ``alpha_timer_ps`` since the last CNP
    increase          after every ``increase_timer_ps`` and every ``byte_counter_bytes`` sent since the last decrease; with
                      n and m such events before it:
        max(n, m) < threshold    fast recovery          C = (C + T) / 2
        min(n, m) > threshold    hyper increase         T = T + rate_hai,  then the same
        else                     additive increase      T = T + rate_ai,   then the same

C is never above the line's rate, nor below ``min_rate_bps``, nor cut to less than ``min_factor`` of itself at once.  With
``byte_counter_bytes`` of 0 the timer counts for both.  Where ``clamps_target`` is false, T is set to C only if the timer
has raised the rate since the last decrease (NVIDIA's clamp_tgt_rate 0 with clamp_tgt_rate_after_time_inc 1).

Pacing: a packet may go when the payload of those before it is paid at C, as C was at each moment; a timer that raises C in
between counts from when it fires.

Sets of parameters, by ``set``:

    nvidia    what mlxconfig shows for ConnectX: RPG_TIME_RESET 300 us, BYTE_RESET 32767, THRESHOLD 1, AI_RATE 5 and HAI_RATE
              50 Mbit/s, MIN_RATE 1 Mbit/s, MIN_DEC_FAC 50, RATE_REDUCE_MONITOR_PERIOD 4 us, MIN_TIME_BETWEEN_CNPS 4 us,
              DCE_TCP_G 1019 (of 1024: g = 5/1024), DCE_TCP_RTT 1 us.  BYTE_RESET is taken for thousands of bytes: its tools
              speak of bytes, but give 150 where IEEE 802.1Qau's default is 150,000 octets; as bytes it would undo every cut
    tuned     as nvidia, with what raised all-reduce on 1,024 GPUs at 400 Gbit/s by a fifth (Barre, USENIX ATC 2025): CNPs
              every 2 us, at most a tenth off at once, time reset 20 us, AI 20 Mbit/s
    paper     the paper's deployment at 40 Gbit/s: CNPs every 50 us, timers 55 us, 10 MB, F = 5, g = 1/256, AI 40 Mbit/s; the
              hyper increase is not published: ten times the additive one, as in QCN
    hpcc      the ns-3 simulator of HPCC (Li et al., SIGCOMM 2019) and SimAI: every mark is answered, alpha 1 us, decrease
              4 us, timer 900 us, no byte counter, F = 1, AI 50, HAI 100, least 100 Mbit/s

Law: timers are caught up with exactly when something is asked, all in integers (alpha in units of 2^-30), so the same
everywhere.  Units: ps, bit/s of payload.  Not modelled: a decrease that a CNP within the reduce period would make later;
the bandwidth of CNPs; what adapters do to a rate on a NACK.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

from pydantic import Field

from emu.congestion.base import Line, Parameters, Settings, settings_of
from emu.errors import ConfigError
from emu.parameters import RateBps, Ratio, SizeBytes, TimePs, did_you_mean
from emu.topologies.headroom import dcqcn_marking

ONE: Final = 1 << 30
"""alpha = 1."""
_WORK_PER_BYTE: Final = 8 * 10**12
"""Bits x ps per second of a byte: rate_bps x ps pays for them."""

_NVIDIA: Final[dict[str, object]] = {
    "cnp_interval_ps": "4us", "g": "5/1024", "alpha_timer_ps": "1us", "reduce_period_ps": "4us",
    "increase_timer_ps": "300us", "byte_counter_bytes": 32_767_000, "threshold": 1, "rate_ai_bps": "5Mbit/s",
    "rate_hai_bps": "50Mbit/s", "min_rate_bps": "1Mbit/s", "min_factor": "1/2", "clamps_target": False,
}  # fmt: skip
SETS: Final[dict[str, dict[str, object]]] = {
    "nvidia": _NVIDIA,
    "tuned": _NVIDIA | {
        "cnp_interval_ps": "2us", "increase_timer_ps": "20us", "rate_ai_bps": "20Mbit/s", "min_factor": "9/10",
    },
    "paper": {
        "cnp_interval_ps": "50us", "g": "1/256", "alpha_timer_ps": "55us", "reduce_period_ps": 0,
        "increase_timer_ps": "55us", "byte_counter_bytes": 10**7, "threshold": 5, "rate_ai_bps": "40Mbit/s",
        "rate_hai_bps": "400Mbit/s", "min_rate_bps": "10Mbit/s", "min_factor": "1/2", "clamps_target": True,
    },
    "hpcc": {
        "cnp_interval_ps": 0, "g": "1/256", "alpha_timer_ps": "1us", "reduce_period_ps": "4us",
        "increase_timer_ps": "900us", "byte_counter_bytes": 0, "threshold": 1, "rate_ai_bps": "50Mbit/s",
        "rate_hai_bps": "100Mbit/s", "min_rate_bps": "100Mbit/s", "min_factor": "1/2", "clamps_target": False,
    },
}  # fmt: skip
DEFAULT_SET: Final = "nvidia"

Share = Annotated[Ratio, Field(le=1)]
PositiveTimePs = Annotated[TimePs, Field(ge=1)]

MARKING: Final = dcqcn_marking


class DcqcnSettings(Settings):
    """Names as in the module's formulas."""

    cnp_interval_ps: TimePs
    g: Share
    alpha_timer_ps: PositiveTimePs
    reduce_period_ps: TimePs
    increase_timer_ps: PositiveTimePs
    byte_counter_bytes: SizeBytes
    threshold: Annotated[int, Field(ge=1, le=1000)]
    rate_ai_bps: RateBps
    rate_hai_bps: RateBps
    min_rate_bps: RateBps
    min_factor: Share
    clamps_target: bool


class DcqcnSender:
    """The reaction point.  Rates begin at the line's and stay there until the first CNP."""

    __slots__ = ("_alpha", "_alpha_since_ps", "_byte_events", "_bytes", "_current", "_debt", "_due_ps", "_line", "_now_ps",
                 "_reduced_ps", "_settings", "_target", "_time_events")  # fmt: skip

    def __init__(self, line: Line, settings: DcqcnSettings) -> None:
        self._line = line.rate_bps
        self._settings = settings
        self._current = self._target = line.rate_bps
        self._alpha = ONE
        self._alpha_since_ps = -1  # the last CNP, or the last decay since; -1: no CNP yet
        self._reduced_ps = -(1 << 62)
        self._due_ps = settings.increase_timer_ps
        self._time_events = self._byte_events = self._bytes = 0
        self._now_ps = 0
        self._debt = 0  # in bits x 10^12: payload sent that is not paid yet

    @property
    def asks(self) -> bool:
        return False

    @property
    def alpha(self) -> float:
        """The estimate of congestion, as of what was last caught up with."""
        return self._alpha / ONE

    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        self._catch_up(now_ps)
        debt = self._debt
        if debt <= 0:
            return now_ps
        at_ps, due_ps, events = now_ps, self._due_ps, self._time_events
        current, target = self._current, self._target
        while True:
            paid_ps = at_ps - (-debt // current)
            if paid_ps <= due_ps or current == self._line:
                return paid_ps
            debt -= current * (due_ps - at_ps)
            current, target = self._increased(current, target, events, self._byte_events)
            at_ps, due_ps, events = due_ps, due_ps + self._settings.increase_timer_ps, events + 1

    def sent(self, now_ps: int, n_bytes: int) -> None:
        self._catch_up(now_ps)
        self._debt += n_bytes * _WORK_PER_BYTE
        period = self._settings.byte_counter_bytes
        if not period:
            return
        self._bytes += n_bytes
        while self._bytes >= period:
            self._bytes -= period
            self._current, self._target = self._increased(self._current, self._target, self._time_events, self._byte_events)
            self._byte_events += 1

    def acknowledged(self, now_ps: int, n_bytes: int, delay_ps: int, marked: bool) -> None:
        """Marks come as CNPs."""

    def notified(self, now_ps: int) -> None:
        self._catch_up(now_ps)
        settings = self._settings
        self._decay_alpha(now_ps)
        if now_ps - self._reduced_ps >= settings.reduce_period_ps:
            self._reduced_ps = now_ps
            if settings.clamps_target or self._time_events:
                self._target = self._current
            cut = self._current * (2 * ONE - self._alpha) // (2 * ONE)
            least = self._current * settings.min_factor.numerator // settings.min_factor.denominator
            self._current = min(self._line, max(cut, least, settings.min_rate_bps))
            self._time_events = self._byte_events = self._bytes = 0
            self._due_ps = now_ps + settings.increase_timer_ps
        self._alpha += (ONE - self._alpha) * settings.g.numerator // settings.g.denominator
        self._alpha_since_ps = now_ps

    def lost(self, now_ps: int, n_bytes: int, *, trimmed: bool) -> None:
        """Recovery sends it again; the rate stays."""

    def timed_out(self, now_ps: int) -> None:
        """Recovery sends again; the rate stays."""

    def rate_bps(self, now_ps: int) -> int:
        self._catch_up(now_ps)
        return self._current

    def _increased(self, current: int, target: int, time_events: int, byte_events: int) -> tuple[int, int]:
        """(current, target) after one increase."""
        settings = self._settings
        if not settings.byte_counter_bytes:
            byte_events = time_events
        if max(time_events, byte_events) >= settings.threshold:
            hyper = min(time_events, byte_events) > settings.threshold
            target = min(self._line, target + (settings.rate_hai_bps if hyper else settings.rate_ai_bps))
        return (current + target + 1) // 2, target

    def _catch_up(self, now_ps: int) -> None:
        """Pay for the time since the last call, and fire the increase timer where it was due."""
        at_ps, line = self._now_ps, self._line
        self._now_ps = now_ps
        period_ps = self._settings.increase_timer_ps
        while self._due_ps <= now_ps:
            if self._current == line:  # nothing more to raise
                n_events = (now_ps - self._due_ps) // period_ps + 1
                self._time_events += n_events
                self._target = line
                self._due_ps += n_events * period_ps
                break
            self._debt -= self._current * (self._due_ps - at_ps)
            at_ps = self._due_ps
            self._current, self._target = self._increased(self._current, self._target, self._time_events, self._byte_events)
            self._time_events += 1
            self._due_ps += period_ps
        self._debt = max(0, self._debt - self._current * (now_ps - at_ps))

    def _decay_alpha(self, now_ps: int) -> None:
        if self._alpha_since_ps < 0:
            return
        g, period_ps = self._settings.g, self._settings.alpha_timer_ps
        for _ in range((now_ps - self._alpha_since_ps) // period_ps):
            if not self._alpha:
                break
            self._alpha -= -(-self._alpha * g.numerator // g.denominator)


class DcqcnReceiver:
    """The notification point."""

    __slots__ = ("_interval_ps", "_last_ps")

    def __init__(self, settings: DcqcnSettings) -> None:
        self._interval_ps = settings.cnp_interval_ps
        self._last_ps = -(1 << 62)

    @property
    def acknowledges(self) -> bool:
        return False

    @property
    def admits(self) -> int | None:
        return None

    def notifies(self, now_ps: int, marked: bool) -> bool:
        if not marked or now_ps - self._last_ps < self._interval_ps:
            return False
        self._last_ps = now_ps
        return True


@lru_cache(maxsize=64)
def _settings(parameters: frozenset[tuple[str, object]]) -> DcqcnSettings:
    given = dict(parameters)
    name = given.pop("set", DEFAULT_SET)
    preset = SETS.get(str(name))
    if preset is None:
        raise ConfigError(
            f"parameters of dcqcn: set = {name!r}: unknown set{did_you_mean(str(name), SETS)}; use one of {', '.join(SETS)}"
        )
    return settings_of(DcqcnSettings, "dcqcn", given, preset)


def build(line: Line, parameters: Parameters) -> tuple[DcqcnSender, DcqcnReceiver]:
    """(sender, receiver).  Parameters: ``set``, and any of :class:`DcqcnSettings` in place of the set's."""
    settings = _settings(frozenset(parameters.items()))
    return DcqcnSender(line, settings), DcqcnReceiver(settings)
