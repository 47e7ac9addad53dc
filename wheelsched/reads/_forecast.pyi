"""Counting coming starts: jobs that start alike are one line with a weight, and lines are counted into buckets of time.

Instants are int64 microseconds since the epoch, UTC.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class Lines:
    """Distinct (spec, x, y, n) with how many jobs share them, numbered in order of their first coming."""

    def __new__(cls, expected: int) -> Lines:
        """Room for so many lines is taken at once; more still fit. MemoryError."""
    def __len__(self) -> int: ...
    def add(
        self, spec: NDArray[np.uint32], x: NDArray[np.int64], y: NDArray[np.int64], n: NDArray[np.int64], row: NDArray[np.uint32]
    ) -> None:
        """One more of each; `row` is remembered for the first of a line. ValueError: the columns differ in length."""
    def slice(
        self, start: int, stop: int
    ) -> tuple[
        NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]
    ]:
        """(spec, x, y, n, weight, first row) of lines start to stop, copied."""

def count_at(
    starts: NDArray[np.int64], work: NDArray[np.float64], hours: NDArray[np.int64], from_us: int, bucket_us: int,
    at_us: NDArray[np.int64], row: NDArray[np.uint32], weight: NDArray[np.int64], cost: NDArray[np.float64], sharp: NDArray[np.uint8],
) -> None:
    """Count instants: `weight` into starts[row, bucket] and `cost` into work[bucket]; what lies outside the buckets is left out.

    Of the `sharp` ones that lie on a whole hour (UTC), the weight goes into hours[hour] too, from the hour of `from_us` on.
    IndexError for a row that isn't there, ValueError when columns differ in length: nothing was counted.
    """

def count_every(
    starts: NDArray[np.int64], work: NDArray[np.float64], every: NDArray[np.int64], bucket: NDArray[np.int64],
    first: NDArray[np.int64], n: NDArray[np.int64], row: NDArray[np.uint32], weight: NDArray[np.int64], cost: NDArray[np.float64],
) -> None:
    """Count `n` starts at first, first + every, ...: all of a line in one unit of its own, from the first bucket on.

    Takes at most min(n, buckets) steps a line. Errors as `count_at`.
    """
