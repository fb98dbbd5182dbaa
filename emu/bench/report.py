"""The JSON report: nccl-tests' version-3 structure, with emu's figures in objects called ``emu``.

As there, booleans outside of ``emu`` are the words "true" and "false", and a file is
never overwritten: where the path is taken, ``.0``, ``.1``, ... are tried and the path
used is told.  ``emu_schema_version`` counts changes of the ``emu`` objects.
Source of the structure: NVIDIA/nccl-tests 2.19, src/util.cu.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import emu
from emu.bench.calibrate import Calibration
from emu.bench.congestion import ports_document, totals_document
from emu.bench.options import BenchOptions
from emu.bench.rows import Row, Side, Verdict, average_busbw_gb_per_s
from emu.bench.runner import FabricResult
from emu.errors import ConfigError
from emu.fabric.account import CAUSES
from emu.host import write_whole
from emu.units import microseconds

NCCL_TESTS_JSON_VERSION: Final = 3
EMU_SCHEMA_VERSION: Final = 3
_PACKAGES: Final = ("numpy", "ray", "pyzmq")
_ENVIRONMENT: Final = ("NCCL_", "EMU_")

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything about a run that a report or a run file may tell.  Times are UTC, ISO 8601."""

    options: BenchOptions
    results: tuple[FabricResult, ...]
    arguments: tuple[str, ...]
    started: str
    ended: str
    calibration: Calibration | None


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    found = {"emu": emu.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def document(record: RunRecord, environment: Mapping[str, str] | None = None) -> Plain:
    """The report as plain data.  Of the environment only NCCL_* and EMU_* are told."""
    options, results = record.options, record.results
    environment = os.environ if environment is None else environment
    n_wrong = sum(result.n_wrong for result in results)
    rows = [row for result in results for row in result.rows]
    told = versions()
    return {
        "version": NCCL_TESTS_JSON_VERSION,
        "emu_schema_version": EMU_SCHEMA_VERSION,
        "start_time": record.started,
        "args": list(record.arguments),
        "env": [f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith(_ENVIRONMENT)],
        "nccl_version": f"emu {told['emu']}",
        "config": _config(options, results),
        "results": [row_document(row, result, options) for result in results for row in result.rows],
        "out_of_bounds": {"count": n_wrong, "okay": _word(n_wrong == 0)},
        "average_bus_bandwidth": {
            "bandwidth": average_busbw_gb_per_s(rows),
            "okay": _word(all(result.meets_minimum for result in results)),
        },
        "errors": [],
        "end_time": record.ended,
        "emu": {
            "versions": told,
            "host": platform.node(),
            "calibration": None if record.calibration is None else record.calibration.as_plain(),
            "options": options.as_plain(),
            "fabrics": [
                {
                    "name": result.case.name,
                    "ranks": result.case.topology.n_ranks,
                    "description": result.case.topology.description,
                    "calibration": result.case.topology.calibration,
                    "impairments": list(result.case.impairments),
                    "average_bus_bandwidth": result.average,
                    "degraded_rows": result.n_degraded,
                }
                for result in results
            ],
        },
    }


def _word(value: bool) -> str:
    return "true" if value else "false"


def _config(options: BenchOptions, results: Sequence[FabricResult]) -> Plain:
    topology = results[0].case.topology
    step: Plain = {"step_factor": options.step_factor} if options.step_factor > 1 else {"step_bytes": options.step_bytes}
    return {
        "nthreads": 1,
        "ngpus": topology.n_ranks,
        "minimum_bytes": options.begin_bytes,
        "maximum_bytes": options.end_bytes,
        **step,
        "warmup_iters": options.warmup,
        "iterations": options.iterations,
        "aggregated_iterations": 1,
        "validation": _word(options.checks),
        "graph": 0,
        "blocking_collectives": _word(False),
        "devices": [
            {
                "rank": rank,
                "group": 0,
                "pid": os.getpid(),
                "hostname": platform.node(),
                "device": rank,
                "device_hex": f"0x{rank:02x}",
                "device_info": f"{result.case.name} {result.case.topology.nodes[node].name}",
            }
            for result in results[:1]
            for rank, node in enumerate(topology.ranks)
        ],
    }


def row_document(row: Row, result: FabricResult, options: BenchOptions) -> Plain:
    """One entry of ``results``; ports and adapters, where the fabric has switching, are those of the out-of-place half."""
    congestion = row.out_of_place.congestion
    return {
        "size": row.size_bytes,
        "count": row.count,
        "type": row.dtype,
        "redop": row.op,
        "root": row.root,
        "out_of_place": _side_document(row, row.out_of_place, result, options),
        "in_place": _side_document(row, row.in_place, result, options),
        **({} if congestion is None else {"emu": ports_document(congestion)}),
    }


def _side_document(row: Row, side: Side, result: FabricResult, options: BenchOptions) -> Plain:
    figures: Plain = {
        "driver": options.driver,
        "fabric": result.case.name,
        "ranks": row.n_ranks,
        "algorithm": side.algorithm,
        "protocol": side.protocol,
        "chunk_bytes": side.chunk_bytes,
        "dilation": side.dilation,
        "measured_us": None if side.measured_ps is None else microseconds(side.measured_ps),
        "model_us": None if side.unpaced else microseconds(side.model_ps),
        "late": side.late,
        "verdict": None if side.verdict is Verdict.NONE else str(side.verdict),
        "order_violations": side.order_violations,
        "order_weight": side.order_weight,
        "transport_backpressure": side.transport_backpressure,
        "largest_lateness_us": microseconds(side.largest_lateness_ps),
        "seed": side.seed,
        "wire_bytes_per_rank_max": side.wire_bytes_per_rank_max,
    }
    if side.p5_ps is not None and side.p95_ps is not None:
        figures |= {
            "seeds": options.n_seeds,
            "time_p5_us": microseconds(side.p5_ps),
            "time_p95_us": microseconds(side.p95_ps),
        }
    if whole_ps := sum(side.spent_ps):
        shares = zip(CAUSES, side.spent_ps, strict=True)
        figures["time_by_cause"] = {cause: spent_ps / whole_ps for cause, spent_ps in shares if spent_ps}
    if side.method:
        figures["method"] = side.method
    if side.congestion is not None:
        figures["congestion"] = totals_document(side.congestion)
    if options.per_iteration:
        figures["iteration_us"] = [microseconds(time_ps) for time_ps in side.iteration_ps]
    return {
        "time": microseconds(side.time_ps),
        "alg_bw": row.algbw_gb_per_s(side),
        "bus_bw": row.busbw_gb_per_s(side),
        "nwrong": side.n_wrong,
        "emu": figures,
    }


def check_writable(flag: str, path: Path) -> None:
    """Find out before the run that a file can be made there, by making one and taking it back.  Raises ConfigError."""
    fix = "name a file in a folder that exists and is yours"
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{flag} {str(path)!r} is a {'folder' if path.is_dir() else 'device, pipe or socket'}; {fix}")
        _write_new(path, "").unlink()
    except OSError as error:
        raise ConfigError(f"{flag} {str(path)!r}: cannot write there ({error.strerror}); {fix}") from None


def write_new(path: Path, plain: Mapping[str, Any]) -> Path:
    """Write JSON to ``path``, or to the first free of ``path.0``, ``path.1``, ...; the path used.  Raises OSError."""
    return _write_new(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


def told(asked: Path, used: Path) -> str:
    """The path used, and why where it is not the one that was asked for."""
    return str(used) if used == asked else f"{used} ({asked} was there already, and is kept)"


def _write_new(path: Path, text: str) -> Path:
    number = 0
    used = path
    while True:
        try:
            write_whole(used, text, mode="x")
        except FileExistsError:
            used = path.with_name(f"{path.name}.{number}")
            number += 1
        else:
            return used
