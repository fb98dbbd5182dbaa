"""Laws of the packet plane over random small fabrics, traffic, disciplines and faults."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packet_cases import (
    KIB,
    Flow,
    Outcome,
    assert_at_rest,
    credited,
    dropping,
    exchange,
    leaf_spine,
    ring,
    run,
    star,
    switching,
    traffic_class,
)

from emu.fabric.buffer import IngressQueue, SharedBuffer
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Recovery, Switching, TrafficClass

LOSSES = ("", "*=loss,probability=0.01", "*=loss,packets=0+3+4+17")
DELAYS = ("", "*=jitter,distribution=uniform,bound=1us,interval=2us", "*=latency,added=500ns")
CAPACITIES = ("", "*->s0=flap,up=35us,down=5us", "a0->*=throttle,factor=0.25")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fabric with its traffic and faults."""

    fabric: Topology
    flows: list[Flow]
    impair: list[str]
    seed: int
    is_lossless: bool
    keeps_order: bool

    def run(self, **options: Any) -> Outcome:
        return run(self.fabric, exchange, self.flows, seed=self.seed, impair=self.impair, **options)


def rules(draw: st.DrawFn, *, lossy: bool, single_path: bool) -> tuple[Switching, bool, bool]:
    """(switching, whether its class may drop nothing, whether its packets stay in order)."""
    discipline = draw(st.sampled_from(list(Discipline)))
    recovering = [Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT]
    retry = draw(st.booleans())
    loses = (lossy and not retry) or discipline is Discipline.DROP
    recovery = draw(st.sampled_from(recovering if loses else [*recovering, Recovery.NONE]))
    balancing = draw(
        st.sampled_from(["ecmp", "ecmp", "static", "spray"] if recovery is not Recovery.GO_BACK_N else ["ecmp", "static"])
    )
    timeout: dict[str, Any] = {"recovery": recovery, "timeout_ps": 200 * 10**6}
    data: TrafficClass
    if discipline is Discipline.PAUSE:
        data = traffic_class(**timeout)
    elif discipline is Discipline.CREDIT:
        data = credited(draw(st.sampled_from([4096, 20_000, 200_000])), **timeout)
    else:
        trims = draw(st.booleans())
        data = dropping(trims=trims, **(timeout | {"recovery": Recovery.SELECTIVE_REPEAT if trims else recovery}))
    others = [dropping(Recovery.GO_BACK_N, name="control", priority=7, strict=True)] if draw(st.booleans()) else []
    made = switching(
        data,
        *others,
        quantum_bytes=4 * KIB,
        buffer_bytes=draw(st.sampled_from([1, 4])) * 2**20,
        alpha=draw(st.sampled_from([Fraction(1, 16), Fraction(1, 2), Fraction(4)])),
        headroom_bytes=180_000,
        receive_buffer_bytes=300_000,
        balancing=balancing,
        link_retry=retry,
        reorder_packets=8 if balancing == "spray" else 0,
        n_queue_pairs=draw(st.sampled_from([1, 3])),
    )
    return made, discipline is not Discipline.DROP, not loses and (single_path or balancing != "spray")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    loss = draw(st.sampled_from(LOSSES))
    kind = draw(st.sampled_from(["star", "leaf-spine", "ring"]))
    made, is_lossless, keeps_order = rules(draw, lossy=bool(loss), single_path=kind == "star")
    if kind == "star":
        fabric = star(4, made)
    elif kind == "leaf-spine":
        fabric = leaf_spine(2, 2, 2, made)
    else:
        # Around a ring the buffers depend on each other in a cycle: three nodes are neighbours of one another.
        fabric = ring(3, made)
    impair = [text for text in (loss, draw(st.sampled_from(DELAYS)), draw(st.sampled_from(CAPACITIES))) if text]
    if kind == "ring":
        impair = [text for text in impair if "s0" not in text]
    ends = st.integers(0, fabric.n_ranks - 1)
    sizes = st.sampled_from([1, 1000, 4096, 30_000, 100_000])
    flows = draw(st.lists(st.tuples(ends, ends, sizes).filter(lambda flow: flow[0] != flow[1]), min_size=1, max_size=8))
    return Case(
        fabric=fabric,
        flows=flows,
        impair=impair,
        seed=draw(st.integers(0, 999)),
        is_lossless=is_lossless,
        keeps_order=keeps_order,
    )


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_every_byte_is_right_and_nothing_is_left_behind(case: Case) -> None:
    """All payload is exact; buffers end empty, credits are home; lossless classes drop nothing; promised order is kept."""
    outcome = case.run()
    assert all(right for times in outcome.results for _, right in times)
    assert sum(len(times) for times in outcome.results) == len(case.flows)
    assert_at_rest(outcome)
    if case.is_lossless:
        assert outcome.total("dropped_packets") == outcome.total("trimmed_packets") == 0
        assert all(adapter.statistics().discarded_packets == 0 for adapter in outcome.engine.adapters.values())
    if case.keeps_order:
        assert all(adapter.statistics().out_of_sequence == 0 for adapter in outcome.engine.adapters.values())


@settings(max_examples=8, deadline=None)
@given(case=cases())
def test_the_same_seed_gives_the_same_times_with_payload_and_without(case: Case) -> None:
    """Two runs agree to the picosecond, and data makes no difference to time."""
    first, again = case.run(), case.run()
    assert first.results == again.results
    bare = run(case.fabric, exchange, case.flows, False, payload=False, seed=case.seed, impair=case.impair)
    assert [[time for time, _ in times] for times in bare.results] == [[time for time, _ in times] for times in first.results]
    assert bare.engine.events == first.engine.events


@pytest.mark.parametrize(
    "data", [traffic_class(), dropping(Recovery.GO_BACK_N), dropping(Recovery.SELECTIVE_REPEAT, trims=True)], ids=str
)
def test_a_switch_s_accounts_agree_after_every_event(data: TrafficClass, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever bytes come or go, used = reserved + shared + headroom, over all queues."""
    checked = 0
    take, release = SharedBuffer.take, SharedBuffer.release

    def taking(buffer: SharedBuffer, queue: IngressQueue, n_bytes: int) -> bool:
        nonlocal checked
        checked += 1
        pauses = take(buffer, queue, n_bytes)
        buffer.validate()
        return pauses

    def releasing(buffer: SharedBuffer, queue: IngressQueue, n_bytes: int) -> None:
        release(buffer, queue, n_bytes)
        buffer.validate()

    monkeypatch.setattr(SharedBuffer, "take", taking)
    monkeypatch.setattr(SharedBuffer, "release", releasing)
    flows = [(source, 0, 300 * KIB) for source in range(1, 4)]
    outcome = run(star(4, switching(data, buffer_bytes=2**20, quantum_bytes=4 * KIB)), exchange, flows)
    assert checked > 200
    assert_at_rest(outcome)


def test_a_message_without_bytes_arrives_under_every_discipline() -> None:
    """A barrier of empty chunks costs credits for a bare header and gives them all back."""
    for data in (traffic_class(), credited(20_000), dropping(Recovery.GO_BACK_N)):
        outcome = run(leaf_spine(2, 2, 2, switching(data)), _barriers)
        assert_at_rest(outcome)


def _barriers(rank: Any) -> None:
    for _ in range(20):
        rank.comm.barrier()
