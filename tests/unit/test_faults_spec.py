"""``TARGET=KIND,key=value``: what it hits, what is said about what it cannot mean, and schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from emu.errors import ConfigError
from emu.faults.book import FaultBook
from emu.faults.schedule import read_schedule
from emu.faults.spec import KINDS, parse_fault, place
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

US = 10**6


@pytest.fixture(scope="module")
def star() -> Topology:
    return load_fabric("star", {"ranks": "4", "planes": "2"})


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("a3->s0=slow,factor=0.5", ["a3->s0"]),
        ("a*->s0=longer,added=1us", ["a0->s0", "a1->s0", "a2->s0", "a3->s0"]),
        ("s0=slow,factor=0.5", ["s0->a0", "s0->a1", "s0->a2", "s0->a3"]),
        ("a1->s0#1=down,for=1ms", ["a1->s0#1"]),
        ("rank3=late,by=1us", ["a3"]),
        ("a1=slow_receiver,rate=1GB/s", ["a1"]),
        ("a[02]=stopped,for=1us", ["a0", "a2"]),
        ("rank*=slow_compute,factor=1.5", ["a0", "a1", "a2", "a3"]),
        ("rank0->a2=background", ["a0->a2"]),
    ],
)
def test_targets_are_links_nodes_ranks_and_pairs(text: str, hits: list[str], star: Topology) -> None:
    """A name, a pattern or a plane of links; a node for what leaves it; a rank by number or name; two endpoints."""
    assert [one.component for one in place(parse_fault(text), star)] == hits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a3->s0", "is not TARGET=KIND"),
        ("a3=stoped,for=1us", "'stoped' is not a kind of fault.*'stopped'.*use one of background, down"),
        ("a3->s0=slow,factor", "is not key=value"),
        ("a3->s0=slow,factor=1,factor=1", "given twice"),
        ("a3->s0=slow,factr=0.5", "unknown key 'factr'.*'factor'"),
        ("a3->s0=slow,factor=2", r"outside \(0, 1\]"),
        ("a3->s0=slow,factor=0.5,at=5", "'5' has no unit"),
        ("a3->s0=slow,factor=0.5,for=0", "for.*greater than 0"),
        ("a3->s0=down", "'for' is missing"),
        ("a3=stopped,at=1us", "'for' is missing"),
        ("a3->s0=lossy,probability=0.9", r"outside \[0, 0\.5\]"),
        ("a3->s0=flapping,period=1ms,duty=1", "less than 1"),
        ("a3->s0=flapping,period=1ps", "too short"),
        ("a3=slow_compute,factor=0.5", "at least 1"),
        ("a3=late,by=0", "by.*greater than 0"),
        ("a0->a1=background,message=65MiB", "message"),
        ("a3->s9=slow,factor=0.5", "no link of star matches 'a3->s9'; the nearest name is 'a3->s0'"),
        ("a3->s0#7=slow,factor=0.5", "has no plane #7"),
        ("a3->s0#1=longer,added=1us", "only flap and throttle take one"),
        ("a9=late,by=1us", "late on 'a9': no accelerator of star is called so; the nearest name is 'a.*ranks are rank0 to rank3"),
        ("rank7=killed", "nearest name is 'rank"),
        ("s0=late,by=1us", "no accelerator of star is called so"),
        ("a0=background", "name two endpoints"),
        ("a0->s0=background", "no accelerator of star is called so"),
        ("a0->a*=background", "'a.' is 4 accelerators; name one"),
        ("a0->rank0=background", "sends nothing to itself"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(text: str, said: str, star: Topology) -> None:
    """ConfigError names the value, what is allowed, and the nearest name."""
    with pytest.raises(ConfigError, match=said) as caught:
        place(parse_fault(text), star)
    assert "\n" not in str(caught.value)


def test_every_kind_shows_how_it_is_written() -> None:
    """The docstring of each kind begins with an example of its keys, which parses."""
    for kind, model in KINDS.items():
        example = (model.__doc__ or "").split("``")
        keys = example[1] if len(example) > 1 else ""
        fault = parse_fault(f"x={kind}{',' if keys else ''}{keys}").fault
        assert type(fault) is model


def test_a_schedule_file_is_the_same_as_the_words(tmp_path: Path) -> None:
    """[[faults]] with target, kind and keys, numbers bare or as text."""
    path = tmp_path / "faults.toml"
    path.write_text(
        '[[faults]]\ntarget = "a3->s0"\nkind = "slow"\nfactor = 0.5\nat = "2ms"\nfor = "5ms"\n'
        '[[faults]]\ntarget = "rank3"\nkind = "late"\nby = "300us"\ncount = "2"\n'
    )
    assert read_schedule(path) == ("a3->s0=slow,factor=0.5,at=2ms,for=5ms", "rank3=late,by=300us,count=2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[faults", "cannot be read as TOML"),
        ("[[fault]]", "unknown key 'fault'.*'faults'"),
        ("faults = 3", "write each fault as a table"),
        ('[[faults]]\nkind = "slow"', "fault 1: 'target' is missing"),
        ('[[faults]]\ntarget = "a0"\nkind = "late"\nby = "1us"\n[[faults]]\ntarget = "a0"\nkind = "lat"', "fault 2: .*'late'"),
    ],
)
def test_a_schedule_that_is_wrong_is_said_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    """ConfigError names the file and the number of the fault."""
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"faults.toml.*{said}") as caught:
        read_schedule(path)
    assert "\n" not in str(caught.value)


def test_the_book_keeps_live_faults_over_fresh_models(star: Topology) -> None:
    """A schedule begins anew; of a live fault what is left of its duration holds from 0 on, until it is used up."""
    book = FaultBook(star, ["a0->s0=slow,factor=0.5,at=3us"])
    entry = book.propose("rank1=late,by=1us,for=10us")
    entry.took_effect({"a1": 4 * US})
    book.add(entry)
    assert [(one.begin_ps, one.for_ps) for one in book.begin(10 * US, range(4))] == [(3 * US, None), (0, 4 * US)]
    assert [(one.begin_ps, one.for_ps) for one in book.begin(10 * US, range(4))] == [(3 * US, None)]
    assert book.records()[1].effects == ()


def test_the_book_tells_when_and_how_to_repeat(star: Topology) -> None:
    """A record has the components, the times, and the same faults as a schedule; a cleared one ends then, and is no more."""
    book = FaultBook(star, [])
    entry = book.propose("a*->s0=slow,factor=0.5")
    entry.took_effect({f"a{rank}->s0": rank for rank in range(4)})
    book.add(entry)
    (chosen,) = book.chosen(1)
    chosen.ends(7)
    (record,) = book.records()
    assert record.schedule[3] == "a3->s0=slow,factor=0.5,at=3ps,for=4ps"
    assert record.nodes == ("a0", "a1", "a2", "a3") and record.is_cleared and record.is_live
    assert "cleared" in str(record)
    assert book.injections() == ()
    with pytest.raises(ConfigError, match=r"fault 1: .*there are none"):
        book.chosen(1)


def test_the_book_leaves_out_who_is_gone(star: Topology) -> None:
    """Faults of ranks that have died, and traffic from or to them, are not part of a fresh model; links' faults are."""
    book = FaultBook(star, ["rank1=killed", "a0->a1=background", "a1->a0=background", "a1->s0=slow,factor=0.5", "rank2=killed"])
    assert [one.component for one in book.begin(0, (0, 2, 3))] == ["a1->s0", "a2"]
