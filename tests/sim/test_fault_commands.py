"""Faults from the command line: --fault and --faults of a prediction, and what a testbed answers to emu fault."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emu import Session
from emu.cli import main
from emu.errors import ConfigError
from emu.testbed.handlers import HANDLERS
from emu.testbed.protocol import Connection, decode_reply
from emu.testbed.testbed import Testbed

STAR = ("--fabric", "star", "--set", "ranks=4", "--set", "rate=1GB/s", "-b", "1M", "-e", "1M", "-n", "3", "--algorithm", "ring")


def model_us(capsys: pytest.CaptureFixture[str], *arguments: str) -> float:
    """The time in the table of a prediction."""
    assert main(["predict", "all_reduce", *STAR, *arguments]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    return float(rows[0][5])


def test_predict_takes_faults_as_words_and_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both slow the collective down alike, and the table's header names them."""
    path = tmp_path / "faults.toml"
    path.write_text('[[faults]]\ntarget = "a1->s0"\nkind = "slow"\nfactor = 0.25\n', encoding="utf-8")
    alone_us = model_us(capsys)
    by_words_us = model_us(capsys, "--fault", "a1->s0=slow,factor=0.25")
    assert by_words_us > 2 * alone_us
    assert model_us(capsys, "--faults", str(path)) == by_words_us
    main(["predict", "all_reduce", *STAR, "--fault", "rank1=late,by=1ms"])
    assert "# Fault: rank1=late,by=1ms\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("a1-s0=slow,factor=0.25", "the nearest name is 'a1->s0'"),
        ("rank9=late,by=1us", "no accelerator of star is called so"),
        ("a1=stoped,for=1us", "did you mean 'stopped'?"),
    ],
)
def test_a_wrong_fault_is_a_line_and_exit_code_2(fault: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts, without a heading."""
    assert main(["predict", "all_reduce", *STAR, "--fault", fault]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err and captured.err.count("\n") == 1


def asked(session: Session, request: str, **arguments: Any) -> list[dict[str, Any]]:
    """What the testbed of a session answers; raises what it raises."""
    ours, theirs = socket.socketpair()
    with Connection(ours) as connection, theirs:
        HANDLERS[request](cast(Testbed, SimpleNamespace(session=session)), arguments, Connection(theirs))
        line = connection.read_line(most_bytes=1 << 20, timeout_s=5)
        assert line is not None
        return cast("list[dict[str, Any]]", decode_reply(line).value)


def test_a_testbed_adds_lists_and_clears() -> None:
    """A dry run changes nothing; what is added is listed with its number and times, and cleared by it."""
    with Session("star", settings={"ranks": "4"}, driver="simulate") as session:
        (dry,) = asked(session, "fault.add", fault="a*->s0=slow,factor=0.5", dry_run=True)
        assert dry["nodes"] == ["a0", "a1", "a2", "a3"] and asked(session, "fault.list") == []
        (added,) = asked(session, "fault.add", fault="a1->s0=slow,factor=0.5,for=1ms")
        assert added["said"] == "1  a1->s0=slow,factor=0.5,for=1ms  on a1->s0: from 0 ps to 1 ms"
        asked(session, "fault.add", fault="rank2=late,by=1us")
        assert [found["number"] for found in asked(session, "fault.list")] == [1, 2]
        assert [found["number"] for found in asked(session, "fault.clear", number=1)] == [1]
        with pytest.raises(ConfigError, match=r"fault 7: .*there are 2"):
            asked(session, "fault.clear", number=7)
        with pytest.raises(ConfigError, match="unknown key 'nummer'"):
            asked(session, "fault.clear", nummer=1)
        assert [found["number"] for found in asked(session, "fault.clear")] == [2]
