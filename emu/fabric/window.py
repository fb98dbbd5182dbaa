"""Window: how many bytes a connection may have on their way, and what chunks suit that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from emu.topologies.graph import Link, Topology
from emu.units import PS_PER_SECOND

MIN_WINDOW_BYTES: Final = 16 * 2**20
_MIN_CHUNK_BYTES: Final = 4 * 2**10


def window_bytes(links: Sequence[Link], round_trip_ps: Callable[[], int], *, least_bytes: int = MIN_WINDOW_BYTES) -> int:
    """The narrowest ``window`` of the ``links`` on the way; by default twice rate times round trip, at least ``least_bytes``."""
    given = [link.window_bytes for link in links if link.window_bytes is not None]
    if given:
        return min(given)
    rate_bps = min((link.rate_bps for link in links), default=0)
    return max(least_bytes, 2 * rate_bps * round_trip_ps() // (8 * PS_PER_SECOND))


def chunk_limit_bytes(topology: Topology) -> int:
    """The largest chunk that emu picks itself: a quarter of the narrowest ``window`` in the fabric, 4 KiB if that is less."""
    given = [link.window_bytes for link in topology.links if link.window_bytes is not None]
    return max(_MIN_CHUNK_BYTES, min(given) // 4) if given else MIN_WINDOW_BYTES
