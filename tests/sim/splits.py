"""What the tests of accounts share: runs that are recorded, and what every account and record must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emu.fabric.account import ORIGIN_PS, Cause
from emu.fabric.recorder import Called
from emu.rank import Rank
from emu.session import Session
from emu.telemetry.attribution import Attribution
from emu.topologies.graph import Topology


def recorded(
    fabric: str | Topology,
    function: Callable[..., Any],
    *args: Any,
    seed: int = 0,
    impair: tuple[str, ...] = (),
    faults: tuple[str, ...] = (),
    **settings: Any,
) -> Attribution:
    """The attribution of one simulated run without payload, all of whose calls have been checked."""
    texts = {key: str(value) for key, value in settings.items()}
    options: dict[str, Any] = {"driver": "simulate", "payload": False, "record": True}
    with Session(fabric, settings=texts, seed=seed, impairments=impair, faults=faults, **options) as session:
        session.run(function, *args)
        attribution = Attribution(session.record())
    for call in attribution.record.calls:
        check(attribution, call)
    return attribution


def check(attribution: Attribution, call: Called) -> None:
    """Parts without gaps from submission to completion; the online split sums to it too, and equals it where neither was cut."""
    parts = attribution.parts(call)
    edges = [call.submitted_ps, *(part.end_ps for part in parts)]
    assert [part.begin_ps for part in parts] == edges[:-1]
    assert edges[-1] == call.completed_ps
    assert all(part.duration_ps > 0 for part in parts)
    total_ps = call.completed_ps - call.submitted_ps
    assert sum(call.split_ps) == total_ps
    assert min(call.split_ps) >= 0
    if call.account[ORIGIN_PS] >= call.started_ps == call.submitted_ps:
        assert attribution.split_ps(call) == call.split_ps


def slowest(attribution: Attribution) -> Called:
    """The call that took longest, the lowest rank's where several did."""
    return max(attribution.record.calls, key=lambda call: (call.completed_ps - call.submitted_ps, -call.rank))


def duration_ps(call: Called) -> int:
    return call.completed_ps - call.submitted_ps


def at_ps(attribution: Attribution, call: Called, cause: Cause, place: str = "") -> int:
    """What the call spent on a cause, at a place or anywhere."""
    parts = attribution.parts(call)
    return sum(part.duration_ps for part in parts if part.cause is cause and place in ("", part.place))


def one_call(rank: Rank, collective: str, n_bytes: int, late_us: tuple[float, ...] = (), **options: Any) -> None:
    """A collective of ``n_bytes`` on every rank (per peer where it has peers); ``late_us``: computation before it, by rank."""
    if rank.index < len(late_us):
        rank.compute(us=late_us[rank.index])
    count, n = n_bytes // 4, rank.world_size
    array, all_of = np.zeros(count, np.float32), np.zeros(count * n, np.float32)
    call = getattr(rank.comm, collective)
    match collective:
        case "all_reduce" | "broadcast" | "reduce":
            call(array, **options)
        case "all_gather":
            call(array, all_of, **options)
        case "reduce_scatter":
            call(all_of, array, **options)
        case "alltoall":
            call(all_of, np.zeros_like(all_of), **options)
        case "gather":
            call(array, all_of if rank.index == options.get("root", 0) else None, **options)
        case _:
            raise AssertionError(collective)


def pair(rank: Rank, senders: tuple[int, ...], target: int, n_bytes: int) -> None:
    """Each of ``senders`` sends to ``target`` at once; the first's is received first."""
    array = np.zeros(n_bytes, np.uint8)
    if rank.index in senders:
        rank.comm.send(array, target)
    elif rank.index == target:
        works = [rank.comm.recv(np.zeros_like(array), source, async_op=True) for source in senders]
        for work in works:
            work.wait()
