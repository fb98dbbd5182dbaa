"""Write your own benchmark: which algorithm is fastest at which size, and does the fabric change the answer?

    python examples/benchmark.py              simulated: the model's times, in a few seconds
    python examples/benchmark.py --emulate    real buffers over shaped links, every result checked

A rank function runs on every accelerator; what it returns comes back in a list, by rank.
"""

import sys

import numpy as np

import emu
from emu.collectives.busbw import busbw_gb_per_s

FABRICS = {"one switch": emu.load_fabric("star", {"ranks": "8"}), "a ring of cables": emu.load_fabric("ring", {"ranks": "8"})}
ALGORITHMS = ("ring", "tree", "halving_doubling")
SIZES_BYTES = (16 << 10, 256 << 10, 4 << 20)
ITERATIONS = 4


def all_reduce_loop(rank: emu.Rank, n_bytes: int, algorithm: str) -> int:
    """Model time of one all-reduce, ps, the mean of some issued back to back."""
    send = np.full(n_bytes // 4, rank.index + 1, np.float32)
    received = np.zeros_like(send)
    rank.comm.barrier()
    begin_ps = rank.now_ps
    for _ in range(ITERATIONS):
        work = rank.comm.all_reduce(send, received, algorithm=algorithm, async_op=True)
    end_ps = work.wait()
    total = rank.world_size * (rank.world_size + 1) // 2
    assert (received == total).all(), f"rank {rank.index} holds a wrong sum"
    return (end_ps - begin_ps) // ITERATIONS


def main() -> None:
    driver = "emulate" if "--emulate" in sys.argv[1:] else "simulate"
    for name, fabric in FABRICS.items():
        print(f"{name}, {driver}d: bus bandwidth of all_reduce in GB/s")
        print(f"{'bytes':>10}" + "".join(f"{algorithm:>18}" for algorithm in ALGORITHMS))
        with emu.Session(fabric, driver=driver) as session:
            for n_bytes in SIZES_BYTES:
                rates = []
                for algorithm in ALGORITHMS:
                    time_ps = max(session.run(all_reduce_loop, n_bytes, algorithm))
                    rates.append(float(busbw_gb_per_s("all_reduce", n_bytes, fabric.n_ranks, time_ps)))
                best = max(rates)
                print(f"{n_bytes:>10}" + "".join(f"{rate:>17.2f}{'*' if rate == best else ' '}" for rate in rates))


if __name__ == "__main__":
    main()
