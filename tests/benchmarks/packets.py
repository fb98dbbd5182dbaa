"""Packet-hops per second of the simulated packet plane on one core, with PFC and ECN on, without payload.

    python tests/benchmarks/packets.py [--profile]

A packet-hop is one packet over one link.  At least 25,000 a second are asked for.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "sim"))

import numpy as np
from packet_cases import MIB, Flow, exchange, leaf_spine, run, star, switching, traffic_class

from emu.rank import Rank
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Marking, Switching

LEAST_HOPS_PER_SECOND = 25_000


def rules(*, control: str = "none", n_classes: int = 1) -> Switching:
    """PFC with marking between 800 KB and 3.2 MB (HPCC's figures for 400 Gbit/s); further classes are idle but scheduled."""
    marking = Marking(kmin_bytes=800_000, kmax_bytes=3_200_000, pmax=Fraction(1, 5))
    data = traffic_class(marking=marking, control=control)
    others = [replace(data, name=f"c{number}", priority=number, discipline=Discipline.DROP) for number in range(1, n_classes)]
    return switching(data, *others)


def blank(n_bytes: int) -> Any:
    return np.broadcast_to(np.zeros(1, np.float32), (n_bytes // 4,))


def alltoall(rank: Rank, n_bytes: int) -> None:
    rank.comm.alltoall(blank(n_bytes * rank.world_size), blank(n_bytes * rank.world_size), algorithm="direct")


def all_reduce(rank: Rank, n_bytes: int) -> None:
    rank.comm.all_reduce(blank(n_bytes), blank(n_bytes), algorithm="ring")


INCAST: list[Flow] = [(source, 0, 16 * MIB) for source in range(1, 8)]


def cases() -> list[tuple[str, Topology, Callable[..., Any], tuple[Any, ...]]]:
    return [
        ("incast 7 to 1 of 16 MiB, star", star(8, rules()), exchange, (INCAST, False)),
        ("the same with DCQCN", star(8, rules(control="dcqcn")), exchange, (INCAST, False)),
        ("the same, 4 classes", star(8, rules(n_classes=4)), exchange, (INCAST, False)),
        ("alltoall of 64 ranks, 64 KiB a pair, clos", leaf_spine(8, 8, 8, rules()), alltoall, (65536,)),
        ("all_reduce of 64 ranks, 16 MiB, clos", leaf_spine(8, 8, 8, rules()), all_reduce, (16 * MIB,)),
    ]


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    for name, fabric, function, args in cases():
        profile = cProfile.Profile()
        engines: list[Any] = []

        def prepared(engine: Any, keep: Callable[[Any], None] = engines.append) -> None:
            keep(engine)

        start_s = time.process_time()
        if options.profile:
            profile.enable()
        run(fabric, function, *args, payload=False, prepare=prepared)
        profile.disable()
        spent_s = time.process_time() - start_s
        hops = sum(port.statistics().frames for port in engines[0].ports.values())
        verdict = "ok" if hops / spent_s >= LEAST_HOPS_PER_SECOND else "too slow"
        print(f"{name:44} {hops:8,} packet-hops {spent_s:6.2f} s {hops / spent_s:9,.0f} a second  {verdict}")
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
