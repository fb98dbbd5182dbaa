"""Testbed: one session that stays, and the runs that come to it, one after the other.

Law: the session is used by one thread at a time.  Runs are made in the main thread, where Ray and signals want them; a status
that finds the session in use says what is under way and asks no actor.
"""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import emu
from emu.bench.fabrics import Case
from emu.clock import utc_now, wall_ns
from emu.errors import EmuError, PeerLost, fault
from emu.host import is_stopped
from emu.session import Session
from emu.telemetry.observation import Observation
from emu.testbed.interrupt import interrupted_when
from emu.testbed.place import Place
from emu.testbed.plan import TestbedPlan
from emu.testbed.protocol import Connection, Reply
from emu.testbed.status import Plain, format_span, session_status

KEPT_RUNS: Final = 100
LOOK_S: Final = 3.0
"""How long a status waits for the actors; one that is stopped must not stop it."""
STOPPED: Final = 130
_OUTCOMES: Final = {0: "ok", 3: "wrong results", 4: "below NCCL_TESTS_MIN_BW", 5: "fidelity lost", STOPPED: "stopped"}


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that a client asked for.  ``make`` does it, in the main thread, and gives its exit code."""

    what: str
    connection: Connection
    make: Callable[[Run], int]
    doing: str = ""
    n_rows: int = 0
    started: str = field(default_factory=utc_now)
    began_ns: int = field(default_factory=wall_ns)

    @property
    def for_s(self) -> float:
        return (wall_ns() - self.began_ns) / 1e9


class Testbed:
    """What a testbed's process keeps.  ``closed`` is set when nothing is left of it but the process."""

    __test__ = False

    def __init__(self, *, plan: TestbedPlan, place: Place, case: Case, session: Session) -> None:
        self.plan = plan
        self.place = place
        self.case = case
        self.session = session
        self.ending = False
        self.closed = threading.Event()
        self._process_ids = session.process_ids()
        self._began_ns = wall_ns()
        self._in_use = threading.Lock()
        self._counting = threading.Lock()
        self._waiting: queue.SimpleQueue[Run | None] = queue.SimpleQueue()  # its put may come from a signal's handler
        self._n_pending = 0
        self._run: Run | None = None
        self._runs: list[Plain] = []
        self._n_runs = self._n_failed = 0

    # -- from any thread -------------------------------------------------------------------------

    def submit(self, run: Run, *, wait: bool) -> None:
        """Have ``run`` made; behind others only with ``wait``.  Raises EmuError when it is not its turn, or never will be."""
        if self.ending:
            raise EmuError(f"testbed {self.place.name!r} is ending")
        with self._counting:
            if self._n_pending and not wait:
                now = self._run
                doing = "about to begin a run" if now is None else f"running {now.what} for {format_span(now.for_s)}"
                raise EmuError(
                    f"testbed {self.place.name!r} is {doing}; wait for it with --wait, or see emu status {self.place.name}"
                )
            if self._n_pending:
                run.connection.send(Reply(kind="progress", text=f"waiting for {self._n_pending} other runs"))
            self._n_pending += 1
        self._waiting.put(run)

    def end(self) -> None:
        """Stop what is under way and end; :meth:`work` returns."""
        self.ending = True
        self._waiting.put(None)

    def status(self) -> Plain:
        """Everything, as plain data; ``session`` is None while it is in use or does not answer."""
        run, topology = self._run, self.session.topology
        options = self.plan.options
        asked = self._look()
        return {
            "name": self.place.name,
            "state": "ending" if self.ending else "idle" if run is None else "busy",
            "emu": emu.__version__,
            "pid": os.getpid(),
            "fabric": " ".join((self.case.name, *(f"{key}={value}" for key, value in options.settings))),
            "n_ranks": topology.n_ranks,
            "n_actors": len(set(self._process_ids.values())),
            "dead": sorted(self.session.lost),
            "stopped": self._stopped(),
            "up_s": (wall_ns() - self._began_ns) / 1e9,
            "ttl_s": self.plan.ttl_s,
            "faults": [str(record) for record in self.session.faults() if not record.is_cleared],
            "metrics": list(self.session.metrics_endpoints()),
            "log": str(self.place.log),
            "plan": self.plan.as_plain(),
            "now": None if run is None else {"what": run.what, "for_s": run.for_s, "n_rows": run.n_rows, "doing": run.doing},
            "n_runs": self._n_runs,
            "n_failed": self._n_failed,
            "runs": list(self._runs),
            "session": asked,
        }

    def _stopped(self) -> list[str]:
        """Nodes whose process is stopped, as far as this host can tell."""
        here = self.plan.options.address is None
        return sorted(name for name, process_id in self._process_ids.items() if here and is_stopped(process_id))

    def _look(self) -> Plain | None:
        """What the actors say, if they are at rest and answer."""
        found: list[Plain] = []

        def look() -> None:
            if self._in_use.acquire(blocking=False):
                try:
                    found.append(session_status(self.session, self._process_ids))
                except PeerLost:  # died just now, and is known to be dead from here on
                    found.append(session_status(self.session, self._process_ids))
                finally:
                    self._in_use.release()

        looking = threading.Thread(target=look, name="emu-look", daemon=True)
        looking.start()
        looking.join(LOOK_S)
        return found[0] if found else None

    def observe(self) -> Observation:
        """What a monitoring system sees of the last row of the last run, or of what is under way."""
        return self.session.observe()

    # -- in the main thread ----------------------------------------------------------------------

    def work(self) -> None:
        """Make runs as they come, until the end, or for want of any within the time to live."""
        while not self.ending:
            try:
                run = self._waiting.get(timeout=self.plan.ttl_s)
            except queue.Empty:
                return
            if run is not None:
                self._make(run)

    def close(self) -> None:
        """End the session and give up the name."""
        self.ending = True
        while not self._waiting.empty():
            run = self._waiting.get()
            if run is not None:
                run.connection.end(exit_code=1, text=f"testbed {self.place.name!r} is ending")
        self.session.close()
        self.place.remove()
        self.closed.set()

    def _make(self, run: Run) -> None:
        exit_code, text = STOPPED, ""
        gone = run.connection.stopped()  # while it waited
        run.started, run.began_ns = utc_now(), wall_ns()
        self._run = run
        try:
            with interrupted_when(lambda: self.ending or run.connection.stopped()), self._in_use:
                exit_code = STOPPED if gone else run.make(run)
        except KeyboardInterrupt:
            text = f"testbed {self.place.name!r} is ending" if self.ending else ""
        except (EmuError, OSError) as error:
            exit_code, text = getattr(error, "exit_code", 1), str(error)
        except Exception as error:
            traceback.print_exc()
            exit_code, text = 1, f"the run failed in the testbed: {fault(error)}; see {self.place.log}"
        if not gone:
            self._note(run, exit_code, text)
        with self._counting:
            self._n_pending -= 1
            self._run = None
        run.connection.end(exit_code=exit_code, text=text)

    def _note(self, run: Run, exit_code: int, text: str) -> None:
        self._n_runs += 1
        self._n_failed += exit_code not in (0, STOPPED)
        self._runs.append(
            {
                "number": self._n_runs,
                "what": run.what,
                "started": run.started,
                "wall_s": run.for_s,
                "n_rows": run.n_rows,
                "exit_code": exit_code,
                "outcome": text or _OUTCOMES.get(exit_code, f"exit code {exit_code}"),
            }
        )
        del self._runs[:-KEPT_RUNS]
