"""Campaign: plays cases in sessions, and notes what was wrong, what it cost, and what the diagnosis said, iteration by iteration.

What is injected is known here alone: the diagnosis gets the session's observation and nothing else.  What a fault costs is
measured in model time: a run with two faults is simulated again with each of them alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any, Final

import numpy as np

from emu.diagnosis.cases import CONFIGURED, ENDING, FABRICS, HOSTS, Case, Fabric, Planned
from emu.diagnosis.diagnose import diagnose
from emu.diagnosis.finding import Cause, Finding
from emu.diagnosis.steps import runs_ps, spans_ps
from emu.errors import ConfigError, EmuError
from emu.keyed import mix
from emu.session import Session
from emu.telemetry.observation import Observation
from emu.topologies.fabric_file import load
from emu.topologies.graph import Topology
from emu.topologies.routing import with_seed
from emu.units import format_bytes

N_CALLS: Final = 2
"""In each iteration."""
JITTER_SHARE: Final = 0.02
"""Computation varies by so much, up and down."""
JITTER_OF_LATENCY: Final = 10
"""The links' delays by up to a tenth of the smallest latency."""
MOST_TRIES: Final = 20


class NoPlace(ConfigError):
    """A fabric has nothing that a fault of the case could hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A fault that was there.  ``cost``: of a step, how much longer they took; iterations and model time from its onset until
    the diagnosis had any finding, and until it had this one; None: never."""

    cause: Cause
    component: str
    severity: float
    cost: float
    detected: tuple[int, int] | None
    localised: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run, and what was said of it at its end."""

    case: Case
    truths: tuple[Truth, ...]
    findings: tuple[Finding, ...]

    def has(self, truth: Truth) -> bool:
        """Whether the end's findings have it, cause and component."""
        return any(finding.cause is truth.cause and finding.component == truth.component for finding in self.findings)


def iteration(rank: Any, case: Case, algorithm: str, compute_ps: int, number: int, odd: int) -> int:
    """What each rank does: computes and calls, twice.  ``odd``: the rank that calls for something else, -1 is none."""
    n = rank.world_size
    for call in range(N_CALLS):
        if compute_ps:
            varies = (mix(case.seed, rank.index, number, call) % 2001 - 1000) / 1000 * JITTER_SHARE if case.has_jitter else 0.0
            rank.compute(round(compute_ps * (1 + varies)))
        n_bytes = case.size_bytes // 2 if rank.index == odd else case.size_bytes
        whole, part = _buffer(rank, n_bytes), _buffer(rank, n_bytes // n)
        if case.collective == "all_reduce":
            rank.comm.all_reduce(whole, algorithm=algorithm)
        elif case.collective == "all_gather":
            rank.comm.all_gather(part, _buffer(rank, n_bytes // n * n), algorithm=algorithm)
        elif case.collective == "reduce_scatter":
            rank.comm.reduce_scatter(_buffer(rank, n_bytes // n * n), part, algorithm=algorithm)
        else:
            rank.comm.alltoall(_buffer(rank, n_bytes // n * n), _buffer(rank, n_bytes // n * n), algorithm=algorithm)
    return int(rank.now_ps)


def _buffer(rank: Any, n_bytes: int) -> Any:
    if rank.payload:
        return np.zeros(n_bytes // 4, dtype=np.float32)
    return np.broadcast_to(np.zeros(1, dtype=np.float32), (n_bytes // 4,))


def topology_of(fabric: Fabric, *, shuffled: int | None = None) -> Topology:
    """The fabric, its ranks in an order by chance where a seed is given."""
    topology = load(fabric.name, dict(fabric.settings)).topology
    if shuffled is None:
        return topology
    ranks = list(topology.ranks)
    random.Random(shuffled).shuffle(ranks)
    return replace(topology, ranks=tuple(ranks))


def jitter(topology: Topology) -> tuple[str, ...]:
    """Delays of all links that vary a little."""
    least_ps = min(link.latency_ps for link in topology.links)
    return (f"*=jitter,distribution=uniform,bound={least_ps // JITTER_OF_LATENCY}ps",)


Disturb = Callable[[Planned, Session], str]
"""Does to the host what a case wants, and says what should be named."""


def play(case: Case, session: Session, disturb: Disturb | None = None) -> Outcome:
    """Play a case in a session of its fabric, which is left as it was, unless the case kills a rank."""
    truths, findings = _play(case, session, disturb)
    if len(case.faults) > 1:
        alone = [simulate(replace(case, faults=(fault,))).truths[0].cost for fault in case.faults]
        truths = tuple(replace(truth, cost=cost) for truth, cost in zip(truths, alone, strict=True))
    return Outcome(case=case, truths=truths, findings=findings)


class _Watched:
    """When a fault was first seen, and first named."""

    def __init__(self, planned: Planned, component: str) -> None:
        self.planned = planned
        self.component = component
        self.detected: tuple[int, int] | None = None
        self.localised: tuple[int, int] | None = None

    def look(self, findings: tuple[Finding, ...], n_iterations: int, time_ps: int) -> None:
        named = any(one.cause is self.planned.cause and one.component == self.component for one in findings)
        if findings and self.detected is None:
            self.detected = n_iterations, time_ps
        if named and self.localised is None:
            self.localised = n_iterations, time_ps

    def truth(self, cost: float) -> Truth:
        return Truth(
            cause=self.planned.cause,
            component=self.component,
            severity=self.planned.severity,
            cost=cost,
            detected=self.detected,
            localised=self.localised,
        )


def _play(case: Case, session: Session, disturb: Disturb | None) -> tuple[tuple[Truth, ...], tuple[Finding, ...]]:
    session.begin(seed=case.seed)
    session.run(iteration, case, case.algorithm, 0, 0, -1)
    (probe_ps,) = spans_ps(session.observe().timings)
    session.begin()
    compute_ps = round(probe_ps / N_CALLS * case.compute_share)
    watched: list[_Watched] = []
    findings: tuple[Finding, ...] = ()
    odd = -1
    try:
        for number in range(case.n_iterations):
            if number == case.onset:
                seen = session.observe()
                step_ps = sum(spans_ps(seen.timings)) // number
                for planned in case.faults:
                    if planned.cause in HOSTS and disturb is not None:
                        component = disturb(planned, session)
                    else:
                        taken = {one.component for one in watched}
                        component, odd = _inject(session, planned, case, seen, step_ps, compute_ps, taken)
                    watched.append(_Watched(planned, component))
            try:
                session.run(iteration, case, case.algorithm, compute_ps, number, odd)
            except EmuError:
                if not any(planned.cause in ENDING for planned in case.faults):
                    raise
            seen = session.observe()
            findings = diagnose(seen)
            took_ps = spans_ps(seen.timings)
            for one in watched:
                one.look(findings, number + 1 - case.onset, sum(took_ps[case.onset :]))
            if seen.failure is not None:
                break
    finally:
        with suppress(ConfigError):  # nothing to clear
            session.clear_faults()
    cost = 1.0
    if seen.failure is None and not any(planned.cause in CONFIGURED | HOSTS for planned in case.faults):
        cost = fmean(took_ps[case.onset :]) / fmean(took_ps[: case.onset]) - 1
    return tuple(one.truth(cost) for one in watched), findings


def _inject(
    session: Session, planned: Planned, case: Case, seen: Observation, step_ps: int, compute_ps: int, taken: set[str]
) -> tuple[str, int]:
    """Have it take effect; the component that the diagnosis should name, and who calls for something else."""
    if planned.cause in CONFIGURED:
        return f"{case.collective} of {format_bytes(case.size_bytes)}", -1
    chance = random.Random(planned.place)
    topology = with_seed(session.topology, case.seed)
    failure: ConfigError | None = None
    for _ in range(MOST_TRIES):
        component, texts, odd = _texts(topology, planned, seen, step_ps, compute_ps, chance)
        if not component or component in taken:
            continue
        try:
            for text in texts:
                session.add_fault(text)
        except ConfigError as error:  # the fabric's switching does not go with it
            failure = error
            continue
        return component, odd
    raise NoPlace(f"case {case.seed}: no place for {planned.cause} on {case.fabric}: {failure}")


def _texts(
    topology: Topology, planned: Planned, seen: Observation, step_ps: int, compute_ps: int, chance: random.Random
) -> tuple[str, tuple[str, ...], int]:
    """(component, faults as users write them, the odd rank); no component where what was drawn is not this fault."""
    cause, severity = planned.cause, planned.severity
    (_, ended_ps), (begun_ps, now_ps) = runs_ps(seen.timings)[-2:]
    now_ps += begun_ps - ended_ps  # the fabric comes to rest before the next run begins
    used = [link for link in seen.links if link.counted is not None and link.counted.payload_bytes]
    link = chance.choice(used)
    rank = chance.choice(seen.ranks)
    on_rank = f"rank {rank.rank} ({rank.node})"
    match cause:
        case Cause.SLOW_LINK:
            return link.name, (f"{link.name}=slow,factor={severity}",), -1
        case Cause.LONG_LINK:
            return link.name, (f"{link.name}=longer,added={round(link.latency_ps * severity)}ps",), -1
        case Cause.LOSSY_LINK:
            return link.name, (f"{link.name}=lossy,probability={severity},timeout=20us",), -1
        case Cause.FLAPPING_LINK:
            return link.name, (f"{link.name}=flapping,period={max(step_ps // 4, 2_000_000)}ps,duty={severity}",), -1
        case Cause.LINK_DOWN:
            at_ps = now_ps + compute_ps + round((step_ps / N_CALLS - compute_ps) * 0.3)
            return link.name, (f"{link.name}=down,at={at_ps}ps,for={round(step_ps * severity)}ps",), -1
        case Cause.LATE_RANK:
            return on_rank, (f"{rank.node}=late,by={round(step_ps * severity / N_CALLS)}ps",), -1
        case Cause.SLOW_COMPUTE:
            return on_rank, (f"{rank.node}=slow_compute,factor={1 + severity * step_ps / N_CALLS / compute_ps:.6f}",), -1
        case Cause.SLOW_RECEIVER:
            return on_rank, (f"{rank.node}=slow_receiver,rate={round(rank.line_rate_bps * severity / 8)}B/s",), -1
        case Cause.STOPPED_RANK:
            at_ps = now_ps + chance.randrange(step_ps)
            return on_rank, (f"{rank.node}=stopped,at={at_ps}ps,for={round(step_ps * severity)}ps",), -1
        case Cause.DEAD_RANK:
            return on_rank, (f"{rank.node}=killed,at={now_ps + chance.randrange(step_ps)}ps",), -1
        case Cause.MISMATCH:
            return on_rank, (), rank.rank
    others = [one for one in seen.ranks if one.rank != rank.rank]
    n_sources = 1 if cause is Cause.BACKGROUND else min(3, len(others))
    sources = chance.sample(others, n_sources)
    rate = f"rate={round(rank.line_rate_bps * severity / 8)}B/s,message=64KiB"
    texts = tuple(f"{source.node}->{rank.node}=background,{rate}" for source in sources)
    if cause is Cause.BACKGROUND:
        return f"{sources[0].node}->{rank.node}", texts, -1
    return _meeting_point(topology, [source.rank for source in sources], rank.rank), texts, -1


def _meeting_point(topology: Topology, sources: list[int], sink: int) -> str:
    """The link to the sink over which most comes, from several of them; empty where there is not one such."""
    users: dict[int, list[int]] = {}
    for source in sources:
        for lane in range(topology.router.spread):
            users.setdefault(topology.route(topology.ranks[source], topology.ranks[sink], lane)[-1], []).append(source)
    most = max(len(its) for its in users.values())
    ports = [port for port, its in users.items() if len(its) == most]
    return topology.links[ports[0]].name if len(ports) == 1 and len(set(users[ports[0]])) > 1 else ""


@cache
def simulated_session(fabric: Fabric) -> Session:
    """A session that is used for all cases of a fabric, so that what it has predicted is known."""
    return open_simulated(fabric)


def open_simulated(fabric: Fabric, *, shuffled: int | None = None) -> Session:
    """A session without data."""
    topology = topology_of(fabric, shuffled=shuffled)
    return Session(topology, driver="simulate", payload=False, impairments=jitter(topology) if fabric.has_jitter else ())


def simulate(case: Case) -> Outcome:
    """Play a case under the simulating driver, on the first of the fabrics where it does not go with its own."""
    try:
        return _simulate(case)
    except NoPlace:
        return _simulate(replace(case, fabric=FABRICS[0]))


def _simulate(case: Case) -> Outcome:
    if not case.is_shuffled and not any(fault.cause is Cause.DEAD_RANK for fault in case.faults):
        return play(case, simulated_session(case.fabric))
    with open_simulated(case.fabric, shuffled=case.seed if case.is_shuffled else None) as session:
        return play(case, session)
