"""The few forms of query that the dashboards are made of.

Law: what is modelled is divided by the model time that passed, never by wall time: rates of a dilated fabric would else be too
low by the dilation.  Where no model time passes there is no value, rather than a zero.
"""

from __future__ import annotations

SESSION = 'session=~"$session"'


def gauge(metric: str, *matchers: str) -> str:
    """The value itself, of the chosen sessions."""
    return f"{metric}{{{', '.join((SESSION, *matchers))}}}"


def counter_rate(metric: str, *matchers: str) -> str:
    """Growth for a wall second."""
    return f"rate({gauge(metric, *matchers)}[$__rate_interval])"


def per_model_second(metric: str, *matchers: str) -> str:
    """Growth for a model second; of a counter of model seconds, the share of the time."""
    passed = counter_rate("emu_model_time_seconds_total")
    return f"{counter_rate(metric, *matchers)} / on (job, instance) group_left () ({passed} > 0)"


def aggregate(operation: str, expression: str, *labels: str) -> str:
    """``sum``, ``max`` or ``avg`` by labels; by none, over all."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"{operation}{by} ({expression})"


def quantile(share: float, histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """A quantile of what a histogram counted of late; 1 is the upper bound of the largest."""
    counts = aggregate("sum", counter_rate(f"{histogram}_bucket", *matchers), "le", *by)
    return f"histogram_quantile({share:g}, {counts})"


def parts(metric: str, label: str, *matchers: str) -> str:
    """What each value of a label has of the growth of all; together 1."""
    grown = counter_rate(metric, *matchers)
    return f"{aggregate('sum', grown, label)} / ignoring ({label}) group_left () ({aggregate('sum', grown)} > 0)"


def lately(metric: str, *matchers: str) -> str:
    """Growth over a few scrapes before each point of a graph: for what is rare."""
    return f"increase({gauge(metric, *matchers)}[$__rate_interval])"


def over_range(metric: str, *matchers: str) -> str:
    """Growth over the time that the dashboard shows."""
    return f"increase({gauge(metric, *matchers)}[$__range])"
