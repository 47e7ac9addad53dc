"""Calendars: named sets of times that jobs leave out (`exclude`) or keep to (`include`). Pure.

A calendar's times are the union of: dates, days of every year, days of the week, spans between two instants, and times
of day (on some weekdays or on all; `from` 22:00 `to` 06:00 goes over midnight and belongs to the day it begins on). All
but the spans are read on the wall clock of the calendar's zone: a wall time that the clock repeats is in it both times,
one that it skips never comes. Ends are not included; 29 February comes in leap years only.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.errors import InvalidArgumentError
from ..model.nouns import INSTANT_MAX_US, INSTANT_MIN_US, NEVER, US, parse_instant
from .zonedata import load_zone
from .zones import CYCLE_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .zones import Zones

    Instants = NDArray[np.int64]

__all__ = ["Calendar", "Calendars", "calendar_from_api", "check_calendar", "describe_calendar"]

ENTRIES_MAX: Final = 10_000  # of one calendar
DAILY_MAX: Final = 100  # spans of times of day among them
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FULL: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MODES: Final = ("exclude", "include")
_LISTS: Final = ("dates", "yearly", "weekdays", "windows", "daily")
_DAY_S: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
# Every date falls on every weekday within 40 years, the missing leap day of 2100 included.
_ROUND_S: Final = 41 * 366 * _DAY_S
_LAST_S: Final = INSTANT_MAX_US // US
_CHUNK: Final = 100_000  # instants looked at in one go
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?", re.ASCII)


def calendar_from_api(
    mode: Any = "exclude", tz: Any = "UTC", dates: Any = (), yearly: Any = (), weekdays: Any = (), windows: Any = (),
    daily: Any = (),
) -> dict[str, Any]:
    """The wire form of what a user gives, checked; a text alone counts as a list of one.

    `dates`: date objects or `2026-12-25`; `yearly`: `12-25`; `weekdays`: `sat` or `Saturday`; `windows`: pairs of aware
    datetimes or RFC 3339 texts; `daily`: `22:00-06:00`, pairs of `HH:MM` or time objects, or maps with `from`, `to` and
    perhaps `weekdays`. InvalidArgumentError names what is wrong.
    """
    wire: dict[str, Any] = {"mode": mode, "tz": tz}
    given = {"dates": dates, "yearly": yearly, "weekdays": weekdays, "windows": windows, "daily": daily}
    for key, value in given.items():
        wire[key] = [value] if isinstance(value, str | dict | date) else value
        if not isinstance(wire[key], list | tuple | set | frozenset):
            raise InvalidArgumentError(f"calendar {key}: a list is wanted, not {type(value).__name__}")
        if len(wire[key]) > ENTRIES_MAX:
            raise InvalidArgumentError(f"calendar {key}: {len(wire[key])} entries are given; at most {ENTRIES_MAX} are allowed")
    wire["dates"] = [d.isoformat() if isinstance(d, date) and not isinstance(d, datetime) else d for d in wire["dates"]]
    wire["windows"] = [_api_window(w) for w in wire["windows"]]
    wire["daily"] = [_api_daily(d) for d in wire["daily"]]
    return check_calendar({key: list(value) if key in given else value for key, value in wire.items()})


def _api_window(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"from", "to"}:
        value = value["from"], value["to"]
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"from_us": parse_instant(value[0], "calendar windows: from"), "to_us": parse_instant(value[1], "calendar windows: to")}
    return value


def _api_daily(value: Any) -> Any:
    if isinstance(value, str):
        value = [part.strip() for part in value.split("-")]
    if isinstance(value, list | tuple) and len(value) == 2:
        value = {"from": value[0], "to": value[1]}
    if not isinstance(value, dict):
        return value
    # a time object without a zone; whatever else it may be, the check refuses it
    naive = {key: getattr(v, "tzinfo", UTC) is None and not isinstance(v, datetime) for key, v in value.items()}
    out = {key: v.isoformat() if naive[key] else v for key, v in value.items()}
    if "weekdays" in out:
        days = out["weekdays"]
        out["weekdays"] = [days] if isinstance(days, str) else list(days) if isinstance(days, tuple | set | frozenset) else days
    return out


def check_calendar(wire: Any) -> dict[str, Any]:
    """The canonical wire form: mode, tz, and each list that isn't empty, sorted and without repeats.

    InvalidArgumentError for unknown keys, an unknown zone, a day that no year has, `from` equal to `to` (later than it,
    for a window), no entry at all, and more than 10,000 of them (100 of `daily`).
    """
    if not isinstance(wire, dict):
        raise InvalidArgumentError(f"calendar: a map is wanted, not {type(wire).__name__}")
    known = ("mode", "tz", *_LISTS)
    for key in wire:
        if key not in known:
            raise InvalidArgumentError(f"calendar: {str(key)[:60]!r} is unknown; {', '.join(known)} are known")
    mode, tz = wire.get("mode"), wire.get("tz")
    if mode not in _MODES:
        raise InvalidArgumentError(f"calendar mode: {str(mode)[:60]!r} is not one of {', '.join(_MODES)}")
    if not isinstance(tz, str) or load_zone(tz) is None:
        raise InvalidArgumentError(f"calendar tz: {str(tz)[:60]!r} is not known; give a name such as 'Europe/Berlin'")
    lists = {key: _some(wire, key) for key in _LISTS}
    total = sum(map(len, lists.values()))
    if not 1 <= total <= ENTRIES_MAX:
        raise InvalidArgumentError(f"calendar: {total or 'no'} entries are given; allowed: 1 to {ENTRIES_MAX}")
    if len(lists["daily"]) > DAILY_MAX:
        raise InvalidArgumentError(f"calendar daily: {len(lists['daily'])} spans are given; at most {DAILY_MAX} are allowed")
    windows = sorted({_window(w) for w in lists["windows"]})
    daily = sorted({_daily(d) for d in lists["daily"]})
    out: dict[str, Any] = {
        "mode": mode, "tz": tz,
        "dates": sorted({_date(d) for d in lists["dates"]}), "yearly": sorted({_yearly(d) for d in lists["yearly"]}),
        "weekdays": _week(lists["weekdays"], "weekdays"),
        "windows": [{"from_us": low, "to_us": high} for low, high in windows],
        "daily": [{**({"weekdays": list(days)} if len(days) < 7 else {}), "from": low, "to": high} for days, low, high in daily],
    }
    return {key: value for key, value in out.items() if key not in _LISTS or value}


def _some(wire: dict[str, Any], key: str) -> list[Any]:
    value = wire.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidArgumentError(f"calendar {key}: a list is wanted, not {type(value).__name__}")
    return list(value)


def _date(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        try:
            if date.fromisoformat(value).year >= 1970:
                return value
        except ValueError as e:
            raise InvalidArgumentError(f"calendar dates: {value!r}: {e}") from None
    raise InvalidArgumentError(f"calendar dates: {str(value)[:60]!r}: write it like 2026-12-25; years 1970 to 9999 are allowed")


def _yearly(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"\d\d-\d\d", value, re.ASCII):
        try:
            date.fromisoformat(f"2000-{value}")
        except ValueError:
            raise InvalidArgumentError(f"calendar yearly: {value!r}: no year has such a day; write month and day like 12-25") from None
        return value
    raise InvalidArgumentError(f"calendar yearly: {str(value)[:60]!r}: write month and day like 12-25")


def _week(values: Any, what: str) -> list[str]:
    """Names of weekdays, Monday first."""
    if not isinstance(values, list | tuple):
        raise InvalidArgumentError(f"calendar {what}: a list is wanted, not {type(values).__name__}")
    numbers = set()
    for value in values:
        text = value.strip().lower() if isinstance(value, str) else None
        if text in WEEKDAYS:
            numbers.add(WEEKDAYS.index(text))
        elif text in _FULL:
            numbers.add(_FULL.index(text))
        else:
            raise InvalidArgumentError(f"calendar {what}: {str(value)[:60]!r} is not one of {', '.join(WEEKDAYS)}")
    return [WEEKDAYS[number] for number in (1, 2, 3, 4, 5, 6, 0) if number in numbers]


def _window(value: Any) -> tuple[int, int]:
    if not isinstance(value, dict) or value.keys() != {"from_us", "to_us"}:
        raise InvalidArgumentError("calendar windows: each has a from and a to")
    ends = value["from_us"], value["to_us"]
    for us in ends:
        if type(us) is not int or not INSTANT_MIN_US <= us <= INSTANT_MAX_US:
            raise InvalidArgumentError(f"calendar windows: {str(us)[:60]} µs is out of range; allowed: years 1970 to 9999")
    if ends[0] >= ends[1]:
        raise InvalidArgumentError("calendar windows: a window ends later than it begins")
    return ends


def _daily(value: Any) -> tuple[tuple[str, ...], str, str]:
    if not isinstance(value, dict) or not {"from", "to"} <= value.keys() <= {"weekdays", "from", "to"}:
        raise InvalidArgumentError("calendar daily: each has a from and a to, and perhaps weekdays")
    days = _week(list(WEEKDAYS) if value.get("weekdays") is None else value["weekdays"], "daily weekdays")
    if not days:
        raise InvalidArgumentError("calendar daily: the list of weekdays is empty; leave it out for every day")
    low, high = _time_s(value["from"], 0), _time_s(value["to"], 1)
    if low == high:
        raise InvalidArgumentError(f"calendar daily: from and to are both {value['from']}; a whole day is 00:00 to 24:00")
    return tuple(days), _time_text(low), _time_text(high)


def _time_s(value: Any, extra: int) -> int:
    """Seconds of `HH:MM` or `HH:MM:SS`, below 24:00 or, with extra 1, up to it."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    seconds = int(found[1]) * 3_600 + int(found[2]) * 60 + int(found[3] or 0) if found else -1
    if found is None or int(found[2]) > 59 or int(found[3] or 0) > 59 or seconds >= _DAY_S + extra:
        most = "24:00" if extra else "23:59:59"
        raise InvalidArgumentError(f"calendar daily: {str(value)[:60]!r}: write it like 22:00 or 22:00:30, up to {most}")
    return seconds


def _time_text(seconds: int) -> str:
    text = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def describe_calendar(wire: dict[str, Any]) -> str:
    """A checked calendar in one sentence."""
    parts = [f"on {', '.join(wire[key])}" for key in ("dates", "weekdays") if key in wire]
    if "yearly" in wire:
        parts.append(f"every year on {', '.join(wire['yearly'])}")
    for window in wire.get("windows", ()):
        low, high = (_EPOCH + timedelta(microseconds=window[key]) for key in ("from_us", "to_us"))
        parts.append(f"from {low.replace(tzinfo=None).isoformat()}Z to {high.replace(tzinfo=None).isoformat()}Z")
    for span in wire.get("daily", ()):
        days = ", ".join(span["weekdays"]) if "weekdays" in span else "every day"
        parts.append(f"{days} from {span['from']} to {span['to']}")
    some = parts if len(parts) <= 12 else [*parts[:12], f"{len(parts) - 12} more spans"]  # a screen's worth
    return f"{'Nothing runs' if wire['mode'] == 'exclude' else 'Runs only'} {'; '.join(some)} ({wire['tz']})."


class Calendar:
    """One checked calendar, compiled. Instants are int64 microseconds since the epoch. ScheduleError for an unknown zone."""

    def __init__(self, wire: dict[str, Any], zones: Zones) -> None:
        zone = zones.get(wire["tz"])
        self.wire = wire
        self._include = wire["mode"] == "include"
        self._at = np.frombuffer(zone.at_s, np.int64) if len(zone.at_s) else np.zeros(0, np.int64)
        self._offset = np.frombuffer(zone.offset_s, np.int32).astype(np.int64)
        self._cycle = zone.cycle
        self._dates = np.array([date.fromisoformat(d).toordinal() - _EPOCH_DAY for d in wire.get("dates", ())], np.int64)
        self._yearly = np.zeros(13 * 32, np.bool_)
        self._yearly[[int(d[:2]) * 32 + int(d[3:]) for d in wire.get("yearly", ())]] = True
        self._week = _week_mask(wire.get("weekdays", ()))
        windows = [(w["from_us"], w["to_us"]) for w in wire.get("windows", ())]
        self._windows = _merged(windows)
        self._daily: list[tuple[NDArray[np.bool_], int, int]] = []  # weekdays on which it begins, from, to, in one day
        for span in wire.get("daily", ()):
            days, low, high = _week_mask(span.get("weekdays", WEEKDAYS)), _time_s(span["from"], 0), _time_s(span["to"], 1)
            self._daily.append((days, low, high if low < high else _DAY_S))
            if high and high < low:
                self._daily.append((np.roll(days, 1), 0, high))
        self._edges = np.array(sorted({0, *(edge % _DAY_S for _, low, high in self._daily for edge in (low, high))}), np.int64)
        self.last_s = max(*(int(day + 2) * _DAY_S for day in self._dates[-1:]), *(int(us) // US + 1 for us in self._windows[-1:, 1]), 0, 0)
        self.repeats = bool(self._daily or wire.get("yearly") or wire.get("weekdays"))

    def blocked(self, instants: Instants) -> NDArray[np.bool_]:
        """Which of the instants must not run."""
        seconds = instants // US
        wall = seconds + self._offset_at(seconds)
        days = wall // _DAY_S
        inside: NDArray[np.bool_] = np.isin(days, self._dates) if len(self._dates) else np.zeros(len(instants), np.bool_)
        weekday = (days + 4) % 7
        inside |= self._week[weekday]
        if self._yearly.any():
            inside |= self._yearly[_month_day(days)]
        time_of_day = wall - days * _DAY_S
        for begins, low, high in self._daily:
            inside |= begins[weekday] & (time_of_day >= low) & (time_of_day < high)
        if len(self._windows):
            place = np.searchsorted(self._windows[:, 0], instants, "right") - 1
            inside |= (place >= 0) & (instants < self._windows[place, 1])
        return ~inside if self._include else inside

    def blocked_until(self, us: int) -> int:
        """The instant itself if it may run, else the first one that may; NEVER if none does."""
        return us if not self.blocked(np.array([us], np.int64))[0] else _first([self], us, blocked=False)

    def edges(self, low_s: int, high_s: int) -> Instants:
        """Instants in [low, high), given in seconds, between which nothing changes; microseconds, not sorted."""
        found = []
        bounds = [low_s, *self._changes(low_s, high_s), high_s]
        for begin, end in pairwise(bounds):
            offset = int(self._offset_at(np.array([begin], np.int64))[0])
            days = np.arange((begin + offset) // _DAY_S, (end + offset) // _DAY_S + 1)
            some = (days[:, None] * _DAY_S + self._edges - offset).ravel()
            found.append(some[(some > begin) & (some < end)])
        windows = self._windows.ravel()
        found.append(np.array(bounds[:-1], np.int64))
        return np.concatenate([np.concatenate(found) * US, windows[(windows >= low_s * US) & (windows < high_s * US)]])

    def per_day(self) -> int:
        """How many `edges` a day has."""
        return len(self._edges)

    def _offset_at(self, seconds: Instants) -> Instants:
        """Seconds east of UTC."""
        if not len(self._at):
            return np.full(len(seconds), self._offset[0])
        if self._cycle < len(self._at):
            turns = np.where(seconds >= self._at[-1], (seconds - self._at[self._cycle]) // CYCLE_S, 0)
            seconds = seconds - turns * CYCLE_S
        return self._offset[np.searchsorted(self._at, seconds, "right")]

    def _changes(self, low_s: int, high_s: int) -> list[int]:
        """The changes of the clock within (low, high)."""
        some = self._at
        if self._cycle < len(some) and high_s > some[-1]:
            turns = np.arange(0, (high_s - int(some[self._cycle])) // CYCLE_S + 1)
            again = (some[self._cycle:] + turns[1:, None] * CYCLE_S).ravel()
            some = np.concatenate([some, again])
        return list(map(int, some[(some > low_s) & (some < high_s)]))


def _week_mask(names: Iterable[str]) -> NDArray[np.bool_]:
    chosen = set(names)
    return np.array([name in chosen for name in WEEKDAYS], np.bool_)


def _merged(windows: list[tuple[int, int]]) -> Instants:
    """Sorted windows as rows [from, to), those that touch joined."""
    rows: list[list[int]] = []
    for low, high in windows:
        if rows and low <= rows[-1][1]:
            rows[-1][1] = max(rows[-1][1], high)
        else:
            rows.append([low, high])
    return np.array(rows, np.int64).reshape(-1, 2)


def _month_day(days: Instants) -> Instants:
    """Month times 32 plus day, of day numbers."""
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    month_days: Instants = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    return (months.astype(np.int64) % 12 + 1) * 32 + month_days


def _first(calendars: list[Calendar], us: int, *, blocked: bool) -> int:
    """The first instant after `us` at which these calendars together block, or don't; NEVER if it never comes."""
    begin = us // US
    horizon = max(begin, *(c.last_s for c in calendars)) + (_ROUND_S if any(c.repeats for c in calendars) else 2 * _DAY_S)
    horizon = min(horizon, _LAST_S + 1)
    days, most = 4, max(1, _CHUNK // sum(c.per_day() for c in calendars))
    while begin < horizon:
        end = min(begin + days * _DAY_S, horizon)
        edges = np.unique(np.concatenate([c.edges(begin, end) for c in calendars]))
        edges = edges[edges > us]
        found = np.flatnonzero(_any_blocked(calendars, edges) == blocked)
        if len(found):
            return int(edges[found[0]])
        begin, days = end, min(days * 4, most)
    return NEVER


def _any_blocked(calendars: list[Calendar], instants: Instants) -> NDArray[np.bool_]:
    out = np.zeros(len(instants), np.bool_)
    for calendar in calendars:
        out |= calendar.blocked(instants)
    return out


class Calendars:
    """The server's calendars by name. KeyError for a name that isn't there. One thread at a time."""

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        self._calendars: dict[str, Calendar] = {}
        self._spans: dict[tuple[str, ...], tuple[int, int, bool]] = {}  # the span found last: many jobs ask the same

    def __contains__(self, name: object) -> bool:
        return name in self._calendars

    def put(self, name: str, wire: dict[str, Any]) -> None:
        """Add or replace one that `check_calendar` gave. ScheduleError for a zone that the zone data doesn't have."""
        self._calendars[name] = Calendar(wire, self._zones)
        self._spans.clear()

    def remove(self, name: str) -> None:
        """Forget one."""
        del self._calendars[name]
        self._spans.clear()

    def wire(self, name: str) -> dict[str, Any]:
        """The wire form."""
        return self._calendars[name].wire

    def blocked(self, names: tuple[str, ...], instants: Instants) -> NDArray[np.bool_]:
        """Which of the instants, int64[n] microseconds, any of the calendars blocks."""
        return _any_blocked([self._calendars[name] for name in names], instants)

    def blocked_until(self, names: tuple[str, ...], us: int) -> int:
        """The instant itself if no calendar blocks it, else the first one that none blocks; NEVER if there is none."""
        _, end, blocked = self._span(names, us)
        return end if blocked else us

    def free_until(self, names: tuple[str, ...], us: int) -> int:
        """The instant itself if a calendar blocks it, else the first one that any blocks; NEVER if there is none."""
        _, end, blocked = self._span(names, us)
        return us if blocked else end

    def blocking(self, names: tuple[str, ...], us: int) -> str | None:
        """The first of the calendars that blocks an instant."""
        instant = np.array([us], np.int64)
        return next((name for name in names if self._calendars[name].blocked(instant)[0]), None)

    def _span(self, names: tuple[str, ...], us: int) -> tuple[int, int, bool]:
        """From an instant at or before `us` to the first change after it, and whether it is blocked meanwhile."""
        known = self._spans.get(names)
        if known is not None and known[0] <= us < known[1]:
            return known
        some = [self._calendars[name] for name in names]
        blocked = bool(_any_blocked(some, np.array([us], np.int64))[0])
        found = us, _first(some, us, blocked=not blocked) if some else NEVER, blocked
        self._spans[names] = found
        return found
