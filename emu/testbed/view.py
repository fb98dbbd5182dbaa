"""View: what ``emu top`` shows, as plain figures, from a testbed's status and two looks at its exporters.

Law: shares are of model time that went by between the looks, or since the testbed is up where there is one look or nothing went
by.  Nothing here asks anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emu.fabric.account import CAUSES, Cause
from emu.telemetry.scrape import Samples
from emu.testbed.status import Plain

_STALLS: Final = "emu_rank_stall_seconds_total"
_COMPUTED: Final = "emu_rank_compute_seconds_total"
_MODEL: Final = "emu_model_time_seconds_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """Shares of the time that its calls took and that it computed, by :class:`Cause`; they sum to 1, or are all 0."""

    rank: int
    is_alive: bool
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """``busy``: share of model time for which bytes took the wire; ``wait_s``: what frames waited for it, all together."""

    name: str
    busy: float
    n_bytes: float
    wait_s: float
    is_faulty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A switch's queue: what waits now, the most that did, and what was counted in the time that is shown."""

    port: str
    priority: str
    n_bytes: float
    peak_bytes: float
    marks: float
    pause_s: float
    drops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One frame.  ``passed_s``: the model time that it is about; ``is_recent``: between two looks, not since the start.

    ``violations`` by reason and ``lags_s`` (median and 99 %, upper bounds) are the host's, since the start.
    """

    status: Plain
    has_metrics: bool
    model_s: float
    passed_s: float
    is_recent: bool
    dilation: float
    ranks: tuple[RankView, ...]
    links: tuple[LinkView, ...]
    queues: tuple[QueueView, ...]
    violations: dict[str, int]
    lags_s: tuple[float, float]
    n_calls: int
    n_up: int
    faults: tuple[str, ...]


def view(status: Plain, now: Samples, before: Samples | None = None) -> View:
    """Ranks by number; links by use and queues by what waits, the most first."""
    model_s = _one(now, _MODEL)
    passed_s = model_s - (_one(before, _MODEL) if before else 0.0)
    is_recent = before is not None and passed_s > 0
    if not is_recent:
        before, passed_s = None, model_s
    grown = _Growth(now, before)
    return View(
        status=status,
        has_metrics=bool(now),
        model_s=model_s,
        passed_s=passed_s,
        is_recent=is_recent,
        dilation=_one(now, "emu_dilation_ratio"),
        ranks=_ranks(status, grown),
        links=_links(now, grown, passed_s),
        queues=_queues(now, grown),
        violations={reason: int(value) for (reason,), value in now.get("emu_fidelity_violations_total", {}).items()},
        lags_s=(_quantile(now, 0.5), _quantile(now, 0.99)),
        n_calls=int(sum(now.get("emu_collective_operations_total", {}).values())),
        n_up=int(sum(now.get("emu_actor_up", {}).values())),
        faults=tuple(status["faults"]),
    )


class _Growth:
    """By how much counters have grown."""

    def __init__(self, now: Samples, before: Samples | None) -> None:
        self.now = now
        self._before = before or {}

    def of(self, name: str, *labels: str) -> float:
        return self.now.get(name, {}).get(labels, 0.0) - self._before.get(name, {}).get(labels, 0.0)


def _one(samples: Samples | None, name: str) -> float:
    return max((samples or {}).get(name, {}).values(), default=0.0)


def _ranks(status: Plain, grown: _Growth) -> tuple[RankView, ...]:
    alive = {int(rank) for rank, _ in grown.now.get(_STALLS, {})}
    found = []
    for rank in range(status["n_ranks"]):
        spent = [max(0.0, grown.of(_STALLS, str(rank), cause)) for cause in CAUSES]
        spent[Cause.COMPUTE] = max(0.0, grown.of(_COMPUTED, str(rank)))
        whole = sum(spent)
        shares = tuple(value / whole if whole else 0.0 for value in spent)
        found.append(RankView(rank=rank, is_alive=rank in alive or not alive, shares=shares))
    return tuple(found)


def _links(now: Samples, grown: _Growth, passed_s: float) -> tuple[LinkView, ...]:
    faulty = {link for (link, _), is_on in now.get("emu_link_fault_active", {}).items() if is_on}
    found = [
        LinkView(
            name=link,
            busy=min(1.0, max(0.0, grown.of("emu_link_busy_seconds_total", link) / passed_s)) if passed_s else 0.0,
            n_bytes=grown.of("emu_link_transmit_bytes_total", link),
            wait_s=grown.of("emu_link_queueing_seconds_total", link),
            is_faulty=link in faulty,
        )
        for link, *_ in now.get("emu_link_info", {})
    ]
    return tuple(sorted(found, key=lambda link: (-link.busy, -link.n_bytes)))


def _queues(now: Samples, grown: _Growth) -> tuple[QueueView, ...]:
    found = [
        QueueView(
            port=port,
            priority=priority,
            n_bytes=n_bytes,
            peak_bytes=now.get("emu_switch_queue_peak_bytes", {}).get((switch, port, priority), 0.0),
            marks=grown.of("emu_switch_ecn_marked_packets_total", switch, port, priority),
            pause_s=grown.of("emu_switch_pfc_pause_seconds_total", switch, port, priority, "received"),
            drops=grown.of("emu_switch_discarded_packets_total", switch, port, priority),
        )
        for (switch, port, priority), n_bytes in now.get("emu_switch_queue_bytes", {}).items()
    ]
    return tuple(sorted(found, key=lambda queue: (-queue.n_bytes, -queue.peak_bytes, queue.port)))


def _quantile(now: Samples, share: float) -> float:
    """Of how late events were taken up, over all roles: the bound of the bucket that it is in."""
    counts: dict[float, float] = {}
    for (_, bound), count in now.get("emu_pacer_lag_seconds_bucket", {}).items():
        counts[float(bound)] = counts.get(float(bound), 0.0) + count
    most = max(counts.values(), default=0.0)
    return min((bound for bound, count in counts.items() if count >= share * most), default=0.0) if most else 0.0
