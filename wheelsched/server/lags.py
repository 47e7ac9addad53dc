"""Lag histograms: counts in buckets 2 % wide, so percentiles cost nothing to keep and a few kilobytes to hold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PER_DOUBLING: Final = 36  # 2**(1/36) is 1.9 %
_BUCKETS: Final = _PER_DOUBLING * 44  # up to 2**44 µs, half a year
_EDGES_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0)
_QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


class Histogram:
    """Lags in microseconds; negative ones count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.max_us = 0
        self.sum_us = 0

    def add(self, lags_us: NDArray[np.int64]) -> None:
        """Count them all."""
        if not len(lags_us):
            return
        lags = np.maximum(lags_us, 1)
        self.count += len(lags)
        self.max_us = max(self.max_us, int(lags.max()))
        self.sum_us += int(np.maximum(lags_us, 0).sum())
        index = np.minimum((np.log2(lags) * _PER_DOUBLING).astype(np.int64), _BUCKETS - 1)
        self._counts += np.bincount(index, minlength=_BUCKETS)

    def quantile(self, q: float) -> float:
        """The upper edge in milliseconds of the bucket that holds the quantile; never more than the maximum."""
        if not self.count:
            return 0.0
        index = int(np.searchsorted(self._counts.cumsum(), q * self.count))
        return float(min(2.0 ** ((index + 1) / _PER_DOUBLING), self.max_us)) / 1000

    def cumulative(self) -> dict[str, Any]:
        """`sum_s`, and `le`: [seconds, how many lags were not longer] for fixed edges, 2 % near; for those who collect metrics."""
        below = np.concatenate(([0], self._counts.cumsum()))
        return {"sum_s": self.sum_us / 1e6, "le": [[edge, int(below[int(np.log2(edge * 1e6) * _PER_DOUBLING)])] for edge in _EDGES_S]}

    def summary(self) -> dict[str, Any]:
        """count, and p50, p99, p999, max in milliseconds."""
        return {"count": self.count} | {name: round(self.quantile(q), 3) for name, q in _QUANTILES} | {"max": self.max_us / 1000}
