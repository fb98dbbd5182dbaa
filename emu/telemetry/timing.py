"""Timing: one rank's call, as a profiler on its accelerator sees it: when it was made, when it began, when it was complete.

Nothing else than times and what was called; why it took so long is for others to find out.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from emu.collectives.executor import Operation
from emu.telemetry.calls import size_bytes

MOST_TIMINGS: Final = 4096
"""That an actor keeps, the last ones."""


class Timing(NamedTuple):
    """``number`` counts the calls of a communicator of ``n_ranks``; pairs of send and receive have negative ones.  ``size_bytes``
    as nccl-tests counts.  ``computed_ps``: what the rank has computed so far in its run.  ``late_ns``: how late its host saw
    the end."""

    rank: int
    communicator: int
    n_ranks: int
    number: int
    collective: str
    algorithm: str
    root: int
    channels: int
    chunk_bytes: int
    protocol: str
    size_bytes: int
    submitted_ps: int
    started_ps: int
    completed_ps: int
    computed_ps: int
    late_ns: int

    @staticmethod
    def of(rank: int, operation: Operation, *, computed_ps: int, late_ns: int) -> Timing:
        """Of a call that is complete."""
        call, started_ps, completed_ps = operation.call, operation.started_ps, operation.completed_ps
        assert started_ps is not None and completed_ps is not None
        return Timing(
            rank=rank,
            communicator=operation.communicator,
            n_ranks=len(operation.members),
            number=operation.number,
            collective=call.collective,
            algorithm=call.algorithm,
            root=call.root or 0,
            channels=call.channels,
            chunk_bytes=call.chunk_bytes,
            protocol=call.protocol,
            size_bytes=size_bytes(operation),
            submitted_ps=operation.submitted_ps,
            started_ps=started_ps,
            completed_ps=completed_ps,
            computed_ps=computed_ps,
            late_ns=late_ns,
        )


def known_ps(timings: deque[Timing]) -> int:
    """From when on each call has its timing: 0 until there were more of them than are kept."""
    return timings[0].completed_ps if len(timings) == timings.maxlen else 0
