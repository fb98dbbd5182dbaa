"""Emulated: a campaign with real data in real time, on one testbed of each fabric that is used for all its cases.

To the faults that a simulation has come two of the host's: a process that is stopped by a signal, and a dilation that this host
cannot keep.  Cases that kill a rank have a testbed of their own.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from emu.clock import sleep_s
from emu.diagnosis.campaign import Outcome, jitter, play, topology_of
from emu.diagnosis.cases import HOSTS, SEVERITIES, Case, Fabric, Planned, draw
from emu.diagnosis.finding import Cause
from emu.session import Session

_LINKS: Final = (("rate", "100Gbit/s"), ("latency", "10us"))
_SIZES: Final = (("all_reduce", 1 << 20), ("all_gather", 1 << 20), ("alltoall", 1 << 20))
FABRICS: Final = (
    Fabric(name="star", settings=(("ranks", "8"), *_LINKS), sizes=_SIZES, has_jitter=True),
    Fabric(name="torus", settings=(("shape", "4x2"), *_LINKS), sizes=_SIZES, has_jitter=True),
    Fabric(
        name="clos",
        settings=(("leaves", "2"), ("spines", "2"), ("accelerators_per_leaf", "4"), *_LINKS),
        sizes=_SIZES,
        has_jitter=True,
    ),
)
"""Switch, torus and leaf-spine."""
CAUSES: Final = tuple(cause for cause in SEVERITIES if cause not in (Cause.ALGORITHM, Cause.RANK_ORDER))
_HOSTS: Final = sorted(HOSTS)
PER_ACTOR: Final = 4
"""Accelerators; few processes start and answer sooner."""
EVERY: Final = 8
"""One case in so many is the host's."""
LEAD_S: Final = 0.2
"""Until a process is stopped, so that the run is under way,"""
STOP_S: Final = 1.0
"""and for how long."""
HASTE: Final = 50.0
"""How many times too small a dilation is that the host cannot keep."""


def drawn(seed: int) -> Case:
    """The emulated case of a seed."""
    case = replace(draw(seed, FABRICS, CAUSES), n_iterations=4, onset=2)
    if seed % EVERY == EVERY - 1:
        cause = _HOSTS[seed // EVERY % len(_HOSTS)]
        return replace(case, faults=(Planned(cause=cause, severity=1, place=seed),))
    return case


def evaluate_emulated(seeds: range, *, tell: Callable[[int], None]) -> list[Outcome]:
    """Play the cases of ``seeds``.  Raises EmuError."""
    cases = [drawn(seed) for seed in seeds]
    outcomes: list[Outcome] = []
    for fabric in dict.fromkeys(case.fabric for case in cases):
        with _open(fabric, PER_ACTOR) as session:
            for case in cases:
                if case.fabric == fabric:
                    outcomes.append(_emulate(case, session))
                    tell(len(outcomes))
    return sorted(outcomes, key=lambda outcome: outcome.case.seed)


def _open(fabric: Fabric, per_actor: int) -> Session:
    topology = topology_of(fabric)
    return Session(topology, driver="emulate", impairments=jitter(topology), accelerators_per_actor=per_actor)


def _emulate(case: Case, session: Session) -> Outcome:
    cause = case.faults[0].cause if case.faults else None
    if cause is Cause.DEAD_RANK:
        with _open(case.fabric, 1) as its:  # who shares an actor dies with it
            return play(case, its)
    if cause is Cause.OVERLOADED:
        kept = session.dilation
        session.begin(dilation=kept / HASTE)
        try:
            return play(case, session, disturb=_disturb)
        finally:
            session.begin(dilation=kept)
    return play(case, session, disturb=_disturb)


def _disturb(planned: Planned, session: Session) -> str:
    """Stop a process as the next run begins; the component to be named.  A dilation that is too small is there already."""
    if planned.cause is Cause.OVERLOADED:
        return "host"
    process_ids = session.process_ids()
    process_id = process_ids[random.Random(planned.place).choice(sorted(process_ids))]
    threading.Thread(target=_stop_for_a_while, args=(process_id,), name="emu-stop", daemon=True).start()
    return next(node for node, its in process_ids.items() if its == process_id)


def _stop_for_a_while(process_id: int) -> None:
    sleep_s(LEAD_S)
    os.kill(process_id, signal.SIGSTOP)
    try:
        sleep_s(STOP_S)
    finally:
        os.kill(process_id, signal.SIGCONT)
