"""ECMP collisions: eight flows over four uplinks, over many seeds, against policies that do not hash flows.

The slowest flow shares its uplink with the most others.  Eight balls thrown into four bins fill the fullest one 3.54 high in the
mean, 1.77 times the even share of 2, and only 3.85 % of throws are even: 8! / (2!^4 4^8).

    python examples/congestion/ecmp_collisions.py --seeds 200 --plot ecmp_collisions.png
"""

from __future__ import annotations

import argparse

import figures
from traffic import Flow, run

import emu

POLICIES = {
    "ecmp": {"balancing": "ecmp"},
    "ecmp, 4 queue pairs": {"balancing": "ecmp", "queue_pairs": "4"},
    "adaptive": {"balancing": "adaptive"},
    "spray": {"balancing": "spray"},
}


def study(rules: dict[str, str], seed: int, n_bytes: int) -> float:
    """The slowest flow's time over what it would take alone, for eight flows between two leaves with four spines."""
    settings = {
        "leaves": "2",
        "spines": "4",
        "accelerators_per_leaf": "8",
        "oversubscription": "2",
        "rate": "100Gbit/s",
        "latency": "500ns",
        "switching": "roce-pfc",
        "buffer": "64MiB",
        "quantum": "16KiB",
        **rules,
    }
    flows = [Flow(i, 8 + i, n_bytes, piece_bytes=n_bytes // 4) for i in range(8)]
    with emu.Session("clos", settings=settings, driver="simulate", seed=seed, payload=False) as session:
        return max(arrival.end_us for arrival in run(session, flows)) / (2 * n_bytes / 12_500)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="collisions of hashed flows")
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds (default 50)")
    parser.add_argument("--size-kib", type=int, default=512, help="what each flow sends (default 512)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    print(f"{'policy':<20} {'mean slowdown':>14} {'perfect':>9}")
    means = {}
    for name, rules in POLICIES.items():
        found = [study(rules, seed, options.size_kib << 10) for seed in range(options.seeds)]
        means[name] = sum(found) / len(found)
        print(f"{name:<20} {means[name]:>14.2f} {100 * sum(x < 1.1 for x in found) / len(found):>7.1f} %")
    if options.plot:
        title = "Eight flows over four uplinks: the slowest flow, mean over seeds"
        figures.bars(options.plot, title, "x the ideal time", list(means), {"slowdown": list(means.values())}, 1.0)


if __name__ == "__main__":
    main()
