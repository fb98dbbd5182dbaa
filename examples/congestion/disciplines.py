"""One collective, one fabric, five disciplines: the table of ``emu compare``, and a figure of it.

python examples/congestion/disciplines.py --plot disciplines.png
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import figures


def compare(collective: str, size: str, driver: str, path: Path) -> dict[str, float]:
    """Run ``emu compare`` on a leaf-spine of 16 hosts; the median time in us by preset."""
    fabric = ["--fabric", "clos", "--set", "rate=400Gbit/s", "--set", "latency=500ns"]
    command = [sys.executable, "-m", "emu", "compare", collective, *fabric, "-b", size, "--driver", driver, "--json", str(path)]
    subprocess.run(command, check=True)
    rows = json.loads(path.read_text())["rows"]
    return {row["switching"]: row["median_us"] for row in rows}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="five disciplines side by side")
    parser.add_argument("--collective", default="alltoall", help="default alltoall")
    parser.add_argument("--size", default="4M", help="bytes of nccl-tests' size column (default 4M)")
    parser.add_argument("--driver", default="simulate", help="simulate (default) or emulate")
    parser.add_argument("--plot", type=figures.figure_path, help="write the figure there (png, svg, pdf)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        times_us = compare(options.collective, options.size, options.driver, Path(folder) / "compare.json")
    if options.plot:
        title = f"{options.collective} of {options.size} on a leaf-spine of 16 hosts"
        figures.bars(options.plot, title, "median time of a call, us", list(times_us), {"median": list(times_us.values())})


if __name__ == "__main__":
    main()
