"""Two rings on one adapter: when two jobs send over the same link, each gets exactly half of it.

A leaf-spine of two racks of two hosts: job A sends h0 -> h2, job B h0 -> h3, both from the same adapter.

    python examples/congestion/two_rings.py --plot two_rings.png
"""

from __future__ import annotations

import argparse

import figures
from traffic import Flow, run

import emu

SETTINGS = {"ranks": "4", "rate": "400Gbit/s", "latency": "2us", "switching": "roce-pfc"}


def study(n_bytes: int) -> dict[str, float]:
    """Throughput of the first job's flow alone and beside the second's, GB/s."""
    found = {}
    for name, flows in {
        "job A alone": [Flow(0, 2, n_bytes)],
        "job A beside B": [Flow(0, 2, n_bytes), Flow(0, 3, n_bytes)],
    }.items():
        with emu.Session("star", settings=SETTINGS, driver="simulate") as session:
            found[name] = n_bytes / run(session, flows)[0].end_us / 1e3
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="two jobs on one adapter")
    parser.add_argument("--size-mib", type=int, default=16, help="what each job sends (default 16)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    found = study(options.size_mib << 20)
    for name, rate in found.items():
        print(f"{name:<16} {rate:6.2f} GB/s")
    print(f"share beside B: {found['job A beside B'] / found['job A alone']:.3f}")
    if options.plot:
        figures.bars(options.plot, "Two rings on one adapter", "GB/s", list(found), {"job A": list(found.values())}, 50.0)


if __name__ == "__main__":
    main()
