"""What metrics cost: CPU time per frame and hop of unpaced all-reduces, with an exporter that is scraped each second or none.

Two sessions of the same fabric, one with ``metrics``, take turns (dilation 0, where nothing hides in the pacing).  "us/hop" is
the CPU time of all their actors, the exporter's included, over the frames and hops of the run; the median over runs.  "cost" is
the first over the second.  What counts is always on: the integers that links and calls add to; "count ns" is what a frame and hop
spends on counting its delay, measured alone.

    PYTHONPATH=. python tests/benchmarks/telemetry.py [--fabric star] [--size 1048576] [--calls 300] [--repeat 7] [--json]
"""

from __future__ import annotations

import threading
import urllib.request
from statistics import median
from timeit import repeat

import numpy as np
import psutil
from results import Row, parser, show, spread

import emu
from emu.fabric.counters import DelayCounts

N_RANKS = 4
SCRAPE_S = 1.0


def work(rank: emu.Rank, n_bytes: int, n_calls: int) -> None:
    data = np.ones(n_bytes // 4, dtype=np.float32)
    for _ in range(n_calls):
        rank.comm.all_reduce(data, algorithm="ring", op="max")


def cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def processes_of(session: emu.Session) -> list[psutil.Process]:
    """Its actors, and the exporters, by the ports that they listen at."""
    ids = set(session.process_ids().values())
    ports = {int(endpoint.split(":")[2].split("/")[0]) for endpoint in session.metrics_endpoints()}
    ids |= {found.pid for found in psutil.net_connections("tcp") if found.status == "LISTEN" and found.laddr.port in ports}
    return [psutil.Process(found) for found in ids]


def scrape(endpoints: tuple[str, ...], over: threading.Event, scraped: list[int]) -> None:
    while not over.wait(SCRAPE_S):
        for endpoint in endpoints:
            with urllib.request.urlopen(endpoint) as answer:
                scraped.append(len(answer.read()))


def per_hop_us(session: emu.Session, n_bytes: int, n_calls: int, scraped: list[int]) -> float:
    session.begin()
    session.run(work, n_bytes, 2)
    processes, frames = processes_of(session), session.counters().frames
    over = threading.Event()
    scraper = threading.Thread(target=scrape, args=(session.metrics_endpoints(), over, scraped))
    scraper.start()
    before = cpu_s(processes)
    session.run(work, n_bytes, n_calls)
    used_s = cpu_s(processes) - before
    over.set()
    scraper.join()
    return used_s * 1e6 / (session.counters().frames - frames)


def count_ns() -> float:
    """Counting one delay, less an empty loop."""
    names = {"counts": DelayCounts(), "now_ps": 5, "head_ps": 2_000_005, "first_ps": 1_000, "latency_ps": 1_000_000}
    counting = "counts.count(head_ps - now_ps, first_ps + latency_ps)"
    return (min(repeat(counting, number=10**6, globals=names)) - min(repeat("pass", number=10**6))) * 1e3


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--fabric", default="star")
    options.add_argument("--size", type=int, default=2**20)
    options.add_argument("--calls", type=int, default=300)
    options.add_argument("--repeat", type=int, default=7)
    given = options.parse_args()
    common = {"settings": {"ranks": str(N_RANKS)}, "dilation": 0, "accelerators_per_actor": 1}
    scraped: list[int] = []
    with emu.Session(given.fabric, metrics="auto", **common) as on, emu.Session(given.fabric, **common) as off:
        values: dict[str, list[float]] = {"on": [], "off": []}
        for number in range(given.repeat):
            for name, session in (("on", on), ("off", off)) if number % 2 else (("off", off), ("on", on)):
                values[name].append(per_hop_us(session, given.size, given.calls, scraped))
    rows: list[Row] = [
        {"metrics": name, "us/hop": median(found), "spread": spread(found), "cost": median(found) / median(values["off"])}
        for name, found in values.items()
    ]
    rows[0] |= {"scrapes": len(scraped), "count ns": count_ns()}
    rows[1] |= {"scrapes": 0, "count ns": None}
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
