"""How fast data moves when nothing is paced: a ring all-reduce over real sockets, against OpenMPI's over TCP.

Four ranks all-reduce the same buffer, unpaced (dilation 0), one actor per accelerator: over links from rank to
rank ("direct tcp"), through one switch, so that every byte crosses two sockets ("switch tcp"), over ipc ("direct
ipc"), and with mpirun over its tcp transport on the same host ("OpenMPI tcp").  Runs alternate, so that a machine
that gets slower hits all of them alike.  "s" is the median of the slowest rank's stopwatch, "busbw GB/s" is
2 (n-1)/n x size / s, and "x OpenMPI" the ratio of the medians: 2 is twice as slow.

    PYTHONPATH=. python tests/benchmarks/data_path.py [--size 67108864] [--repeat 10] [--json]
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from contextlib import ExitStack
from statistics import median

import numpy as np
from results import Row, parser, show, spread

import emu

N_RANKS = 4
CASES = {
    "direct tcp": ("ring", "tcp"),
    "switch tcp": ("star", "tcp"),
    "direct ipc": ("ring", "ipc"),
}
MPI = "OpenMPI tcp"
MPI_PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
data = np.ones(int(sys.argv[1]) // 4, dtype=np.float32)
out = np.empty_like(data)
comm.Allreduce(data, out)
comm.Barrier()
begin = time.perf_counter()
comm.Allreduce(data, out)
took = comm.reduce(time.perf_counter() - begin, op=MPI.MAX)
assert out[0] == comm.size
if comm.rank == 0:
    print(took)
"""


def all_reduce(rank: emu.Rank, n_bytes: int) -> float:
    """Seconds on the stopwatch of this rank for the second of two calls."""
    data, out = np.ones(n_bytes // 4, dtype=np.float32), np.empty(n_bytes // 4, dtype=np.float32)
    rank.comm.all_reduce(data, out, algorithm="ring")
    rank.comm.barrier()
    begin_ns = rank.wall_ns()
    rank.comm.all_reduce(data, out, algorithm="ring")
    took_s = (rank.wall_ns() - begin_ns) / 1e9
    assert out[0] == rank.world_size
    return took_s


def missing_for_mpi() -> str:
    """What has to be installed, or nothing."""
    missing = []
    if shutil.which("mpirun") is None:
        missing.append("mpirun (Debian: openmpi-bin)")
    if importlib.util.find_spec("mpi4py") is None:
        missing.append("mpi4py (pip)")
    return ", ".join(missing)


def mpi_all_reduce_s(n_bytes: int) -> float:
    command = ["mpirun", "-n", str(N_RANKS), "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "tcp,self"]
    program = [sys.executable, "-m", "mpi4py", "-c", MPI_PROGRAM, str(n_bytes)]
    return float(subprocess.run(command + program, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=64 * 2**20)
    options.add_argument("--repeat", type=int, default=10)
    given = options.parse_args()
    missing = missing_for_mpi()
    if missing:
        print(f"not installed: {missing}; no column for {MPI}", file=sys.stderr)
    times_s: dict[str, list[float]] = {name: [] for name in [*CASES, *([] if missing else [MPI])]}
    with ExitStack() as stack:
        sessions = {
            name: stack.enter_context(
                emu.Session(fabric, settings={"ranks": str(N_RANKS)}, dilation=0, transport=transport, accelerators_per_actor=1)
            )
            for name, (fabric, transport) in CASES.items()
        }
        for _ in range(given.repeat):
            for name, session in sessions.items():
                times_s[name].append(max(session.run(all_reduce, given.size)))
            if not missing:
                times_s[MPI].append(mpi_all_reduce_s(given.size))
    rows: list[Row] = []
    for name, values in times_s.items():
        took_s = median(values)
        row: Row = {"path": name, "MiB": given.size / 2**20, "s": took_s, "spread": spread(values)}
        row["busbw GB/s"] = 2 * (N_RANKS - 1) / N_RANKS * given.size / took_s / 1e9
        row["x OpenMPI"] = None if missing else took_s / median(times_s[MPI])
        rows.append(row)
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
