"""Incast: 2, 4 and 7 hosts send 16 MiB each to one, over 400 Gbit/s links of 1 us, through a switch with 16 MiB of buffer.

With priority flow control nothing is lost and all get the same.  DCQCN (with a buffer that holds the first round trip) takes most
of the pauses away: with NVIDIA's default parameters, which cut by half and recover slowly, at the price of a third of the link;
tuned, of a few percent.  With neither, packets drop and are sent again.

    python examples/congestion/incast.py --plot incast.png
    python examples/congestion/incast.py --driver emulate --dilation 4000 --size-mib 4       real processes and sockets

Emulated, everything is slowed down alike: at dilation 1000 the links are 50 MB/s and 1 ms on the wall, and every timer of a
congestion control is a thousand times as long.  The figures are the model's; "late" is by how much the stopwatch disagreed.
"""

from __future__ import annotations

import argparse

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


def study(
    n_senders: int, n_bytes: int, rules: dict[str, str], driver: str = "simulate", dilation: float = 1000
) -> dict[str, float]:
    """One incast: share of the link, Jain's index over the hosts' throughputs, counters, and how late the host was."""
    settings = {"ranks": str(n_senders + 1), "rate": "400Gbit/s", "latency": "2us", "buffer": "16MiB", **rules}
    with emu.Session("star", settings=settings, driver=driver, dilation=dilation) as session:
        flows = [Flow(source, 0, n_bytes) for source in range(1, n_senders + 1)]
        arrivals = run(session, flows)
        totals = session.congestion().totals()
    ends_us = [arrival.end_us for arrival in arrivals]
    return {
        "goodput_percent": 100 * n_senders * n_bytes / (max(ends_us) * 50_000),
        "jain": jain([n_bytes / end_us for end_us in ends_us]),
        "late_percent": 100 * max(arrival.late_ns for arrival in arrivals) / (max(ends_us) * 1e3 * dilation),
        "pauses": totals["rx_pause_transition"],
        "marks": totals["ecn_marked"],
        "drops": totals["discards"],
        "resent_MB": totals["retransmitted_bytes"] / 1e6,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="incast under four rules")
    parser.add_argument("--size-mib", type=int, default=16, help="what each host sends (default 16)")
    parser.add_argument("--driver", choices=("simulate", "emulate"), default="simulate", help="default simulate")
    parser.add_argument("--dilation", type=float, default=3000, help="wall over model time when emulating (default 3000)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    fan_ins = (2, 4, 7)
    print("rules            fan-in  of link   Jain  pauses   marks   drops  resent MB    late")
    found: dict[str, list[dict[str, float]]] = {}
    for name, rules in RULES.items():
        for n in fan_ins:
            result = study(n, options.size_mib << 20, rules, options.driver, options.dilation)
            found.setdefault(name, []).append(result)
            print(
                f"{name:<16} {n:>4}:1 {result['goodput_percent']:>6.1f} % {result['jain']:>6.3f} {result['pauses']:>7}"
                f" {result['marks']:>7} {result['drops']:>7} {result['resent_MB']:>10.1f} {result['late_percent']:>5.1f} %",
                flush=True,
            )
    if options.plot:
        series = {name: [result["goodput_percent"] for result in results] for name, results in found.items()}
        figures.bars(options.plot, "Incast: useful share of the receiver's link", "%", [f"{n}:1" for n in fan_ins], series, 100.0)


if __name__ == "__main__":
    main()
