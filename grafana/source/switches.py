"""Switches: queues, pauses, credits, marks and drops, on fabrics with a ``switching``."""

from __future__ import annotations

from grafana.source.dashboard import Choice, Section, dashboard
from grafana.source.panels import Json, Query, bars, grid, timeseries
from grafana.source.promql import aggregate, gauge, lately, per_model_second

_QUEUE = ('switch=~"$switch"', 'priority=~"$priority"')
_NAMED = "{{port}} p{{priority}}"
_EITHER = f"{_NAMED} {{{{direction}}}}"
_BYTES = gauge("emu_switch_queue_bytes", *_QUEUE)
_PAUSED = per_model_second("emu_switch_pfc_pause_seconds_total", *_QUEUE)
_CREDIT = per_model_second("emu_switch_credit_wait_seconds_total", *_QUEUE)


def _by_switch(metric: str) -> str:
    return aggregate("sum", per_model_second(metric, *_QUEUE), "switch")


QUEUES = Section(
    title="Queues",
    reading=(
        "A port is named by the link that leaves it. **One** full queue to an accelerator is incast, one to a switch is a hot "
        "link, several are congestion. The present value is a sample; the peak is the most since the session began. Empty on a "
        "fabric without `switching`; pauses, credits, marks and trims only where a traffic class has them."
    ),
    panels=(
        timeseries(
            "Queued bytes",
            "Fullest queue, and all queues of each switch together.",
            Query(expression=aggregate("max", _BYTES, "switch"), legend="{{switch}}, fullest queue"),
            Query(expression=aggregate("sum", _BYTES, "switch"), legend="{{switch}}, all queues"),
            unit="bytes",
        ),
        bars(
            "Highest peaks",
            "The most that waited at once; the 16 queues that lead.",
            Query(expression=f"topk(16, {gauge('emu_switch_queue_peak_bytes', *_QUEUE)})", legend=_NAMED),
            unit="bytes",
        ),
        grid(
            "Queued bytes, port by time", "Bytes that waited at each port.", Query(expression=_BYTES, legend=_NAMED), unit="bytes"
        ),
    ),
)

PAUSES = Section(
    title="Pauses and credits",
    reading=(
        "A port that **received** pauses had to wait; what it **sent** stopped the far end of its link. Follow the pauses hop "
        "by hop to the node that sends and receives none: it is the cause, or stands before a slow accelerator. Many short "
        "pauses are flow control at work; a share near 1 is a storm. With credits the same story is told by the wait for "
        "credits."
    ),
    panels=(
        grid(
            "Paused, port by time",
            "Share of the model time for which each port was stopped (received), or stopped its far end (sent).",
            Query(expression=_PAUSED, legend=_EITHER),
            unit="percentunit",
            top=1,
        ),
        timeseries(
            "Paused share",
            "Worst port, and mean of the ports of each switch, received and sent.",
            Query(expression=aggregate("max", _PAUSED, "switch", "direction"), legend="{{switch}} {{direction}}, worst port"),
            Query(expression=aggregate("avg", _PAUSED, "switch", "direction"), legend="{{switch}} {{direction}}, mean"),
            unit="percentunit",
            top=1,
        ),
        timeseries(
            "Length of a pause",
            "Model time paused over the number of pauses that began, by port: many short, or one long.",
            Query(
                expression=(
                    f"{lately('emu_switch_pfc_pause_seconds_total', *_QUEUE)}"
                    f" / ({lately('emu_switch_pfc_pause_transitions_total', *_QUEUE)} > 0)"
                ),
                legend=_EITHER,
            ),
            unit="s",
        ),
        timeseries(
            "Pause frames",
            "For a model second, by switch, received and sent; refreshes are counted.",
            Query(
                expression=aggregate(
                    "sum", per_model_second("emu_switch_pfc_pause_frames_total", *_QUEUE), "switch", "direction"
                ),
                legend="{{switch}}, {{direction}}",
            ),
            unit="pps",
        ),
        timeseries(
            "Waiting for credits",
            "Share of the model time with data and a free wire but no credit: worst port, and mean of the switch.",
            Query(expression=aggregate("max", _CREDIT, "switch"), legend="{{switch}}, worst port"),
            Query(expression=aggregate("avg", _CREDIT, "switch"), legend="{{switch}}, mean"),
            unit="percentunit",
            top=1,
        ),
    ),
)

MARKS = Section(
    title="Marks, drops, watchdog",
    reading=(
        "Marks are early warnings that senders obey. Drops and trims mean that the warning came too late or was not there. On "
        "a lossless class any drop is an error of configuration, or the watchdog breaking a storm."
    ),
    panels=(
        timeseries(
            "Marked packets",
            "Packets marked by ECN, for a model second.",
            Query(expression=_by_switch("emu_switch_ecn_marked_packets_total"), legend="{{switch}}"),
            unit="pps",
            width=8,
        ),
        timeseries(
            "Dropped and trimmed packets",
            "For a model second: no room in the buffer, or dropped by the watchdog; cut to the header.",
            Query(expression=_by_switch("emu_switch_discarded_packets_total"), legend="{{switch}}, dropped"),
            Query(expression=_by_switch("emu_switch_trimmed_packets_total"), legend="{{switch}}, trimmed"),
            unit="pps",
            width=8,
        ),
        timeseries(
            "Pause storms",
            "Storms that the watchdog detected, and found over, within a few scrapes.",
            *(
                Query(
                    expression=aggregate("sum", lately(f"emu_switch_pfc_watchdog_{what}_total", *_QUEUE), "switch"),
                    legend=f"{{{{switch}}}}, {words}",
                )
                for what, words in (("storms", "detected"), ("restorations", "over"))
            ),
            unit="short",
            width=8,
        ),
    ),
)


def build() -> Json:
    """What ``dashboards/switches.json`` holds."""
    choices = (
        Choice(label="switch", metric="emu_switch_queue_bytes", words="Switches to show."),
        Choice(label="priority", metric="emu_switch_queue_bytes", words="Priorities of traffic classes to show."),
    )
    return dashboard(
        "switches", "Switches", "Queues, pauses, credits, marks and drops of switches.", (QUEUES, PAUSES, MARKS), choices
    )
