"""``LINKS=KIND,key=value``: what it means, and what is said about what it cannot mean."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from emu.errors import ConfigError
from emu.impairments.spec import impairment_class, kinds, parse_impairment, resolve
from emu.topologies.graph import Link, Node, NodeKind, Topology


class NoRouter:
    spread = 1

    def route(self, topology: Topology, source: int, target: int, flow: int) -> tuple[int, ...]:
        return ()


def topology() -> Topology:
    """a0, a1 and s0; a0's links are striped over two planes, a1's are two hashed parallels."""

    def link(name: str, *planes_bps: int) -> Link:
        return Link(name=name, source=0, target=1, rate_bps=10, latency_ps=0, planes_bps=planes_bps)

    return Topology(
        name="small",
        nodes=(Node(name="a0", kind=NodeKind.ACCELERATOR),),
        links=(link("a0->s0", 5, 5), link("s0->a0", 5, 5), link("a1->s0"), link("a1->s0#1")),
        router=NoRouter(),
        ranks=(0,),
    )


def where(*texts: str) -> dict[int, list[int | None]]:
    """Planes by link that the specifications come down to."""
    placed = resolve([parse_impairment(text) for text in texts], topology())
    return {index: [plane for _, plane in entries] for index, entries in placed.items()}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("a0->s0", {0: [None]}),
        ("*", {0: [None], 1: [None], 2: [None], 3: [None]}),
        ("a*->s0", {0: [None], 2: [None]}),
        ("a[01]->s0", {0: [None], 2: [None]}),
        ("a0->s0#1", {0: [1]}),
        ("a1->s0#1", {3: [None]}),
        ("?0->?0#0", {0: [0], 1: [0]}),
    ],
)
def test_links_are_named_by_name_pattern_or_plane(pattern: str, wanted: dict[int, list[int | None]]) -> None:
    """A name, a glob, or either with a plane; a link that is itself called so wins over the plane."""
    assert where(f"{pattern}=throttle,factor=0.5") == wanted


def test_several_on_a_link_keep_their_order() -> None:
    """Impairments add up on a link in the order given."""
    pairs = [parse_impairment(text) for text in ("*=latency,added=1us", "a0->s0=throttle,factor=0.5", "a0->s0#1=none")]
    assert [(type(one).__module__.rpartition(".")[2], plane) for one, plane in resolve(pairs, topology())[0]] == [
        ("latency", None),
        ("throttle", None),
        ("none", 1),
    ]


def test_blanks_around_the_parts_do_not_count() -> None:
    """Spaces are allowed where a shell user would type them."""
    assert parse_impairment(" a0->s0 = latency , added = 1us ") == parse_impairment("a0->s0=latency,added=1us")


def test_kinds_are_the_files_of_the_folder() -> None:
    """Dropping a file in makes a kind; helpers in the folder are none."""
    assert {"flap", "jitter", "latency", "loss", "none", "throttle"} <= set(kinds())
    assert not {"base", "fields", "spec"} & set(kinds())


def test_a_class_of_ones_own_is_an_impairment(monkeypatch: pytest.MonkeyPatch) -> None:
    """module:Class is that class; a module's name, dotted or not, stands for its class Impairment."""
    module = ModuleType("my_wires")
    module.__spec__ = ModuleSpec("my_wires", None)
    vars(module).update(Slow=impairment_class("latency"), Impairment=impairment_class("none"), build=parse_impairment)
    monkeypatch.setitem(sys.modules, "my_wires", module)
    assert parse_impairment("*=my_wires:Slow,added=1us") == parse_impairment("*=latency,added=1us")
    assert impairment_class("my_wires") is impairment_class("none")
    assert impairment_class("emu.impairments.flap") is impairment_class("flap")
    for name in ("build", "Slower"):
        with pytest.raises(ConfigError, match=rf"my_wires has no class {name}\(BaseImpairment\); define it there, or write"):
            impairment_class(f"my_wires:{name}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a0->s0", "is not LINKS=KIND"),
        ("=latency,added=1us", "is not LINKS=KIND"),
        ("*=latency,added", "is not key=value"),
        ("*=latency,added=1us,added=2us", "given twice"),
        ("*=jiter,bound=1us", "'jiter' is not a kind of impairment.*'jitter'.*use one of .*flap, .*or module:Class"),
        ("*=no.such.module", "cannot be imported"),
        ("*=emu.units", "has no class Impairment"),
        ("*=jitter,bond=1us", "unknown key 'bond'.*'bound'.*known keys: distribution, bound"),
        ("*=latency", "'added' is missing"),
        ("*=latency,added=5", "'5' has no unit"),
        ("*=loss,probability=1.5", r"'1.5' is outside \[0, 0\.5\]"),
        ("*=loss,probability=1", r"'1' is outside \[0, 0\.5\]"),
        ("*=loss,probability=0.51", r"runs? hardly ends? \(for a link that is down use flap\)"),
        ("*=loss,probability=nan", r"'nan' is outside \[0, 0\.5\]"),
        ("*=loss,probability=much", r"'much' is outside \[0, 0\.5\]"),
        ("*=loss,pattern=012", "not made of 0 and 1"),
        ("*=loss,packets=1+x", "not a list of packet numbers"),
        ("*=loss,pattern=01,packets=3", "exactly one of"),
        ("*=loss,timeout=1us", "exactly one of"),
        ("*=throttle,factor=2", r"outside \(0, 1\]"),
        ("*=throttle,factor=0", r"outside \(0, 1\]"),
        ("*=throttle,factor=half", "not a number"),
        ("*=throttle,factor=0.5,from=2s,until=1s", "is not after"),
        ("*=flap,down=1ns,up=1ns", "for a share of the rate use throttle"),
        ("*=flap,down=1ms,count=2", "only with up"),
        ("*=jitter", "needs bound"),
        ("*=jitter,bound=5us,sigma=3us", "not sigma"),
        ("*=jitter,distribution=pareto,mean=5us,alpha=1", "alpha"),
        ("*=jitter,distribution=gauss", "'normal', 'lognormal'"),
        ("*=jitter,distribution=empirical,file=/no/such/file", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(text: str, said: str) -> None:
    """ConfigError names the value, the allowed range and the fix."""
    with pytest.raises(ConfigError, match=said) as caught:
        parse_impairment(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a0->s1=none", "no link of small matches 'a0->s1'; the nearest name is 'a0->s0'"),
        ("x*=none", "no link of small matches"),
        ("a0->s0#2=throttle,factor=0.5", "no plane #2; its planes are #0 to #1"),
        ("a1->s0#4=throttle,factor=0.5", "it is not striped"),
        ("a0->s0#1=latency,added=1us", "only flap and throttle take one; write 'a0->s0'"),
        ("a0->s0#1=loss,probability=0.1", "only flap and throttle take one"),
    ],
)
def test_links_and_planes_that_are_not_there_are_named(text: str, said: str) -> None:
    """ConfigError names what was asked for and the nearest there is."""
    with pytest.raises(ConfigError, match=said):
        where(text)


def test_an_empty_empirical_file_is_refused(tmp_path: object) -> None:
    """A file without times, or with a line that is none, is named with its line."""
    empty, wrong = f"{tmp_path}/empty", f"{tmp_path}/wrong"
    with open(empty, "w", encoding="utf-8") as file:
        file.write("# nothing\n")
    with open(wrong, "w", encoding="utf-8") as file:
        file.write("1us\nsoon\n")
    for name, said in ((empty, "holds no times"), (wrong, "line 2")):
        with pytest.raises(ConfigError, match=said):
            parse_impairment(f"*=jitter,distribution=empirical,file={name}")
