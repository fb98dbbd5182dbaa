"""Congestion control: when a queue pair may send its next packet.

A control is one file of this folder, ``emu.congestion.<name>:build``, or ``module:function`` of a user's::

    def build(line: Line, parameters: Parameters) -> tuple[SenderControl, ReceiverControl]
    MARKING = emu.topologies.headroom.dcqcn_marking     # only where it needs ECN: the thresholds that are not given, a function
                                                        # of rate_bps, delay_bytes and mtu_bytes that returns a Marking

The sender's half is told what happens and answers ``ready_ps``; the receiver's half decides which packets are answered with a
CNP, and whether each is acknowledged.  ``pytest tests/unit/test_conformance.py`` tests every file of this folder.

Law: told the time, never reads it; integers and fractions that are the same everywhere; a control never loses a
wake-up: when ``ready_ps`` is FOREVER_PS, bytes are outstanding, its receiver acknowledges, and only an answer can change
it; when it is a time, it stays that time until the queue pair sends or hears something.  A run in which a control breaks
this ends with a ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from emu.parameters import validate
from emu.units import FOREVER_PS as FOREVER_PS


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a control knows of its path: the adapter's rate, the round trip of an empty fabric, the packet's payload."""

    rate_bps: int
    round_trip_ps: int
    quantum_bytes: int
    mtu_bytes: int


class SenderControl(Protocol):
    """One queue pair's sending half."""

    @property
    def asks(self) -> bool:
        """Whether a chunk may start only when the receiver has granted it."""
        ...

    def ready_ps(self, now_ps: int, outstanding_bytes: int, n_bytes: int) -> int:
        """When a packet of ``n_bytes`` may go: ``now_ps`` or before, later, or FOREVER_PS until an answer comes.

        The last packet of a chunk is shorter than the rest.  ``outstanding_bytes``: sent and neither answered nor taken for lost.
        Where the receiver does not acknowledge, it is no measure of what is under way: recovery's own answers, which stand for
        several packets, lessen it, and without recovery nothing does.
        """
        ...

    def sent(self, now_ps: int, n_bytes: int) -> None: ...
    def acknowledged(self, now_ps: int, n_bytes: int, delay_ps: int, marked: bool) -> None:
        """Called for every packet that comes where :attr:`ReceiverControl.acknowledges`, else never.

        ``delay_ps``: from sending the packet to this answer.
        """
        ...

    def notified(self, now_ps: int) -> None:
        """A CNP came."""
        ...

    def lost(self, now_ps: int, n_bytes: int, *, trimmed: bool) -> None:
        """A NACK (or a trimmed header) told of it."""
        ...

    def timed_out(self, now_ps: int) -> None: ...

    def rate_bps(self, now_ps: int) -> int:
        """What it allows now; the line's rate where a window rules.  For reports."""
        ...


class ReceiverControl(Protocol):
    """One queue pair's receiving half."""

    @property
    def acknowledges(self) -> bool:
        """Whether every packet is acknowledged, with the time it was sent and its mark; a window needs it."""
        ...

    @property
    def admits(self) -> int | None:
        """How many chunks an adapter lets come at a time, where its senders ask."""
        ...

    def notifies(self, now_ps: int, marked: bool) -> bool:
        """Whether this packet is answered with a CNP."""
        ...


Parameters = Mapping[str, int | Fraction | str]
"""What a fabric's class says for its control: by name; text as a user writes it (``4us``, ``5/1024``)."""


class Settings(BaseModel):
    """Base of a control's parameters: frozen, and what is not known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


Model = TypeVar("Model", bound=Settings)


def settings_of(
    model: type[Model], control: str, parameters: Mapping[str, object], preset: Mapping[str, object] | None = None
) -> Model:
    """``parameters`` over ``preset`` as the control's settings.  Raises ConfigError for what is unknown or out of range."""
    return validate(model, {**(preset or {}), **parameters}, where=f"parameters of {control}")
