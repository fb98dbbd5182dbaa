"""latency: a longer wire.  Adds a constant to the link's latency.

Law: head and tail move by the same time, so bandwidth is untouched; only a
window that no longer covers rate x round trip makes a longer link slower.
"""

from __future__ import annotations

from pydantic import Field

from emu.impairments.base import BaseImpairment, FrameKey
from emu.parameters import TimePs


class Impairment(BaseImpairment):
    """``added=1ms``: this much more latency, one way."""

    added_ps: TimePs = Field(alias="added")

    @property
    def changes_delay(self) -> bool:
        return True

    @property
    def most_delay_ps(self) -> int:
        return self.added_ps

    def delay_ps(self, seed: int, key: FrameKey, now_ps: int) -> int:
        return self.added_ps
