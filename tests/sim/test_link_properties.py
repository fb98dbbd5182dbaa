"""Laws of a link under any traffic and any impairments, by property."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine
from emu.impairments.spec import parse_impairment
from emu.topologies.graph import Link
from emu.units import duration_ps

RATE_BPS = 8 * 10**9
LATENCY_PS = 3_000_000
MTU_BYTES = 1000
HEADER_BYTES = 50

Arrival = tuple[int, int, int, int]
"""(gap to the head before, time from head to tail, payload bytes, flow)"""

arrivals = st.lists(
    st.tuples(
        st.integers(0, 20_000_000),
        st.sampled_from((0, 0, 1_000_000, 40_000_000)),
        st.integers(0, 20_000),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)
impairments = st.lists(
    st.sampled_from(
        (
            "none",
            "latency,added=5us",
            "jitter,bound=30us,interval=7us",
            "jitter,distribution=pareto,mean=10us,alpha=1.5",
            "throttle,factor=1/3,from=20us,until=90us",
            "flap,down=11us,up=23us",
            "loss,probability=0.1,timeout=15us",
            "loss,pattern=0010000,timeout=3us",
        )
    ),
    max_size=3,
)
MANY = settings(max_examples=60, deadline=None)


def run(traffic: list[Arrival], kinds: list[str], *, seed: int = 1) -> tuple[LinkMachine, list[tuple[Frame, int, int]]]:
    """The link after the traffic, and (frame, head's arrival, start) in order."""
    link = Link(
        name="a->b",
        source=0,
        target=1,
        rate_bps=RATE_BPS,
        latency_ps=LATENCY_PS,
        mtu_bytes=MTU_BYTES,
        header_bytes=HEADER_BYTES,
    )
    placed = tuple((parse_impairment(f"*={kind}")[1], None) for kind in kinds)
    machine = LinkMachine(link=link, index=2, seed=seed, impairments=placed)
    sent = []
    now_ps = 0
    tail_in_ps: dict[int, int] = defaultdict(int)
    for gap_ps, arriving_ps, n_bytes, flow in traffic:
        now_ps += gap_ps
        frame = Frame((2,), source_rank=0, target_rank=1, flow=flow, route_flow=0, payload_bytes=n_bytes, head_ps=now_ps)
        tail_in_ps[flow] = frame.tail_ps = max(now_ps + arriving_ps, tail_in_ps[flow])
        sent.append((frame, now_ps, machine.receive(frame, now_ps)))
    machine.validate()
    return machine, sent


def wire_bytes(n_bytes: int) -> int:
    return n_bytes + max(1, -(-n_bytes // MTU_BYTES)) * HEADER_BYTES


@given(arrivals, impairments)
@MANY
def test_order_and_causality(traffic: list[Arrival], kinds: list[str]) -> None:
    """Heads leave in order, tails in order within a flow, nothing before it came or faster than the wire."""
    _, sent = run(traffic, kinds)
    last_head_ps = 0
    last_tail_ps: dict[int, int] = defaultdict(int)
    for (frame, head_in_ps, start_ps), (_, _, n_bytes, flow) in zip(sent, traffic, strict=True):
        assert head_in_ps <= start_ps
        first_bytes = min(wire_bytes(n_bytes), MTU_BYTES + HEADER_BYTES)
        assert start_ps + duration_ps(first_bytes, RATE_BPS) + LATENCY_PS <= frame.head_ps <= frame.tail_ps
        assert frame.tail_ps >= head_in_ps + duration_ps(wire_bytes(n_bytes), RATE_BPS) + LATENCY_PS
        assert last_head_ps <= frame.head_ps
        assert last_tail_ps[flow] <= frame.tail_ps
        last_head_ps, last_tail_ps[flow] = frame.head_ps, frame.tail_ps


@given(arrivals, st.lists(st.sampled_from(("jitter,bound=30us,interval=7us", "flap,down=11us,up=23us")), max_size=2))
@MANY
def test_capacity_is_conserved(traffic: list[Arrival], kinds: list[str]) -> None:
    """Of frames that come whole, the bytes that arrive in any window are at most rate x window and one frame."""
    _, sent = run([(gap_ps, 0, n_bytes, 0) for gap_ps, _, n_bytes, _ in traffic], kinds)
    arrived = [(frame.tail_ps, wire_bytes(frame.payload_bytes)) for frame, _, _ in sent]
    for first, (begin_ps, _) in enumerate(arrived):
        n_bytes = 0
        for end_ps, later_bytes in arrived[first + 1 :]:
            n_bytes += later_bytes
            assert duration_ps(n_bytes, RATE_BPS) <= end_ps - begin_ps + len(arrived)


@given(arrivals, impairments)
@MANY
def test_bytes_add_up(traffic: list[Arrival], kinds: list[str]) -> None:
    """Payload is delivered once; the wire carries payload, headers and what was sent again; busy covers all of it."""
    machine, sent = run(traffic, kinds)
    assert machine.frames == len(sent)
    assert machine.payload_bytes == sum(n_bytes for _, _, n_bytes, _ in traffic)
    assert machine.wire_bytes == machine.resent_bytes + sum(wire_bytes(n_bytes) for _, _, n_bytes, _ in traffic)
    assert (machine.lost_packets > 0) == (machine.resent_bytes > 0)
    assert machine.busy_ps >= duration_ps(machine.wire_bytes, RATE_BPS) - 1


@given(arrivals, impairments)
@MANY
def test_the_same_seed_gives_the_same_trace(traffic: list[Arrival], kinds: list[str]) -> None:
    """Two runs with one seed agree to the picosecond."""
    (one, first), (two, second) = run(traffic, kinds), run(traffic, kinds)
    assert [(frame.head_ps, frame.tail_ps, start) for frame, _, start in first] == [
        (frame.head_ps, frame.tail_ps, start) for frame, _, start in second
    ]
    assert one.statistics() == two.statistics()


def test_another_seed_gives_another_trace() -> None:
    """Seeds matter: the same traffic under jitter and loss takes different times."""
    traffic = [(10_000_000, 0, 10_000, flow) for flow in range(20)]
    kinds = ["jitter,bound=30us", "loss,probability=0.05,timeout=15us"]
    tails = [[frame.tail_ps for frame, _, _ in run(traffic, kinds, seed=seed)[1]] for seed in (1, 2)]
    assert tails[0] != tails[1]


def test_two_jitters_on_a_link_do_not_draw_alike() -> None:
    """The second of a kind has draws of its own, so the sum is not twice the first."""
    traffic = [(100_000_000, 0, 0, flow) for flow in range(20)]
    once = [frame.tail_ps for frame, _, _ in run(traffic, ["jitter,bound=30us"])[1]]
    twice = [frame.tail_ps for frame, _, _ in run(traffic, ["jitter,bound=30us"] * 2)[1]]
    plain = [frame.tail_ps for frame, _, _ in run(traffic, [])[1]]
    assert any(both - none != 2 * (one - none) for both, one, none in zip(twice, once, plain, strict=True))


def test_chunk_size_changes_neither_the_draw_nor_what_is_lost() -> None:
    """A stream cut into chunks of 1, 5 or 20 packets meets the same jitter and loses the same packets."""
    packets = 100
    ends = []
    losses = []
    for chunk in (1, 5, 20):
        traffic = [(0, 0, chunk * MTU_BYTES, 0)] * (packets // chunk)
        _, sent = run(traffic, ["jitter,bound=30us,interval=1s"])
        ends.append(sent[-1][0].tail_ps)
        machine, _ = run(traffic, ["loss,pattern=00000000010000000000,timeout=1us"])
        losses.append(machine.lost_packets)
    assert len(set(ends)) == 1
    assert losses == [5, 5, 5]


def test_loss_costs_what_go_back_n_costs() -> None:
    """With 1 % loss on 3000 single-packet frames about 1 % are sent again, each after its timeout."""
    machine, sent = run([(0, 0, MTU_BYTES, 0)] * 3000, ["loss,probability=0.01,timeout=10us"])
    assert 15 <= machine.lost_packets <= 48
    packet_ps = duration_ps(MTU_BYTES + HEADER_BYTES, RATE_BPS)
    n_sendings = 3000 + machine.lost_packets
    assert sent[-1][0].tail_ps == n_sendings * packet_ps + machine.lost_packets * 10_000_000 + LATENCY_PS
