"""The parts of testbeds that stay: what travels, who owns a name, what is alike, and what a run may not change."""

import dataclasses
import io
import json
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.bench.options import BenchOptions
from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.testbed import commands
from emu.testbed import place as places
from emu.testbed.groups import MOST_OUTLIER_SHARE, MOST_OUTLIERS, grouped
from emu.testbed.place import Place, Process, claim, find, sweep_dead
from emu.testbed.plan import FIXED, TestbedPlan, run_options
from emu.testbed.protocol import Connection, ProtocolError, Reply, Request, decode_reply, decode_request, encode
from emu.testbed.status import HEADINGS, cells, format_span, lines, table

STAR = BenchOptions(collective="all_reduce", fabrics=("star",), settings=(("ranks", "4"),), dilation=5.0, seed=3)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for testbeds, far too deep for the path of a socket."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setattr(places, "sweep", lambda: None)
    return deep / "emu" / "testbeds"


def killed(name: str) -> Place:
    """What is left of a testbed whose process was killed."""
    left, _ = claim(name)
    mine = Process.this()
    gone = dataclasses.replace(mine, start_ticks=mine.start_ticks - 1)  # this number, but of an older process
    (left.directory / "process.json").write_text(json.dumps(dataclasses.asdict(gone)))
    return left


# -- what travels --------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40), st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3)))
def test_messages_come_as_they_were_sent(text: str, value: object) -> None:
    """Requests and replies are one line each, whatever text they carry, and are the same at the other end."""
    request, reply = Request(request="bench", arguments={text: value}), Reply(kind="end", text=text, value=value)
    assert encode(request).count(b"\n") == encode(reply).count(b"\n") == 1
    assert decode_request(encode(request)) == request
    assert decode_reply(encode(reply)) == reply


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\x80\x04K\x01.", "a request is a line of JSON"),
        (b"[" * 100_000, "a request is a line of JSON"),
        (b"[]", "version None is not spoken here, only 1"),
        (b'{"emu": 2, "request": "status"}', "version 2 is not spoken here, only 1; the testbed and the command"),
        (b'{"emu": true, "request": "status"}', "version True is not spoken"),
        (b'{"emu": 1}', "request: Field required"),
        (b'{"emu": 1, "request": 5}', "request: Input should be a valid string"),
        (b'{"emu": 1, "request": "status", "run": "rm"}', "run: Extra inputs are not permitted"),
        (b'{"emu": 1, "request": "status", "arguments": []}', "arguments: Input should be a valid dictionary"),
    ],
)
def test_what_is_no_request_is_refused(line: bytes, message: str) -> None:
    """Anything but a request of this version is refused in a line that says why, and nothing of it is carried out."""
    with pytest.raises(ProtocolError, match=message):
        decode_request(line)


def test_a_line_without_end_is_refused() -> None:
    """A client that never ends its line is refused at the limit, and one that says nothing after its time."""
    here, there = (Connection(sock) for sock in socket.socketpair())
    with here, there:
        here._sock.sendall(b"x" * 2000)
        with pytest.raises(ProtocolError, match="more than 1000 bytes"):
            there.read_line(most_bytes=1000, timeout_s=1)
        there._read = b""
        with pytest.raises(TimeoutError):
            there.read_line(most_bytes=10_000, timeout_s=0)


def test_hanging_up_is_seen_and_replies_still_come() -> None:
    """A client that stops is seen to have stopped, and can still be told how it ended; one that is silent has not stopped."""
    here, there = (Connection(sock) for sock in socket.socketpair())
    with here, there:
        assert not there.stopped()
        here.stop()
        assert there.stopped()
        there.end(exit_code=130, text="stopped")
        line = here.read_line(most_bytes=1000, timeout_s=1)
        assert line is not None and decode_reply(line).exit_code == 130
    assert not there.send(Reply(kind="line"))


# -- names and their owners ------------------------------------------------------------------------


def test_a_name_is_had_once(home: Path) -> None:
    """A second testbed of a name is refused by name, another is not; both can be found, and only their user can."""
    lab, swept = claim("lab")
    assert swept == [] and lab.alive
    with pytest.raises(ConfigError, match=r"'lab' is up already; use it .*--session lab.* end it .emu down lab"):
        claim("lab")
    claim("two")
    assert find("lab") == lab
    assert stat.S_IMODE(lab.directory.stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match=r"'lb' is not up \(did you mean 'lab'\?\); those that are: lab, two"):
        find("lb")
    lab.remove()
    assert [path.name for path in home.iterdir()] == ["two"]


@pytest.mark.parametrize("name", ["", ".lab", "a/b", "../x", "a b", "ä", "x" * 65, "lab\n"])
def test_a_name_is_a_plain_word(home: Path, name: str) -> None:
    """A name that could leave its directory, or be mistaken for another thing, is refused and nothing is made."""
    with pytest.raises(ConfigError, match="a name is 1 to 64 letters"):
        claim(name)
    assert not home.exists()


def test_what_a_killed_one_left_is_swept(home: Path) -> None:
    """A directory whose process is gone is told from a living one by start time, although its number is used again; its name
    is free, and who takes it is told."""
    left = killed("lab")
    assert not left.alive
    _, swept = claim("lab")
    assert swept == ["lab"]
    assert sweep_dead() == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}', "\x00"])
def test_an_owner_that_cannot_be_read_is_dead(home: Path, text: str) -> None:
    """A directory with garbage for an owner is swept, not stumbled over."""
    left, _ = claim("lab")
    (left.directory / "process.json").write_text(text)
    assert sweep_dead() == ["lab"] and not left.directory.exists()


def test_orphans_of_a_dead_session_are_ended(home: Path) -> None:
    """What a killed process left running in its session is ended, and nothing is while its leader lives."""
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 60 >/dev/null & echo $!; exec sleep 60"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    orphan, process = Process.of(int(leader.stdout.readline())), Process.of(leader.pid)
    assert orphan is not None and process is not None
    process.kill_orphans()
    assert orphan.alive
    leader.kill()
    leader.communicate()
    process.kill_orphans()
    assert orphan.ended(1.0)


def test_only_its_user_reaches_the_socket(home: Path) -> None:
    """The socket works however deep its directory lies, for its user alone."""
    lab, _ = claim("lab")
    with lab.listen() as listener, lab.connect() as client:
        assert stat.S_IMODE((lab.directory / "socket").stat().st_mode) == 0o600
        server, _ = listener.accept()
        with server:
            client.sendall(b"hello")
            assert server.recv(10) == b"hello"
    assert (lab.directory / "socket").stat().st_uid == os.getuid()


# -- what is alike -----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["alive", "dead", "slow", "late"]), max_size=60))
def test_everyone_is_in_one_group(told: list[str]) -> None:
    """Each member is counted once; only groups of at most a quarter and ten are listed by name, and never the largest."""
    found = grouped((f"a{number}", what) for number, what in enumerate(told))
    counted = 0
    for number, line in enumerate(found):
        if line.startswith("but "):
            names = line[4:].partition(":")[0].split(", ")
            assert number > 0 and len(names) <= min(MOST_OUTLIERS, MOST_OUTLIER_SHARE * len(told))
            counted += len(names)
        else:
            counted += int(line.split()[0]) if " alike" in line else 1
    assert counted == len(told)


def test_outliers_are_named() -> None:
    """One in eight that differs is named; two kinds of four are a line each without names."""
    assert grouped([*((f"a{n}", "alive") for n in range(7)), ("a7", "dead")]) == ["7 alike: alive", "but a7: dead"]
    assert grouped([(f"l{n}", "fast" if n % 2 else "slow") for n in range(8)]) == ["4 alike: slow", "4 alike: fast"]


# -- what a run may not change -------------------------------------------------------------------------


def test_a_run_has_the_testbeds_fabric_and_its_own_sizes() -> None:
    """Without flags a run takes fabric, seed and dilation from the testbed; a dilation that was typed holds."""
    run = BenchOptions(collective="broadcast", begin_bytes=8, end_bytes=8)
    assert run_options("lab", STAR, run, ()) == dataclasses.replace(STAR, collective="broadcast", begin_bytes=8, end_bytes=8)
    assert run_options("lab", STAR, run, {"--dilation"}).dilation is None
    same = dataclasses.replace(run, fabrics=("star",), seed=3)
    assert run_options("lab", STAR, same, {"--fabric", "--seed"}).fabrics == ("star",)


def test_nccl_proto_has_no_effect_on_a_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its protocol is fixed when its actors start: a run's is left out, and one line says so before it begins."""
    run, err = BenchOptions(collective="all_reduce", protocol="LL"), io.StringIO()
    assert run_options("lab", STAR, run, ()).protocol is None
    monkeypatch.setattr(commands, "find", lambda name: name)
    monkeypatch.setattr(commands.client, "run", lambda place, request, arguments, terminal: 0)
    assert commands.bench("lab", run, given=(), terminal=Terminal(out=io.StringIO(), err=err)) == 0
    assert err.getvalue() == "# NCCL_PROTO=ll has no effect: emu up fixes a testbed's protocol, with --set protocol=\n"


@pytest.mark.parametrize(
    ("flag", "change", "message"),
    [
        (
            "--fabric",
            {"fabrics": ("ring",)},
            "--fabric ring contradicts testbed 'lab', which has star; leave --fabric out, or start",
        ),
        (
            "--set",
            {"settings": (("ranks", "8"), ("rate", "1GB/s"))},
            "--set ranks=8 rate=1GB/s contradicts testbed 'lab', which has ranks=4",
        ),
        ("--accelerators-per-actor", {"accelerators_per_actor": 2}, "--accelerators-per-actor 2 .* which has the default"),
        ("--protocol", {"settings": (("protocol", "ll"),)}, "--protocol protocol=ll contradicts testbed 'lab'"),
        ("--record", {}, "--record needs a session that records from its start; leave --session out"),
        ("--seed", {"seed": 0}, "--seed 0 contradicts testbed 'lab', which has 3"),
        ("--seeds", {"n_seeds": 4}, "--seeds 4"),
        ("--ranks", {"n_ranks": 2}, "--ranks 2"),
        ("--impair", {"impairments": ("a0->s0=latency,added=1us",)}, "--impair a0->s0=latency,added=1us"),
        ("--transport", {"transport": "tcp"}, "--transport tcp contradicts testbed 'lab', which has auto"),
    ],
)
def test_what_contradicts_the_testbed_is_refused(flag: str, change: dict[str, object], message: str) -> None:
    """A flag that asks for another fabric or emulation than the testbed's is refused, with both values and the way out."""
    run = dataclasses.replace(BenchOptions(collective="all_reduce"), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        run_options("lab", STAR, run, {flag})


def test_every_fixed_flag_is_an_option() -> None:
    """Each flag that a testbed fixes is a field of the options and a flag of emu up or of several sessions."""
    assert set(FIXED.values()) <= {field.name for field in dataclasses.fields(BenchOptions)}


def test_a_plan_goes_through_json() -> None:
    """What emu up asks for is the same after a trip over the socket; what cannot be meant is refused."""
    plan = TestbedPlan(options=STAR, ttl_s=60.0)
    assert TestbedPlan.from_plain(json.loads(json.dumps(plan.as_plain()))) == plan
    with pytest.raises(ConfigError, match=r"--ttl 0\.5 must be from 1 second to a year"):
        TestbedPlan(options=STAR, ttl_s=0.5)
    with pytest.raises(ConfigError, match="plan does not fit"):
        TestbedPlan.from_plain({"options": STAR.as_plain(), "tll_s": 5})


# -- what is shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (59.9, "59.9 s"), (61, "1 min"), (3 * 3600 + 720, "3 h 12 min"), (200_000, "2 d 7 h")]
)
def test_spans(seconds: float, text: str) -> None:
    """Spans are told in the unit that fits."""
    assert format_span(seconds) == text


def test_a_status_tells_who_is_dead_and_what_runs() -> None:
    """The dead are named, the rest is grouped, and what is under way has its line; so has each testbed among others."""
    counted = {"frames": 4, "wire_bytes": 4096, "resent_bytes": 0}
    links = [{"name": f"a{n}->s0", "alive": n != 2, "rate_bps": 8 * 10**9, "latency_ps": 10**6, **counted} for n in range(4)]
    status = {
        "name": "lab", "state": "busy", "emu": "0.1.0", "pid": 7, "fabric": "star", "n_ranks": 4, "n_actors": 5, "dead": ["a2"],
        "stopped": ["a3"],
        "up_s": 61.0, "ttl_s": 60.0, "metrics": ["http://127.0.0.1:1/metrics"], "log": "/x/log", "n_runs": 1, "n_failed": 1,
        "faults": [], "now": {"what": "bench all_reduce 1 KiB", "for_s": 2.0, "n_rows": 3, "doing": "dilation 5"},
        "runs": [{"number": 1, "what": "bench all_reduce 8 B", "wall_s": 1.0, "outcome": "the actor of a2 died"}],
        "session": {
            "ranks": [{"rank": n, "name": f"a{n}", "alive": n != 2, "sent_bytes": 4096} for n in range(4)],
            "actors": [{"pid": n, "nodes": [f"a{n}"], "alive": n != 2} for n in range(4)],
            "links": links,
        },
    }  # fmt: skip
    text = "\n".join(lines(status))
    for words in (
        "dead     a2",
        "stopped  a3",
        "3 alike: alive, 4 KiB sent",
        "but rank 2 (a2): dead",
        "but process 2 (a2): dead",
        "but a2->s0: 1 GB/s, 1 us",
        "bench all_reduce 1 KiB for 2 s, 3 rows: dilation 5",
        "1, 1 of them failed",
        "the actor of a2 died",
        "1 min after its last run",
    ):
        assert words in text
    heading, row = table([cells(status)])
    assert heading.split() == list(HEADINGS)
    assert row == "lab   busy, 1 dead  star    4      5       1 min  1     bench all_reduce 1 KiB for 2 s"
