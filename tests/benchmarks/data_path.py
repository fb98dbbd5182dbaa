"""How fast data moves when nothing is paced: a ring all-reduce over real sockets, against OpenMPI's over TCP.

Four ranks all-reduce the same buffer, unpaced (dilation 0), one actor per accelerator: over links from rank to
rank ("direct tcp"), through one switch, so that every byte crosses two sockets ("switch tcp"), over ipc ("direct
ipc"), and with mpirun over its tcp transport on the same host ("OpenMPI tcp").  Runs of each path alternate with
OpenMPI's, so that a machine that gets slower hits both alike; a path's session is alone meanwhile (the processes of
three that only wait take 6 % of two cores).  "s" is the median of the slowest rank's stopwatch, "busbw GB/s" is
2 (n-1)/n x size / s, and "x OpenMPI" the ratio to the median of the runs between: 2 is twice as slow.
Chunks are of 4 MiB, which costs this host less than the 2 MiB that emu would take.

    PYTHONPATH=. python tests/benchmarks/data_path.py [--size 67108864] [--chunk 4194304] [--repeat 10] [--json]
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
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


def all_reduce(rank: emu.Rank, n_bytes: int, chunk_bytes: int) -> float:
    """Seconds on the stopwatch of this rank for the second of two calls."""
    data, out = np.ones(n_bytes // 4, dtype=np.float32), np.empty(n_bytes // 4, dtype=np.float32)
    rank.comm.all_reduce(data, out, algorithm="ring", chunk_bytes=chunk_bytes)
    rank.comm.barrier()
    begin_ns = rank.wall_ns()
    rank.comm.all_reduce(data, out, algorithm="ring", chunk_bytes=chunk_bytes)
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


def row(name: str, n_bytes: int, times_s: list[float], beside_s: list[float]) -> Row:
    took_s = median(times_s)
    return {
        "path": name,
        "MiB": n_bytes / 2**20,
        "s": took_s,
        "spread": spread(times_s),
        "busbw GB/s": 2 * (N_RANKS - 1) / N_RANKS * n_bytes / took_s / 1e9,
        "x OpenMPI": took_s / median(beside_s) if beside_s else None,
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=64 * 2**20)
    options.add_argument("--chunk", type=int, default=4 * 2**20)
    options.add_argument("--repeat", type=int, default=10)
    given = options.parse_args()
    missing = missing_for_mpi()
    if missing:
        print(f"not installed: {missing}; no column for {MPI}", file=sys.stderr)
    rows: list[Row] = []
    theirs_s: list[float] = []
    for name, (fabric, transport) in CASES.items():
        ours_s, beside_s = list[float](), list[float]()
        settings = {"ranks": str(N_RANKS)}
        with emu.Session(fabric, settings=settings, dilation=0, transport=transport, accelerators_per_actor=1) as session:
            for _ in range(given.repeat):
                ours_s.append(max(session.run(all_reduce, given.size, given.chunk)))
                if not missing:
                    beside_s.append(mpi_all_reduce_s(given.size))
        rows.append(row(name, given.size, ours_s, beside_s))
        theirs_s += beside_s
    if not missing:
        rows.append(row(MPI, given.size, theirs_s, theirs_s))
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
