"""Metrics of simulated sessions: what they say is what happened, they only grow, and nothing is left of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from emu import ConfigError, RankLeft, Session
from emu.telemetry.catalogue import CATALOGUE, Kind

Key = tuple[str, frozenset[tuple[str, str]]]
LATE_US = 30


def step(rank: Any, n_calls: int = 2) -> None:
    """Rank 1 computes 30 us longer before each call."""
    data = np.ones(1 << 16, dtype=np.float32)
    for _ in range(n_calls):
        rank.compute(us=10 + LATE_US * (rank.index == 1))
        rank.comm.all_reduce(data, algorithm="ring")


def scraped(session: Session) -> dict[Key, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(session.metrics_text())
        for sample in family.samples
    }


def total(found: dict[Key, float], name: str, **labels: str) -> float:
    return sum(value for (other, its), value in found.items() if other == name and set(labels.items()) <= its)


def counts(found: dict[Key, float]) -> dict[Key, float]:
    """What must never go back."""
    growing = tuple(name for name, metric in CATALOGUE.items() if metric.kind in (Kind.COUNTER, Kind.HISTOGRAM))
    return {key: value for key, value in found.items() if key[0].startswith(growing)}


def test_what_is_exported_is_what_happened() -> None:
    """Calls, bytes, skew, last arrivals, compute, stalls and links are those of the run, in seconds of model time."""
    with Session("star", settings={"ranks": "4"}, driver="simulate") as session:
        session.run(step)
        found, counted = scraped(session), session.counters()
    assert total(found, "emu_collective_operations_total", status="ok") == 2
    assert total(found, "emu_collective_bytes_total", collective="all_reduce", algorithm="ring") == 2 * 4 * (1 << 16)
    assert total(found, "emu_collective_duration_seconds_count", size_class="64KiB-1MiB") == 2 * 4
    assert total(found, "emu_rank_last_arrivals_total", rank="1") == total(found, "emu_rank_last_arrivals_total") == 2
    skew_s = total(found, "emu_collective_arrival_skew_seconds_sum")
    assert 2 * LATE_US * 1e-6 <= skew_s < 2.2 * LATE_US * 1e-6
    assert total(found, "emu_rank_compute_seconds_total", rank="1") == pytest.approx(2 * 40e-6)
    spent_s = total(found, "emu_rank_stall_seconds_total")
    assert spent_s == pytest.approx(total(found, "emu_collective_duration_seconds_sum"))
    assert total(found, "emu_rank_stall_seconds_total", rank="0", cause="peer_late") >= 2 * LATE_US * 1e-6
    assert total(found, "emu_rank_stall_seconds_total", rank="1", cause="peer_late") < 0.1 * LATE_US * 1e-6
    sent = {name: statistics.wire_bytes for name, statistics in counted.links.items()}
    assert {link: total(found, "emu_link_transmit_bytes_total", link=link) for link in sent} == sent
    assert total(found, "emu_link_delay_seconds_count") == counted.frames
    busy_s = total(found, "emu_link_busy_seconds_total", link="a0->s0")
    assert 0 < busy_s < total(found, "emu_model_time_seconds_total") < busy_s + spent_s


@pytest.mark.parametrize("settings", [{}, {"switching": "infiniband"}])
def test_delay_varies_by_waits_and_by_what_impairments_add(settings: dict[str, str]) -> None:
    """Every frame counts; without impairments what is added up is the wait for the wire, and 10 us more a frame on a link that
    is 10 us longer than it should be."""

    def incast(rank: Any) -> None:
        rank.comm.gather(np.ones(1 << 16, dtype=np.float32), np.zeros(1 << 18, dtype=np.float32), root=0)

    def variation_s(*impairments: str) -> tuple[float, float, int]:
        common: dict[str, Any] = {"settings": {"ranks": "4", **settings}, "driver": "simulate", "impairments": impairments}
        with Session("star", **common) as session:
            session.run(incast)
            found, counted = scraped(session), session.counters()
        name = "emu_link_delay_variation_seconds"
        assert total(found, f"{name}_count") == counted.frames
        return total(found, f"{name}_sum"), total(found, "emu_link_queueing_seconds_total"), counted.links["a1->s0"].frames

    varied_s, waited_s, _ = variation_s()
    assert varied_s == pytest.approx(waited_s) and waited_s > 0
    varied_s, waited_s, n_frames = variation_s("a1->s0=latency,added=10us")
    assert varied_s == pytest.approx(waited_s + n_frames * 10e-6)


@pytest.mark.parametrize("settings", [{}, {"switching": "roce-dcqcn"}, {"switching": "infiniband"}])
def test_counters_go_on_over_the_runs_of_a_session(settings: dict[str, str]) -> None:
    """A begin makes the model anew, and no counter goes back; after the same run again all of them have doubled."""
    with Session(
        "star", settings={"ranks": "4", **settings}, driver="simulate", impairments=("a0->s0=throttle,factor=0.5",)
    ) as session:
        session.run(step)
        first = counts(scraped(session))
        assert total(first, "emu_link_delay_seconds_count") == session.counters().frames
        session.begin()
        assert counts(scraped(session)) == first
        session.run(step)
        second = counts(scraped(session))
        assert total(scraped(session), "emu_link_fault_active", link="a0->s0", fault="throttle") == 1
    assert second.keys() == first.keys()
    exact = {key: value for key, value in first.items() if "findings" not in key[0]}
    assert {key: second[key] for key in exact} == pytest.approx({key: 2 * value for key, value in exact.items()})


def test_calls_that_a_failure_ends_are_aborted() -> None:
    """A recv whose sender has left is not among the calls that completed."""

    def stuck(rank: Any) -> None:
        if rank.index == 0:
            rank.comm.recv(np.zeros(4), 1)
        else:
            rank.comm.send(np.zeros(4), 0)
            rank.comm.recv(np.zeros(4), 0)

    with Session("star", settings={"ranks": "2"}, driver="simulate") as session:
        with pytest.raises(RankLeft):
            session.run(stuck)
        found = scraped(session)
    done = "emu_collective_operations_total"
    assert total(found, done, collective="recv", status="aborted") == 1
    assert total(found, done, collective="recv", status="ok") == total(found, done, collective="send", status="ok") == 1


def test_fifty_sessions_leave_as_many_series_as_one() -> None:
    """Each session has its own, of the same number; the process's registry has none, and a closed session gives none."""
    before = {sample.name for family in REGISTRY.collect() for sample in family.samples}
    numbers = set()
    for seed in range(50):
        with Session("star", settings={"ranks": "2"}, driver="simulate", seed=seed, payload=False) as session:
            session.run(step, 1)
            numbers.add(len(scraped(session)))
    assert len(numbers) == 1
    assert {sample.name for family in REGISTRY.collect() for sample in family.samples} == before
    with pytest.raises(Exception, match="closed"):
        session.metrics_text()


def test_what_cannot_be_served_is_refused() -> None:
    """A simulation has no exporter, and names are one of two."""
    with pytest.raises(ConfigError, match="metrics_text"):
        Session("star", driver="simulate", metrics="auto")
    with pytest.raises(ConfigError, match="nccl-inspector"):
        Session("star", driver="simulate", metrics_names="nccl")
