"""Controls, policies and routers of a user's that break their law under load: a run ends with a line that names them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np
import pytest

from emu import Session
from emu.balancing.adaptive import Adaptive
from emu.balancing.base import Parameters as PolicyParameters
from emu.balancing.base import Place, View
from emu.congestion.base import FOREVER_PS, Line, Parameters
from emu.congestion.none import Uncontrolled
from emu.drivers import packet_engine
from emu.drivers.packet_engine import PacketEngine
from emu.errors import ConfigError, Stalled
from emu.rank import Rank
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

HERE = __name__
SIZE = 256 << 10


class Acknowledged(Uncontrolled):
    acknowledges = True


class Counting(Acknowledged):
    """Eight packets, then what a subclass says."""

    n_sent = 0

    def sent(self, now_ps: int, n_bytes: int) -> None:
        self.n_sent += 1


class Never(Counting):
    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps if self.n_sent < 8 else FOREVER_PS


class TooLate(Counting):
    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps if self.n_sent < 8 else FOREVER_PS // 2


class Window(Uncontrolled):
    """Forgets to be acknowledged."""

    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps if outstanding_bytes + n_bytes <= 100_000 else FOREVER_PS


def never(line: Line, parameters: Parameters) -> tuple[Uncontrolled, Uncontrolled]:
    return Never(line), Acknowledged(line)


def too_late(line: Line, parameters: Parameters) -> tuple[Uncontrolled, Uncontrolled]:
    return TooLate(line), Acknowledged(line)


def window(line: Line, parameters: Parameters) -> tuple[Uncontrolled, Uncontrolled]:
    return Window(line), Window(line)


class WrongUnderLoad(Adaptive):
    """Goes astray as soon as something waits."""

    lane = 0

    def choose(
        self,
        candidates: Sequence[int],
        *,
        source_rank: int,
        target_rank: int,
        flow: int,
        sequence: int,
        lane: int,
        view: View,
        now_ps: int,
    ) -> tuple[int, int]:
        if view.depth_bytes(candidates[0]) == 0:
            return candidates[0], lane
        return (candidates[0], self.lane) if self.lane else (10_000, lane)


class WrongLane(WrongUnderLoad):
    lane = 3


def wrong_link(place: Place, parameters: PolicyParameters) -> WrongUnderLoad:
    return WrongUnderLoad(place)


def wrong_lane(place: Place, parameters: PolicyParameters) -> WrongUnderLoad:
    return WrongLane(place)


@dataclass(frozen=True)
class Alternating:
    """On a ring of four: clockwise from even nodes, the other way round from odd ones."""

    spread: int = 1

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        names = [link.name for link in topology.links]
        step = 1 if source % 2 == 0 else -1
        places = [(source + step * hop) % 4 for hop in range((target - source) * step % 4 + 1)]
        return tuple(names.index(f"a{here}->a{there}") for here, there in pairwise(places))


def incast(rank: Rank) -> None:
    """All send to rank 0."""
    if rank.index:
        rank.comm.send(np.zeros(SIZE, np.uint8), 0)
        return
    buffers = [np.zeros(SIZE, np.uint8) for _ in range(rank.world_size - 1)]
    with rank.comm.group():
        for number, buffer in enumerate(buffers, 1):
            rank.comm.recv(buffer, number)


def star(**settings: str) -> Topology:
    return load_fabric("star", {"ranks": "4", "rate": "400Gbit/s", "latency": "2us", **settings})


def ended(kind: type[Exception], topology: Topology, timeout_s: float = 30.0) -> str:
    """The line with which an incast ends."""
    with pytest.raises(kind) as caught, Session(topology, driver="simulate", timeout_s=timeout_s) as opened:
        opened.run(incast)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("discipline", ["drop", "pause"])
def test_a_control_that_never_wakes_is_named(discipline: str) -> None:
    """With and without retransmission timers the run ends at once, with the control and its way."""
    text = ended(ConfigError, star(discipline=discipline, congestion_control=f"{HERE}:never"))
    assert f"congestion control {HERE}:never of a" in text and "->a0 says never with 0 B outstanding" in text


@pytest.mark.parametrize("discipline", ["drop", "pause"])
def test_a_window_without_acknowledgements_is_named(discipline: str) -> None:
    """It would crawl from timeout to timeout, or stop for good."""
    text = ended(ConfigError, star(discipline=discipline, congestion_control=f"{HERE}:window"))
    assert f"{HERE}:window of a" in text and "its receiver does not acknowledge" in text


def test_a_queue_pair_gives_up_after_64_timeouts() -> None:
    """Timers would go on for weeks of model time; the line names the ranks and who holds data back."""
    text = ended(Stalled, star(discipline="drop", congestion_control=f"{HERE}:too_late"))
    assert text.startswith("rank 1 gives up on rank 0: 64 timeouts of 1 ms in a row")
    assert f"congestion control lets nothing go: {HERE}:too_late of a1->a0" in text


def test_a_run_from_which_nothing_comes_ends_by_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps it going, after the timeout the message names who holds data back."""
    monkeypatch.setattr(packet_engine, "MOST_SILENT_TIMEOUTS", 1 << 60)
    begin_s = time.monotonic()
    text = ended(Stalled, star(discipline="drop", congestion_control=f"{HERE}:too_late"), timeout_s=0.1)
    assert time.monotonic() - begin_s < 5
    assert text.startswith("no progress for 0.1 s: rank 0 waits in")
    assert f"congestion control lets nothing go: {HERE}:too_late of a1->a0" in text


def test_looking_does_not_change_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the watch looks, the ranks' times are what they are without it."""

    def timed(timeout_s: float) -> list[int]:
        with Session(star(discipline="drop"), driver="simulate", timeout_s=timeout_s) as opened:
            opened.run(incast)
            return [int(now_ps) for now_ps in opened.run(lambda rank: rank.now_ps)]

    growing = count()
    monkeypatch.setattr(PacketEngine, "progress", lambda engine: next(growing))
    assert timed(0.0005) == timed(1000.0)
    assert next(growing) > 0, "it has not looked"


@pytest.mark.parametrize(
    ("policy", "message"),
    [("wrong_link", "chose link 10000, which does not leave it"), ("wrong_lane", "chose lane 3; use 0 to 0")],
)
def test_a_policy_that_goes_astray_is_named(policy: str, message: str) -> None:
    """What it chose and where, although it is right as long as nothing waits."""
    text = ended(ConfigError, star(discipline="drop", balancing=f"{HERE}:{policy}"))
    assert text.startswith(f"balancing '{HERE}:{policy}' at ") and message in text


def test_a_router_whose_ways_disagree_is_refused() -> None:
    """Packets would go round for ever."""
    topology = load_fabric("ring", {"ranks": "4", "rate": "400Gbit/s", "latency": "2us", "discipline": "drop"})
    text = ended(ConfigError, replace(topology, router=Alternating()))
    assert "round in a circle" in text


def test_auto_does_not_take_a_faulty_fabric_for_an_algorithm_that_declines() -> None:
    """Choosing an algorithm on a fabric whose control never wakes names the control, and no other algorithm is taken."""
    fabric = star(discipline="pause", congestion_control=f"{HERE}:never")
    with Session(fabric, driver="simulate", payload=False) as session, pytest.raises(ConfigError, match="says never"):
        session.choose_algorithm("all_reduce", 1 << 20, 0)
