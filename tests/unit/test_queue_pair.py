"""Queue pairs alone, over a channel that loses, doubles, reorders and trims: every byte counts once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.congestion.base import Line
from emu.congestion.none import Uncontrolled
from emu.fabric.frame import Frame
from emu.fabric.packet import Packet
from emu.fabric.queue_pair import Reassembly, ReceiveQueuePair, SendQueuePair
from emu.topologies.switching import Recovery

QUANTUM = 100
RECOVERING = [Recovery.GO_BACK_N, Recovery.SELECTIVE_REPEAT]


def sender(recovery: Recovery) -> SendQueuePair:
    line = Line(rate_bps=10**9, round_trip_ps=10**6, quantum_bytes=QUANTUM, mtu_bytes=QUANTUM)
    return SendQueuePair(
        peer=1,
        index=0,
        queue=0,
        entropy=7,
        control=Uncontrolled(line),
        is_acknowledged=False,
        recovery=recovery,
        quantum_bytes=QUANTUM,
    )


def chunk(number: int, n_bytes: int) -> Frame:
    """A chunk whose bytes tell their place."""
    payload = ((np.arange(n_bytes) * 7 + number) % 251).astype(np.uint8)
    return Frame(
        (), source_rank=0, target_rank=1, flow=0, route_flow=0, payload_bytes=n_bytes, head_ps=0, chunk=number, payload=payload
    )


def send_all(pair: SendQueuePair, now_ps: int = 0) -> list[Packet]:
    """What the pair sends until it has nothing more."""
    sent = []
    while pair.prepare(now_ps) is not None:
        sent.append(pair.take(now_ps)[0])
    return sent


def sequences(packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in packets]


@settings(max_examples=60, deadline=None)
@given(
    recovery=st.sampled_from(RECOVERING),
    sizes=st.lists(st.integers(0, 1200), min_size=1, max_size=5),
    reorder_packets=st.sampled_from([0, 3]),
    rates=st.tuples(*[st.sampled_from([0.0, 0.1, 0.4])] * 4),
    seed=st.integers(0, 2**32),
)
def test_every_byte_counts_exactly_once(
    recovery: Recovery, sizes: list[int], reorder_packets: int, rates: tuple[float, float, float, float], seed: int
) -> None:
    """Over a channel that loses, doubles, reorders and trims, all chunks become whole, with their bytes, once each."""
    lost, doubled, reordered, trimmed = rates
    draw = Random(seed)
    source, target = sender(recovery), ReceiveQueuePair(recovery=recovery, reorder_packets=reorder_packets)
    chunks = [chunk(number, n_bytes) for number, n_bytes in enumerate(sizes)]
    for frame in chunks:
        source.submit(frame, 0)
    parts = {frame.chunk: Reassembly(frame, payload=True) for frame in chunks}
    done: list[int] = []
    channel: list[Packet] = []
    for _ in range(3000):
        sends = source.prepare(0) is not None and (not channel or draw.random() < 0.6)
        if sends:
            packet, _ = source.take(0)
            if draw.random() < lost:
                continue
            packet.trimmed = draw.random() < trimmed
            channel += [packet] * (2 if draw.random() < doubled and not packet.trimmed else 1)
        elif channel:
            place = draw.randrange(min(len(channel), 5)) if draw.random() < reordered else 0
            packet = channel.pop(place)
            if packet.trimmed:
                if target.trimmed(packet.sequence):
                    source.missing(packet.sequence)
                continue
            counts = target.take(packet.sequence)
            if counts and parts[packet.frame.chunk].put(packet):
                done.append(packet.frame.chunk)
            if packet.sequence > target.expected:
                for missing in target.asks_for():
                    source.missing(missing)
            source.acknowledged(target.expected, packet.sequence if recovery is Recovery.SELECTIVE_REPEAT else -1, 0)
        elif source.unacked:
            source.timed_out()
        else:
            break
        assert 0 <= source.outstanding_bytes <= sum(segment.n_bytes for segment in source.unacked.values())
    assert sorted(done) == list(range(len(sizes)))
    for frame in chunks:
        got = parts[frame.chunk]
        assert got.missing_bytes == 0
        assert got.payload is None or bytes(got.payload) == bytes(frame.payload)
    assert not source.unacked and source.outstanding_bytes == 0


def test_go_back_n_sends_everything_from_the_gap_on_again() -> None:
    """The receiver asks once for a gap; from there on all comes again, in order."""
    pair, target = sender(Recovery.GO_BACK_N), ReceiveQueuePair(recovery=Recovery.GO_BACK_N, reorder_packets=0)
    pair.submit(chunk(0, 600), 0)
    assert sequences(send_all(pair)) == list(range(6))
    assert [target.take(s) for s in (0, 1, 3, 4)] == [True, True, False, False]
    assert target.asks_for() == [2]
    assert target.asks_for() == []
    assert pair.missing(2) == 400
    assert pair.outstanding_bytes == 0
    assert sequences(send_all(pair)) == [2, 3, 4, 5]
    assert pair.resent_packets == 4


def test_selective_repeat_sends_what_is_missing_again_and_nothing_else() -> None:
    """Each gap is asked for once; what came out of order is kept."""
    pair, target = sender(Recovery.SELECTIVE_REPEAT), ReceiveQueuePair(recovery=Recovery.SELECTIVE_REPEAT, reorder_packets=0)
    pair.submit(chunk(0, 600), 0)
    send_all(pair)
    assert [target.take(s) for s in (0, 2, 4, 5)] == [True] * 4
    assert target.asks_for() == [1, 3]
    assert target.asks_for() == []
    for missing in (1, 3):
        pair.missing(missing)
    assert sequences(send_all(pair)) == [1, 3]
    assert target.take(1) and target.take(3)
    assert target.expected == 6


def test_reordering_within_the_bound_is_not_taken_for_loss() -> None:
    """A missing packet is asked for only when ``reorder_packets`` later ones are here."""
    target = ReceiveQueuePair(recovery=Recovery.SELECTIVE_REPEAT, reorder_packets=3)
    assert [target.take(s) for s in (1, 2)] == [True, True]
    assert target.asks_for() == []
    target.take(3)
    assert target.asks_for() == [0]


@pytest.mark.parametrize("recovery", RECOVERING)
def test_a_trimmed_header_is_asked_for_at_once_and_not_again_as_a_gap(recovery: Recovery) -> None:
    """The packet behind it asks no second time; but if it comes trimmed again, it is asked for again."""
    target = ReceiveQueuePair(recovery=recovery, reorder_packets=0)
    assert target.trimmed(0)
    target.take(1)
    assert target.asks_for() == []
    assert target.trimmed(0)
    target.take(0)
    assert not target.trimmed(0)


def test_what_is_acknowledged_while_it_waits_to_go_again_does_not_go() -> None:
    """A late answer takes a packet out of the line, and its bytes are counted once."""
    pair = sender(Recovery.SELECTIVE_REPEAT)
    pair.submit(chunk(0, 300), 0)
    send_all(pair)
    pair.missing(1)
    prepared = pair.prepare(0)
    assert prepared is not None and prepared.sequence == 1
    pair.acknowledged(0, 1, 100)
    assert send_all(pair) == []
    assert pair.outstanding_bytes == 200
    pair.acknowledged(3, -1, 0)
    assert pair.outstanding_bytes == 0


def test_where_nothing_is_kept_answers_still_free_the_window() -> None:
    """Without recovery what an acknowledgement covers is not outstanding any more."""
    pair = sender(Recovery.NONE)
    pair.submit(chunk(0, 300), 0)
    send_all(pair)
    assert pair.outstanding_bytes == 300 and not pair.unacked
    pair.acknowledged(0, -1, 100)
    assert pair.outstanding_bytes == 200


@pytest.mark.parametrize("recovery", RECOVERING)
def test_a_packet_tells_how_often_it_was_sent_before(recovery: Recovery) -> None:
    """Each timeout sends what is kept once more; what is new, and what has come, starts at 0."""
    pair = sender(recovery)
    pair.submit(chunk(0, 3 * QUANTUM), 0)
    sendings = [[packet.sending for packet in send_all(pair)]]
    for _ in range(2):
        pair.timed_out()
        sendings.append([packet.sending for packet in send_all(pair)])
    assert sendings == [[0] * 3, [1] * 3, [2] * 3]
    pair.acknowledged(2, -1)
    pair.submit(chunk(1, QUANTUM), 0)
    pair.timed_out()
    assert [(packet.sequence, packet.sending) for packet in send_all(pair)] == [(2, 3), (3, 0)]


@pytest.mark.parametrize("recovery", RECOVERING)
def test_timeouts_are_silent_until_something_new_is_acknowledged(recovery: Recovery) -> None:
    """An answer that tells nothing new does not end the silence."""
    pair = sender(recovery)
    pair.submit(chunk(0, 3 * QUANTUM), 0)
    send_all(pair)
    pair.acknowledged(1, -1)
    for n in (1, 2):
        pair.timed_out()
        pair.acknowledged(1, -1)
        assert pair.silent_timeouts == n
    pair.acknowledged(2, -1)
    assert (pair.silent_timeouts, pair.timeouts) == (0, 2)
