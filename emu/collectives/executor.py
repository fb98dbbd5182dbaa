"""Operation: the machine that runs one rank's part of one call.

Law: it is told the time and touches no other rank.  Steps run as a dataflow; for
equal inputs they run in the same order whatever the host does, because the
driver calls it in model order.

Steps that depend on nothing start farthest peer first, then in the order of the program, one
chunk of each before the second of any: so the long ways fill while the short ones have work,
which brings a torus all-to-all to 0.97 of its bound (0.80 in plain order).

Values are immutable arrays.  What still lies in the user's memory is copied when
it leaves (earlier only where the output may overwrite it); what was received or computed is
handed on as it is.  A block is written to the user's output once, by the last step that changes it.

A call of no elements sends nothing and completes at once; it does not synchronise.

What a launch, a receipt, a copy or a reduction takes on the accelerator is the endpoint's (``fabric/device.py``).
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from itertools import accumulate
from typing import Any, Final, Protocol

import numpy as np

from emu.collectives.call import PER_RANK, Call, block_ranges, chunk_elements
from emu.collectives.program import Program
from emu.collectives.recipe import Recipe
from emu.collectives.reduce import DTYPES, Array, combine, finish, prepare, quiet
from emu.collectives.schedule import CHUNKS_AHEAD, StepKind
from emu.errors import EmuError
from emu.fabric.account import ENDPOINT, FIRST_START_PS, LAST_RANK, LAST_START_PS, Account, by_cause, meet, opened, scaled
from emu.fabric.frame import Frame

SEND, RECV, COPY = int(StepKind.SEND), int(StepKind.RECV), int(StepKind.COPY)
RECV_REDUCE = int(StepKind.RECV_REDUCE)
Values = list[Array] | None
"""Of a message; None where there is no data."""


class Port(Protocol):
    """Where an operation's messages go: its rank's endpoint."""

    def send(
        self, operation: Operation, peer: int, message: int, chunk: int, block: int, n_bytes: int, values: Values, now_ps: int
    ) -> None:
        """``values``, of which ``block`` is the first, are packed by :meth:`Operation.packed` when they leave."""
        ...

    def hops(self, peer: int) -> int:
        """Links on the way to a rank."""
        ...

    def worked(self, operation: Operation, chunk: int, block: int, copied_bytes: int, reduced_bytes: int, now_ps: int) -> None:
        """A step wrote to the rank's own memory what no peer stored there, or reduced what came."""

    def consumed(self, frame: Frame, now_ps: int) -> None: ...
    def finished(self, operation: Operation, now_ps: int) -> None: ...


class Operation:
    """One call on one rank, from its start to its completion.

    ``members`` are the world ranks of the communicator; the program speaks of positions in it, and behind them of
    ``switches``, by their addresses, which ``recipe`` tells what to do.
    ``key`` finds the operation that a frame belongs to.  ``left_ps`` is when the last byte
    sent so far leaves the rank; the call completes when all steps have run and all has left.

    ``account`` is that of the event that its steps run on (``trigger`` its frame, None at the start), ``left_account`` that
    of ``left_ps``.  When it is complete ``split_ps`` says by cause where the time from ``submitted_ps`` went; and of the ranks it
    depended on, ``last_rank`` is the one that started the call last, at ``last_start_ps``.
    """

    __slots__ = (
        "_arrived", "_chunk", "_dtype", "_in_place", "_input", "_n_steps", "_output", "_ranges", "_recipe", "_remaining",
        "_total", "_uniform", "_uses", "_values", "_where", "account", "addresses", "behind_ps", "call", "channels",
        "communicator", "completed_ps", "first_start_ps", "held", "key", "last_rank", "last_start_ps", "launch_ps",
        "left_account", "left_ps", "left_with", "members", "n_blocks", "n_chunks", "name", "number", "on_complete", "payload",
        "port", "position", "program", "receive_counts", "send_counts", "split_ps", "started_ps", "submitted_ps", "trigger",
    )  # fmt: skip

    def __init__(
        self,
        *,
        call: Call,
        program: Program,
        n_blocks: int,
        members: tuple[int, ...],
        switches: tuple[int, ...] = (),
        position: int,
        communicator: int,
        number: int,
        port: Port,
        name: str = "",
        input_array: Array | None = None,
        output_array: Array | None = None,
        send_counts: tuple[int, ...] = (),
        receive_counts: tuple[int, ...] = (),
        payload: bool = True,
        slots_per_message: int = 1,
    ) -> None:
        self.call = call
        self.program = program
        self.members = members
        self.addresses = members + switches if switches else members
        self.position = position
        self.communicator = communicator
        self.number = number
        self.key: tuple[int, ...] = (communicator, number)
        self.port = port
        self.name = name
        self.send_counts, self.receive_counts = send_counts, receive_counts
        self.payload, self.n_blocks = payload, n_blocks
        self.channels = call.channels
        self.left_ps = 0
        self.held = 0
        self._recipe = b""
        self.submitted_ps = 0
        self.launch_ps = 0  # what its launch took of the time since started_ps
        self.behind_ps: tuple[int, ...] = ()
        """The split of the call before it in its stream, where it waited for that one."""
        self.started_ps: int | None = None
        self.completed_ps: int | None = None
        self.account: Account = []
        self.trigger: Frame | None = None
        self.left_account: Account = []
        self.left_with: Frame | None = None
        self.first_start_ps = self.last_start_ps = 0
        self.last_rank = members[position]
        self.split_ps: tuple[int, ...] = ()
        self.on_complete: Any = None
        self._dtype = DTYPES[call.dtype]
        self._input = input_array
        self._output = output_array
        self._in_place = input_array is not None and output_array is not None and np.may_share_memory(input_array, output_array)
        self._where: dict[int, int] = {}
        n = len(members)
        if call.collective == "alltoallv":
            lengths = {slot: send_counts[slot] for slot in range(n)} | {n + s: receive_counts[s] for s in range(n)}
            self._uniform = -1
            self._ranges = ([*accumulate(send_counts, initial=0)], [*accumulate(receive_counts, initial=0)], lengths)
            longest = max(max(lengths.values()), 0)
            block_elements = longest if call.channels == 1 else call.chunk_bytes // call.itemsize * call.channels
        elif call.collective in PER_RANK and n_blocks == n:
            self._uniform = call.count
            self._ranges = ([b * call.count for b in range(n)], [b * call.count for b in range(n)], {})
            longest = block_elements = call.count
        else:
            starts, ends, cut = block_ranges(call.collective, call.count, n, n_blocks)
            self._uniform = -1
            self._ranges = (starts, ends, dict(enumerate(cut)))
            longest = block_elements = cut[0] if cut else 0
        self._chunk = chunk_elements(call, block_elements, slots_per_message)
        self.n_chunks = max(1, -(-longest // self._chunk))
        self._n_steps = len(program.kinds)
        self._remaining = program.n_dependencies * self.n_chunks
        for chunk in range(CHUNKS_AHEAD, self.n_chunks if program.paced else 0):
            for step in program.paced:
                self._remaining[chunk * self._n_steps + step] += 1
        self._total = self._n_steps * self.n_chunks
        self._arrived: dict[int, Frame] = {}
        self._values: dict[tuple[int, int], Array] = {}
        self._uses: dict[tuple[int, int], int] = {}

    # -- sizes ---------------------------------------------------------------------------------

    def _length(self, slot: int, chunk: int) -> int:
        """Elements of the chunk-th part of a slot."""
        length = self._uniform if self._uniform >= 0 else self._ranges[2][slot]
        return max(0, min(self._chunk, length - chunk * self._chunk))

    def _message_bytes(self, step: int, chunk: int) -> int:
        slots = self.program.slots[step]
        if len(slots) == 1:
            return self._length(slots[0], chunk) * self.call.itemsize
        return sum(self._length(slot, chunk) for slot in slots) * self.call.itemsize

    # -- life ----------------------------------------------------------------------------------

    def start(self, now_ps: int) -> None:
        """Run every step that depends on nothing."""
        started_ps = now_ps - self.launch_ps
        self.started_ps = started_ps
        self.left_ps = now_ps
        self.account = self.left_account = opened(self.members[self.position], started_ps)
        self.account[ENDPOINT] = self.launch_ps
        if self.payload and self._input is not None:
            for slot, block in self.program.initial:
                for chunk in range(self.n_chunks):
                    length = self._length(slot, chunk)
                    if length:
                        first = self._ranges[0][block] + chunk * self._chunk
                        self._values[slot, chunk] = prepare(self.call.op, self._input[first : first + length], len(self.members))
            for slot, block in self.program.untouched:
                for chunk in range(self.n_chunks):
                    if (slot, chunk) in self._values:
                        self._write(slot, block, chunk)
        if not self._total:
            self._complete(now_ps)
            return
        if self.program.untouched and not self._in_place:
            kept = sum(self._length(slot, chunk) for slot, _ in self.program.untouched for chunk in range(self.n_chunks))
            self.port.worked(self, 0, 0, kept * self.call.itemsize, 0, now_ps)
        roots = self.program.roots
        if len(roots) > 1:
            peers = self.program.peers
            roots = sorted(roots, key=lambda step: -self.port.hops(self.addresses[peers[step]]))
        n_steps, remaining = self._n_steps, self._remaining
        ready = deque((step, chunk) for chunk in range(self.n_chunks) for step in roots if not remaining[chunk * n_steps + step])
        self._run(ready, now_ps)

    def expects(self, frame: Frame) -> bool:
        """Whether a frame of the same call is as long as what this rank waits for; only alltoallv's may differ."""
        if not self.receive_counts:
            return True
        step = self.program.receive_steps[self._position_of(frame), frame.message]
        return frame.chunk < self.n_chunks and frame.payload_bytes == self._message_bytes(step, frame.chunk)

    def receive(self, frame: Frame, now_ps: int) -> None:
        """The tail of a message's chunk is here."""
        account, known = frame.account, self.account
        if (
            account[LAST_START_PS] != known[LAST_START_PS]
            or account[FIRST_START_PS] != known[FIRST_START_PS]
            or account[LAST_RANK] != known[LAST_RANK]
        ):
            meet(account, known)
        step = self.program.receive_steps[self._position_of(frame), frame.message]
        chunk = frame.chunk
        self._arrived[chunk * self._n_steps + step] = frame
        if self._remaining[chunk * self._n_steps + step] == 0:
            if now_ps != (self.started_ps or 0) + self.launch_ps:
                self.account, self.trigger = account, frame
            self._run(deque(((step, chunk),)), now_ps)

    def _position_of(self, frame: Frame) -> int:
        if not self._where:
            self._where = {rank: position for position, rank in enumerate(self.addresses)}
        return self._where[frame.source_rank]

    def leaves(self, frame: Frame, left_ps: int) -> None:
        """The last byte of a frame leaves this rank at ``left_ps``; its account is as of then."""
        if left_ps >= self.left_ps:
            self.left_ps = left_ps
            self.left_account, self.left_with = frame.account[:], frame

    def busy(self, until_ps: int, now_ps: int) -> None:
        """The rank works for this call until then."""
        if until_ps >= self.left_ps:
            self.left_ps = until_ps
            self.left_account, self.left_with = self.account[:], self.trigger
            self.left_account[ENDPOINT] += until_ps - now_ps

    def ends_with(self, frame: Frame) -> bool:
        """Whether no step waits for this message: it is stored and kept."""
        step = self.program.receive_steps[self._position_of(frame), frame.message]
        return self.program.kinds[step] == RECV and not self.program.dependents[step]

    def released(self, now_ps: int) -> None:
        """A message that waited for credit has been sent."""
        self.held -= 1
        if self._total == 0 and self.held == 0:
            self._complete(now_ps)

    def waits_for(self) -> tuple[int, ...]:
        """World ranks whose messages (or credits) this operation lacks, for explaining a stall; behind a switch all are."""
        program, n = self.program, self._n_steps
        lacking = {
            program.peers[step]
            for chunk in range(self.n_chunks)
            for step in range(n)
            if program.kinds[step] in (RECV, RECV_REDUCE)
            and self._remaining[chunk * n + step] == 0
            and not self._is_done(step, chunk)
        }
        if any(peer >= len(self.members) for peer in lacking):
            return tuple(sorted(rank for rank in self.members if rank != self.members[self.position]))
        return tuple(sorted(self.members[peer] for peer in lacking))

    @property
    def recipe(self) -> bytes:
        """What a switch must know of this call."""
        if not self._recipe:
            call = self.call
            recipe = Recipe(call.collective, call.algorithm, call.root or 0, call.op or "sum", call.dtype, self.members)
            self._recipe = recipe.packed()
        return self._recipe

    def _is_done(self, step: int, chunk: int) -> bool:
        return self._remaining[chunk * self._n_steps + step] < 0

    # -- dataflow ------------------------------------------------------------------------------

    def _run(self, ready: deque[tuple[int, int]], now_ps: int) -> None:
        program, n_steps, remaining = self.program, self._n_steps, self._remaining
        kinds, dependents = program.kinds, program.dependents
        barrier = self.call.collective == "barrier"
        while ready:
            step, chunk = ready.popleft()
            kind = kinds[step]
            if kind == SEND:
                n_bytes = self._message_bytes(step, chunk)
                if n_bytes or barrier:
                    values = self._outgoing(step, chunk) if self.payload and n_bytes else None
                    peer = self.addresses[program.peers[step]]
                    self.port.send(self, peer, program.ordinals[step], chunk, program.slots[step][0], n_bytes, values, now_ps)
            elif kind == COPY:
                if self.payload:
                    source, target = program.slots[step]
                    value = self._values.get((source, chunk))
                    if value is not None:
                        self._values[target, chunk] = value
                block = program.slots[step][0]
                self.port.worked(self, chunk, block, self._length(block, chunk) * self.call.itemsize, 0, now_ps)
            else:
                n_bytes = self._message_bytes(step, chunk)
                if n_bytes or barrier:
                    frame = self._arrived.pop(chunk * n_steps + step, None)
                    if frame is None:
                        continue
                    if self.payload and n_bytes:
                        self._incoming(step, chunk, frame.payload, kind == RECV_REDUCE)
                    self.port.consumed(frame, now_ps)
                    if kind == RECV_REDUCE:
                        written = sum(self._length(slot, chunk) for slot, _ in program.final_writes[step])
                        self.port.worked(self, chunk, program.slots[step][0], written * self.call.itemsize, n_bytes, now_ps)
            base = chunk * n_steps
            remaining[base + step] = -1
            self._total -= 1
            if self.payload:
                for slot, block in program.final_writes[step]:
                    if (slot, chunk) in self._values:
                        self._write(slot, block, chunk)
                self._drop_dead(step, chunk)
            for later in dependents[step]:
                remaining[base + later] -= 1
                if remaining[base + later] == 0:
                    ready.append((later, chunk))
            if program.releases and chunk + CHUNKS_AHEAD < self.n_chunks:
                base += CHUNKS_AHEAD * n_steps
                for later in program.releases[step]:
                    remaining[base + later] -= 1
                    if remaining[base + later] == 0:
                        ready.append((later, chunk + CHUNKS_AHEAD))
        if self._total == 0 and self.held == 0 and self.completed_ps is None:
            self._complete(now_ps)

    def _complete(self, now_ps: int) -> None:
        self.completed_ps = completed_ps = max(now_ps, self.left_ps)
        self.first_start_ps, self.last_start_ps = self.account[FIRST_START_PS], self.account[LAST_START_PS]
        self.last_rank = self.account[LAST_RANK]
        if self.left_ps >= now_ps:
            self.account, self.trigger = self.left_account, self.left_with
        started_ps = now_ps if self.started_ps is None else self.started_ps
        self.split_ps = by_cause(self.account, started_ps, completed_ps)
        if started_ps > self.submitted_ps and self.behind_ps:
            waited = scaled(self.behind_ps, started_ps - self.submitted_ps)
            self.split_ps = tuple(sum(both) for both in zip(waited, self.split_ps, strict=True))
        self._values.clear()
        self._input = self._output = None
        self.port.finished(self, completed_ps)

    # -- payload -------------------------------------------------------------------------------

    def _outgoing(self, step: int, chunk: int) -> list[Array]:
        values = [self._values[slot, chunk] for slot in self.program.slots[step] if self._length(slot, chunk)]
        if self._in_place:
            return [value.copy() if self._is_users(value) else value for value in values]
        return values

    def packed(self, values: list[Array]) -> Array:
        """One array of what is sent, which the user cannot change any more."""
        if len(values) > 1:
            return np.concatenate(values)
        return values[0].copy() if self._is_users(values[0]) else values[0]

    def _drop_dead(self, step: int, chunk: int) -> None:
        """Forget values that no later step uses."""
        uses, touches = self._uses, self.program.touches
        for slot in self.program.slots[step]:
            key = slot, chunk
            left = uses.get(key, touches[slot]) - 1
            uses[key] = left
            if not left:
                self._values.pop(key, None)

    def _is_users(self, value: Array) -> bool:
        """Whether a value still lies in memory that the user may change."""
        return value.base is not None and (value.base is self._input or value.base is _root(self._input))

    def _incoming(self, step: int, chunk: int, payload: Any, reduce: bool) -> None:
        received = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, dtype=self._dtype)
        # What a socket gave is nobody else's, and still in the cache: the sum goes there.
        into_received = received is not payload and received.flags.writeable
        offset = 0
        op, values = self.call.op or "sum", self._values
        with quiet() if reduce else nullcontext():
            for slot in self.program.slots[step]:
                length = self._length(slot, chunk)
                if not length:
                    continue
                part = received if length == len(received) else received[offset : offset + length]
                offset += length
                if reduce:
                    part = combine(op, values[slot, chunk], part, out=part if into_received else None)
                values[slot, chunk] = part

    def _write(self, slot: int, block: int, chunk: int) -> None:
        output = self._output
        value = self._values[slot, chunk]
        if output is None:
            return
        first = self._ranges[1][block] + chunk * self._chunk
        target = output[first : first + len(value)]
        done = finish(self.call.op, value, len(self.members)) if self.call.op == "avg" else value
        if not self._in_place or done.__array_interface__["data"][0] != target.__array_interface__["data"][0]:
            target[...] = done


def _root(array: Array | None) -> Any:
    return None if array is None else array.base


class _Nowhere:
    """Stands for the endpoint until the engine takes the operation."""

    def send(
        self, operation: Operation, peer: int, message: int, chunk: int, block: int, n_bytes: int, values: Values, now_ps: int
    ) -> None:
        raise EmuError("an operation ran before it was submitted")

    def hops(self, peer: int) -> int:
        raise EmuError("an operation ran before it was submitted")

    def worked(self, operation: Operation, chunk: int, block: int, copied_bytes: int, reduced_bytes: int, now_ps: int) -> None:
        raise EmuError("an operation ran before it was submitted")

    def consumed(self, frame: Any, now_ps: int) -> None:
        raise EmuError("an operation ran before it was submitted")

    def finished(self, operation: Operation, now_ps: int) -> None:
        raise EmuError("an operation ran before it was submitted")


NOWHERE: Final[Port] = _Nowhere()
