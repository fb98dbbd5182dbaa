"""Fabrics by name: generic topologies, presets, and TOML files that users write.

Law: everything is checked before anything starts, and every complaint is one line that names the
file, the key, the value and the fix.

A file names a topology with its parameters, or lists nodes and links one by one; overrides then change
single links, so that rates may differ link by link::

    description = "four accelerators, one slow cable"
    calibration = "data sheet"             # what the numbers are worth; optional
    family = "clusters"                    # whom it is listed with; optional
    nesting = "2x2"                        # how nodes are grouped in a drawing; optional

    [topology]                             # either this ...
    kind = "star"
    ranks = 4

    [[nodes]]                              # ... or these
    name = "a0"
    kind = "accelerator"                   # switch, nic, cpu, memory, storage
    drain_rate = "10GB/s"                  # optional; host = "h0" says who shares a host, multicast = true what a switch can

    [[links]]
    between = ["a0", "s0"]                 # both directions; from = "a0", to = "s0" for one
    rate = "50GB/s"
    latency = "1us"                        # mtu, header, planes, window, suffix = "#1" as needed

    [[overrides]]
    links = "a3->s0"                       # a link or a pattern such as "a*->s0"
    rate = "5GB/s"

    [[impairments]]
    links = "a3->s0"
    kind = "jitter"                        # and its parameters

    [switching]                            # what happens when a link is full; left out, buffers are infinite
    preset = "roce-pfc"                    # keys and [[classes]]: see switching_file.py

    [[storms]]                             # an endpoint that is stuck, and pauses whatever sends to it
    node = "a0"
    start = "10us"
    duration = "1ms"

    [scales]                               # smaller instances of a large one, --set scale=2 (scales.py)
    2 = { ranks = 2 }

    [endpoint]                             # what the accelerators' own work costs; keys: see endpoint_file.py
    rate = "45GB/s"

    [sources]
    rate = "vendor data sheet, 2024"
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from emu.errors import ConfigError, fault
from emu.parameters import (
    Name,
    OneLine,
    Planes,
    PositiveBytes,
    RateBps,
    Shape,
    SizeBytes,
    TimePs,
    as_text,
    config_error,
    did_you_mean,
    validate,
)
from emu.topologies.cabling import split_rate
from emu.topologies.catalogue import Generic, generic_topologies, in_folder, resolve
from emu.topologies.checks import check
from emu.topologies.describe import Description, LinkClass, describe
from emu.topologies.endpoint_file import ENDPOINT_SETTINGS, endpoint_settings, read_endpoint
from emu.topologies.graph import Link, Node, NodeKind, Topology
from emu.topologies.routers import ShortestPath
from emu.topologies.scales import Scale, at_scale
from emu.topologies.settings import split_settings
from emu.topologies.switching_build import build_switching
from emu.topologies.switching_checks import check_switching
from emu.topologies.switching_file import read_switching

__all__ = ["Description", "Fabric", "LinkClass", "describe", "load", "load_fabric", "preset_files", "read_file"]

_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A topology and the impairments that its file sets on its links, as specs ``LINKS=KIND,key=value``.

    ``generic``: what it was built by; None where nodes and links are listed.  ``scales``: what ``--set scale`` takes.
    """

    topology: Topology
    impairments: tuple[str, ...] = ()
    generic: Generic | None = None
    scales: tuple[str, ...] = ()


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class File(_Entry):
    """A fabric file, its entries not looked at yet."""

    description: OneLine = ""
    calibration: OneLine = ""
    family: OneLine = ""
    nesting: Shape | None = None
    topology: dict[str, object] = {}
    nodes: tuple[dict[str, object], ...] = ()
    links: tuple[dict[str, object], ...] = ()
    overrides: tuple[dict[str, object], ...] = ()
    impairments: tuple[dict[str, object], ...] = ()
    switching: dict[str, object] = {}
    classes: tuple[dict[str, object], ...] = ()
    storms: tuple[dict[str, object], ...] = ()
    endpoint: dict[str, object] = {}
    scales: dict[Scale, dict[str, object]] = {}
    sources: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.topology and (self.nodes or self.links):
            raise ValueError("has both [topology] and [[nodes]] or [[links]]; keep one, and change links by [[overrides]]")
        if not self.topology and not self.nodes:
            raise ValueError("says no fabric; add [topology] with a kind, or [[nodes]] and [[links]]")
        return self


class _NodeEntry(_Entry):
    name: Name
    kind: NodeKind
    drain_rate: RateBps | None = None
    host: str = ""
    multicast: bool = False


class _LinkEntry(_Entry):
    between: tuple[str, str] | None = None
    source: str | None = Field(default=None, alias="from")
    target: str | None = Field(default=None, alias="to")
    rate: RateBps
    latency: TimePs
    mtu: PositiveBytes = 4096
    header: SizeBytes = 0
    planes: Planes = (1,)
    window: PositiveBytes | None = None
    suffix: OneLine = ""

    @model_validator(mode="after")
    def _has_ends(self) -> Self:
        one_way = self.source is not None and self.target is not None
        if (self.between is None) != one_way or (self.source is None) != (self.target is None):
            raise ValueError("give either between = ['a0', 's0'] for both directions, or from and to for one")
        return self

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        if self.between is not None:
            return self.between, (self.between[1], self.between[0])
        return ((self.source or "", self.target or ""),)


class _Override(_Entry):
    links: str
    rate: RateBps | None = None
    latency: TimePs | None = None
    mtu: PositiveBytes | None = None
    header: SizeBytes | None = None
    planes: Planes | None = None
    window: PositiveBytes | None = None


class _Storm(_Entry):
    node: str
    start: TimePs
    duration: TimePs


def load_fabric(name_or_path: str, settings: Mapping[str, str] = _NOTHING) -> Topology:
    """The topology of :func:`load`."""
    return load(name_or_path, settings).topology


def load(name_or_path: str, settings: Mapping[str, str] = _NOTHING) -> Fabric:
    """The fabric called ``name_or_path``: a preset, a generic topology, ``module:function``, or a path to a .toml file.

    ``settings`` are parameters of the topology and keys of its switching as text (``--set``); they override those of a
    file.  Raises ConfigError.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
        return _load_file(path, path.stem, str(path), settings)
    presets = preset_files()
    if name_or_path in presets:
        return _load_file(presets[name_or_path], name_or_path, name_or_path, settings)
    if ":" in name_or_path or in_folder(name_or_path):
        found = resolve(name_or_path, where=name_or_path)
        read_endpoint({}, endpoint_settings(settings), where=name_or_path)
        own, switching = split_settings(settings, found.parameters)
        topology = _build(found, {}, own, where=name_or_path)
        check(topology, where=name_or_path)
        return Fabric(topology=_switched(topology, {}, (), switching, where=name_or_path), generic=found)
    names = [*presets, *generic_topologies()]
    hint = did_you_mean(name_or_path, names)
    raise ConfigError(f"unknown fabric {name_or_path!r}{hint}; use a name that 'emu fabrics' lists, or a .toml file")


def preset_files() -> dict[str, Traversable]:
    """The presets' files by name, in order of name."""
    files = [file for file in resources.files("emu.presets").iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file for file in sorted(files, key=lambda file: file.name)}


def read_file(path: Traversable, where: str) -> File:
    """A fabric file's tables, before anything is built.  Raises ConfigError."""
    try:
        content: Mapping[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}; give a fabric's name or a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not TOML: {error}; text is quoted, for example rate = '50GB/s'") from None
    return validate(File, content, where=where)


def _load_file(path: Traversable, name: str, where: str, settings: Mapping[str, str]) -> Fabric:
    file = read_file(path, where)
    endpoint = read_endpoint(file.endpoint, endpoint_settings(settings), where=where)
    settings = {key: text for key, text in settings.items() if key not in ENDPOINT_SETTINGS}
    generic = _generic(file.topology, where) if file.topology else None
    if generic is not None:
        table, others = at_scale(file.topology, file.scales, settings, where=where)
        own, switching = split_settings(others, generic.parameters)
        topology = _build(generic, table, own, where=where)
    else:
        own, switching = split_settings(settings, None)
        if own:
            given = ", ".join(f"{key}={value}" for key, value in own.items())
            raise ConfigError(f"--set {given}: {where} lists its links, so only its switching has parameters; edit the file")
        topology = _listed(file, where)
    topology = replace(
        topology,
        name=name,
        nodes=_stormy(topology.nodes, file, where),
        links=_overridden(topology.links, file, where),
        description=file.description or topology.description,
        calibration=_calibration(file.calibration or topology.calibration, settings),
        sources=tuple(file.sources.items()),
        endpoint=endpoint,
        structure=replace(topology.structure, bisection_bps=None) if file.overrides else topology.structure,
        nesting=file.nesting or topology.nesting,
    )
    check(topology, where=where)
    topology = _switched(topology, file.switching, file.classes, switching, where=where)
    return Fabric(topology=topology, impairments=tuple(_impairments(file, where)), generic=generic, scales=tuple(file.scales))


def _switched(
    topology: Topology,
    table: Mapping[str, object],
    classes: tuple[dict[str, object], ...],
    settings: Mapping[str, str],
    *,
    where: str,
) -> Topology:
    """With the switching that is written, checked; else with the topology's own."""
    written = read_switching(table, classes, settings, where=where)
    if written is not None:
        sources = tuple((f"switching {key}", text) for key, text in written.sources)
        topology = replace(topology, switching=build_switching(written, topology), sources=topology.sources + sources)
    elif "switching" in settings:
        topology = replace(topology, switching=None)
    check_switching(topology, where=where)
    return topology


def _calibration(calibration: str, settings: Mapping[str, str]) -> str:
    """What a file's numbers are worth does not hold for what the user changed."""
    changes = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{calibration}; changed: {changes}" if changes else calibration


def _generic(table: Mapping[str, object], where: str) -> Generic:
    kind = str(table.get("kind", ""))
    if not kind:
        names = ", ".join(generic_topologies())
        raise ConfigError(f"{where}: [topology] has no kind; use one of {names}, or module:function")
    return resolve(kind, where=where)


def _build(generic: Generic, table: Mapping[str, object], settings: Mapping[str, str], *, where: str) -> Topology:
    values: dict[str, object] = {key: as_text(value) for key, value in table.items() if key != "kind"}
    where_by_key = dict.fromkeys(settings, "--set")
    parameters = validate(generic.parameters, values | dict(settings), where=where, where_by_key=where_by_key)
    try:
        topology: object = generic.build(parameters)
    except ValidationError as error:
        raise config_error(error, generic.parameters, where=where, where_by_key=where_by_key) from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except Exception as error:
        raise ConfigError(f"{where}: build of {generic.name} failed with {fault(error)}") from error
    if not isinstance(topology, Topology):
        raise ConfigError(f"{where}: build of {generic.name} returned {type(topology).__name__}; it must return a Topology")
    return topology


def _listed(file: File, where: str) -> Topology:
    nodes = []
    for number, table in enumerate(file.nodes, 1):
        entry = validate(_NodeEntry, _texts(table), where=f"{where}: [[nodes]] number {number}")
        if entry.multicast and entry.kind is not NodeKind.SWITCH:
            raise ConfigError(f"{where}: [[nodes]] {entry.name}: multicast is a switch's; this is kind = '{entry.kind}'")
        nodes.append(
            Node(
                name=entry.name,
                kind=entry.kind,
                drain_rate_bps=entry.drain_rate,
                host=entry.host,
                multicast=entry.multicast,
            )
        )
    index = {node.name: i for i, node in enumerate(nodes)}
    links: list[Link] = []
    for number, table in enumerate(file.links, 1):
        place = f"{where}: [[links]] number {number}"
        link = validate(_LinkEntry, _texts(table), where=place)
        for end in link.directions[0]:
            if end not in index:
                hint = did_you_mean(end, index)
                raise ConfigError(f"{place}: there is no node {end!r}{hint}; add it to [[nodes]] or correct the name")
        for source, target in link.directions:
            links.append(
                Link(
                    name=f"{source}->{target}{link.suffix}",
                    source=index[source],
                    target=index[target],
                    rate_bps=link.rate,
                    latency_ps=link.latency,
                    mtu_bytes=link.mtu,
                    header_bytes=link.header,
                    planes_bps=_planes_bps(link.rate, link.planes, place),
                    window_bytes=link.window,
                )
            )
    ranks = tuple(i for i, node in enumerate(nodes) if node.kind is NodeKind.ACCELERATOR)
    return Topology(
        name="",
        nodes=tuple(nodes),
        links=tuple(links),
        router=ShortestPath(),
        ranks=ranks,
        description=_counted(nodes, len(links)),
    )


def _counted(nodes: Sequence[Node], n_links: int) -> str:
    """A listed fabric in figures, for want of the user's words: ``4 x accelerator, 1 x switch; 8 listed links``."""
    kinds = Counter(node.kind for node in nodes)
    return f"{', '.join(f'{n} x {kind}' for kind, n in kinds.items())}; {n_links} listed links"


def _overridden(links: tuple[Link, ...], file: File, where: str) -> tuple[Link, ...]:
    """Later overrides win.  A new rate keeps the proportions of a link's planes."""
    changed = list(links)
    for number, table in enumerate(file.overrides, 1):
        place = f"{where}: [[overrides]] number {number}"
        override = validate(_Override, _texts(table), where=place)
        names = [link.name for link in links]
        exact = [i for i, name in enumerate(names) if name == override.links]
        matches = exact or [i for i, name in enumerate(names) if fnmatchcase(name, override.links)]
        if not matches:
            hint = did_you_mean(override.links, names)
            raise ConfigError(f"{place}: no link matches {override.links!r}{hint}; links are called like {names[0]}")
        for i in matches:
            changed[i] = _override(changed[i], override, place)
    return tuple(changed)


def _stormy(nodes: tuple[Node, ...], file: File, where: str) -> tuple[Node, ...]:
    changed = {node.name: node for node in nodes}
    for number, table in enumerate(file.storms, 1):
        place = f"{where}: [[storms]] number {number}"
        storm = validate(_Storm, _texts(table), where=place)
        if storm.node not in changed:
            raise ConfigError(f"{place}: there is no node {storm.node!r}{did_you_mean(storm.node, changed)}; name an accelerator")
        changed[storm.node] = replace(changed[storm.node], pause_storm=(storm.start, storm.duration))
    return tuple(changed[node.name] for node in nodes)


def _override(link: Link, override: _Override, place: str) -> Link:
    rate_bps = link.rate_bps if override.rate is None else override.rate
    return replace(
        link,
        rate_bps=rate_bps,
        latency_ps=link.latency_ps if override.latency is None else override.latency,
        mtu_bytes=link.mtu_bytes if override.mtu is None else override.mtu,
        header_bytes=link.header_bytes if override.header is None else override.header,
        planes_bps=_planes_bps(rate_bps, override.planes or link.planes_bps or (1,), place),
        window_bytes=link.window_bytes if override.window is None else override.window,
    )


def _planes_bps(rate_bps: int, lanes: tuple[int, ...], place: str) -> tuple[int, ...]:
    try:
        return split_rate(rate_bps, lanes) if len(lanes) > 1 else ()
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _impairments(file: File, where: str) -> list[str]:
    """Entries as the specs that ``--impair`` takes; their kinds and parameters are checked there."""
    specs = []
    for number, table in enumerate(file.impairments, 1):
        place = f"{where}: [[impairments]] number {number}"
        values = {key: _spec_text(value) for key, value in table.items()}
        for key in ("links", "kind"):
            if not values.get(key):
                raise ConfigError(f"{place}: {key!r} is missing; give links, kind and its parameters")
        for key, text in values.items():
            if "," in text or (key == "links" and "=" in text):
                raise ConfigError(f"{place}: {key} = {text!r} has a ',' or '='; write one entry per pattern, lists as [3, 7]")
        links, kind = values.pop("links"), values.pop("kind")
        specs.append(",".join([f"{links}={kind}", *(f"{key}={text}" for key, text in values.items())]))
    return specs


def _spec_text(value: object) -> str:
    text = as_text(value)
    return "+".join(map(str, text)) if isinstance(text, list) else str(text)


def _texts(table: Mapping[str, object]) -> dict[str, object]:
    return {key: as_text(value) for key, value in table.items()}
