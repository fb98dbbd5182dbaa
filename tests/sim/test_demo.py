"""The demonstration: what its sentences claim is so."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from emu.bench.commands import calibration_source, open_session
from emu.bench.demo import RING, read_ring_and_tree
from emu.bench.options import BenchOptions
from emu.bench.runner import run
from emu.bench.terminal import Terminal

HOSTS = replace(RING, fabrics=("star",), settings=(("ranks", "8"), ("rate", "50GB/s"), ("latency", "1us")))


@pytest.mark.parametrize(
    ("options", "small", "large"),
    [(RING, "both take the same", "both take the same"), (HOSTS, "the tree wins", "the ring wins")],
    ids=["one host", "hosts"],
)
def test_a_winner_is_named_where_there_is_one(options: BenchOptions, small: str, large: str) -> None:
    """On one host, where the tree is a chain, neither wins; over hosts the tree wins at 32 KiB and the ring at 4 MiB."""
    terminal = Terminal(io.StringIO(), io.StringIO())
    calibration = calibration_source(terminal, None, open_session)
    ring, tree = (
        run(replace(options, algorithm=name, driver="simulate"), terminal, open_session=open_session, calibration=calibration)[0]
        for name in ("ring", "tree")
    )
    sentence = read_ring_and_tree(ring.rows, tree.rows)
    assert f"at 32 KiB {small} (" in sentence
    assert f"at 4 MiB {large} (" in sentence
