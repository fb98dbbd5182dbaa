"""Keyed randomness: a draw is a pure function of the seed and of what is asked about.

Law: there is no stream and no state.  The same seed and key give the same draw
in any order, in any process, on any platform, so neither the order of frames
nor the driver can change a result.

Source: the finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; constants of Stafford's variant 13),
folded over the key.  Not for cryptography.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MULTIPLIER_1: Final = 0xBF58476D1CE4E5B9
_MULTIPLIER_2: Final = 0x94D049BB133111EB
_UNIT: Final = 2.0**-53


def mix(seed: int, *key: int) -> int:
    """64 uniform bits for ``key`` under ``seed``; ints count modulo 2^64."""
    state = seed & _MASK
    for value in (0, *key):
        state = ((state ^ (value & _MASK)) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MULTIPLIER_1) & _MASK
        state = ((state ^ (state >> 27)) * _MULTIPLIER_2) & _MASK
        state ^= state >> 31
    return state


def uniform(seed: int, *key: int) -> float:
    """A float in [0, 1), a multiple of 2^-53."""
    return (mix(seed, *key) >> 11) * _UNIT


def below(limit: int, seed: int, *key: int) -> int:
    """An int in [0, limit), for a ``limit`` of at least 1; its bias is under limit / 2^64."""
    return (mix(seed, *key) * limit) >> 64
