"""Tune: what each tuner would take over a range of sizes, and what that costs against the best pair.

Every pair of algorithm and protocol is simulated, but for protocols that NCCL never takes at such a size.  Regret is the time of
a choice over that of the best pair; 1 is none.  NCCL's choice is also set against the best of the pairs that its tuner knows:
that tells of the tuner alone, and not of what NCCL has not or this tuner leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from emu.bench.options import collective_among
from emu.collectives.catalogue import COLLECTIVES, NCCLS, algorithms_for, schedule_for
from emu.collectives.layout import layout_of
from emu.drivers.choice import Chooser, predict_ps
from emu.drivers.tuning import protocol_of, question_of
from emu.errors import ConfigError
from emu.protocols import nccl
from emu.protocols.legal import AUTO, Protocol, usual_protocols
from emu.topologies.endpoint_file import tuner_names
from emu.topologies.graph import Topology
from emu.topologies.tiers import Same

Pair = tuple[str, str]
NCCL: Final = "nccl"
TUNED: Final = tuple(name for name in COLLECTIVES if name not in ("alltoallv", "barrier"))
"""Collectives with something to choose, of which a call can be simulated that has no data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """One size.  ``times_ps`` of every pair; ``known``: those that NCCL's tuner chooses among; ``own``: those of emu's own, which
    NCCL has not; ``choices`` by tuner."""

    size_bytes: int
    times_ps: dict[Pair, int]
    known: frozenset[Pair]
    own: frozenset[Pair]
    choices: dict[str, Pair]

    @property
    def best(self) -> Pair:
        """Of all; of equal ones NCCL's."""
        return min(self.times_ps, key=lambda pair: (self.times_ps[pair], pair not in self.known, pair))

    @property
    def best_known(self) -> Pair:
        """Of those that NCCL's tuner chooses among."""
        return min(self.known, key=lambda pair: (self.times_ps[pair], pair))

    def regret(self, tuner: str) -> float:
        """At least 1."""
        return self.times_ps[self.choices[tuner]] / self.times_ps[self.best]

    @property
    def known_regret(self) -> float:
        """Of NCCL's tuner among the pairs that it knows: at least 1."""
        return self.times_ps[self.choices[NCCL]] / self.times_ps[self.best_known]


def tuned_collective(text: str) -> str:
    """The collective that is meant.  Raises ConfigError for one that has nothing to tune."""
    return collective_among(text, TUNED, "tune")


def tune(topology: Topology, collective: str, sizes_bytes: Iterator[int] | list[int]) -> Iterator[Tuned]:
    """Size by size, over all ranks.  Raises ConfigError where there is no endpoint or one rank, and for what is not TUNED."""
    collective, costs = tuned_collective(collective), topology.endpoint
    if costs is None:
        raise ConfigError(
            f"{topology.name} has no [endpoint], so all protocols cost the same; use a fabric that has, as h100-8-nccl"
        )
    if topology.n_ranks < 2:
        raise ConfigError("one rank takes no steps, so there is nothing to tune; use 2 ranks or more")
    members = tuple(range(topology.n_ranks))
    candidates = tuple(name for name in algorithms_for(collective) if _fits(topology, collective, name, members))
    tuned = {tuner: replace(topology, endpoint=replace(costs, protocol=AUTO, tuner=tuner)) for tuner in tuner_names()}
    choosers = {tuner: Chooser(fabric) for tuner, fabric in tuned.items()}
    for size_bytes in sizes_bytes:
        times_ps = {
            (algorithm, str(protocol)): predict_ps(
                replace(topology, endpoint=replace(costs, protocol=protocol)), collective, algorithm, size_bytes, members, 0
            )
            for algorithm in candidates
            for protocol in usual_protocols(collective, algorithm, size_bytes, len(members))
        }
        question = question_of(Same(topology), replace(costs, protocol=AUTO), collective, candidates, size_bytes, members)
        known = frozenset(
            (way.algorithm, protocol)
            for way in question.ways
            for protocol in way.protocols
            if nccl.knows(question, way, Protocol(protocol))
        )
        own = frozenset(pair for pair in times_ps if pair[0] not in NCCLS[collective])
        choices = {}
        for tuner, fabric in tuned.items():
            algorithm = choosers[tuner].choose(collective, size_bytes, members, 0, ",".join(candidates))
            choices[tuner] = (algorithm, protocol_of(fabric, collective, algorithm, size_bytes, members))
        yield Tuned(size_bytes=size_bytes, times_ps=times_ps, known=known, own=own, choices=choices)


def _fits(topology: Topology, collective: str, algorithm: str, members: tuple[int, ...]) -> bool:
    """Whether the algorithm takes the fabric and its number of ranks."""
    try:
        schedule_for(collective, algorithm, len(members), 0, layout_of(topology, members))
    except ConfigError:
        return False
    return True
