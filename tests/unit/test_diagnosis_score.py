"""The score of a campaign, on outcomes made by hand; and cases, which are data."""

from __future__ import annotations

from collections import Counter

import pytest

from emu.diagnosis.campaign import Outcome, Truth
from emu.diagnosis.cases import DOUBLE_SHARE, HEALTHY_SHARE, draw
from emu.diagnosis.finding import Cause, Evidence, Finding
from emu.diagnosis.score import score


def finding(cause: Cause, component: str) -> Finding:
    evidence = Evidence(metric="m", value="1", expected="2", begin_ps=0, end_ps=1)
    return Finding(cause=cause, component=component, evidence=evidence, share=1.0, confidence=0.9)


def truth(cause: Cause, component: str, *, severity: float = 0.5, cost: float = 0.2) -> Truth:
    return Truth(cause=cause, component=component, severity=severity, cost=cost, detected=(1, 10**6), localised=None)


def outcome(truths: list[Truth], findings: list[Finding]) -> Outcome:
    return Outcome(case=draw(1), truths=tuple(truths), findings=tuple(findings))


RIGHT = outcome([truth(Cause.SLOW_LINK, "a->b")], [finding(Cause.SLOW_LINK, "a->b")])
ELSEWHERE = outcome([truth(Cause.SLOW_LINK, "a->b")], [finding(Cause.SLOW_LINK, "b->a")])
MISNAMED = outcome([truth(Cause.SLOW_LINK, "a->b")], [finding(Cause.LONG_LINK, "a->b")])
CHEAP = outcome([truth(Cause.SLOW_LINK, "a->b", severity=0.9, cost=0.01)], [])
ALARM = outcome([], [finding(Cause.LATE_RANK, "rank 1 (a1)")])
LATE_HOST = outcome([], [finding(Cause.OVERLOADED, "host")])


def test_right_is_cause_and_component() -> None:
    """The right cause elsewhere, and another cause there, are each a miss and a false finding."""
    found = score([RIGHT, ELSEWHERE, MISNAMED])
    slow = next(one for one in found.causes if one.cause is Cause.SLOW_LINK)
    assert (slow.n_there, slow.n_found, slow.n_false) == (3, 1, 1)
    assert (slow.precision, slow.recall) == (0.5, pytest.approx(1 / 3))
    assert next(one for one in found.causes if one.cause is Cause.LONG_LINK).n_false == 1
    assert (found.n_located, found.n_localised) == (3, 2)
    assert found.confusion == {"slow link": {"slow link": 1, "none": 1, "long link": 1}}


def test_what_costs_little_need_not_be_seen() -> None:
    """A fault below the cost that tells counts for recall, and not for the figures above it."""
    found = score([RIGHT, CHEAP])
    (slow,) = found.causes
    assert (slow.recall, slow.telling_recall, slow.weakest) == (0.5, 1.0, 0.5)
    assert found.macro_f1 == 1.0


def test_a_late_host_is_no_false_alarm() -> None:
    """In healthy runs all findings are false alarms, but that the host was late is the host's."""
    found = score([ALARM, LATE_HOST])
    assert (found.n_healthy, found.n_false_alarms, found.n_overloaded) == (2, 1, 1)


def test_cases_are_drawn_alike_and_in_the_shares_that_are_said() -> None:
    """A seed gives the same case again; a third of many are healthy, and a fifth have two faults, of different causes."""
    cases = [draw(seed) for seed in range(1000)]
    assert cases[17] == draw(17)
    n_faults = Counter(len(case.faults) for case in cases)
    assert n_faults[0] / 1000 == pytest.approx(HEALTHY_SHARE, abs=0.05)
    assert n_faults[2] / 1000 == pytest.approx(DOUBLE_SHARE, abs=0.05)
    assert all(len({fault.cause for fault in case.faults}) == len(case.faults) for case in cases)
