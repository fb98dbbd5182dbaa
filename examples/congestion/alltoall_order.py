"""The order of an alltoall: when every host serves its peers in the same order there is an incast in every step; when each
begins with its next neighbour there is none.

    python examples/congestion/alltoall_order.py --plot alltoall_order.png
"""

from __future__ import annotations

import argparse
from typing import Any

import figures
import numpy as np

import emu

SETTINGS = {"ranks": "8", "rate": "400Gbit/s", "latency": "2us", "buffer": "16MiB", "switching": "roce-pfc"}


def exchange(rank: Any, n_bytes: int, shifted: bool) -> tuple[float, int]:
    """One alltoall, a peer at a time; (microseconds, wrong bytes) of this rank."""
    n, me, begin_ps = rank.world_size, rank.index, rank.now_ps
    others = [peer for peer in range(n) if peer != me]
    buffers = {peer: np.zeros(n_bytes, np.uint8) for peer in others}
    receives = [rank.comm.recv(buffers[peer], peer, async_op=True) for peer in others]
    order = [(me + step) % n for step in range(1, n)] if shifted else others
    for peer in order:
        rank.comm.send(np.full(n_bytes, me + 1, np.uint8), peer)
    end_ps = max(work.wait() for work in receives)
    return (end_ps - begin_ps) / 1e6, sum(int((buffer != peer + 1).sum()) for peer, buffer in buffers.items())


def study(n_bytes: int) -> dict[str, tuple[float, float, int]]:
    """By order: (time us, pause us over all ports, largest queue in bytes)."""
    found = {}
    for name, shifted in {"naive (0, 1, 2, ...)": False, "shifted (me + 1, me + 2, ...)": True}.items():
        with emu.Session("star", settings=SETTINGS, driver="simulate") as session:
            results = session.run(exchange, n_bytes, shifted)
            report = session.congestion()
        assert not any(n_wrong for _, n_wrong in results)
        deepest = max(port.queue.peak_queue_bytes for port in report.ports)
        found[name] = max(time_us for time_us, _ in results), report.pause_ps / 1e6, deepest
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="the order of an alltoall")
    parser.add_argument("--size-mib", type=int, default=2, help="what each host sends to each other one (default 2)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    found = study(options.size_mib << 20)
    print(f"{'order':<30} {'time us':>8} {'paused us':>10} {'deepest queue KB':>17}")
    for name, (time_us, pause_us, deepest) in found.items():
        print(f"{name:<30} {time_us:>8.1f} {pause_us:>10.1f} {deepest / 1e3:>17.1f}")
    if options.plot:
        times = [time_us for time_us, _, _ in found.values()]
        figures.bars(options.plot, "An alltoall of 8 hosts, by order", "finished after, us", list(found), {"time": times})


if __name__ == "__main__":
    main()
