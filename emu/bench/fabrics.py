"""From what a user names to a topology with seed, placement and impairments, all checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from emu.bench.options import BenchOptions
from emu.collectives.catalogue import schedule_for
from emu.errors import ConfigError
from emu.impairments.spec import parse_impairment, resolve
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.routing import map_ranks, take_ranks, with_seed


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
    topology = map_ranks(with_seed(fabric.topology, seed), options.rank_map, seed)
    if options.n_ranks is not None:
        if options.rank_map is not None and topology.n_ranks < options.n_ranks <= fabric.topology.n_ranks:
            raise ConfigError(
                f"--ranks {options.n_ranks} contradicts --map, which places {topology.n_ranks} ranks;"
                f" use 1 to {topology.n_ranks}, name more accelerators in --map, or leave --ranks out"
            )
        topology = take_ranks(topology, options.n_ranks)
    if options.printed_root >= topology.n_ranks:
        raise ConfigError(f"-r {options.root}: {name} has {topology.n_ranks} ranks; use 0 to {topology.n_ranks - 1}")
    _check_algorithm(options, topology.n_ranks)
    impairments = (*fabric.impairments, *options.impairments)
    resolve([parse_impairment(text) for text in impairments], topology)
    return Case(name=name, topology=topology, impairments=impairments, seed=seed)


def _check_algorithm(options: BenchOptions, n_ranks: int) -> None:
    if options.algorithm == "auto":
        return
    if options.collective == "sendrecv":
        raise ConfigError(f"--algorithm {options.algorithm!r}: sendrecv has none; leave it out")
    schedule_for(options.collective, options.algorithm, n_ranks, max(0, options.printed_root))
