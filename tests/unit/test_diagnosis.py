"""Diagnosis, rule by rule, on observations made by hand: what is seen is what is said, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter

from emu.diagnosis.diagnose import diagnose
from emu.diagnosis.finding import Cause, Finding
from emu.fabric.counters import IntakeStatistics
from emu.fabric.link import LinkStatistics
from emu.telemetry.observation import Expected, Failure, HostSeen, Kind, LinkSeen, Observation, RankSeen
from emu.telemetry.scrapes import Scrape
from emu.telemetry.timing import Timing

N_RANKS = 4
N_CALLS = 6
CALL_PS = 1_000_000
COMPUTE_PS = 500_000
RATE_BPS = 8 * 10**12  # a byte each ps
N_BYTES = 1000
LATENCY_PS = 1000
KIND = Kind(
    collective="all_reduce",
    algorithm="ring",
    root=0,
    channels=1,
    chunk_bytes=1024,
    protocol="",
    size_bytes=4096,
    members=tuple(range(N_RANKS)),
)


def link(name: str, **counted: int) -> LinkSeen:
    values = {
        "frames": 10, "payload_bytes": N_CALLS * N_BYTES, "wire_bytes": N_CALLS * N_BYTES, "resent_bytes": 0, "lost_packets": 0,
        "busy_ps": N_CALLS * N_BYTES, "queued_ps": 0, "latency_ps": 10 * LATENCY_PS, **counted,
    }  # fmt: skip
    source, _, target = name.partition("->")
    return LinkSeen(
        name=name,
        source=source,
        target=target,
        rate_bps=RATE_BPS,
        latency_ps=LATENCY_PS,
        packet_bytes=100,
        counted=LinkStatistics(name=name, **values),
    )


def timing(rank: int, number: int, **changed: int) -> Timing:
    """Ranks compute, then call, in step."""
    begin_ps = number * (COMPUTE_PS + CALL_PS)
    plain = Timing(
        rank=rank,
        communicator=1,
        n_ranks=N_RANKS,
        number=number,
        collective="all_reduce",
        algorithm="ring",
        root=0,
        channels=1,
        chunk_bytes=1024,
        protocol="",
        size_bytes=4096,
        submitted_ps=begin_ps + COMPUTE_PS,
        started_ps=begin_ps + COMPUTE_PS,
        completed_ps=begin_ps + COMPUTE_PS + CALL_PS,
        computed_ps=(number + 1) * COMPUTE_PS,
        late_ns=0,
    )
    return plain._replace(**changed)


NAMES = [name for rank in range(N_RANKS) for name in (f"a{rank}->s0", f"s0->a{rank}")]
HEALTHY = Observation(
    fabric="star",
    model=1,
    is_running=False,
    begin_ps=0,
    skew_ps=0,
    known_ps=0,
    scraped=(),
    elapsed_ps=N_CALLS * (COMPUTE_PS + CALL_PS),
    links=tuple(link(name) for name in NAMES),
    ranks=tuple(
        RankSeen(
            rank=rank,
            node=f"a{rank}",
            line_rate_bps=RATE_BPS,
            drain_rate_bps=None,
            intake=IntakeStatistics(busy_bytes=0, busy_ps=0, stuck_ps=0),
        )
        for rank in range(N_RANKS)
    ),
    timings=tuple(timing(rank, number) for number in range(N_CALLS) for rank in range(N_RANKS)),
    expected=(
        Expected(
            kind=KIND,
            time_ps=CALL_PS,
            wire_bytes=(N_BYTES,) * len(NAMES),
            best_algorithm="ring",
            best_ps=CALL_PS,
            in_order_ps=None,
        ),
    ),
    congestion=None,
    host=HostSeen(dilation=0.0, largest_lateness_ps=0, order_weight_ps=0, stopped_s={}),
    failure=None,
)


def with_link(name: str, **counted: int) -> Observation:
    return replace(HEALTHY, links=tuple(link(name, **counted) if one.name == name else one for one in HEALTHY.links))


def with_intake(**counted: int) -> Observation:
    values = {"busy_bytes": 0, "busy_ps": 0, "stuck_ps": 0, **counted}
    ranks = tuple(replace(one, intake=IntakeStatistics(**values)) if one.rank == 2 else one for one in HEALTHY.ranks)
    return replace(HEALTHY, ranks=ranks)


def with_timings(changed: dict[tuple[int, int], Timing]) -> Observation:
    return replace(HEALTHY, timings=tuple(changed.get((one.rank, one.number), one) for one in HEALTHY.timings))


def late(by_ps: int, numbers: range) -> Observation:
    """Rank 2 calls late in these calls, and all end as much later."""
    plain = {number: timing(2, number) for number in numbers}
    return with_timings(
        {
            (2, n): one._replace(submitted_ps=one.submitted_ps + by_ps, started_ps=one.started_ps + by_ps)
            for n, one in plain.items()
        }
    )


def computes_more(by_ps: int, numbers: range) -> Observation:
    """Rank 2's computation before these calls takes longer, and it calls as much later."""
    changed = {}
    for number in range(N_CALLS):
        n_slow = sum(one <= number for one in numbers)
        one = timing(2, number)
        more_ps = by_ps if number in numbers else 0
        changed[2, number] = one._replace(computed_ps=one.computed_ps + n_slow * by_ps, submitted_ps=one.submitted_ps + more_ps)
    return with_timings(changed)


def failed(error: str, text: str, *nodes: str) -> Observation:
    return replace(HEALTHY, failure=Failure(error=error, text=text, nodes=nodes))


def host(**changed: object) -> Observation:
    return replace(HEALTHY, host=replace(HEALTHY.host, **changed))  # type: ignore[arg-type]


def background(*sources: str) -> Observation:
    extra = {f"{source}->s0": 500 for source in sources} | {"s0->a3": 500 * len(sources)}
    links = tuple(
        link(one.name, wire_bytes=N_CALLS * N_BYTES + extra.get(one.name, 0), busy_ps=N_CALLS * N_BYTES + extra.get(one.name, 0))
        for one in HEALTHY.links
    )
    return replace(HEALTHY, links=links)


def expecting(**changed: object) -> Observation:
    return replace(HEALTHY, expected=(replace(HEALTHY.expected[0], **changed),))  # type: ignore[arg-type]


CASES = {
    "slow link": (with_link("a1->s0", busy_ps=2 * N_CALLS * N_BYTES), Cause.SLOW_LINK, "a1->s0"),
    "long link": (with_link("s0->a1", latency_ps=10 * LATENCY_PS * 2), Cause.LONG_LINK, "s0->a1"),
    "lossy link": (with_link("a1->s0", lost_packets=1), Cause.LOSSY_LINK, "a1->s0"),
    "link down": (with_link("a1->s0", n_outages=1, stalled_ps=500), Cause.LINK_DOWN, "a1->s0"),
    "flapping link": (with_link("a1->s0", n_outages=3, stalled_ps=500), Cause.FLAPPING_LINK, "a1->s0"),
    "late rank": (late(100_000, range(2, N_CALLS)), Cause.LATE_RANK, "rank 2 (a2)"),
    "slow compute": (computes_more(100_000, range(2, N_CALLS)), Cause.SLOW_COMPUTE, "rank 2 (a2)"),
    "stopped between calls": (computes_more(100_000, range(3, 4)), Cause.STOPPED_RANK, "rank 2 (a2)"),
    "stopped in a call": (with_intake(stuck_ps=200_000), Cause.STOPPED_RANK, "rank 2 (a2)"),
    "slow receiver": (with_intake(busy_bytes=1000, busy_ps=2000), Cause.SLOW_RECEIVER, "rank 2 (a2)"),
    "dead rank": (failed("PeerLost", "a2 was killed", "a2"), Cause.DEAD_RANK, "rank 2 (a2)"),
    "mismatch": (failed("CollectiveMismatch", "op 3: rank 2 called this; ranks 0, 1 that"), Cause.MISMATCH, "rank 2 (a2)"),
    "rank left": (failed("RankLeft", "rank 2 has left after op 16"), Cause.MISMATCH, "rank 2 (a2)"),
    "other failure": (failed("Stalled", "no progress"), Cause.UNKNOWN, "run"),
    "background": (background("a1"), Cause.BACKGROUND, "a1->a3"),
    "congested port": (background("a1", "a2"), Cause.CONGESTED_PORT, "s0->a3"),
    "lost bytes": (with_link("a1->s0", wire_bytes=N_BYTES, busy_ps=N_BYTES), Cause.CONFLICTING, "a1->s0"),
    "algorithm": (expecting(best_ps=CALL_PS // 2, best_algorithm="tree"), Cause.ALGORITHM, "all_reduce of 4 KiB"),
    "rank order": (expecting(in_order_ps=CALL_PS // 2), Cause.RANK_ORDER, "all_reduce of 4 KiB"),
    "unknown": (expecting(time_ps=CALL_PS // 2, best_ps=CALL_PS // 2), Cause.UNKNOWN, "fabric"),
    "process stopped": (host(dilation=100.0, stopped_s={"a2": 0.5}), Cause.PROCESS_STOPPED, "a2"),
    "disorder": (host(dilation=100.0, order_weight_ps=10**6), Cause.OVERLOADED, "host"),
}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    """An observation that is as expected has no finding."""
    assert diagnose(HEALTHY) == ()


@pytest.mark.parametrize("name", CASES)
def test_each_cause_is_named_with_its_component(name: str) -> None:
    """One thing that is wrong gives one finding: its cause, at its component."""
    seen, cause, component = CASES[name]
    assert [(one.cause, one.component) for one in diagnose(seen)] == [(cause, component)]


def scraped(*changed: dict[str, int]) -> Observation:
    """Healthy, scraped at even intervals, the last of which is the end; ``changed``: by how much more a1->s0 grew in each."""
    grown = {"frames": 80, "payload_bytes": 6000, "wire_bytes": 6000, "busy_ps": 6000, "latency_ps": 80 * LATENCY_PS}
    names = ("resent_bytes", "lost_packets", "queued_ps", "stalled_ps", "n_outages")
    totals = {name: grown | dict.fromkeys(names, 0) for name in NAMES}
    scrapes = []
    for number, more in enumerate(changed, 1):
        for name in NAMES if number > 1 else ():
            totals[name] = {key: value + grown.get(key, 0) for key, value in totals[name].items()}
        totals["a1->s0"] = {key: value + more.get(key, 0) for key, value in totals["a1->s0"].items()}
        links = {index: LinkStatistics(name=name, **totals[name]) for index, name in enumerate(NAMES)}
        time_ps = HEALTHY.elapsed_ps * number // len(changed)
        scrapes.append(Scrape(time_ps=time_ps, links=links, intakes={}, resent_bytes=0))
    timings = tuple(
        one._replace(submitted_ps=one.submitted_ps - COMPUTE_PS, started_ps=one.started_ps - COMPUTE_PS, computed_ps=0)
        for one in HEALTHY.timings  # which send all the time
    )
    expected = replace(HEALTHY.expected[0], time_ps=COMPUTE_PS + CALL_PS, wire_bytes=(len(changed) * N_BYTES,) * len(NAMES))
    return replace(
        HEALTHY,
        timings=timings,
        links=tuple(replace(one, counted=scrapes[-1].links[number]) for number, one in enumerate(HEALTHY.links)),
        scraped=tuple(scrapes[:-1]),
        expected=(replace(expected, best_ps=expected.time_ps),),
    )


LATE_FAULTS = {
    "slow link": ({"busy_ps": 1000}, Cause.SLOW_LINK),
    "long link": ({"latency_ps": 80 * LATENCY_PS // 2}, Cause.LONG_LINK),
    "lossy link": ({"lost_packets": 1}, Cause.LOSSY_LINK),
    "link down": ({"n_outages": 1, "stalled_ps": 10}, Cause.LINK_DOWN),
}


@pytest.mark.parametrize("name", LATE_FAULTS)
def test_what_begins_late_is_found_in_its_interval(name: str) -> None:
    """A fault of the last of 24 intervals, which the sums since the beginning dilute, is found, and its interval is said."""
    more, cause = LATE_FAULTS[name]
    seen = scraped(*[{}] * 23, more)
    (found,) = diagnose(seen)
    assert (found.cause, found.component) == (cause, "a1->s0")
    assert (found.evidence.begin_ps, found.evidence.end_ps) == (seen.elapsed_ps * 23 // 24, seen.elapsed_ps)
    if name in ("slow link", "long link"):
        assert diagnose(replace(seen, scraped=())) == ()


def test_intervals_of_a_healthy_run_have_no_finding() -> None:
    """Scrapes of counters that are as expected add nothing."""
    assert diagnose(scraped(*[{}] * 12)) == ()


def test_what_comes_and_goes_is_told_over_all_of_its_intervals() -> None:
    """Losses in the second and the fifth interval are one finding, from the one to the other; outages in two are flapping."""
    seen = scraped({}, {"lost_packets": 1}, {}, {}, {"lost_packets": 2}, {})
    (found,) = diagnose(seen)
    assert found.evidence.value.startswith("3 of")
    assert (found.evidence.begin_ps, found.evidence.end_ps) == (seen.elapsed_ps // 6, seen.elapsed_ps * 5 // 6)
    assert [one.cause for one in diagnose(scraped({}, {"n_outages": 1}, {}, {"n_outages": 1}))] == [Cause.FLAPPING_LINK]


def test_a_second_look_shows_what_came_since_the_first() -> None:
    """Between two looks at one model a fault that is over before the first is not seen; another model's look is left aside."""
    seen = scraped({"busy_ps": 4000}, {}, {})
    first = replace(seen, elapsed_ps=seen.scraped[0].time_ps, links=tuple(
        replace(one, counted=seen.scraped[0].links.get(number)) for number, one in enumerate(seen.links)
    ))  # fmt: skip
    assert [one.cause for one in diagnose(seen)] == [Cause.SLOW_LINK]
    since = seen.since(first)
    assert since.begin_ps == first.elapsed_ps and {one.completed_ps > since.begin_ps for one in since.timings} == {True}
    assert not [one for one in diagnose(replace(since, is_running=True)) if one.cause is Cause.SLOW_LINK]
    assert seen.since(replace(first, model=2)) is seen


def test_calls_under_way_are_no_traffic_of_others() -> None:
    """While a run goes on, bytes of calls that nobody has completed yet are no background traffic; much more than that is."""
    assert diagnose(replace(background("a1"), is_running=True)) == ()
    n_bytes = {name: N_CALLS * N_BYTES + 9000 * (name in ("a1->s0", "s0->a3")) for name in NAMES}
    links = tuple(link(name, wire_bytes=n_bytes[name], busy_ps=n_bytes[name]) for name in NAMES)
    assert [one.cause for one in diagnose(replace(HEALTHY, links=links, is_running=True))] == [Cause.BACKGROUND]


def test_timings_that_are_not_kept_make_no_traffic() -> None:
    """Of a long run, whose first timings are gone, bytes are judged from when each call has its timing."""
    gone_ps = HEALTHY.timings[4 * 3].completed_ps - 1
    seen = replace(HEALTHY, timings=HEALTHY.timings[4 * 3 :], known_ps=gone_ps)
    assert diagnose(seen) == ()


def test_a_rank_that_is_late_from_a_call_on_is_late_however_long_the_run() -> None:
    """Four late calls of many in a row are a late rank, not one that was stopped once."""
    n_calls = 40
    timings = tuple(timing(rank, number) for number in range(n_calls) for rank in range(N_RANKS))
    by_ps = 100_000
    timings = tuple(
        one._replace(submitted_ps=one.submitted_ps + by_ps, started_ps=one.started_ps + by_ps)
        if one.rank == 2 and one.number >= n_calls - 4
        else one
        for one in timings
    )
    links = tuple(link(name, wire_bytes=n_calls * N_BYTES, busy_ps=n_calls * N_BYTES) for name in NAMES)
    seen = replace(HEALTHY, timings=timings, links=links, elapsed_ps=n_calls * (COMPUTE_PS + CALL_PS))
    assert [(one.cause, one.component) for one in diagnose(seen)] == [(Cause.LATE_RANK, "rank 2 (a2)")]


def test_frames_without_bytes_are_no_slow_link() -> None:
    """A link that carried a barrier's empty frames alone, a picosecond each, has no rate to be judged by."""
    empty = replace(link("s0->a9", wire_bytes=0, busy_ps=10), source="s0", target="s1")
    expected = replace(HEALTHY.expected[0], wire_bytes=(*HEALTHY.expected[0].wire_bytes, 0))
    assert diagnose(replace(HEALTHY, links=(*HEALTHY.links, empty), expected=(expected,))) == ()


def test_calls_that_wait_for_those_before_them_are_not_slow() -> None:
    """Calls that were all made at once, and ran one after the other, took no longer than expected."""
    first = {rank: timing(rank, 0).submitted_ps for rank in range(N_RANKS)}
    timings = tuple(one._replace(submitted_ps=first[one.rank], computed_ps=COMPUTE_PS) for one in HEALTHY.timings)
    assert diagnose(replace(HEALTHY, timings=timings)) == ()


def test_two_faults_are_two_findings_ranked_by_what_they_cost() -> None:
    """A link that costs more than another comes first, and the shares sum to no more than all that was lost."""
    slow = {"a1->s0": 2, "s0->a2": 5}
    links = tuple(link(one.name, busy_ps=slow.get(one.name, 1) * N_CALLS * N_BYTES) for one in HEALTHY.links)
    found = diagnose(replace(expecting(time_ps=CALL_PS // 2, best_ps=CALL_PS // 2), links=links))
    assert [one.component for one in found] == ["s0->a2", "a1->s0"]
    assert found[0].share == pytest.approx(0.8)
    assert sum(one.share for one in found) == pytest.approx(1.0)


def test_a_host_that_is_late_is_reported_as_such_and_as_nothing_else() -> None:
    """Lateness of the emulation is no fault of the fabric, however large."""
    timings = tuple(one._replace(late_ns=10**9) for one in HEALTHY.timings)
    seen = replace(host(dilation=100.0), timings=timings)
    assert [(one.cause, one.component) for one in diagnose(seen)] == [(Cause.OVERLOADED, "host")]


@pytest.mark.parametrize(("late_share", "first"), [(0.03, Cause.SLOW_LINK), (30.0, Cause.OVERLOADED)])
def test_a_late_host_has_its_place_by_what_it_cost(late_share: float, first: Cause) -> None:
    """A host that is hardly late stands below a link at half its rate; one that is late by many runs stands above."""
    late_ns = round(late_share * N_CALLS * (COMPUTE_PS + CALL_PS) / 10)  # at dilation 100
    timings = tuple(one._replace(late_ns=late_ns) for one in HEALTHY.timings)
    slow = with_link("a1->s0", busy_ps=2 * N_CALLS * N_BYTES)
    seen = replace(expecting(time_ps=CALL_PS // 2, best_ps=CALL_PS // 2), links=slow.links, timings=timings)
    found = diagnose(replace(seen, host=host(dilation=100.0).host))
    assert found[0].cause is first
    assert {one.cause for one in found} == {Cause.SLOW_LINK, Cause.OVERLOADED}
    assert sum(one.share for one in found) == pytest.approx(1.0)


def test_model_times_that_the_host_has_disturbed_blame_no_link() -> None:
    """Where frames were taken out of order, a slow link is not believed."""
    seen = replace(with_link("a1->s0", busy_ps=2 * N_CALLS * N_BYTES), host=host(dilation=1.0, order_weight_ps=10**6).host)
    assert [one.cause for one in diagnose(seen)] == [Cause.OVERLOADED]


def test_flows_that_meet_are_named() -> None:
    """A congested port comes with who meets there."""
    (found,) = diagnose(background("a1", "a2"))
    assert found.flows == ("a1->a3", "a2->a3", "all_reduce")
    assert str(found).endswith("a1->a3, a2->a3, all_reduce meet there")


def test_a_finding_has_value_expectation_and_interval() -> None:
    """The evidence of a late rank says by how much, since when, and what was to be expected."""
    (found,) = diagnose(late(100_000, range(2, N_CALLS)))
    assert isinstance(found, Finding)
    assert found.evidence.value == "100 ns late"
    assert "as the median rank" in found.evidence.expected
    assert (found.evidence.begin_ps, found.evidence.end_ps) == (3_500_000, 9_000_000)
    assert found.confidence > 0.5


def test_the_diagnosis_sees_nothing_of_an_injector() -> None:
    """What it is given has no fault, impairment, mark or account, at any depth."""
    text = str(TypeAdapter(Observation).json_schema()).lower()
    assert not [word for word in ("fault_", "injection", "impair", "mark_", "marks'", "account", "hops") if word in text]
    assert {field.name for field in fields(Observation)} == {
        "fabric", "model", "is_running", "begin_ps", "elapsed_ps", "skew_ps", "known_ps", "scraped", "links", "ranks", "timings",
        "expected", "congestion", "host", "failure",
    }  # fmt: skip


def test_an_observation_survives_json() -> None:
    """What was recorded, or asked of a testbed, is what was seen."""
    adapter = TypeAdapter(Observation)
    assert adapter.validate_json(adapter.dump_json(HEALTHY)) == HEALTHY
