"""Planner: how a communicator's calls are done: by which algorithm and protocol, in chunks of what size, by which program.

Law: all ranks that ask for the same get the same, so that their calls agree.  What a call names is kept; the rest is
picked by the runtime (algorithm, protocol) and here (chunks).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from emu.collectives.call import MAX_CHUNK_BYTES, Call, auto_chunk_bytes, check_chunk_bytes, n_counts_of
from emu.collectives.catalogue import algorithm_name, schedule_for
from emu.collectives.executor import NOWHERE, Operation
from emu.collectives.layout import Layout
from emu.collectives.program import block_bytes, compile_program, message_slots, point_to_point, suited_chunk_bytes
from emu.collectives.reduce import DTYPES, Array
from emu.collectives.schedule import Schedule
from emu.collectives.selection import is_choice, selected
from emu.errors import ConfigError
from emu.protocols.costs import slice_bytes
from emu.protocols.legal import Reduction, reducing
from emu.work import Runtime

MAX_CHANNELS = 64
P2P = "p2p"
"""What stands for the algorithm of a send or recv."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Of one communicator, on one of its ranks: ``members`` are world ranks, ``position`` is this rank's place among them."""

    runtime: Runtime
    members: tuple[int, ...]
    position: int
    identity: int
    name: str
    traffic_class: int

    @cached_property
    def layout(self) -> Layout:
        """How the members lie on the fabric."""
        return self.runtime.layout(self.members)

    def schedule(self, collective: str, algorithm: str, root: int | None) -> Schedule:
        return schedule_for(collective, algorithm, len(self.members), root or 0, self.layout)

    def prepare(self, collective: str, algorithm: str, root: int) -> None:
        """Build, verify and compile what such a call takes."""
        schedule = self.schedule(collective, algorithm, root)
        compile_program(schedule, self.position)
        message_slots(schedule)

    # -- calls ---------------------------------------------------------------------------------

    def collective(
        self,
        collective: str,
        count: int,
        dtype: str,
        *,
        op: str | None,
        root: int | None,
        algorithm: str,
        channels: int,
        chunk_bytes: int | None,
        protocol: str | None,
    ) -> Call:
        """A collective's call.  ``algorithm`` may be a selection.  Raises ConfigError for what does not go together."""
        size_bytes = count * DTYPES[dtype].itemsize * n_counts_of(collective, len(self.members))
        reduction = None if op is None else Reduction(op, dtype if self.runtime.payload else None)
        if collective == "barrier":
            algorithm = "dissemination"
        elif not is_choice(algorithm):
            algorithm = algorithm_name(algorithm)
        elif collective == "alltoallv":
            algorithm = selected(algorithm, collective)[0]
        else:
            algorithm = self.runtime.choose(collective, size_bytes, self.members, root or 0, algorithm, reduction)
        protocol = self._protocol(collective, algorithm, size_bytes, protocol)
        call = self._call(collective, count, dtype, algorithm, protocol, channels, chunk_bytes, op=op, root=root)
        reducing((algorithm,), reduction, collective)
        return call

    def control(self, collective: str, count: int, dtype: str) -> Call:
        """The call of an exchange of the library's own, which costs the accelerator nothing."""
        return self._call(collective, count, dtype, "direct", "", 1, None)

    def p2p(self, kind: str, count: int, dtype: str, *, channels: int, chunk_bytes: int | None) -> Call:
        """The call of a send or recv.  Raises ConfigError."""
        protocol = self._protocol(kind, P2P, count * DTYPES[dtype].itemsize, None)
        return self._call(kind, count, dtype, P2P, protocol, channels, chunk_bytes)

    def _call(
        self,
        collective: str,
        count: int,
        dtype: str,
        algorithm: str,
        protocol: str,
        channels: int,
        chunk_bytes: int | None,
        *,
        op: str | None = None,
        root: int | None = None,
    ) -> Call:
        if not 1 <= channels <= MAX_CHANNELS:
            raise ConfigError(f"{channels} channels: use 1 to {MAX_CHANNELS}")
        itemsize = DTYPES[dtype].itemsize
        if chunk_bytes is None:
            suits_bytes = self._auto_chunk_bytes(collective, count * itemsize, algorithm, root, protocol)
            chunk_bytes = min(suits_bytes, self.runtime.chunk_limit_bytes())
        return Call(
            collective=collective,
            count=count,
            dtype=dtype,
            itemsize=itemsize,
            op=op,
            root=root,
            algorithm=algorithm,
            channels=channels,
            chunk_bytes=check_chunk_bytes(chunk_bytes),
            protocol=protocol,
            n_hosts=len(self.layout.nodes) if protocol else 1,
            traffic_class=self.traffic_class,
        )

    def _protocol(self, collective: str, algorithm: str, n_bytes: int, wanted: str | None) -> str:
        if collective == "barrier" or (self.runtime.endpoint is None and wanted is None):
            return ""
        return self.runtime.protocol(collective, algorithm, n_bytes, self.members, wanted)

    def _auto_chunk_bytes(self, collective: str, count_bytes: int, algorithm: str, root: int | None, protocol: str) -> int:
        costs = self.runtime.endpoint
        if collective in ("send", "recv", "alltoallv"):
            longest_bytes = MAX_CHUNK_BYTES if collective == "alltoallv" else count_bytes
            if protocol and costs is not None:
                return slice_bytes(costs, collective, algorithm, protocol, longest_bytes)
            return auto_chunk_bytes(longest_bytes)
        schedule = self.schedule(collective, algorithm, root)
        if protocol and costs is not None:
            longest_bytes = block_bytes(schedule, count_bytes) * message_slots(schedule).most
            return slice_bytes(
                costs,
                collective,
                algorithm,
                protocol,
                longest_bytes,
                n_blocks=schedule.n_blocks,
                n_ranks=schedule.n_ranks,
                n_hosts=len(self.layout.nodes),
            )
        return suited_chunk_bytes(schedule, count_bytes)

    # -- operations ----------------------------------------------------------------------------

    def operation(
        self,
        call: Call,
        number: int,
        send: Array | None,
        recv: Array | None,
        *,
        counts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
        payload: bool,
    ) -> Operation:
        """This rank's part of the communicator's ``number``-th collective."""
        schedule = self.schedule(call.collective, call.algorithm, call.root)
        return Operation(
            call=call,
            program=compile_program(schedule, self.position),
            n_blocks=schedule.n_blocks,
            members=self.members,
            switches=self.layout.switches if schedule.n_switches else (),
            position=self.position,
            communicator=self.identity,
            number=number,
            port=NOWHERE,
            name=self.name,
            input_array=send,
            output_array=recv,
            send_counts=counts[0],
            receive_counts=counts[1],
            payload=payload,
            slots_per_message=message_slots(schedule).most,
        )

    def p2p_operation(self, call: Call, peer: int, ordinal: int, array: Array | None, *, payload: bool) -> Operation:
        """The ``ordinal``-th send to, or recv from, ``peer``."""
        output = call.collective == "recv"
        operation = Operation(
            call=call,
            program=point_to_point(call.collective, peer),
            n_blocks=1,
            members=self.members,
            position=self.position,
            communicator=self.identity,
            number=-1 - ordinal,
            port=NOWHERE,
            name=self.name,
            input_array=None if output else array,
            output_array=array if output else None,
            payload=payload,
        )
        key = self.identity, -1 - ordinal, self.members[peer]
        operation.key = key if output else (*key, 1)
        return operation
