"""What must hold of every topology before a run starts, wherever it came from."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from emu.errors import ConfigError
from emu.topologies.graph import NodeKind, Topology


def check(topology: Topology, *, where: str) -> None:
    """Names are unique, links join two nodes that are there, rates are positive and the sum of
    their planes, ranks sit on accelerators of their own, and every node reaches every other one.

    ``where`` names the file or the topology in the message.  Raises ConfigError.
    """
    if double := _double(node.name for node in topology.nodes):
        raise ConfigError(f"{where}: two nodes are called {double!r}; node names must differ")
    for link in topology.links:
        if not (0 <= link.source < len(topology.nodes) and 0 <= link.target < len(topology.nodes)):
            most = len(topology.nodes) - 1
            raise ConfigError(f"{where}: link {link.name} ends at a node that is not there; use nodes 0 to {most}")
        if link.source == link.target:
            raise ConfigError(f"{where}: link {link.name} joins a node to itself; name two different nodes")
        if link.rate_bps <= 0 or link.latency_ps < 0 or link.mtu_bytes < 1 or link.header_bytes < 0:
            raise ConfigError(f"{where}: link {link.name} needs rate > 0, latency >= 0, mtu >= 1 byte and header >= 0")
        if link.window_bytes is not None and link.window_bytes < 1:
            raise ConfigError(f"{where}: link {link.name}: window = {link.window_bytes} bytes; use 1 byte or more")
        if link.planes_bps and (sum(link.planes_bps) != link.rate_bps or min(link.planes_bps) <= 0):
            raise ConfigError(f"{where}: the planes of link {link.name} must be positive and add up to its rate")
    if double := _double(link.name for link in topology.links):
        raise ConfigError(f"{where}: two links are called {double!r}; give parallel links a suffix, for example '#1'")
    accelerators = {i for i, node in enumerate(topology.nodes) if node.kind is NodeKind.ACCELERATOR}
    if not accelerators:
        raise ConfigError(f"{where}: no accelerator; at least one node needs kind = 'accelerator'")
    places = set(topology.ranks)
    if not places or len(places) < len(topology.ranks) or not places <= accelerators:
        raise ConfigError(f"{where}: ranks must sit on accelerators, one on each; there are {len(accelerators)}")
    _check_connected(topology, where)


def _double(names: Iterable[str]) -> str:
    name, count = max(Counter(names).items(), key=lambda item: item[1], default=("", 0))
    return name if count > 1 else ""


def _check_connected(topology: Topology, where: str) -> None:
    onward: list[list[int]] = [[] for _ in topology.nodes]
    backward: list[list[int]] = [[] for _ in topology.nodes]
    for link in topology.links:
        onward[link.source].append(link.target)
        backward[link.target].append(link.source)
    first = topology.nodes[0].name
    for neighbours, template in ((onward, "{first} to {other}"), (backward, "{other} to {first}")):
        seen = {0}
        queue = deque([0])
        while queue:
            for node in neighbours[queue.popleft()]:
                if node not in seen:
                    seen.add(node)
                    queue.append(node)
        if len(seen) < len(topology.nodes):
            other = next(node.name for i, node in enumerate(topology.nodes) if i not in seen)
            way = template.format(first=first, other=other)
            raise ConfigError(f"{where}: not connected: there is no way from {way}; add links that join them")
