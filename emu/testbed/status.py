"""Status: what a testbed is and does: plain data for ``--json``, and a few lines for people, equals grouped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from emu.fabric.link import LinkStatistics
from emu.session import Session
from emu.testbed.groups import grouped
from emu.topologies.graph import Link
from emu.units import format_bytes, format_rate, format_time

Plain = dict[str, Any]
SHOWN_RUNS: Final = 5
HEADINGS: Final = ("NAME", "STATE", "FABRIC", "RANKS", "ACTORS", "UP", "RUNS", "NOW")


def session_status(session: Session, process_ids: Mapping[str, int]) -> Plain:
    """Ranks, actors and links of a session at rest, with what was counted since its last loop began."""
    topology = session.topology
    session.look()
    lost = set(session.lost)
    counted = session.counters().links
    sent: dict[int, int] = {}
    for link in topology.links:
        if link.name in counted:
            sent[link.source] = sent.get(link.source, 0) + counted[link.name].wire_bytes
    ranks = [
        {
            "rank": rank,
            "name": topology.nodes[node].name,
            "alive": topology.nodes[node].name not in lost,
            "sent_bytes": sent.get(node),
        }
        for rank, node in enumerate(topology.ranks)
    ]
    hosted: dict[int, list[str]] = {}
    for name, pid in process_ids.items():
        hosted.setdefault(pid, []).append(name)
    actors = [{"pid": pid, "nodes": nodes, "alive": lost.isdisjoint(nodes)} for pid, nodes in hosted.items()]
    return {"ranks": ranks, "actors": actors, "links": [_link(link, counted.get(link.name)) for link in topology.links]}


def _link(link: Link, counted: LinkStatistics | None) -> Plain:
    """What a link counted; a link whose sender is dead has no counters any more."""
    plain: Plain = {"name": link.name, "alive": counted is not None, "rate_bps": link.rate_bps, "latency_ps": link.latency_ps}
    if counted is not None:
        plain |= {"frames": counted.frames, "wire_bytes": counted.wire_bytes, "resent_bytes": counted.resent_bytes}
    return plain


def cells(status: Plain) -> tuple[str, ...]:
    """A testbed's line among others, by HEADINGS."""
    now = status["now"]
    return (
        status["name"],
        status["state"] + (f", {len(status['dead'])} dead" if status["dead"] else ""),
        status["fabric"],
        str(status["n_ranks"]),
        str(status["n_actors"]),
        format_span(status["up_s"]),
        str(status["n_runs"]),
        "-" if now is None else f"{now['what']} for {format_span(now['for_s'])}",
    )


def lines(status: Plain) -> list[str]:
    """All that is worth a word; what is alike is told once."""
    found = [
        f"{status['name']}: {status['state']}, up {format_span(status['up_s'])}, process {status['pid']}, emu {status['emu']}"
    ]
    found.append(_entry("fabric", f"{status['fabric']}, {status['n_ranks']} ranks in {status['n_actors']} actors"))
    now = status["now"]
    if now is not None:
        doing = f": {now['doing']}" if now["doing"] else ""
        found.append(_entry("now", f"{now['what']} for {format_span(now['for_s'])}, {now['n_rows']} rows{doing}"))
    if status["dead"]:
        found.append(_entry("dead", f"{', '.join(status['dead'])}; runs go on without, where there is a way round"))
    if status["stopped"]:
        found.append(_entry("stopped", f"{', '.join(status['stopped'])}; kill -CONT sets a process going again"))
    if status["session"] is not None:
        found += _session_lines(status["session"])
    elif now is None:
        found.append(_entry("actors", "do not answer"))
    failed = f", {status['n_failed']} of them failed" if status["n_failed"] else ""
    found.append(_entry("runs", f"{status['n_runs']}{failed}"))
    for run in status["runs"][-SHOWN_RUNS:]:
        found.append(_entry("", f"{run['number']}  {run['what']}  {format_span(run['wall_s'])}  {run['outcome']}"))
    for number, fault in enumerate(status["faults"]):
        found.append(_entry("" if number else "faults", fault))
    for number, endpoint in enumerate(status["metrics"]):
        found.append(_entry("" if number else "metrics", endpoint))
    if status["ttl_s"] is not None:
        found.append(_entry("ends", f"by itself, {format_span(status['ttl_s'])} after its last run"))
    found.append(_entry("log", status["log"]))
    return found


def _session_lines(session: Plain) -> list[str]:
    ranks = [(f"rank {rank['rank']} ({rank['name']})", _rank_words(rank)) for rank in session["ranks"]]
    actors = [(f"process {actor['pid']} ({', '.join(actor['nodes'])})", _alive(actor)) for actor in session["actors"]]
    links = [(link["name"], _link_words(link)) for link in session["links"]]
    return [
        _entry("" if number else heading, line)
        for heading, members in (("ranks", ranks), ("actors", actors), ("links", links))
        for number, line in enumerate(grouped(members))
    ]


def _alive(plain: Plain) -> str:
    return "alive" if plain["alive"] else "dead"


def _rank_words(rank: Plain) -> str:
    return f"alive, {format_bytes(rank['sent_bytes'] or 0)} sent in the last loop" if rank["alive"] else "dead"


def _link_words(link: Plain) -> str:
    what = f"{format_rate(link['rate_bps'])}, {format_time(link['latency_ps'])}"
    if not link["alive"]:
        return f"{what}, its sender is dead"
    resent = f", {format_bytes(link['resent_bytes'])} of them again" if link["resent_bytes"] else ""
    return f"{what}, {format_bytes(link['wire_bytes'])} in {link['frames']} frames{resent}"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows below HEADINGS, in columns."""
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in (HEADINGS, *rows)]


def format_span(seconds: float) -> str:
    """``12.3 s``, ``5 min``, ``3 h 12 min``, ``2 d 4 h``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, days = minutes // 60, minutes // 1440
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


def _entry(heading: str, text: str) -> str:
    return f"  {heading:<8} {text}".rstrip()
