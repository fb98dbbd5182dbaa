"""A PFC storm: one stuck adapter in a leaf-spine pauses all that send to it, and pauses spread to flows that never met it.

Eight hosts under four leaves.  Host 0 sticks at 100 us.  Three hosts send to it; five flows have other targets.  The table says
how much of what they had before each flow keeps, with and without SONiC's watchdog.

    python examples/congestion/pause_storm.py --plot pause_storm.png
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import figures
from traffic import Arrival, Flow, run

import emu
from emu.topologies.fabric_file import load_fabric

SETTINGS = {
    "leaves": "4",
    "spines": "2",
    "accelerators_per_leaf": "2",
    "rate": "100Gbit/s",
    "latency": "500ns",
    "switching": "roce-pfc",
    "buffer": "4MiB",
    "recovery": "go_back_n",
    "timeout": "20ms",
}
STUCK_FROM_US = 100.0
FLOWS = ((2, 0), (4, 0), (6, 0), (2, 4), (4, 6), (6, 2), (3, 5), (5, 7))


def study(n_bytes: int, storm_us: float, watchdog: bool) -> tuple[list[Arrival], dict[str, object]]:
    """Arrivals of the flows, and counters."""
    rules = {"watchdog_detection": "200us", "watchdog_restoration": "200us"} if watchdog else {}
    fabric = load_fabric("clos", SETTINGS | rules)
    nodes = list(fabric.nodes)
    if storm_us:
        stuck = fabric.ranks[0]
        nodes[stuck] = replace(nodes[stuck], pause_storm=(int(STUCK_FROM_US * 1e6), int(storm_us * 1e6)))
    with emu.Session(replace(fabric, nodes=tuple(nodes)), driver="simulate", payload=False) as session:
        arrivals = run(session, [Flow(source, target, n_bytes, piece_bytes=1 << 18) for source, target in FLOWS])
        report = session.congestion()
    paused = sum(port.queue.pause_ps > 0 for port in report.ports)
    return arrivals, {"ports paused": paused, **report.totals()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a storm of pauses from one stuck host")
    parser.add_argument("--size-mib", type=int, default=8, help="what each flow sends (default 8)")
    parser.add_argument("--storm-ms", type=float, default=5.0, help="how long the host is stuck (default 5)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    n_bytes, storm_us = options.size_mib << 20, options.storm_ms * 1e3
    cases = {"healthy": (0.0, False), "storm": (storm_us, False), "storm, watchdog": (storm_us, True)}
    found = {name: study(n_bytes, *case) for name, case in cases.items()}
    names = [f"a{source}->a{target}" for source, target in FLOWS]
    print(f"{'finished after us':<18}" + "".join(f"{name:>10}" for name in names))
    for case, (arrivals, _) in found.items():
        print(f"{case:<18}" + "".join(f"{arrival.end_us:>10.0f}" for arrival in arrivals))
    for case, (_, counters) in found.items():
        print(
            f"{case}: {counters['ports paused']} ports paused for {float(str(counters['rx_pause_duration_us'])):.0f} us in all,"
            f" {counters['pfcwd_storms']} storms seen by the watchdog, which dropped {counters['pfcwd_dropped']} packets"
        )
    if options.plot:
        series = {case: [arrival.end_us / 1e3 for arrival in arrivals] for case, (arrivals, _) in found.items()}
        figures.bars(options.plot, "A stuck host (a0), and what the others feel", "finished after, ms", names, series)


if __name__ == "__main__":
    main()
