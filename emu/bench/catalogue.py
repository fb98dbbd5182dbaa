"""``emu fabrics``: the list by family, one fabric with the sources of its numbers, and its drawing."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from emu.bench.runner import EXIT_OK
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.parameters import Described, described_parameters
from emu.topologies.describe import Description, describe, scaled
from emu.topologies.endpoint_file import write_endpoint
from emu.topologies.fabric_file import Fabric, load
from emu.topologies.listing import EVIDENCE, FAMILIES, evidence, list_fabrics
from emu.topologies.switching_file import load_switching_preset, switching_keys, switching_presets
from emu.units import format_bytes, format_rate, format_time

_MOST_RANKS_DRAWN = 256
_MOST_NODES_DRAWN = 2000
_UNKNOWN = "not known (too large to search)"


def fabrics(
    name: str | None, settings: Sequence[tuple[str, str]], *, draw: Path | None = None, terminal: Terminal | None = None
) -> int:
    """List them, describe one with the sources of its numbers, or draw it.  Raises ConfigError."""
    terminal = terminal or Terminal()
    if name is None:
        terminal.lines(*_listing())
    elif name == "switching":
        terminal.lines("switching: its keys, for [switching] of a fabric file and for --set key=value")
        terminal.lines(*_parameters(switching_keys()))
    elif name in switching_presets() and not settings:
        terminal.lines(*_switching_preset(name))
    elif draw is not None:
        _draw(name, dict(settings), draw, terminal)
    else:
        terminal.lines(*_fabric(name, load(name, dict(settings)), is_whole=not settings))
    return EXIT_OK


def _listing() -> Iterable[str]:
    listing = list_fabrics()
    width = max(len(entry.name) for entry in listing)
    families = [*FAMILIES, *sorted({entry.family for entry in listing if entry.kind == "preset"} - set(FAMILIES))]
    sections: list[tuple[str, Sequence[tuple[str, str]]]] = [
        (f"{family or 'other presets'}:", [(e.name, e.description) for e in listing if e.kind == "preset" and e.family == family])
        for family in families
    ]
    headings = (
        ("topology", "topologies, with --set key=value:"),
        ("switching", "what a full link does, with --set switching=NAME on any of them (all keys: emu fabrics switching):"),
    )
    sections += [(heading, [(e.name, e.description) for e in listing if e.kind == kind]) for kind, heading in headings]
    for heading, entries in (*sections, *_extensions()):
        yield heading
        for name, description in entries:
            yield from _hanging(f"  {name:<{width}}  ", description)


def _extensions() -> tuple[tuple[str, Sequence[tuple[str, str]]], ...]:
    """(heading, (name, what it is)) of what is no fabric and is found by name all the same."""
    from emu.collectives.catalogue import algorithm_names
    from emu.impairments.spec import impairment_class, kinds
    from emu.topologies.extensions import described
    from emu.topologies.folder import first_line

    return (
        ("congestion controls, with --set congestion_control=NAME:", described("congestion")),
        ("balancing of equal links, with --set balancing=NAME:", described("balancing")),
        (
            "impairments, with --impair 'LINKS=NAME,key=value':",
            [(kind, first_line(sys.modules[impairment_class(kind).__module__].__doc__, kind)) for kind in kinds()],
        ),
        (
            "algorithms, with --algorithm NAME:",
            [(name, first_line(sys.modules[f"emu.collectives.{name}"].__doc__, name)) for name in algorithm_names()],
        ),
    )


def _switching_preset(name: str) -> Iterable[str]:
    preset = load_switching_preset(name, where=name)
    yield f"{name}: {preset.description}"
    yield f"  use it with        --set switching={name}"
    for number, table in enumerate((preset.switching, *preset.classes)):
        prefix = f"class {number}: " if number else ""
        yield from (f"  {prefix + key:<18} {value}" for key, value in table.items())
    yield from ("  sources", *(f"    {what}: {source}" for what, source in preset.sources))
    yield "  all keys             emu fabrics switching"


def _fabric(name: str, fabric: Fabric, *, is_whole: bool) -> Iterable[str]:
    facts = describe(fabric.topology)
    least, most = (format_rate(rate_bps) for rate_bps in facts.endpoint_rate_bps)
    yield f"{facts.name}: {facts.description}"
    yield f"  ranks              {facts.n_ranks}"
    yield f"  nodes              {', '.join(f'{count} {kind}' for kind, count in facts.n_nodes)}"
    yield f"  accelerator sends  {least if least == most else f'{least} to {most}'}"
    yield f"  diameter           {_UNKNOWN if facts.diameter_links is None else f'{facts.diameter_links} links'}"
    yield f"  bisection          {_UNKNOWN if facts.bisection_bps is None else format_rate(facts.bisection_bps)}"
    yield from _hanging("  calibration        ", facts.calibration)
    if fabric.scales:
        yield from _hanging("  scales             ", f"--set scale=RANKS: {', '.join(fabric.scales)}")
        yield from _scales(name, fabric, facts) if is_whole else ()
    yield f"  links              {facts.n_links}, each direction of a cable is one:"
    for links in facts.link_classes:
        planes = f", {len(links.planes_bps)} planes" if links.planes_bps else ""
        window = f", window {format_bytes(links.window_bytes)}" if links.window_bytes is not None else ""
        yield (
            f"    {links.n_links:>6} {links.source} -> {links.target}: {format_rate(links.rate_bps)},"
            f" {format_time(links.latency_ps)}, MTU {links.mtu_bytes} + {links.header_bytes} B{planes}{window}"
        )
    if fabric.topology.endpoint is not None:
        yield from ("  endpoint", *(f"    {line}" for line in write_endpoint(fabric.topology.endpoint).splitlines()[1:]))
    stormy = [(node.name, node.pause_storm) for node in fabric.topology.nodes if node.pause_storm is not None]
    if stormy:
        yield "  storms"
    for node, (start_ps, span_ps) in stormy:
        yield f"    {node} pauses its senders from {format_time(start_ps)} for {format_time(span_ps)}"
    if fabric.impairments:
        yield from ("  impairments", *(f"    {impairment}" for impairment in fabric.impairments))
    if fabric.generic is not None:
        other = "" if fabric.generic.name == name else f" (those of {fabric.generic.name}, with its defaults)"
        yield f"  parameters, with --set key=value{other}"
        yield from _parameters(described_parameters(fabric.generic.parameters))
    if facts.switching:
        yield from ("  switching", *(f"    {what:<16} {how}" for what, how in facts.switching))
    if facts.sources:
        yield from _sources(facts.sources)


def _scales(name: str, fabric: Fabric, whole: Description) -> Iterable[str]:
    """What smaller instances do not keep of the rates of an accelerator, the bisection per rank and the diameter."""
    for scale in (scale for scale in fabric.scales if int(scale) < whole.n_ranks):
        yield from _hanging(f"    {scale:<16} ", scaled(whole, describe(load(name, {"scale": scale}).topology)))


def _sources(sources: Sequence[tuple[str, str]]) -> Iterable[str]:
    """Each with what it is worth, so that estimates stand out, and how many there are of each worth."""
    told = [(what, *evidence(source)) for what, source in sources]
    counts = Counter(worth for _, worth, _ in told if worth)
    summary = ", ".join(f"{counts[worth]} {worth}" for worth in EVIDENCE.values() if counts[worth])
    yield f"  sources{f' ({summary})' if summary else ''}"
    names = max(len(what) for what, _, _ in told)
    worths = max(len(worth) for _, worth, _ in told)
    for what, worth, source in told:
        yield from _hanging(f"    {what:<{names}}  {worth:<{worths}}  " if worths else f"    {what}: ", source)


def _parameters(entries: Sequence[Described]) -> list[str]:
    """``    leaves   4    Number of leaf switches.``"""
    names = max((len(entry.name) for entry in entries), default=0)
    defaults = max((len(entry.default) for entry in entries), default=0)
    return [f"    {entry.name:<{names}}  {entry.default:<{defaults}}  {entry.meaning}".rstrip() for entry in entries]


def _hanging(head: str, text: str) -> list[str]:
    """``text`` behind ``head``, in lines of the terminal's width (80 columns where there is none), indented alike."""
    width = max(shutil.get_terminal_size((80, 24)).columns, len(head) + 30)
    return textwrap.wrap(head + text, width, subsequent_indent=" " * len(head), break_on_hyphens=False) or [head.rstrip()]


def _draw(name: str, settings: dict[str, str], path: Path, terminal: Terminal) -> None:
    """A large system that has scales is drawn at the largest that can still be read, and the drawing says so."""
    from emu.drawing import html, png
    from emu.drawing.picture import picture

    writers = {".png": png.write, ".html": html.write}
    if path.suffix not in writers:
        raise ConfigError(f"--draw {path}: the name must end in .png or .html")
    fabric = load(name, settings)
    note = f"with {', '.join(f'{key} = {value}' for key, value in settings.items())}" if settings else ""
    scales = [scale for scale in fabric.scales if int(scale) <= _MOST_RANKS_DRAWN]
    if not settings and scales and fabric.topology.n_ranks > _MOST_RANKS_DRAWN:
        scale = max(scales, key=int)
        note = f"drawn with {scale} of its {fabric.topology.n_ranks} accelerators (--set scale={scale})"
        fabric = load(name, {"scale": scale})
    n_nodes = len(fabric.topology.nodes)
    if n_nodes > _MOST_NODES_DRAWN:
        raise ConfigError(f"--draw: {name} has {n_nodes} nodes; use --set to draw {_MOST_NODES_DRAWN} or fewer")
    writers[path.suffix](picture(fabric.topology, note=note), path)
    terminal.message(f"# drawn: {path}{f', {note}' if note else ''}")
