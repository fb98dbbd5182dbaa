"""Uplinks: what the second level of CloudMatrix384 leaves of an NPU's rate, with the CPUs silent and with them sending.

Every NPU sends to a neighbour in its node, or to its like in the next node; the uplinks of a node have just the rate of its
NPUs, 3,136 GB/s.  The CPUs hang on the same uplinks and add 640 GB/s: all together it is (3136 + 640) / 3136 = 1.20 to 1.
The CPUs' traffic is that of a memory pool, from each of them to two NPUs of the next node, for as long as the NPUs send.
Source of the wiring: arXiv 2506.12708.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from emu.rank import Rank
from emu.session import Session
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import NodeKind

FABRIC: Final = "cloudmatrix384"
SMALLER: Final = {"scale": "32"}
"""Four nodes of the 48: who sends to the next node loads the same links."""
NODE_NPUS: Final = 8
NODE_CPUS: Final = 4
NPU_BYTES: Final = 392 * 2**20
CPU_BYTES: Final = 80 * 2**20
"""To each of two NPUs: twice this takes a CPU at 160 GB/s as long as an NPU's bytes take at 392 GB/s."""


def inter_over_intra() -> float:
    """Rate of an NPU to the next node over that inside its own; 1 where the second level costs nothing."""
    return _sent_ps(inside=True, cpus=False) / _sent_ps(inside=False, cpus=False)


def slowed_by_cpus() -> float:
    """Time until NPUs have all that NPUs and CPUs send to them from the node before, over that without the CPUs."""
    return _sent_ps(inside=False, cpus=True) / _sent_ps(inside=False, cpus=False)


@lru_cache(maxsize=4)
def _sent_ps(*, inside: bool, cpus: bool) -> int:
    topology = load_fabric(FABRIC, SMALLER)
    n_npus = topology.n_ranks
    places = [place for place, node in enumerate(topology.nodes) if node.kind is NodeKind.CPU]
    with Session(replace(topology, ranks=(*topology.ranks, *places)), driver="simulate", payload=False) as session:
        times_ps: list[int] = session.run(_exchange, n_npus, inside, cpus)
    return max(times_ps)


def _exchange(rank: Rank, n_npus: int, inside: bool, cpus: bool) -> int:
    """One rank's part; ranks from ``n_npus`` on are CPUs."""
    comm, node, place = rank.comm, rank.index // NODE_NPUS, rank.index % NODE_NPUS
    before = (rank.index - NODE_NPUS) % n_npus
    with comm.group():
        if rank.index >= n_npus:
            its_node, its_place = divmod(rank.index - n_npus, NODE_CPUS)
            first = ((its_node + 1) * NODE_NPUS + 2 * its_place) % n_npus
            for npu in (first, first + 1) if cpus else ():
                comm.send(_blank(CPU_BYTES), npu)
        elif inside:
            comm.send(_blank(NPU_BYTES), node * NODE_NPUS + (place + 1) % NODE_NPUS)
            comm.recv(_blank(NPU_BYTES), node * NODE_NPUS + (place - 1) % NODE_NPUS)
        else:
            comm.send(_blank(NPU_BYTES), (rank.index + NODE_NPUS) % n_npus)
            comm.recv(_blank(NPU_BYTES), before)
            if cpus:
                comm.recv(_blank(CPU_BYTES), n_npus + before // NODE_NPUS * NODE_CPUS + place // 2)
    return rank.now_ps


def _blank(n_bytes: int) -> Any:
    """A buffer that takes no memory."""
    return np.broadcast_to(np.zeros(1, dtype=np.uint8), (n_bytes,))
