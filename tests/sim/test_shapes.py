"""The shapes of real systems, by mechanism: the rows of ``emu validate --shapes``, and what the table says of them."""

from __future__ import annotations

import pytest

from emu.validation.report import shape_lines
from emu.validation.shapes import MIB, SHAPES, SHARP, Found, Shape, over_nodes
from emu.validation.uplinks import inter_over_intra, slowed_by_cpus

LONG = ("16 nodes", "SHARP on 4 nodes")
"""Rows that take up to a minute, of what others show on fewer nodes; that SHARP is flat has a test of its own."""
TESTED = [shape for shape in SHAPES if not any(text in shape.what for text in LONG)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", TESTED, ids=[shape.what for shape in TESTED])
def test_a_shape_comes_out(shape: Shape) -> None:
    """What was measured, or what the law says, comes out within the row's tolerance, nothing being fitted to it."""
    found = Found(shape=shape, value=shape.find())
    assert found.holds, f"{found.value:.4g} in place of {shape.expected:.4g}"


@pytest.mark.slow
def test_sharp_is_flat_from_2_to_16_nodes() -> None:
    """What a node sends does not grow with their number: a call over 16 takes as long as one over 2, within 2 %, and the ratio of
    bus bandwidths is the measured one, within 15 %."""
    two, sixteen = (over_nodes(SHARP, n_nodes, size_bytes=64 * MIB) for n_nodes in (2, 16))
    assert sixteen.time_ps == pytest.approx(two.time_ps, rel=0.02)
    assert sixteen.busbw / two.busbw == pytest.approx(545.3 / 542.9, rel=0.15)


def test_a_second_level_as_fast_as_its_npus_costs_nothing_until_cpus_share_it() -> None:
    """CloudMatrix: a node's NPUs reach the next at less than 3 % below their rate; with the CPUs all takes 1.20 times as long."""
    assert 0.97 < inter_over_intra() <= 1
    assert slowed_by_cpus() == pytest.approx((3136 + 640) / 3136, rel=0.01)


def test_a_row_says_how_far_off_it_is() -> None:
    """The table has expected and found, the signed error and whether it is within the row's tolerance."""
    shape = Shape(what="a ratio", source="a paper", expected=2.0, find=lambda: 2.4)
    rows = [Found(shape=shape, value=shape.find()), Found(shape=shape, value=1.8)]
    text = shape_lines(rows)
    assert text[2].split() == ["a", "ratio", "2", "2.4", "x", "+20.0", "15", "MISS", "a", "paper"]
    assert text[3].split()[-5:] == ["-10.0", "15", "yes", "a", "paper"]
    assert text[5:] == ["# 1 of 2 shapes hold"]
