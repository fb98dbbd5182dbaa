"""Runtime: the ranks that one engine hosts, their user threads and their streams.

Law: only the engine's thread touches machines and this table.  User threads put
requests into ``inbox`` and block on their Work; a request is put before its thread
blocks, so once the inbox is empty a rank that is not running is truly waiting.

While a rank's user code runs it may submit at its cursor, so the engine must not
pass it: ``floor_ps`` is the smallest such cursor.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emu.clock import wall_ns
from emu.collectives.executor import Operation
from emu.collectives.layout import Layout, layout_of
from emu.drivers.engine import Engine
from emu.drivers.explain import CallState, RankState
from emu.drivers.tuning import protocol_of
from emu.errors import ConfigError, EmuError, RankFailed
from emu.fabric.frame import Frame
from emu.protocols.costs import EndpointCosts
from emu.rank import Rank, Work
from emu.telemetry.calls import Calls
from emu.telemetry.timing import MOST_TIMINGS, Timing
from emu.units import FOREVER_PS

HISTORY = 64
"""Calls per rank that are remembered, to explain mismatches after a rank has gone on."""


class _Aborted(BaseException):
    """Unwinds a user's thread after the run has failed elsewhere."""


@dataclass(slots=True)
class _Resident:
    """A hosted rank: running in user code, waiting for a Work, or returned."""

    rank: Rank
    thread: threading.Thread | None = None
    running: bool = False
    returned: bool = False
    counted_ps: int = 0
    """How much of its declared computation is in the counts."""
    floor_ps: int = FOREVER_PS
    waiting: Work | None = None
    result: Any = None
    failure: RankFailed | None = None


class Runtime:
    """Implements ``emu.rank.Runtime`` for the ranks of one engine.

    ``wake`` rouses the engine's thread; ``choose_algorithm`` resolves ``auto``; ``calls`` is where calls are counted.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        payload: bool,
        user_time: str,
        wake: Callable[[], None],
        choose_algorithm: Callable[..., str],
        dilation: float = 0.0,
        calls: Calls | None = None,
    ) -> None:
        self.engine = engine
        self.calls = Calls() if calls is None else calls
        self.timings: deque[Timing] = deque(maxlen=MOST_TIMINGS)
        self.payload = payload
        self.user_time = user_time
        self.dilation = dilation
        self.inbox: deque[Callable[[], None]] = deque()
        self._waiters: set[Work] = set()
        """What user threads block on, so that a failure frees them even when nobody takes the inbox any more."""
        self._wake = wake
        self._choose = choose_algorithm
        self.residents: dict[int, _Resident] = {}
        self.n_running = 0
        self.failed: BaseException | None = None
        self.suspicion: str | None = None
        """A mismatch that a frame showed; the session then asks all ranks and explains."""
        self._streams: dict[tuple[int, int], deque[tuple[Operation, int]]] = {}
        self._history: dict[int, dict[tuple[int, ...], CallState]] = {}
        self._open: dict[int, dict[tuple[int, ...], Operation]] = {}
        self._count: dict[tuple[int, int], int] = {}
        self._reached_ps = 0
        """How far the ranks of this run have got."""
        self.on_hand_over: Callable[[Rank, int, int], None] = lambda rank, cursor_ps, handed_ns: None
        self.due_ns: Callable[[int], int] | None = None
        """The wall time at which a model time is due, where a clock paces the run."""
        engine.on_finished = self._finished
        engine.on_mismatch = self._mismatched
        engine.on_clash = self._clashed

    # -- for user threads (emu.rank.Runtime) -----------------------------------------------------

    def submit(self, rank: Rank, operations: list[Operation], cursor_ps: int, ordered: int | None) -> None:
        self._raise_if_failed()
        self._check_current(rank)
        handed_ns = wall_ns()
        self.inbox.append(lambda: self._take(rank, operations, cursor_ps, ordered, handed_ns))
        self._wake()

    def _check_current(self, rank: Rank) -> None:
        resident = self.residents.get(rank.world_rank)
        if resident is None or resident.rank is not rank or resident.returned:
            raise EmuError(f"rank {rank.world_rank}: this run is over; a Rank works inside the function that it was given to")

    def wait(self, rank: Rank, work: Work) -> None:
        self._check_current(rank)
        cursor_ps = rank.cursor_ps
        handed_ns = wall_ns()
        self.inbox.append(lambda: self._block(rank, work, cursor_ps, handed_ns))
        self._waiters.add(work)
        self._wake()
        if self.failed is None:
            work.event.wait()
        self._waiters.discard(work)
        rank.resumed_ns = rank.accounted_ns = wall_ns()
        self._raise_if_failed()
        if work.operations:
            rank.cursor_ps = max(rank.cursor_ps, work.completed_ps)

    def choose(self, *asked: Any) -> str:
        return self._choose(*asked)

    @property
    def endpoint(self) -> EndpointCosts | None:
        return self.engine.topology.endpoint

    def protocol(self, collective: str, algorithm: str, n_bytes: int, members: tuple[int, ...], wanted: str | None) -> str:
        return protocol_of(self.engine.topology, collective, algorithm, n_bytes, members, wanted)

    def layout(self, members: tuple[int, ...]) -> Layout:
        return layout_of(self.engine.topology, members)

    def chunk_limit_bytes(self) -> int:
        return self.engine.chunk_limit_bytes

    def traffic_class(self, priority: int) -> int:
        switching = self.engine.topology.switching
        if switching is None:
            raise ConfigError(
                f"priority {priority}: this fabric has no traffic classes; leave the priority out, or use a fabric with switching"
            )
        classes = switching.classes
        found = next((index for index, traffic_class in enumerate(classes) if traffic_class.priority == priority), None)
        if found is None:
            there = ", ".join(f"{traffic_class.priority} ({traffic_class.name})" for traffic_class in classes)
            raise ConfigError(f"priority {priority}: no traffic class of this fabric has it; use one of {there}")
        return found

    def scale(self) -> float:
        return self.dilation

    def _raise_if_failed(self) -> None:
        if self.failed is not None:
            if threading.current_thread().name.startswith("emu-rank"):
                raise self.failed if isinstance(self.failed, EmuError) else _Aborted()
            raise self.failed

    # -- running functions -----------------------------------------------------------------------

    def admit(self, ranks: list[Rank]) -> None:
        """Ranks are about to run: their cursors bound how far any engine may go."""
        self.failed = None
        self.suspicion = None
        self.residents = {rank.world_rank: _Resident(rank=rank, running=True, floor_ps=rank.cursor_ps) for rank in ranks}
        self.n_running = len(ranks)
        self._reached_ps = min((rank.cursor_ps for rank in ranks), default=0)
        for aggregator in self.engine.aggregators.values():
            aggregator.forget()
        for rank in ranks:
            endpoint = self.engine.endpoints[rank.world_rank]
            endpoint.admit(rank.cursor_ps)
            rank.condition = endpoint.condition
        self._streams.clear()
        self._history = {rank.world_rank: {} for rank in ranks}
        self._open = {rank.world_rank: {} for rank in ranks}
        self._count.clear()

    def launch(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Start the function on every admitted rank, in a thread each."""
        for resident in self.residents.values():
            resident.thread = threading.Thread(
                target=self._body, args=(resident, function, args), name=f"emu-rank-{resident.rank.world_rank}", daemon=True
            )
            resident.rank.resumed_ns = resident.rank.accounted_ns = wall_ns()
            resident.thread.start()

    def _body(self, resident: _Resident, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        rank = resident.rank
        try:
            resident.result = function(rank, *args)
            for work in list(rank.in_flight.values()):
                work.wait()
            self.wait(rank, Work(rank, []))
        except _Aborted:
            pass
        except BaseException as error:
            if error is not self.failed:
                resident.failure = RankFailed(rank.world_rank, traceback.format_exc(), _picklable(error))
        self.inbox.append(lambda: self._return(resident))
        self._wake()

    def finished_all(self) -> bool:
        return all(resident.returned for resident in self.residents.values())

    def first_failure(self) -> RankFailed | None:
        return next((r.failure for r in self.residents.values() if r.failure is not None), None)

    def results(self) -> dict[int, Any]:
        return {world_rank: resident.result for world_rank, resident in self.residents.items()}

    def fail(self, error: BaseException) -> None:
        """End the run on these ranks: whoever waits, or calls next, gets ``error``."""
        if self.failed is None:
            self.failed = error
            for operation in [operation for opened in self._open.values() for operation in opened.values()]:
                self.calls.abort(operation)
        for work in list(self._waiters):
            work.event.set()
        for resident in self.residents.values():
            if resident.waiting is not None:
                resident.waiting.event.set()
                resident.waiting = None
                self._set_running(resident, resident.rank.cursor_ps)

    # -- in the engine's thread --------------------------------------------------------------------

    def take_inbox(self) -> None:
        """Handle all requests that user threads have put."""
        inbox = self.inbox
        while inbox:
            inbox.popleft()()

    @property
    def floor_ps(self) -> int:
        """The smallest cursor of a rank whose user code is running."""
        if not self.n_running:
            return FOREVER_PS
        return min(resident.floor_ps for resident in self.residents.values())

    def _set_running(self, resident: _Resident, cursor_ps: int) -> None:
        if not resident.running:
            resident.running = True
            self.n_running += 1
        resident.floor_ps = cursor_ps
        self.engine.interrupted = True

    def _set_waiting(self, resident: _Resident) -> None:
        if resident.running:
            resident.running = False
            self.n_running -= 1
        resident.floor_ps = FOREVER_PS

    def _take(self, rank: Rank, operations: list[Operation], cursor_ps: int, ordered: int | None, handed_ns: int) -> None:
        if self.failed is not None:
            return
        resident = self.residents[rank.world_rank]
        resident.floor_ps = cursor_ps
        if ordered is None or not self._streams.get((rank.world_rank, ordered)):
            self.on_hand_over(rank, cursor_ps, handed_ns)
        endpoint = self.engine.endpoints[rank.world_rank]
        for operation in operations:
            operation.port = endpoint
            operation.submitted_ps = cursor_ps
            self._remember(rank.world_rank, operation)
            if ordered is None:
                self._start_at(rank.world_rank, operation, cursor_ps)
                continue
            stream = self._streams.setdefault((rank.world_rank, ordered), deque())
            stream.append((operation, cursor_ps))
            if len(stream) == 1:
                self._start_at(rank.world_rank, operation, cursor_ps)

    def _start_at(self, world_rank: int, operation: Operation, time_ps: int) -> None:
        endpoint = self.engine.endpoints[world_rank]
        self.engine.call_at(time_ps, world_rank, lambda now_ps: endpoint.start(operation, now_ps))

    def _block(self, rank: Rank, work: Work, cursor_ps: int, handed_ns: int) -> None:
        resident = self.residents[rank.world_rank]
        if self.failed is not None:
            work.event.set()
            return
        self.on_hand_over(rank, cursor_ps, handed_ns)
        self._count_computed(resident)
        resident.waiting = work
        self._set_waiting(resident)
        if work.pending == 0:
            self._release(resident, work, cursor_ps)

    def _reach(self, time_ps: int) -> None:
        if time_ps > self._reached_ps:
            self.calls.model_ps += time_ps - self._reached_ps
            self._reached_ps = time_ps

    def _count_computed(self, resident: _Resident) -> None:
        self._reach(resident.rank.cursor_ps)
        rank, computed_ps = resident.rank.world_rank, self.calls.computed_ps
        computed_ps[rank] = computed_ps.get(rank, 0) + resident.rank.computed_ps - resident.counted_ps
        resident.counted_ps = resident.rank.computed_ps
        if self.engine.recorder is not None:
            for begin_ps, end_ps in resident.rank.stretches_ps:
                if end_ps > begin_ps:
                    self.engine.recorder.compute(rank, begin_ps, end_ps)
        resident.rank.stretches_ps.clear()

    def _finished(self, world_rank: int, operation: Operation, now_ps: int) -> None:
        self._open[world_rank].pop(operation.key, None)
        if now_ps >= self.engine.scraper.due_ps:
            self.engine.scraper.look(self.engine)
        seen_ns = wall_ns()
        due_ns = seen_ns if self.due_ns is None else self.due_ns(now_ps)
        self._reach(now_ps)
        if self.failed is None:
            late_ns, computed_ps = seen_ns - due_ns, self.residents[world_rank].rank.computed_ps
            self.calls.complete(world_rank, operation, seen_ns=seen_ns, late_ns=late_ns, dilation=self.dilation)
            self.timings.append(Timing.of(world_rank, operation, computed_ps=computed_ps, late_ns=late_ns))
        if self.engine.recorder is not None:
            self.engine.recorder.call(world_rank, operation, late_ns=seen_ns - due_ns)
        operation.trigger = operation.left_with = None
        stream = self._streams.get((world_rank, operation.communicator))
        if stream and stream[0][0] is operation:
            stream.popleft()
            if stream:
                following, cursor_ps = stream[0]
                following.behind_ps = operation.split_ps
                self._start_at(world_rank, following, max(now_ps, cursor_ps))
        work: Work = operation.on_complete
        work.pending -= 1
        if work.pending == 0:
            work.completed_ns, work.due_ns = seen_ns, due_ns
        resident = self.residents[world_rank]
        if work.pending == 0 and resident.waiting is work:
            self._release(resident, work, max(now_ps, resident.rank.cursor_ps))

    def _release(self, resident: _Resident, work: Work, time_ps: int) -> None:
        """Let the user's thread go on at ``time_ps``: its call is complete and its declared compute over."""
        if time_ps > self.engine.now_ps:
            self.engine.call_at(time_ps, resident.rank.world_rank, lambda now_ps: self._resume(resident, work, now_ps))
        else:
            self._resume(resident, work, time_ps)

    def _resume(self, resident: _Resident, work: Work, now_ps: int) -> None:
        if resident.waiting is work:
            resident.waiting = None
            self._set_running(resident, now_ps)
            work.event.set()

    def _return(self, resident: _Resident) -> None:
        resident.returned = True
        self._count_computed(resident)
        self._set_waiting(resident)
        self.engine.endpoints[resident.rank.world_rank].rest(resident.rank.cursor_ps)
        self.engine.interrupted = True

    def _mismatched(self, world_rank: int, frame: Frame, operation: Operation) -> None:
        self.suspicion = (
            f"rank {world_rank} called {operation.call} (op {operation.number}) but rank {frame.source_rank} sent it"
            " a message of another call or length"
        )
        self.engine.interrupted = True

    def _clashed(self, switch: str, frame: Frame, other: Frame) -> None:
        ranks = f"{frame.source_rank} and {other.source_rank}"
        self.suspicion = f"what ranks {ranks} sent for {switch} to combine is of different calls (op {frame.operation})"
        self.engine.interrupted = True

    # -- explaining --------------------------------------------------------------------------------

    def _remember(self, world_rank: int, operation: Operation) -> None:
        state = CallState(
            key=operation.key,
            communicator=operation.communicator,
            number=operation.number,
            members=operation.members,
            what=str(operation.call),
            name=operation.name,
            send_counts=operation.send_counts,
            receive_counts=operation.receive_counts,
            signature=operation.call.signature,
            kind=operation.call.collective,
            peer=operation.members[operation.program.peers[0]] if operation.number < 0 else None,
        )
        history = self._history[world_rank]
        history[operation.key] = state
        self._open[world_rank][operation.key] = operation
        if len(history) > HISTORY:
            for key in list(history)[: len(history) - HISTORY]:
                if key not in self._open[world_rank]:
                    del history[key]
        if operation.number >= 0:
            self._count[world_rank, operation.communicator] = operation.number + 1

    def leftovers(self) -> list[tuple[int, int, int, int]]:
        """(sender, receiver, call, bytes) of what came to hosted ranks and no call took."""
        return [
            (frame.source_rank, frame.target_rank, frame.operation, frame.message_bytes)
            for endpoint in self.engine.endpoints.values()
            for frames in endpoint.unexpected.values()
            for frame in frames
        ]

    def states(self) -> list[RankState]:
        """What each hosted rank is doing, for :func:`emu.drivers.explain.explain`."""
        found = []
        for world_rank, resident in sorted(self.residents.items()):
            history = self._history[world_rank]
            opened = self._open[world_rank]
            found.append(
                RankState(
                    world_rank=world_rank,
                    status="returned" if resident.returned else "computing" if resident.running else "waiting",
                    open_calls=tuple(history[key] for key in opened),
                    history=tuple(history.values()),
                    issued={communicator: count for (rank, communicator), count in self._count.items() if rank == world_rank},
                    waits_for=tuple(sorted({r for operation in opened.values() for r in _lacking(operation)})),
                )
            )
        return found


def _lacking(operation: Operation) -> tuple[int, ...]:
    if operation.held:
        n = len(operation.members)
        return tuple({operation.members[peer] for peer in operation.program.peers if peer < n})
    return operation.waits_for() if operation.started_ps is not None else ()


def _picklable(error: BaseException) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error
