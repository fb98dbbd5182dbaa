"""Prometheus: what actors counted, as the metrics of :mod:`emu.telemetry.catalogue`, at the moment of a scrape.

Law: integers are turned into seconds here and nowhere else.  Each collector has a registry of its own, so that nothing outlives
its session and nothing of the process stands beside it.

What belongs to a rank, a link or a queue goes away with the actor that died; its ``emu_actor_up`` is 0 then and its last update
stands still.  What is summed over actors keeps what the dead had counted, or counters would go back.  An actor that is only slow
keeps its last values, with the time of them.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from threading import Lock
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from emu.errors import ConfigError
from emu.fabric.account import CAUSES, Cause
from emu.fabric.counters import QueueStatistics
from emu.telemetry.calls import Calls, Histogram
from emu.telemetry.catalogue import BUCKETS_PS, CATALOGUE, DELAY_BITS, LAG_BITS, Kind
from emu.telemetry.congestion import collect
from emu.telemetry.diagnosis import Cause as FindingCause
from emu.telemetry.inspector import inspector_families
from emu.telemetry.snapshot import About, Reading, Snapshot
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.switching import Discipline
from emu.topologies.tiers import link_tiers
from emu.units import PS_PER_SECOND

K = TypeVar("K")
NS_PER_SECOND: Final = 10**9
STALLS: Final = tuple(cause for cause in Cause if cause is not Cause.COMPUTE)
"""What calls spend time on; declared computation lies between them."""


Buckets = tuple[list[tuple[str, float]], float]
"""(upper bound, observations up to it), and the sum."""


class _Samples:
    """Samples by metric, then by label values."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple[str, ...], float]] = {}
        self.buckets: dict[str, dict[tuple[str, ...], Buckets]] = {}

    def set(self, name: str, value: float, *labels: object) -> None:
        self.values.setdefault(name, {})[tuple(map(str, labels))] = value

    def add(self, name: str, value: float, *labels: object) -> None:
        found = self.values.setdefault(name, {})
        key = tuple(map(str, labels))
        found[key] = found.get(key, 0) + value

    def histogram(self, name: str, buckets: Buckets, *labels: object) -> None:
        self.buckets.setdefault(name, {})[tuple(map(str, labels))] = buckets

    def families(self) -> Iterator[Metric]:
        """In the catalogue's order; what has no samples is left out."""
        for name, metric in CATALOGUE.items():
            if metric.kind is Kind.HISTOGRAM and name in self.buckets:
                histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
                for labels, (buckets, total) in self.buckets[name].items():
                    histogram.add_metric(labels, buckets, total)
                yield histogram
            elif name in self.values:
                family = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
                found = family(name, metric.help, labels=metric.labels)
                for labels, value in self.values[name].items():
                    found.add_metric(labels, value)
                yield found


class Collector:
    """A custom collector over what ``readings`` gives at each scrape, one reading for each actor."""

    def __init__(
        self,
        topology: Topology,
        *,
        about: About,
        readings: Callable[[], Sequence[Reading]],
    ) -> None:
        self._topology = topology
        self._about = about
        self._readings = readings
        self._names = [node.name for node in topology.nodes]
        self._links_named = {link.name for link in topology.links}
        self._rank_of = {topology.nodes[node].name: rank for rank, node in enumerate(topology.ranks)}
        self._tiers = link_tiers(topology)
        self._reverse = topology.reverse_links() if topology.switching is not None else ()
        kinds = {node.kind for node in topology.nodes}
        self._forwards = [NodeKind.SWITCH not in kinds or node.kind is NodeKind.SWITCH for node in topology.nodes]
        self._calls = Calls()
        self._model_ps = 0
        self._pointed_to: set[tuple[str, str]] = set()
        self._findings: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        """Everything, now."""
        with self._lock:
            readings = self._readings()
            samples = _Samples()
            self._session(samples, readings)
            for reading in readings:
                if reading.is_alive and reading.snapshot is not None:
                    self._ranks(samples, reading.snapshot)
                    self._links(samples, reading.snapshot)
                    self._queues(samples, reading.snapshot)
            self._summed(samples, [(reading.role, reading.snapshot) for reading in readings if reading.snapshot is not None])
            yield from samples.families()
            if self._about.inspector:
                yield from inspector_families(self._topology, readings)

    def text(self) -> str:
        """The exposition, in Prometheus's text format."""
        return generate_latest(self._registry()).decode()

    def serve(self, host: str, port: int) -> int:
        """Serve it over HTTP, in a thread; the port (0 takes a free one).  Raises ConfigError."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self._registry())
        except OSError as error:
            hint = "use another port, or 0 for a free one" if error.errno == errno.EADDRINUSE else "name an address of the node"
            raise ConfigError(f"metrics {host}:{port}: {error.strerror or error}; {hint}") from None
        return int(server.server_port)

    def _registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def _session(self, samples: _Samples, readings: Sequence[Reading]) -> None:
        about = self._about
        samples.set("emu_build_info", 1, _version(), platform.python_version())
        samples.set("emu_run_info", 1, about.session, about.fabric, about.driver, about.ranks, about.seed)
        for reading in readings:
            samples.set("emu_actor_up", int(reading.is_alive), reading.actor)
            if reading.snapshot is not None:
                samples.set("emu_exporter_last_update_timestamp_seconds", reading.read_s, reading.actor)
                samples.set("emu_dilation_ratio", reading.snapshot.dilation)
                self._model_ps = max(self._model_ps, reading.snapshot.calls.model_ps)
        samples.set("emu_model_time_seconds_total", self._model_ps / PS_PER_SECOND)

    # -- what goes away with its actor ---------------------------------------------------------------

    def _ranks(self, samples: _Samples, snapshot: Snapshot) -> None:
        calls = snapshot.calls
        for rank in snapshot.ranks:
            spent_ps = calls.spent_ps.get(rank, [0] * len(CAUSES))
            for cause in STALLS:
                samples.set("emu_rank_stall_seconds_total", spent_ps[cause] / PS_PER_SECOND, rank, CAUSES[cause])
            samples.set("emu_rank_compute_seconds_total", calls.computed_ps.get(rank, 0) / PS_PER_SECOND, rank)
        for rank, adapter in snapshot.adapters.items():
            samples.set("emu_rank_cnp_packets_total", adapter.cnp_sent, rank, "sent")
            samples.set("emu_rank_cnp_packets_total", adapter.cnp_received, rank, "handled")
            samples.set("emu_rank_retransmitted_packets_total", adapter.resent_packets, rank)
            samples.set("emu_rank_ack_timeouts_total", adapter.timeouts, rank)
            samples.set("emu_rank_discarded_packets_total", adapter.discarded_packets, rank)
        for (component, kind), is_on in snapshot.faults.items():
            afflicted = self._rank_of.get(component.partition("->")[0])
            if afflicted is None or component.partition("#")[0] in self._links_named or component in self._links_named:
                samples.set("emu_link_fault_active", is_on, component, kind)
            else:
                samples.set("emu_rank_fault_active", is_on, afflicted, kind)

    def _links(self, samples: _Samples, snapshot: Snapshot) -> None:
        for index, counted in snapshot.links.items():
            link = self._topology.links[index]
            samples.set("emu_link_info", 1, link.name, self._names[link.source], self._names[link.target], self._tiers[index])
            samples.set("emu_link_capacity_bytes_per_second", link.rate_bps / 8, link.name)
            samples.set("emu_link_transmit_bytes_total", counted.wire_bytes, link.name)
            samples.set("emu_link_busy_seconds_total", counted.busy_ps / PS_PER_SECOND, link.name)
            samples.set("emu_link_queueing_seconds_total", counted.queued_ps / PS_PER_SECOND, link.name)
            samples.set("emu_link_lost_packets_total", counted.lost_packets, link.name)

    def _queues(self, samples: _Samples, snapshot: Snapshot) -> None:
        """Pauses are counted where they are received; what a port sent is what the far end's port received."""
        for index, by_class in snapshot.queues.items():
            link = self._topology.links[index]
            if self._forwards[link.source]:
                for number, counted in enumerate(by_class):
                    self._queue(samples, index, number, counted, snapshot.queue_bytes[index][number])
            back = self._reverse[index]
            if back is not None and self._forwards[link.target]:
                for number, counted in enumerate(by_class):
                    self._pauses(samples, back, number, counted, "sent")

    def _queue(self, samples: _Samples, index: int, number: int, counted: QueueStatistics, n_bytes: int) -> None:
        switching = self._topology.switching
        assert switching is not None
        traffic_class = switching.classes[number]
        queue = self._queue_labels(index, number)
        samples.set("emu_switch_queue_bytes", n_bytes, *queue)
        samples.set("emu_switch_queue_peak_bytes", counted.peak_queue_bytes, *queue)
        samples.set("emu_switch_discarded_packets_total", counted.dropped_packets + counted.watchdog_packets, *queue)
        self._pauses(samples, index, number, counted, "received")
        if traffic_class.discipline is Discipline.PAUSE and switching.watchdog is not None:
            samples.set("emu_switch_pfc_watchdog_storms_total", counted.watchdog_events, *queue)
            switch, _, priority = queue
            samples.add("emu_switch_pfc_watchdog_restorations_total", counted.watchdog_restorations, switch, priority)
        if traffic_class.discipline is Discipline.CREDIT:
            samples.set("emu_switch_credit_wait_seconds_total", counted.wait_ps / PS_PER_SECOND, *queue)
        if traffic_class.marking is not None:
            samples.set("emu_switch_ecn_marked_packets_total", counted.marked_packets, *queue)
        if traffic_class.trims:
            samples.set("emu_switch_trimmed_packets_total", counted.trimmed_packets, *queue)

    def _pauses(self, samples: _Samples, index: int, number: int, counted: QueueStatistics, direction: str) -> None:
        switching = self._topology.switching
        assert switching is not None
        if switching.classes[number].discipline is not Discipline.PAUSE:
            return
        labels = *self._queue_labels(index, number), direction
        samples.set("emu_switch_pfc_pause_frames_total", counted.pause_frames, *labels)
        samples.set("emu_switch_pfc_pause_seconds_total", counted.pause_ps / PS_PER_SECOND, *labels)
        samples.set("emu_switch_pfc_pause_transitions_total", counted.pause_transitions, *labels)

    def _queue_labels(self, index: int, number: int) -> tuple[str, str, str]:
        switching = self._topology.switching
        assert switching is not None
        link = self._topology.links[index]
        return self._names[link.source], link.name, str(switching.classes[number].priority)

    # -- what is summed over actors -------------------------------------------------------------------

    def _summed(self, samples: _Samples, found: Sequence[tuple[str, Snapshot]]) -> None:
        snapshots = [snapshot for _, snapshot in found]
        delays: dict[int, list[int]] = {}
        variations: dict[int, list[int]] = {}
        lags: dict[str, list[int]] = {}
        for role, snapshot in found:
            _add(lags, role, snapshot.lags)
            for tier, counts in snapshot.delays.items():
                _add(delays, tier, counts)
            for tier, counts in snapshot.variations.items():
                _add(variations, tier, counts)
        for role, counts in lags.items():
            samples.histogram("emu_pacer_lag_seconds", _by_bits(counts, LAG_BITS, NS_PER_SECOND), role)
        for name, by_tier in (("emu_link_delay_seconds", delays), ("emu_link_delay_variation_seconds", variations)):
            for tier, counts in by_tier.items():
                samples.histogram(name, _by_bits(counts, DELAY_BITS, PS_PER_SECOND), tier)
        self._of_calls(samples, snapshots)
        name = "emu_fidelity_violations_total"
        samples.set(name, sum(snapshot.order_violations for snapshot in snapshots), "order")
        samples.set(name, sum(snapshot.backpressure for snapshot in snapshots), "backpressure")
        samples.set(name, sum(snapshot.calls.n_late for snapshot in snapshots), "late_call")
        if self._topology.switching is not None:
            self._diagnosis(samples, snapshots)

    def _of_calls(self, samples: _Samples, snapshots: Sequence[Snapshot]) -> None:
        calls = self._calls.emptied()  # kinds that have series keep them, whichever actor tells of others first
        for snapshot in snapshots:
            calls.add(snapshot.calls)
        self._calls = calls
        for which in {**calls.completed, **calls.aborted}:
            samples.set("emu_collective_operations_total", calls.completed.get(which, 0), *which, "ok")
            samples.set("emu_collective_operations_total", calls.aborted.get(which, 0), *which, "aborted")
        for which, n_bytes in calls.n_bytes.items():
            samples.set("emu_collective_bytes_total", n_bytes, *which)
        for kind, counted in calls.kinds.items():
            samples.histogram("emu_collective_duration_seconds", _by_bounds(counted.durations), *kind)
            _, bus_bytes, duration_ps = counted.last
            if bus_bytes and duration_ps:
                value = float(bus_bytes * PS_PER_SECOND / duration_ps)
                samples.set("emu_collective_bus_bandwidth_bytes_per_second", value, *kind)
        for collective, skews in calls.skews.items():
            samples.histogram("emu_collective_arrival_skew_seconds", _by_bounds(skews), collective)
        for rank in range(self._topology.n_ranks):
            samples.set("emu_rank_last_arrivals_total", calls.last_arrivals.get(rank, 0), rank)

    def _diagnosis(self, samples: _Samples, snapshots: Sequence[Snapshot]) -> None:
        """Count what the counters of this exporter's actors point to and did not at the scrape before."""
        report = collect(
            self._topology,
            queues={link: queue for snapshot in snapshots for link, queue in snapshot.queues.items()},
            adapters={rank: adapter for snapshot in snapshots for rank, adapter in snapshot.adapters.items()},
            links={link: counted for snapshot in snapshots for link, counted in snapshot.links.items()},
            elapsed_ps=self._model_ps,
        )
        pointed_to = {(finding.cause.replace(" ", "_"), finding.where) for finding in report.findings()}
        kind_of = {node.name: str(node.kind) for node in self._topology.nodes}
        for cause, where in pointed_to - self._pointed_to:
            key = cause, kind_of.get(where, "link")
            self._findings[key] = self._findings.get(key, 0) + 1
        self._pointed_to = pointed_to
        for cause in FindingCause:
            samples.set("emu_diagnosis_findings_total", 0, cause.replace(" ", "_"), _USUAL[cause])
        for key, n in self._findings.items():
            samples.set("emu_diagnosis_findings_total", n, *key)


_USUAL: Final = {
    FindingCause.SLOW_RECEIVER: "accelerator",
    FindingCause.PAUSE_STORM: "accelerator",
    FindingCause.FEW_CREDITS: "accelerator",
    FindingCause.INCAST: "link",
    FindingCause.HOT_LINK: "link",
    FindingCause.CONGESTION: "switch",
}
"""Where a finding mostly is: for the zeros that are there before the first."""


def _version() -> str:
    try:
        return version("emu")
    except PackageNotFoundError:
        return "not installed"


def _add(sums: dict[K, list[int]], key: K, counts: Sequence[int]) -> None:
    old = sums.get(key)
    sums[key] = list(counts) if old is None else [a + b for a, b in zip(old, counts, strict=True)]


def _by_bounds(histogram: Histogram) -> Buckets:
    bounds = [*(str(bound_ps / PS_PER_SECOND) for bound_ps in BUCKETS_PS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True)), histogram.sum / PS_PER_SECOND


def _by_bits(counts: Sequence[int], bits: Sequence[int], per_second: int) -> Buckets:
    """From observations by the number of bits of their value, and last their sum."""
    up_to = list(accumulate(counts[:-1]))
    buckets = [(str(2**n / per_second), float(up_to[n])) for n in bits]
    return [*buckets, ("+Inf", float(up_to[-1]))], counts[-1] / per_second
