"""Instants for people: in the job's zone with UTC beside, marks on days when the zone's clock changes, and "in 3m"."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..model.errors import InvalidArgumentError
from ..model.nouns import US, parse_duration, parse_instant
from ..schedules.zonedata import load_zone
from ..schedules.zones import Zones

if TYPE_CHECKING:
    from datetime import tzinfo

DST_MARK: Final = "*"
DST_LEGEND: Final = f"{DST_MARK} that zone's clock changes on this day"
_ENDS: Final = (date.min, date.max)
_YEAR_S: Final = 365.25 * 86_400
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def _clock(moment: datetime) -> str:
    """Date and time of day; milliseconds only when there are any."""
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{moment.microsecond // 1000:03d}" if moment.microsecond // 1000 else text


def _offset(moment: datetime) -> str:
    text = moment.strftime("%z")
    return f"{text[:3]}:{text[3:5]}"


def instant_text(moment: datetime) -> str:
    """RFC 3339 in UTC, with a fraction only when there is one: 2026-11-29T08:30:00Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00").replace(".000000", "") + "Z"


def changes_today(moment: datetime) -> bool:
    """Does the zone of an aware datetime change its offset on that local day, or right before it?"""
    day = datetime(moment.year, moment.month, moment.day, tzinfo=moment.tzinfo)
    if moment.date() in _ENDS:  # there is no day after it, or none before it
        return False
    after = day + timedelta(days=1)
    last = day
    for fold in (1, 0):  # midnight may come twice; the second belongs to this day's end when the clock goes back over it
        last = (after.replace(fold=fold).astimezone(UTC) - timedelta(microseconds=1)).astimezone(moment.tzinfo)
        if last.date() == day.date():
            break
    return day.utcoffset() != last.utcoffset() or moment.utcoffset() not in (day.utcoffset(), last.utcoffset())


def relative(moment: datetime, now: datetime) -> str:
    """`in 3m`, `in 2d 4h`, `12s ago`, `now`: the two largest units."""
    seconds = (moment - now).total_seconds()
    left = round(abs(seconds))
    if not left:
        return "now"
    parts: list[str] = []
    for unit, size in _UNITS:
        n, left = divmod(left, size)
        if n or parts:
            parts.append(f"{n}{unit}" if n else "")
        if len(parts) == 2:
            break
    text = " ".join(p for p in parts if p)
    return f"in {text}" if seconds > 0 else f"{text} ago"


def span(seconds: float) -> str:
    """A duration for people: `1.2 ms`, `340 ms`, `12.3 s`, `4m 10s`."""
    if seconds < 0:
        return "-" + span(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.0995 else f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds > 100 * _YEAR_S:
        return f"{seconds / _YEAR_S:.0f} years"
    return relative(datetime.fromtimestamp(seconds, UTC), datetime.fromtimestamp(0, UTC)).removeprefix("in ")


def micros(us: int | None) -> str:
    """A duration in microseconds for people; a dash for None."""
    return "-" if us is None else span(us / US)


def schedule_zone(wire: dict[str, Any]) -> str:
    """The zone of a schedule's wire form: that of its cron, the first in a union; UTC when it has none."""
    parts = [part["schedule"] for part in wire["of"]] if wire["kind"] == "union" else [wire]
    return next((str(part["tz"]) for part in parts if part.get("tz")), "UTC")


_WALL: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?", re.ASCII)


_OFFSET_GIVEN: Final = re.compile(r"(?:[Zz]|[+-]\d\d:\d\d)$", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_AGO: Final = re.compile(r"[\d.]+[a-z][\da-z.]*", re.ASCII)
_NO_SECONDS: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d)([Zz]|[+-]\d\d:\d\d)", re.ASCII)



def _change(before: datetime, after: datetime) -> datetime:
    """The first whole second with the offset of `after`, of two instants on the two sides of one change of their zone's clock."""
    low, high = (round(moment.timestamp()) for moment in (before, after))
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, after.tzinfo).utcoffset() == after.utcoffset():
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, after.tzinfo)


class Wall(NamedTuple):
    """What a time of day on the clock of a zone stands for."""

    instants: list[datetime]  # none in a gap, two when the clock shows it twice; in that zone
    shifted: datetime  # in a gap: as far behind it as the time is in it, else the first instant
    clash: str  # in words what is wrong with it; empty when it is one instant
    end: datetime | None = None  # of the gap that it is in: its first instant after it


def is_wall(text: str) -> bool:
    """Is it a date and a time of day without an offset?"""
    return _WALL.fullmatch(text) is not None


def parse_wall(text: str, tz: str, what: str = "time") -> Wall:
    """`2026-03-29T02:30` on the clock of a zone (seconds may follow). InvalidArgumentError for anything else."""
    try:
        naive = datetime.fromisoformat(text) if is_wall(text) else None
    except ValueError as e:
        raise InvalidArgumentError(f"{what}: {text[:60]!r}: {e}") from None
    if naive is None:
        raise InvalidArgumentError(
            f"{what}: {text[:60]!r} is no time; write RFC 3339, 2026-11-29T08:30:00Z, or a time on the job's clock, 2026-11-29T08:30"
        )
    zone = Zones(load_zone).tzinfo(tz)
    try:
        first, second = (naive.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        local = [moment.astimezone(zone) for moment in (first, second)]
    except OverflowError:
        raise InvalidArgumentError(f"{what}: {text[:60]} in {tz} is out of range; 1970 to 9999 are allowed") from None
    shown, day = naive.strftime("%H:%M:%S").removesuffix(":00"), naive.date()
    if first > second:  # PEP 495: in a gap the first reads it by the offset before, the second by the one after
        clash = f"there is no {shown} on {day} in {tz}: the clock goes from {_offset(local[1])} to {_offset(local[0])}"
        return Wall([], local[0], clash, _change(local[1], local[0]))
    if first < second:
        times = " and ".join(f"{naive.isoformat(timespec='seconds')}{_offset(moment)}" for moment in local)
        return Wall(local, local[0], f"{shown} on {day} is twice in {tz}: {times}")
    return Wall(local[:1], local[0], "")


def parse_day(text: str, tz: str, what: str = "time") -> tuple[datetime, datetime] | None:
    """First instant of a day (`2026-03-29`) on the clock of a zone, and of the day after it, in UTC; None for what is no day.

    InvalidArgumentError for a day that is in no calendar.
    """
    if not _DAY.fullmatch(text):
        return None
    begin = parse_wall(f"{text}T00:00", tz, what)
    after = parse_wall(f"{date.fromisoformat(text) + timedelta(days=1)}T00:00", tz, what) if text < str(date.max) else None
    if after is None:
        raise InvalidArgumentError(f"{what}: {text} has no day after it; give a time")
    first, last = (wall.end or wall.shifted for wall in (begin, after))
    return first.astimezone(UTC), last.astimezone(UTC)


def on_a_clock(text: str) -> bool:
    """Does its meaning depend on a zone: a time of day without an offset, or a day?"""
    return is_wall(text) or parse_day(text, "UTC") is not None


def is_ago(text: str) -> bool:
    """Is it a duration?"""
    return _AGO.fullmatch(text) is not None


def parse_bound(text: str, tz: str, now: datetime, what: str, *, end: bool = False) -> datetime:
    """One end of a span of time: `1h`, so long before `now`; a day, from its first instant, as the `end` up to its last; or as
    `parse_moment`. InvalidArgumentError.
    """
    if is_ago(text):
        return now - timedelta(microseconds=parse_duration(text, what))
    day = parse_day(text, tz, what)
    return parse_moment(text, tz, what) if day is None else day[1] if end else day[0]


def parse_moment(text: str, tz: str, what: str = "time") -> datetime:
    """An instant of RFC 3339 text, where seconds may be left out, or of a time on the clock of a zone.

    InvalidArgumentError in a gap, and for one of two.
    """
    text = _NO_SECONDS.sub(r"\1:00\2", text)
    if _OFFSET_GIVEN.search(text):
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=parse_instant(text, what))
    wall = parse_wall(text, tz, what)
    if wall.clash:
        raise InvalidArgumentError(f"{what}: {wall.clash}; give the instant with its offset")
    return wall.instants[0]


class Times:
    """Shows instants as `--time` asks. `marked` turns true once a day with a clock change was shown."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._zones = Zones(load_zone)
        self.marked = False

    def zone(self, tz: str | None) -> tzinfo:
        """The zone in which an instant of a job with that zone is shown."""
        if self._mode == "job" and tz is not None and tz != "UTC":
            return self._zones.tzinfo(tz)
        return UTC

    def show(self, moment: datetime | None, tz: str | None = None) -> str:
        """`2026-11-30 00:00:00 +01:00 (2026-11-29 23:00:00Z)`; in UTC alone when that is the zone; a dash for None."""
        return self._shown(moment, tz, beside=True)

    def short(self, moment: datetime | None, tz: str | None = None) -> str:
        """As `show`, without UTC beside it."""
        return self._shown(moment, tz, beside=False)

    def _shown(self, moment: datetime | None, tz: str | None, *, beside: bool) -> str:
        if moment is None:
            return "-"
        utc = moment.astimezone(UTC)
        try:
            local = moment.astimezone() if self._mode == "local" else moment.astimezone(self.zone(tz))
        except OverflowError:  # at the end of the year 9999, some zones are in the next one
            local = utc
        if local.tzinfo is UTC or (self._mode == "local" and not local.utcoffset()):
            return _clock(utc) + "Z"
        mark = ""
        if self._mode == "job" and changes_today(local):
            mark, self.marked = DST_MARK, True
        text = f"{_clock(local)} {_offset(local)}{mark}"
        if not beside:
            return text
        there = f"{_clock(utc)}Z"
        return f"{text} ({there[11:] if local.date() == utc.date() else there})"
