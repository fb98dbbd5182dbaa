"""Stalls: on what each rank's calls spend their time, and what its adapter has to repeat."""

from __future__ import annotations

from grafana.source.dashboard import Choice, Section, dashboard
from grafana.source.panels import Json, Query, grid, matrix, timeseries
from grafana.source.promql import aggregate, parts, per_model_second

_RANK = 'rank=~"$rank"'
_CAUSE = 'cause=~"$cause"'
_STALL = "emu_rank_stall_seconds_total"
_SHARE = per_model_second(_STALL, _RANK, _CAUSE)
_COMPUTE = per_model_second("emu_rank_compute_seconds_total", _RANK)

CAUSES = Section(
    title="By cause",
    reading=(
        "Every picosecond of a call is given to one cause, so that the parts are the whole. `peer_late`: another rank had not "
        "begun. `serialisation`, `propagation`: the fabric at work, and not a fault. `queueing`, `pause`, `credit`: "
        "contention, see *Switches*. `retransmission`: loss, see *Links*. `endpoint`: the accelerator took data in slowly."
    ),
    panels=(
        timeseries(
            "Time in calls by cause",
            "Share of the model time that calls of the ranks shown took; the parts add up to 1.",
            Query(
                expression=parts(_STALL, "cause", _RANK),
                legend="{{cause}}",
            ),
            unit="percentunit",
            stacked=True,
            top=1,
        ),
        timeseries(
            "Worst rank by cause",
            "For each cause, its share of the model time at the rank where it is largest. Calls that overlap add up.",
            Query(expression=aggregate("max", _SHARE, "cause"), legend="{{cause}}"),
            unit="percentunit",
        ),
        matrix(
            "Rank by cause, now",
            "Share of the model time. A row that differs is a rank in trouble; a column is a fabric in trouble.",
            aggregate("sum", _SHARE, "rank", "cause"),
            row="rank",
            column="cause",
            unit="percentunit",
            width=24,
        ),
        grid(
            "Time in calls, rank by time",
            "Share of the model time that the chosen causes took; choose one to see when it struck whom.",
            Query(expression=aggregate("sum", _SHARE, "rank"), legend="rank {{rank}}"),
            unit="percentunit",
        ),
    ),
)

RANKS = Section(
    title="Ranks",
    reading=(
        "A rank that **computes** longer than the others makes them wait: `peer_late` grows everywhere but there. Repeats and "
        "timeouts belong to the sender that had to repeat, notifications to both ends."
    ),
    panels=(
        timeseries(
            "Declared computation",
            "Share of the model time: the rank that computes most, and the mean.",
            Query(expression=aggregate("max", _COMPUTE), legend="most"),
            Query(expression=aggregate("avg", _COMPUTE), legend="mean"),
            unit="percentunit",
        ),
        timeseries(
            "Packets sent again",
            "End to end, for a model second, by rank; and retransmission timeouts.",
            Query(expression=per_model_second("emu_rank_retransmitted_packets_total", _RANK), legend="rank {{rank}} sent again"),
            Query(expression=per_model_second("emu_rank_ack_timeouts_total", _RANK), legend="rank {{rank}} timeouts"),
            unit="pps",
        ),
        timeseries(
            "Congestion notifications",
            "For a model second, by rank, sent and handled.",
            Query(expression=per_model_second("emu_rank_cnp_packets_total", _RANK), legend="rank {{rank}} {{direction}}"),
            unit="pps",
        ),
        timeseries(
            "Packets without room",
            "Packets that found the rank's receive buffer full, for a model second.",
            Query(expression=per_model_second("emu_rank_discarded_packets_total", _RANK), legend="rank {{rank}}"),
            unit="pps",
        ),
    ),
)


def build() -> Json:
    """What ``dashboards/stalls.json`` holds."""
    choices = (
        Choice(label="rank", metric=_STALL, words="Ranks to show."),
        Choice(label="cause", metric=_STALL, words="Causes to show where one panel shows their sum."),
    )
    return dashboard("stalls", "Stalls", "Time of each rank's calls by cause.", (CAUSES, RANKS), choices)
