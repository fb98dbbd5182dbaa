"""Time and memory of ``emu predict`` on large systems: each case in a process of its own, from its start to its end.

    python tests/benchmarks/scale.py            all cases; --only TEXT those whose line has it

CPU seconds are to be compared where the machine is not idle.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter

from results import Row, parser, show

STAR = ("--fabric", "star", "--set", "rate=50GB/s")
HALF = ("--impair", "a3->s0=throttle,factor=0.5")
RING = ("all_reduce", "--algorithm", "ring", "-b", "64M", "-e", "64M")
ALLTOALL = ("alltoall", "--algorithm", "direct", "-b", "64M", "-e", "64M")
TREE = ("all_reduce", "--algorithm", "tree", "-b", "64M", "-e", "64M")
LARGE = ("tpu-v4-4096", "ib-ndr-16384", "cloudmatrix384", "roce-meta-24k")
CASES = (
    (*RING, *STAR, "--set", "ranks=1024"),
    (*RING, *STAR, "--set", "ranks=1024", *HALF),
    (*ALLTOALL, *STAR, "--set", "ranks=1024"),
    (*ALLTOALL, *STAR, "--set", "ranks=1024", *HALF),
    (*RING, *STAR, "--set", "ranks=4096"),
    (*RING, *STAR, "--set", "ranks=4096", *HALF),
    *((*what, "--fabric", fabric) for fabric in LARGE for what in (RING, TREE, ALLTOALL)),
)


def run(arguments: tuple[str, ...]) -> tuple[int, float, float, float]:
    """(exit code, wall seconds, CPU seconds, peak MiB) of one command."""
    begin = perf_counter()
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.execv(sys.executable, [sys.executable, "-m", "emu", "predict", *arguments])
    _, status, usage = os.wait4(child, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), perf_counter() - begin, cpu_s, usage.ru_maxrss / 1024


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", default="", help="cases whose line has this text")
    given = options.parse_args()
    rows: list[Row] = []
    for case in CASES:
        line = " ".join(case)
        if given.only in line:
            code, wall_s, cpu_s, peak_mib = run(case)
            rows.append({"exit": code, "wall s": wall_s, "CPU s": cpu_s, "peak MiB": round(peak_mib), "emu predict": line})
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
