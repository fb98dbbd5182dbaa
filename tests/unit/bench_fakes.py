"""A session that runs nothing: it says what it is told to say, so that the benchmark is tested without a driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from emu.bench.calibrate import CALIBRATION_VERSION, Calibration
from emu.bench.loop import LoopPlan, LoopResult
from emu.telemetry.congestion import CongestionReport

CALIBRATION = Calibration(
    version=CALIBRATION_VERSION,
    host="fake",
    n_cpus=2,
    measured_at="2024-01-01T00:00:00Z",
    frame_cost_ns=50_000,
    bytes_per_s=1_000_000_000,
    oversleep_p50_ns=100_000,
    oversleep_p99_ns=2_000_000,
)


@dataclass(frozen=True)
class FakeCounters:
    order_violations: int = 0
    order_weight_ps: int = 0
    transport_backpressure: int = 0
    largest_lateness_ps: int = 0
    wire_bytes_per_rank_max: int = 0
    frames: int = 100
    wire_bytes: int = 1_000_000
    congestion: CongestionReport | None = None
    stopped_s: dict[str, float] = field(default_factory=dict)


@dataclass
class FakeSession:
    """``model_ps`` per operation; ``late`` by dilation (its keys are lower bounds); ``n_wrong`` per rank."""

    n_ranks: int
    paced: bool = True
    model_ps: int = 10_000_000
    late: dict[float, float] = field(default_factory=lambda: {0.0: 0.001})
    n_wrong: int = 0
    counters_say: FakeCounters = FakeCounters()
    fails: BaseException | None = None
    begun: list[tuple[float, int]] = field(default_factory=list)
    n_closed: int = 0

    record_hops: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(self.n_ranks))

    def choose_algorithm(self, collective: str, n_bytes: int, *asked: object) -> str:
        return "ring"

    def hops(self) -> list[tuple[int, int]]:
        return []

    def begin(self, dilation: float, seed: int) -> None:
        self.begun.append((dilation, seed))

    def run(self, function: object, plan: LoopPlan) -> list[LoopResult]:
        if self.fails is not None:
            raise self.fails
        dilation = self.begun[-1][0]
        late = self.late[max(bound for bound in self.late if bound <= dilation)]
        model_ps = self.model_ps * plan.iterations
        result = LoopResult(
            wall_ns=round(model_ps * (dilation or 1) * (1 + late) / 1000),
            model_ps=model_ps,
            iteration_ps=(self.model_ps,) * plan.iterations,
            n_wrong=self.n_wrong if plan.checks else None,
            algorithm="ring",
            chunk_bytes=131072,
        )
        return [result] * self.n_ranks

    def counters(self) -> FakeCounters:
        return self.counters_say

    def close(self) -> None:
        self.n_closed += 1

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeOpener:
    """Opens fakes; ``sessions`` holds (whether it simulates, the session) in the order of opening."""

    def __init__(self, **how: object) -> None:
        self.how = how
        self.sessions: list[tuple[bool, FakeSession]] = []

    def __call__(self, case, options, *, simulate, payload):  # type: ignore[no-untyped-def]
        session = FakeSession(n_ranks=case.topology.n_ranks, **({} if simulate and not options.simulated else self.how))  # type: ignore[arg-type]
        self.sessions.append((simulate, session))
        return session

    @property
    def measured(self) -> list[FakeSession]:
        """Those that rows were measured on, without the ones that predict for the dilation."""
        return [session for simulate, session in self.sessions if not simulate]


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self.ratios: list[float | None] = []
        self.progressed: list[str] = []
        self.n_begun = 0
        self.n_ended = 0

    def progress(self, text: str) -> None:
        self.progressed.append(text)

    def begin(self, case: object, options: object) -> None:
        self.n_begun += 1

    def row(self, row: object, ratio: float | None) -> None:
        self.rows.append(row)
        self.ratios.append(ratio)

    def end(self, result: object) -> None:
        self.n_ended += 1
