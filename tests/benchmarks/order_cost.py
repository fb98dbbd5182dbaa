"""What it costs to keep order: CPU time per frame with the floor page, against the slack that keeps it across hosts.

The same all-reduce runs alternately in two sessions at one dilation, where the host keeps pace: in one the actors share a page
of floors ("by the page": nothing can be handled out of order), in the other they are told that they share none ("by slack": an
event waits for half the smallest latency, and what comes too late is counted).  "unpaced" neither waits nor keeps order.  The
actors' CPU seconds are divided by the frames that they sent; "cost %" is what the page adds to the slack, from the medians.

    PYTHONPATH=. python tests/benchmarks/order_cost.py [--fabric dgx-h100-8] [--size 16777216] [--dilation 5000] [--json]
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from unittest import mock

import numpy as np
import psutil
from ray.runtime_context import RuntimeContext
from results import parser, show, spread

import emu

CALLS = 3


def all_reduce(rank: emu.Rank, n_bytes: int) -> None:
    data = np.ones(n_bytes // 4, dtype=np.float32)
    for _ in range(CALLS):
        rank.comm.all_reduce(data, algorithm="ring")


def cpu_s(processes: list[psutil.Process]) -> float:
    """User and system time so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def actors() -> set[psutil.Process]:
    return {child for child in psutil.Process().children(recursive=True) if "HostActor" in " ".join(child.cmdline())}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--fabric", default="dgx-h100-8")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--size", type=int, default=16 * 2**20)
    options.add_argument("--dilation", type=float, default=5000)
    options.add_argument("--repeat", type=int, default=7)
    given = options.parse_args()
    settings = dict(item.split("=", 1) for item in given.set)
    per_frame_us: dict[str, list[float]] = {"by slack": [], "by the page": [], "unpaced": []}
    violations = dict.fromkeys(per_frame_us, 0)
    frames = 0
    with ExitStack() as stack:
        hosts: dict[str, tuple[emu.Session, list[psutil.Process]]] = {}
        for order in ("by slack", "by the page"):
            before = actors()
            elsewhere = mock.patch.object(RuntimeContext, "get_node_id", return_value="another host")
            with elsewhere if order == "by slack" else ExitStack():
                session = stack.enter_context(
                    emu.Session(given.fabric, settings=settings, dilation=given.dilation, transport="tcp")
                )
            hosts[order] = session, sorted(actors() - before, key=lambda process: process.pid)
            session.run(all_reduce, given.size)
        hosts["unpaced"] = hosts["by the page"]
        for _ in range(given.repeat):
            for order, (session, processes) in hosts.items():
                session.begin(dilation=0.0 if order == "unpaced" else given.dilation)
                before_s = cpu_s(processes)
                session.run(all_reduce, given.size)
                counters = session.counters()
                frames = counters.frames
                violations[order] += counters.order_violations
                per_frame_us[order].append((cpu_s(processes) - before_s) * 1e6 / frames)
    base_us = median(per_frame_us["by slack"])
    show(
        [
            {
                "order": order,
                "frames": frames,
                "CPU us/frame": median(values),
                "spread": spread(values),
                "violations": violations[order],
                "cost %": 100 * (median(values) / base_us - 1) if order == "by the page" else None,
            }
            for order, values in per_frame_us.items()
        ],
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
