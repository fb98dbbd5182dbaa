"""Receiver-driven admission: a chunk starts when its receiver says that it is clear to send; there is no rate control.

As Meta runs RoCE for training, with DCQCN off (Gangidi et al., "RDMA over Ethernet for Distributed AI Training at Meta
Scale", SIGCOMM 2024): the receiving end of the collective library lets in as much as it has room for.  A sender asks for
every chunk when it has it; an adapter admits ``chunks`` at a time, over all its senders, who take turns.

Law: no more than ``chunks`` chunks are admitted and not yet wholly here; so an incast of any width fills a buffer with at
most ``chunks`` chunks.  With one, a link idles for the round trip of clear-to-send and data between two chunks; two hide it
where a chunk lasts longer than that, and their senders do not end together.

Not modelled: the bandwidth of requests and clear-to-sends.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

from pydantic import Field

from emu.congestion.base import Line, Parameters, Settings, settings_of
from emu.congestion.none import Uncontrolled

DEFAULT_CHUNKS: Final = 4


class AdmissionSettings(Settings):
    """``chunks``: admitted at a time."""

    chunks: Annotated[int, Field(ge=1, le=1 << 20)] = DEFAULT_CHUNKS


class Admission(Uncontrolled):
    """Both halves."""

    def __init__(self, line: Line, settings: AdmissionSettings) -> None:
        super().__init__(line)
        self._chunks = settings.chunks

    @property
    def asks(self) -> bool:
        return True

    @property
    def admits(self) -> int | None:
        return self._chunks


@lru_cache(maxsize=64)
def _settings(parameters: frozenset[tuple[str, object]]) -> AdmissionSettings:
    return settings_of(AdmissionSettings, "receiver_driven", dict(parameters))


def build(line: Line, parameters: Parameters) -> tuple[Admission, Admission]:
    """(sender, receiver).  Parameters: ``chunks``."""
    control = Admission(line, _settings(frozenset(parameters.items())))
    return control, control
