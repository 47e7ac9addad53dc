"""Ends of a span of time as users write them, alike in Python and on the command line. Pure: whoever asks says what time it is."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError
from ..model.nouns import parse_duration, to_datetime

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bound", "coming", "span"]

_SPAN: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _is_span(value: Any) -> bool:
    return isinstance(value, timedelta) or (isinstance(value, str) and _SPAN.fullmatch(value.strip()) is not None)


def _day(value: Any, what: str) -> datetime | None:
    """The first instant of a day, in UTC; None for what is no day."""
    if isinstance(value, str) and _DAY.fullmatch(value):
        try:
            value = date.fromisoformat(value)
        except ValueError as e:
            raise InvalidArgumentError(f"{what}: {value!r}: {e}") from None
    if not isinstance(value, date) or isinstance(value, datetime):
        return None
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def bound(value: Any, what: str, now_us: Callable[[], int], *, end: bool = False) -> Any:
    """`since` or `until`: a duration is so long ago, a day (of UTC) begins with its first instant and, as the `end`, ends with its last.
    Anything else as it is: an aware datetime or RFC 3339 text. InvalidArgumentError.
    """
    if _is_span(value):
        return to_datetime(max(0, now_us() - parse_duration(value, what)))
    day = _day(value, what)
    return value if day is None else day + timedelta(days=1) if end else day


def span(since: Any, until: Any, now_us: Callable[[], int]) -> dict[str, Any]:
    """Both ends of a listing."""
    return {"since": bound(since, "since", now_us), "until": bound(until, "until", now_us, end=True)}


def coming(value: Any, what: str, now_us: Callable[[], int]) -> Any:
    """`at`: a duration is so long from now; else as `bound`."""
    return to_datetime(now_us() + parse_duration(value, what)) if _is_span(value) else bound(value, what, now_us)
