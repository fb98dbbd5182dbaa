"""A testbed and its clients, in one process, on a session that runs nothing."""

from __future__ import annotations

import io
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import CALIBRATION, FakeCounters, FakeSession

from emu.bench import calibrate
from emu.bench.fabrics import prepare
from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.errors import EmuError, PeerLost
from emu.testbed import client
from emu.testbed.daemon import Listener
from emu.testbed.place import Place, claim
from emu.testbed.plan import TestbedPlan
from emu.testbed.protocol import MAX_REPLY_BYTES, Connection, Request, decode_reply
from emu.testbed.testbed import Testbed

STAR = BenchOptions(collective="all_reduce", fabrics=("star",), settings=(("ranks", "4"),), dilation=5.0)
CASE = prepare(STAR, "star", 0)


class _Counters(FakeCounters):
    links: dict[str, Any] = {}  # noqa: RUF012


class LastingSession(FakeSession):
    """A fake with what a testbed asks for besides; ``lost`` may be set, and ``gate`` holds runs up until it is opened."""

    topology = CASE.topology
    lost: tuple[str, ...] = ()
    gate: threading.Event | None = None
    entered: threading.Event

    def run(self, function: object, plan: Any) -> Any:
        if self.gate is not None:
            self.entered.set()
            while not self.gate.wait(0.01):
                pass
        return super().run(function, plan)

    def look(self) -> None: ...
    def process_ids(self) -> dict[str, int]:
        return {node.name: number for number, node in enumerate(self.topology.nodes)}

    def metrics_endpoints(self) -> tuple[str, ...]:
        return ("http://127.0.0.1:9/metrics",)

    def faults(self) -> tuple[()]:
        return ()


def beside(act: Callable[[], Any]) -> Future[Any]:
    """What ``act`` comes to, in a thread of its own."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


class Bed:
    """A testbed whose work is done here while ``play`` runs beside it."""

    def __init__(self, place: Place, session: LastingSession) -> None:
        self.place, self.session = place, session
        self.testbed = Testbed(plan=TestbedPlan(options=STAR), place=place, case=CASE, session=session)  # type: ignore[arg-type]
        self.listener = Listener(place.listen(), self.testbed)
        self.listener.start()

    def play(self, scene: Callable[[], Any]) -> Any:
        """What ``scene``, in a thread, comes to while the main thread works; afterwards the testbed has ended."""
        found = beside(scene)
        found.add_done_callback(lambda _: self.testbed.end())
        self.testbed.work()
        self.testbed.close()
        self.listener.close()
        return found.result(5)

    def bench(self, *, wait: bool = False, **options: Any) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a run."""
        out, err = io.StringIO(), io.StringIO()
        run = {"options": BenchOptions(**{"collective": "all_reduce", "begin_bytes": 8, "end_bytes": 8, **options}).as_plain()}
        exit_code = client.run(self.place, "bench", {**run, "wait": wait}, Terminal(out, err))
        return exit_code, out.getvalue(), err.getvalue()

    def status(self) -> Any:
        return client.ask(self.place, "status")


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(calibrate, "load", lambda path: CALIBRATION)
    monkeypatch.delenv("NCCL_TESTS_MIN_BW", raising=False)
    before = signal.getsignal(signal.SIGUSR1)
    yield Bed(claim("lab")[0], LastingSession(n_ranks=4, counters_say=_Counters()))
    signal.signal(signal.SIGUSR1, before)


def test_runs_share_the_session(bed: Bed) -> None:
    """Two runs print their tables on one session, which is closed once, at the end; the status counts them."""

    def scene() -> Any:
        return bed.bench(), bed.bench(end_bytes=16, step_factor=2), bed.status()

    first, second, status = bed.play(scene)
    assert (first[0], first[2]) == (second[0], second[2]) == (0, "")
    assert [line.split()[0] for line in second[1].splitlines() if not line.startswith("#")] == ["8", "16"]
    assert "# Fabric star" in first[1] and "dilation 5" in first[1]
    assert [run["outcome"] for run in status["runs"]] == ["ok", "ok"] and status["now"] is None
    assert bed.session.n_closed == 1
    assert not bed.place.directory.exists()


def test_one_run_at_a_time(bed: Bed) -> None:
    """A second client is told who is at work and how to wait; one that waits comes next; a status meanwhile says what is done."""
    bed.session.gate, bed.session.entered = threading.Event(), threading.Event()

    def scene() -> Any:
        first = beside(bed.bench)
        bed.session.entered.wait()
        status = bed.status()
        with pytest.raises(EmuError, match=r"'lab' is running bench all_reduce 8 B for .*; wait for it with --wait"):
            beside(bed.bench).result(5)
        second = beside(lambda: bed.bench(wait=True, begin_bytes=16, end_bytes=16))
        bed.session.gate.set()  # type: ignore[union-attr]
        return status, first.result(5), second.result(5)

    status, first, second = bed.play(scene)
    assert status["state"] == "busy" and status["session"] is None
    assert status["now"]["what"] == "bench all_reduce 8 B" and "dilation 5" in status["now"]["doing"]
    assert (first[0], second[0]) == (0, 0)


def test_a_client_that_hangs_up_stops_its_run(bed: Bed) -> None:
    """The run of a client that stops ends with 130 and is noted as stopped, and the testbed makes the next."""
    bed.session.gate, bed.session.entered = threading.Event(), threading.Event()

    def scene() -> Any:
        asked = {"options": BenchOptions(collective="all_reduce", begin_bytes=8, end_bytes=8).as_plain()}
        with Connection(bed.place.connect()) as connection:
            connection.send(Request(request="bench", arguments=asked))
            bed.session.entered.wait()
            connection.stop()
            replies = []
            while (line := connection.read_line(most_bytes=MAX_REPLY_BYTES, timeout_s=5)) is not None:
                replies.append(decode_reply(line))
        bed.session.gate = None
        return replies[-1], bed.bench(), bed.status()

    last, after, status = bed.play(scene)
    assert (last.kind, last.exit_code) == ("end", 130)
    assert after[0] == 0
    assert [run["outcome"] for run in status["runs"]] == ["stopped", "ok"] and status["n_failed"] == 0


def test_a_run_that_fails_is_told_and_the_next_goes_on_with_those_left(bed: Bed) -> None:
    """The client gets the error and its exit code, the status keeps it, and the next run says who is dead."""

    def scene() -> Any:
        bed.session.fails = PeerLost("the actor of a2 (ranks 2) died", ("a2",))
        with pytest.raises(EmuError, match="the actor of a2") as caught:
            bed.bench()
        bed.session.fails, bed.session.lost, bed.session.n_ranks = None, ("a2",), 3
        after = bed.bench()
        with pytest.raises(EmuError, match="-r 3: 3 ranks are left; use 0 to 2"):
            bed.bench(collective="broadcast", root=3)
        return caught.value, after, bed.status()

    error, after, status = bed.play(scene)
    assert error.exit_code == 1
    assert after[0] == 0 and after[2] == "# testbed lab: a2 dead; 3 of 4 ranks run\n"
    assert status["dead"] == ["a2"] and status["n_failed"] == 2
    assert [rank["alive"] for rank in status["session"]["ranks"]] == [True, True, False, True]


def test_what_cannot_be_answered_is_told(bed: Bed) -> None:
    """Unknown requests, arguments and options are refused by name with exit code 1 or 2; the testbed does not mind."""

    def scene() -> Any:
        refused = []
        for request, arguments in (
            ("statsu", {}),
            ("bench", {"optoins": {}}),
            ("bench", {"options": {"collective": "all_reduce", "fabric": "star"}}),
            ("bench", {"options": {"collective": "broadcast", "root": 9, "begin_bytes": 8}}),
        ):
            with pytest.raises(EmuError) as caught:
                client.run(bed.place, request, arguments, Terminal(io.StringIO(), io.StringIO()))
            refused.append((caught.value.exit_code, str(caught.value)))
        return refused, bed.status()

    refused, status = bed.play(scene)
    codes, texts = zip(*refused, strict=True)
    assert codes == (1, 2, 2, 2)
    for text, words in zip(
        texts, ("did you mean 'status'", "unknown key 'optoins'", "option 'fabric' is not known", "-r 9"), strict=False
    ):
        assert words in text
    assert status["state"] == "idle"


def test_the_clients_environment_holds_for_its_run(bed: Bed) -> None:
    """NCCL_TESTS_MIN_BW of the client, not of the testbed, is the threshold."""

    def scene() -> Any:
        options = BenchOptions(collective="all_reduce", begin_bytes=8, end_bytes=8).as_plain()
        asked = {"options": options, "environment": {"NCCL_TESTS_MIN_BW": "400", "PATH": "/none"}}
        return client.run(bed.place, "bench", asked, Terminal(io.StringIO(), io.StringIO())), bed.bench()[0]

    assert bed.play(scene) == (4, 0)


def test_down_is_answered_when_nothing_is_left(bed: Bed) -> None:
    """The answer to down comes after the session is closed and the directory gone; then nobody listens."""

    def scene() -> Any:
        client.ask(bed.place, "down")
        return bed.session.n_closed, bed.place.directory.exists()

    assert bed.play(scene) == (1, False)


def test_it_ends_by_itself_after_its_time(bed: Bed) -> None:
    """Without a run for the time to live, the work is over."""
    object.__setattr__(bed.testbed.plan, "ttl_s", 0.001)
    bed.testbed.work()
    bed.testbed.close()
    bed.listener.close()
    with pytest.raises(OSError):
        bed.place.connect()


def test_a_silent_client_holds_nobody_up(bed: Bed) -> None:
    """A client that connects and says nothing, or goes, keeps no other from being answered."""

    def scene() -> Any:
        silent: socket.socket = bed.place.connect()
        bed.place.connect().close()
        with silent:
            return bed.status()["name"]

    assert bed.play(scene) == "lab"
