"""Work: a call in flight, and the runtime that carries it out.

Law: a Work is complete when all its operations are; only then are arrays that were
staged written back, by the thread that waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from emu.collectives.executor import Operation
from emu.collectives.layout import Layout
from emu.collectives.reduce import Array
from emu.errors import ConfigError, EmuError
from emu.protocols.costs import EndpointCosts
from emu.protocols.legal import Reduction

if TYPE_CHECKING:
    from emu.rank import Rank


class Runtime(Protocol):
    """What a rank needs of the driver that hosts it."""

    payload: bool
    user_time: str

    @property
    def endpoint(self) -> EndpointCosts | None:
        """What the accelerators' own work costs; None: nothing."""
        ...

    def protocol(self, collective: str, algorithm: str, n_bytes: int, members: tuple[int, ...], wanted: str | None) -> str:
        """The protocol of a call: the one that is wanted, else as the fabric's endpoint says; "" where it has no costs.

        Raises ConfigError for one that does not go with the call.
        """
        ...

    def submit(self, rank: Rank, operations: list[Operation], cursor_ps: int, ordered: int | None) -> None:
        """Start operations at the cursor; with ``ordered`` (a communicator) not before its last ordered one completed."""
        ...

    def wait(self, rank: Rank, work: Work) -> None:
        """Block the user's thread until the work is complete; raises what ended the run."""
        ...

    def choose(
        self,
        collective: str,
        n_bytes: int,
        members: tuple[int, ...],
        root: int,
        selection: str,
        reduction: Reduction | None,
    ) -> str:
        """The algorithm that a selection, such as ``auto``, stands for, of those that can reduce so."""
        ...

    def layout(self, members: tuple[int, ...]) -> Layout:
        """How these ranks lie on the fabric."""
        ...

    def chunk_limit_bytes(self) -> int:
        """The largest chunk that is picked where the call names none."""
        ...

    def traffic_class(self, priority: int) -> int:
        """Index of the fabric's traffic class with that priority.  Raises ConfigError where there is none."""
        ...

    def scale(self) -> float:
        """Dilation; 0 when unpaced or simulated."""
        ...


class Work:
    """A call in flight.  ``wait()`` blocks, moves the rank's cursor to the completion and returns it (ps)."""

    def __init__(self, rank: Rank, operations: list[Operation], writebacks: Sequence[tuple[Array, Array]] = ()) -> None:
        self._rank = rank
        self.operations = operations
        for operation in operations:
            operation.on_complete = self
        self.writebacks = list(writebacks)
        self.event = threading.Event()
        self.pending = len(operations)
        self.completed_ns = 0
        """Wall time (monotonic) at which the driver saw the completion; 0 before.  For stopwatches that must not
        wait for a user's thread to wake."""
        self.due_ns = 0
        """Wall time at which the completion was due by the clock as it stood then; unpaced, ``completed_ns``."""
        self.waited = False
        self.submitted = True

    @property
    def done(self) -> bool:
        return self.pending == 0

    @property
    def algorithm(self) -> str | None:
        """The algorithm that was used."""
        return self.operations[0].call.algorithm if self.operations else None

    @property
    def protocol(self) -> str:
        """The protocol that was used; "" where none costs anything."""
        return self.operations[0].call.protocol if self.operations else ""

    @property
    def chunk_bytes(self) -> int | None:
        return self.operations[0].call.chunk_bytes if self.operations else None

    @property
    def completed_ps(self) -> int:
        """Model time of the completion.  Raises EmuError before it."""
        times = [operation.completed_ps for operation in self.operations]
        if any(time is None for time in times):
            raise EmuError("the call is not complete; wait() for it first")
        return max((time for time in times if time is not None), default=self._rank.now_ps)

    def wait(self) -> int:
        """Model time of the completion, ps.

        Raises CollectiveMismatch, Deadlock, PeerLost, RankLeft, Stalled; ConfigError inside the ``group()`` that starts it.
        """
        if not self.submitted:
            raise ConfigError("wait() inside group(): its sends and receives start at its end; wait after it")
        if not self.waited:
            self._rank.charge()
            self._rank.runtime.wait(self._rank, self)
            self.waited = True
            self._rank.in_flight.pop(id(self), None)
            for target, staged in self.writebacks:
                target[...] = staged.reshape(target.shape)
        return self.completed_ps
