"""RunRecord: everything that was noted of a run, from all engines, in one file.

Law: what is loaded is what was saved; a file of another version, or one that is damaged, is refused.  Where events were left out
because there were too many, ``n_left_out`` says so, and so does everything that reads the record.

The file is gzipped JSON; its events are lists, in the order of the fields in ``fabric/recorder.py``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from emu.errors import ConfigError
from emu.fabric.recorder import Assembled, Called, Computed, Hop, Recorder, Sent
from emu.host import write_whole
from emu.telemetry.observation import Observation
from emu.topologies.graph import Topology

VERSION: Final = 1


class Mark(NamedTuple):
    """Something that was done to a component, such as a fault, or its end."""

    time_ps: int
    component: str
    text: str


class RunRecord(BaseModel):
    """``ends`` and ``links`` are names: of the ranks, and behind them of the switches that combine; of links by their index.

    ``observed`` is what a monitoring system sees of the same run, for ``emu diagnose``; None where there was no session.
    ``largest_lateness_ps`` and ``order_violations`` are the host's doing, as is each call's ``late_ns``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = VERSION
    fabric: str
    driver: str
    seed: int
    dilation: float
    ends: tuple[str, ...]
    links: tuple[str, ...]
    latencies_ps: tuple[int, ...]
    calls: tuple[Called, ...]
    computed: tuple[Computed, ...]
    sent: tuple[Sent, ...]
    hops: tuple[Hop, ...]
    assembled: tuple[Assembled, ...]
    marks: tuple[Mark, ...]
    n_left_out: int
    largest_lateness_ps: int
    order_violations: int
    observed: Observation | None = None

    @staticmethod
    def of(
        topology: Topology,
        recorders: Iterable[Recorder],
        *,
        driver: str,
        seed: int,
        dilation: float,
        marks: Iterable[Mark] = (),
        largest_lateness_ps: int = 0,
        order_violations: int = 0,
        observed: Observation | None = None,
    ) -> RunRecord:
        """Join the notes of all engines, in order of time."""
        found = list(recorders)
        return RunRecord.model_construct(
            version=1,
            fabric=topology.name,
            driver=driver,
            seed=seed,
            dilation=dilation,
            ends=tuple(topology.nodes[node].name for node in topology.addresses),
            links=tuple(link.name for link in topology.links),
            latencies_ps=tuple(link.latency_ps for link in topology.links),
            calls=tuple(sorted((one for each in found for one in each.calls), key=lambda call: (call.submitted_ps, call[:4]))),
            computed=tuple(sorted(one for each in found for one in each.computed)),
            sent=tuple(sorted((one for each in found for one in each.sent), key=lambda sent: (sent.asked_ps, sent.chunk))),
            hops=tuple(sorted((one for each in found for one in each.hops), key=lambda hop: (hop.start_ps, hop.link, hop.chunk))),
            assembled=tuple(sorted(one for each in found for one in each.assembled)),
            marks=tuple(sorted(marks)),
            n_left_out=sum(each.n_left_out for each in found),
            largest_lateness_ps=largest_lateness_ps,
            order_violations=order_violations,
            observed=observed,
        )

    def save(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be written."""
        try:
            write_whole(path, gzip.compress(self.model_dump_json().encode(), compresslevel=4))
        except OSError as error:
            raise ConfigError(f"record {path}: {error.strerror}; give a file that can be written") from None


def load_record(path: Path) -> RunRecord:
    """Raises ConfigError for what is no record of this version."""
    try:
        return RunRecord.model_validate_json(gzip.decompress(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"record {path}: {error.strerror or error}; give a file that was written with --record") from None
    except (EOFError, zlib.error):
        raise ConfigError(f"record {path}: it is cut short or damaged; record the run again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"record {path}: {where}: {first['msg']}; this emu reads records of version {VERSION}") from None
