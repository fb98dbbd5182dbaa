"""What happens when things go wrong in a real run: named, soon, and nothing left."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import emu

pytestmark = pytest.mark.slow
STAR = {"ranks": "4", "rate": "1GB/s", "latency": "100us"}


def long_run(rank: emu.Rank) -> None:
    data = np.ones(64 << 18, dtype=np.float32)
    for _ in range(1000):
        rank.comm.all_reduce(data, np.empty_like(data))


def small_run(rank: emu.Rank) -> int:
    data = np.full(1000, rank.index + 1, dtype=np.int64)
    rank.comm.all_reduce(data)
    return int(data[-1])


@pytest.mark.parametrize("victim", ["a2", "s0"])
def test_a_killed_actor_is_named_within_five_seconds_and_leaves_nothing(victim: str, nothing_left: None) -> None:
    """kill -9 during a 64 MiB all_reduce raises PeerLost with the name; then a smaller group works, or closes clean."""
    with emu.Session("star", settings=STAR, dilation=5) as session:
        pids = session.process_ids()
        killed_at: list[float] = []

        def kill() -> None:
            killed_at.append(time.monotonic())
            os.kill(pids[victim], signal.SIGKILL)

        timer = threading.Timer(1.0, kill)
        timer.start()
        with pytest.raises(emu.PeerLost, match=victim) as caught:
            session.run(long_run)
        assert time.monotonic() - killed_at[0] < 5
        assert victim in caught.value.nodes
        if victim == "s0":
            with pytest.raises(emu.PeerLost, match="s0"):
                session.run(small_run)
        else:
            assert session.ranks == (0, 1, 3)
            assert session.run(small_run) == [6, 6, 6]


def failing(rank: emu.Rank) -> None:
    if rank.index == 2:
        raise ValueError("a bad day")
    rank.comm.barrier()


def mismatched(rank: emu.Rank) -> None:
    if rank.index == 2:
        rank.comm.all_gather(np.zeros(59205, dtype=np.int8), np.zeros(4 * 59205, dtype=np.int8))
    else:
        rank.comm.all_reduce(np.zeros(9984, dtype=np.float32))


def sizes_differ(rank: emu.Rank) -> None:
    data = np.ones(409600 if rank.index == 0 else 409598, dtype=np.float32)
    rank.comm.all_reduce(data)


def send_send(rank: emu.Rank) -> None:
    if rank.index < 2:
        data = np.zeros(64 << 20, dtype=np.uint8)
        rank.comm.send(data, 1 - rank.index)
        rank.comm.recv(data, 1 - rank.index)


def leaves_early(rank: emu.Rank) -> None:
    for _ in range(3 if rank.index == 1 else 9):
        rank.comm.all_reduce(np.ones(10, dtype=np.float32))


def test_mistakes_are_named_on_every_rank_and_the_session_goes_on(nothing_left: None) -> None:
    """Each mistake raises soon, naming the odd rank and both sides; afterwards the same session runs."""
    with emu.Session("star", settings=STAR, dilation=5) as session:
        for function, error, words in (
            (failing, emu.RankFailed, ["rank 2", "ValueError: a bad day", "Traceback"]),
            (mismatched, emu.CollectiveMismatch, ["rank 2", "all_gather of 59205 int8", "all_reduce of 9984 float32"]),
            (sizes_differ, emu.CollectiveMismatch, ["rank 0", "409600", "409598"]),
            (send_send, emu.Deadlock, ["0 -> 1 -> 0"]),
            (leaves_early, emu.RankLeft, ["rank 1 has left the group after op 3"]),
        ):
            started = time.monotonic()
            with pytest.raises(error) as caught:
                session.run(function)
            assert time.monotonic() - started < 6, function
            for word in words:
                assert word in str(caught.value), function
            assert session.run(small_run) == [10, 10, 10, 10]


def test_two_sessions_at_once_do_not_meet(nothing_left: None) -> None:
    """Two sessions in two processes run side by side and both give the right answer."""
    import subprocess
    import sys

    program = (
        "import emu, sys; sys.path.insert(0, sys.argv[1]); from test_failures import small_run, STAR\n"
        "with emu.Session('star', settings=STAR, dilation=5) as s: print(s.run(small_run))"
    )
    here = os.path.dirname(__file__)
    runs = [
        subprocess.Popen([sys.executable, "-c", program, here], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert out.strip() == "[10, 10, 10, 10]", err


def test_ctrl_c_ends_everything(nothing_left: None) -> None:
    """SIGINT in the middle of a run ends actors, sockets and files, and the process with 130 or KeyboardInterrupt."""
    import subprocess
    import sys

    program = (
        "import emu, sys; sys.path.insert(0, sys.argv[1]); from test_failures import long_run, STAR\n"
        "with emu.Session('star', settings=STAR, dilation=5) as s:\n"
        "    print('up', flush=True); s.run(long_run)"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program, os.path.dirname(__file__)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdout.readline().strip() == "up"
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode != 0 and "KeyboardInterrupt" in err


def returns_a_lock(rank: emu.Rank) -> object:
    return {"lock": threading.Lock()} if rank.index == 2 else np.zeros(3)


def test_a_result_that_cannot_be_sent_is_named_by_rank() -> None:
    """The rank, the type and what may be returned are told in one line, and the session goes on."""
    with emu.Session("star", settings=STAR, dilation=5) as session:
        with pytest.raises(emu.EmuError, match=r"what rank 2 returned \(dict\) cannot be sent back: .*lock.*; return") as caught:
            session.run(returns_a_lock)
        assert "\n" not in str(caught.value)
        assert session.run(small_run) == [10, 10, 10, 10]
