"""DCQCN: a second flow joins a first one on a 400 Gbit/s link; how soon, and how evenly, they share it.

python examples/congestion/fair_shares.py --plot fair_shares.png
"""

from __future__ import annotations

import argparse

import figures
from traffic import Arrival, Flow, run

import emu

CONTROLS = {
    "DCQCN, NVIDIA's parameters": {"switching": "roce-dcqcn"},
    "DCQCN, HPCC's parameters": {"switching": "roce-dcqcn", "control_parameters": "set=hpcc"},
    "no control, PFC": {"switching": "roce-pfc"},
}


def study(rules: dict[str, str], n_bytes: int, begin_us: float) -> list[Arrival]:
    """Arrivals of two flows from two hosts to a third; the second begins at ``begin_us``."""
    settings = {"ranks": "3", "rate": "400Gbit/s", "latency": "2us", "buffer": "16MiB", **rules}
    flows = [Flow(1, 0, n_bytes, piece_bytes=1 << 18), Flow(2, 0, n_bytes, start_us=begin_us, piece_bytes=1 << 18)]
    with emu.Session("star", settings=settings, driver="simulate", payload=False) as session:
        return run(session, flows)


def rates(arrival: Arrival, piece_bytes: int, window_us: float) -> tuple[list[float], list[float]]:
    """(time us, GB/s) in windows of ``window_us``."""
    last = int(arrival.end_us / window_us) + 1
    counts = [0] * last
    for piece_us in arrival.pieces_us:
        counts[min(last - 1, int(piece_us / window_us))] += 1
    return [(i + 0.5) * window_us for i in range(last)], [count * piece_bytes / window_us / 1e3 for count in counts]


def shares(arrivals: list[Arrival], piece_bytes: int, from_us: float, to_us: float) -> list[float]:
    """GB/s of each flow between two times."""
    return [
        sum(from_us <= piece_us < to_us for piece_us in arrival.pieces_us) * piece_bytes / (to_us - from_us) / 1e3
        for arrival in arrivals
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="two flows under congestion control")
    parser.add_argument("--size-mib", type=int, default=64, help="what each flow sends (default 64)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    curves = {}
    for name, rules in CONTROLS.items():
        arrivals = study(rules, options.size_mib << 20, 200.0)
        ends_us = min(arrival.end_us for arrival in arrivals)
        first, second = shares(arrivals, 1 << 18, 200 + (ends_us - 200) / 2, ends_us)
        print(f"{name:<28} second half together: {first:5.2f} and {second:5.2f} GB/s, apart by {abs(first / second - 1):.1%}")
        if name.startswith("DCQCN, NVIDIA"):
            curves = {f"flow {i + 1}": rates(arrival, 1 << 18, 50.0) for i, arrival in enumerate(arrivals)}
    if options.plot:
        figures.lines(options.plot, "Two flows under DCQCN (NVIDIA's parameters)", "us", "GB/s", curves)


if __name__ == "__main__":
    main()
