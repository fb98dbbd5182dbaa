"""Selections of algorithms, in the words of NCCL_ALGO."""

from __future__ import annotations

import pytest

from emu.bench.options import given_algorithm
from emu.collectives.catalogue import algorithms_for
from emu.collectives.selection import is_choice, selected
from emu.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "collective", "names"),
    [
        ("auto", "broadcast", ("direct", "ring", "tree")),
        ("ring,tree", "all_reduce", ("ring", "tree")),
        ("Ring,Tree", "all_gather", ("ring",)),
        ("^tree", "broadcast", ("direct", "ring")),
        ("^tree,direct", "broadcast", ("ring",)),
        ("allreduce:tree;broadcast:ring", "broadcast", ("ring",)),
        ("allreduce:tree;broadcast:ring", "reduce", ("direct", "ring", "tree")),
        ("ring,CollnetDirect;allreduce:NVLSTree", "all_reduce", ("nvlstree",)),
        ("ring,CollnetDirect;allreduce:NVLSTree", "all_gather", ("collnet_direct", "ring")),
        ("allreduce:^ring,tree", "all_reduce", None),
    ],
)
def test_nccls_words_select(text: str, collective: str, names: tuple[str, ...] | None) -> None:
    """Lists, exclusions and lists by collective leave what NCCL's rules leave."""
    wanted = tuple(name for name in algorithms_for(collective) if name not in ("ring", "tree")) if names is None else names
    assert selected(text, collective) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tree", "leaves nothing that does all_gather; there are"),
        ("^bruck,collnet_direct,direct,halving_doubling,nvls,pat,ring,torus", "leaves nothing"),
        ("ring,,tree", "has an empty name"),
        ("ring,tere", "'tere' is not known, did you mean tree"),
        ("broadcast:rnig", "'rnig' is not known"),
    ],
)
def test_what_selects_nothing_is_refused(text: str, said: str) -> None:
    """In one line that says what there is."""
    with pytest.raises(ConfigError, match=said) as caught:
        selected(text, "all_gather")
    assert "\n" not in str(caught.value)


def test_one_name_is_no_choice() -> None:
    """A single algorithm, or a function of a module, goes by itself; a colon after a collective is a selection."""
    assert not is_choice("ring") and not is_choice("my_lab:build")
    assert is_choice("auto") and is_choice("ring,tree") and is_choice("^ring") and is_choice("AllReduce:ring")


def test_the_environment_speaks_where_the_option_does_not() -> None:
    """NCCL_ALGO counts when --algorithm is left out, and never for what NCCL makes of sends and receives."""
    said = {"NCCL_ALGO": " ring;allreduce:tree "}
    assert given_algorithm(None, "all_reduce", said) == "ring;allreduce:tree"
    assert given_algorithm("direct", "all_reduce", said) == "direct"
    assert given_algorithm(None, "alltoall", said) == given_algorithm(None, "sendrecv", said) == "auto"
    assert given_algorithm(None, "all_reduce", {}) == "auto"
