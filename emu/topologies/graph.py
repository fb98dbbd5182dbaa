"""Topology: a graph of nodes joined by directed links, and how flows are routed over it.

Law: a topology is data.  It knows no clock, no traffic and no state; two
processes that hold equal topologies compute equal routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from emu.protocols.costs import EndpointCosts
from emu.topologies.switching import Switching

_MOST_ROUTES: Final = 1 << 19
"""Routes that are kept, at some 230 bytes each."""


class NodeKind(StrEnum):
    """What a node is.  Only accelerators carry ranks; every kind forwards."""

    ACCELERATOR = "accelerator"
    SWITCH = "switch"
    CPU = "cpu"
    MEMORY = "memory"
    STORAGE = "storage"
    NIC = "nic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A vertex.  ``drain_rate_bps``: how fast an endpoint consumes what arrives; None is at once.

    ``pause_storm``: (start_ps, duration_ps) for which a stuck endpoint pauses whatever sends to it, in the classes that pause
    (fabrics with a ``switching``); None is never.
    ``host``: accelerators with the same one share a host, which NCCL calls a node; "" is a host of its own.
    ``multicast``: whether the switch combines what it is sent and sends it on to many, as NVLink SHARP and InfiniBand SHARP do.
    """

    name: str
    kind: NodeKind
    drain_rate_bps: int | None = None
    pause_storm: tuple[int, int] | None = None
    host: str = ""
    multicast: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a cable, or of a bundle of striped planes that act as one.

    ``source`` and ``target`` are indices into the topology's nodes.  ``rate_bps``
    is the sum over ``planes_bps`` where planes are striped (NVLink); hashed planes
    (Ethernet) are separate links.  ``header_bytes`` are sent per ``mtu_bytes`` of payload.
    ``window_bytes`` bounds what a connection over this link may have in flight; None lets emu choose.
    """

    name: str
    source: int
    target: int
    rate_bps: int
    latency_ps: int
    mtu_bytes: int = 4096
    header_bytes: int = 0
    planes_bps: tuple[int, ...] = ()
    window_bytes: int | None = None

    def wire_bytes(self, payload_bytes: int) -> int:
        """What a payload is on the wire: itself and one header for every MTU of it, at least one."""
        return payload_bytes + max(1, -(-payload_bytes // self.mtu_bytes)) * self.header_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What a builder knows of the graph that would be long to search: the longest of the shortest ways between two accelerators,
    and :func:`emu.topologies.extent.bisection_bps`.  None where it does not know.

    Law: where the search is feasible it finds the same.
    """

    diameter_links: int | None = None
    bisection_bps: int | None = None


class Router(Protocol):
    """How a flow crosses the graph.  Pure, picklable.

    ``spread``: the chunks of one connection are dealt over this many flows (1: all take one route).

    Where a fabric has a ``switching``, every node on the way chooses the next link among the first ones of the routes from there
    (flows 0 to ``spread`` - 1), so the routes must agree: whatever is chosen, every node is passed once.  It holds where what
    is left of a route, at each node on it, is a shortest way, or a route of that node.  Other routers are refused.
    """

    @property
    def spread(self) -> int: ...

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links (indices) from node ``source`` to node ``target`` for flow number ``flow``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A fabric.  ``ranks[i]`` is the node of rank i (see ``--map``)."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    router: Router
    ranks: tuple[int, ...]
    switching: Switching | None = None
    """What happens when a link is full; None: buffers are infinite and chunks are fluids."""
    endpoint: EndpointCosts | None = None
    """What the accelerators' own work costs; None: nothing."""
    description: str = ""
    calibration: str = "links as given, not calibrated to hardware"
    """What the numbers are worth against real hardware; printed in every table's header."""
    sources: tuple[tuple[str, str], ...] = ()
    """(what, where it is from) for each number of a preset."""
    structure: Structure = Structure()
    """Figures of large graphs."""
    nesting: tuple[int, ...] = ()
    """How the nodes that come first nest, outermost level first, as in groups x boards x chips: for drawings."""
    _routes: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_ranks(self) -> int:
        return len(self.ranks)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Nodes that chunks can be sent to: those of the ranks, then the switches that combine and multicast."""
        return (*self.ranks, *(node for node, its in enumerate(self.nodes) if its.multicast))

    def route(self, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from node to node, cached: routes are a pure function of the arguments.  Of very many only the last stay."""
        key = (source, target, flow)
        found = self._routes.get(key)
        if found is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            found = self._routes[key] = self.router.route(self, source, target, flow)
        return found

    def out_links(self) -> list[list[int]]:
        """For each node the indices of the links that leave it."""
        out: list[list[int]] = [[] for _ in self.nodes]
        for index, link in enumerate(self.links):
            out[link.source].append(index)
        return out

    def reverse_links(self) -> list[int | None]:
        """Per link the one that goes back to its sender: of the same suffix (``a->b#1``, ``b->a#1``), else of the same place
        among parallel ones, the last where there are fewer; None where none goes back."""
        between: dict[tuple[int, int], list[int]] = {}
        for index, link in enumerate(self.links):
            between.setdefault((link.source, link.target), []).append(index)
        found: list[int | None] = []
        for index, link in enumerate(self.links):
            back = between.get((link.target, link.source))
            if back is None:
                found.append(None)
                continue
            here, there = self.nodes[link.source].name, self.nodes[link.target].name
            name = f"{there}->{here}{link.name.removeprefix(f'{here}->{there}')}"
            place = between[link.source, link.target].index(index)
            found.append(next((one for one in back if self.links[one].name == name), back[min(place, len(back) - 1)]))
        return found

    def node_index(self, name: str) -> int:
        """Index of a node by name.  Raises KeyError."""
        for index, node in enumerate(self.nodes):
            if node.name == name:
                return index
        raise KeyError(name)


def full_duplex(
    names: Sequence[str],
    a: int,
    b: int,
    *,
    rate_bps: int,
    latency_ps: int,
    mtu_bytes: int = 4096,
    header_bytes: int = 0,
    planes_bps: tuple[int, ...] = (),
    window_bytes: int | None = None,
    suffix: str = "",
) -> tuple[Link, Link]:
    """Both directions of a cable between nodes ``a`` and ``b``, named ``a0->s0`` and ``s0->a0`` (+ suffix ``#1``)."""

    def one(source: int, target: int) -> Link:
        return Link(
            name=f"{names[source]}->{names[target]}{suffix}",
            source=source,
            target=target,
            rate_bps=rate_bps,
            latency_ps=latency_ps,
            mtu_bytes=mtu_bytes,
            header_bytes=header_bytes,
            planes_bps=planes_bps,
            window_bytes=window_bytes,
        )

    return one(a, b), one(b, a)
