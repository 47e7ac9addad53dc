"""OnCalendar= of systemd, and its time spans, into our schedules. No I/O.

An expression is `[weekdays] [date] [time] [zone]` or a word such as `daily`. Date and time have components: `*`, a number, a
range `a..b`, each with a step `/n`, joined by commas; `~` before the day counts from the month's end. A weekday and a date must both
match. What can't be one cron expression is an InvalidArgumentError that says why.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ...model.errors import InvalidArgumentError
from ...model.nouns import US
from ...schedules.schedule import At, Cron
from ...schedules.zonedata import zone_names

__all__ = ["calendar", "span_us"]

_WORDS: Final = {
    "minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00", "weekly": "Mon *-*-* 00:00:00",
    "monthly": "*-*-01 00:00:00", "quarterly": "*-01,04,07,10-01 00:00:00", "semiannually": "*-01,07-01 00:00:00",
    "semi-annually": "*-01,07-01 00:00:00", "biannually": "*-01,07-01 00:00:00", "bi-annually": "*-01,07-01 00:00:00",
    "yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00",
}
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DATE: Final = re.compile(r"(?:([^-~]+)-)?([^-~]+)([-~])([^-~]+)")
_TIME: Final = re.compile(r"([^:]+):([^:]+)(?::([^:]+))?")
_ITEM: Final = re.compile(r"(\*|\d+)(?:\.\.(\d+))?(?:/(\d+))?", re.ASCII)
_SPAN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµμ]*)")
_YEAR_MAX: Final = 2099

_SECOND, _MINUTE, _HOUR, _DAY = US, 60 * US, 3_600 * US, 86_400 * US
_UNITS: Final = {
    "": _SECOND, "usec": 1, "us": 1, "µs": 1, "μs": 1, "msec": 1_000, "ms": 1_000, "seconds": _SECOND, "second": _SECOND, "sec": _SECOND,
    "s": _SECOND, "minutes": _MINUTE, "minute": _MINUTE, "min": _MINUTE, "m": _MINUTE, "hours": _HOUR, "hour": _HOUR, "hr": _HOUR,
    "h": _HOUR, "days": _DAY, "day": _DAY, "d": _DAY, "weeks": 7 * _DAY, "week": 7 * _DAY, "w": 7 * _DAY, "months": 2_629_800 * US,
    "month": 2_629_800 * US, "M": 2_629_800 * US, "years": 31_557_600 * US, "year": 31_557_600 * US, "y": 31_557_600 * US,
}


class _Part(NamedTuple):
    """A component: its name, its bounds."""

    name: str
    low: int
    high: int


_PARTS: Final = {
    "year": _Part("year", 1970, _YEAR_MAX), "month": _Part("month", 1, 12), "day": _Part("day", 1, 31), "hour": _Part("hour", 0, 23),
    "minute": _Part("minute", 0, 59), "second": _Part("second", 0, 59),
}


def span_us(text: str) -> int:
    """Microseconds of a time span: `5min 20s`, `90`, `1h30m`. InvalidArgumentError for anything else, and for infinity."""
    at, total = 0, 0.0
    stripped = text.strip()
    while at < len(stripped):
        found = _SPAN.match(stripped, at)
        unit = _UNITS.get(found[2]) if found else None
        if found is None or unit is None:
            raise InvalidArgumentError(f"{text!r} is no time span")
        total += float(found[1]) * unit
        at = found.end()
    if not stripped:
        raise InvalidArgumentError("the time span is empty")
    return round(total)


def calendar(text: str, tz: str) -> Cron | At:
    """The schedule of an OnCalendar= value; `tz` when it names no zone. InvalidArgumentError, ScheduleError."""
    words = re.sub(r"(?<=\d)T(?=[\d*])", " ", text.strip()).split()
    if not words:
        raise InvalidArgumentError("it is empty")
    if words[0].startswith("@"):
        if not words[0][1:].isdigit() or len(words) > 1:
            raise InvalidArgumentError(f"{text!r}: whole seconds since 1970 are wanted behind @")
        return At(_epoch(int(words[0][1:])))
    if len(words) > 1 and words[-1] in zone_names():
        tz = words.pop()
    elif words[-1].upper() in ("UTC", "Z") and len(words) > 1:
        tz = "UTC"
        words.pop()
    if len(words) == 1 and words[0].lower() in _WORDS:
        words = _WORDS[words[0].lower()].split()
    week = _weekdays(words.pop(0)) if words[0][:3].lower() in _DAYS else "*"
    date = words.pop(0) if words and ":" not in words[0] else "*-*-*"
    time = words.pop(0) if words else "00:00:00"
    if words:
        raise InvalidArgumentError(f"{words[0]!r} is neither weekday, date, time nor a known time zone")
    return _cron(_date(date), _time(time), week, tz)


def _epoch(seconds: int) -> str:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - a rare form

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()


def _cron(date: tuple[str, str, str], time: tuple[str, str, str], week: str, tz: str) -> Cron:
    year, month, day = date
    hour, minute, second = time
    expr = f"{minute} {hour} {day} {month} {week}"
    if second != "0" or year != "*":
        expr = f"{second} {expr}"
    if year != "*":
        expr = f"{expr} {year}"
    return Cron(expr, tz, day_or=not (week != "*" and day != "*"))


def _weekdays(text: str) -> str:
    out = []
    for item in text.strip(",").split(","):
        first, dots, last = item.partition("..") if ".." in item else item.partition("-")
        names = [_DAYS[_weekday(name)] for name in ((first, last) if dots else (first,))]
        if dots and _DAYS.index(names[0]) > _DAYS.index(names[1]):
            raise InvalidArgumentError(f"the weekday range {item!r} runs backwards")
        out.append("-".join(names))
    return "*" if out == ["mon-sun"] else ",".join(out)


def _weekday(name: str) -> int:
    low = name.lower()
    for names in (_DAYS, _FULL_DAYS):
        if low in names:
            return names.index(low)
    raise InvalidArgumentError(f"{name!r} is no weekday")


def _date(text: str) -> tuple[str, str, str]:
    """(year, month, day) as cron fields."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"{text!r} is no date: [YYYY-]MM-DD is wanted")
    year = "*" if found[1] is None else _items(_full_years(found[1]), _PARTS["year"])
    day = _from_end(found[4]) if found[3] == "~" else _items(found[4], _PARTS["day"])
    return year, _items(found[2], _PARTS["month"]), day


def _full_years(text: str) -> str:
    """Years of two digits: 00 to 69 are in this century."""
    def full(found: re.Match[str]) -> str:
        short = int(found[0])
        return str(short + (2000 if short < 70 else 1900))

    return re.sub(r"(?<![\d/.])\d{2}(?!\d)", full, text)


def _time(text: str) -> tuple[str, str, str]:
    """(hour, minute, second) as cron fields."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"{text!r} is no time: HH:MM[:SS] is wanted")
    second = "0" if found[3] is None else _items(re.sub(r"(\d+)\.0+(?=[/,]|$)", r"\1", found[3]), _PARTS["second"])
    return _items(found[1], _PARTS["hour"]), _items(found[2], _PARTS["minute"]), second


def _split(item: str, part: _Part) -> tuple[int | None, int | None, int | None]:
    """(first or None for *, last, step) of one item, checked."""
    found = _ITEM.fullmatch(item)
    if found is None:
        reason = "fractions of a second are not supported" if part.name == "second" and "." in item else f"is no {part.name}"
        raise InvalidArgumentError(f"{item!r}: {reason}" if "fraction" in reason else f"{item!r} {reason}")
    first = None if found[1] == "*" else int(found[1])
    last, step = (None if group is None else int(group) for group in (found[2], found[3]))
    for value in (first, last):
        if value is not None and not part.low <= value <= part.high:
            raise InvalidArgumentError(f"{part.name} {value} is not within {part.low} to {part.high}")
    if step == 0 or (first is None and last is not None):
        raise InvalidArgumentError(f"{item!r} is no {part.name}")
    return first, last, step


def _items(text: str, part: _Part) -> str:
    """A component as a cron field."""
    out = []
    for item in text.split(","):
        first, last, step = _split(item, part)
        if first is None or (first == part.low and last is None and step == 1):
            out.append("*" if step in (None, 1) else f"*/{step}")
            continue
        if last is not None and last < first:
            raise InvalidArgumentError(f"the {part.name} range {item!r} runs backwards")
        out.append(f"{first}" + ("" if last is None else f"-{last}") + ("" if step is None else f"/{step}"))
    return "*" if "*" in out else ",".join(out)


def _from_end(text: str) -> str:
    """Days counted from the month's end, 1 being the last one, as a cron field of L and L-n."""
    days: list[int] = []
    for item in text.split(","):
        first, last, step = _split(item, _PARTS["day"])
        if first is None:
            raise InvalidArgumentError("~* is no day")
        high, low = (first, 1 if step else first) if last is None else (max(first, last), min(first, last))
        days += range(high, low - 1, -(step or 1))
    return ",".join("L" if n == 1 else f"L-{n - 1}" for n in dict.fromkeys(days))
