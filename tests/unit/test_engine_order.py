"""Engine: events are handled in the one order that every driver keeps, by (time, port, sequence)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.drivers.engine import Engine
from emu.fabric.frame import Frame
from emu.topologies.graph import Topology
from emu.topologies.star import Parameters, build

STAR = build(Parameters(ranks=4, latency=1_000_000))


def engine(topology: Topology = STAR) -> Engine:
    return Engine(topology, seed=0, impairments={})


def frame(made: Engine, source: int, target: int, *, n_bytes: int = 4096, head_ps: int = 0) -> Frame:
    return Frame(
        made.path(source, target, 0),
        source_rank=source,
        target_rank=target,
        flow=source,
        route_flow=0,
        payload_bytes=n_bytes,
        head_ps=head_ps,
        communicator=source,
    )


def arrivals(made: Engine, rank: int) -> list[tuple[int, int]]:
    """Filled with (time, source) of what reaches ``rank``."""
    seen: list[tuple[int, int]] = []
    made.endpoints[rank].receive = lambda frame, now_ps: seen.append((now_ps, frame.source_rank))  # type: ignore[method-assign]
    return seen


def test_events_run_up_to_and_including_the_limit() -> None:
    """run(limit) handles what is due at the limit, leaves what is later, and says when that is."""
    made, seen = engine(), []
    for time_ps in (30, 10, 20):
        made.call_at(time_ps, 0, seen.append)
    made.run(20)
    assert seen == [10, 20]
    assert made.now_ps == 20
    assert made.next_wakeup() == 30
    made.run(10**9)
    assert made.next_wakeup() is None
    assert made.events == 3


def test_equal_submissions_of_one_rank_keep_their_order() -> None:
    """What a rank asked for first at the same time is done first."""
    made, seen = engine(), []
    for number in range(5):
        made.call_at(7, 2, lambda now_ps, number=number: seen.append(number))
    made.run(7)
    assert seen == [0, 1, 2, 3, 4]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_order_does_not_depend_on_when_events_were_entered(events: list[tuple[int, int]], seed: int) -> None:
    """Events of different ranks are handled by (time, rank), in whatever order they were entered."""
    made, seen = engine(), []
    shuffled = events.copy()
    Random(seed).shuffle(shuffled)
    for time_ps, rank in shuffled:
        made.call_at(time_ps, rank, lambda now_ps, rank=rank: seen.append((now_ps, rank)))
    made.run(10)
    assert seen == sorted(events)


def test_frames_that_meet_are_served_by_link_number() -> None:
    """Equal heads at a switch's output leave in the order of the links they came over, not in that of their sending."""
    for order in ((0, 1, 2), (2, 0, 1), (2, 1, 0)):
        made = engine()
        seen = arrivals(made, 3)
        for source in order:
            made.inject(frame(made, source, 3), 0)
        made.run(10**12)
        assert [source for _, source in seen] == [0, 1, 2]
        times_ps = [time_ps for time_ps, _ in seen]
        assert times_ps == sorted(set(times_ps))


def test_an_earlier_head_is_served_first_whatever_its_link() -> None:
    """Time comes before the link's number."""
    made = engine()
    seen = arrivals(made, 3)
    made.inject(frame(made, 0, 3, head_ps=2), 2)
    made.inject(frame(made, 2, 3, head_ps=1), 1)
    made.run(10**12)
    assert [source for _, source in seen] == [2, 0]


def test_what_arrives_comes_before_what_is_asked_for_at_the_same_time() -> None:
    """At one time links come first, then loopback and credits, then submissions."""
    made, seen = engine(), []
    due_ps = 500_000
    made.endpoints[1].receive = lambda frame, now_ps: seen.append(f"loopback at {now_ps}")  # type: ignore[method-assign]
    made.endpoints[0].receive = lambda frame, now_ps: seen.append(f"frame at {now_ps}")  # type: ignore[method-assign]
    made.call_at(due_ps, 0, lambda now_ps: seen.append(f"call at {now_ps}"))
    made.inject(frame(made, 1, 1, head_ps=due_ps), due_ps)
    arriving = frame(made, 1, 0)
    arriving.hop = len(arriving.path)
    arriving.tail_ps = due_ps
    made.forward(arriving, arriving.path[-1], due_ps)
    made.run(due_ps)
    assert seen == ["frame at 500000", "loopback at 500000", "call at 500000"]


def test_the_engine_stops_when_user_code_may_go_on() -> None:
    """After an event that lets a rank's function run, nothing more is handled until the driver comes back."""
    made, seen = engine(), []

    def resume(now_ps: int) -> None:
        seen.append(now_ps)
        made.interrupted = True

    made.call_at(1, 0, resume)
    made.call_at(1, 1, seen.append)
    made.run(10)
    assert seen == [1]
    made.run(10)
    assert seen == [1, 1]
    assert not made.interrupted


def test_an_engine_holds_the_machines_of_its_nodes_alone() -> None:
    """Links belong to the engine of their source, endpoints to that of their node."""
    switch = STAR.node_index("s0")
    made = Engine(STAR, seed=0, impairments={}, hosted=frozenset({0, switch}))
    assert set(made.endpoints) == {0}
    assert {STAR.links[index].name for index in made.links} == {"a0->s0", "s0->a0", "s0->a1", "s0->a2", "s0->a3"}
