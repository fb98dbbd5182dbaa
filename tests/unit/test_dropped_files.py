"""Files that are dropped into emu's folders: a broken or a limited one harms nobody but those who ask for it."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emu.collectives.catalogue import algorithm_names, find_algorithm
from emu.collectives.layout import flat
from emu.drivers.choice import Chooser, n_messages
from emu.errors import ConfigError
from emu.impairments.spec import impairment_class, kinds
from emu.topologies.catalogue import generic_topologies
from emu.topologies.fabric_file import load_fabric
from emu.topologies.listing import list_fabrics

Drop = Callable[[str, str, str], None]

BROKEN = {"syntax": "def build(:\n", "name": "nothing_of_this_name\n", "import": "import no_such_package\n"}
ALGORITHM = """
from emu.collectives import ring
from emu.collectives.schedule import Cost
from emu.errors import ConfigError

COLLECTIVES = {{"all_gather"}}


def build(collective, n_ranks, root):
    {build}
    return ring.build(collective, n_ranks)


def cost(collective, n_ranks):
    {cost}
    return Cost(0, ring.cost(collective, n_ranks).sent)
"""
RIGHT_COST = "return ring.cost(collective, n_ranks)"


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drop]:
    """Add a file to a folder of emu, for this test only: ``drop(folder, name, text)``."""
    dropped: list[tuple[str, str]] = []

    def add(folder: str, name: str, text: str) -> None:
        package = importlib.import_module(f"emu.{folder}")
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(place)])
        importlib.invalidate_caches()
        dropped.append((f"emu.{folder}", name))

    yield add
    for package, name in dropped:
        sys.modules.pop(f"{package}.{name}", None)
        vars(sys.modules[package]).pop(name, None)


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_left_out_and_explains_itself_when_asked_for(
    drop: Drop, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong at import: lists go on with one warning for each file, and its name gives one line with the file."""
    for folder in ("topologies", "collectives", "impairments"):
        drop(folder, "shaky", text)
    asked = (lambda: load_fabric("shaky"), lambda: find_algorithm("shaky"), lambda: impairment_class("shaky"))
    with caplog.at_level(logging.WARNING, "emu"):
        assert "star" in {listing.name for listing in list_fabrics()} and "shaky" not in generic_topologies()
        assert "ring" in algorithm_names() and "none" in kinds() and "shaky" not in (*algorithm_names(), *kinds())
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 3 and all("shaky.py" in line and "\n" not in line for line in warned)
    for ask in asked:
        with pytest.raises(ConfigError, match=r"shaky\.py") as caught:
            ask()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("folder", "text", "said"),
    [
        ("topologies", "def build(parameters): ...", "no pydantic class Parameters"),
        ("collectives", "COLLECTIVES = {'barrier'}\ndef build(*args): ...", "no function 'cost'"),
        ("impairments", "class Slow: ...", "no class Impairment"),
    ],
)
def test_an_incomplete_file_says_what_it_lacks(drop: Drop, folder: str, text: str, said: str) -> None:
    """A file that cannot be listed for what it lacks is told so when it is asked for."""
    drop(folder, "half", text)
    ask = {"topologies": load_fabric, "collectives": find_algorithm, "impairments": impairment_class}[folder]
    with pytest.raises(ConfigError, match=rf"half\.py .*{said}"):
        ask("half")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {}['x']", r"build of cracked failed with KeyError: 'x' \(.*cracked\.py, line 7\)"),
        ("raise ValueError('no')", "build of cracked failed with ValueError: no"),
        ("return None", "build of cracked returned NoneType; it must return a Topology"),
    ],
)
def test_a_topology_that_fails_to_build_is_named(drop: Drop, body: str, said: str) -> None:
    """An error in build is one line with the error, the file and the line; what is no Topology goes no further."""
    head = "from emu.topologies.cabling import LinkParameters\n\nclass Parameters(LinkParameters):\n    pass\n\n"
    drop("topologies", "cracked", f"{head}def build(parameters):\n    {body}\n")
    with pytest.raises(ConfigError, match=said) as caught:
        load_fabric("cracked")
    assert "\n" not in str(caught.value)


def test_auto_passes_over_an_algorithm_that_declines(drop: Drop, caplog: pytest.LogCaptureFixture) -> None:
    """An even-only algorithm is chosen where it is fastest and passed over at 5 ranks and at 1; named, it says why not."""
    decline = "if n_ranks % 2: raise ConfigError(f'{n_ranks} ranks: use an even number')"
    drop("collectives", "aa_even", ALGORITHM.format(build=decline, cost=RIGHT_COST))
    drop("collectives", "aa_small", ALGORITHM.format(build="if n_ranks != 40: raise ConfigError('40 only')", cost=RIGHT_COST))
    with caplog.at_level(logging.WARNING, "emu"):
        for n_ranks in (1, 4, 5, 40):
            topology = load_fabric("star", {"ranks": str(max(2, n_ranks))})
            name = Chooser(topology).choose("all_gather", 1 << 20, tuple(range(n_ranks)), 0)
            assert name in algorithm_names() and (n_ranks != 5 or name != "aa_even")
    assert not caplog.records
    assert n_messages("all_gather", "aa_small", flat(40)) == 40 * 39
    with pytest.raises(ConfigError, match="algorithm aa_even: 5 ranks: use an even number"):
        n_messages("all_gather", "aa_even", flat(5))


@pytest.mark.parametrize(
    ("build", "cost", "said"),
    [
        ("raise IndexError(n_ranks)", RIGHT_COST, r"aa_wrong all_gather over 4 ranks: build failed with IndexError: 4"),
        ("", "", r"aa_wrong all_gather over 4 ranks: it takes 3 steps .* says 0"),
        ("", "return n_ranks", r"aa_wrong all_gather over 4 ranks: cost returned int"),
    ],
)
def test_auto_leaves_out_a_wrong_algorithm_aloud(
    drop: Drop, build: str, cost: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A build that raises, a cost that is too low and one that is none: the others are chosen from, and one line says so."""
    drop("collectives", "aa_wrong", ALGORITHM.format(build=build, cost=cost))
    with caplog.at_level(logging.WARNING, "emu"):
        name = Chooser(load_fabric("star", {"ranks": "4"})).choose("all_gather", 1 << 20, (0, 1, 2, 3), 0)
    assert name in algorithm_names() and not name.startswith("aa_")
    [record] = caplog.records
    assert re.search(said, record.getMessage())
