"""What this host can carry: measured on the real thing, once, and kept per host.

An emulated star of four accelerators runs unpaced: small all-reduces give the cost
of a frame and hop, large ones what a byte costs on top (sockets, copies and
reductions together).  How late timers wake is measured beside it.  The figures are of
the whole host, all its cores together, and of an idle one.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emu.bench.loop import LoopPlan, run_loop
from emu.bench.rows import percentile
from emu.clock import sleep_s, utc_now, wall_ns

if TYPE_CHECKING:
    from emu.session import Session

CALIBRATION_VERSION: Final = 3
MAX_AGE: Final = timedelta(days=30)
N_RANKS: Final = 4
SMALL_BYTES: Final = 4 << 10
LARGE_BYTES: Final = 64 << 20
SMALL_ITERATIONS: Final = 100
LARGE_ITERATIONS: Final = 2
TIMER_SAMPLES: Final = 200
REPEATS: Final = 3
"""Loops of each size; the median counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """``frame_cost_ns``: CPU and waiting per frame and hop.  ``bytes_per_s``: payload over all links together."""

    version: int
    host: str
    n_cpus: int
    measured_at: str
    frame_cost_ns: int
    bytes_per_s: int
    oversleep_p50_ns: int
    oversleep_p99_ns: int

    def as_plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def measure(open_session: Callable[[], AbstractContextManager[Session]]) -> Calibration:
    """Calibrate this host on an emulated session over a star of N_RANKS accelerators; takes a few seconds."""
    with open_session() as session:
        _loop(session, SMALL_BYTES, 10)
        small_ns, small_frames, small_bytes = sorted(_loop(session, SMALL_BYTES, SMALL_ITERATIONS) for _ in range(REPEATS))[1]
        large_ns, large_frames, large_bytes = sorted(_loop(session, LARGE_BYTES, LARGE_ITERATIONS) for _ in range(REPEATS))[1]
    oversleep = sorted(_oversleep_ns() for _ in range(TIMER_SAMPLES))
    frame_cost_ns = max(1, small_ns // max(1, small_frames))
    left_ns = max(large_ns // 4, large_ns - frame_cost_ns * large_frames)
    return Calibration(
        version=CALIBRATION_VERSION,
        host=platform.node(),
        n_cpus=os.cpu_count() or 1,
        measured_at=utc_now(),
        frame_cost_ns=frame_cost_ns,
        bytes_per_s=max(1, (large_bytes - small_bytes) * 10**9 // max(1, left_ns)),
        oversleep_p50_ns=percentile(oversleep, 50),
        oversleep_p99_ns=percentile(oversleep, 99),
    )


def _loop(session: Session, size_bytes: int, iterations: int) -> tuple[int, int, int]:
    """Wall time, frames and wire bytes of unpaced ring all-reduces, back to back."""
    count = size_bytes // 4
    plan = LoopPlan(
        collective="all_reduce",
        dtype="float32",
        op="sum",
        root=-1,
        send_count=count,
        receive_count=count,
        iterations=iterations,
        warmup=0,
        in_place=True,
        check=False,
        algorithm="ring",
    )
    session.begin(0.0, 0)
    results = session.run(run_loop, plan)
    counters = session.counters()
    return max(result.wall_ns for result in results), counters.frames, counters.wire_bytes


def _oversleep_ns() -> int:
    begin = wall_ns()
    sleep_s(0.001)
    return max(0, wall_ns() - begin - 1_000_000)


def cache_file(address: str | None = None) -> Path:
    """Where the calibration of this host (or of the cluster at ``address``) is kept: $XDG_CACHE_HOME/emu."""
    cache = os.environ.get("XDG_CACHE_HOME") or ""
    folder = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    name = platform.node() if address is None else f"{platform.node()}-{address}"
    return folder / "emu" / f"calibration-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.json"


def load(path: Path, now: str | None = None) -> Calibration | None:
    """The kept calibration; None unless it can be read, is of this host and version, and at most 30 days old."""
    try:
        plain = json.loads(path.read_text())
        kept = Calibration(**{field.name: plain[field.name] for field in fields(Calibration)})
        age = datetime.fromisoformat(now or utc_now()) - datetime.fromisoformat(kept.measured_at)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    same = (kept.version, kept.host, kept.n_cpus) == (CALIBRATION_VERSION, platform.node(), os.cpu_count() or 1)
    return kept if same and age <= MAX_AGE else None


def save(calibration: Calibration, path: Path) -> None:
    """Keep a calibration.  The file is replaced whole: nobody ever reads half of it.  Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(calibration.as_plain(), indent=2) + "\n")
    beside.replace(path)
