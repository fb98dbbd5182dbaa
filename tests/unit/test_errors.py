"""The error tree: every error crosses a process border with all that it knows."""

from __future__ import annotations

import pickle

import pytest

import emu.errors
from emu.errors import ConfigError, EmuError, FidelityError, PeerLost, RankFailed

CLASSES = sorted(
    (found for found in vars(emu.errors).values() if isinstance(found, type) and issubclass(found, EmuError)),
    key=lambda found: found.__name__,
)
MADE = {
    PeerLost: PeerLost("the actor of a3 died", ("a3", "s0")),
    RankFailed: RankFailed(5, "Traceback ...\nValueError: no", ValueError("no")),
}


def knows(error: BaseException) -> tuple[object, ...]:
    """All that an error carries, in a form that can be compared."""
    return type(error), str(error), {key: repr(value) for key, value in vars(error).items()}, repr(error.args)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickling(cls: type[EmuError]) -> None:
    """Type, text and every attribute are the same on the other side, also after two borders."""
    error = MADE.get(cls) or cls(f"{cls.__name__} with 'quotes' and µ")
    once = pickle.loads(pickle.dumps(error))
    twice = pickle.loads(pickle.dumps(once))
    assert knows(once) == knows(error)
    assert knows(twice) == knows(error)
    assert once.exit_code == cls.exit_code


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_says_whose_fault_it_is(cls: type[EmuError]) -> None:
    """Each class has a docstring of its own and an exit code that the command line documents."""
    assert (cls.__doc__ and cls.__doc__ != EmuError.__doc__) or cls is EmuError
    assert cls.exit_code in (1, 2, 3, 4, 5)


def test_exit_codes_are_the_documented_ones() -> None:
    """2 for the user's input, 5 for lost fidelity, 1 for everything else that ends a run."""
    assert (EmuError.exit_code, ConfigError.exit_code, FidelityError.exit_code) == (1, 2, 5)
    assert {cls.exit_code for cls in CLASSES if cls not in (ConfigError, FidelityError)} == {1}


def test_a_lost_peer_names_its_nodes() -> None:
    """The text is the message alone; the nodes are an attribute."""
    error = MADE[PeerLost]
    assert str(error) == "the actor of a3 died"
    assert error.nodes == ("a3", "s0")


def test_a_failed_rank_shows_its_rank_and_traceback() -> None:
    """The text names the rank and holds the user's traceback; the cause is the user's exception, or None."""
    error = MADE[RankFailed]
    assert str(error) == "rank 5 raised:\nTraceback ...\nValueError: no"
    assert isinstance(error.cause, ValueError)
    assert RankFailed(1, "").cause is None
