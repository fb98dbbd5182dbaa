"""Tuning: which protocol a call takes, and with NCCL's tuner which algorithm too.

Law: a pure function of fabric, collective, size and members, so that all ranks choose alike.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from emu.collectives.catalogue import algorithms_for, cost_for
from emu.collectives.layout import layout_of
from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts
from emu.protocols.legal import AUTO, check_protocol, legal_protocols, require_legal
from emu.protocols.question import Choice, Question, Way
from emu.topologies.endpoint_file import find_tuner
from emu.topologies.graph import Topology
from emu.topologies.tiers import Same

PREDICT: Final = "predict"
"""The tuner that simulates algorithms, see :mod:`emu.drivers.choice`, and estimates protocols."""
UNSCHEDULED: Final = frozenset({"send", "recv", "alltoallv"})
"""What has no algorithm to choose, or whose sizes only the ranks know."""


def protocol_of(
    topology: Topology, collective: str, algorithm: str, size_bytes: int, members: tuple[int, ...], wanted: str | None = None
) -> str:
    """The protocol of a call of S = ``size_bytes``, "" where the fabric's endpoints cost nothing.

    ``wanted`` goes before the fabric's own.  Raises ConfigError where it does not go with the call, or nothing has costs.
    """
    costs = topology.endpoint
    if costs is None:
        if wanted is None:
            return ""
        raise ConfigError(f"protocol {wanted!r}: {topology.name} has no [endpoint], so all protocols cost the same; leave it out")
    protocol = costs.protocol if wanted is None else check_protocol(wanted)
    if protocol == AUTO:
        costs = replace(costs, protocol=AUTO)
        return _chosen(Same(topology), costs, costs.tuner, collective, (algorithm,), size_bytes, members).protocol
    require_legal(protocol, collective, algorithm)
    return protocol


def chosen(topology: Topology, tuner: str, collective: str, size_bytes: int, members: tuple[int, ...]) -> Choice:
    """What a tuner takes of all that can be taken.  The fabric has an endpoint.  Raises ConfigError."""
    assert topology.endpoint is not None
    return _chosen(Same(topology), topology.endpoint, tuner, collective, algorithms_for(collective), size_bytes, members)


@lru_cache(maxsize=4096)
def _chosen(
    same: Same,
    costs: EndpointCosts,
    tuner: str,
    collective: str,
    algorithms: tuple[str, ...],
    size_bytes: int,
    members: tuple[int, ...],
) -> Choice:
    layout = layout_of(same.topology, members)
    hosts = {same.topology.nodes[same.topology.ranks[member]].host for member in members}
    ways = []
    for algorithm in algorithms:
        protocols = tuple(one for one in legal_protocols(collective, algorithm) if costs.protocol in (AUTO, one))
        if not protocols:
            continue
        try:
            steps, sent = (1, Fraction(1)) if collective in UNSCHEDULED else cost_for(collective, algorithm, len(members), layout)
        except ConfigError:
            if len(algorithms) == 1:
                raise
            continue
        ways.append(Way(algorithm, protocols, steps, sent))
    if not ways:
        raise ConfigError(f"protocol {costs.protocol} goes with no algorithm of {collective}; use auto")
    question = Question(
        costs=costs,
        collective=collective,
        n_ranks=len(members),
        n_hosts=len(hosts),
        size_bytes=size_bytes,
        ways=tuple(ways),
    )
    return find_tuner(tuner)(question)
