"""Zone data: TZif bytes (RFC 9636) to a list of offset changes that goes on for ever. Pure: a loader gives the bytes.

The rule behind the last explicit change (the file's footer, a POSIX TZ text) is written out for 400 years, after which
the Gregorian calendar repeats, so that `_cron` needs no rules. Changes of name or of "is it summer" alone are dropped.
"""

from __future__ import annotations

import re
import struct
from array import array
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from typing import TYPE_CHECKING, Final

from ..model.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

__all__ = ["CYCLE_S", "Zone", "Zones"]

CYCLE_S: Final = 146_097 * 86_400  # 400 Gregorian years: from then on changes repeat
_CYCLE_YEARS: Final = 400
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400
_NAME_MAX: Final = 80

_OFFSET: Final = r"([+-]?\d{1,3}(?::\d\d(?::\d\d)?)?)"
_FOOTER: Final = re.compile(
    rf"(?:<[^>]+>|[A-Za-z]+){_OFFSET}(?:(?:<[^>]+>|[A-Za-z]+){_OFFSET}?,([^,]+),([^,]+))?", re.ASCII
)
_RULE: Final = re.compile(rf"(?:M(\d+)\.(\d)\.(\d)|(J?)(\d+))(?:/{_OFFSET})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone for `_cron.CronTable.add_zone`: changes (int64 seconds), offsets (int32, one more), where it repeats."""

    name: str
    at_s: array[int]
    offset_s: array[int]
    cycle: int


class Zones:
    """Zones by IANA name, from a loader of TZif bytes (None for a name it doesn't have). Keeps what it read."""

    def __init__(self, loader: Callable[[str], bytes | None]) -> None:
        self._loader = loader
        self._zones: dict[str, Zone] = {}
        self._tzinfos: dict[str, tzinfo] = {}
        self.kept: dict[str, bytes] = {}  # for names that the loader doesn't have any more

    def get(self, name: str) -> Zone:
        """The zone of that name. ScheduleError if it is no text, not known, or its data can't be read."""
        zone = self._zones.get(name) if isinstance(name, str) else None
        if zone is None:
            data = self.data(name)
            try:
                zone = _read(name, data)
            except (struct.error, IndexError, ValueError) as e:
                raise ScheduleError(f"time zone {name!r}: its data can't be read ({e})") from e
            self._zones[name] = zone
        return zone

    def tzinfo(self, name: str) -> tzinfo:
        """The same zone for datetimes, made of the same bytes. ScheduleError as `get`."""
        from zoneinfo import ZoneInfo  # noqa: PLC0415 - only for answers to people

        found = self._tzinfos.get(name) if isinstance(name, str) else None
        if found is None:
            found = ZoneInfo.from_file(BytesIO(self.data(name)), key=name)
            self._tzinfos[name] = found
        return found

    def data(self, name: str) -> bytes:
        """The TZif bytes of a zone. ScheduleError if it is not known."""
        data = self._loader(name) or self.kept.get(name) if isinstance(name, str) and len(name) <= _NAME_MAX else None
        if data is None:
            raise ScheduleError(
                f"time zone: {str(name)[:_NAME_MAX]!r} is not known; allowed: names of the tz database, such as 'UTC' "
                "or 'Europe/Berlin'"
            )
        return data


def _read(name: str, data: bytes) -> Zone:
    """Parse TZif version 2 or later: the second, 64-bit block and the footer."""
    if data[:4] != b"TZif" or data[4:5] < b"2":
        raise ValueError("no TZif file of version 2 or later")
    sizes = struct.unpack_from(">6l", data, 20)
    start = 44 + _block_size(sizes, 4)
    sizes = struct.unpack_from(">6l", data, start + 20)
    _, _, leaps, changes, types, _ = sizes
    if leaps:
        raise ValueError("leap seconds are not supported")
    body = start + 44
    at = struct.unpack_from(f">{changes}q", data, body)
    kinds = data[body + 8 * changes : body + 9 * changes]
    offsets = [struct.unpack_from(">l", data, body + 9 * changes + 6 * i)[0] for i in range(types)]
    footer = data[start + 44 + _block_size(sizes, 8) :].strip(b"\n").decode("ascii")

    rows = [(t, offsets[kind]) for t, kind in zip(at, kinds, strict=True)]
    last = at[-1] if at else -(2**63)
    rule = _rule(footer, max(last, 0)) if footer else []
    kept_at, kept = array("q"), array("i", [offsets[0]])
    for t, offset in rows:
        if offset != kept[-1]:
            kept_at.append(t)
            kept.append(offset)
    cycle = len(kept_at)
    if rule and rule[0][1] == kept[-1]:
        rule.pop(0)  # no change: the table ended in the middle of the year
    for t, offset in rule[: 2 * _CYCLE_YEARS]:
        kept_at.append(t)
        kept.append(offset)
    return Zone(name, kept_at, kept, cycle)


def _block_size(sizes: tuple[int, ...], time_size: int) -> int:
    is_ut, is_std, leaps, changes, types, chars = sizes
    return changes * (time_size + 1) + types * 6 + chars + leaps * (time_size + 4) + is_std + is_ut


def _seconds(text: str) -> int:
    """`-3:30` to seconds."""
    sign = -1 if text[0] == "-" else 1
    parts = [int(p) for p in text.lstrip("+-").split(":")]
    return sign * sum(p * unit for p, unit in zip(parts, (3_600, 60, 1), strict=False))


def _rule(footer: str, last_s: int) -> list[tuple[int, int]]:
    """The changes by a POSIX TZ text later than an instant, a bit over 400 years of them; none for a single offset."""
    found = _FOOTER.fullmatch(footer)
    if found is None:
        raise ValueError(f"the rule {footer!r} is not understood")
    standard = -_seconds(found[1])
    if found[3] is None:
        return []
    summer = standard + 3_600 if found[2] is None else -_seconds(found[2])
    year = date.fromordinal(_EPOCH_DAY + last_s // _DAY_S).year
    out = []
    for y in range(year, year + _CYCLE_YEARS + 2):
        out.append((_instant(found[3], y) - standard, summer))
        out.append((_instant(found[4], y) - summer, standard))
    return sorted(row for row in out if row[0] > last_s)


def _instant(rule: str, year: int) -> int:
    """The wall time of a rule's change in a year, in seconds since 1970-01-01 00:00 of that wall clock."""
    found = _RULE.fullmatch(rule)
    if found is None:
        raise ValueError(f"the rule {rule!r} is not understood")
    if found[1] is not None:
        month, week, weekday = int(found[1]), int(found[2]), int(found[3])
        first = date(year, month, 1)
        day = first.toordinal() + (weekday - first.isoweekday()) % 7 + 7 * (week - 1)
        following = date(year + month // 12, month % 12 + 1, 1).toordinal()
        while day >= following:  # week 5 means the last one
            day -= 7
    else:
        day = date(year, 1, 1).toordinal() + int(found[5])
        leap_day = date(year, 3, 1).toordinal() - date(year, 1, 1).toordinal() == 60  # 31 + 29
        if found[4] and not (leap_day and int(found[5]) >= 60):  # J60 is always the first of March
            day -= 1
    return (day - _EPOCH_DAY) * _DAY_S + (_seconds(found[6]) if found[6] else 2 * 3_600)
