"""Verifier: runs a schedule on symbols and says whether it does what its collective promises.

Law: a schedule that passes ends, and ends right, on every executor that keeps
each step after the earlier steps of its rank that touch its slots, and matches the
k-th send of a pair with its k-th receive.  Here every rank runs in program order
and channels are unbounded.  That order respects every such dependency; so if it
ends, no cycle of them exists, a dataflow executor cannot deadlock, and it computes
the same values.  Limits on what may be in flight are not modelled.

A value is a block of the whole (its *identity*) and the set of ranks that
contributed to it (a bit mask).  Wrong are: a slot that is read while empty, a
reduction of different blocks or of overlapping sets, messages whose numbers of
slots differ, messages that nobody receives, receives without a message, and outputs
that are not what the collective promises.  Where blocks differ in length
(all_reduce, broadcast, reduce, alltoallv, counts that are cut) the executor knows a value's length by its
slot, so there each slot may only ever hold the one block that
:func:`emu.collectives.schedule.placement` gives it.

A switch contributes nothing, and its program must fall into units (:func:`emu.collectives.program.units`).  A message to
a switch is half a step of a chain: it counts when it has come to a rank.

In a barrier a value is the set of ranks known to have come, and a receive adds to it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, NoReturn

from emu.collectives.call import PER_RANK
from emu.collectives.program import units
from emu.collectives.schedule import Cost, Schedule, Step, StepKind
from emu.errors import ScheduleError

COLLECTIVES_WITH_UNEVEN_BLOCKS = frozenset({"all_reduce", "broadcast", "reduce", "alltoallv"})
CUT = frozenset({"all_gather", "reduce_scatter"})
"""Collectives whose counts per rank may be cut into blocks."""


class Value(NamedTuple):
    identity: int
    mask: int
    depth: int
    """Messages on the longest chain that led to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a correct schedule costs: per rank the messages and blocks that it sends, and the longest chain."""

    n_messages: tuple[int, ...]
    sent_blocks: tuple[int, ...]
    """A barrier's messages carry none."""
    longest_chain: int
    """Messages of which each had to wait for the one before."""
    n_blocks: int

    @property
    def cost(self) -> Cost:
        return Cost(self.longest_chain, Fraction(max(self.sent_blocks), self.n_blocks))


def verify(schedule: Schedule) -> Verified:
    """Raises ScheduleError, with rank, step and slot, if the schedule is wrong; else says what it costs."""
    return _Run(schedule).run()


class _Run:
    """One symbolic execution."""

    def __init__(self, schedule: Schedule) -> None:
        n = schedule.n_ranks
        self.schedule = schedule
        self.n = n
        self.barrier = schedule.collective == "barrier"
        self.n_participants = n + schedule.n_switches
        for name, wanted in (("programs", self.n_participants), ("initial", n), ("final", n)):
            if len(getattr(schedule, name)) != wanted:
                self.fail(f"{name} are given for {len(getattr(schedule, name))} of {wanted} ranks")
        n_blocks, counted = schedule.n_blocks, schedule.collective in (*PER_RANK, "alltoallv")
        if n_blocks < 1 or (counted and (n_blocks % n if schedule.collective in CUT else n_blocks != n)):
            self.fail(
                f"{n_blocks} blocks; it needs 1 or more, n where counts are per rank or per peer, a multiple of n for"
                f" {' and '.join(sorted(CUT))}"
            )
        everyone = range(self.n_participants)
        self.fixed = [fixed_blocks(schedule, rank) for rank in everyone]
        self.slots: list[dict[int, Value]] = [self._start(rank) if rank < n else {} for rank in everyone]
        for switch in everyone[n:]:
            units(schedule, switch)
        self.read_at: list[dict[int, int]] = [{} for _ in everyone]
        """Depth at which a message has read a slot that was older than its depth: a later write must wait for it."""
        self.channels: defaultdict[int, list[tuple[int, tuple[Value, ...]]]] = defaultdict(list)
        """source * participants + target -> messages under way, each with the depth at which it was sent."""
        self.ran_at: list[dict[int, int]] = [{} for _ in everyone]
        """Depth at which a receive ran that another step names."""
        self.named = [{step.after for step in program if step.after >= 0} for program in schedule.programs]
        self.ready = list(everyone)
        self.position = [0] * len(everyone)
        self.waiting_for = [-1] * len(everyone)
        self.n_messages = [0] * len(everyone)
        self.sent_slots = [0] * len(everyone)
        self.longest_chain = 0

    def fail(self, what: str) -> NoReturn:
        schedule = self.schedule
        raise ScheduleError(f"{schedule.algorithm} {schedule.collective} over {schedule.n_ranks} ranks: {what}")

    def fail_at(self, rank: int, what: str) -> NoReturn:
        index = self.position[rank]
        step = self.schedule.programs[rank][index]
        self.fail(f"rank {rank}, step {index} ({_show(step)}): {what}")

    def _start(self, rank: int) -> dict[int, Value]:
        inputs = input_blocks(self.schedule, rank)
        held = {}
        for slot, block in self.schedule.initial[rank].items():
            if block not in inputs:
                self.fail(f"rank {rank}, slot {slot}: starts with block {block} of an input of {len(inputs)} blocks")
            fixed = self.fixed[rank]
            if fixed is not None and fixed.get(slot) != inputs[block]:
                self.fail(f"rank {rank}, slot {slot}: cannot hold block {block} of the input: blocks differ in length")
            held[slot] = Value(inputs[block], 1 << rank, 0)
        return held

    def run(self) -> Verified:
        while self.ready:
            self._advance(self.ready.pop())
        for rank, position in enumerate(self.position):
            if position < len(self.schedule.programs[rank]):
                self.fail_at(rank, f"waits for ever; ranks that do: {self._stuck()}")
        for channel, messages in self.channels.items():
            if messages:
                source, target = divmod(channel, self.n_participants)
                self.fail(f"rank {target} never receives {len(messages)} of the messages from rank {source}")
        for rank in range(self.n):
            self._check_output(rank)
        return Verified(
            n_messages=tuple(self.n_messages[: self.n]),
            sent_blocks=(0,) * self.n if self.barrier else tuple(self.sent_slots[: self.n]),
            longest_chain=self.longest_chain,
            n_blocks=self.schedule.n_blocks,
        )

    def _stuck(self) -> str:
        stuck = [rank for rank, at in enumerate(self.position) if at < len(self.schedule.programs[rank])]
        return ", ".join(map(str, stuck[:8])) + (", ..." if len(stuck) > 8 else "")

    def _advance(self, rank: int) -> None:
        """Run a rank until its program ends or a message is missing."""
        n, program = self.n_participants, self.schedule.programs[rank]
        send, receive, reduce, copy = map(int, (StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY))
        for index in range(self.position[rank], len(program)):
            self.position[rank] = index
            kind, peer, names, after, behind = program[index]
            if after >= index or behind >= len(program):
                self.fail_at(rank, f"it waits for step {max(after, behind)}, which is not there, or not before it")
            if kind == copy:
                self._copy(rank, peer, names)
            elif not 0 <= peer < n or peer == rank:
                self.fail_at(rank, f"peer {peer} is not another rank from 0 to {n - 1}")
            elif kind == send:
                self._send(rank, peer, names, self.ran_at[rank].get(after, 0))
            elif kind not in (receive, reduce):
                self.fail_at(rank, f"{kind} is not a kind of step")
            elif not self._receive(rank, peer, names, kind == reduce):
                self.waiting_for[rank] = peer
                return
        self.position[rank] = len(program)

    def _send(self, rank: int, peer: int, names: tuple[int, ...], depth_before: int) -> None:
        slots, read_at = self.slots[rank], self.read_at[rank]
        if not names:
            self.fail_at(rank, "a message has one slot or more")
        try:
            values = tuple([slots[name] for name in names])
        except KeyError as error:
            self.fail_at(rank, f"slot {error.args[0]} is empty")
        depth = values[0].depth
        if len(values) > 1 or depth_before > depth:
            depth = max(depth_before, *(value.depth for value in values))
            for name in names:
                read_at[name] = max(depth, read_at.get(name, 0))
        self.channels[rank * self.n_participants + peer].append((depth, values))
        self.n_messages[rank] += 1
        self.sent_slots[rank] += len(names)
        if self.waiting_for[peer] == rank:
            self.waiting_for[peer] = -1
            self.ready.append(peer)

    def _receive(self, rank: int, peer: int, names: tuple[int, ...], reduce: bool) -> bool:
        """False while there is no message."""
        queue = self.channels[peer * self.n_participants + rank]
        if not queue:
            return False
        slots, read_at, fixed = self.slots[rank], self.read_at[rank], self.fixed[rank]
        sent_at, values = queue.pop(0)
        if len(values) != len(names):
            self.fail_at(rank, f"the message has {len(values)} slots")
        if len(names) > 1 and len(set(names)) < len(names):
            self.fail_at(rank, "a slot is named twice")
        depth = sent_at + (rank < self.n)
        for name in names:
            if name in slots and slots[name].depth > depth:
                depth = slots[name].depth
            if name in read_at:
                depth = max(depth, read_at.pop(name))
        for name, (identity, mask, _) in zip(names, values, strict=True):
            if self.barrier:
                mask |= slots[name].mask if name in slots else 0
            elif reduce:
                if name not in slots:
                    self.fail_at(rank, f"slot {name} is empty")
                mine = slots[name]
                if mine.identity != identity:
                    self.fail_at(rank, f"slot {name} holds block {mine.identity}, the message block {identity}")
                if mine.mask & mask:
                    self.fail_at(rank, f"slot {name} would count {_ranks(mine.mask & mask)} twice")
                mask |= mine.mask
            if fixed is not None and fixed.get(name) != identity:
                self.fail_at(rank, f"slot {name} cannot hold block {identity}: blocks differ in length")
            slots[name] = Value(identity, mask, depth)
        if self.position[rank] in self.named[rank]:
            self.ran_at[rank][self.position[rank]] = depth
        if depth > self.longest_chain:
            self.longest_chain = depth
        return True

    def _copy(self, rank: int, peer: int, names: tuple[int, ...]) -> None:
        slots, read_at = self.slots[rank], self.read_at[rank]
        if len(names) != 2 or peer != rank:
            self.fail_at(rank, "a copy has two slots, and its peer is the rank itself")
        source, target = names
        if source not in slots:
            self.fail_at(rank, f"slot {source} is empty")
        value = slots[source]
        fixed = self.fixed[rank]
        if fixed is not None and fixed.get(target) != value.identity:
            self.fail_at(rank, f"slot {target} cannot hold block {value.identity}: blocks differ in length")
        depth = max(value.depth, read_at.pop(target, 0), slots[target].depth if target in slots else 0)
        read_at[source] = max(depth, read_at.get(source, 0))
        slots[target] = value._replace(depth=depth)

    def _check_output(self, rank: int) -> None:
        """The collective's promise."""
        schedule, slots = self.schedule, self.slots[rank]
        if self.barrier:
            missing = (1 << self.n) - 1
            for value in slots.values():
                missing &= ~value.mask
            if missing:
                self.fail(f"rank {rank} ends without having heard of {_ranks(missing)}")
        wanted = output_blocks(schedule, rank)
        given = schedule.final[rank]
        if sorted(given.values()) != sorted(wanted):
            self.fail(f"rank {rank}: final slots make output blocks {sorted(given.values())}, not {sorted(wanted)}")
        for slot, block in given.items():
            if slot not in slots:
                self.fail(f"rank {rank}, slot {slot}: ends empty, but it is block {block} of the output")
            identity, mask, _ = slots[slot]
            if (identity, mask) != wanted[block]:
                self.fail(
                    f"rank {rank}, slot {slot}: output block {block} ends as block {identity} of {_ranks(mask)}, "
                    f"not block {wanted[block][0]} of {_ranks(wanted[block][1])}"
                )


def input_blocks(schedule: Schedule, rank: int) -> dict[int, int]:
    """Precondition: block of the rank's input buffer -> identity."""
    blocks = range(schedule.n_blocks)
    match schedule.collective:
        case "broadcast" | "scatter":
            return {block: block for block in blocks} if rank == schedule.root else {}
        case "all_gather" | "gather":
            return dict(enumerate(_own(schedule, rank)))
        case "alltoall" | "alltoallv":
            return {target: rank * schedule.n_ranks + target for target in range(schedule.n_ranks)}
        case _:
            return {block: block for block in blocks}


def output_blocks(schedule: Schedule, rank: int) -> dict[int, tuple[int, int]]:
    """Postcondition: block of the rank's output buffer -> (identity, ranks that must have contributed)."""
    n, root, blocks = schedule.n_ranks, schedule.root, range(schedule.n_blocks)
    everyone = (1 << n) - 1
    match schedule.collective:
        case "all_reduce":
            return {block: (block, everyone) for block in blocks}
        case "reduce":
            return {block: (block, everyone) for block in blocks} if rank == root else {}
        case "reduce_scatter":
            return {number: (block, everyone) for number, block in enumerate(_own(schedule, rank))}
        case "broadcast":
            return {block: (block, 1 << root) for block in blocks}
        case "scatter":
            return {0: (rank, 1 << root)}
        case "all_gather":
            return {block: (block, 1 << source) for source in range(n) for block in _own(schedule, source)}
        case "gather":
            return {source: (source, 1 << source) for source in range(n)} if rank == root else {}
        case "alltoall" | "alltoallv":
            return {source: (source * n + rank, 1 << source) for source in range(n)}
        case "barrier":
            return {}
        case unknown:
            raise ScheduleError(f"{schedule.algorithm} {unknown}: no promise is known for this collective")


def fixed_blocks(schedule: Schedule, rank: int) -> dict[int, int] | None:
    """Slot -> the one identity that it may hold, where blocks differ in length; None where they are all alike."""
    n = schedule.n_ranks
    is_cut = schedule.collective in CUT and schedule.n_blocks > n
    if schedule.collective not in COLLECTIVES_WITH_UNEVEN_BLOCKS and not is_cut:
        return None
    if schedule.collective == "alltoallv":
        return {d: rank * n + d for d in range(n)} | {n + s: s * n + rank for s in range(n)}
    return {block: block for block in range(schedule.n_blocks)}


def _own(schedule: Schedule, rank: int) -> range:
    """The blocks that a rank's count is cut into."""
    k = schedule.n_blocks // schedule.n_ranks
    return range(rank * k, (rank + 1) * k)


def _ranks(mask: int) -> str:
    ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _show(step: Step) -> str:
    names = {StepKind.SEND: "send to", StepKind.RECV: "receive from", StepKind.RECV_REDUCE: "receive and reduce from"}
    where = "slot" if len(step.slots) == 1 else "slots"
    what = f"{names[step.kind]} {step.peer}" if step.kind in names else "copy"
    return f"{what}, {where} {', '.join(map(str, step.slots[:8]))}{', ...' if len(step.slots) > 8 else ''}"
