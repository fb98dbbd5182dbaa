"""A slow receiver: an adapter that takes in 78.3 % of what its link brings pauses its sender for the other 21.7 %.

python examples/congestion/slow_receiver.py --plot slow_receiver.png
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import figures
from traffic import Flow, run

import emu
from emu.telemetry.diagnosis import diagnose, words
from emu.topologies.fabric_file import load_fabric

RATE_BPS = 400 * 10**9


def study(share: float, n_bytes: int) -> dict[str, object]:
    """One flow into an adapter that drains at ``share`` of the line."""
    fabric = load_fabric("star", {"ranks": "2", "rate": "400Gbit/s", "latency": "2us", "switching": "roce-pfc"})
    slow = fabric.ranks[1]
    nodes = list(fabric.nodes)
    if share < 1:
        nodes[slow] = replace(nodes[slow], drain_rate_bps=int(share * RATE_BPS))
    with emu.Session(replace(fabric, nodes=tuple(nodes)), driver="simulate", payload=False) as session:
        end_us = run(session, [Flow(0, 1, n_bytes)])[0].end_us
        report = session.congestion()
    last_hop = next(port for port in report.ports if port.peer == fabric.nodes[slow].name)
    return {
        "goodput_percent": 100 * n_bytes / (end_us * RATE_BPS / 8e6),
        "pause_percent": 100 * last_hop.queue.pause_ps / 1e6 / end_us,
        "drops": report.discards,
        "verdict": words(diagnose(report)),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a receiver that drains more slowly than its link")
    parser.add_argument("--size-mib", type=int, default=64, help="what is sent (default 64)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    shares = (1.0, 0.9, 0.783, 0.5, 0.25)
    found = {share: study(share, options.size_mib << 20) for share in shares}
    print(f"{'drains at':>9} {'goodput':>9} {'paused':>8} {'drops':>6}  says")
    for share, result in found.items():
        print(
            f"{100 * share:>7.1f} % {result['goodput_percent']:>7.1f} % {result['pause_percent']:>6.1f} % {result['drops']:>6}"
            f"  {result['verdict']}"
        )
    if options.plot:
        names = [f"{100 * share:.1f} %" for share in shares]
        series = {what: [float(str(found[s][f"{what}_percent"])) for s in shares] for what in ("goodput", "pause")}
        title = "A receiver that drains at a share of its link (below), under PFC"
        figures.bars(options.plot, title, "% of the time or of the link", names, series)


if __name__ == "__main__":
    main()
