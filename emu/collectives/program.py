"""Program: one rank's part of a schedule, compiled to a dataflow.

Law: compiled once per (schedule, rank), then shared by every call; nothing here
depends on sizes or time.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

from emu.collectives.call import auto_chunk_bytes, n_counts_of, paced_chunk_bytes
from emu.collectives.schedule import Schedule, Step, StepKind, Unit
from emu.errors import ScheduleError

_counting = Lock()


class Program:
    """Steps of one rank with their dependencies.

    A step depends on the last earlier step that wrote a slot it touches and, where it
    writes, on the earlier steps that read that slot.  ``ordinals[i]`` counts the
    messages between this rank and the step's peer in that direction.
    """

    __slots__ = (
        "dependents", "final_writes", "initial", "kinds", "n_dependencies", "ordinals", "paced", "peers",
        "receive_steps", "releases", "roots", "slots", "touches",
        "untouched",
    )  # fmt: skip

    def __init__(self, schedule: Schedule, rank: int) -> None:
        steps = schedule.programs[rank]
        self.kinds = [int(step.kind) for step in steps]
        self.peers = [step.peer for step in steps]
        self.slots = [step.slots for step in steps]
        self.ordinals: list[int] = []
        self.n_dependencies: list[int] = []
        self.dependents: list[list[int]] = [[] for _ in steps]
        self.receive_steps: dict[tuple[int, int], int] = {}
        self.initial = tuple(schedule.initial[rank].items())
        writer: dict[int, int] = {}
        readers: defaultdict[int, list[int]] = defaultdict(list)
        touches: defaultdict[int, int] = defaultdict(int)
        sent: defaultdict[int, int] = defaultdict(int)
        received: defaultdict[int, int] = defaultdict(int)
        for index, step in enumerate(steps):
            reads: tuple[int, ...]
            writes: tuple[int, ...]
            ordinal = 0
            if step.kind == StepKind.SEND:
                reads, writes = step.slots, ()
                ordinal = sent[step.peer]
                sent[step.peer] += 1
            elif step.kind == StepKind.COPY:
                reads, writes = step.slots[:1], step.slots[1:]
            else:
                reads = step.slots if step.kind == StepKind.RECV_REDUCE else ()
                writes = step.slots
                ordinal = received[step.peer]
                received[step.peer] += 1
                self.receive_steps[step.peer, ordinal] = index
            before = {writer[slot] for slot in (*reads, *writes) if slot in writer}
            for slot in writes:
                before.update(readers[slot])
            if step.after >= 0:
                before.add(step.after)
            before.discard(index)
            for slot in reads:
                readers[slot].append(index)
            for slot in writes:
                writer[slot] = index
                readers[slot] = []
            for slot in step.slots:
                touches[slot] += 1
            for earlier in before:
                self.dependents[earlier].append(index)
            self.n_dependencies.append(len(before))
            self.ordinals.append(ordinal)
        self.paced = tuple(index for index, step in enumerate(steps) if step.behind >= 0)
        """Steps that wait for what became of an earlier chunk."""
        self.releases: list[list[int]] = [[] for _ in steps] if self.paced else []
        """Per step the paced ones of a later chunk that wait for it."""
        for index in self.paced:
            self.releases[steps[index].behind].append(index)
        self.roots = [index for index, count in enumerate(self.n_dependencies) if count == 0]
        final = schedule.final[rank]
        self.final_writes: list[tuple[tuple[int, int], ...]] = [() for _ in steps]
        for slot, block in final.items():
            if slot in writer:
                self.final_writes[writer[slot]] += ((slot, block),)
        self.untouched = tuple((slot, block) for slot, block in final.items() if slot not in writer)
        """(slot, block) of the output that no step writes: they end as the input's value."""
        self.touches: dict[int, int] = dict(touches)
        """How many steps use a slot: after the last of them its value is dropped, so that received buffers are freed early."""


def units(schedule: Schedule, switch: int) -> tuple[Unit, ...]:
    """The units of a switch's program, in order: each a receive, receives that reduce, and sends, all of the same slots.

    Raises ScheduleError for any other program.
    """
    found: list[Unit] = []
    counts: defaultdict[tuple[bool, int], int] = defaultdict(int)
    slots: tuple[int, ...] = ()
    for index, (kind, peer, names, *_) in enumerate(schedule.programs[switch]):
        sends = kind == StepKind.SEND
        message = peer, counts[sends, peer]
        counts[sends, peer] += 1
        if kind == StepKind.RECV:
            slots = names
            found.append(Unit((message,), ()))
            continue
        fits = bool(found) and names == slots and (sends or (kind == StepKind.RECV_REDUCE and not found[-1].outputs))
        if not fits:
            raise ScheduleError(
                f"{schedule.algorithm} {schedule.collective}: switch {switch}, step {index}: a switch receives, reduces what"
                " else it receives into the same slots, and sends them on; nothing else"
            )
        inputs, outputs = found[-1]
        found[-1] = Unit(inputs, (*outputs, message)) if sends else Unit((*inputs, message), outputs)
    if any(not unit.outputs for unit in found):
        raise ScheduleError(f"{schedule.algorithm} {schedule.collective}: switch {switch} receives what it never sends on")
    return tuple(found)


class _Held:
    """Hashes a schedule by identity: schedules are cached and immutable, and their contents are large."""

    __slots__ = ("schedule",)

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __hash__(self) -> int:
        return id(self.schedule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.schedule is self.schedule


@lru_cache(maxsize=4096)
def _compiled(held: _Held, rank: int) -> Program:
    return Program(held.schedule, rank)


class MessageSlots(NamedTuple):
    """How many slots the messages of a schedule carry: the most, and the mean."""

    most: int
    mean: float


@lru_cache(maxsize=256)
def _message_slots(held: _Held) -> MessageSlots:
    counts = [len(step.slots) for program in held.schedule.programs for step in program if step.kind == StepKind.SEND]
    return MessageSlots(max(counts, default=1), sum(counts) / len(counts) if counts else 1.0)


def compile_program(schedule: Schedule, rank: int) -> Program:
    """The rank's program, compiled on first use."""
    return _compiled(_Held(schedule), rank)


def message_slots(schedule: Schedule) -> MessageSlots:
    """All ranks cut chunks by it.  Their threads ask at the same time; one of them counts."""
    with _counting:
        return _message_slots(_Held(schedule))


def block_bytes(schedule: Schedule, count_bytes: int) -> int:
    """Of a call of ``count_bytes`` (its count, in bytes)."""
    return -(-count_bytes // (schedule.n_blocks // n_counts_of(schedule.collective, schedule.n_ranks)))


def suited_chunk_bytes(schedule: Schedule, count_bytes: int) -> int:
    """The chunks of a call of ``count_bytes`` that names none, where endpoints cost nothing."""
    block = block_bytes(schedule, count_bytes)
    return paced_chunk_bytes(block) if schedule.is_paced else auto_chunk_bytes(block, *message_slots(schedule))


@lru_cache(maxsize=4096)
def point_to_point(kind: str, peer: int) -> Program:
    """The one step of a send to, or a recv from, a position of a communicator."""
    sending = kind == "send"
    step = Step(StepKind.SEND if sending else StepKind.RECV, peer, (0,))
    schedule = Schedule(
        collective=kind,
        algorithm="p2p",
        n_ranks=1,
        n_blocks=1,
        root=0,
        programs=((step,),),
        initial=({0: 0} if sending else {},),
        final=({} if sending else {0: 0},),
    )
    return Program(schedule, 0)
