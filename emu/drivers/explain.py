"""Explain: why nothing moves, from what every rank says it is doing.

Law: a pure function of the ranks' states; both drivers use it, and it is asked
only when nothing can move any more, when a frame showed a mismatch, or when there
was no progress for the timeout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from emu.errors import CollectiveMismatch, Deadlock, EmuError, RankLeft, Stalled
from emu.units import FOREVER_PS

OUT_OF_TIME = f"model time would pass {FOREVER_PS} ps (53 days): shorten what is declared, delayed or slowed down"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """A call that a rank has issued."""

    key: tuple[int, ...]
    communicator: int
    number: int
    members: tuple[int, ...]
    what: str
    signature: tuple[object, ...]
    kind: str
    peer: int | None
    """World rank of the other side of a send or recv."""
    name: str = ""
    """The communicator's."""
    send_counts: tuple[int, ...] = ()
    receive_counts: tuple[int, ...] = ()
    """By position in ``members``; alltoallv only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    world_rank: int
    status: str
    """"computing" (user code runs), "waiting" or "returned"."""
    open_calls: tuple[CallState, ...]
    history: tuple[CallState, ...]
    issued: dict[int, int] = field(default_factory=dict)
    """Collectives issued so far, by communicator."""
    waits_for: tuple[int, ...] = ()


def explain(states: list[RankState], *, hint: str | None = None, timeout_s: float | None = None) -> EmuError:
    """The error that says what went wrong, naming ranks, calls and both sides."""
    by_rank = {state.world_rank: state for state in states}
    return (
        _mismatch(states, by_rank, completed_too=hint is not None)
        or _left(states, by_rank)
        or _cycle(states, by_rank)
        or _stalled(states, hint=hint, timeout_s=timeout_s)
    )


def _call_of(state: RankState, communicator: int, number: int) -> CallState | None:
    return next((c for c in state.history if c.communicator == communicator and c.number == number and number >= 0), None)


def _mismatch(states: list[RankState], by_rank: dict[int, RankState], *, completed_too: bool) -> EmuError | None:
    seen: set[tuple[int, int]] = set()
    for state in states:
        for call in state.history if completed_too else state.open_calls:
            if call.number >= 0:
                if (call.communicator, call.number) in seen:
                    continue
                seen.add((call.communicator, call.number))
                sides = {
                    rank: other
                    for rank in call.members
                    if rank in by_rank and (other := _call_of(by_rank[rank], call.communicator, call.number)) is not None
                }
                tally = Counter(side.signature for side in sides.values())
                if len(tally) < 2:
                    uneven = _uneven(call, sides)
                    if uneven is not None:
                        return uneven
                    continue
                usual = tally.most_common(1)[0][0]
                odd = [rank for rank, side in sides.items() if side.signature != usual]
                if 2 * len(odd) == len(sides):
                    odd = sorted(sides)
                reference = next(side.what for side in sides.values() if side.signature == usual)
                rest = [rank for rank in sides if sides[rank].signature == usual]
                if len(odd) == len(sides):
                    listed = "; ".join(f"rank {rank} called {sides[rank].what}" for rank in odd)
                    text = f"collectives do not match at op {call.number}: {listed}"
                else:
                    listed = "; ".join(f"rank {rank} called {sides[rank].what}" for rank in odd[:8])
                    text = f"collectives do not match at op {call.number}: {listed}; {_ranks(rest)} called {reference}"
                    if any(sides[rank].what == reference for rank in odd):
                        other = next(side for side in sides.values() if side.signature == usual)
                        text += f" (they differ in {_differences(sides[odd[0]].signature, other.signature)})"
                return CollectiveMismatch(text + "; every rank must call the same collective with the same arguments")
            other = _partner(call, by_rank, state.world_rank)
            if other is not None and other.signature != call.signature:
                return CollectiveMismatch(
                    f"send and recv do not match: rank {state.world_rank} called {call.what},"
                    f" rank {call.peer} called {other.what}"
                )
    return None


def _uneven(call: CallState, sides: dict[int, CallState]) -> CollectiveMismatch | None:
    """The first pair of ranks whose counts of an alltoallv differ."""
    for source, sender in sides.items():
        for target, receiver in sides.items():
            if not sender.send_counts or not receiver.receive_counts:
                continue
            sent = sender.send_counts[call.members.index(target)]
            expected = receiver.receive_counts[call.members.index(source)]
            if sent != expected:
                return CollectiveMismatch(
                    f"counts of {call.kind} do not match at op {call.number}: rank {source} sends {sent} elements to"
                    f" rank {target}, which expects {expected}; recv_counts must mirror the peers' send_counts"
                )
    return None


def _differences(one: tuple[object, ...], other: tuple[object, ...]) -> str:
    names = ("collective", "count", "dtype", "op", "root", "algorithm", "channels", "chunk_bytes", "protocol", "traffic class")
    return ", ".join(f"{name} {a} against {b}" for name, a, b in zip(names, one, other, strict=True) if a != b)


def _partner(call: CallState, by_rank: dict[int, RankState], me: int) -> CallState | None:
    """The other half of a send or recv, if its rank has issued it."""
    if call.peer is None or call.peer not in by_rank:
        return None
    wanted = "recv" if call.kind == "send" else "send"
    return next(
        (
            c
            for c in by_rank[call.peer].history
            if c.kind == wanted and c.communicator == call.communicator and c.number == call.number and c.peer == me
        ),
        None,
    )


def _missing(state: RankState, by_rank: dict[int, RankState]) -> list[tuple[CallState, int]]:
    """(call, rank) for every rank that has not issued its part of a call that this one is in."""
    found = []
    for call in state.open_calls:
        if call.number >= 0:
            found += [
                (call, rank)
                for rank in call.members
                if rank in by_rank and by_rank[rank].issued.get(call.communicator, 0) <= call.number
            ]
        elif call.peer is not None and _partner(call, by_rank, state.world_rank) is None:
            found.append((call, call.peer))
    return found


def _left(states: list[RankState], by_rank: dict[int, RankState]) -> EmuError | None:
    for state in states:
        for call, rank in _missing(state, by_rank):
            if rank in by_rank and by_rank[rank].status == "returned":
                count = by_rank[rank].issued.get(call.communicator, 0)
                after = f"after op {count}, the last of its {count} calls" if count else "before its first op"
                waiting = [s.world_rank for s in states if any(c.key == call.key for c in s.open_calls)]
                where = f"op {call.number}, " if call.number >= 0 else ""
                return RankLeft(
                    f"rank {rank} has left the group {after}: its function returned while {_ranks(waiting)}"
                    f" wait{'s' * (len(waiting) == 1)} for it in {where}{call.what}"
                )
    return None


def _cycle(states: list[RankState], by_rank: dict[int, RankState]) -> EmuError | None:
    waits: dict[int, dict[int, CallState]] = {}
    for state in states:
        if state.status == "waiting":
            waits[state.world_rank] = {rank: call for call, rank in _missing(state, by_rank) if rank != state.world_rank}
    for first in waits:
        path: list[int] = []
        current = first
        while current in waits and waits[current] and current not in path:
            path.append(current)
            current = min(waits[current])
        if current in path:
            ring = path[path.index(current) :]
            told = "; ".join(
                f"rank {rank} waits in {_name(waits[rank][peer])} for rank {peer}"
                for rank, peer in zip(ring, [*ring[1:], ring[0]], strict=True)
            )
            arrows = " -> ".join(str(rank) for rank in [*ring, ring[0]])
            return Deadlock(f"deadlock, cycle {arrows}: {told}; group the sends and receives, or issue them with async_op=True")
    return None


def _name(call: CallState) -> str:
    where = f"{call.what}"
    if call.number >= 0:
        where += f", op {call.number} of communicator {call.name or format(call.communicator, 'x')}"
    return where


def _stalled(states: list[RankState], *, hint: str | None, timeout_s: float | None) -> EmuError:
    parts = []
    for state in states:
        if state.status == "waiting" and state.open_calls:
            whom = f" for {_ranks(list(state.waits_for))}" if state.waits_for else ""
            parts.append(f"rank {state.world_rank} waits in {_name(state.open_calls[0])}{whom}")
        elif state.status == "computing":
            parts.append(f"rank {state.world_rank} is in user code")
    told = "; ".join(parts[:16]) + (f"; and {len(parts) - 16} more" if len(parts) > 16 else "")
    if hint is not None:
        return CollectiveMismatch(f"{hint}; {told}")
    when = "nothing can move" if timeout_s is None else f"no progress for {timeout_s:g} s"
    return Stalled(f"{when}: {told}")


def _ranks(ranks: list[int]) -> str:
    if not ranks:
        return "no rank"
    text = ", ".join(str(rank) for rank in sorted(ranks)[:12]) + (", ..." if len(ranks) > 12 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def unreceived(leftovers: list[tuple[int, int, int, int]]) -> EmuError | None:
    """Messages (sender, receiver, call, bytes) that came and that no call took, when all functions have returned."""
    if not leftovers:
        return None
    told = "; ".join(
        f"rank {sender} sent {n_bytes} bytes to rank {receiver}"
        + (f" in op {number}" if number >= 0 else f" in its send number {-1 - number}")
        for sender, receiver, number, n_bytes in sorted(leftovers)[:8]
    )
    return CollectiveMismatch(f"{told}, and no call there took them; every message needs a receiver with the same size and type")
