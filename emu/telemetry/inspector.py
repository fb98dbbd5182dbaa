"""Inspector: the metrics of NVIDIA's NCCL Inspector beside emu's own, so that what was made for it shows an emulated cluster.

    nccl_bus_bandwidth_gbs, nccl_collective_exec_time_microseconds            collectives
    nccl_p2p_bus_bandwidth_gbs, nccl_p2p_exec_time_microseconds               send and recv

As there, gauges by GPU of calls of at least 8192 bytes; here of the last call of a kind, there the mean since the last dump.
Times are model time.  ``node`` is the accelerator's host, ``gpu`` its number there, ``slurm_job_id`` says emu.  Units are not
base units, and `promtool check metrics` says so.

Source: NVIDIA/nccl, plugins/profiler/inspector, README and inspector_prom.cc (names, labels, ranges of message sizes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from emu.telemetry.calls import Kind, LastCall
from emu.telemetry.catalogue import OTHER
from emu.telemetry.snapshot import Reading
from emu.topologies.graph import Topology
from emu.units import PS_PER_MICROSECOND, PS_PER_SECOND

MIN_SIZE_BYTES: Final = 8192
VERSION: Final = "v5.1"
"""Of the plugin's interface and format."""
_COMMON: Final = ("version", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks")
_FAMILIES: Final = {
    "collective": (
        ("nccl_bus_bandwidth_gbs", "Bus bandwidth of the last collective, GB/s (model time)."),
        ("nccl_collective_exec_time_microseconds", "Time of the last collective, us (model time)."),
        (*_COMMON, "collective", "message_size", "algo_proto"),
    ),
    "p2p": (
        ("nccl_p2p_bus_bandwidth_gbs", "Bandwidth of the last send or recv, GB/s (model time)."),
        ("nccl_p2p_exec_time_microseconds", "Time of the last send or recv, us (model time)."),
        (*_COMMON, "p2p_operation", "message_size"),
    ),
}
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def inspector_families(topology: Topology, readings: Sequence[Reading]) -> Iterator[Metric]:
    """The four families, of the ranks of living actors."""
    places = _places(topology)
    for what, (bandwidth, time, labels) in _FAMILIES.items():
        rates, times = (GaugeMetricFamily(*name, labels=labels) for name in (bandwidth, time))
        for reading in readings:
            if not reading.is_alive or reading.snapshot is None:
                continue
            for (rank, kind), last in reading.snapshot.calls.last_by_rank.items():
                is_p2p = kind[0] in ("send", "recv")
                if is_p2p != (what == "p2p") or kind[0] == OTHER or last.n_bytes < MIN_SIZE_BYTES or not last.duration_ps:
                    continue
                values = _labels(places, rank, kind, last)
                rates.add_metric(values, float(last.bus_bytes * PS_PER_SECOND / last.duration_ps / 10**9))
                times.add_metric(values, last.duration_ps / PS_PER_MICROSECOND)
        yield from (rates, times)


def message_range(n_bytes: int) -> str:
    """``"4-5GB"``: the size in its binary unit, rounded down, and one more."""
    value, unit = n_bytes, 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value // 1024, unit + 1
    return f"{value}-{value + 1}{_UNITS[unit]}" if n_bytes else "0B"


def _labels(places: Sequence[tuple[str, int]], rank: int, kind: Kind, last: LastCall) -> tuple[str, ...]:
    collective, algorithm, _ = kind
    node, gpu = places[rank]
    hosts = {places[member][0] for member in last.members}
    named = "".join("All" if part == "all" else part.capitalize() for part in collective.split("_"))
    common = VERSION, "emu", node, f"GPU{gpu}", last.communicator, str(len(hosts)), str(len(last.members))
    size = message_range(last.n_bytes)
    return (
        (*common, named, size) if collective in ("send", "recv") else (*common, named, size, f"{algorithm.capitalize()}_simple")
    )


def _places(topology: Topology) -> list[tuple[str, int]]:
    """Per rank its host and number there; without hosts all are on one, which has the fabric's name."""
    found: list[tuple[str, int]] = []
    on_host: dict[str, int] = {}
    for node in topology.ranks:
        host = topology.nodes[node].host or topology.name
        found.append((host, on_host.get(host, 0)))
        on_host[host] = found[-1][1] + 1
    return found
