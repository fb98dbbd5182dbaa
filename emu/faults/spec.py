"""What users write to inject faults: ``"TARGET=KIND,key=value,..."``.

a3->s0=slow,factor=0.5,at=2ms,for=5ms      a link, a pattern of links, or a node: all links that leave it
rank3=late,by=300us      a1=slow_receiver,rate=10GB/s      an accelerator by rank or name, or a pattern
a0->a5=background,rate=20GB/s,message=1MiB                 two endpoints
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from emu.errors import ConfigError
from emu.faults import links, ranks, traffic
from emu.faults.base import BaseFault, Target
from emu.faults.links import LinkFault
from emu.faults.window import During
from emu.impairments.base import BaseImpairment
from emu.impairments.spec import match_links, resolve
from emu.parameters import did_you_mean, key_values, validate
from emu.topologies.graph import Topology

KINDS: Final[dict[str, type[BaseFault]]] = dict(sorted({**links.KINDS, **ranks.KINDS, **traffic.KINDS}.items()))
_EXAMPLE: Final = "'a3->s0=slow,factor=0.5,at=2ms,for=5ms'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One fault as it was asked for."""

    text: str
    target: str
    kind: str
    fault: BaseFault

    def at(self, begin_ps: int, end_ps: int | None, target: str) -> str:
        """The same fault on ``target``, at these times, as a schedule has it."""
        settings = [part.strip() for part in self.text.partition("=")[2].split(",")]
        kept = [part for part in settings if part.partition("=")[0].strip() not in ("at", "for")]
        lasts = [] if end_ps is None else [f"for={end_ps - begin_ps}ps"]
        return f"{target}={','.join([*kept, f'at={begin_ps}ps', *lasts])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault on one component.  Of ``link`` (with ``plane``), ``rank`` and ``rank`` to ``peer`` one is given.

    ``number`` is the fault's in its session.  It lasts from ``begin_ps`` for ``for_ps`` (None: until it is lifted).
    """

    number: int
    kind: str
    component: str
    fault: BaseFault
    begin_ps: int
    for_ps: int | None
    link: int = -1
    plane: int | None = None
    rank: int = -1
    peer: int = -1

    def end_ps(self, begin_ps: int) -> int | None:
        """When it ends, if it began at ``begin_ps``."""
        return None if self.for_ps is None else begin_ps + self.for_ps

    def during(self, begin_ps: int) -> During:
        """The impairment of a link's fault that takes effect at ``begin_ps``."""
        assert isinstance(self.fault, LinkFault)
        return During(inner=self.fault.impairment(), begin_ps=begin_ps, end_ps=self.end_ps(begin_ps))


def parse_fault(text: str) -> Spec:
    """``"a3->s0=slow,factor=0.5"`` as data.  Raises ConfigError."""
    target, equals, rest = (part.strip() for part in text.partition("="))
    kind, *settings = (part.strip() for part in rest.split(","))
    if not (target and equals and kind):
        raise ConfigError(f"fault {text!r} is not TARGET=KIND,key=value,...; write for example {_EXAMPLE}")
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is not a kind of fault{did_you_mean(kind, KINDS)}; use one of {', '.join(KINDS)}")
    values = key_values(settings, where=f"fault {text!r}", example="at=2ms")
    return Spec(text=text, target=target, kind=kind, fault=validate(KINDS[kind], values, where=f"{target}={kind}"))


def place(spec: Spec, topology: Topology, *, number: int = 0) -> tuple[Injection, ...]:
    """The components that a fault hits.  Raises ConfigError, with the nearest name, where it hits none."""
    fault = spec.fault
    begin_ps, for_ps = fault.at_ps or 0, fault.for_ps

    def injection(component: str, *, link: int = -1, plane: int | None = None, rank: int = -1, peer: int = -1) -> Injection:
        return Injection(
            number=number, kind=spec.kind, component=component, fault=fault, begin_ps=begin_ps, for_ps=for_ps,
            link=link, plane=plane, rank=rank, peer=peer,
        )  # fmt: skip

    if isinstance(fault, LinkFault):
        hit, plane = _links(spec.target, fault.impairment(), topology)
        suffix = "" if plane is None else f"#{plane}"
        return tuple(injection(topology.links[index].name + suffix, link=index, plane=plane) for index in hit)
    if fault.target is Target.PAIR:
        source, arrow, target = spec.target.partition("->")
        if not arrow:
            raise ConfigError(f"{spec.kind} on {spec.target!r}: name two endpoints, for example a0->a5")
        pair = [_one_rank(end, spec.kind, topology) for end in (source.strip(), target.strip())]
        if pair[0] == pair[1]:
            raise ConfigError(f"{spec.kind} on {spec.target!r}: an endpoint sends nothing to itself over the fabric; name two")
        return (injection("->".join(_name(rank, topology) for rank in pair), rank=pair[0], peer=pair[1]),)
    return tuple(injection(_name(rank, topology), rank=rank) for rank in _ranks(spec.target, spec.kind, topology))


def placed_impairments(injections: Sequence[Injection]) -> dict[int, tuple[tuple[BaseImpairment, int | None], ...]]:
    """What the faults of links come to, by link, whenever they hold: for checks before a run."""
    found: dict[int, tuple[tuple[BaseImpairment, int | None], ...]] = {}
    for one in injections:
        if one.link >= 0:
            found[one.link] = (*found.get(one.link, ()), (one.during(one.begin_ps), one.plane))
    return found


def _links(target: str, impairment: BaseImpairment, topology: Topology) -> tuple[tuple[int, ...], int | None]:
    """Links by name, pattern or plane, as impairments have them; else all that leave a node of that name."""
    try:
        hit, plane = match_links(target, topology)
    except ConfigError:
        nodes = {index for index, node in enumerate(topology.nodes) if fnmatchcase(node.name, target)}
        leaving = tuple(index for index, link in enumerate(topology.links) if link.source in nodes)
        if not leaving:
            raise
        return leaving, None
    resolve([(target, impairment)], topology)  # refuses a plane for what has none
    return hit, plane


def _name(rank: int, topology: Topology) -> str:
    return topology.nodes[topology.ranks[rank]].name


def _ranks(target: str, kind: str, topology: Topology) -> tuple[int, ...]:
    names = [(f"rank{rank}", _name(rank, topology)) for rank in range(topology.n_ranks)]
    exact = tuple(rank for rank, both in enumerate(names) if target in both)
    found = exact or tuple(rank for rank, both in enumerate(names) if any(fnmatchcase(name, target) for name in both))
    if not found:
        known = [name for both in names for name in both]
        nearest = difflib.get_close_matches(target, known, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{kind} on {target!r}: no accelerator of {topology.name} is called so; the nearest name is {nearest!r},"
            f" and ranks are rank0 to rank{topology.n_ranks - 1}"
        )
    return found


def _one_rank(target: str, kind: str, topology: Topology) -> int:
    found = _ranks(target, kind, topology)
    if len(found) > 1:
        raise ConfigError(f"{kind}: {target!r} is {len(found)} accelerators; name one")
    return found[0]
