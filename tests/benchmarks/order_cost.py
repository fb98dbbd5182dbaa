"""What it costs to keep order: CPU time per frame with the floor page in use, against the same run without.

The same ring all-reduce runs alternately unpaced (dilation 0: nothing waits for order) and at a dilation so small
that every event is late (order is kept by the page, and no time is spent waiting for the clock).  The actors'
CPU seconds are divided by the frames that they sent; "cost %" is what order adds, from the medians.  It includes
asking again while a promise is outstanding, which a paced run spends waiting anyway: it is an upper bound.

    PYTHONPATH=. python tests/benchmarks/order_cost.py [--fabric star --set ranks=4] [--size 8388608] [--repeat 5] [--json]
"""

from __future__ import annotations

from statistics import median

import numpy as np
import psutil
from results import parser, seconds, show, spread

import emu

UNPACED, LATE = 0.0, 1e-6


def all_reduce(rank: emu.Rank, n_bytes: int, chunk_bytes: int) -> int:
    rank.comm.all_reduce(np.ones(n_bytes // 4, dtype=np.float32), algorithm="ring", chunk_bytes=chunk_bytes)
    return rank.now_ps


def cpu_s(processes: list[psutil.Process]) -> float:
    """User and system time so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--fabric", default="star")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--size", type=int, default=8 * 2**20)
    options.add_argument("--chunk", type=int, default=64 * 2**10)
    options.add_argument("--repeat", type=int, default=5)
    given = options.parse_args()
    settings = dict(item.split("=", 1) for item in given.set)
    per_frame_us: dict[float, list[float]] = {UNPACED: [], LATE: []}
    wall_s: dict[float, list[float]] = {UNPACED: [], LATE: []}
    frames = 0
    with emu.Session(given.fabric, settings=settings, dilation=UNPACED) as session:
        session.run(all_reduce, given.size, given.chunk)
        actors = [child for child in psutil.Process().children(recursive=True) if "HostActor" in " ".join(child.cmdline())]
        for _ in range(given.repeat):
            for dilation in (UNPACED, LATE):
                session.begin(dilation=dilation)
                before_s = cpu_s(actors)
                wall_s[dilation].append(seconds(lambda: session.run(all_reduce, given.size, given.chunk)))
                frames = session.counters().frames
                per_frame_us[dilation].append((cpu_s(actors) - before_s) * 1e6 / frames)
    base_us = median(per_frame_us[UNPACED])
    show(
        [
            {
                "order": "by the page" if dilation else "not kept",
                "frames": frames,
                "wall s": median(wall_s[dilation]),
                "CPU us/frame": median(values),
                "spread": spread(values),
                "cost %": 100 * (median(values) / base_us - 1) if dilation else None,
            }
            for dilation, values in per_frame_us.items()
        ],
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
