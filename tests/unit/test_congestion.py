"""Congestion controls alone: DCQCN's rates, CNPs and pacing, clear-to-send, NSCC's window, and what it counts as outstanding."""

from __future__ import annotations

import pytest

from emu.congestion import dcqcn, nscc, receiver_driven
from emu.congestion.base import FOREVER_PS, Line, Parameters
from emu.errors import ConfigError
from emu.fabric.admission import Admission
from emu.fabric.frame import Frame
from emu.fabric.queue_pair import ReceiveQueuePair, SendQueuePair
from emu.topologies.switching import Recovery

US = 10**6
GBIT = 10**9
RATE = 400 * GBIT
PACKET = 16384
LINE = Line(rate_bps=RATE, round_trip_ps=4 * US, quantum_bytes=PACKET, mtu_bytes=4096)
PRODUCT = 200_000
"""Bytes of a round trip at the line's rate."""


def reaction(**parameters: int | str) -> dcqcn.DcqcnSender:
    return dcqcn.build(LINE, parameters)[0]


PLAIN: Parameters = {
    "set": "paper", "increase_timer_ps": "10us", "byte_counter_bytes": 0, "threshold": 2, "rate_ai_bps": "1Gbit/s",
    "rate_hai_bps": "10Gbit/s", "alpha_timer_ps": "1us", "g": "1/2",
}  # fmt: skip


# -- DCQCN -----------------------------------------------------------------------------------------


def test_the_first_cnp_halves_the_rate() -> None:
    """alpha is 1 until then, however late it comes."""
    sender = reaction()
    assert sender.rate_bps(10**12) == RATE
    sender.notified(10**12)
    assert sender.rate_bps(10**12) == RATE // 2


def test_alpha_follows_its_formula() -> None:
    """(1 - g) alpha + g with each CNP, (1 - g) alpha with each alpha timer since the last; the cut is alpha / 2."""
    sender = dcqcn.build(LINE, PLAIN)[0]
    sender.notified(0)
    assert sender.alpha == 1.0
    sender.notified(3 * US)  # three timers: 1/8, which cuts 1/16
    assert sender.rate_bps(3 * US) == RATE // 2 * 15 // 16
    assert sender.alpha == 1 / 8 / 2 + 1 / 2


def test_alpha_decays_to_nothing_and_no_further() -> None:
    """After a second without CNPs the next one cuts nothing at all."""
    sender = dcqcn.build(LINE, PLAIN)[0]
    sender.notified(0)
    sender.notified(10**12)
    assert sender.rate_bps(10**12) == RATE


def test_rates_fall_at_most_once_in_a_reduce_period() -> None:
    """A second CNP within it leaves the rate; one at its end cuts again."""
    sender = reaction(reduce_period_ps="4us", increase_timer_ps="1ms")
    sender.notified(0)
    sender.notified(4 * US - 1)
    assert sender.rate_bps(4 * US - 1) == RATE // 2
    sender.notified(4 * US)
    assert sender.rate_bps(4 * US) < RATE // 2


def test_one_decrease_has_a_least_factor() -> None:
    """``min_factor`` of 9/10 lets a CNP take a tenth, whatever alpha says."""
    sender = reaction(min_factor="9/10")
    sender.notified(0)
    assert sender.rate_bps(0) == RATE * 9 // 10


def test_no_rate_is_below_the_least() -> None:
    """CNPs without end leave ``min_rate_bps``."""
    sender = reaction(set="paper", min_rate_bps="100Mbit/s")
    for number in range(40):
        sender.notified(number * US)
    assert sender.rate_bps(39 * US) == 10**8


def test_the_three_phases_of_increase() -> None:
    """Twice half the gap to the target, then 1 Gbit/s more target a step at the threshold, then 10."""
    sender = dcqcn.build(LINE, PLAIN)[0]
    sender.notified(0)
    sender.notified(1)  # the target is 200 Gbit/s now, and the rate 100
    current, target = 100 * GBIT, 200 * GBIT
    for step, more in enumerate((0, 0, 1, 10, 10), start=1):
        target += more * GBIT
        current = (current + target + 1) // 2
        assert sender.rate_bps(1 + step * 10 * US) == current, step


def test_the_byte_counter_raises_rates_like_the_timer() -> None:
    """Half the gap after so many bytes; hyper increase needs both counters beyond the threshold."""
    sender = dcqcn.build(LINE, {**PLAIN, "byte_counter_bytes": 2 * PACKET, "increase_timer_ps": "1s", "threshold": 1})[0]
    sender.notified(0)
    sender.notified(1)
    sender.sent(1, PACKET)
    assert sender.rate_bps(1) == 100 * GBIT
    sender.sent(1, PACKET)
    assert sender.rate_bps(1) == 150 * GBIT
    for _ in range(4):
        sender.sent(1, PACKET)
    assert sender.rate_bps(1) == ((150 + 201) * GBIT // 2 + 202 * GBIT) // 2, "additive twice, never hyper"


@pytest.mark.parametrize(("waits_us", "expected"), [(5, 300), (15, 250)])
def test_an_unclamped_target_stays_until_the_timer_has_raised_the_rate(waits_us: int, expected: int) -> None:
    """Without ``clamps_target`` a second CNP keeps the old target, unless the timer fired in between."""
    sender = dcqcn.build(LINE, {**PLAIN, "clamps_target": 0, "alpha_timer_ps": "1s", "threshold": 9})[0]
    sender.notified(0)
    sender.notified(waits_us * US)
    cut = sender.rate_bps(waits_us * US)
    target = (sender.rate_bps((waits_us + 10) * US) * 2 - cut) // GBIT
    assert (cut, target) == ((100 * GBIT, 400) if waits_us == 5 else (150 * GBIT, 300)), expected


def test_packets_are_paced_by_the_rate() -> None:
    """At half of 400 Gbit/s, 16 KiB are paid after 655,360 ps, and a pause in sending saves nothing up."""
    sender = reaction()
    sender.notified(0)
    sender.sent(0, PACKET)
    assert sender.ready_ps(0, PACKET, PACKET) == 655_360
    assert sender.ready_ps(600_000, PACKET, PACKET) == 655_360
    sender.sent(2 * US, PACKET)
    assert sender.ready_ps(2 * US, PACKET, PACKET) == 2 * US + 655_360


def test_pacing_counts_the_rate_as_it_rises_and_falls() -> None:
    """A timer within the wait shortens it from when it fires; a CNP lengthens what is left."""
    rising = dcqcn.build(LINE, {**PLAIN, "increase_timer_ps": 327_680})[0]
    rising.notified(0)
    rising.sent(0, PACKET)
    paid_ps = 327_680 + 327_680 * 2 // 3 + 1  # the second half at 300 Gbit/s
    assert [rising.ready_ps(at_ps, PACKET, PACKET) for at_ps in (0, 300_000, 400_000)] == [paid_ps] * 3
    falling = dcqcn.build(LINE, PLAIN)[0]
    falling.notified(0)
    falling.sent(0, PACKET)
    falling.notified(327_680)
    assert falling.ready_ps(327_680, PACKET, PACKET) == 327_680 * 3


def test_cnps_keep_their_interval() -> None:
    """Only marked packets are answered, and not twice within 4 us."""
    receiver = dcqcn.build(LINE, {})[1]
    assert not receiver.notifies(0, False)
    assert [receiver.notifies(at_ps, True) for at_ps in (1, 2, 4 * US, 4 * US + 1)] == [True, False, False, True]


@pytest.mark.parametrize("name", dcqcn.SETS)
def test_sets_are_whole(name: str) -> None:
    """Each named set gives every parameter, and single ones can be put over it."""
    assert set(dcqcn.SETS[name]) == set(dcqcn.DcqcnSettings.model_fields)
    sender, receiver = dcqcn.build(LINE, {"set": name, "cnp_interval_ps": "7us", "min_factor": "1/3"})
    assert receiver.notifies(0, True) and not receiver.notifies(7 * US - 1, True)
    assert sender.rate_bps(0) == RATE


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"set": "nvida"}, r"parameters of dcqcn: set = 'nvida': unknown set \(did you mean 'nvidia'\?\); use one of nvidia"),
        ({"rate_ai": 5}, r"parameters of dcqcn: unknown key 'rate_ai' \(did you mean 'rate_ai_bps'\?\)"),
        ({"g": 2}, r"parameters of dcqcn: g = 2"),
        ({"cnp_interval_ps": "4"}, r"parameters of dcqcn: cnp_interval_ps: '4' has no unit"),
    ],
)
def test_mistakes_are_named(parameters: Parameters, message: str) -> None:
    """One line: the parameter, its value, what may stand there."""
    with pytest.raises(ConfigError, match=message) as caught:
        dcqcn.build(LINE, parameters)
    assert "\n" not in str(caught.value)


# -- clear-to-send ---------------------------------------------------------------------------------


def test_receivers_admit_what_is_set() -> None:
    """Four chunks at a time, or ``chunks``; at least one."""
    assert receiver_driven.build(LINE, {})[1].admits == 4
    sender, receiver = receiver_driven.build(LINE, {"chunks": "2"})
    assert sender.asks and receiver.admits == 2
    with pytest.raises(ConfigError, match=r"chunks = 0: must be 1 to"):
        receiver_driven.build(LINE, {"chunks": 0})


# -- NSCC ------------------------------------------------------------------------------------------


def window(**parameters: int | str) -> nscc.NsccSender:
    return nscc.build(LINE, parameters)[0]


def test_the_window_begins_at_one_and_a_half_round_trips() -> None:
    """Beyond it a sender waits for an answer; with nothing outstanding a packet may always go."""
    sender = window()
    assert sender.window_bytes == PRODUCT * 3 // 2
    assert sender.ready_ps(0, PRODUCT * 3 // 2 - PACKET, PACKET) == 0
    assert sender.ready_ps(0, PRODUCT * 3 // 2 - PACKET + 1, PACKET) == FOREVER_PS
    assert sender.ready_ps(0, 0, PRODUCT * 2) == 0


def shrunk(**parameters: int | str) -> nscc.NsccSender:
    """A window of one packet."""
    sender = window(quick_adapt=0, **parameters)
    sender.timed_out(0)
    assert sender.window_bytes == PACKET
    return sender


def test_an_early_unmarked_answer_opens_the_window_in_proportion() -> None:
    """A window's worth of answers at a third of the target adds two thirds of 4 MSS a b, and eta once a round trip."""
    sender = shrunk()
    delay_ps = 1 * US  # a third of the target, 3 us
    sender.acknowledged(5 * US, PACKET, 4 * US + delay_ps, False)
    scale_a, scale_b = PRODUCT / 150_000, 3 / 12
    eta = 0.15 * 4096 * scale_a
    gained = 4 * 4096 * scale_a * scale_b * 2 / 3
    assert sender.window_bytes == pytest.approx(PACKET + gained + eta, abs=4)


def test_a_late_unmarked_answer_opens_it_by_the_fair_increase() -> None:
    """By 5 MSS a for a window's worth, however late."""
    sender = shrunk()
    sender.acknowledged(5 * US, PACKET, 4 * US + 3 * US, False)
    scale_a = PRODUCT / 150_000
    assert sender.window_bytes == pytest.approx(PACKET + 5.15 * 4096 * scale_a, abs=4)


def test_a_late_marked_answer_closes_it_once_a_round_trip() -> None:
    """By at most half, once the average is beyond the target; an early marked one does nothing."""
    sender = window(quick_adapt=0, eta="1/1000000")
    for _ in range(400):
        sender.acknowledged(1, 1, 4 * US + 30 * US, True)
    full = sender.window_bytes
    sender.acknowledged(20 * US, 1, 4 * US + 30 * US, True)
    assert full * 0.49 < sender.window_bytes < full * 0.51
    once = sender.window_bytes
    sender.acknowledged(20 * US + 1, 1, 4 * US + 30 * US, True)
    sender.acknowledged(90 * US, 1, 4 * US + 1 * US, True)
    assert sender.window_bytes == once


def test_an_empty_path_opens_it_fast() -> None:
    """After a window's worth of answers without any delay, a quarter (times a) of what comes is added."""
    sender = shrunk()
    for _ in range(2):
        sender.acknowledged(1, PACKET, 4 * US, False)
    before = sender.window_bytes
    sender.acknowledged(1, PACKET, 4 * US, False)
    assert sender.window_bytes >= before + PACKET * PRODUCT // 150_000 // 4


def test_trimming_sets_the_window_to_what_came_through() -> None:
    """Within a round trip and target of 7 us one packet came, the rest was trimmed: the window is one packet."""
    sender = window()
    sender.acknowledged(1, PACKET, 4 * US, False)  # the first period begins
    sender.acknowledged(2 * US, PACKET, 6 * US, False)
    sender.lost(3 * US, PACKET, trimmed=True)
    assert PACKET < sender.window_bytes <= PRODUCT * 3 // 2 - PACKET + 2000
    sender.lost(8 * US, PACKET, trimmed=True)
    assert sender.window_bytes == PACKET


# -- what a window is compared with ------------------------------------------------------------------


def pair(recovery: Recovery) -> SendQueuePair:
    made = SendQueuePair(
        peer=1, index=0, queue=0, entropy=0, control=window(), is_acknowledged=True, recovery=recovery, quantum_bytes=PACKET
    )
    made.submit(Frame((), source_rank=0, target_rank=1, flow=0, route_flow=0, payload_bytes=3 * PACKET, head_ps=0), 0)
    return made


def send(made: SendQueuePair) -> None:
    assert made.prepare(0) is not None
    made.take(0)


def test_an_answer_to_what_waits_to_go_again_leaves_nothing_outstanding() -> None:
    """A packet is taken for lost and made ready again, then its answer comes after all: it does not count twice."""
    made = pair(Recovery.SELECTIVE_REPEAT)
    send(made)
    assert made.missing(0) == PACKET
    assert made.outstanding_bytes == 0
    assert made.prepare(0) is not None
    assert made.acknowledged(1, 0) == PACKET
    assert made.outstanding_bytes == 0
    send(made)
    assert made.outstanding_bytes == PACKET


def test_what_is_not_kept_is_outstanding_until_it_is_answered() -> None:
    """Without recovery the answer's payload is what is no longer under way."""
    made = pair(Recovery.NONE)
    send(made)
    send(made)
    assert made.acknowledged(0, -1, PACKET) == PACKET
    assert made.outstanding_bytes == PACKET


def test_what_was_trimmed_is_asked_for_once() -> None:
    """The gap that later packets show is not asked for again; a second trimming is."""
    receiver = ReceiveQueuePair(recovery=Recovery.SELECTIVE_REPEAT, reorder_packets=0)
    assert receiver.trimmed(0)
    assert receiver.take(1)
    assert receiver.asks_for() == []
    assert receiver.trimmed(0)
    assert receiver.take(0) and not receiver.trimmed(0)


# -- admission ---------------------------------------------------------------------------------------


def test_queue_pairs_take_turns_and_each_chunk_is_let_in_once() -> None:
    """Of two that ask for three chunks each, two come at a time, and after the first they alternate."""
    admission = Admission(2)
    first, second = (1, 0, 0), (2, 0, 0)
    granted = [grant for key in (first, first, first, second, second, second) for grant in admission.request(key)]
    assert granted == [(first, 1), (first, 2)]
    later = [grant for _ in range(6) for grant in admission.completed()]
    assert later == [(first, 3), (second, 1), (second, 2), (second, 3)]


def test_who_waits_longest_is_next() -> None:
    """With one at a time, turns go round among those that still wait."""
    admission = Admission(1)
    keys = [(source, 0, 0) for source in (1, 2, 3)]
    assert [grant for key in (*keys, *keys) for grant in admission.request(key)] == [(keys[0], 1)]
    assert [key for _ in range(5) for key, _ in admission.completed()] == [keys[1], keys[2], keys[0], keys[1], keys[2]]
