"""Flight recorder: a record as PyTorch's dumps, one for each rank, which ``torchfrtrace`` compares.

Law: every call of a rank is an entry, completed, in the order of submission; sizes are in elements and flat.  Sends and receives
are in groups of their own, one for each pair and direction, as the analyser wants the entries of a group in one order on all of
its ranks.  Names begin with ``gloo:``, as it knows no other backend that is not a device's.  Times are model time, ns.  The files
are pickles of plain containers, numbers and text, because that is what the analyser reads; emu itself never reads them.

Not in them: what a rank sends to itself, which PyTorch does not have.
Source: PyTorch 2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp and torch/distributed/flight_recorder.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from emu.errors import ConfigError
from emu.fabric.recorder import Called
from emu.host import write_whole
from emu.telemetry.record import RunRecord
from emu.telemetry.trace import call_arguments, members_of

VERSION: Final = "2.10"
"""Of the dumps' format."""
_OPERATIONS: Final = {
    "reduce_scatter": "_reduce_scatter_base",
    "all_gather": "_all_gather_base",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
}
"""PyTorch's names, where they are not emu's."""
PS_PER_NS: Final = 1000


class _Group(NamedTuple):
    """A process group: a communicator, or the two ends of a direction in it."""

    name: str
    description: str
    ranks: tuple[int, ...]


def write_dumps(record: RunRecord, folder: Path, prefix: str = "rank_") -> list[Path]:
    """``rank_0``, ``rank_1``, ... in ``folder``, without an ending, as the analyser wants them.  Raises ConfigError."""
    written = []
    for rank, plain in dumps(record).items():
        path = folder / f"{prefix}{rank}"
        try:
            write_whole(path, pickle.dumps(plain, protocol=2))
        except OSError as error:
            raise ConfigError(f"dump {path}: {error.strerror}; give a folder that can be written") from None
        written.append(path)
    return written


def dumps(record: RunRecord) -> dict[int, dict[str, Any]]:
    """Rank -> its dump, plain."""
    members = members_of(record.calls)
    by_rank: defaultdict[int, list[tuple[Called, _Group]]] = defaultdict(list)
    for call in record.calls:
        group = _group(call, members[call.communicator])
        if len(set(group.ranks)) == len(group.ranks):
            by_rank[call.rank].append((call, group))
    groups = {group for calls in by_rank.values() for _, group in calls}
    configured = {
        group.name: {"name": group.name, "desc": group.description, "ranks": json.dumps(list(group.ranks))}
        for group in sorted(groups)
    }
    return {rank: _dump(calls, members, configured) for rank, calls in sorted(by_rank.items())}


def _group(call: Called, members: tuple[int, ...]) -> _Group:
    name = str(call.communicator)
    if call.number >= 0:
        return _Group(name, f"communicator {name}", members)
    source, target = (call.rank, call.key[2]) if call.collective == "send" else (call.key[2], call.rank)
    return _Group(f"{name}:{source}->{target}", f"{source} to {target} in communicator {name}", (source, target))


def _dump(calls: list[tuple[Called, _Group]], members: dict[int, tuple[int, ...]], groups: dict[str, Any]) -> dict[str, Any]:
    numbers = list(groups)
    last = {group.name: max(_number(call) for call, its in calls if its == group) for _, group in calls}
    return {
        "version": VERSION,
        "pg_config": groups,
        "pg_status": {
            name: {f"last_{state}_collective": number for state in ("enqueued", "started", "completed")}
            for name, number in last.items()
        },
        "entries": [
            _entry(number, call, group, numbers.index(group.name), call_arguments(call, members[call.communicator]))
            for number, (call, group) in enumerate(calls)
        ],
    }


def _number(call: Called) -> int:
    """From 1, in its group."""
    return call.number + 1 if call.number >= 0 else -call.number


def _entry(record_id: int, call: Called, group: _Group, group_id: int, arguments: dict[str, Any]) -> dict[str, Any]:
    is_p2p = call.number < 0
    operation = _OPERATIONS.get(call.collective, call.collective)
    if is_p2p:
        source, target = (int(rank == max(group.ranks)) for rank in group.ranks)  # their places in the group
        operation = f"send {source}->{target}" if call.collective == "send" else f"recv {target}<-{source}"
    return {
        "record_id": record_id,
        "pg_id": group_id,
        "process_group": (group.name, group.description),
        "collective_seq_id": 0 if is_p2p else _number(call),
        "p2p_seq_id": _number(call) if is_p2p else 0,
        "op_id": record_id + 1,
        "profiling_name": f"gloo:{operation}",
        "is_p2p": is_p2p,
        "time_created_ns": call.submitted_ps // PS_PER_NS,
        "time_discovered_started_ns": call.started_ps // PS_PER_NS,
        "time_discovered_completed_ns": call.completed_ps // PS_PER_NS,
        "duration_ms": (call.completed_ps - call.started_ps) / 1e9,
        "input_sizes": [[arguments["In msg nelems"]]],
        "input_dtypes": [arguments["dtype"]],
        "output_sizes": [[arguments["Out msg nelems"]]],
        "output_dtypes": [arguments["dtype"]],
        "state": "completed",
        "retired": True,
        "timeout_ms": 0,
        "frames": [{"name": call.collective, "filename": "emu", "line": 0}],
    }
