"""Impairments: what each answers, and that answers depend on nothing but parameters, seed and key."""

from __future__ import annotations

import pickle
from fractions import Fraction
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.impairments.base import BaseImpairment, FrameKey
from emu.impairments.spec import parse_impairment
from emu.keyed import below, mix, uniform

US = 10**6
MS = 10**9
KEY = FrameKey(3, 7, 0)


def make(text: str) -> BaseImpairment:
    return parse_impairment(f"*={text}")[1]


def test_mixing_is_what_it_always_was() -> None:
    """Known answers: a change of the mixing would change every seeded result."""
    assert mix(0) == 0xE220A8397B1DCDAF, "the first output of splitmix64 from seed 0"
    assert (mix(1, 2, 3), mix(1, 3, 2), mix(-1, 5)) == (0xD0734750FDE362B3, 0x8F3ED33ABD58DEB9, 0x3562133A936C2870)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**70), max_size=4))
@settings(max_examples=25, deadline=None)
def test_draws_stay_in_range(seed: int, key: list[int]) -> None:
    """uniform is in [0, 1), below(n) in [0, n), for any seed and key."""
    assert 0.0 <= uniform(seed, *key) < 1.0
    assert 0 <= below(10, seed, *key) < 10


def test_draws_are_spread_evenly_over_neighbouring_keys() -> None:
    """Counting up any part of the key gives draws that look uniform: mean 1/2, deviation 1/sqrt(12)."""
    for draws in ([uniform(1, number, 5) for number in range(1000)], [uniform(number, 5) for number in range(1000)]):
        assert abs(fmean(draws) - 0.5) < 0.03
        assert abs(pstdev(draws) - 12**-0.5) < 0.02


@pytest.mark.parametrize(
    ("text", "mean_us", "deviation_us"),
    [
        ("bound=50us", 25, 50 / 12**0.5),
        ("distribution=normal,mean=50us,sigma=10us", 50, 10),
        ("distribution=lognormal,mean=50us,sigma=20us", 50, 20),
        ("distribution=pareto,mean=50us,alpha=6", 50, 50 * (6 / 4) ** 0.5),
    ],
)
def test_jitter_has_the_stated_mean_and_deviation(text: str, mean_us: float, deviation_us: float) -> None:
    """Over 500 flows the draws have the distribution's mean within 10 % and its deviation within 15 %."""
    jitter = make(f"jitter,{text}")
    draws = [jitter.delay_ps(1, FrameKey(0, flow, 0), 0) / US for flow in range(500)]
    assert min(draws) >= 0
    assert fmean(draws) == pytest.approx(mean_us, rel=0.1)
    assert pstdev(draws) == pytest.approx(deviation_us, rel=0.15)


def test_normal_jitter_never_shortens_the_wire() -> None:
    """A normal distribution that reaches below 0 is cut off there."""
    jitter = make("jitter,distribution=normal,mean=1us,sigma=10us")
    draws = [jitter.delay_ps(1, FrameKey(0, flow, 0), 0) for flow in range(200)]
    assert min(draws) == 0


def test_bound_caps_a_heavy_tail() -> None:
    """No draw is more than ``bound``, and with a heavy tail some are at it."""
    jitter = make("jitter,distribution=pareto,mean=50us,alpha=1.5,bound=100us")
    draws = [jitter.delay_ps(1, FrameKey(0, flow, 0), 0) for flow in range(200)]
    assert max(draws) == 100 * US


def test_one_draw_holds_for_a_flow_and_an_interval() -> None:
    """Frames of one flow in one interval share the draw; another flow, link, seed or interval has its own."""
    jitter = make("jitter,bound=50us,interval=1ms")
    first = jitter.delay_ps(1, FrameKey(3, 7, 0), 0)
    assert jitter.delay_ps(1, FrameKey(3, 7, 9), MS - 1) == first
    others = [
        jitter.delay_ps(1, FrameKey(3, 7, 0), MS),
        jitter.delay_ps(1, FrameKey(3, 8, 0), 0),
        jitter.delay_ps(1, FrameKey(4, 7, 0), 0),
        jitter.delay_ps(2, FrameKey(3, 7, 0), 0),
    ]
    assert first not in others
    assert len(set(others)) == 4


def test_empirical_jitter_draws_from_its_file_and_reads_it_once(tmp_path: Path) -> None:
    """Draws are lines of the file, comments and blank lines apart, also after the file is gone."""
    file = tmp_path / "times.txt"
    file.write_text("1us\n\n2.5us  # measured\n40us\n")
    jitter = pickle.loads(pickle.dumps(make(f"jitter,distribution=empirical,file={file}")))
    file.unlink()
    assert {jitter.delay_ps(1, FrameKey(0, flow, 0), 0) for flow in range(50)} == {US, 2_500_000, 40 * US}


def test_loss_comes_near_its_probability() -> None:
    """Of 100 000 packets about 1 % are lost: within four standard deviations of 1000."""
    loss = make("loss,probability=0.01")
    n_lost = 0
    packet: int | None = -1
    while packet is not None:
        packet = loss.first_lost(1, KEY, packet + 1, 100_000, 0)
        n_lost += packet is not None
    assert abs(n_lost - 1000) < 4 * 31.5


@pytest.mark.parametrize("text", ["probability=0.1", "pattern=00100", "packets=3+70+300"])
def test_the_first_lost_packet_is_the_first_that_is_lost(text: str) -> None:
    """first_lost over any range agrees with asking packet by packet, so cutting a stream changes nothing."""
    loss = make(f"loss,{text}")
    for begin, end in [(0, 400), (250, 262), (4, 5), (3, 4), (71, 300), (71, 301)]:
        lost = [packet for packet in range(begin, end) if loss.loses_packet(1, KEY, packet, 0)]
        assert loss.first_lost(1, KEY, begin, end, 0) == (lost[0] if lost else None)


def test_each_sending_of_a_packet_is_a_new_draw() -> None:
    """With probability 1/2 the packets lost at the first and at the second sending differ; a pattern strikes once."""
    loss = make("loss,probability=0.5")
    first, second = ([loss.loses_packet(1, KEY, packet, attempt) for packet in range(64)] for attempt in (0, 1))
    assert first != second
    assert make("loss,pattern=1").first_lost(1, KEY, 0, 9, 1) is None


def test_probability_0_loses_nothing() -> None:
    """A probability of 0 is allowed and loses no packet."""
    assert make("loss,probability=0").first_lost(1, KEY, 0, 10**6, 0) is None


def test_a_throttle_holds_from_and_until() -> None:
    """The factor applies in [from, until) and says when it changes."""
    throttle = make("throttle,factor=1/4,from=1us,until=2us")
    assert throttle.capacity(1, 0, 0) == (1, US)
    assert throttle.capacity(1, 0, US) == (Fraction(1, 4), 2 * US)
    assert throttle.capacity(1, 0, 2 * US) == (1, None)
    assert make("throttle,factor=0.3").capacity(1, 0, 5) == (Fraction(3, 10), None)


def test_a_flap_goes_down_after_up_and_comes_back() -> None:
    """By default the link is up first; ``start`` says when it goes down and ``count`` how often."""
    flap = make("flap,down=1us,up=2us")
    assert [flap.capacity(1, 0, now_ps) for now_ps in (0, 2 * US, 3 * US, 5 * US)] == [
        (1, 2 * US),
        (0, 3 * US),
        (1, 5 * US),
        (0, 6 * US),
    ]
    counted = make("flap,down=1us,up=2us,start=0us,count=2")
    assert [counted.capacity(1, 0, now_ps) for now_ps in (0, US, 3 * US, 4 * US)] == [
        (0, US),
        (1, 3 * US),
        (0, 4 * US),
        (1, None),
    ]
    once = make("flap,down=1us,start=5us")
    assert [once.capacity(1, 0, now_ps).factor for now_ps in (0, 5 * US, 6 * US, 100 * US)] == [1, 0, 1, 1]


def test_a_random_phase_is_drawn_by_seed_and_link() -> None:
    """Links under one pattern go down at different times, the same ones for the same seed."""
    flap = make("flap,down=1ms,up=9ms,random_phase=true")
    starts = [flap.capacity(1, link, 0).until_ps for link in range(20)]
    assert starts == [flap.capacity(1, link, 0).until_ps for link in range(20)]
    assert len(set(starts)) == 20
    assert all(start is not None and 9 * MS <= start < 19 * MS for start in starts)
