"""Collectives: how long calls take, how much that varies, and who comes late to them."""

from __future__ import annotations

from grafana.source.dashboard import Choice, Section, dashboard
from grafana.source.panels import Json, Query, bars, buckets, timeseries
from grafana.source.promql import aggregate, counter_rate, gauge, parts, per_model_second, quantile

_KIND = ('collective=~"$collective"', 'size_class=~"$size_class"')
_COLLECTIVE = ('collective=~"$collective"',)
_DURATION = "emu_collective_duration_seconds"
_SKEW = "emu_collective_arrival_skew_seconds"
_BY = ("collective", "size_class")
_NAMED = "{{collective}} {{size_class}}"


def _of_kind(share: float) -> str:
    return quantile(share, _DURATION, *_KIND, by=_BY)


DURATION = Section(
    title="Duration and bandwidth",
    reading=(
        "A duration is one rank's, from its call to its completion, in **model time**, so it holds the wait for ranks that "
        "came later. Quantiles come from buckets that are four times as wide each: read steps, not digits. Never the mean "
        "alone: the slowest rank sets the pace."
    ),
    panels=(
        timeseries(
            "Duration, median",
            "Half of the ranks' calls were shorter (model time).",
            Query(expression=_of_kind(0.5), legend=_NAMED),
            unit="s",
            logarithmic=True,
            width=8,
        ),
        timeseries(
            "Duration, 99th percentile",
            "One in a hundred of the ranks' calls was longer (model time).",
            Query(expression=_of_kind(0.99), legend=_NAMED),
            unit="s",
            logarithmic=True,
            width=8,
        ),
        timeseries(
            "Duration, longest",
            "Upper bound of the bucket that the longest fell into (model time).",
            Query(expression=_of_kind(1), legend=_NAMED),
            unit="s",
            logarithmic=True,
            width=8,
        ),
        timeseries(
            "Bus bandwidth",
            "Of the last call of each kind, at the rank that completed last; comparable with a link's rate.",
            Query(
                expression=gauge("emu_collective_bus_bandwidth_bytes_per_second", *_KIND),
                legend="{{collective}} {{algorithm}} {{size_class}}",
            ),
            unit="Bps",
        ),
        buckets(
            "Durations of all calls",
            "Darker where more calls fell; a second band is a second kind of call, or a cause.",
            Query(expression=aggregate("sum", counter_rate(f"{_DURATION}_bucket", *_KIND), "le"), legend="{{le}}", buckets=True),
            unit="s",
        ),
        timeseries(
            "Calls",
            "Calls for a model second, by how they ended.",
            Query(
                expression=aggregate(
                    "sum", per_model_second("emu_collective_operations_total", *_COLLECTIVE), "collective", "status"
                ),
                legend="{{collective}} {{status}}",
            ),
            unit="ops",
        ),
        timeseries(
            "Bytes of calls",
            "Sizes of completed calls for a model second, as nccl-tests counts sizes.",
            Query(
                expression=aggregate(
                    "sum", per_model_second("emu_collective_bytes_total", *_COLLECTIVE), "collective", "algorithm"
                ),
                legend="{{collective}} {{algorithm}}",
            ),
            unit="Bps",
        ),
    ),
)

JITTER = Section(
    title="Jitter by size",
    reading=(
        "Small calls show latency and its variation, large ones bandwidth and contention. A spread in **one** size class "
        "points at a choice of algorithm; in **all** of them at a rank or a link."
    ),
    panels=(
        timeseries(
            "Spread",
            "99th percentile less the median of durations (model time).",
            Query(expression=f"{_of_kind(0.99)} - {_of_kind(0.5)}", legend=_NAMED),
            unit="s",
        ),
        timeseries(
            "Spread for the median",
            "99th percentile over the median: 1 is perfectly even.",
            Query(expression=f"{_of_kind(0.99)} / {_of_kind(0.5)}", legend=_NAMED),
            unit="none",
        ),
    ),
)

ARRIVAL = Section(
    title="Arrival",
    reading=(
        "A call cannot end before its last rank begins. **Skew** is the time from the first rank's start to the last's. When "
        "one rank is the last far more often than its share (1 / ranks), it is a straggler: it computes longer, or something "
        "holds it."
    ),
    panels=(
        timeseries(
            "Arrival skew",
            "Median, 99th percentile and longest of the time between the first rank's start and the last's (model time).",
            *(
                Query(expression=quantile(share, _SKEW, *_COLLECTIVE, by=("collective",)), legend=f"{{{{collective}}}} {name}")
                for share, name in ((0.5, "median"), (0.99, "p99"), (1, "longest"))
            ),
            unit="s",
            logarithmic=True,
        ),
        buckets(
            "Arrival skew of all calls",
            "Darker where more calls fell (model time).",
            Query(
                expression=aggregate("sum", counter_rate(f"{_SKEW}_bucket", *_COLLECTIVE), "le"), legend="{{le}}", buckets=True
            ),
            unit="s",
        ),
        timeseries(
            "Last to arrive",
            "Each rank's share of the calls that it was the last to start.",
            Query(
                expression=parts("emu_rank_last_arrivals_total", "rank"),
                legend="rank {{rank}}",
            ),
            unit="percentunit",
            top=1,
        ),
        bars(
            "Last arrivals",
            "Calls of the session that each rank was the last to start; the 16 that lead.",
            Query(
                expression=f"topk(16, {aggregate('sum', gauge('emu_rank_last_arrivals_total'), 'rank')})",
                legend="rank {{rank}}",
            ),
            unit="short",
        ),
    ),
)


def build() -> Json:
    """What ``dashboards/collectives.json`` holds."""
    choices = (
        Choice(label="collective", metric=f"{_DURATION}_count", words="Collectives and point-to-point calls to show."),
        Choice(
            label="size_class", metric=f"{_DURATION}_count", words="Sizes of calls to show; the upper bound belongs to the class."
        ),
    )
    return dashboard(
        "collectives",
        "Collectives",
        "Duration, bandwidth, jitter and arrival of collective calls.",
        (DURATION, JITTER, ARRIVAL),
        choices,
    )
