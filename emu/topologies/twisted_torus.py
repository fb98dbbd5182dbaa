"""twisted_torus: a torus of sizes k and 2k whose short rings are closed with a shift of k along every long dimension.

Law: who leaves a short dimension (size k) at one end comes in at the other, moved by k along each long one (size 2k).  All
directions are then alike, as they are not in a plain torus of unequal sizes: a uniform all-to-all loads all links evenly.
(Cámara et al., "Twisted torus topologies for enhanced interconnection networks", IEEE TPDS 2010; for k x k x 2k and k x 2k x 2k
the crystal networks of Camarero, Martínez and Beivide, IEEE TPDS 2015.)

Traffic takes one of the shortest displacements, one dimension after the other; lanes deal it over equally short ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from pydantic import model_validator

from emu.parameters import Shape
from emu.topologies.cabling import Cabling, LinkParameters
from emu.topologies.graph import Topology
from emu.topologies.grid import MOST_NODES
from emu.topologies.routers import AdjacencyCache


class Parameters(LinkParameters):
    """``rate`` and ``latency`` are those of each cable."""

    shape: Shape = (2, 2, 4)
    """Size of each dimension: k or 2k, with both there and k at least 2."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        short, long = min(self.shape), max(self.shape)
        if short < 2 or long != 2 * short or set(self.shape) != {short, long}:
            raise ValueError("a twisted torus has sizes k and 2k only, k at least 2; write for example 4x4x8 or 4x8x8")
        if math.prod(self.shape) > MOST_NODES:
            raise ValueError(f"shape has {math.prod(self.shape)} accelerators; use 1 to {MOST_NODES}")
        return self


def build(parameters: Parameters) -> Topology:
    """Accelerators a0.. in row-major order."""
    shape = parameters.shape
    cabling = Cabling(parameters)
    for node in cabling.accelerators(math.prod(shape)):
        for dimension in range(len(shape)):
            cabling.cable(node, _neighbour(shape, node, dimension, 1))
    text = f"twisted torus {'x'.join(map(str, shape))}"
    return cabling.topology("twisted_torus", text, TwistedOrder(shape=shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class TwistedOrder:
    """Shortest displacements in a twisted torus, one dimension after the other; ``flow % spread`` is the lane."""

    shape: tuple[int, ...]
    spread: int = 6
    _cache: AdjacencyCache = field(default_factory=AdjacencyCache, repr=False, compare=False)

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        """Links from ``source`` to ``target``; both are nodes of the torus."""
        here, there = _coordinates(self.shape, source), _coordinates(self.shape, target)
        ways = displacements(self.shape, tuple(b - a for a, b in zip(here, there, strict=True)))
        graph = self._cache.of(topology)
        path = []
        node = source
        for dimension, offset in enumerate(ways[(flow % self.spread + sum(here)) % len(ways)]):
            for _ in range(abs(offset)):
                neighbour = _neighbour(self.shape, node, dimension, 1 if offset > 0 else -1)
                links = graph.parallel[node, neighbour]
                path.append(links[flow // self.spread % len(links)])
                node = neighbour
        return tuple(path)


@lru_cache(maxsize=65536)
def displacements(shape: tuple[int, ...], difference: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The shortest vectors that lead from a node to one whose coordinates differ by ``difference``."""
    short = min(shape)
    choices: list[list[tuple[int, ...]]] = []
    for turns in itertools.product((-1, 0, 1), repeat=shape.count(short)):
        shift = short * sum(turns)
        turn = iter(turns)
        axes: list[tuple[int, ...]] = []
        for size, offset in zip(shape, difference, strict=True):
            if size == short:
                axes.append((offset + short * next(turn),))
            else:
                ahead = (offset + shift) % size
                axes.append((ahead, ahead - size) if 2 * ahead == size else (ahead if 2 * ahead < size else ahead - size,))
        choices.append(list(itertools.product(*axes)))
    found = {way for ways in choices for way in ways}
    least = min(sum(map(abs, way)) for way in found)
    return tuple(sorted(way for way in found if sum(map(abs, way)) == least))


def _coordinates(shape: tuple[int, ...], node: int) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        node, coordinate = divmod(node, size)
        found.append(coordinate)
    return tuple(reversed(found))


def _neighbour(shape: tuple[int, ...], node: int, dimension: int, step: int) -> int:
    """The node one step along ``dimension``."""
    short = min(shape)
    coordinates = list(_coordinates(shape, node))
    coordinates[dimension] += step
    if shape[dimension] == short and not 0 <= coordinates[dimension] < short:
        coordinates = [c + short if size != short else c for c, size in zip(coordinates, shape, strict=True)]
    index = 0
    for size, coordinate in zip(shape, coordinates, strict=True):
        index = index * size + coordinate % size
    return index
