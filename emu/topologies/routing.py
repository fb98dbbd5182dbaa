"""What a run chooses on a finished topology: the seed of its routes, and which accelerators carry which ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from emu.errors import ConfigError
from emu.keyed import mix
from emu.parameters import did_you_mean
from emu.topologies.graph import NodeKind, Topology
from emu.topologies.routers import SeededRouter


def with_seed(topology: Topology, seed: int) -> Topology:
    """The same topology with its router's choices (ECMP) drawn from ``seed``; routers without choices stay."""
    router = topology.router
    return replace(topology, router=router.with_seed(seed)) if isinstance(router, SeededRouter) else topology


def take_ranks(topology: Topology, n_ranks: int) -> Topology:
    """Only the first ``n_ranks`` ranks take part; the other accelerators stay and forward.  Raises ConfigError."""
    if not 1 <= n_ranks <= topology.n_ranks:
        most = topology.n_ranks
        raise ConfigError(f"{n_ranks} ranks do not fit {topology.name}; use 1 to {most}, or a larger fabric")
    return replace(topology, ranks=topology.ranks[:n_ranks])


def map_ranks(topology: Topology, spec: str | None, seed: int = 0) -> Topology:
    """Place the ranks: rank i sits on the i-th accelerator of ``spec``.

    ``spec`` is None (as they are), ``"shuffle"`` (a permutation drawn from ``seed``), a comma
    list of accelerators by name or number (``"a0,a4"``, ``"0,4"``), or a file with one per line
    (``"@ranks.txt"``, or its path; ``#`` starts a comment).  Fewer than all is fine.  Raises ConfigError.
    """
    if spec is None:
        return topology
    if spec == "shuffle":
        return replace(topology, ranks=tuple(sorted(topology.ranks, key=lambda node: mix(seed, node))))
    entries = _entries(topology, spec)
    accelerators = [i for i, node in enumerate(topology.nodes) if node.kind is NodeKind.ACCELERATOR]
    by_name = {node.name: i for i, node in enumerate(topology.nodes)}
    ranks: list[int] = []
    for entry in entries:
        node = by_name.get(entry)
        if node is None and entry.isascii() and entry.isdigit():
            if len(entry) > 9 or int(entry) >= len(accelerators):
                raise ConfigError(f"map: there is no accelerator number {entry}; use 0 to {len(accelerators) - 1}")
            node = accelerators[int(entry)]
        if node is None:
            names = [topology.nodes[i].name for i in accelerators]
            words = [*names, "shuffle"] if len(entries) == 1 else names
            hint, known = did_you_mean(entry, words), f"{names[0]} to {names[-1]}"
            raise ConfigError(f"map: {topology.name} has no accelerator {entry!r}{hint}; there are {known}")
        if topology.nodes[node].kind is not NodeKind.ACCELERATOR:
            raise ConfigError(f"map: {entry!r} is a {topology.nodes[node].kind}; ranks sit on accelerators")
        if node in ranks:
            raise ConfigError(f"map: {entry!r} is named twice; each accelerator carries one rank")
        ranks.append(node)
    return replace(topology, ranks=tuple(ranks))


def _entries(topology: Topology, spec: str) -> list[str]:
    path = Path(spec.removeprefix("@"))
    names = {node.name for node in topology.nodes}
    names_file = spec.startswith("@") or "/" in spec or ("," not in spec and path.suffix != "")
    if spec in names or not names_file:
        entries = [part.strip() for part in spec.split(",")]
        if all(entries):
            return entries
        raise ConfigError(f"map: {spec!r} has an empty entry; write for example a0,a4 or shuffle or @ranks.txt")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"map: cannot read {path}: {error}; give a text file with one accelerator per line") from None
    entries = [line.split("#", 1)[0].strip() for line in lines]
    if not any(entries):
        raise ConfigError(f"map: {path} names no accelerator; write one per line, for example a0")
    return [entry for entry in entries if entry]
