"""The types of what users give: words, durations, instants, schedules. For type checkers alone.

Values are checked when they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

__all__ = [
    "CalendarFields", "CatchupWord", "Duration", "Instant", "Moment", "OverlapWord", "QueueSettings", "Schedulable", "Schedules", "Unique",
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
