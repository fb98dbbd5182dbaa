"""Incast: 2, 4 and 7 hosts send 16 MiB each to one, over 400 Gbit/s links of 1 us, through a switch with 16 MiB of buffer.

With priority flow control nothing is lost and all get the same.  DCQCN (with a buffer that holds the first round trip) takes most
of the pauses away: with NVIDIA's default parameters, which cut by half and recover slowly, at the price of a third of the link;
tuned, of a few percent.  With neither, packets drop and are sent again.

    python examples/congestion/incast.py --plot incast.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import figures
from traffic import Flow, jain, run

import emu

RULES = {
    "PFC": {"switching": "roce-pfc"},
    "DCQCN, defaults": {"switching": "roce-dcqcn"},
    "DCQCN, tuned": {"switching": "roce-tuned"},
    "neither": {"switching": "drop"},
    "credits": {"switching": "infiniband"},
}


def study(n_senders: int, n_bytes: int, rules: dict[str, str]) -> dict[str, float]:
    """One incast: share of the link, Jain's index over the hosts' throughputs, and counters."""
    settings = {"ranks": str(n_senders + 1), "rate": "400Gbit/s", "latency": "2us", "buffer": "16MiB", **rules}
    with emu.Session("star", settings=settings, driver="simulate") as session:
        flows = [Flow(source, 0, n_bytes) for source in range(1, n_senders + 1)]
        arrivals = run(session, flows)
        totals = session.congestion().totals()
    ends_us = [arrival.end_us for arrival in arrivals]
    return {
        "goodput_percent": 100 * n_senders * n_bytes / (max(ends_us) * 50_000),
        "jain": jain([n_bytes / end_us for end_us in ends_us]),
        "pauses": totals["rx_pause_transition"],
        "marks": totals["ecn_marked"],
        "drops": totals["discards"],
        "resent_MB": totals["retransmitted_bytes"] / 1e6,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="incast under four rules")
    parser.add_argument("--size-mib", type=int, default=16, help="what each host sends (default 16)")
    parser.add_argument("--plot", type=Path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    fan_ins = (2, 4, 7)
    found = {name: [study(n, options.size_mib << 20, rules) for n in fan_ins] for name, rules in RULES.items()}
    print(f"{'rules':<16} {'fan-in':>6} {'of link':>8} {'Jain':>6} {'pauses':>7} {'marks':>7} {'drops':>7} {'resent MB':>10}")
    for name, results in found.items():
        for n, result in zip(fan_ins, results, strict=True):
            print(
                f"{name:<16} {n:>4}:1 {result['goodput_percent']:>6.1f} % {result['jain']:>6.3f} {result['pauses']:>7}"
                f" {result['marks']:>7} {result['drops']:>7} {result['resent_MB']:>10.1f}"
            )
    if options.plot:
        series = {name: [result["goodput_percent"] for result in results] for name, results in found.items()}
        figures.bars(options.plot, "Incast: useful share of the receiver's link", "%", [f"{n}:1" for n in fan_ins], series, 100.0)


if __name__ == "__main__":
    main()
