"""No congestion control: a queue pair sends whenever its port can."""

from __future__ import annotations

from emu.congestion.base import Line, Parameters
from emu.errors import ConfigError


class Uncontrolled:
    """Both halves."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def acknowledges(self) -> bool:
        return False

    @property
    def asks(self) -> bool:
        return False

    @property
    def admits(self) -> int | None:
        return None

    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        return now_ps

    def sent(self, now_ps: int, n_bytes: int) -> None:
        """Nothing to keep."""

    def acknowledged(self, now_ps: int, n_bytes: int, delay_ps: int, marked: bool) -> None:
        """Nothing to learn."""

    def notified(self, now_ps: int) -> None:
        """Not obeyed."""

    def lost(self, now_ps: int, n_bytes: int, *, trimmed: bool) -> None:
        """Recovery sends it again; the rate stays."""

    def timed_out(self, now_ps: int) -> None:
        """Recovery sends again; the rate stays."""

    def rate_bps(self, now_ps: int) -> int:
        return self._line.rate_bps

    def notifies(self, now_ps: int, marked: bool) -> bool:
        return False


def build(line: Line, parameters: Parameters) -> tuple[Uncontrolled, Uncontrolled]:
    """(sender, receiver).  Raises ConfigError for any parameter."""
    for name in parameters:
        raise ConfigError(f"parameters of none: {name!r}: it has none; leave it out, or name another congestion control")
    control = Uncontrolled(line)
    return control, control
