"""PFC deadlock: four switches in a ring, four flows that all turn clockwise, small buffers.

On the clockwise ways each switch's buffer waits for the next one's, and pauses stop them all for ever; emu names the cycle.  On
up*/down* ways, or with a second virtual lane behind a dateline, the same flows end.

    python examples/congestion/deadlock.py --plot deadlock.png
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import figures
from traffic import Flow, run

import emu
from emu.errors import Deadlock

RING = """
description = "ring of four switches"
{nodes}
{links}
[switching]
discipline = "{discipline}"
quantum = "4KiB"
buffer = "1200KiB"
credits = "64KiB"
{rules}
"""
CLOCKWISE = "; ".join(f"a{i} s{i} s{(i + 1) % 4} s{(i + 2) % 4} a{(i + 2) % 4}" for i in range(4))
PLANNED = f'balancing = "planned"\nbalancing_parameters = {{ paths = "{CLOCKWISE}" }}'
DATELINE = f'balancing = "planned"\nlanes = 2\nbalancing_parameters = {{ paths = "{CLOCKWISE}", datelines = "s3->s0" }}'
CASES = {
    "pauses, clockwise": ("pause", PLANNED),
    "pauses, up-down": ("pause", 'balancing = "up_down"'),
    "credits, clockwise": ("credit", PLANNED),
    "credits, two lanes": ("credit", DATELINE),
}


def fabric_text(discipline: str, rules: str) -> str:
    """The fabric file: hosts a0 to a3 on switches s0 to s3."""
    kinds = {"a": "accelerator", "s": "switch"}
    nodes = "".join(f'[[nodes]]\nname = "{letter}{i}"\nkind = "{kinds[letter]}"\n' for letter in kinds for i in range(4))
    cables = [(f"a{i}", f"s{i}") for i in range(4)] + [(f"s{i}", f"s{(i + 1) % 4}") for i in range(4)]
    links = "".join(f'[[links]]\nbetween = ["{a}", "{b}"]\nrate = "100Gbit/s"\nlatency = "500ns"\n' for a, b in cables)
    return RING.format(nodes=nodes, links=links, discipline=discipline, rules=rules)


def study(discipline: str, rules: str, n_bytes: int, folder: Path) -> tuple[float | None, str]:
    """(time us or None, what emu says)."""
    path = folder / "ring.toml"
    path.write_text(fabric_text(discipline, rules))
    with emu.Session(str(path), driver="simulate") as session:
        try:
            arrivals = run(session, [Flow(i, (i + 2) % 4, n_bytes) for i in range(4)])
        except Deadlock as error:
            return None, str(error)
    return max(arrival.end_us for arrival in arrivals), "all bytes right"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a cyclic buffer dependency, and two ways out")
    parser.add_argument("--size-mib", type=int, default=4, help="what each host sends (default 4)")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: study(*case, options.size_mib << 20, Path(folder)) for name, case in CASES.items()}
    for name, (time_us, said) in found.items():
        print(f"{name:<20} {'never' if time_us is None else f'{time_us:8.1f} us'}   {said}")
    if options.plot:
        figures.bars(
            options.plot,
            "Four flows round a ring of four switches",
            "finished after, us",
            list(found),
            {"time": [float("inf") if time_us is None else time_us for time_us, _ in found.values()]},
        )


if __name__ == "__main__":
    main()
