"""One slow uplink in a leaf-spine: how much of an all-to-all does each balancing policy save?

    python examples/congestion/balancing.py                    a table over 30 seeds (about a minute)
    python examples/congestion/balancing.py --seeds 5          quicker
    python examples/congestion/balancing.py --plot slow.png    a plot as well, with matplotlib

Four leaves of four accelerators at 400 Gbit/s, four spines, priority flow control, everything simulated.  One of the
sixteen uplinks runs at a quarter of its rate.  A policy that does not look keeps sending a quarter of its leaf's traffic
over it; adaptive routing sees its queue and goes elsewhere.  A seed changes what is hashed or drawn, and so how flows collide.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import figures
import numpy as np

import emu
from emu.units import format_time, parse_bytes

POLICIES = ("static", "ecmp", "flowlet", "adaptive", "spray")
SETTINGS = {"discipline": "pause", "buffer": "32MiB", "quantum": "8KiB"}
SLOW_UPLINK = ("s0->s4=throttle,factor=0.25",)


@dataclass(frozen=True)
class Row:
    """Times of one policy over all seeds, ps."""

    policy: str
    healthy_ps: int
    median_ps: int
    p99_ps: int


def exchange(rank: emu.Rank, block_bytes: int) -> int:
    """Every rank sends a block to every other rank."""
    send = np.zeros(rank.world_size * block_bytes, np.uint8)
    rank.comm.alltoall(send, np.empty_like(send))
    return rank.now_ps


def times_ps(policy: str, seeds: int, block_bytes: int, impairments: tuple[str, ...]) -> list[int]:
    """When the last rank is done, for every seed."""
    settings = SETTINGS | {"balancing": policy}
    found = []
    with emu.Session("clos", settings=settings, driver="simulate", payload=False, impairments=impairments) as session:
        for seed in range(seeds):
            session.begin(seed=seed)
            found.append(max(session.run(exchange, block_bytes)))
    return found


def compare(seeds: int, block_bytes: int) -> list[Row]:
    """A row for each policy."""
    rows = []
    for policy in POLICIES:
        healthy = times_ps(policy, seeds, block_bytes, ())
        slow = times_ps(policy, seeds, block_bytes, SLOW_UPLINK)
        median, p99 = (int(np.percentile(slow, share, method="higher")) for share in (50, 99))
        rows.append(Row(policy, int(np.median(healthy)), median, p99))
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Bars of the medians and of the 99th percentile."""
    series = {
        "healthy, median": [row.healthy_ps / 1e6 for row in rows],
        "one uplink at 25 %, median": [row.median_ps / 1e6 for row in rows],
        "one uplink at 25 %, p99": [row.p99_ps / 1e6 for row in rows],
    }
    figures.bars(path, "All-to-all over 16 ranks, by balancing policy", "time, us", [row.policy for row in rows], series)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="One slow uplink in a leaf-spine under all-to-all, by balancing policy.")
    parser.add_argument("--seeds", type=int, default=30, help="how many seeds (30)")
    parser.add_argument("--block", default="64KiB", help="bytes that each rank sends to each other (64KiB)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: use 1 or more")
    rows = compare(options.seeds, parse_bytes(options.block))
    print(f"all-to-all over 16 ranks, {options.block} a pair, {options.seeds} seeds; one of 16 uplinks at 25 %")
    print(f"{'policy':>10}{'healthy':>12}{'median':>12}{'p99':>12}")
    for row in rows:
        times = "".join(f"{format_time(time_ps):>12}" for time_ps in (row.healthy_ps, row.median_ps, row.p99_ps))
        print(f"{row.policy:>10}{times}")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
