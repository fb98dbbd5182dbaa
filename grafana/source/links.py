"""Links: how full they are, what waits for them, what they lose, and what was done to them."""

from __future__ import annotations

from grafana.source.dashboard import Choice, Section, dashboard
from grafana.source.panels import Json, Query, buckets, grid, matrix, states, timeseries
from grafana.source.promql import SESSION, aggregate, counter_rate, gauge, per_model_second, quantile

_LINK = 'link=~"$link"'
_TIER = 'tier=~"$tier"'
_INFO = f"emu_link_info{{{SESSION}, {_TIER}}}"
_ACTIVE = {"0": ("off", "green"), "1": ("on", "orange")}


def _joined(expression: str, *labels: str) -> str:
    """With labels of the link beside its values."""
    return f"({expression}) * on (job, instance, link) group_left ({', '.join(labels)}) {_INFO}"


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(expression=quantile(share, metric, _TIER, by=("tier",)), legend=f"tier {{{{tier}}}} {name}")
        for share, name in ((0.5, "median"), (0.99, "p99"), (1, "longest"))
    )


_BUSY = _joined(per_model_second("emu_link_busy_seconds_total", _LINK), "src", "dst", "tier")
_WAITING = _joined(per_model_second("emu_link_queueing_seconds_total", _LINK), "src", "dst", "tier")
_BYTES = _joined(per_model_second("emu_link_transmit_bytes_total", _LINK), "tier")
_CAPACITY = _joined(gauge("emu_link_capacity_bytes_per_second", _LINK), "tier")
_LOST = _joined(per_model_second("emu_link_lost_packets_total", _LINK), "tier")

LOAD = Section(
    title="Load",
    reading=(
        "**Utilisation** is the share of the model time for which bytes took the wire. Links of one tier do the same work: the "
        "fullest far above the mean is a hot link (flows that share it, or too few links), the mean near 1 is a fabric that is "
        "too small. Tier 1 is at the accelerators."
    ),
    panels=(
        timeseries(
            "Utilisation by tier",
            "Fullest link and mean of the links of each tier.",
            Query(expression=aggregate("max", _BUSY, "tier"), legend="tier {{tier}}, fullest"),
            Query(expression=aggregate("avg", _BUSY, "tier"), legend="tier {{tier}}, mean"),
            unit="percentunit",
            top=1,
        ),
        timeseries(
            "Bytes on the wire by tier",
            "Payload, headers and what was sent again, for a model second: busiest link, mean, and what a link can carry.",
            Query(expression=aggregate("max", _BYTES, "tier"), legend="tier {{tier}}, busiest link"),
            Query(expression=aggregate("avg", _BYTES, "tier"), legend="tier {{tier}}, mean"),
            Query(expression=aggregate("max", _CAPACITY, "tier"), legend="tier {{tier}}, capacity"),
            unit="Bps",
        ),
        grid(
            "Utilisation, link by time",
            "Share of the model time for which each link was busy.",
            Query(expression=_BUSY, legend="{{link}}"),
            unit="percentunit",
            top=1,
        ),
        matrix(
            "Utilisation, node by node",
            "From the row's node to the column's, now: a full row is a sender, a full column a receiver.",
            aggregate("max", _BUSY, "src", "dst"),
            row="src",
            column="dst",
            unit="percentunit",
            top=1,
        ),
        matrix(
            "Frames waiting, node by node",
            "Mean number of frames that waited for the wire, now (time waited over time passed).",
            aggregate("max", _WAITING, "src", "dst"),
            row="src",
            column="dst",
            unit="short",
        ),
    ),
)

DELAY = Section(
    title="Delay",
    reading=(
        "**Delay** is from a frame's head at the link to its head at the far end: latency, the wait for the wire, and what "
        "impairments add. An idle fabric shows one thin band for each tier; a band that climbs is queueing. **Variation** is the "
        "part that the link alone does not take: 0 on an idle fabric without impairments."
    ),
    panels=(
        timeseries(
            "Delay by tier",
            "Median, 99th percentile and longest (model time).",
            *_quantiles("emu_link_delay_seconds"),
            unit="s",
            width=8,
            logarithmic=True,
        ),
        timeseries(
            "Delay variation by tier",
            "Median, 99th percentile and longest of waits for the wire and what impairments add (model time).",
            *_quantiles("emu_link_delay_variation_seconds"),
            unit="s",
            width=8,
            logarithmic=True,
        ),
        buckets(
            "Delays of all frames",
            "Darker where more frames fell (model time).",
            Query(
                expression=aggregate("sum", counter_rate("emu_link_delay_seconds_bucket", _TIER), "le"),
                legend="{{le}}",
                buckets=True,
            ),
            unit="s",
            width=8,
        ),
        timeseries(
            "Frames waiting",
            "Mean number of frames that wait for the wire of a link: the longest line, and the mean of the tier.",
            Query(expression=aggregate("max", _WAITING, "tier"), legend="tier {{tier}}, longest line"),
            Query(expression=aggregate("avg", _WAITING, "tier"), legend="tier {{tier}}, mean"),
            unit="short",
        ),
        timeseries(
            "Packets lost",
            "Packets that damaged links lost, for a model second: all of a tier, and the worst link.",
            Query(expression=aggregate("sum", _LOST, "tier"), legend="tier {{tier}}, all"),
            Query(expression=aggregate("max", _LOST, "tier"), legend="tier {{tier}}, worst link"),
            unit="pps",
        ),
    ),
)

FAULTS = Section(
    title="Faults",
    reading="What was injected, for how long. Anything seen outside of these bands has another cause. A quiet panel: no fault.",
    panels=(
        states(
            "Faults",
            "Injected faults that are on, by link and by rank.",
            Query(expression=f"max by (link, fault) ({gauge('emu_link_fault_active', _LINK)})", legend="{{link}} {{fault}}"),
            Query(expression=f"max by (rank, fault) ({gauge('emu_rank_fault_active')})", legend="rank {{rank}} {{fault}}"),
            texts=_ACTIVE,
        ),
    ),
)


def build() -> Json:
    """What ``dashboards/links.json`` holds."""
    choices = (
        Choice(label="tier", metric="emu_link_info", words="Hops from the nearest accelerator to the link's upper end."),
        Choice(label="link", metric="emu_link_info", words="Directed links to show."),
    )
    return dashboard("links", "Links", "Utilisation, delay, loss and faults of links.", (LOAD, DELAY, FAULTS), choices)
