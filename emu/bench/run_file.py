"""The run file: one JSON file with all that a run depends on, from which ``emu rerun`` repeats it.

It holds the options, the resolved fabric of every table (every node and link, as the
names, settings, seeds and placements came out), the versions, the host's calibration and
the results.  A rerun resolves the fabric again and refuses to go on if it is not the
same any more: then the numbers would be of another case under the old one's name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from emu.bench.fabrics import Case, prepare
from emu.bench.options import BenchOptions
from emu.bench.report import Plain, RunRecord, document, row_document
from emu.errors import ConfigError
from emu.topologies.graph import Topology

RUN_FILE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What was read from a run file.  ``results`` are the rows of ``report``."""

    path: Path
    options: BenchOptions
    fabrics: list[Plain]
    versions: dict[str, str]
    results: list[Plain]
    report: Plain


def resolved_fabric(case: Case) -> Plain:
    """A case's topology and impairments, spelt out, as JSON has them."""
    topology = case.topology
    plain = {
        "name": case.name,
        "seed": case.seed,
        "nodes": [
            [node.name, str(node.kind), node.drain_rate_bps, *([node.pause_storm] if node.pause_storm else [])]
            for node in topology.nodes
        ],
        "links": [asdict(link) for link in topology.links],
        "router": _router(topology),
        "switching": None if topology.switching is None else asdict(topology.switching),
        "ranks": [topology.nodes[node].name for node in topology.ranks],
        "impairments": list(case.impairments),
    }
    return json.loads(json.dumps(plain, default=str))  # type: ignore[no-any-return]


def _router(topology: Topology) -> Plain:
    router = topology.router
    state: Plain = {}
    if is_dataclass(router):
        state = {field.name: getattr(router, field.name) for field in fields(router) if not field.name.startswith("_")}
    return {"kind": type(router).__qualname__, **state}


def run_document(record: RunRecord) -> Plain:
    """The run file as plain data."""
    return {
        "emu_run_file": RUN_FILE_VERSION,
        "resolved_fabrics": [resolved_fabric(result.case) for result in record.results],
        "report": document(record),
    }


def read(path: Path) -> RunFile:
    """Raises ConfigError: not there, not a run file, of another version, or with options that do not fit."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as a run file ({error}); write one with emu bench --run-file") from None
    version = plain.get("emu_run_file") if isinstance(plain, dict) else None
    if version != RUN_FILE_VERSION:
        raise ConfigError(
            f"{path}: emu_run_file is {version!r}, it must be {RUN_FILE_VERSION}; write one with emu bench --run-file"
        )
    try:
        report = plain["report"]
        return RunFile(
            path=path,
            options=BenchOptions.from_plain(report["emu"]["options"]),
            fabrics=list(plain["resolved_fabrics"]),
            versions=dict(report["emu"]["versions"]),
            results=list(report["results"]),
            report=report,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: the run file lacks or garbles {error}; write one with emu bench --run-file") from None


def check_same_fabrics(run_file: RunFile) -> None:
    """Raises ConfigError when a fabric resolves to something else than when the file was written."""
    options = run_file.options
    for name, then in zip(options.fabrics, run_file.fabrics, strict=True):
        now = resolved_fabric(prepare(options, name, options.seed))
        changed = [key for key in now if now[key] != then.get(key)]
        if changed:
            what = ", ".join(changed)
            raise ConfigError(f"{run_file.path}: {what} of fabric {name!r} changed; bring it back or run emu bench anew")


def same_model_times(run_file: RunFile, record: RunRecord) -> tuple[int, int]:
    """How many rows have exactly the model times of the run file, and how many rows there are."""
    now = [row_document(row, result, record.options) for result in record.results for row in result.rows]
    then: Sequence[Any] = run_file.results
    same = sum(_model_us(old) == _model_us(new) for old, new in zip(then, now, strict=False))
    return same, len(now)


def _model_us(row: Plain) -> tuple[object, object]:
    return row["out_of_place"]["emu"]["model_us"], row["in_place"]["emu"]["model_us"]
