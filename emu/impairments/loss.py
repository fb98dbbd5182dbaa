"""loss: wire packets are lost, and the sender goes back to the lost one after a timeout.

Law: a verdict falls per wire packet (one MTU), never per chunk, and is keyed by
(seed, link, flow, number of the packet in its flow, attempt).  Chunks that are
whole MTUs can therefore be cut in any way without changing what is lost.  Data
is always delivered, once and whole: loss costs time and wire bytes only.

Recovery is go-back-N on the link (what RoCE adapters do without selective
repeat): all that follows the lost packet in its chunk is sent in vain, and
``timeout`` after the lost packet has left, it and the rest are sent again.

Not modelled: losses of acknowledgements, congestion control.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from emu.impairments.base import BaseImpairment, FrameKey
from emu.impairments.fields import PositiveTimePs
from emu.keyed import mix, uniform
from emu.units import PS_PER_MICROSECOND

_SALT: Final = 0x6C6F7373
_BLOCK: Final = 256
"""Packets that are decided together: with a small probability one draw clears a whole block."""

MAX_PROBABILITY: Final = 0.5
"""Each loss costs a timeout and a resend of all that follows, so that near 1 a chunk hardly ever gets through."""


def _probability(value: object) -> float:
    try:
        probability = float(str(value))
    except ValueError:
        probability = math.nan
    if not 0.0 <= probability <= MAX_PROBABILITY:
        raise ValueError(
            f"{value!r} is outside [0, {MAX_PROBABILITY:g}]; it is the share of wire packets lost, such as 1e-4; beyond it"
            " packets take more resends than sendings and a run hardly ends (for a link that is down use flap)"
        )
    return probability


def _pattern(value: object) -> str:
    pattern = str(value)
    if re.fullmatch("[01]+", pattern) is None:
        raise ValueError(f"{value!r} is not made of 0 and 1; write for example 0010 (1: lost), it repeats")
    return pattern


def _packets(value: object) -> frozenset[int]:
    parts = value if isinstance(value, list | tuple | set | frozenset) else re.split(r"[+;\s]+", str(value).strip())
    if not parts or not all(re.fullmatch("[0-9]+", str(part)) for part in parts):
        raise ValueError(f"{value!r} is not a list of packet numbers from 0; write for example 3+7+9")
    return frozenset(int(str(part)) for part in parts)


class Impairment(BaseImpairment):
    """One of ``probability=1e-4``, ``pattern=0010`` or ``packets=3+7``; and ``timeout=100us``.

    ``probability``: each sending of each wire packet is lost with it, independently.
    ``pattern``: repeated over the packets of each flow; 1 is lost at its first sending.
    ``packets``: the numbers, from 0, of a flow's packets that are lost at their first sending.
    ``timeout``: from the end of the lost packet until the sender starts again from it.
    """

    probability: Annotated[float, BeforeValidator(_probability)] | None = None
    pattern: Annotated[str, BeforeValidator(_pattern)] | None = None
    packets: Annotated[frozenset[int], BeforeValidator(_packets)] | None = None
    resend_after_ps: PositiveTimePs = Field(default=100 * PS_PER_MICROSECOND, alias="timeout")
    _log_kept: float = PrivateAttr(default=0.0)

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [name for name in ("probability", "pattern", "packets") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"loss was given {' and '.join(given) or 'no rule'}; give exactly one of probability, pattern, packets"
            )
        if self.probability:
            self._log_kept = math.log1p(-self.probability)
        return self

    @property
    def loses(self) -> bool:
        return True

    @property
    def lost_share(self) -> float:
        return self.probability or 0.0

    @property
    def timeout_ps(self) -> int:
        return self.resend_after_ps

    def loses_packet(self, seed: int, key: FrameKey, packet: int, attempt: int) -> bool:
        return self.first_lost(seed, key, packet, packet + 1, attempt) is not None

    def first_lost(self, seed: int, key: FrameKey, begin: int, end: int, attempt: int) -> int | None:
        if self.probability is not None:
            if self.probability == 0.0:
                return None
            for block in range(begin // _BLOCK, (end - 1) // _BLOCK + 1):
                for packet in self._lost_of_block(seed, key, block, attempt):
                    if packet >= end:
                        return None
                    if packet >= begin:
                        return packet
            return None
        if attempt > 0:
            return None
        if self.pattern is not None:
            length = len(self.pattern)
            candidates = range(begin, min(end, begin + length))
            return next((packet for packet in candidates if self.pattern[packet % length] == "1"), None)
        return min((packet for packet in self.packets or () if begin <= packet < end), default=None)

    def _lost_of_block(self, seed: int, key: FrameKey, block: int, attempt: int) -> Iterator[int]:
        """Lost packets of one block in order, by the geometric gaps between them (independent trials)."""
        base = mix(seed, _SALT, key.link, key.flow, block, attempt)
        offset = -1
        draw = 0
        while True:
            gap = math.log(1.0 - uniform(base, draw)) / self._log_kept
            if gap >= _BLOCK:
                return
            offset += 1 + int(gap)
            if offset >= _BLOCK:
                return
            yield block * _BLOCK + offset
            draw += 1
