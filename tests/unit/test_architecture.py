"""The layout: which room may import which, which vendor lives where, and what no file may do.

The table is the plan of the house.  A room is a file or a folder of emu, or a file of a folder that is
listed with its dotted name.  Whoever needs an edge that is not here moves the code, or changes the plan.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import emu

ROOT = Path(emu.__file__).parent

ALLOWED = {
    # ground: words and numbers
    "errors": "",
    "keyed": "",
    "units": "errors",
    "clock": "",
    "wire": "errors",
    "parameters": "errors units",
    # pure: fabrics, machines and algorithms, told the time
    "protocols": "errors units",  # what kernels cost, and who chooses them
    "topologies": "errors keyed units parameters protocols",
    "presets": "",
    "impairments": "errors keyed units parameters topologies",
    "fabric.account": "",  # what a call's time went to: carried by what travels
    "fabric.frame": "fabric.account protocols",  # what travels: the executor makes and reads it, the fabric carries it
    "collectives": "errors units fabric.account fabric.frame topologies",  # topologies: how files of a folder are found
    "faults": "errors units parameters topologies impairments",
    "congestion": "errors units parameters topologies",
    "balancing": "errors keyed topologies",
    "fabric": "errors keyed units topologies impairments collectives congestion balancing fabric.account fabric.frame protocols",
    "telemetry": "errors host units clock topologies fabric fabric.account fabric.frame collectives",
    # what a user's function is given, and the two loops
    "work": "errors collectives rank protocols",
    "planner": "errors collectives work protocols",
    "communicator": "errors collectives planner work rank",
    "rank": "errors units clock fabric communicator work",
    "drivers": "errors units keyed clock wire topologies impairments faults collectives congestion balancing fabric fabric.frame"
    " protocols telemetry rank work",
    # one call over thousands of ranks
    "scale": "errors units topologies impairments collectives fabric drivers",
    # vendors and what owns them
    "host": "errors",
    "transport": "errors host",
    "session": "errors units topologies impairments faults fabric telemetry protocols rank drivers actors",
    "actors": "errors units clock topologies faults fabric telemetry rank drivers transport host session",
    "testing": "errors units clock wire topologies impairments faults collectives fabric fabric.frame rank drivers",
    # the command line
    # beside measurements
    "validation": "errors host units parameters topologies protocols collectives drivers rank session bench",
    "drawing": "errors units topologies",
    "bench": "errors units clock parameters topologies scale drawing impairments faults collectives fabric fabric.account"
    " telemetry protocols rank session host emu",
    "diagnosis": "errors units keyed clock topologies fabric telemetry session bench testbed",
    "testbed": "errors units clock host parameters topologies faults fabric fabric.account telemetry session bench emu",
    "report": "errors host units parameters fabric fabric.account telemetry bench",  # a run as a page, or as other tools' traces
    "cli": "errors bench collectives testbed validation diagnosis report emu",
    "__main__": "cli",
    "emu": "errors rank session topologies",
}
"""Room -> the rooms it may import, in any way.  ``emu`` is the front door, ``emu/__init__.py``."""

LATE = {
    ("session", "actors"), ("work", "rank"), ("communicator", "rank"),
    ("emu", "errors"), ("emu", "rank"), ("emu", "session"), ("emu", "topologies"),
}  # fmt: skip
"""Edges that are only followed inside a function or for types: Ray is loaded when actors are wanted, the front door's
names on first use, and a work and a communicator know their rank's type.  They alone may point up."""

VENDORS = {
    "zmq": {"transport.py"},
    "ray": {"actors"},
    "time": {"clock.py"},
    "networkx": {"topologies/extent.py"},
    "typer": {"cli"},
    "prometheus_client": {"telemetry"},
    "rich": {"testbed/top.py"},
    "ml_dtypes": {"collectives/reduce.py"},
    "annotated_types": {"parameters.py"},
    "matplotlib": {"drawing"},
    "plotly": {"validation/page.py", "drawing", "report"},
    "tomlkit": {"validation/preset.py"},
}
"""Module -> the files or folders that may import it, in any way."""
FREE_VENDORS = {"numpy", "pydantic"}
"""What every room may use: arrays, and the models of what users write."""

PURE = {
    "protocols",
    "topologies",
    "impairments",
    "faults",
    "collectives",
    "congestion",
    "balancing",
    "fabric",
    "fabric.frame",
    "keyed",
    "units",
    "errors",
    "wire",
}
HOST_MODULES = {
    "time", "socket", "select", "subprocess", "multiprocessing", "asyncio", "random", "secrets", "mmap", "signal",
}  # fmt: skip
"""What a pure room has no business with: clocks, the network, other processes, and unkeyed randomness."""

MOST_LINES = 450

MUTATORS = {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove", "discard"}


class Import(NamedTuple):
    """One import statement: the dotted module, and whether it runs when the file is loaded."""

    module: str
    at_load: bool


FILES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")))
every_file = pytest.mark.parametrize("file", FILES)


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def room_of(module: str) -> str:
    """``emu.topologies.ring`` -> ``topologies``; files with a room of their own by their dotted name."""
    parts = module.split(".")[1:]
    if ".".join(parts[:2]) in ALLOWED:
        return ".".join(parts[:2])
    return parts[0] if parts and parts[0] in ALLOWED else "emu"


def module_of(file: str) -> str:
    return ".".join(("emu", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


def imports(file: str) -> Iterator[Import]:
    """Every import of a file, wherever it stands."""
    yield from _imports(tree(file), at_load=True)


def _imports(node: ast.AST, *, at_load: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, at_load)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports name their module in full"
            assert child.module is not None
            package = (ROOT.parent / child.module.replace(".", "/")).is_dir()
            for alias in child.names:
                yield Import(f"{child.module}.{alias.name}" if package else child.module, at_load)
        else:
            late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from _imports(child, at_load=at_load and not late)


def edges(file: str, *, at_load_only: bool = False) -> set[tuple[str, str]]:
    """(room of the file, room that it imports), other rooms only."""
    room = room_of(module_of(file))
    found = {
        (room, room_of(statement.module))
        for statement in imports(file)
        if statement.module.split(".")[0] == "emu" and (statement.at_load or not at_load_only)
    }
    return {edge for edge in found if edge[0] != edge[1]}


@every_file
def test_a_file_imports_only_the_rooms_it_may(file: str) -> None:
    """Each import of emu's own rooms, at load or later, stands in the table."""
    stray = {(room, other) for room, other in edges(file) if other not in ALLOWED[room].split()}
    assert not stray, f"{file} imports across the plan: {sorted(stray)}"


def test_every_room_is_in_the_table() -> None:
    """A new file or folder at the top gets its place in the plan, and no place is kept for what is gone."""
    there = {part.removesuffix(".py") for part in (file.split("/")[0] for file in FILES)} - {"__init__"}
    assert there == set(ALLOWED) - {"emu", "fabric.account", "fabric.frame"}


def test_the_rooms_have_no_cycle() -> None:
    """What is followed when files are loaded goes one way only, and so does the table apart from the late edges."""
    loaded = {edge for file in FILES for edge in edges(file, at_load_only=True)}
    planned = {(room, other) for room, others in ALLOWED.items() for other in others.split()}
    assert not loaded & LATE, f"these are to be imported late: {sorted(loaded & LATE)}"
    for graph in (loaded, planned - LATE):
        left = {room: {other for source, other in graph if source == room} for room in ALLOWED}
        while free := [room for room, others in left.items() if not others & set(left)]:
            for room in free:
                del left[room]
        assert not left, f"rooms in a cycle: {sorted(left)}"


@every_file
def test_one_vendor_one_room(file: str) -> None:
    """A foreign package is imported only where the plan puts it; what is not listed is in the standard library."""
    for statement in imports(file):
        vendor = statement.module.split(".")[0]
        if vendor in VENDORS:
            homes = VENDORS[vendor]
            at_home = any(file == home or file.startswith(f"{home}/") for home in homes)
            assert at_home, f"{file} imports {vendor}; only {sorted(homes)} may"
        else:
            assert vendor == "emu" or vendor in FREE_VENDORS or vendor in sys.stdlib_module_names, f"{file} imports {vendor}"


@every_file
def test_pure_rooms_know_no_host(file: str) -> None:
    """Fabrics, machines and algorithms have no clock, socket, process or unkeyed random number."""
    if room_of(module_of(file)) in PURE:
        used = {statement.module.split(".")[0] for statement in imports(file)}
        assert not used & HOST_MODULES, f"{file} imports {sorted(used & HOST_MODULES)}"


@every_file
def test_no_module_keeps_state(file: str) -> None:
    """No module variable is changed by functions: no registry, no global; caches of pure functions are functools'."""
    names = {
        target.id
        for statement in tree(file).body
        for target in (statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)])
        if isinstance(target, ast.Name)
    }
    functions = [node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    changed = set()
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Global):
            changed |= set(node.names)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del) and isinstance(node.value, ast.Name):
            changed |= {node.value.id} & names
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            changed |= {node.func.value.id} & names if isinstance(node.func.value, ast.Name) else set()
    assert not changed, f"{file} changes module variables: {sorted(changed)}"


@every_file
def test_a_file_is_about_one_subject(file: str) -> None:
    """Files are short enough to read at a sitting."""
    n_lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
    assert n_lines <= MOST_LINES, f"{file} has {n_lines} lines; at most {MOST_LINES}"


@every_file
def test_a_file_says_what_it_is(file: str) -> None:
    """Every module that holds code begins with a docstring."""
    assert not tree(file).body or ast.get_docstring(tree(file)), f"{file} has no docstring"


def test_a_simulation_needs_no_vendor() -> None:
    """Neither the front door nor what a simulation loads imports Ray, ZeroMQ, networkx or the command line's packages."""
    heavy = {"ray", "zmq", "networkx", "typer", "rich", "prometheus_client"}
    todo, seen = ["session.py", "__init__.py"], set()
    while todo:
        file = todo.pop()
        seen.add(file)
        for statement in imports(file):
            if not statement.at_load:
                continue
            assert statement.module.split(".")[0] not in heavy, f"{file} loads {statement.module}"
            path = statement.module.removeprefix("emu.").replace(".", "/")
            todo += [found for found in (f"{path}.py", f"{path}/__init__.py") if found in FILES and found not in seen]
    assert "drivers/simulate.py" in seen
