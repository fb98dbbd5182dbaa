"""Forecast: what a simulated row will take is said before, and what would take very long is refused."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from bench_fakes import FakeOpener

from emu.bench import runner
from emu.bench.fabrics import prepare
from emu.bench.forecast import CHUNK_HOP_S, CHUNK_S, forecast
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.errors import ConfigError

OPTIONS = BenchOptions(
    collective="all_reduce", algorithm="ring", driver="simulate", fabrics=("star",), iterations=1, warmup=1, method="full"
)  # fmt: skip


def said(options: BenchOptions) -> str:
    """What stands on stderr after a run whose machines are fakes."""
    err = io.StringIO()

    def uncalled() -> runner.Calibration:
        raise AssertionError("a simulation needs no calibration")

    runner.run(options, Terminal(io.StringIO(), err), open_session=FakeOpener(), calibration=uncalled)
    return err.getvalue()


def test_chunk_hops_are_those_of_the_schedule() -> None:
    """8 GiB in a ring of 8 over a star: 112 messages of 512 chunks of 2 MiB, two links each, twice."""
    expected = forecast(prepare(OPTIONS, "star", 0), OPTIONS, 8 << 30)
    assert expected.chunk_hops == 2 * 112 * 512 * 2
    assert expected.seconds == pytest.approx(expected.chunk_hops * (CHUNK_HOP_S + CHUNK_S / 2))


@pytest.mark.parametrize(("collective", "algorithm", "chunk_hops"), [("all_reduce", "ring", 40), ("alltoall", "direct", 30)])
def test_links_on_the_way_are_the_algorithm_s(collective: str, algorithm: str, chunk_hops: int) -> None:
    """Rings go to the neighbour on a ring of five; an alltoall to those beyond as well: 1, 2, 2 and 1 links."""
    options = replace(
        OPTIONS, collective=collective, algorithm=algorithm, fabrics=("ring",), settings=(("ranks", "5"),), warmup=0
    )
    assert forecast(prepare(options, "ring", 0), options, 4000).chunk_hops == chunk_hops


@pytest.mark.parametrize("algorithm", ["auto", "direct", "halving_doubling"])
def test_messages_of_many_chunks_are_counted_by_chunks(algorithm: str) -> None:
    """What every algorithm sends grows with the size, also of those that have few messages."""
    options = replace(OPTIONS, algorithm=algorithm)
    small, large = (forecast(prepare(options, "star", 0), options, size << 30).chunk_hops for size in (8, 80))
    assert large == pytest.approx(10 * small, rel=0.01)


def test_a_long_row_is_said_before_it_begins() -> None:
    """More than ten seconds are told with chunk-hops, on stderr; a short row goes without a word."""
    assert "# star, 64 GiB: about 1.8e+06 chunk-hops, 28 s of simulation" in said(
        replace(OPTIONS, begin_bytes=64 << 30, end_bytes=64 << 30)
    )
    assert "chunk-hops" not in said(replace(OPTIONS, begin_bytes=1 << 30, end_bytes=1 << 30))


def test_what_would_take_very_long_is_refused_unless_asked_for() -> None:
    """The message has the size, the expectation and ways out, one of which is to wait for it."""
    options = replace(OPTIONS, begin_bytes=1 << 40, end_bytes=1 << 40, iterations=1000, collective="broadcast", algorithm="auto")
    assert "of simulation" in said(options)
    with pytest.raises(ConfigError, match=r"broadcast of 1 TiB, 1001 calls, is about .* chunk-hops, .* --method full"):
        said(replace(options, method="auto"))
