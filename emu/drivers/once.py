"""Once: one call of all ranks at model time 0, run by the machines, without the threads that users' functions need."""

from __future__ import annotations

from functools import partial

from emu.collectives.call import Call
from emu.collectives.catalogue import schedule_for
from emu.collectives.executor import Operation
from emu.collectives.layout import layout_of
from emu.collectives.program import compile_program, message_slots, suited_chunk_bytes
from emu.drivers.engine import Engine, ImpairmentTable
from emu.drivers.explain import OUT_OF_TIME
from emu.drivers.packet_engine import PacketEngine
from emu.errors import ConfigError, EmuError
from emu.topologies.graph import Topology
from emu.units import FOREVER_PS


def call_once(
    topology: Topology,
    impairments: ImpairmentTable,
    *,
    collective: str,
    algorithm: str,
    count: int,
    dtype: str,
    itemsize: int,
    op: str | None = None,
    root: int | None = None,
    channels: int = 1,
    chunk_bytes: int | None = None,
    seed: int = 0,
) -> tuple[tuple[int, ...], Call, Engine]:
    """When each rank has completed it, the call with its chunks, and the engine as it is then.  Without data.

    On fabrics whose endpoints cost nothing.  Raises EmuError where it is never completed.
    """
    kind = Engine if topology.switching is None else PacketEngine
    engine = kind(topology, seed=seed, impairments=impairments, payload=False)
    n = topology.n_ranks
    members = tuple(range(n))
    layout = layout_of(topology, members)
    schedule = schedule_for(collective, algorithm, n, root or 0, layout)
    if chunk_bytes is None:
        chunk_bytes = min(suited_chunk_bytes(schedule, count * itemsize), engine.chunk_limit_bytes)
    call = Call(
        collective=collective,
        count=count,
        dtype=dtype,
        itemsize=itemsize,
        op=op,
        root=root,
        algorithm=algorithm,
        channels=channels,
        chunk_bytes=chunk_bytes,
    )
    completed_ps = [-1] * n

    def finished(rank: int, operation: Operation, now_ps: int) -> None:
        completed_ps[rank] = now_ps

    engine.on_finished = finished
    for rank in members:
        endpoint = engine.endpoints[rank]
        operation = Operation(
            call=call,
            program=compile_program(schedule, rank),
            n_blocks=schedule.n_blocks,
            members=members,
            switches=layout.switches if schedule.n_switches else (),
            position=rank,
            communicator=0,
            number=0,
            port=endpoint,
            payload=False,
            slots_per_message=message_slots(schedule).most,
        )
        endpoint.admit(0)
        engine.call_at(0, rank, partial(endpoint.start, operation))
    engine.run(FOREVER_PS)
    if min(completed_ps) < 0:
        if engine.failure is None and engine.next_wakeup() is not None:
            raise ConfigError(OUT_OF_TIME)
        raise engine.failure or EmuError(f"{call}: {completed_ps.count(-1)} ranks never complete it")
    return tuple(completed_ps), call, engine
