"""What a histogram of coming starts leads to: how long its peak keeps the workers busy, and what spreading would change. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import US

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOUR_US: Final = 3_600 * US
JITTER_US: Final = 300 * US


def peak_of(counts: NDArray[Any], from_us: int, bucket_us: int) -> dict[str, int] | None:
    """The first of the highest buckets as {at_us, starts}, fractions rounded up; None when nothing starts."""
    at = int(counts.argmax())
    high = int(np.ceil(counts[at]))
    return {"at_us": from_us + at * bucket_us, "starts": high} if high else None


def drain_us(work_us: NDArray[np.float64], peak: int, bucket_us: int, workers: int, waiting_us: float) -> tuple[int, bool]:
    """(microseconds from the begin of bucket `peak` until nothing waits any more, whether that is inside the span).

    `work_us`: what arrives in each bucket, as run time; each of `workers` does one microsecond of it in a microsecond. `waiting_us`: what
    waits already. Work arrives at the begin of its bucket. After the last bucket nothing more arrives.
    """
    can = float(workers * bucket_us)
    flow = np.cumsum(work_us - can)
    flow += waiting_us
    left = flow - np.minimum(0, np.minimum.accumulate(flow))  # what is not done at the end of each bucket
    empty = np.flatnonzero(left[peak:] <= 1e-6)
    if not len(empty):
        return round((len(work_us) - peak) * bucket_us + left[-1] / workers), False
    end = peak + int(empty[0])
    before = float(left[end - 1]) if end else waiting_us
    return round((end - peak) * bucket_us + (before + work_us[end]) / workers), True


def what_if(total: NDArray[np.int64], hours: NDArray[np.int64], from_us: int, bucket_us: int) -> dict[str, Any]:
    """The peak, if the starts on whole hours (`hours`: how many, from the hour of `from_us` on) were spread over them.

    By H each goes to a minute of its hour, which hashing makes nearly even; by jitter evenly over 5 minutes. Both are means.
    """
    first = from_us // HOUR_US * HOUR_US
    sharp = np.flatnonzero(hours)
    at = first + sharp * HOUR_US
    weight = hours[sharp].astype(np.float64)
    rest = total.astype(np.float64)
    np.subtract.at(rest, (at - from_us) // bucket_us, weight)
    spread = rest.copy()
    minutes = (at[:, None] + np.arange(60, dtype=np.int64) * 60 * US - from_us) // bucket_us
    _add(spread, minutes, np.broadcast_to(weight[:, None] / 60, minutes.shape))
    jittered = rest
    covered = np.arange(-(-JITTER_US // bucket_us) + 1, dtype=np.int64)
    bucket = (at[:, None] - from_us) // bucket_us + covered
    begin = from_us + bucket * bucket_us
    share = np.clip(np.minimum(begin + bucket_us, at[:, None] + JITTER_US) - np.maximum(begin, at[:, None]), 0, None) / JITTER_US
    _add(jittered, bucket, share * weight[:, None])
    return {
        "moved": int(hours.sum()), "h": peak_of(_tidy(spread), from_us, bucket_us), "jitter_us": JITTER_US,
        "jitter": peak_of(_tidy(jittered), from_us, bucket_us),
    }


def _add(counts: NDArray[np.float64], bucket: NDArray[np.int64], weight: NDArray[np.float64]) -> None:
    inside = bucket < len(counts)
    np.add.at(counts, bucket[inside], weight[inside])


def _tidy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without the dust of sums of fractions."""
    return np.round(counts, 6)
