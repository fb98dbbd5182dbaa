"""What the tests of calls under virtual time share: sessions on small fabrics, and checks of what they gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emu import Session
from emu.errors import EmuError, RankFailed
from emu.topologies.graph import Topology

MIB = 2**20
MS = 10**9
"""Picoseconds in a millisecond."""


def session(
    fabric: str | Topology = "star", *, payload: bool = True, seed: int = 0, impair: tuple[str, ...] = (), **settings: Any
) -> Session:
    """A simulating session; settings as ``--set`` takes them."""
    texts = {key: str(value) for key, value in settings.items()}
    return Session(fabric, settings=texts, driver="simulate", payload=payload, seed=seed, impairments=impair)


def star(ranks: int, *, rate: str = "100MB/s", latency: str = "1ms", **options: Any) -> Session:
    """One switch; every rank on a full-duplex link of 100 MB/s, 1 ms from rank to rank."""
    return session("star", ranks=ranks, rate=rate, latency=latency, **options)


def on_star(ranks: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Results of one run on a fresh star."""
    with star(ranks, **options) as opened:
        return opened.run(function, *args)


def blank(n_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A placeholder of any size that takes no memory, for runs without payload."""
    return np.broadcast_to(np.zeros(1, dtype=np.uint8), (n_bytes,))


def failure(kind: type[EmuError], opened: Session, function: Callable[..., Any], *args: Any) -> str:
    """The message of the error that the run ends with."""
    with pytest.raises(kind) as caught:
        opened.run(function, *args)
    return str(caught.value)


def refusal(opened: Session, function: Callable[..., Any], *args: Any) -> str:
    """The message of the ConfigError with which a rank's call was refused."""
    with pytest.raises(RankFailed) as caught:
        opened.run(function, *args)
    cause = caught.value.cause
    assert cause is not None and type(cause).__name__ == "ConfigError", caught.value
    assert "\n" not in str(cause)
    return str(cause)
