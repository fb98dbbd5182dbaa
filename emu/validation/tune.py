"""Tune: what each tuner would take over a range of sizes, and what that costs against the best pair.

Every legal pair of algorithm and protocol is simulated.  Regret is the time of a choice over that of the best pair; 1 is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from emu.collectives.catalogue import algorithms_for, schedule_for
from emu.collectives.layout import layout_of
from emu.drivers.choice import Chooser, predict_ps
from emu.drivers.tuning import protocol_of
from emu.errors import ConfigError
from emu.protocols.legal import AUTO, legal_protocols
from emu.topologies.endpoint_file import tuner_names
from emu.topologies.graph import Topology

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """One size.  ``times_ps`` of every pair; ``choices`` by tuner."""

    size_bytes: int
    times_ps: dict[Pair, int]
    choices: dict[str, Pair]

    @property
    def best(self) -> Pair:
        return min(self.times_ps, key=lambda pair: self.times_ps[pair])

    def regret(self, tuner: str) -> float:
        """At least 1."""
        return self.times_ps[self.choices[tuner]] / self.times_ps[self.best]


def tune(topology: Topology, collective: str, sizes_bytes: Iterator[int] | list[int]) -> Iterator[Tuned]:
    """Size by size, over all ranks.  Raises ConfigError where the fabric has no endpoint."""
    costs = topology.endpoint
    if costs is None:
        raise ConfigError(
            f"{topology.name} has no [endpoint], so all protocols cost the same; use a fabric that has, as h100-8-nccl"
        )
    members = tuple(range(topology.n_ranks))
    candidates = [name for name in algorithms_for(collective) if _fits(topology, collective, name, members)]
    tuned = {tuner: replace(topology, endpoint=replace(costs, protocol=AUTO, tuner=tuner)) for tuner in tuner_names()}
    choosers = {tuner: Chooser(fabric) for tuner, fabric in tuned.items()}
    for size_bytes in sizes_bytes:
        times_ps = {
            (algorithm, str(protocol)): predict_ps(
                replace(topology, endpoint=replace(costs, protocol=protocol)), collective, algorithm, size_bytes, members, 0
            )
            for algorithm in candidates
            for protocol in legal_protocols(collective, algorithm)
        }
        choices = {}
        for tuner, fabric in tuned.items():
            algorithm = choosers[tuner].choose(collective, size_bytes, members, 0)
            choices[tuner] = (algorithm, protocol_of(fabric, collective, algorithm, size_bytes, members))
        yield Tuned(size_bytes=size_bytes, times_ps=times_ps, choices=choices)


def _fits(topology: Topology, collective: str, algorithm: str, members: tuple[int, ...]) -> bool:
    """Whether the algorithm takes the fabric and its number of ranks."""
    try:
        schedule_for(collective, algorithm, len(members), 0, layout_of(topology, members))
    except ConfigError:
        return False
    return True
