"""A link turns slow in the middle of a training run: what the metrics show, what the calls' times show, and what is found.

    python examples/diagnose.py

Under the simulating driver, so that it takes a second; nothing in it but ``driver`` would change under the other.
"""

from __future__ import annotations

import re

import numpy as np

import emu
from emu.diagnosis.diagnose import diagnose
from emu.diagnosis.report import finding_lines
from emu.telemetry.observation import Observation

LINK = "a3->a4"
FAULT = f"{LINK}=slow,factor=0.5"
SIZE_BYTES = 16 << 20


def train(rank: emu.Rank, n_steps: int) -> None:
    gradient = np.zeros(SIZE_BYTES // 4, np.float32)
    for _ in range(n_steps):
        rank.compute(us=300)
        rank.comm.all_reduce(gradient, op="avg", algorithm="torus")


def metric(session: emu.Session, name: str, link: str) -> float:
    """A counter of a link, as Prometheus would scrape it."""
    found = re.search(rf'^emu_{name}{{link="{re.escape(link)}"}} (\S+)$', session.metrics_text(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def effective_rates(session: emu.Session, before: dict[str, tuple[float, float]]) -> dict[str, float]:
    """GB/s while busy, by link, since the counters were ``before``, which are brought up to date."""
    rates = {}
    for link in [link.name for link in session.topology.links]:
        now = metric(session, "link_transmit_bytes_total", link), metric(session, "link_busy_seconds_total", link)
        was = before.get(link, (0.0, 0.0))
        before[link] = now
        if now[1] > was[1]:
            rates[link] = (now[0] - was[0]) / (now[1] - was[1]) / 1e9
    return rates


def step_us(seen: Observation, n_last: int) -> float:
    """Of the last steps, from end to end."""
    ends: dict[tuple[int, int], int] = {}
    for one in seen.timings:
        call = one.communicator, one.number
        ends[call] = max(ends.get(call, 0), one.completed_ps)
    last = sorted(ends.values())[-n_last:]
    return (last[-1] - last[0]) / (n_last - 1) / 1e6


def main() -> None:
    with emu.Session("ring", settings={"ranks": "8"}, driver="simulate", payload=False) as session:
        counters: dict[str, tuple[float, float]] = {}
        session.run(train, 3)
        rates, seen = effective_rates(session, counters), session.observe()
        print(f"1. healthy: a step takes {step_us(seen, 3):.0f} us; {LINK} sends {rates[LINK]:.1f} GB/s; diagnosis:")
        print(*("   " + line for line in finding_lines(diagnose(seen))), sep="\n")

        print(f"2. a fault is injected: {FAULT}")
        session.add_fault(FAULT)
        session.run(train, 6)
        rates, seen = effective_rates(session, counters), session.observe()
        slowest = min(rates, key=rates.__getitem__)
        print(f"3. every rank is slow: a step takes {step_us(seen, 6):.0f} us for all of them")
        print("   the metrics have it: rate(emu_link_transmit_bytes_total) / rate(emu_link_busy_seconds_total)")
        print(f"   is {rates[slowest]:.1f} GB/s at {slowest}, {max(rates.values()):.1f} GB/s elsewhere")
        print("4. diagnosis:")
        print(*("   " + line for line in finding_lines(diagnose(seen))), sep="\n")


if __name__ == "__main__":
    main()
