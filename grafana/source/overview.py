"""Overview: is it healthy, can its numbers be trusted, where does the time go."""

from __future__ import annotations

from grafana.source.dashboard import Section, dashboard
from grafana.source.panels import BAD_AT_ONE, Json, Query, bars, stat, table, timeseries
from grafana.source.promql import aggregate, gauge, lately, over_range, parts, per_model_second

_COUNTS = 'reason!="backpressure"'
"""Full sockets alone spoil nothing."""
_FIRING = 'sum(ALERTS{alertname=~"Emu.*", alertstate="firing", session=~"$session"}) or vector(0)'
_ACTIVE_FAULTS = f"count({gauge('emu_link_fault_active')} > 0 or {gauge('emu_rank_fault_active')} > 0) or vector(0)"
_DEAD = f"count({gauge('emu_actor_up')} == 0) or vector(0)"

HEALTH = Section(
    title="Health",
    reading=(
        "**Read from the left.** Dead actors or violations first: with them no other number counts. Then active faults: what "
        "was injected explains what is seen. Times of the fabric are *model time*: what it would take; the wall clock only "
        "stands in *Fidelity*. Marks over the graphs show for how long a fault was on."
    ),
    panels=(
        stat(
            "Actors up", "Actors that answer, or are only slow.", Query(expression=f"sum({gauge('emu_actor_up')})"), unit="none"
        ),
        stat(
            "Actors dead",
            "Actors that died. Their series end; the run cannot be trusted.",
            Query(expression=_DEAD),
            unit="none",
            thresholds=BAD_AT_ONE,
        ),
        stat(
            "Fidelity violations",
            "What the host did to the run in the time shown: frames out of order, calls late.",
            Query(expression=f"sum({over_range('emu_fidelity_violations_total', _COUNTS)})"),
            unit="short",
            thresholds=BAD_AT_ONE,
        ),
        stat(
            "Active faults",
            "Faults that are on now, on links and ranks.",
            Query(expression=_ACTIVE_FAULTS),
            unit="none",
            thresholds=((None, "text"), (1, "orange")),
        ),
        stat(
            "Alerts firing",
            "Of the rules in deploy/prometheus/rules.",
            Query(expression=_FIRING),
            unit="none",
            thresholds=BAD_AT_ONE,
        ),
        stat(
            "Dilation",
            "Wall seconds for a model second, the most of the sessions; 0 is unpaced.",
            Query(expression=f"max({gauge('emu_dilation_ratio')})"),
            unit="none",
        ),
        table(
            "Sessions",
            "The testbeds that are scraped.",
            gauge("emu_run_info"),
            columns=("session", "fabric", "driver", "ranks", "seed"),
            width=16,
            height=5,
        ),
        stat(
            "Model time",
            "How far the fabric has got in its own time.",
            Query(expression=f"max({gauge('emu_model_time_seconds_total')})"),
            unit="s",
            height=5,
        ),
        stat(
            "Calls",
            "Collective and point-to-point calls that completed in the time shown.",
            Query(expression=f"sum({over_range('emu_collective_operations_total')})"),
            unit="short",
            height=5,
        ),
    ),
)

WHERE = Section(
    title="Where the time goes",
    reading=(
        "Bus bandwidth that falls while a *cause* grows names the suspect; the links beside it say where. `peer_late` means "
        "that a rank waited for another to begin: look at *Stalls* for who. `serialisation` and `propagation` are the fabric "
        "at work."
    ),
    panels=(
        timeseries(
            "Bus bandwidth",
            "Of the last call of each kind, at the rank that completed last (model time).",
            Query(
                expression=aggregate("max", gauge("emu_collective_bus_bandwidth_bytes_per_second"), "collective", "size_class"),
                legend="{{collective}} {{size_class}}",
            ),
            unit="Bps",
        ),
        timeseries(
            "Time in calls by cause",
            "Share of the model time that calls took, over all ranks.",
            Query(
                expression=parts("emu_rank_stall_seconds_total", "cause"),
                legend="{{cause}}",
            ),
            unit="percentunit",
            stacked=True,
            top=1,
        ),
        bars(
            "Busiest links",
            "Share of the model time for which bytes took the wire; the ten that lead.",
            Query(
                expression=f"topk(10, {per_model_second('emu_link_busy_seconds_total')})",
                legend="{{link}}",
            ),
            unit="percentunit",
            top=1,
        ),
        timeseries(
            "Findings",
            "How often the counters began to point to a cause, within a few scrapes.",
            Query(
                expression=aggregate("sum", lately("emu_diagnosis_findings_total"), "cause", "component_kind"),
                legend="{{cause}}, {{component_kind}}",
            ),
            unit="short",
        ),
    ),
)


def build() -> Json:
    """What ``dashboards/overview.json`` holds."""
    return dashboard("overview", "Overview", "Health of emulated fabrics, and where their time goes.", (HEALTH, WHERE))
