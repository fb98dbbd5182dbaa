"""``emu demo``: two comparisons that an emulator is for, each with one sentence that reads the result.

First ring against tree, emulated on a DGX H100: real buffers cross ZeroMQ links and every element is checked.  Then
all-to-all on a switch against a torus whose accelerators have the same bandwidth in all, simulated.
"""

from __future__ import annotations

from dataclasses import replace

from emu.bench.commands import calibration_source, open_session
from emu.bench.options import BenchOptions
from emu.bench.rows import Row
from emu.bench.runner import FabricResult, OpenSession, exit_code, run
from emu.bench.table import reading
from emu.bench.terminal import Terminal
from emu.units import format_bytes, format_time

RING = BenchOptions(
    collective="all_reduce",
    begin_bytes=32 << 10,
    end_bytes=4 << 20,
    step_factor=128,
    iterations=4,
    algorithm="ring",
    fabrics=("dgx-h100-8",),
)
ALIKE = 0.02
"""Times that are apart by less are called the same, as a verdict allows."""
_SWITCH_AND_TORUS = BenchOptions(
    collective="alltoall",
    begin_bytes=16 << 20,
    end_bytes=16 << 20,
    iterations=3,
    driver="simulate",
    fabrics=("star", "torus"),
    settings=(
        ("star.ranks", "16"),
        ("star.rate", "100GB/s"),
        ("star.latency", "1us"),
        ("torus.shape", "4x4"),
        ("torus.rate", "25GB/s"),
        ("torus.latency", "1us"),
    ),
)


def demo(*, terminal: Terminal | None = None, opened: OpenSession = open_session) -> int:
    """Run both comparisons; the exit code of the worse.  Raises EmuError."""
    terminal = terminal or Terminal()
    calibration = calibration_source(terminal, None, opened)
    results: list[FabricResult] = []
    try:
        for options in (RING, replace(RING, algorithm="tree"), _SWITCH_AND_TORUS):
            results += run(options, terminal, open_session=opened, calibration=calibration)
    finally:
        terminal.clear()
    ring, tree, star, torus = results
    terminal.lines(
        read_ring_and_tree(ring.rows, tree.rows),
        f"All-to-all, equal bandwidth per accelerator: {reading(star, torus)}"
        " On the torus most bytes pass through other accelerators' links, and each passage costs bandwidth again.",
    )
    return exit_code(tuple(results), strict=False)


def read_ring_and_tree(ring: tuple[Row, ...], tree: tuple[Row, ...]) -> str:
    """One sentence on which algorithm wins at the smallest and at the largest size, by the model's times, if one does."""
    parts = []
    for row, other in ((ring[0], tree[0]), (ring[-1], tree[-1])):
        ring_ps, tree_ps = row.out_of_place.model_ps, other.out_of_place.model_ps
        wins = "the ring wins" if ring_ps < tree_ps else "the tree wins"
        if abs(ring_ps - tree_ps) <= ALIKE * max(ring_ps, tree_ps):
            wins = "both take the same"
        both = f"{format_time(ring_ps)} ring, {format_time(tree_ps)} tree"
        parts.append(f"at {format_bytes(row.size_bytes)} {wins} ({both})")
    return (
        f"All-reduce: {' and '.join(parts)}; within one host NCCL's tree is a chain, about as long as the ring,"
        " and only between hosts does it take fewer steps, and send more."
    )
