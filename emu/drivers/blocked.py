"""Blocked: which ports wait for each other in a cycle when nothing moves any more.

A queue of a port that holds a packet and is paused, or lacks the credits for it, waits until the node at the far end has
got rid of packets that came by its link.  These lie in queues of that node's ports, which may wait in turn.  A cycle of
such queues is a deadlock: each is blocked until the next one moves (Dally and Seitz, IEEE ToC 36(5), 1987; for pauses
Guo et al., "RDMA over commodity Ethernet at scale", SIGCOMM 2016).

Law: a pure function of the ports and switches; asked when the calendar is empty, so that whatever is blocked stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emu.errors import Deadlock
from emu.fabric.adapter import Adapter
from emu.fabric.port import Port
from emu.topologies.graph import Topology
from emu.topologies.switching import Discipline

Place = tuple[int, int]
"""A link and a queue of its port."""


def blocked_queues(ports: Mapping[int, Port]) -> set[Place]:
    """Queues that hold a packet which a pause or missing credits keep back."""
    return {(link, queue) for link, port in ports.items() for queue in range(len(port.queues)) if port.is_held_back(queue)}


def waits(ports: Mapping[int, Port], topology: Topology) -> dict[Place, tuple[Place, ...]]:
    """For each blocked queue the blocked queues that hold the packets it waits for."""
    blocked = blocked_queues(ports)
    holders: dict[Place, set[Place]] = {}
    for link, queue in blocked:
        for packet in ports[link].queues[queue]:
            if packet.ingress >= 0:
                holders.setdefault((packet.ingress, packet.held_queue), set()).add((link, queue))
    return {place: tuple(sorted(holders.get(place, ()))) for place in sorted(blocked)}


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


def explain_blocked(ports: Mapping[int, Port], topology: Topology) -> Deadlock | None:
    """The error that names the cycle, None where ports do not wait in one."""
    switching = topology.switching
    cycle = find_cycle(waits(ports, topology))
    if not cycle or switching is None:
        return None
    n_classes = len(switching.classes)
    traffic_class = switching.classes[cycle[0][1] % n_classes]
    kind = "credit" if traffic_class.discipline is Discipline.CREDIT else "PFC"
    names = [
        topology.links[link].name + (f" (lane {queue // n_classes})" if switching.n_lanes > 1 else "") for link, queue in cycle
    ]
    n_packets = sum(len(ports[link].queues[queue]) for link, queue in cycle)
    return Deadlock(
        f"{kind} deadlock: {' waits for '.join([*names, names[0]])}; class {traffic_class.name!r} holds {n_packets} packets "
        "there; take ways without a cycle of buffers (balancing = up_down), or lanes with datelines"
    )


def explain_held_back(adapters: Iterable[Adapter], now_ps: int) -> str:
    """What a stall's message adds: the controls that let nothing go now, empty where none holds anything back."""
    held = [one for adapter in adapters for one in adapter.held_back(now_ps)]
    more = f", and {len(held) - 4} more" if len(held) > 4 else ""
    return f"; congestion control lets nothing go: {', '.join(held[:4])}{more}" if held else ""
