"""What an impairment may do to a link.

Law: an impairment returns a verdict, it never sleeps and keeps no state.  Its
answers depend on its parameters, the seed, and the key of what it is asked
about, never on the order of the questions, so neither the order of frames nor
the chunk size nor the driver changes them.

Several on one link compose: delays add, capacity factors multiply, a packet is
lost if any of them loses it.

To add one, drop a file here: its name is the kind, ``Impairment`` its class.  Or write a class anywhere that can be
imported, and say ``--impair 'LINKS=my_lab.wires:Slow,key=value'``; ``my_lab.wires`` alone stands for ``my_lab.wires:Impairment``.
Its docstring shows an example of its keys first (``added=1ms``) and speaks of all of them.  Times are int ps, factors
Fraction or int.  ``tests/unit/test_conformance.py`` finds the file and checks what is said here, milliseconds on too.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict


class FrameKey(NamedTuple):
    """What a random draw is keyed by, besides the seed."""

    link: int
    flow: int
    """Identifies (source rank, target rank, channel)."""
    sequence: int
    """Number of the frame within its flow on this link."""


class Capacity(NamedTuple):
    """Share of the link's rate that is left, and until when (ps; None: for ever)."""

    factor: Fraction
    until_ps: int | None


FULL = Capacity(Fraction(1), None)


class BaseImpairment(BaseModel):
    """The no-op: a link that does nothing but what its rate and latency say.

    Subclasses declare their parameters as fields; unknown keys are refused.
    Set ``changes_capacity`` / ``changes_delay`` / ``loses`` for what is overridden, so that
    a link asks only what it must.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @property
    def changes_capacity(self) -> bool:
        return False

    @property
    def changes_delay(self) -> bool:
        return False

    @property
    def loses(self) -> bool:
        return False

    def capacity(self, seed: int, link: int, now_ps: int) -> Capacity:
        """Piecewise constant factor on the rate, from ``now_ps`` on."""
        return FULL

    def delay_ps(self, seed: int, key: FrameKey, now_ps: int) -> int:
        """Time added to the latency of a frame whose head leaves at ``now_ps``."""
        return 0

    @property
    def most_delay_ps(self) -> int | None:
        """What :meth:`delay_ps` never exceeds; None where there is no bound."""
        return None if self.changes_delay else 0

    @property
    def lost_share(self) -> float:
        """Share of wire packets that each sending loses in the long run; 0 where what is lost comes when it is sent again."""
        return 0.0

    def loses_at(self, now_ps: int) -> bool:
        """Whether a sending that begins at ``now_ps`` can lose anything; only where ``loses``."""
        return True

    def loses_packet(self, seed: int, key: FrameKey, packet: int, attempt: int) -> bool:
        """Whether wire packet ``packet`` (numbered from 0 within its flow on this link) is lost on sending ``attempt``.

        ``attempt`` counts from 0.
        """
        return False

    def first_lost(self, seed: int, key: FrameKey, begin: int, end: int, attempt: int) -> int | None:
        """The first of the packets ``begin`` to ``end`` - 1 that is lost, or None.

        Agrees with :meth:`loses_packet`; override it where that can be told faster.
        """
        return next((packet for packet in range(begin, end) if self.loses_packet(seed, key, packet, attempt)), None)

    @property
    def timeout_ps(self) -> int:
        """How long after a lost packet the sender goes back and sends again from it; only where ``loses``."""
        return 0
