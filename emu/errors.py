"""The error tree, by whose fault it is.

Every message names the value, the allowed range and the fix.  Errors cross
process borders, so each one pickles with all that it knows (tested).
"""

from __future__ import annotations

import traceback


class EmuError(Exception):
    """Anything emu raises on purpose.  ``exit_code`` is what the command line ends with."""

    exit_code = 1


class ConfigError(EmuError):
    """The user's input is wrong; found before anything starts."""

    exit_code = 2


class CollectiveMismatch(EmuError):
    """Ranks of one communicator called different things; the message names the odd rank and both sides."""


class Deadlock(EmuError):
    """Nothing can move any more; the message names the cycle of ranks or communicators."""


class RankLeft(EmuError):
    """A rank's function returned while its peers still wait for it in a collective."""


class Stalled(EmuError):
    """No progress within the timeout; the message says who waits for what."""


class PeerLost(EmuError):
    """An actor that carries accelerators or switches died.

    ``nodes`` are the names of the fabric's nodes that went with it.
    """

    def __init__(self, message: str, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(message, nodes)
        self.message = message
        self.nodes = nodes

    def __str__(self) -> str:
        return self.message


class RankFailed(EmuError):
    """A rank's function raised; carries the rank and the traceback's text.

    The user's exception is attached as ``cause`` where it pickles, else None.
    """

    def __init__(self, rank: int, traceback_text: str, cause: BaseException | None = None) -> None:
        super().__init__(rank, traceback_text, cause)
        self.rank = rank
        self.traceback_text = traceback_text
        self.cause = cause

    def __str__(self) -> str:
        return f"rank {self.rank} raised:\n{self.traceback_text}"


class FidelityError(EmuError):
    """The host could not keep pace and ``--strict`` asks for that to be an error."""

    exit_code = 5


class WireError(EmuError):
    """A frame or a handshake that does not belong to this run."""


class ScheduleError(EmuError):
    """A collective algorithm's schedule is wrong: found by the verifier before its first use."""


def fault(error: BaseException) -> str:
    """What went wrong in foreign code and where it did, in one line: ``KeyError: 'x' (/lab/algos.py, line 12)``."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text
