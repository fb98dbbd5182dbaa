"""Schedules: a collective algorithm as data.

Law: an algorithm is a function of the world size that follows each block and
returns a :class:`Schedule`; it holds no clock, no buffer and no transport.  The
executor runs one rank's program; the verifier runs all of them on symbols.

A *block* is a share of the user's buffer (a ring all-reduce over n ranks has n).
A rank's program works on *slots*: numbered places that hold a block's value.
``initial[rank]`` says which slots start with which block of the rank's input and
``final[rank]`` which slots end in which block of its output; other slots are
scratch.  Values are immutable: a step replaces a slot's value, it never edits
it, so a copy is free and a send can never see a later write.

The executor cuts blocks into chunks and runs the same program for every chunk,
as a dataflow: a step may run as soon as the steps it depends on (earlier steps
of the program that touch its slots, and the one that it names) have run.  The k-th send from p to q meets
the k-th receive at q from p.

Switches that combine and multicast are participants too, numbered after the ranks.  The program of a switch is made of
*units* (:class:`Unit`): what is to come, reduced in this order, goes out to some; each unit is on its own, and holds no
slot beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

from emu.errors import ConfigError

CHUNKS_AHEAD = 4
"""How many chunks a paced step may be ahead: they fill the links while a result comes back."""


class StepKind(IntEnum):
    SEND = 0
    """Send the values of ``slots`` (one message, concatenated) to ``peer``."""
    RECV = 1
    """Receive a message from ``peer`` into ``slots``, replacing what they held."""
    RECV_REDUCE = 2
    """Receive and reduce: slot = op(slot, received)."""
    COPY = 3
    """``slots[0]`` to ``slots[1]``; ``peer`` is the rank itself."""


class Step(NamedTuple):
    kind: StepKind
    peer: int
    slots: tuple[int, ...]
    after: int = -1
    """An earlier step of the program that must have run, whatever its slots; -1 is none."""
    behind: int = -1
    """A step of the program that must have run for the chunk :data:`CHUNKS_AHEAD` before; -1 is none."""


class Unit(NamedTuple):
    """One combination at a switch: the values from ``inputs`` are reduced in their order and go to ``outputs``.

    Both as (participant, its how many-th message to, or from, this switch).
    """

    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


class Cost(NamedTuple):
    """``steps``: messages on the longest dependent chain, from rank to rank, through switches or not.  ``sent``: the largest
    number of bytes that any one rank sends, over S (nccl-tests' size column)."""

    steps: int
    sent: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    collective: str
    algorithm: str
    n_ranks: int
    n_blocks: int
    """Blocks that the S bytes of the collective are cut into; for collectives with a count per rank or per
    peer (gather, scatter, alltoall) it is the number of ranks, each block one count; for all_gather and reduce_scatter a
    multiple of it, each count cut into as many blocks."""
    root: int
    programs: tuple[tuple[Step, ...], ...]
    initial: tuple[dict[int, int], ...]
    """Per rank: slot -> block of the input buffer."""
    final: tuple[dict[int, int], ...]
    """Per rank: slot -> block of the output buffer."""
    n_switches: int = 0
    """Programs behind those of the ranks."""
    is_paced: bool = False
    """Whether steps wait for what became of earlier chunks, so that small and many chunks are best."""


class Message(NamedTuple):
    """What :meth:`Builder.exchange` sends; ``into`` are the receiver's slots (default: the same)."""

    source: int
    target: int
    slots: tuple[int, ...]
    into: tuple[int, ...] | None = None


class Builder:
    """Collects steps in the order in which they are written, which is itself a legal order.

    Raises ConfigError for a number of ranks or a root that cannot be.
    """

    def __init__(self, collective: str, algorithm: str, n_ranks: int, n_blocks: int, root: int = 0, n_switches: int = 0) -> None:
        if n_ranks < 1:
            raise ConfigError(f"{collective} over {n_ranks} ranks: a collective needs 1 rank or more")
        if not 0 <= root < n_ranks:
            raise ConfigError(f"root {root} of {collective}: it must be from 0 to {n_ranks - 1}, the last rank")
        self.collective = collective
        self.algorithm = algorithm
        self.n_ranks = n_ranks
        self.n_blocks = n_blocks
        self.root = root
        self.n_switches = n_switches
        self._is_paced = False
        self._programs: list[list[Step]] = [[] for _ in range(n_ranks + n_switches)]

    def send(
        self,
        source: int,
        target: int,
        slots: tuple[int, ...],
        *,
        into: tuple[int, ...] | None = None,
        reduce: bool = False,
    ) -> None:
        """One message from ``source`` to ``target``; ``into`` are the receiver's slots (default: the same)."""
        self._programs[source].append(Step(StepKind.SEND, target, slots))
        kind = StepKind.RECV_REDUCE if reduce else StepKind.RECV
        self._programs[target].append(Step(kind, source, slots if into is None else into))

    def combine(self, switch: int, inputs: tuple[int, ...], outputs: tuple[int, ...], slots: tuple[int, ...]) -> None:
        """At ``switch`` the slots of the ``inputs`` are reduced and sent to the ``outputs``, into the same slots.

        Other switches among them write their side of it themselves.
        """
        at_switch = self._programs[switch]
        for number, source in enumerate(inputs):
            if source < self.n_ranks:
                self._programs[source].append(Step(StepKind.SEND, switch, slots))
            at_switch.append(Step(StepKind.RECV_REDUCE if number else StepKind.RECV, source, slots))
        for target in outputs:
            at_switch.append(Step(StepKind.SEND, target, slots))
        for target in outputs:
            if target < self.n_ranks:
                self._programs[target].append(Step(StepKind.RECV, switch, slots))

    def in_turn(self) -> None:
        """Rounds wait for each other: every send, of those written so far, for the receive before it."""
        for program in self._programs:
            last = -1
            for index, step in enumerate(program):
                if step.kind == StepKind.SEND:
                    program[index] = step._replace(after=last)
                elif step.kind != StepKind.COPY:
                    last = index

    def pace(self) -> None:
        """A rank sends a slot for the first time only when it has what became of it some chunks before.

        Else all of it would queue on the rank's link before the first result does.
        """
        self._is_paced = True
        for program in self._programs[: self.n_ranks]:
            last = {slot: index for index, step in enumerate(program) if step.kind == StepKind.RECV for slot in step.slots}
            seen: set[int] = set()
            for index, step in enumerate(program):
                if step.kind == StepKind.SEND and seen.isdisjoint(step.slots):
                    program[index] = step._replace(behind=max(last.get(slot, -1) for slot in step.slots))
                seen.update(step.slots)

    def exchange(self, messages: Iterable[Message], *, reduce: bool = False) -> None:
        """One round: each rank's sends stand before its receives, so that nothing sent is what the round brings."""
        kind = StepKind.RECV_REDUCE if reduce else StepKind.RECV
        receives: list[tuple[int, Step]] = []
        for source, target, slots, into in messages:
            self._programs[source].append(Step(StepKind.SEND, target, slots))
            receives.append((target, Step(kind, source, slots if into is None else into)))
        for target, step in receives:
            self._programs[target].append(step)

    def copy(self, rank: int, source: int, target: int) -> None:
        self._programs[rank].append(Step(StepKind.COPY, rank, (source, target)))

    def build(self, initial: list[dict[int, int]] | None = None, final: list[dict[int, int]] | None = None) -> Schedule:
        """The schedule; slots that are not given are :func:`placement`'s."""
        if initial is None or final is None:
            usual_initial, usual_final = placement(self.collective, self.n_ranks, self.n_blocks, self.root)
            initial = usual_initial if initial is None else initial
            final = usual_final if final is None else final
        return Schedule(
            collective=self.collective,
            algorithm=self.algorithm,
            n_ranks=self.n_ranks,
            n_blocks=self.n_blocks,
            root=self.root,
            programs=tuple(tuple(program) for program in self._programs),
            initial=tuple(initial),
            final=tuple(final),
            n_switches=self.n_switches,
            is_paced=self._is_paced,
        )


def placement(collective: str, n_ranks: int, n_blocks: int, root: int) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
    """Which slots hold which blocks at the start and at the end, per rank: ``(initial, final)``.

    Slot b is block b of the whole.  Where a rank's buffer is one count of it (the input of
    all_gather and gather, the output of reduce_scatter and scatter) its k blocks are the slots from k ``rank`` on.
    alltoall: slot d is what goes to rank d, slot n + s what came from rank s.
    """
    ranks = range(n_ranks)
    whole = {block: block for block in range(n_blocks)}
    k = n_blocks // n_ranks
    own = [{rank * k + block: block for block in range(k)} for rank in ranks]
    match collective:
        case "all_reduce":
            return [whole for _ in ranks], [whole for _ in ranks]
        case "broadcast":
            return [whole if rank == root else {} for rank in ranks], [whole for _ in ranks]
        case "reduce":
            return [whole for _ in ranks], [whole if rank == root else {} for rank in ranks]
        case "all_gather":
            return own, [whole for _ in ranks]
        case "reduce_scatter":
            return [whole for _ in ranks], own
        case "gather":
            return [{rank: 0} for rank in ranks], [whole if rank == root else {} for rank in ranks]
        case "scatter":
            return [whole if rank == root else {} for rank in ranks], [{rank: 0} for rank in ranks]
        case "alltoall" | "alltoallv":
            return [whole for _ in ranks], [{n_ranks + source: source for source in ranks} for _ in ranks]
        case "barrier":
            return [{0: 0} for _ in ranks], [{} for _ in ranks]
        case _:
            raise ConfigError(f"collective {collective!r} has no usual placement; give Builder.build initial and final")


def require_collective(collective: str, algorithm: str, collectives: Iterable[str]) -> None:
    """Raises ConfigError when ``algorithm`` does not do ``collective``."""
    if collective not in collectives:
        raise ConfigError(f"{algorithm} cannot do {collective}; it does {', '.join(sorted(collectives))}")
