"""A forecast as a value: what starts when, who makes the peak, how long it keeps the workers busy, what spreading would change. No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ..model.errors import InternalError
from ..model.nouns import US, display_name, to_datetime
from .values import rfc3339

__all__ = ["Contributor", "Drain", "Forecast", "Peak", "QueueForecast", "WhatIf"]


def _moment(us: Any) -> datetime:
    moment = to_datetime(us)
    if moment is None:
        raise InternalError("the server's forecast has no end")
    return moment


@dataclass(frozen=True, slots=True)
class Peak:
    """The first of the buckets in which most starts."""

    at: datetime  # begin of the bucket
    starts: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"at": rfc3339(self.at), "starts": self.starts}


def _peak(raw: Any) -> Peak | None:
    return None if raw is None else Peak(_moment(raw["at_us"]), raw["starts"])


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """The starts of one queue; `(others)` stands for those that were too many to be told one by one."""

    name: str
    starts: int
    peak: Peak | None
    counts: tuple[int, ...] = field(repr=False)  # one a bucket

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.name, "starts": self.starts, "peak": self.peak and self.peak.to_dict(), "counts": list(self.counts)}


@dataclass(frozen=True, slots=True)
class Contributor:
    """Jobs of one namespace and schedule that start in the peak's bucket."""

    namespace: str
    schedule: str  # the expression, or a few words
    tz: str  # of cron, else ""
    starts: int
    jobs: int  # or runs, of those that wait already
    job: str | None  # its name, when it is one alone

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "namespace": self.namespace, "schedule": self.schedule, "tz": self.tz, "starts": self.starts, "jobs": self.jobs,
            "job": self.job,
        }


@dataclass(frozen=True, slots=True)
class Drain:
    """How long the peak keeps the workers busy, by the measured run time of each task and one run at a time on each worker.

    `after` counts from the peak to the moment at which nothing waits any more; None has a reason in `why`. Tasks in `unmeasured` (at most
    10 are named) were taken at the mean of the others.
    """

    after: timedelta | None
    inside: bool | None  # False: not within the span of the forecast
    workers: int
    measured: int  # runs
    unmeasured: tuple[str, ...]
    why: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; seconds."""
        return {
            "after_s": None if self.after is None else self.after.total_seconds(), "inside": self.inside, "workers": self.workers,
            "measured": self.measured, "unmeasured": list(self.unmeasured), "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The peak, if the cron jobs that start on whole hours (UTC) were spread: by H over their hour, by jitter over `jitter`. Means."""

    moved: int  # starts on whole hours
    h_peak: Peak | None
    jitter: timedelta
    jitter_peak: Peak | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; seconds."""
        return {
            "moved": self.moved, "h_peak": self.h_peak and self.h_peak.to_dict(), "jitter_s": self.jitter.total_seconds(),
            "jitter_peak": self.jitter_peak and self.jitter_peak.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Forecast:
    """An exact histogram of the coming starts: `counts[i]` start in start + i * bucket. Instants are aware, in UTC.

    The first bucket counts from `now` on. `jobs`: active ones with a time in the span; `paused`: jobs that are paused, in any queue, and
    counted nowhere else; `delayed`, `retries`: runs among the starts that wait for their instant already. `held`: nothing starts before
    the operator's release.
    """

    now: datetime
    start: datetime
    end: datetime
    bucket: timedelta
    starts: int
    counts: tuple[int, ...] = field(repr=False)
    peak: Peak | None
    queues: tuple[QueueForecast, ...]
    held: bool
    jobs: int
    paused: int
    delayed: int
    retries: int
    contributors: tuple[Contributor, ...]
    drain: Drain
    what_if: WhatIf | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: times as RFC 3339 text, durations in seconds."""
        return {
            "now": rfc3339(self.now), "start": rfc3339(self.start), "end": rfc3339(self.end), "bucket_s": self.bucket.total_seconds(),
            "starts": self.starts, "peak": self.peak and self.peak.to_dict(), "held": self.held, "jobs": self.jobs, "paused": self.paused,
            "delayed": self.delayed, "retries": self.retries, "contributors": [c.to_dict() for c in self.contributors],
            "drain": self.drain.to_dict(), "what_if": self.what_if and self.what_if.to_dict(), "counts": list(self.counts),
            "queues": [q.to_dict() for q in self.queues],
        }


def _counts(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 8}q", data)


def forecast_from_wire(raw: Any) -> Forecast:
    """The answer of the verb `forecast`. InternalError when it is none."""
    try:
        drain, spread = raw["drain"], raw["what_if"]
        return Forecast(
            _moment(raw["now_us"]), _moment(raw["from_us"]), _moment(raw["until_us"]), timedelta(seconds=raw["bucket_us"] / US),
            raw["starts"], _counts(raw["counts"]), _peak(raw["peak"]),
            tuple(QueueForecast(q["name"], q["starts"], _peak(q["peak"]), _counts(q["counts"])) for q in raw["queues"]),
            raw["held"], raw["jobs"], raw["paused"], raw["delayed"], raw["retries"],
            tuple(
                Contributor(c["namespace"], c["schedule"], c["tz"], c["starts"], c["jobs"], c["job"] and display_name(c["job"]))
                for c in raw["contributors"]
            ),
            Drain(
                None if drain["after_us"] is None else timedelta(microseconds=drain["after_us"]), drain["inside"], drain["workers"],
                drain["measured"], tuple(drain["unmeasured"]), drain["why"],
            ),
            None if spread is None else WhatIf(
                spread["moved"], _peak(spread["h"]), timedelta(microseconds=spread["jitter_us"]), _peak(spread["jitter"])
            ),
        )
    except (KeyError, TypeError, struct.error) as e:
        raise InternalError(f"the server's answer is no forecast: {type(e).__name__}: {e}") from None
