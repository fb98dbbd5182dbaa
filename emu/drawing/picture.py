"""What a drawing of a fabric shows, before it is a file.

Law: every cable is drawn once, also one of many parallel ones; the legend counts them all.  A switch whose links are bundles of
planes is drawn as that many switches, as it is built.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from emu.drawing.layout import Place, grid_of, is_host_switch, places
from emu.topologies.graph import Link, Node, NodeKind, Topology
from emu.units import format_rate, format_time

Path = tuple[Place, ...]

KINDS = {
    NodeKind.ACCELERATOR: ("#1f6fb4", "o"),
    NodeKind.SWITCH: ("#d1752b", "s"),
    NodeKind.CPU: ("#4a8f4a", "D"),
    NodeKind.MEMORY: ("#7a5aa6", "D"),
    NodeKind.STORAGE: ("#8c6d4f", "D"),
    NodeKind.NIC: ("#5f6b73", "o"),
}
"""Colour and marker of each kind of node."""
PLANE_COLOURS = ("#d1752b", "#b5477d", "#7a5aa6", "#3c8c8c", "#9c8b2e", "#c04a3f", "#5f6b73", "#6a8f3c")
CLOSING_COLOUR = "#e0b48a"
_CLOSES = ", closing rings"
_MOST_BOWS = 100
"""Nodes of a torus up to which cables that close its rings are drawn whole."""
CABLE_COLOURS = ("#7a8793", "#c04a3f", "#3c8c8c", "#9c8b2e", "#7a5aa6", "#1f6fb4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A node in its place."""

    name: str
    kind: NodeKind
    colour: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Strands:
    """Cables that are alike: ``label`` says what they are and how many, ``paths`` where they run."""

    label: str
    colour: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """How a kind of node is shown."""

    kind: NodeKind
    label: str
    colour: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A fabric as it is drawn.  ``is_layered``: levels of switches, so that width and height may be scaled apart."""

    title: str
    note: str
    dots: tuple[Dot, ...]
    strands: tuple[Strands, ...]
    is_layered: bool


def picture(topology: Topology, *, note: str = "") -> Picture:
    """Of ``topology``; ``note`` stands below the title."""
    drawn = _unbundled(topology)
    where = places(drawn)
    colours = _colours(drawn)
    classes: dict[str, list[Link]] = {}
    for link in drawn.links:
        if link.source < link.target:
            what = f"{format_rate(link.rate_bps)}, {format_time(link.latency_ps)}{_span(drawn, link.source, link.target)}"
            classes.setdefault(what, []).append(link)
    is_wide = getattr(drawn.router, "wrap", False) and len(drawn.nodes) > _MOST_BOWS
    strands = []
    for number, (what, links) in enumerate(sorted(classes.items(), key=lambda item: (_CLOSES in item[0], item))):
        pairs = dict.fromkeys((link.source, link.target) for link in links)
        closes = _CLOSES in what
        shown = _stubs if closes and is_wide else _bow if closes else _straight
        strands.append(
            Strands(
                label=f"{len(links)} cable{'s' if len(links) > 1 else ''}, {what}",
                colour=CLOSING_COLOUR if closes else CABLE_COLOURS[number % len(CABLE_COLOURS)],
                paths=tuple(path for a, b in pairs for path in shown(where[a], where[b])),
            )
        )
    dots = tuple(
        Dot(name=node.name, kind=node.kind, colour=colour, x=x, y=y)
        for node, colour, (x, y) in zip(drawn.nodes, colours, where, strict=True)
    )
    has_levels = any(node.kind is NodeKind.SWITCH for node in drawn.nodes) and not drawn.nesting and not grid_of(drawn)
    return Picture(
        title=f"{topology.name}: {topology.description}", note=note, dots=dots, strands=tuple(strands), is_layered=has_levels
    )


def legend(drawn: Picture) -> list[Key]:
    """One for each kind of node."""
    kinds = Counter(dot.kind for dot in drawn.dots)
    return [
        Key(kind=kind, label=f"{count} x {kind}", colour=KINDS[kind][0], marker=KINDS[kind][1]) for kind, count in kinds.items()
    ]


def _span(topology: Topology, a: int, b: int) -> str:
    """Which cables these are, where the structure has a word for it: those of one level of nesting, or that close a ring."""
    sizes = getattr(topology.router, "shape", ())
    grid = grid_of(topology)
    if len(sizes) > 1 and grid:
        if a not in grid:
            return ", into the grid"
        a, b = a - grid.start, b - grid.start
        while a != b and sizes:
            (a, i), (b, j) = divmod(a, sizes[-1]), divmod(b, sizes[-1])
            if abs(i - j) > 1 or (a != b and i != j):
                return _CLOSES
            sizes = sizes[:-1]
        return ""
    block = math.prod(topology.nesting)
    if not topology.nesting or block != len(topology.nodes):
        return ""
    for size in topology.nesting[:-1]:
        block //= size
        if a // block != b // block:
            return f", between groups of {block}"
    return f", in groups of {block}"


def _unbundled(topology: Topology) -> Topology:
    """With a switch for each plane where all links of a switch are bundles of so many planes."""
    bundles: dict[int, set[int]] = {}
    for link in topology.links:
        for end in (link.source, link.target):
            if topology.nodes[end].kind is NodeKind.SWITCH:
                bundles.setdefault(end, set()).add(len(link.planes_bps))
    planes = {switch: min(found) for switch, found in bundles.items() if len(found) == 1 and min(found) > 1}
    if not planes or len(set(planes.values())) > 1 or len(planes) < len(bundles):
        return topology
    nodes: list[Node] = []
    copies: list[range] = []
    for index, node in enumerate(topology.nodes):
        count = planes.get(index, 1)
        copies.append(range(len(nodes), len(nodes) + count))
        nodes += [replace(node, name=f"{node.name}.{plane}" if count > 1 else node.name) for plane in range(count)]
    links = []
    for link in topology.links:
        for plane in range(max(1, len(link.planes_bps))):
            source, target = copies[link.source], copies[link.target]
            links.append(
                replace(
                    link,
                    source=source[plane % len(source)],
                    target=target[plane % len(target)],
                    rate_bps=link.planes_bps[plane] if link.planes_bps else link.rate_bps,
                    planes_bps=(),
                )
            )
    ranks = tuple(copies[rank][0] for rank in topology.ranks)
    return replace(topology, nodes=tuple(nodes), links=tuple(links), ranks=ranks)


def _colours(topology: Topology) -> list[str]:
    """By kind; switches of separate planes apart, where a few planes are joined by accelerators only."""
    colours = [KINDS[node.kind][0] for node in topology.nodes]
    hosts = is_host_switch(topology)
    switches = {i for i, node in enumerate(topology.nodes) if node.kind is NodeKind.SWITCH and not hosts[i]}
    joined: dict[int, list[int]] = {switch: [] for switch in switches}
    for link in topology.links:
        if link.source in switches and link.target in switches:
            joined[link.source].append(link.target)
    plane, seen = 0, set[int]()
    for switch in sorted(switches):
        if switch in seen:
            continue
        stack = [switch]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                colours[node] = PLANE_COLOURS[plane % len(PLANE_COLOURS)]
                stack += joined[node]
        plane += 1
    return [PLANE_COLOURS[6] if hosts[i] else colour for i, colour in enumerate(colours)]


def _straight(a: Place, b: Place) -> tuple[Path, ...]:
    return ((a, b),)


def _bow(a: Place, b: Place) -> tuple[Path, ...]:
    """So that it does not hide what lies between."""
    side = (0.18 * (a[1] - b[1]), 0.18 * (b[0] - a[0]))
    lifts = [(t, 4 * t * (1 - t)) for t in (i / 12 for i in range(13))]
    return (tuple((a[0] + (b[0] - a[0]) * t + side[0] * up, a[1] + (b[1] - a[1]) * t + side[1] * up) for t, up in lifts),)


def _stubs(a: Place, b: Place) -> tuple[Path, ...]:
    """Only its ends, outside of the grid: the way tori are drawn in books."""
    dx, dy = (a[0] - b[0]) / 12, (a[1] - b[1]) / 12
    return ((a, (a[0] + dx, a[1] + dy)), (b, (b[0] - dx, b[1] - dy)))
