"""A data-parallel training step: how much of the gradient exchange hides behind the backward pass?

    python examples/data_parallel_step.py              simulated
    python examples/data_parallel_step.py --emulate    on Ray actors, with real gradients

Each rank walks back through its layers.  As soon as a bucket of gradients is ready its
all-reduce starts, while the next layers are still computing; only what is left at the end
of the backward pass costs time.  Computation is declared (``rank.compute``), so it takes
model time and no host work.  The same step then runs with one link at a tenth of its rate.
"""

import sys
from dataclasses import dataclass

import numpy as np

import emu
from emu.units import format_time

N_BUCKETS = 8
BUCKET_ELEMENTS = 1 << 20
BACKWARD_US_PER_BUCKET = 150


@dataclass(frozen=True)
class Step:
    """One rank's step, ps: in all, and how long it waited for gradients after its own work was done."""

    total_ps: int
    exposed_ps: int


def train_step(rank: emu.Rank) -> Step:
    begin_ps = rank.now_ps
    gradients = [np.full(BUCKET_ELEMENTS, rank.index + bucket, np.float32) for bucket in range(N_BUCKETS)]
    under_way = []
    for gradient in gradients:
        rank.compute(us=BACKWARD_US_PER_BUCKET)
        under_way.append(rank.comm.all_reduce(gradient, op="avg", async_op=True))
    computed_ps = rank.now_ps
    for work in under_way:
        work.wait()
    mean_rank = (rank.world_size - 1) / 2
    for bucket, gradient in enumerate(gradients):
        assert np.allclose(gradient, mean_rank + bucket), f"rank {rank.index}: bucket {bucket} is wrong"
    return Step(total_ps=rank.now_ps - begin_ps, exposed_ps=rank.now_ps - computed_ps)


def main() -> None:
    driver = "emulate" if "--emulate" in sys.argv[1:] else "simulate"
    print(f"{'':>28}{'step':>12}{'exposed':>12}   ({driver}d)")
    for what, impairments in (("healthy", ()), ("a3's uplink at a tenth", ("a3->s0=throttle,factor=0.1",))):
        with emu.Session("dgx-h100-8", driver=driver, impairments=impairments) as session:
            steps = session.run(train_step)
        slowest = max(steps, key=lambda step: step.total_ps)
        print(f"{what:>28}{format_time(slowest.total_ps):>12}{format_time(slowest.exposed_ps):>12}")


if __name__ == "__main__":
    main()
