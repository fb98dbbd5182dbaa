"""Circulants: cabling n alike places evenly with each other when each has so many ports.

Law: place i and place i + d use the same two ports whatever i is, so that all places look alike.  Ports are dealt in rounds
over the distances 1 to n - 1; those left over go to the nearest places on both sides, and an odd one to the place opposite,
where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator


def circulant(n_places: int, n_ports: int) -> Iterator[tuple[int, int, int, int]]:
    """(place, port, other place, its port) of each cable, the lower place first."""
    ports: dict[int, list[int]] = {}
    for port, distance in enumerate(_distances(n_places, n_ports)):
        ports.setdefault(distance, []).append(port)
    for place in range(n_places):
        for distance, own in ports.items():
            other = (place + distance) % n_places
            if place < other:
                for port, back in zip(own, ports[n_places - distance], strict=True):
                    yield place, port, other, back


def _distances(n_places: int, n_ports: int) -> list[int]:
    """The distance that each port leads to."""
    if n_places < 2:
        return []
    rounds, left = divmod(n_ports, n_places - 1)
    near = range(1, left // 2 + 1)
    opposite = [n_places // 2] if left % 2 and n_places % 2 == 0 else []
    last = [*near, *opposite, *(n_places - distance for distance in reversed(near))]
    return [*range(1, n_places)] * rounds + last
