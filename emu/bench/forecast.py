"""Forecast: about how long a simulated row will take this host, said before it begins where that is long.

Law: an estimate, of chunks and of links on their way, and never in a result.  Of what a selection leaves open the fewest count.
What choosing among them takes comes on top.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from emu.bench.fabrics import Case
from emu.bench.options import NO_ALGORITHM, BenchOptions
from emu.collectives.call import MAX_AUTO_CHUNK_BYTES
from emu.collectives.catalogue import algorithm_name
from emu.collectives.selection import is_choice, selected
from emu.errors import ConfigError
from emu.scale.answer import estimated_chunks
from emu.topologies.graph import Topology
from emu.units import format_bytes

CHUNK_S: Final = 14e-6
"""Host time of a chunk,"""
CHUNK_HOP_S: Final = 8e-6
"""and of each link that it takes; 0.6 to 1.8 times that were measured on one core of a small host,"""
PACKET_HOP_S: Final = 60e-6
"""of a packet where there is switching: 40 to 80 us."""
FEW_S: Final = 3.0
"""Up to here the loop is run without a look at whether one call tells as much."""
TELLING_S: Final = 10.0
"""What is expected to take longer is said,"""
MOST_S: Final = 900.0
"""and longer than this is refused, unless --method full asks for it."""
_SAMPLED_RANKS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """``chunk_hops``: of all calls of a row."""

    chunk_hops: int
    seconds: float

    def __str__(self) -> str:
        return f"about {self.chunk_hops:.1e} chunk-hops, {_told(self.seconds)} of simulation"


def forecast(case: Case, options: BenchOptions, size_bytes: int) -> Forecast:
    """Of one row.  Raises ConfigError where no algorithm does it."""
    topology, switching = case.topology, case.topology.switching
    chunk_bytes = options.chunk_bytes
    if switching is not None:
        chunk_bytes = min(chunk_bytes or switching.quantum_bytes, switching.quantum_bytes)
    n_calls = options.warmup + options.iterations
    n_chunks = fewest_chunks(topology, options, size_bytes, chunk_bytes)
    hops = round(n_calls * n_chunks * _mean_hops(topology, to_next=options.algorithm == "ring"))
    if switching is not None:
        return Forecast(chunk_hops=hops, seconds=hops * PACKET_HOP_S)
    return Forecast(chunk_hops=hops, seconds=n_calls * n_chunks * CHUNK_S + hops * CHUNK_HOP_S)


def check_feasible(case: Case, options: BenchOptions) -> None:
    """Refuse what would take very long.  Raises ConfigError."""
    if options.method == "full":
        return
    expected, n_calls = forecast(case, options, options.end_bytes), options.warmup + options.iterations
    if expected.seconds > MOST_S:
        raise ConfigError(
            f"{case.name}: {options.collective} of {format_bytes(options.end_bytes)}, {n_calls} calls, is {expected},"
            f" and at most {MOST_S / 60:.0f} min are begun; use a smaller -e, fewer -n, a larger --chunk, or"
            " --method full to wait for it"
        )


def fewest_chunks(topology: Topology, options: BenchOptions, size_bytes: int, chunk_bytes: int | None) -> int:
    """About how many chunks one call sends, by the algorithm that sends fewest of those that may be taken."""
    if options.collective == "sendrecv":
        return topology.n_ranks * -(-size_bytes // (chunk_bytes or MAX_AUTO_CHUNK_BYTES))
    if options.collective in NO_ALGORITHM:
        return estimated_chunks(topology, "alltoall", "direct", size_bytes, chunk_bytes)
    text = options.algorithm
    names = selected(text, options.collective) if is_choice(text) else (algorithm_name(text),)
    found = []
    for name in names:
        with suppress(ConfigError):  # not over these ranks
            found.append(estimated_chunks(topology, options.collective, name, size_bytes, chunk_bytes))
    return min(found, default=0)


def _mean_hops(topology: Topology, *, to_next: bool) -> float:
    """Links on the way from a rank to the next, or to others all round, of some ranks."""
    n, ranks = topology.n_ranks, topology.ranks
    if n < 2:
        return 0.0
    stride = max(1, n // _SAMPLED_RANKS)
    pairs = [(first, (first + step) % n) for first in range(0, n, stride) for step in ([1] if to_next else range(1, n, stride))]
    return sum(len(topology.route(ranks[first], ranks[second], 0)) for first, second in pairs) / len(pairs)


def _told(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
