"""Jitter: how much later than its nominal time an occurrence starts. Stable: a function of job and nominal time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["jitter"]

# The numbers of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). They are frozen:
# the start of every jittered occurrence depends on them.
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def jitter(key_low: NDArray[np.uint64], nominal: NDArray[np.int64], span_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets in [0, span], whole milliseconds, int64[n] microseconds: uniform and the same for ever.

    `key_low` uint64[n] are 64 bits of each job's key, `nominal` its nominal instants, `span_us` 0 or more. The caller
    keeps the span below the distance to the next nominal time.
    """
    mixed = _mix(key_low ^ _mix(nominal.astype(np.uint64)))
    steps = (span_us // MS).astype(np.uint64) + np.uint64(1)
    return (mixed % steps).astype(np.int64) * MS


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
