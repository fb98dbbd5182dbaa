"""Simulate: virtual time, one process, no sockets, no Ray.

Law: one engine holds the whole fabric; the calendar is advanced only while no
rank's user code runs, so the clock jumps from event to event and never past a
call that is still to come.  A watch looks at wall time, to end what does not end by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from emu.drivers.command import Command
from emu.drivers.engine import Engine, ImpairmentTable
from emu.drivers.explain import OUT_OF_TIME, explain, unreceived
from emu.drivers.packet_engine import PacketEngine
from emu.drivers.runtime import Runtime
from emu.errors import ConfigError, EmuError
from emu.faults.spec import Injection
from emu.rank import Rank
from emu.telemetry.calls import Calls
from emu.topologies.graph import Topology
from emu.units import FOREVER_PS

DEFAULT_TIMEOUT_S: Final = 30.0
COMMAND_LOOK_S: Final = 0.001


class Simulation:
    """A fabric under virtual time.  ``run`` gives the functions' results by rank."""

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int,
        impairments: ImpairmentTable,
        payload: bool,
        choose_algorithm: Callable[..., str],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        faults: Sequence[Injection] = (),
        calls: Calls | None = None,
    ) -> None:
        """``timeout_s``: of wall time in which events are handled and nothing comes of it."""
        self.topology = topology
        self.engine: Engine = (
            Engine(topology, seed=seed, impairments=impairments, payload=payload)
            if topology.switching is None
            else PacketEngine(topology, seed=seed, impairments=impairments, payload=payload)
        )
        for fault in faults:
            self.engine.injector.inject(fault, 0)
        self._commands_open = threading.Lock()
        self._is_running = False
        self._timeout_s = timeout_s
        self._seen: int | None = None
        self._is_due = False
        self._ready = threading.Semaphore(0)
        self.runtime = Runtime(
            self.engine,
            payload=payload,
            user_time="declared",
            wake=self._ready.release,
            choose_algorithm=choose_algorithm,
            calls=calls,
        )

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], ranks: list[Rank]) -> dict[int, Any]:
        """Run ``function(rank, *args)`` on every rank to its end, and then what is still under way, which nobody waits for.

        So the fabric is at rest at ``engine.now_ps``, before which the next run must not start.
        Raises what went wrong, after all have stopped; of several failures at one time that of the lowest rank.
        """
        with self._commands_open:
            self._is_running = True
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over, self._timeout_s), name="emu-watch", daemon=True).start()
        try:
            return self._run(function, args, ranks)
        finally:
            over.set()
            with self._commands_open:
                self._is_running = False
                self.runtime.take_inbox()

    def command(self, action: Callable[[], None]) -> None:
        """Have ``action`` called between two events, and wait for that; raises what it raises.  In any thread."""
        command = Command(action)
        with self._commands_open:
            if not self._is_running:
                action()
                return
            self.runtime.inbox.append(command)
        self._ready.release()
        while not command.done.wait(COMMAND_LOOK_S):
            self.engine.interrupted = True  # it may have been just about to go on
        command.check()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], ranks: list[Rank]) -> dict[int, Any]:
        runtime = self.runtime
        runtime.admit(ranks)
        runtime.launch(function, args)
        try:
            while not self._all_returned():
                runtime.take_inbox()
                error = self._trouble()
                if error is not None:
                    runtime.fail(error)
                else:
                    self._advance()
        except BaseException as error:
            runtime.fail(error)
            raise
        failure = runtime.failed
        if failure is None:
            while self.engine.next_wakeup() is not None and self._trouble(over=True) is None:
                self._advance()  # what is still under way, which nobody waits for
            failure = self._trouble(over=True) or unreceived(runtime.leftovers())
        if failure is not None:
            raise failure
        return runtime.results()

    def _advance(self) -> None:
        """Handle events until user code may go on, nothing is left, or the watch looks; raises when that sees no progress."""
        self.engine.run(FOREVER_PS)
        if not self._is_due:
            return
        self._is_due = False
        progress = self.engine.progress()
        if progress == self._seen:
            error = explain(self.runtime.states(), timeout_s=self._timeout_s)
            raise type(error)(f"{error}{self.engine.held_back()}")
        self._seen = progress

    def _watch(self, over: threading.Event, timeout_s: float) -> None:
        """A thread: has the loop look at its progress once in ``timeout_s``."""
        while not over.wait(timeout_s):
            self._is_due = True
            self.engine.interrupted = True

    def _all_returned(self) -> bool:
        """Wait until no user code runs; whether all of it has returned."""
        while self.runtime.n_running:
            self._seen = None
            self._ready.acquire()
            self.runtime.take_inbox()
        return self.runtime.finished_all()

    def _trouble(self, *, over: bool = False) -> EmuError | None:
        """Why the run cannot go on once no user code runs, or why it cannot count when it is over."""
        runtime = self.runtime
        if runtime.failed is not None:
            return None
        failure: EmuError | None = runtime.first_failure() or self.engine.failure
        next_ps = self.engine.next_wakeup()
        if failure is None and next_ps is not None and next_ps > FOREVER_PS:
            return ConfigError(OUT_OF_TIME)
        if failure is None and isinstance(self.engine, PacketEngine) and (next_ps is None or self.engine.is_stuck):
            failure = self.engine.deadlock()
        if failure is None and (runtime.suspicion is not None or (not over and next_ps is None)):
            return explain(runtime.states(), hint=runtime.suspicion)
        return failure
