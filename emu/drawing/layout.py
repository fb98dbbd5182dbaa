"""Where the nodes of a fabric stand in a drawing.

Law: a place depends on the topology alone.  Grids are drawn as grids, further dimensions as blocks beside each other, and what
hangs on their nodes beside these; what nests (groups of boards of chips) as circles of circles; switches above what hangs on
them, in the order of their numbers, and switches that join one host below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from emu.topologies.graph import NodeKind, Topology
from emu.topologies.tiers import tiers

Place = tuple[float, float]
_DEPTH: Place = (0.78, 0.5)
"""How far the third dimension of a grid reaches to the side and up, of the way to the next node."""
_BESIDE: Place = (-0.11, 0.21)
"""Where an accelerator stands that hangs on a node of a grid."""
_TWIST = 0.073
"""How far a circle is turned on the one around it, of the angle between its own nodes: cables of other circles pass between."""


def places(topology: Topology) -> list[Place]:
    """A place for each node; units and origin are of no meaning."""
    n = len(topology.nodes)
    grid = grid_of(topology)
    if grid:
        shape = getattr(topology.router, "shape", ())
        is_ring = len(grid) > 1 == len(shape)
        found = _ring(len(grid)) if is_ring else [_in_grid(shape, node) for node in range(len(grid))]
        beside = [(1.2 * x, 1.2 * y) if is_ring else (x + _BESIDE[0], y + _BESIDE[1]) for x, y in found]
        return beside[: grid.start] + found
    switches = [i for i, node in enumerate(topology.nodes) if node.kind is NodeKind.SWITCH]
    if not switches:
        return _nested(topology.nesting if math.prod(topology.nesting) == n else (n,))
    inner = math.prod(topology.nesting)
    if topology.nesting and inner == len(switches):
        return _around_switches(topology, switches)
    if topology.nesting and inner == topology.n_ranks == n - len(switches):
        found = _nested(topology.nesting)
        reach = 0.65 * min(math.hypot(x, y) for x, y in found)
        return found + [(reach * x, reach * y) for x, y in _ring(len(switches))]
    return _layered(topology)


def grid_of(topology: Topology) -> range:
    """The nodes that are a grid, where all others hang on one each; none where there is no grid."""
    shape, first = getattr(topology.router, "shape", ()), getattr(topology.router, "first", 0)
    n = math.prod(shape)
    return range(first, first + n) if first in (0, n) and first + n == len(topology.nodes) else range(0)


def is_host_switch(topology: Topology) -> list[bool]:
    """Per node whether it is a switch that joins only accelerators, while others join switches: that of a host."""
    joins = [False] * len(topology.nodes)
    for link in topology.links:
        if topology.nodes[link.target].kind is NodeKind.SWITCH:
            joins[link.source] = joins[link.source] or topology.nodes[link.source].kind is NodeKind.SWITCH
    if any(joins):
        return [node.kind is NodeKind.SWITCH and not joined for node, joined in zip(topology.nodes, joins, strict=True)]
    sizes: dict[int, int] = {}
    for link in topology.links:
        if topology.nodes[link.target].kind is NodeKind.SWITCH:
            sizes[link.target] = sizes.get(link.target, 0) + 1
    largest = max(sizes.values(), default=0)
    return [0 < sizes.get(i, 0) < largest for i in range(len(topology.nodes))]


def _ring(n: int) -> list[Place]:
    """On a circle of radius 1, from the top, clockwise."""
    return [(math.sin(2 * math.pi * i / n), math.cos(2 * math.pi * i / n)) for i in range(n)]


def _in_grid(shape: Sequence[int], node: int) -> Place:
    """The last dimension runs to the right, the one before it down, the third back; others as blocks side by side."""
    x = y = 0.0
    right = down = 1.0
    for number, size in enumerate(reversed(shape)):
        node, coordinate = divmod(node, size)
        if number % 3 == 0:
            x += coordinate * right
            step, right = right, right * (size + 0.6)
        elif number % 3 == 1:
            y -= coordinate * down
            rise, down = down, down * (size + 0.6)
        else:
            x += coordinate * _DEPTH[0] * step / size
            y += coordinate * _DEPTH[1] * rise / size
    return x, y


def _nested(sizes: Sequence[int], share: float = 0.72) -> list[Place]:
    """Circles on circles, outermost first, the first node of each nearly outermost; ``share``: of the room it has."""
    if not sizes:
        return [(0.0, 0.0)]
    inner = _nested(sizes[1:], share)
    if sizes[0] == 1:
        return inner
    reach = max(math.hypot(x, y) for x, y in inner)
    scale = share * math.sin(math.pi / sizes[0]) / reach if reach else 0.0
    twist = _TWIST * 2 * math.pi / sizes[1] if len(sizes) > 1 else 0.0
    found = []
    for i, (x, y) in enumerate(_ring(sizes[0])):
        turn = twist - 2 * math.pi * i / sizes[0]
        for u, v in inner:
            u, v = scale * u, scale * v
            found.append((x + u * math.cos(turn) - v * math.sin(turn), y + u * math.sin(turn) + v * math.cos(turn)))
    return found


def _around_switches(topology: Topology, switches: list[int]) -> list[Place]:
    """Switches in their groups, accelerators in a fan outside of each."""
    found: list[Place] = [(0.0, 0.0)] * len(topology.nodes)
    for switch, place in zip(switches, _nested(topology.nesting, 0.55), strict=True):
        found[switch] = place
    hanging: dict[int, list[int]] = {switch: [] for switch in switches}
    for link in topology.links:
        if link.target in hanging and link.source not in hanging:
            hanging[link.target].append(link.source)
    groups = _ring(topology.nesting[0])
    per_group = len(switches) // topology.nesting[0]
    for number, switch in enumerate(switches):
        (x, y), (centre_x, centre_y) = found[switch], groups[number // per_group]
        angle = math.atan2(y - centre_y, x - centre_x)
        reach = 0.5 * math.hypot(x - centre_x, y - centre_y) or 0.2
        ends = hanging[switch]
        for i, end in enumerate(ends):
            own = angle + (i - (len(ends) - 1) / 2) * min(0.5, 2.4 / max(1, len(ends))) * 2 / max(2, math.sqrt(per_group))
            found[end] = (x + reach * math.cos(own), y + reach * math.sin(own))
    return found


def _layered(topology: Topology) -> list[Place]:
    """Ends below, each level of switches above, spread evenly; switches of hosts at the bottom.

    Ends are in order of the switch that they hang on, and higher switches in that of the first one below them, so that what
    belongs together is.
    """
    level = [tier if node.kind is NodeKind.SWITCH else 0 for node, tier in zip(topology.nodes, tiers(topology), strict=True)]
    level = [-1 if own else tier for own, tier in zip(is_host_switch(topology), level, strict=True)]
    beside: list[list[int]] = [[] for _ in topology.nodes]
    for link in topology.links:
        beside[link.source].append(link.target)
    found: list[Place] = [(0.0, 0.0)] * len(topology.nodes)
    position = [0] * len(topology.nodes)
    for tier in sorted(set(level)):
        row = [(0, i) for i, own in enumerate(level) if own == tier]
        if tier == 0 == min(level):
            row = [(min((j for j in beside[i] if level[j] > 0), default=0), i) for _, i in row]
        elif tier > 1:
            row = [(min((position[j] for j in beside[i] if level[j] == tier - 1), default=0), i) for _, i in row]
        for number, (_, node) in enumerate(sorted(row)):
            position[node] = number
            found[node] = ((number + 0.5) / len(row), 0.45 * tier / max(level))
    return found
