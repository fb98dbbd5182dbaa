"""Evaluate: a campaign under one of the drivers, over all processors of this host where it is simulated.

Cases of one fabric are played by one process, so that each prediction is made once.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import groupby
from typing import Final

from emu.diagnosis.campaign import Outcome, simulate
from emu.diagnosis.cases import Case, draw

_PIECE: Final = 24
"""Cases that a process is given at once, at most."""


def _simulate_all(cases: tuple[Case, ...]) -> list[Outcome]:
    return [simulate(case) for case in cases]


def evaluate(seeds: range, *, tell: Callable[[int], None], n_processes: int | None = None) -> list[Outcome]:
    """Play the cases of ``seeds`` under the simulating driver; ``tell`` hears how many are done.  Raises ConfigError."""
    pieces = _pieces([draw(seed) for seed in seeds])
    n_processes = min(len(pieces), n_processes or os.cpu_count() or 1)
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(n_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for done in as_completed([pool.submit(_simulate_all, piece) for piece in pieces]):
                outcomes += done.result()
                tell(len(outcomes))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()  # what they are at is not wanted any more
            raise
    return sorted(outcomes, key=lambda outcome: outcome.case.seed)


def _pieces(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    """The largest fabrics first."""
    pieces = []
    for _, its in groupby(sorted(cases, key=lambda case: str(case.fabric)), key=lambda case: case.fabric):
        of_fabric = list(its)
        pieces += [tuple(of_fabric[first : first + _PIECE]) for first in range(0, len(of_fabric), _PIECE)]
    return sorted(pieces, key=lambda piece: str(piece[0].fabric), reverse=True)
