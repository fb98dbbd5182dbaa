"""Tuning: which protocol a call takes of those that may be taken, and with NCCL's tuner which algorithm too.

Law: a pure function of fabric, collective, size and members, so that all ranks choose alike.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from emu.collectives.catalogue import cost_for
from emu.collectives.layout import layout_of
from emu.collectives.selection import AUTO, selected
from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts
from emu.protocols.legal import Reduction, legal_protocols, reducing, usual_protocols
from emu.protocols.question import Choice, Question, Way
from emu.protocols.selection import check_protocol, left_by, require_legal
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

    ``wanted`` goes before the fabric's own; both are protocols or selections.  Raises ConfigError where it does not go with the
    call, or nothing has costs.
    """
    costs = topology.endpoint
    if costs is None:
        if wanted is None:
            return ""
        raise ConfigError(f"protocol {wanted!r}: {topology.name} has no [endpoint], so all protocols cost the same; leave it out")
    selection = costs.protocol if wanted is None else check_protocol(wanted)
    require_legal(selection, collective, algorithm)
    costs = replace(costs, protocol=selection)
    choice = _choice(Same(topology), costs, costs.tuner, collective, (algorithm,), size_bytes, members)
    if choice is None:
        choice = _choice(Same(topology), costs, PREDICT, collective, (algorithm,), size_bytes, members)
    assert choice is not None
    return choice.protocol


def chosen(
    topology: Topology,
    tuner: str,
    collective: str,
    size_bytes: int,
    members: tuple[int, ...],
    reduction: Reduction | None = None,
    selection: str = AUTO,
) -> str:
    """The algorithm that a tuner takes of those that are selected and can reduce so; "" where it knows none of them.

    The fabric has an endpoint.  Raises ConfigError.
    """
    assert topology.endpoint is not None
    names = reducing(selected(selection, collective), reduction, collective)
    choice = _choice(Same(topology), topology.endpoint, tuner, collective, names, size_bytes, members)
    return "" if choice is None else choice.algorithm


@lru_cache(maxsize=4096)
def _choice(
    same: Same,
    costs: EndpointCosts,
    tuner: str,
    collective: str,
    algorithms: tuple[str, ...],
    size_bytes: int,
    members: tuple[int, ...],
) -> Choice | None:
    return find_tuner(tuner)(question_of(same, costs, collective, algorithms, size_bytes, members))


def question_of(
    same: Same,
    costs: EndpointCosts,
    collective: str,
    algorithms: tuple[str, ...],
    size_bytes: int,
    members: tuple[int, ...],
) -> Question:
    """What a tuner is asked: which of the algorithms take these ranks, with the protocols that the costs' own selection leaves.

    One that is not usual is left only where no other is.  Raises ConfigError for a single algorithm that declines.
    """
    layout = layout_of(same.topology, members)
    hosts = {same.topology.nodes[same.topology.ranks[member]].host for member in members}
    ways = []
    for algorithm in algorithms:
        protocols = left_by(
            costs.protocol, collective, usual_protocols(collective, algorithm, size_bytes, len(members))
        ) or left_by(costs.protocol, collective, legal_protocols(collective, algorithm))
        if not protocols:
            continue
        try:
            steps, sent = (1, Fraction(1)) if collective in UNSCHEDULED else cost_for(collective, algorithm, len(members), layout)
        except ConfigError:
            if len(algorithms) == 1:
                raise
            continue
        ways.append(Way(algorithm, tuple(map(str, protocols)), steps, sent))
    return Question(
        costs=costs,
        collective=collective,
        n_ranks=len(members),
        n_hosts=len(hosts),
        size_bytes=size_bytes,
        ways=tuple(ways),
    )
