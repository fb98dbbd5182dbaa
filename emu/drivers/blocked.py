"""Blocked: which ports wait for each other in a cycle when nothing moves any more.

A queue of a port that holds a packet and is paused, or lacks the credits for it, waits until the node at the far end has
got rid of packets that came by its link.  These lie in queues of that node's ports, which may wait in turn.  A cycle of
such queues is a deadlock: each is blocked until the next one moves (Dally and Seitz, IEEE ToC 36(5), 1987; for pauses
Guo et al., "RDMA over commodity Ethernet at scale", SIGCOMM 2016).

Where several processes share a fabric, each tells of its own ports (:func:`blocked_in`) and one puts them together
(:func:`merged`).

Law: pure functions of the ports; asked when nothing moves any more, or when nothing but timers does, so that whatever is
blocked stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from emu.errors import Deadlock
from emu.fabric.adapter import Adapter
from emu.fabric.port import Port
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline, Recovery

LOOK_NS: Final = 1_000_000_000

Place = tuple[int, int]
"""A link and a queue of its port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """What some ports know, and the adapters beside them.

    ``n_packets`` of each blocked queue, and what it has sent so far; ``holders``: by the place that packets came by, the blocked
    queues that hold them.  ``n_accepted``: packets that were of use to their receivers; ``n_timeouts``: of senders.
    """

    n_packets: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    holders: Mapping[Place, frozenset[Place]] = field(default_factory=dict)
    n_accepted: int = 0
    n_timeouts: int = 0

    def is_still(self, before: Blocked) -> bool:
        """Whether nothing of use has happened since ``before``."""
        return self.n_accepted == before.n_accepted and self.n_packets == before.n_packets


def blocked_in(ports: Mapping[int, Port], adapters: Iterable[Adapter] = (), *, for_ever: bool = False) -> Blocked:
    """Queues that hold a packet which a pause or missing credits keep back; ``for_ever``: that no watchdog will empty."""
    n_packets: dict[Place, tuple[int, int]] = {}
    holders: dict[Place, set[Place]] = {}
    for link, port in ports.items():
        for queue, waiting in enumerate(port.queues):
            if not port.is_held_back(queue) or (for_ever and port.is_watched(queue)):
                continue
            n_packets[link, queue] = len(waiting), port.counters[queue].packets
            for packet in waiting:
                if packet.ingress >= 0:
                    holders.setdefault((packet.ingress, packet.held_queue), set()).add((link, queue))
    known = list(adapters)
    return Blocked(
        n_packets=n_packets,
        holders={place: frozenset(found) for place, found in holders.items()},
        n_accepted=sum(adapter.n_accepted for adapter in known),
        n_timeouts=sum(pair.timeouts for adapter in known for pair in adapter.senders.values()),
    )


def merged(parts: Iterable[Blocked]) -> Blocked:
    """What all know together; no two of them know the same port."""
    known = list(parts)
    return Blocked(
        n_packets={place: n for part in known for place, n in part.n_packets.items()},
        holders={place: found for part in known for place, found in part.holders.items()},
        n_accepted=sum(part.n_accepted for part in known),
        n_timeouts=sum(part.n_timeouts for part in known),
    )


def waits(blocked: Blocked) -> dict[Place, tuple[Place, ...]]:
    """For each blocked queue the blocked queues that hold the packets it waits for."""
    return {place: tuple(sorted(blocked.holders.get(place, ()))) for place in sorted(blocked.n_packets)}


def find_cycle(graph: Mapping[Place, tuple[Place, ...]]) -> tuple[Place, ...]:
    """The first cycle met from the lowest place on, beginning with its lowest; empty where there is none."""
    done: set[Place] = set()
    for start in graph:
        path: list[Place] = []
        at: dict[Place, int] = {}
        todo: list[tuple[Place, int]] = [(start, 0)]
        while todo:
            place, depth = todo.pop()
            for left in path[depth:]:
                del at[left]
                done.add(left)
            del path[depth:]
            if place in at:
                cycle = path[at[place] :]
                first = cycle.index(min(cycle))
                return tuple(cycle[first:] + cycle[:first])
            if place in done or place not in graph:
                continue
            at[place] = depth
            path.append(place)
            todo += [(following, depth + 1) for following in reversed(graph[place])]
        done.update(path)
    return ()


def explain_blocked(blocked: Blocked, topology: Topology) -> Deadlock | None:
    """The error that names the cycle, None where ports do not wait in one."""
    switching = topology.switching
    cycle = find_cycle(waits(blocked))
    if not cycle or switching is None:
        return None
    n_classes = len(switching.classes)
    traffic_class = switching.classes[cycle[0][1] % n_classes]
    kind = "credit" if traffic_class.discipline is Discipline.CREDIT else "PFC"
    names = [
        topology.links[link].name + (f" (lane {queue // n_classes})" if switching.n_lanes > 1 else "") for link, queue in cycle
    ]
    n_packets = sum(blocked.n_packets[place][0] for place in cycle)
    return Deadlock(
        f"{kind} deadlock: {' waits for '.join([*names, names[0]])}; class {traffic_class.name!r} holds {n_packets} packets "
        "there; take ways without a cycle of buffers (balancing = up_down), or lanes with datelines"
    )


class CycleWatch:
    """Looks for a cycle among the ports of several processes.  ``gather``: what all know, merged; it takes ``for_ever``."""

    def __init__(self, topology: Topology, gather: Callable[[bool], Blocked], now_ns: int) -> None:
        switching = topology.switching
        self._topology = topology
        self._gather = gather
        self._has_ports = switching is not None
        self._has_timers = switching is not None and any(c.recovery is not Recovery.NONE for c in switching.classes)
        self._before: Blocked | None = None
        self._looked_ns = now_ns

    def now(self) -> Deadlock | None:
        """What holds when nothing moves any more."""
        return explain_blocked(self._gather(False), self._topology) if self._has_ports else None

    def behind_timers(self, now_ns: int) -> Deadlock | None:
        """What holds when timers run out and nothing else happens between two looks, :data:`LOOK_NS` apart at least."""
        if not self._has_timers or now_ns - self._looked_ns < LOOK_NS:
            return None
        self._looked_ns = now_ns
        blocked, before = self._gather(True), self._before
        if before is None or not blocked.is_still(before):
            self._before = blocked
            return None
        return explain_blocked(blocked, self._topology) if blocked.n_timeouts > before.n_timeouts else None


def explain_held_back(adapters: Iterable[Adapter], now_ps: int) -> str:
    """What a stall's message adds: the controls that let nothing go now, empty where none holds anything back."""
    held = [one for adapter in adapters for one in adapter.held_back(now_ps)]
    more = f", and {len(held) - 4} more" if len(held) > 4 else ""
    return f"; congestion control lets nothing go: {', '.join(held[:4])}{more}" if held else ""
