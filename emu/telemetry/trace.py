"""Trace: a record as a timeline in Chrome's JSON, which Perfetto, chrome://tracing and, by rank, Holistic Trace Analysis read.

Law: slices of a track never overlap partly: what does, such as two calls at a time, gets a lane of its own beside it.  Every flow
has both ends, and each lies within a slice.  Times are model time; ``ts`` and ``dur`` are microseconds, and keep picoseconds.

    accelerators    a track for each rank: calls from when they begin to run to their completion, computation, steps
    links           a track for each link: what took the wire, from the first byte to the last
    queues          a counter for each queue in which something waited, as packets leave it
    flows           from the call that sends a chunk, over its links, to the call that receives it
    instants        faults and their ends

A step (``ProfilerStep#N``) lasts until the rank has waited for calls: then its time has moved on, and it did not compute.  The
first rank decides for all.  Sources of names: Chrome's Trace Event Format; PyTorch's Kineto and ParamCommsUtils; HTA 0.5.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from emu.collectives.call import PER_RANK
from emu.collectives.reduce import DTYPES
from emu.errors import ConfigError
from emu.fabric.recorder import Called, Chunk, Hop
from emu.host import write_whole
from emu.telemetry.record import RunRecord

Event = dict[str, Any]
PS_PER_US: Final = 10**6
_PROCESSES: Final = ("accelerators", "links of accelerators", "links of switches", "queues", "faults")
_RANKS, _UP, _INNER, _QUEUES, _FAULTS = range(1, 6)
_COMPUTE_STREAM, _CALL_STREAM = 7, 20
"""As on a GPU under PyTorch: what computes and what communicates are streams of their own."""
_DTYPES: Final = {
    "int8": "Char", "uint8": "Byte", "int16": "Short", "uint16": "UInt16", "int32": "Int", "uint32": "UInt32", "int64": "Long",
    "uint64": "UInt64", "float16": "Half", "float32": "Float", "float64": "Double", "bfloat16": "BFloat16",
}  # fmt: skip
"""PyTorch's names."""
_COLLECTIVES: Final = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast",
    "reduce": "Reduce", "send": "SendRecv", "recv": "SendRecv", "alltoall": "AllToAll", "alltoallv": "AllToAllv",
    "gather": "Gather", "scatter": "Scatter", "barrier": "Barrier",
}  # fmt: skip
"""NCCL's names, as far as it has them."""

CallKey = tuple[int, tuple[int, ...]]
"""(rank, key): finds a rank's call."""


def write_trace(record: RunRecord, path: Path) -> None:
    """The whole timeline in one file; gzipped where it ends with .gz.  Raises ConfigError."""
    _write(path, {"displayTimeUnit": "ns", "traceEvents": list(events(record)), "otherData": about(record)})


def write_rank_traces(record: RunRecord, folder: Path) -> list[Path]:
    """``rank_N.json.gz`` for each rank with calls, as Holistic Trace Analysis wants them.  Raises ConfigError."""
    ranks = sorted({call.rank for call in record.calls})
    timeline = _Timeline(record)
    written = []
    for rank in ranks:
        path = folder / f"rank_{rank}.json.gz"
        _write(
            path,
            {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(ranks)},
                "displayTimeUnit": "ns",
                "traceEvents": list(timeline.kineto(rank)),
                "otherData": about(record),
            },
        )
        written.append(path)
    return written


def events(record: RunRecord) -> Iterator[Event]:
    """Every event of the timeline: first the names of tracks, then by process and track in order of time."""
    return _Timeline(record).events()


def about(record: RunRecord) -> Event:
    """What a record is of."""
    return {
        "fabric": record.fabric,
        "driver": record.driver,
        "seed": record.seed,
        "dilation": record.dilation,
        "events left out": record.n_left_out,
        "clock": "model time",
    }


def call_arguments(call: Called, members: tuple[int, ...]) -> Event:
    """What a communication is, in PyTorch's words."""
    n_elements = call.n_bytes // DTYPES[call.dtype].itemsize
    n = len(members)
    sent, received = n_elements, n_elements
    if call.collective in PER_RANK:
        sent = n_elements * n if call.collective in ("reduce_scatter", "alltoall", "scatter") else n_elements
        received = n_elements * n if call.collective in ("all_gather", "alltoall", "gather") else n_elements
    return {
        "Collective name": call.collective,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": n,
        "dtype": _DTYPES[call.dtype],
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": str(call.communicator),
        "Process Group Description": f"communicator {call.communicator}",
        "Process Group Ranks": json.dumps(list(members)),
        "Rank": call.rank,
        "Seq": call.number if call.number >= 0 else -1 - call.number,
    }


def members_of(calls: Iterable[Called]) -> dict[int, tuple[int, ...]]:
    """Ranks by communicator, as far as they have called."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for call in calls:
        found[call.communicator].add(call.rank)
    return {communicator: tuple(sorted(ranks)) for communicator, ranks in found.items()}


def kernel_name(call: Called) -> str:
    """As NCCL names its kernels, so that what looks for communication finds it; without the reduction, which is not recorded."""
    return f"ncclKernel_{_COLLECTIVES[call.collective]}_{call.algorithm.upper()}_{_DTYPES[call.dtype]}"


def steps(record: RunRecord) -> dict[CallKey, int]:
    """The step that each call belongs to."""
    first = min((call.rank for call in record.calls), default=0)
    doing = [(its.begin_ps, its.end_ps, None) for its in record.computed if its.rank == first]
    asked = [(call.submitted_ps, call.submitted_ps, call.key) for call in record.calls if call.rank == first]
    begins: set[tuple[int, ...]] = set()
    cursor_ps, is_new = -1, True
    for begin_ps, end_ps, key in sorted([*doing, *asked], key=lambda event: event[:2]):
        is_new = is_new or begin_ps > cursor_ps
        cursor_ps = max(cursor_ps, end_ps)
        if is_new and key is not None:
            begins.add(key)
            is_new = False
    found: dict[CallKey, int] = {}
    now: defaultdict[int, int] = defaultdict(lambda: -1)
    for call in record.calls:
        now[call.rank] = max(0, now[call.rank] + (call.key in begins))
        found[call.rank, call.key] = now[call.rank]
    return found


class _Lanes:
    """Tracks of one name: slices that come in order of their beginnings are laid on the first that is free."""

    def __init__(self) -> None:
        self.ends_ps: list[int] = []

    def place(self, begin_ps: int, end_ps: int) -> int:
        for lane, free_ps in enumerate(self.ends_ps):
            if free_ps <= begin_ps:
                self.ends_ps[lane] = end_ps
                return lane
        self.ends_ps.append(end_ps)
        return len(self.ends_ps) - 1


class _Timeline:
    """The events of a record."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.members = members_of(record.calls)
        self.steps = steps(record)
        self._names: list[Event] = []
        self._tracks: dict[tuple[int, str, int], int] = {}
        self._slices: dict[CallKey, tuple[int, int, int]] = {}  # track, begin, last moment in it

    def events(self) -> Iterator[Event]:
        body: list[Event] = []
        for process, name in enumerate(_PROCESSES, 1):
            self._names.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}})
            self._names.append({"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}})
        body += self._calls()
        body += self._hops_and_flows()
        body += self._marks()
        yield from self._names
        yield from sorted(body, key=lambda event: (event["pid"], event["tid"], event["ts"]))

    # -- ranks -----------------------------------------------------------------------------------

    def _calls(self) -> Iterator[Event]:
        record = self.record
        lanes: defaultdict[int, _Lanes] = defaultdict(_Lanes)
        for rank in sorted({call.rank for call in record.calls}):
            self._track(_RANKS, self._rank_name(rank), 0)
        for call in sorted(record.calls, key=lambda call: (call.started_ps, call.number)):
            lane = lanes[call.rank].place(call.started_ps, call.completed_ps)
            track = self._track(_RANKS, self._rank_name(call.rank), lane)
            last_ps = max(call.started_ps, call.completed_ps - 1000)
            self._slices[call.rank, call.key] = track, call.started_ps, last_ps
            waited_us = (call.started_ps - call.submitted_ps) / PS_PER_US
            arguments = call_arguments(call, self.members[call.communicator])
            arguments |= {"algorithm": call.algorithm, "n_bytes": call.n_bytes, "waited_us": waited_us, "late_ns": call.late_ns}
            name = f"{call.collective} {call.algorithm}" if call.n_bytes else call.collective
            yield _slice(_RANKS, track, name, call.started_ps, call.completed_ps, "collective", arguments)
        for computed in record.computed:
            track = self._track(_RANKS, f"{self._rank_name(computed.rank)}: computation", 0)
            yield _slice(_RANKS, track, "compute", computed.begin_ps, computed.end_ps, "computation", {})
        for rank, number, begin_ps, end_ps in self._steps():
            track = self._track(_RANKS, f"{self._rank_name(rank)}: steps", 0)
            yield _slice(_RANKS, track, f"ProfilerStep#{number}", begin_ps, end_ps, "user_annotation", {})

    def _steps(self) -> Iterator[tuple[int, int, int, int]]:
        """(rank, step, begin, end) in order; a step lasts until the rank's next begins, and starts with what it computes."""
        ends: defaultdict[tuple[int, int], int] = defaultdict(int)
        for call in self.record.calls:
            step = call.rank, self.steps[call.rank, call.key]
            ends[step] = max(ends[step], call.completed_ps)
        at_ps: defaultdict[int, int] = defaultdict(int)
        for (rank, number), end_ps in sorted(ends.items()):
            if end_ps > at_ps[rank]:
                yield rank, number, at_ps[rank], end_ps
                at_ps[rank] = end_ps

    def _rank_name(self, rank: int) -> str:
        return f"rank {rank} ({self.record.ends[rank]})"

    # -- links, queues and flows -----------------------------------------------------------------

    def _hops_and_flows(self) -> Iterator[Event]:
        record = self.record
        waited = {hop.link for hop in record.hops if hop.queued_bytes}
        lanes: defaultdict[int, _Lanes] = defaultdict(_Lanes)
        final = {one.chunk: (one.sequence, one.sending) for one in record.assembled}
        passed: defaultdict[Chunk, list[tuple[Hop, int, int]]] = defaultdict(list)
        for link, name in enumerate(record.links):
            self._track(self._process_of(link), name, 0)
        for hop in record.hops:
            end_ps = max(hop.start_ps, hop.tail_ps - record.latencies_ps[hop.link])
            process = self._process_of(hop.link)
            track = self._track(process, record.links[hop.link], lanes[hop.link].place(hop.start_ps, end_ps))
            chunk = hop.chunk
            arguments = {**chunk._asdict(), "sequence": hop.sequence, "n_bytes": hop.n_bytes}
            name = f"{chunk.source_rank} > {chunk.target_rank}"
            yield _slice(process, track, name, hop.start_ps, end_ps, "frame", arguments)
            if hop.link in waited:
                name = f"{record.links[hop.link]} queue"
                count = {"bytes": hop.queued_bytes}
                track_of_queue = self._track(_QUEUES, name, 0)
                yield {"ph": "C", "pid": _QUEUES, "tid": track_of_queue, "name": name, "ts": _us(hop.start_ps), "args": count}
            if (hop.sequence, hop.sending) == final.get(chunk, (0, 0)):
                passed[chunk].append((hop, process, track))
        for number, sent in enumerate(record.sent):
            yield from self._flow(number, sent.chunk, sent.asked_ps, passed.get(sent.chunk, []))

    def _flow(self, number: int, chunk: Chunk, asked_ps: int, hops: list[tuple[Hop, int, int]]) -> Iterator[Event]:
        """From call to call over the links; nothing where either call is not in the record."""
        source, target = self._ends_of(chunk)
        if source is None or target is None or not hops:
            return
        common = {"cat": "chunk", "name": "chunk", "id": number}
        track, begin_ps, last_ps = source
        yield {**common, "ph": "s", "pid": _RANKS, "tid": track, "ts": _us(min(max(asked_ps, begin_ps), last_ps))}
        for hop, process, track_of_link in hops:
            yield {**common, "ph": "t", "pid": process, "tid": track_of_link, "ts": _us(hop.start_ps)}
        track, begin_ps, last_ps = target
        arrived_ps = hops[-1][0].tail_ps
        yield {**common, "ph": "f", "bp": "e", "pid": _RANKS, "tid": track, "ts": _us(min(max(arrived_ps, begin_ps), last_ps))}

    def _ends_of(self, chunk: Chunk) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
        """The slices of the calls that send a chunk and receive it."""
        to: tuple[int, ...] = chunk.communicator, chunk.operation
        by = to
        if chunk.operation < 0:  # a pair of send and receive
            to, by = (*to, chunk.target_rank, 1), (*to, chunk.source_rank)
        return self._slices.get((chunk.source_rank, to)), self._slices.get((chunk.target_rank, by))

    def _process_of(self, link: int) -> int:
        return _UP if self.record.links[link].partition("->")[0] in self.record.ends else _INNER

    # -- faults ----------------------------------------------------------------------------------

    def _marks(self) -> Iterator[Event]:
        for mark in self.record.marks:
            track = self._track(_FAULTS, mark.component, 0)
            common = {"ph": "i", "s": "g", "pid": _FAULTS, "tid": track, "ts": _us(mark.time_ps), "cat": "fault"}
            yield {**common, "name": mark.text, "args": {"component": mark.component}}

    def _track(self, process: int, name: str, lane: int) -> int:
        """The number of a track, of all processes together; it is named when it is first asked for."""
        key = process, name, lane
        if key not in self._tracks:
            self._tracks[key] = track = len(self._tracks) + 1
            shown = f"{name} ({lane + 1})" if lane else name
            self._names.append({"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": shown}})
            sort = {"sort_index": track}
            self._names.append({"ph": "M", "pid": process, "tid": track, "name": "thread_sort_index", "args": sort})
        return self._tracks[key]

    # -- one rank, as a GPU's profile ------------------------------------------------------------

    def kineto(self, rank: int) -> Iterator[Event]:
        """Calls and computation as kernels on two streams, and what launched them, joined by ``correlation``."""
        host, device = 1000 + rank, rank
        for its_rank, number, begin_ps, end_ps in self._steps():
            if its_rank == rank:
                yield _slice(host, host, f"ProfilerStep#{number}", begin_ps, end_ps, "user_annotation", {})
        kernels: list[tuple[int, int, int, str, Event, int]] = []
        for computed in self.record.computed:
            if computed.rank == rank:
                kernels.append((computed.begin_ps, computed.begin_ps, computed.end_ps, "compute", {}, _COMPUTE_STREAM))
        lanes = _Lanes()
        for call in sorted(self.record.calls, key=lambda call: (call.started_ps, call.number)):
            if call.rank == rank:
                stream = _CALL_STREAM + lanes.place(call.started_ps, call.completed_ps)
                arguments = call_arguments(call, self.members[call.communicator])
                kernels.append((call.submitted_ps, call.started_ps, call.completed_ps, kernel_name(call), arguments, stream))
        for correlation, (submitted_ps, begin_ps, end_ps, name, arguments, stream) in enumerate(sorted(kernels, key=_begin), 1):
            its = {"correlation": correlation, "stream": stream, "device": device}
            launch = {"correlation": correlation, "cbid": 211}
            yield _slice(host, host, "cudaLaunchKernel", submitted_ps, submitted_ps, "cuda_runtime", launch)
            yield _slice(device, stream, name, begin_ps, end_ps, "kernel", {**arguments, **its})


def _begin(kernel: tuple[int, int, int, str, Event, int]) -> tuple[int, int]:
    return kernel[0], kernel[1]


def _us(time_ps: int) -> float:
    return time_ps / PS_PER_US


def _slice(process: int, track: int, name: str, begin_ps: int, end_ps: int, category: str, arguments: Event) -> Event:
    return {
        "ph": "X",
        "pid": process,
        "tid": track,
        "name": name,
        "cat": category,
        "ts": _us(begin_ps),
        "dur": _us(end_ps - begin_ps),
        "args": arguments,
    }


def _write(path: Path, plain: Event) -> None:
    data = json.dumps(plain, allow_nan=False).encode()
    try:
        write_whole(path, gzip.compress(data, compresslevel=4, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror}; give a file that can be written") from None
