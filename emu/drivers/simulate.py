"""Simulate: virtual time, one process, no sockets, no Ray.

Law: one engine holds the whole fabric; the calendar is advanced only while no
rank's user code runs, so the clock jumps from event to event and never past a
call that is still to come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from emu.drivers.engine import FOREVER_PS, Engine, ImpairmentTable
from emu.drivers.explain import explain
from emu.drivers.runtime import Runtime
from emu.errors import EmuError
from emu.rank import Rank
from emu.topologies.graph import Topology


class Simulation:
    """A fabric under virtual time.  ``run`` gives the functions' results by rank."""

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int,
        impairments: ImpairmentTable,
        payload: bool,
        choose_algorithm: Callable[[str, int, tuple[int, ...], int], str],
    ) -> None:
        self.topology = topology
        self.engine = Engine(topology, seed=seed, impairments=impairments)
        self._ready = threading.Semaphore(0)
        self.runtime = Runtime(
            self.engine,
            payload=payload,
            user_time="declared",
            wake=self._ready.release,
            choose_algorithm=choose_algorithm,
        )

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], ranks: list[Rank]) -> dict[int, Any]:
        """Run ``function(rank, *args)`` on every rank to its end.  Raises what went wrong, after all have stopped."""
        runtime, engine = self.runtime, self.engine
        runtime.admit(ranks)
        runtime.launch(function, args)
        error: EmuError | None = None
        while True:
            while runtime.n_running:
                self._ready.acquire()
                runtime.take_inbox()
                failure = runtime.first_failure()
                if failure is not None and error is None:
                    error = failure
                    runtime.fail(error)
            if runtime.finished_all():
                break
            if error is None and (runtime.suspicion is not None or engine.next_wakeup() is None):
                error = explain(runtime.states(), hint=runtime.suspicion)
                runtime.fail(error)
                continue
            engine.run(FOREVER_PS)
        if error is not None:
            raise error
        return runtime.results()
