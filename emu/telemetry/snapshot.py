"""Snapshot: what the machines of one actor have counted since its session began, as plain integers, at one moment.

Law: counters only grow.  Machines are made anew whenever a session begins again, so a :class:`Meter`, which lives as long as the
actor, keeps what those before them had counted.  Nothing here is called per frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

from emu.fabric.counters import AdapterStatistics, DelayCounts, QueueStatistics
from emu.fabric.link import LinkStatistics
from emu.telemetry.calls import Calls

LAG_SLOTS = 65
"""Observations by the number of bits of their value, and last their sum."""
K = TypeVar("K")
S = TypeVar("S", LinkStatistics, AdapterStatistics, QueueStatistics)


class Counting(Protocol):
    """An engine, from here."""

    events: int
    delays: dict[int, DelayCounts]

    def link_statistics(self) -> dict[int, LinkStatistics]: ...
    def queue_statistics(self) -> dict[int, tuple[QueueStatistics, ...]]: ...
    def adapter_statistics(self) -> dict[int, AdapterStatistics]: ...
    def queue_bytes(self) -> dict[int, tuple[int, ...]]: ...
    def hosted_ranks(self) -> tuple[int, ...]: ...
    def active_faults(self) -> set[tuple[str, str]]: ...


class Host(Protocol):
    """What the host did to a run, from here."""

    order_violations: int
    transport_backpressure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One actor's integers.  Links and queues (by class) by link, adapters by rank, delays by tier and number of bits."""

    ranks: tuple[int, ...]
    """World ranks that it hosts."""
    dilation: float
    links: Mapping[int, LinkStatistics]
    queues: Mapping[int, tuple[QueueStatistics, ...]]
    queue_bytes: Mapping[int, tuple[int, ...]]
    """What waits now."""
    adapters: Mapping[int, AdapterStatistics]
    delays: Mapping[int, list[int]]
    variations: Mapping[int, list[int]]
    """By how much delays were longer than the least that the links take."""
    calls: Calls
    lags: list[int]
    """How late events were taken up, ns, by number of bits."""
    order_violations: int
    backpressure: int
    faults: Mapping[tuple[str, str], int]
    """(component, kind) -> 1 while the fault is on, 0 once it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A session, as its metrics say.  ``inspector``: with NCCL Inspector's metrics beside emu's."""

    session: str
    fabric: str
    driver: str
    ranks: int
    seed: int
    inspector: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of one actor: its last snapshot and when it was read (Unix time), None and 0 before the first."""

    actor: str
    role: str
    is_alive: bool
    read_s: float
    snapshot: Snapshot | None


@dataclass(slots=True)
class Meter:
    """What one actor counts for good: ``calls`` and ``lags`` are written as things happen, the rest is read from machines."""

    calls: Calls = field(default_factory=Calls)
    lags: list[int] = field(default_factory=lambda: [0] * LAG_SLOTS)
    impaired: frozenset[tuple[str, str]] = frozenset()
    """(link, kind) of the impairments that are there for a whole run."""
    _links: dict[int, LinkStatistics] = field(default_factory=dict)
    _queues: dict[int, tuple[QueueStatistics, ...]] = field(default_factory=dict)
    _adapters: dict[int, AdapterStatistics] = field(default_factory=dict)
    _delays: dict[int, list[int]] = field(default_factory=dict)
    _variations: dict[int, list[int]] = field(default_factory=dict)
    _order_violations: int = 0
    _backpressure: int = 0
    _faults: dict[tuple[str, str], int] = field(default_factory=dict)

    def late(self, lag_ns: int) -> None:
        """An event was taken up so late."""
        self.lags[lag_ns.bit_length()] += 1
        self.lags[-1] += lag_ns

    def keep(self, engine: Counting, host: Host) -> None:
        """The engine is about to be replaced: remember what it counted."""
        if not engine.events:
            return
        self._links = _sums(self._links, {link: found for link, found in engine.link_statistics().items() if found.frames})
        self._queues = _queue_sums(self._queues, engine.queue_statistics())
        self._adapters = _sums(self._adapters, engine.adapter_statistics())
        self._delays, self._variations = self._delay_sums(engine)
        self._order_violations += host.order_violations
        self._backpressure += host.transport_backpressure

    def snapshot(self, engine: Counting, host: Host, *, dilation: float) -> Snapshot:
        """What was counted so far."""
        delays, variations = self._delay_sums(engine)
        self._faults = dict.fromkeys(self._faults, 0) | dict.fromkeys([*self.impaired, *engine.active_faults()], 1)
        return Snapshot(
            ranks=engine.hosted_ranks(),
            dilation=dilation,
            links=_sums(self._links, engine.link_statistics()),
            queues=_queue_sums(self._queues, engine.queue_statistics()),
            queue_bytes=engine.queue_bytes(),
            adapters=_sums(self._adapters, engine.adapter_statistics()),
            delays=delays,
            variations=variations,
            calls=self.calls.copy(),
            lags=list(self.lags),
            order_violations=self._order_violations + host.order_violations,
            backpressure=self._backpressure + host.transport_backpressure,
            faults=self._faults,
        )

    def _delay_sums(self, engine: Counting) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        found = engine.delays.items()
        return (
            _list_sums(self._delays, {tier: counts.delays for tier, counts in found}),
            _list_sums(self._variations, {tier: counts.variations for tier, counts in found}),
        )


def _sums(old: Mapping[K, S], new: Mapping[K, S]) -> dict[K, S]:
    return {**old, **{key: _sum(old[key], found) if key in old else found for key, found in new.items()}}


def _queue_sums(
    old: Mapping[int, tuple[QueueStatistics, ...]], new: Mapping[int, tuple[QueueStatistics, ...]]
) -> dict[int, tuple[QueueStatistics, ...]]:
    summed = {link: tuple(map(_sum, old[link], by_class)) if link in old else by_class for link, by_class in new.items()}
    return {**old, **summed}


def _list_sums(old: Mapping[int, list[int]], new: Mapping[int, list[int]]) -> dict[int, list[int]]:
    return {
        **old,
        **{key: [a + b for a, b in zip(old.get(key, [0] * len(found)), found, strict=True)] for key, found in new.items()},
    }


def _sum(old: S, new: S) -> S:
    """Field by field: the larger of peaks, sums of other integers, the newer of all else."""
    values: dict[str, Any] = {}
    for one in fields(new):
        before, after = getattr(old, one.name), getattr(new, one.name)
        if isinstance(after, int):
            values[one.name] = max(before, after) if one.name.startswith("peak_") else before + after
    return replace(new, **values)
