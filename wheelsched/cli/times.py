"""Instants for people: in the job's zone with UTC beside, marks on days when the zone's clock changes, and "in 3m"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ..model import US
from ..tzif import Zones
from ..zonedata import load_zone

if TYPE_CHECKING:
    from datetime import tzinfo

DST_MARK: Final = "*"
DST_LEGEND: Final = f"{DST_MARK} that zone's clock changes on this day"
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
    zone = moment.tzinfo
    day = datetime(moment.year, moment.month, moment.day, tzinfo=zone)
    after = day + timedelta(days=1)
    return day.utcoffset() != after.utcoffset() or moment.utcoffset() not in (day.utcoffset(), after.utcoffset())


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
    return relative(datetime.fromtimestamp(seconds, UTC), datetime.fromtimestamp(0, UTC)).removeprefix("in ")


def micros(us: int | None) -> str:
    """A duration in microseconds for people; a dash for None."""
    return "-" if us is None else span(us / US)


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
        if moment is None:
            return "-"
        utc = moment.astimezone(UTC)
        local = moment.astimezone() if self._mode == "local" else moment.astimezone(self.zone(tz))
        if local.tzinfo is UTC or (self._mode == "local" and not local.utcoffset()):
            return _clock(utc) + "Z"
        mark = ""
        if self._mode == "job" and changes_today(local):
            mark, self.marked = DST_MARK, True
        beside = f"{_clock(utc)}Z"
        if local.date() == utc.date():
            beside = beside[11:]
        return f"{_clock(local)} {_offset(local)}{mark} ({beside})"
