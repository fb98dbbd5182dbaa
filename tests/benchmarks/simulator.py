"""Speed of the simulating driver: chunk hops per second of host time, without payload.

A ring all-reduce and a direct alltoall run on a clos of 64 accelerators (8 leaves, 8 spines).  One chunk that
crosses one link is one hop; "hops/s" is the median over the repetitions, "spread" the slowest and the fastest of
them over the median.  "model us" must not change between versions unless the CHANGELOG says why.

    PYTHONPATH=. python tests/benchmarks/simulator.py [--repeat 10] [--size 16777216] [--json]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
from results import Row, parser, seconds, show, spread

import emu

CLOS = {"leaves": "8", "spines": "8", "accelerators_per_leaf": "8"}


def all_reduce(rank: emu.Rank, n_bytes: int) -> int:
    rank.comm.all_reduce(np.broadcast_to(np.zeros(1, dtype=np.uint8), (n_bytes,)), algorithm="ring")
    return rank.now_ps


def alltoall(rank: emu.Rank, n_bytes: int) -> int:
    blank = np.broadcast_to(np.zeros(1, dtype=np.uint8), (n_bytes,))
    rank.comm.alltoall(blank, blank, algorithm="direct")
    return rank.now_ps


def measure(session: emu.Session, function: Callable[[emu.Rank, int], int], n_bytes: int, times_ps: list[int]) -> None:
    """One run; its model time is added to ``times_ps``."""
    times_ps.append(max(session.run(function, n_bytes)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeat", type=int, default=10)
    options.add_argument("--size", type=int, default=16 * 2**20, help="bytes of the collective on each rank")
    given = options.parse_args()
    rows: list[Row] = []
    with emu.Session("clos", settings=CLOS, driver="simulate", payload=False) as session:
        for function in (all_reduce, alltoall):
            rates: list[float] = []
            times_ps: list[int] = []
            for _ in range(given.repeat):
                session.begin()
                took_s = seconds(partial(measure, session, function, given.size, times_ps))
                rates.append(session.counters().frames / took_s)
            rows.append(
                {
                    "collective": function.__name__,
                    "ranks": 64,
                    "hops": session.counters().frames,
                    "hops/s": round(median(rates)),
                    "spread": spread(rates),
                    "model us": times_ps[0] / 1e6,
                }
            )
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
