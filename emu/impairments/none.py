"""none: changes nothing.  The baseline of a comparison, and the smallest example of an impairment."""

from __future__ import annotations

from emu.impairments.base import BaseImpairment


class Impairment(BaseImpairment):
    """The link does what its rate and latency say.  Takes no keys."""
