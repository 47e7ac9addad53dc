"""Lag histograms: counts in buckets 2 % wide, so percentiles cost nothing to keep and a few kilobytes to hold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PER_DOUBLING: Final = 36  # 2**(1/36) is 1.9 %
_BUCKETS: Final = _PER_DOUBLING * 44  # up to 2**44 µs, half a year
_QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


class Histogram:
    """Lags in microseconds; negative ones count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.max_us = 0

    def add(self, lags_us: NDArray[np.int64]) -> None:
        """Count them all."""
        if not len(lags_us):
            return
        lags = np.maximum(lags_us, 1)
        self.count += len(lags)
        self.max_us = max(self.max_us, int(lags.max()))
        index = np.minimum((np.log2(lags) * _PER_DOUBLING).astype(np.int64), _BUCKETS - 1)
        self._counts += np.bincount(index, minlength=_BUCKETS)

    def quantile(self, q: float) -> float:
        """The upper edge in milliseconds of the bucket that holds the quantile; never more than the maximum."""
        if not self.count:
            return 0.0
        index = int(np.searchsorted(self._counts.cumsum(), q * self.count))
        return float(min(2.0 ** ((index + 1) / _PER_DOUBLING), self.max_us)) / 1000

    def summary(self) -> dict[str, Any]:
        """count, and p50, p99, p999, max in milliseconds."""
        return {"count": self.count} | {name: round(self.quantile(q), 3) for name, q in _QUANTILES} | {"max": self.max_us / 1000}
