"""Background traffic: messages of nobody's collective, from one endpoint to another."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from emu.faults.base import BaseFault, Target
from emu.parameters import PositiveBytes, RateBps

MOST_MESSAGE_BYTES: Final = 64 * 2**20


class Background(BaseFault):
    """``message=1MiB``: the size of each.  ``rate=20GB/s``: one message in this time (default: back to back, at the rate of
    the slowest link on the way, or of those that its equal routes share).  No more than a connection's window is on its way."""

    target: ClassVar[Target] = Target.PAIR

    rate_bps: RateBps | None = Field(default=None, alias="rate")
    message_bytes: Annotated[PositiveBytes, Field(le=MOST_MESSAGE_BYTES)] = Field(default=2**20, alias="message")


KINDS: Final[dict[str, type[BaseFault]]] = {"background": Background}
