"""Tails: 64 hosts send 1 MiB each to one, through 4 MiB of buffer, by ends' control (DCQCN) and by explicit credits.

A rate control learns of the incast after its first round trip, when the buffer has overflowed already; a credit is asked for
before a byte is sent.  The figure shows when the messages have come, the last ones most of all.  Its steps are retransmission
timeouts, 1 ms here; adapters come with tens of ms, which stretch the steps.

    python examples/congestion/tails.py --plot tails.png
"""

from __future__ import annotations

import argparse

import figures
from traffic import Flow, percentile, run

import emu

RULES = {
    "DCQCN, go back N": {"switching": "roce-lossy", "recovery": "go_back_n"},
    "DCQCN, selective repeat": {"switching": "roce-lossy"},
    "NSCC, trimming": {"switching": "ultra-ethernet"},
    "credits": {"switching": "infiniband"},
}


def study(rules: dict[str, str], n_senders: int, n_bytes: int) -> tuple[list[float], dict[str, object]]:
    """When each message had come, us, in order; and counters."""
    settings = {
        "ranks": str(n_senders + 1),
        "rate": "400Gbit/s",
        "latency": "1us",
        "buffer": "4MiB",
        "quantum": "16KiB",
        "timeout": "1ms",
        **rules,
    }
    with emu.Session("star", settings=settings, driver="simulate", payload=False) as session:
        arrivals = run(session, [Flow(source, 0, n_bytes) for source in range(1, n_senders + 1)])
        totals = session.congestion().totals()
    return sorted(arrival.end_us for arrival in arrivals), totals


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="an incast that the buffer cannot hold")
    parser.add_argument("--senders", type=int, default=64, help="how many hosts send (default 64)")
    parser.add_argument("--size-kib", type=int, default=1024, help="what each sends (default 1024)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    found = {name: study(rules, options.senders, options.size_kib << 10) for name, rules in RULES.items()}
    print(f"{'rules':<24} {'median us':>10} {'p99 us':>10} {'last us':>10} {'drops':>8} {'trims':>8}")
    for name, (ends_us, totals) in found.items():
        print(
            f"{name:<24} {percentile(ends_us, 0.5):>10.1f} {percentile(ends_us, 0.99):>10.1f} {ends_us[-1]:>10.1f}"
            f" {totals['discards']!s:>8} {totals['trimmed']!s:>8}"
        )
    last_us = {name: ends_us[-1] for name, (ends_us, _) in found.items()}
    print(f"DCQCN's last message comes {last_us['DCQCN, selective repeat'] / last_us['credits']:.1f} x as late as with credits")
    if options.plot:
        curves = {name: (ends_us, [(i + 1) / len(ends_us) for i in range(len(ends_us))]) for name, (ends_us, _) in found.items()}
        figures.lines(options.plot, f"{options.senders} to 1: share of the messages that have come", "us", "share", curves)


if __name__ == "__main__":
    main()
