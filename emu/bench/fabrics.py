"""From what a user names to a topology with seed, placement and impairments, all checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from emu.bench.data import NCCL_DTYPES
from emu.bench.options import PROTOCOL_VARIABLE, BenchOptions
from emu.collectives.catalogue import algorithm_name, cost_for, schedule_for
from emu.collectives.layout import layout_of
from emu.collectives.selection import AUTO, is_choice, selected
from emu.errors import ConfigError
from emu.faults.spec import parse_fault, place
from emu.impairments.spec import parse_impairment, resolve
from emu.protocols.legal import Reduction, reducing
from emu.protocols.selection import require_legal
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.routing import map_ranks, take_ranks, with_seed

MOST_TRIED: Final = 256
"""Ranks up to which an algorithm's schedule is built to see whether it can be had; beyond, building takes its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fabric of a run, at one seed.  ``name`` is the user's; impairments are specs, the fabric's own first."""

    name: str
    topology: Topology
    impairments: tuple[str, ...]
    seed: int


def settings_for(options: BenchOptions, name: str) -> dict[str, str]:
    """The ``--set`` pairs for fabric ``name``: ``key=value`` is for all, ``NAME.key=value`` for one of them."""
    found = {}
    for key, value in options.settings:
        fabric, dot, own = key.rpartition(".")
        if dot and fabric not in options.fabrics:
            raise ConfigError(f"--set {key}={value}: there is no --fabric {fabric!r}; use one of {', '.join(options.fabrics)}")
        if not dot or fabric == name:
            found[own] = value
    return found


def prepare(options: BenchOptions, name: str, seed: int) -> Case:
    """Load, seed, place and check one fabric.  Raises ConfigError."""
    fabric = load(name, settings_for(options, name))
    topology = map_ranks(with_seed(_with_protocol(fabric.topology, options, name), seed), options.rank_map, seed)
    if options.n_ranks is not None:
        if options.rank_map is not None and topology.n_ranks < options.n_ranks <= fabric.topology.n_ranks:
            raise ConfigError(
                f"--ranks {options.n_ranks} contradicts --map, which places {topology.n_ranks} ranks;"
                f" use 1 to {topology.n_ranks}, name more accelerators in --map, or leave --ranks out"
            )
        topology = take_ranks(topology, options.n_ranks)
    if options.printed_root >= topology.n_ranks:
        raise ConfigError(f"-r {options.root}: {name} has {topology.n_ranks} ranks; use 0 to {topology.n_ranks - 1}")
    _check_algorithm(options, topology)
    impairments = (*fabric.impairments, *options.impairments)
    resolve([parse_impairment(text) for text in impairments], topology)
    for text in options.faults:
        place(parse_fault(text), topology)
    return Case(name=name, topology=topology, impairments=impairments, seed=seed)


def without_effect(case: Case, options: BenchOptions) -> str:
    """What of the environment does nothing on this fabric, or ""."""
    if options.protocol is None or case.topology.endpoint is not None:
        return ""
    return f"{PROTOCOL_VARIABLE}={options.protocol} has no effect: {case.name} has no [endpoint], so all protocols cost the same"


def _with_protocol(topology: Topology, options: BenchOptions, name: str) -> Topology:
    """The environment's goes before the fabric's own protocol, and a setting before both."""
    if topology.endpoint is None or options.protocol is None or "protocol" in settings_for(options, name):
        return topology
    return replace(topology, endpoint=replace(topology.endpoint, protocol=options.protocol))


def reduction_of(options: BenchOptions) -> Reduction | None:
    """None where the collective does not reduce."""
    return None if options.reduction is None else Reduction(options.reduction, NCCL_DTYPES[options.dtype])


def _check_algorithm(options: BenchOptions, topology: Topology) -> None:
    if topology.endpoint is not None:
        require_legal(topology.endpoint.protocol, options.collective, options.algorithm)
    if options.algorithm == AUTO:
        return
    if options.collective == "sendrecv":
        raise ConfigError(f"--algorithm {options.algorithm!r}: sendrecv has none; leave it out")
    if is_choice(options.algorithm):
        reducing(selected(options.algorithm, options.collective), reduction_of(options), options.collective)
        return
    n = topology.n_ranks
    layout = layout_of(topology, tuple(range(n)))
    if n > MOST_TRIED:
        cost_for(options.collective, options.algorithm, n, layout)
    else:
        schedule_for(options.collective, options.algorithm, n, max(0, options.printed_root), layout)
    reducing((algorithm_name(options.algorithm),), reduction_of(options), options.collective)
