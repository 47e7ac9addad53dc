"""The types of what users give: words, durations, instants, schedules, policies. For type checkers alone.

Values are checked when they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    from .policies import Catchup, Overlap, Retry

__all__ = [
    "CalendarFields", "CatchupWord", "Duration", "Instant", "JobFields", "Moment", "OverlapWord", "Policies", "QueueSettings",
    "RunPolicies", "Schedulable", "Schedules", "Unique",
]

Duration: TypeAlias = timedelta | float | str  # seconds, or text such as "90s"
Instant: TypeAlias = datetime | str  # an aware datetime, or RFC 3339
Moment: TypeAlias = datetime | date | timedelta | str  # an Instant, a day, or a duration from now
OverlapWord: TypeAlias = Literal["skip", "allow", "buffer_one", "buffer_latest", "buffer_all", "cancel_other", "kill_other"]
CatchupWord: TypeAlias = Literal["latest", "earliest", "all", "skip"]
_UniqueField: TypeAlias = Literal["task", "args", "queue", "concurrency_key"]
Unique: TypeAlias = bool | _UniqueField | Sequence[_UniqueField] | set[_UniqueField] | frozenset[_UniqueField]


class Schedulable(Protocol):
    """Cron, Every, At or Manual."""

    def to_wire(self) -> dict[str, Any]:
        """As plain data."""

    def param_us(self) -> int:
        """The instant of its own, if it has one."""


Schedules: TypeAlias = Schedulable | Sequence[Schedulable]  # one, or several whose times are put together


class RunPolicies(TypedDict, total=False):
    """The policies of a run: what `enqueue` takes by name. None is "not given"."""

    queue: str | None
    priority: int | None
    timeout: Duration | None
    heartbeat_timeout: Duration | None
    retry: Retry | int | None
    expires_after: Duration | None
    concurrency_key: str | None
    concurrency: int | None
    redact: str | Sequence[str] | None
    on_success: str | None
    on_failure: str | None
    on_dead: str | None


class Policies(RunPolicies, total=False):
    """The policies of a job: what `put` takes by name. None is "not given"; for `set` it takes the job's own away."""

    overlap: OverlapWord | Overlap | None
    catchup: CatchupWord | Catchup | None
    start: Instant | None
    end: Instant | None
    max_runs: int | None
    jitter: Duration | None  # or text such as "10%"
    calendar: str | Sequence[str] | None
    late_after: Duration | None
    on_missed: str | None
    pause_after: int | None


class JobFields(Policies, total=False):
    """What a Job takes by name: policies, and for `apply` its note and whether it is paused."""

    note: str | None
    paused: bool | None


class QueueSettings(TypedDict, total=False):
    """What `queue` takes by name. None takes a setting away."""

    concurrency: int | None
    rate: str | None
    burst: int | None
    key_concurrency: int | None
    key_rate: str | None
    weights: Mapping[str, int] | None


class CalendarFields(TypedDict, total=False):
    """What `calendar` takes by name."""

    mode: Literal["exclude", "include"]
    tz: str
    dates: date | str | Sequence[date | str]
    yearly: str | Sequence[str]
    weekdays: str | Sequence[str]
    windows: Any  # pairs of instants
    daily: Any  # texts, pairs, or maps with from, to, weekdays
