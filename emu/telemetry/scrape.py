"""Scrape: what an exporter of emu's says now, read back by the names of :mod:`emu.telemetry.catalogue`."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from emu.telemetry.catalogue import CATALOGUE

Samples = dict[str, dict[tuple[str, ...], float]]
"""Sample name -> label values in the catalogue's order (and ``le`` last, of a bucket) -> value."""


def scrape(urls: Iterable[str], *, timeout_s: float) -> Samples:
    """All exporters of a session together; what several of them have is the largest of it.  Raises OSError, ValueError."""
    found: Samples = {}
    for url in urls:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            for name, values in parse(answer.read().decode()).items():
                merged = found.setdefault(name, {})
                for labels, value in values.items():
                    merged[labels] = max(value, merged.get(labels, value))
    return found


def parse(text: str) -> Samples:
    """An exposition.  Raises ValueError for what is none."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metric = CATALOGUE.get(sample.name) or CATALOGUE.get(family.name)
            if metric is not None:
                labels = (*metric.labels, "le") if sample.name.endswith("_bucket") else metric.labels
                found.setdefault(sample.name, {})[tuple(sample.labels.get(label, "") for label in labels)] = sample.value
    return found
