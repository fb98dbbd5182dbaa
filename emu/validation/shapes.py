"""Shapes: how figures of real systems change with their size and kind, beside what emu's mechanisms make of them.

Law: nothing is fitted to what this table expects, but for the row that says so.  Endpoints are those fitted to eight GPUs on one
node; the proxy's time of b200-128-nccl comes from NVLSTree over eight nodes, which is no row here, and the network's latency of
polaris-1024-nccl from the row of 32 ranks.  No row has a parameter of its own.

``togethercomputer`` are two clusters of B200 nodes with eight NDR ports: the first with NCCL 2.29.7; the second with two queue
pairs for each connection, NCCL 2.28.9 and 2.30.7.  SHARP is CollNet's chain there: their script leaves the algorithm to NCCL with
NVLS off, and on the second cluster, where it was looked at, that was the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from emu.collectives.busbw import busbw_gb_per_s
from emu.drivers.choice import predict_ps
from emu.drivers.tuning import chosen
from emu.topologies.fabric_file import load_fabric
from emu.topologies.routing import take_ranks
from emu.units import microseconds
from emu.validation.uplinks import inter_over_intra, slowed_by_cpus

TOLERANCE: Final = 0.15
MIB: Final = 2**20
LONG_BYTES: Final = 8192 * MIB
CLUSTER: Final = "b200-128-nccl"
SHARP: Final = "collnet_chain"
TOGETHER: Final = "togethercomputer/together-nccl-tests, 8 GiB"
SECOND: Final = "togethercomputer, second cluster, 8 GiB"
POLARIS: Final = "argonne-lcf/alcf-nccl-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call on the first ``n_ranks`` ranks of a fabric.  ``algorithm``: empty is NCCL's tuner's."""

    fabric: str
    settings: tuple[tuple[str, str], ...] = ()
    n_ranks: int | None = None
    collective: str = "all_reduce"
    algorithm: str = ""
    size_bytes: int = LONG_BYTES

    @property
    def time_ps(self) -> int:
        return _call(self)[0]

    @property
    def time_us(self) -> float:
        return microseconds(self.time_ps)

    @property
    def busbw(self) -> float:
        """GB/s, as nccl-tests has it."""
        time_ps, n_ranks = _call(self)
        return float(busbw_gb_per_s(self.collective, self.size_bytes, n_ranks, time_ps))

    @property
    def algbw(self) -> float:
        """GB/s: S over the time."""
        return self.size_bytes * 1000 / self.time_ps


@lru_cache(maxsize=256)
def _call(run: Run) -> tuple[int, int]:
    """(Time in ps, number of ranks)."""
    topology = load_fabric(run.fabric, dict(run.settings))
    if run.n_ranks is not None:
        topology = take_ranks(topology, run.n_ranks)
    members = tuple(range(topology.n_ranks))
    algorithm = run.algorithm or chosen(topology, "nccl", run.collective, run.size_bytes, members)
    return predict_ps(topology, run.collective, algorithm, run.size_bytes, members, 0), topology.n_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A row.  ``expected`` is measured, or a law's; ``find`` has emu's figure; ``unit`` is empty for a ratio.

    ``tolerance``: how far off it may be, as a share.
    """

    what: str
    source: str
    expected: float
    find: Callable[[], float]
    unit: str = ""
    tolerance: float = TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row with emu's figure."""

    shape: Shape
    value: float

    @property
    def error(self) -> float:
        return self.value / self.shape.expected - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= self.shape.tolerance


def find(shapes: tuple[Shape, ...], progress: Callable[[str], None]) -> Iterator[Found]:
    """Row by row."""
    for shape in shapes:
        progress(shape.what)
        yield Found(shape=shape, value=shape.find())


def over_nodes(algorithm: str, n_nodes: int, size_bytes: int = LONG_BYTES) -> Run:
    """All nodes of a B200 cluster of so many."""
    return Run(
        fabric=CLUSTER,
        settings=(("nodes", str(n_nodes)), ("nodes_per_leaf", str(n_nodes))),
        algorithm=algorithm,
        size_bytes=size_bytes,
    )


def _ratio(algorithm: str, n_nodes: int, others: int) -> float:
    return over_nodes(algorithm, n_nodes).busbw / over_nodes(algorithm, others).busbw


def _busbw(algorithm: str, n_nodes: int) -> float:
    return over_nodes(algorithm, n_nodes).busbw


def _growth() -> float:
    """What 32 more ranks add to a ring's shortest call over what the 16 before added."""
    two, four, eight = (over_nodes("ring", n_nodes, size_bytes=8).time_ps for n_nodes in (2, 4, 8))
    return (eight - four) / (four - two)


def _nvls_gain(collective: str) -> float:
    runs = (Run(fabric="h100-8-nccl", collective=collective, algorithm=name) for name in ("nvls", "ring"))
    nvls, ring = (run.busbw for run in runs)
    return nvls / ring


def _mesh_gain() -> float:
    eight, two = (Run(fabric="mi300x-8", algorithm="direct", n_ranks=n) for n in (8, 2))
    return eight.busbw / two.busbw


def _polaris_us(n_ranks: int) -> float:
    settings = () if n_ranks == 1024 else (("scale", str(n_ranks)),)
    return Run(fabric="polaris-1024-nccl", settings=settings, size_bytes=8).time_us


def _alltoall(fabric: str, **settings: str) -> Run:
    given = tuple(sorted(settings.items()))
    return Run(fabric=fabric, settings=given, collective="alltoall", algorithm="direct", size_bytes=32 * MIB)


def _torus(shape: str) -> Run:
    """50 GB/s for each link and direction, as in a TPU v4."""
    return _alltoall("torus", shape=shape, rate="50GB/s")


def _switch_over_torus() -> float:
    """64 accelerators with the same six links each."""
    return _alltoall("star", ranks="64", rate="300GB/s").algbw / _torus("4x4x4").algbw


def _twist_gain() -> float:
    return _alltoall("tpu-v4-4x4x8-twisted").algbw / _torus("4x4x8").algbw


def _over(algorithm: str, name: str, measured: dict[int, float], source: str = TOGETHER) -> tuple[Shape, ...]:
    """Bus bandwidth over so many nodes."""
    return tuple(
        Shape(
            what=f"{name} on {n_nodes} nodes of 8 B200",
            source=source,
            expected=expected,
            unit="GB/s",
            find=partial(_busbw, algorithm, n_nodes),
        )
        for n_nodes, expected in measured.items()
    )


SHAPES: Final = (
    Shape(what="ring on 8 nodes over 2", source=TOGETHER, expected=308.6 / 344.3, find=partial(_ratio, "ring", 8, 2)),
    Shape(what="ring, 8 B: 4 to 8 nodes over 2 to 4", source="2 (n-1) steps", expected=2.0, find=_growth),
    Shape(what="tree on 2 nodes over 4", source=TOGETHER, expected=332.7 / 187.5, find=partial(_ratio, "tree", 2, 4)),
    Shape(what="NVLSTree on 2 nodes over 4", source=TOGETHER, expected=713.4 / 289.5, find=partial(_ratio, "nvlstree", 2, 4)),
    Shape(what="SHARP on 16 nodes over 2", source=TOGETHER, expected=545.3 / 542.9, find=partial(_ratio, SHARP, 16, 2)),
    *_over("ring", "ring", {2: 344.3, 4: 311.2, 8: 308.6}),
    *_over("tree", "tree", {2: 332.7, 4: 187.5}),
    *_over("nvlstree", "NVLSTree", {2: 713.4, 4: 289.5, 16: 280.1}),
    *_over(SHARP, "SHARP", {2: 542.9, 4: 542.3, 16: 545.3}),
    *_over("nvlstree", "NVLSTree, other cluster,", {4: 343.0}, SECOND),
    *_over("collnet_direct", "CollnetDirect, other cluster,", {2: 545.4, 4: 550.6, 16: 537.5}, SECOND),
    Shape(
        what="MI300X, 8 GPUs over 2",
        source="stas00/ml-engineering, 4 GiB",
        expected=312.9 / 47.7,
        find=_mesh_gain,
    ),
    Shape(
        what="8 H100, NVLS over ring, all_reduce",
        source="togethercomputer/together-nccl-tests, 8 GiB",
        expected=479.3 / 368.1,
        find=partial(_nvls_gain, "all_reduce"),
    ),
    Shape(
        what="8 H100, NVLS over ring, all_gather",
        source="no gain: ai-dynamo/aiconfigurator, nccl_perf",
        expected=1.0,
        find=partial(_nvls_gain, "all_gather"),
    ),
    Shape(
        what="NVL72, 72 ranks",
        source="coreweave/nccl-tests, 8 GiB",
        expected=834.6,
        unit="GB/s",
        find=lambda: Run(fabric="gb200-72-nccl", algorithm="nvls").busbw,
    ),
    Shape(what="Polaris, 8 B, 8 ranks", source=POLARIS, expected=22.0, unit="us", find=partial(_polaris_us, 8)),
    Shape(what="Polaris, 8 B, 32 ranks (fitted)", source=POLARIS, expected=46.2, unit="us", find=partial(_polaris_us, 32)),
    Shape(what="Polaris, 8 B, 1,024 ranks", source=POLARIS, expected=100.3, unit="us", find=partial(_polaris_us, 1024)),
    Shape(
        what="Polaris, 1 GiB, 32 ranks",
        source=POLARIS,
        expected=36.06,
        unit="GB/s",
        find=lambda: Run(fabric="polaris-1024-nccl", settings=(("scale", "32"),), size_bytes=1024 * MIB).busbw,
    ),
    Shape(
        what="alltoall on a 4x4x4 torus",
        source="8 b / k, b = 50 GB/s",
        expected=100.0,
        unit="GB/s",
        find=lambda: _torus("4x4x4").algbw,
    ),
    Shape(what="alltoall, switch over 4x4x4 torus", source="6 b over 8 b / k", expected=3.0, find=_switch_over_torus),
    Shape(what="alltoall, twisted over plain 4x4x8", source="arXiv 2304.01433", expected=1.63, find=_twist_gain),
    Shape(
        what="CloudMatrix, next node over own",
        source="loss below 3 %: arXiv 2506.12708",
        expected=1.0,
        tolerance=0.03,
        find=inter_over_intra,
    ),
    Shape(what="CloudMatrix, with CPUs over without", source="3,776 / 3,136 GB/s", expected=1.20, find=slowed_by_cpus),
)
"""all_reduce where nothing else is said."""
