"""Files that users write: what is wrong with one is a line, and a copy of emu's own under another name behaves alike."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

import emu.congestion
from emu.balancing import ecmp
from emu.congestion import dcqcn, nscc
from emu.drivers.switching_guard import check_run
from emu.errors import ConfigError
from emu.topologies.extensions import described, extension, extension_names
from emu.topologies.fabric_file import load_fabric
from emu.topologies.switching import Switching

FAST = {"rate": "400Gbit/s", "latency": "2us", "discipline": "drop"}


def written(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> str:
    """A module of a user's; its name is new for each test, as modules are imported once."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return name


def switched(**settings: str) -> Switching:
    topology = load_fabric("star", FAST | settings)
    check_run(topology, {})
    assert topology.switching is not None
    return topology.switching


@pytest.mark.parametrize("module", [dcqcn, nscc])
def test_a_copy_of_a_control_gets_its_marking(module: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Thresholds, quantum and buffers are the original's, as the file says what marking it needs, not its name."""
    original = inspect.getmodulename(inspect.getfile(module))  # type: ignore[arg-type]
    assert original is not None
    name = written(monkeypatch, tmp_path, f"copy_of_{original}", inspect.getsource(module))  # type: ignore[arg-type]
    copied, own = switched(congestion_control=f"{name}:build"), switched(congestion_control=original)
    assert copied.classes[0].marking is not None
    assert replace(copied, classes=(replace(copied.classes[0], control=original),)) == own


@pytest.mark.parametrize("copied", [True, False])
def test_a_copy_of_a_balancing_keeps_flows_together(copied: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A copy, or the file itself by module:function, is recovered by go back N, and nothing is reordered."""
    name = "emu.balancing.ecmp"
    if copied:
        name = written(monkeypatch, tmp_path, "copy_of_ecmp", inspect.getsource(ecmp))
    found = switched(balancing=f"{name}:build")
    assert replace(found, balancing="ecmp") == switched()
    assert found.classes[0].recovery == "go_back_n" and found.reorder_packets == 0


def test_a_balancing_that_says_nothing_takes_flows_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is recovered by selective repeat, and reorder_packets = 0 is refused as for emu's own."""
    text = "from emu.balancing.ecmp import build\n"
    name = written(monkeypatch, tmp_path, "says_nothing", text)
    assert switched(balancing=f"{name}:build").classes[0].recovery == "selective_repeat"
    with pytest.raises(ConfigError, match="KEEPS_FLOWS_TOGETHER"):
        switched(balancing=f"{name}:build", reorder_packets="0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:", r"wrong0\.py, line 1: invalid syntax"),
        ("1 / 0", r"cannot be imported from wrong1: ZeroDivisionError: division by zero \(.*wrong1\.py, line 1\)"),
        ("", r"wrong2\.py has no function 'build'; define it there"),
        ("build = 3", r"wrong3\.py has no function 'build'"),
        ("def build(line, parameters):\n    pass", r"build of .*wrong4\.py returned None"),
        ("def build(line, parameters):\n    raise KeyError(7)", r"build of .*wrong5\.py failed with KeyError: 7"),
        ("def build(line, parameters):\n    return 5", r"wrong6\.py built 5; return \(sender, receiver\)"),
        ("from emu.congestion.none import build\nMARKING = 5", r"wrong7\.py: MARKING = 5 must be a function"),
        ("from emu.congestion.none import build\ndef MARKING():\n    return 5", r"MARKING of .*wrong8\.py failed with TypeError"),
        ("from emu.congestion.none import build\ndef MARKING(**_):\n    return 5", r"MARKING of .*wrong9\.py returned 5"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    text: str, message: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It names what was written, the file and what it lacks."""
    number = request.node.callspec.indices["text"]
    name = written(monkeypatch, tmp_path, f"wrong{number}", text)
    with pytest.raises(ConfigError, match=message) as caught:
        switched(congestion_control=f"{name}:build")
    assert "\n" not in str(caught.value) and "congestion_control" in str(caught.value)


@pytest.mark.parametrize("value", ["1", "'yes'"])
def test_a_flag_is_a_bool(value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a typing mistake would quietly mean yes."""
    name = written(
        monkeypatch, tmp_path, f"flag{len(value)}", f"KEEPS_FLOWS_TOGETHER = {value}\ndef build(place, parameters): ..."
    )
    with pytest.raises(ConfigError, match="must be True or False"):
        extension("balancing", "balancing", f"{name}:build").flag("KEEPS_FLOWS_TOGETHER")


@pytest.mark.parametrize("folder", ["congestion", "balancing"])
def test_every_file_says_what_it_is_in_a_line(folder: str) -> None:
    """As ``emu fabrics`` prints it: one line that ends where it ends."""
    found = dict(described(folder))
    assert tuple(found) == extension_names(folder)
    assert all(
        text and text.count("(") == text.count(")") and text.count('"') % 2 == 0 and text[-1] not in ",;"
        for text in found.values()
    )


def test_a_broken_file_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Dropped into the folder it is left out of the list, the others are found, and who asks for it is told its line."""
    (tmp_path / "broken.py").write_text("def build(:", encoding="utf-8")
    monkeypatch.setattr(emu.congestion, "__path__", [*emu.congestion.__path__, str(tmp_path)])
    assert "broken" not in extension_names("congestion")
    assert extension("congestion", "congestion_control", "dcqcn").flag("NO_SUCH_FLAG") is False
    with pytest.raises(ConfigError, match=r"congestion_control = 'broken': .*broken\.py, line 1: invalid syntax"):
        extension("congestion", "congestion_control", "broken")
