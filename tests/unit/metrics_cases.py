"""Snapshots for tests of the exposition: of an actor that was never there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from emu.fabric.account import CAUSES
from emu.fabric.counters import AdapterStatistics, DelayCounts, QueueStatistics
from emu.fabric.link import LinkStatistics
from emu.telemetry.calls import UNHEARD, Calls, Histogram, LastCall
from emu.telemetry.catalogue import SIZE_CLASSES
from emu.telemetry.snapshot import About, Reading, Snapshot
from emu.topologies.graph import Topology

ABOUT = About(session="abc", fabric="test", driver="emulate", ranks=4, seed=0)


def counted(kind: type, name: str, n: int = 1) -> Any:
    """Statistics of which every integer is ``n``."""
    plain = {"name": name, "class_name": name, "planes_bytes": ()}
    return kind(**{field.name: plain.get(field.name, n) for field in fields(kind)})


def snapshot(topology: Topology, nodes: set[int], *, n: int = 1, calls: Calls | None = None, **changes: Any) -> Snapshot:
    """What an actor that hosts ``nodes`` would tell if it had counted ``n`` of everything."""
    ranks = tuple(rank for rank, node in enumerate(topology.ranks) if node in nodes)
    links = [index for index, link in enumerate(topology.links) if link.source in nodes]
    switching = topology.switching
    classes = () if switching is None else switching.classes
    delays = DelayCounts().delays
    delays[20], delays[-1] = n, n * 10**6
    values: dict[str, Any] = {
        "ranks": ranks,
        "dilation": 10.0,
        "links": {index: counted(LinkStatistics, topology.links[index].name, n) for index in links},
        "queues": {index: tuple(counted(QueueStatistics, c.name, n) for c in classes) for index in links if classes},
        "queue_bytes": {index: (0,) * len(classes) for index in links if classes},
        "adapters": {rank: counted(AdapterStatistics, "", n) for rank in ranks if classes},
        "delays": {1: list(delays), 2: list(delays)},
        "variations": {1: list(delays), 2: list(delays)},
        "calls": Calls() if calls is None else calls,
        "lags": list(delays),
        "order_violations": n,
        "backpressure": n,
        "faults": {},
    }
    return Snapshot(**{**values, **changes})


def reading(name: str, found: Snapshot | None, *, is_alive: bool = True) -> Reading:
    role = "accelerator" if found is None or found.ranks else "switch"
    return Reading(actor=name, role=role, is_alive=is_alive, read_s=1.7e9, snapshot=found)


def some_calls(ranks: tuple[int, ...], n_kinds: int = 3) -> Calls:
    """So many kinds of call by these ranks; twelve are of every collective."""
    calls = Calls()
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "alltoall", "alltoallv"]
    for number in range(n_kinds):
        collective = [*names, "barrier", "send", "recv"][number % 12]
        kind = calls._admit((collective, f"algorithm{number // 12}", SIZE_CLASSES[number % len(SIZE_CLASSES)]))
        one = calls.kinds[kind]
        one.durations.observe(10**9)
        one.last = (1, 10**6, 10**9)  # type: ignore[assignment]
        calls.completed[kind[:2]] = calls.n_bytes[kind[:2]] = 1
        if collective not in UNHEARD:
            calls.skews[collective] = Histogram()
        for rank in ranks:
            calls.last_by_rank[rank, kind] = LastCall("world", tuple(ranks), 10**6, 10**6, 10**9)  # type: ignore[arg-type]
    for rank in ranks:
        calls.spent_ps[rank] = [10**9] * len(CAUSES)
        calls.computed_ps[rank] = 10**9
    return calls
