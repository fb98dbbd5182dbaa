"""Fidelity: whether the host kept pace, and whether what is shown is fresh."""

from __future__ import annotations

from grafana.source.dashboard import Choice, Section, dashboard
from grafana.source.panels import BAD_AT_ONE, Json, Query, buckets, stat, states, timeseries
from grafana.source.promql import aggregate, counter_rate, gauge, lately, quantile

_ROLE = 'role=~"$role"'
_JOB = 'job="emu"'
_LAG = "emu_pacer_lag_seconds"
_PACE = f"{counter_rate('emu_model_time_seconds_total')} * on (job, instance) ({gauge('emu_dilation_ratio')} > 0)"
_AGE = f"time() - {gauge('emu_exporter_last_update_timestamp_seconds')}"

PACE = Section(
    title="Pace",
    reading=(
        "**Only here the clock is the wall's.** An emulator's lie is to print what the host made; these panels tell. Lag is "
        "harmless while calls end on time (the model carries on from the due time); violations are not. More dilation, or "
        "fewer ranks, mends both."
    ),
    panels=(
        timeseries(
            "Lag",
            "How late loops took up what was due: median, 99th percentile, longest (wall clock).",
            *(
                Query(expression=quantile(share, _LAG, _ROLE, by=("role",)), legend=f"{{{{role}}}} {name}")
                for share, name in ((0.5, "median"), (0.99, "p99"), (1, "longest"))
            ),
            unit="s",
            logarithmic=True,
        ),
        buckets(
            "Lag of all events",
            "Darker where more events fell (wall clock).",
            Query(expression=aggregate("sum", counter_rate(f"{_LAG}_bucket", _ROLE), "le"), legend="{{le}}", buckets=True),
            unit="s",
        ),
        timeseries(
            "Violations",
            "What the host did to the run within a few scrapes, by reason.",
            Query(expression=aggregate("sum", lately("emu_fidelity_violations_total"), "reason"), legend="{{reason}}"),
            unit="short",
            width=8,
        ),
        timeseries(
            "Pace",
            "Model seconds for a wall second, times the dilation: 1 while a run keeps pace without a pause, 0 between runs.",
            Query(expression=aggregate("min", _PACE, "instance"), legend="{{instance}}"),
            unit="percentunit",
            width=8,
        ),
        timeseries(
            "Dilation",
            "Wall seconds for a model second; 0 is unpaced.",
            Query(expression=aggregate("max", gauge("emu_dilation_ratio"), "instance"), legend="{{instance}}"),
            unit="none",
            width=8,
        ),
    ),
)

FRESH = Section(
    title="Actors and exporters",
    reading=(
        "A dead actor is shown as dead, and its other series end, rather than standing still. An **age** that grows while the "
        "actor is up is an actor too busy to answer: its values are the last that it gave."
    ),
    panels=(
        stat(
            "Actors dead",
            "Actors that died.",
            Query(expression=f"count({gauge('emu_actor_up')} == 0) or vector(0)"),
            unit="none",
            thresholds=BAD_AT_ONE,
        ),
        stat(
            "Exporters down",
            "Exporters that Prometheus could not scrape.",
            Query(expression=f"count({gauge('up', _JOB)} == 0) or vector(0)"),
            unit="none",
            thresholds=BAD_AT_ONE,
        ),
        stat(
            "Oldest values",
            "Age of the values of the actor that was read longest ago (wall clock).",
            Query(expression=f"max({_AGE})"),
            unit="s",
            thresholds=((None, "green"), (30, "red")),
        ),
        stat(
            "Samples",
            "Samples of the largest exporter; the catalogue bounds them by the size of the fabric.",
            Query(expression=f"max({gauge('scrape_samples_scraped', _JOB)})"),
            unit="short",
        ),
        stat(
            "Scrape",
            "Longest time that an exporter took to answer (wall clock).",
            Query(expression=f"max({gauge('scrape_duration_seconds', _JOB)})"),
            unit="s",
        ),
        stat(
            "Version",
            "Of emu.",
            Query(expression=gauge("emu_build_info"), legend="{{version}}"),
            unit="none",
            named=True,
        ),
        states(
            "Actors",
            "Which actors are up.",
            Query(expression=f"max by (actor) ({gauge('emu_actor_up')})", legend="{{actor}}"),
            texts={"0": ("dead", "red"), "1": ("up", "green")},
            width=12,
            height=8,
        ),
        timeseries(
            "Age of values",
            "Since each actor was read: oldest, and mean (wall clock).",
            Query(expression=f"max({_AGE})", legend="oldest"),
            Query(expression=f"avg({_AGE})", legend="mean"),
            unit="s",
        ),
    ),
)


def build() -> Json:
    """What ``dashboards/fidelity.json`` holds."""
    choices = (Choice(label="role", metric=f"{_LAG}_count", words="Loops to show: of accelerators, of switches."),)
    return dashboard(
        "fidelity", "Fidelity", "Whether the host kept pace, and whether the values are fresh.", (PACE, FRESH), choices
    )
