"""Cron expressions to bit masks, and to plain words. Pure: text comes in; zones are read in zones.py.

The grammar, item by item; items are joined by commas and mean their union:

    *  */n  a  a-b  a-b/n  a/n (to the field's end)   every field; names in month and weekday; 7 is Sunday
    H  H(a-b)  H/n  H(a-b)/n                          every field but the year: a stable hash of the job's name
    L  L-n  nW  LW  L-nW  ?                           day of month: last day, n before it, weekday nearest to it
    nL  n#k  ?                                        weekday: the last one, the k-th one of a month

Five fields; six with seconds (first, or last on demand); seven with the year, 1970 to 2099, last. The two day fields
are joined by OR unless one begins with `*` (or is `?`): then by AND, as Vixie cron has it.

Expanding numbers, names, ranges and steps is croniter's work where it agrees with this rule. It doesn't for equal
ranges (`5-5`), a `*` within a list, ranges that end at Sunday, and lists of L, W and #: those fields are expanded here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from ..model.errors import ScheduleError
from ..model.nouns import EXPR_MAX
from .zones import Zone, Zones

__all__ = [
    "ALIASES", "Days", "Masks", "Zone", "Zones", "can_match", "check_text", "day_table", "describe", "parse", "split",
    "year_table",
]

YEAR_MIN: Final = 1970
YEAR_MAX: Final = 2099
_HASH_PERSON: Final = b"wheelsched.cronH"  # frozen: the times of every H schedule depend on it


class Field(NamedTuple):
    """One field: its name in messages, its bounds, its names from the lowest value on, and those of H."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int = 0


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SECOND: Final = Field("second", 0, 59, hash_high=59)
MINUTE: Final = Field("minute", 0, 59, hash_high=59)
HOUR: Final = Field("hour", 0, 23, hash_high=23)
MONTHDAY: Final = Field("day-of-month", 1, 31, hash_high=28)  # a plain H must fire in every month
MONTH: Final = Field("month", 1, 12, _MONTHS, hash_high=12)
WEEKDAY: Final = Field("day-of-week", 0, 6, _DAYS, hash_high=6)
YEAR: Final = Field("year", YEAR_MIN, YEAR_MAX)
CRONITER_ORDER: Final = (MINUTE, HOUR, MONTHDAY, MONTH, WEEKDAY, SECOND, YEAR)

ALIASES: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

_LENGTHS: Final = ((31,), (28, 29), (31,), (30,), (31,), (30,), (31,), (31,), (30,), (31,), (30,), (31,))

_PLAIN: Final = re.compile(r"(\*|[a-z]{3}|\d+)(?:-([a-z]{3}|\d+))?(?:/(\d+))?", re.ASCII)
_HASHED: Final = re.compile(r"h(?:\((\d+)-(\d+)\))?(?:/(\d+))?", re.ASCII)
_LAST: Final = re.compile(r"l(?:-(\d+))?(w)?", re.ASCII)
_NEAREST: Final = re.compile(r"(\d+)w|w(\d+)", re.ASCII)
_LAST_WEEKDAY: Final = re.compile(r"([a-z]{3}|\d)l|l([a-z]{3}|\d)", re.ASCII)
_NTH: Final = re.compile(r"([a-z]{3}|\d)#(\d)", re.ASCII)


class Days(NamedTuple):
    """Which days match. Bit 0 of `dom` and `nearest` is day 1, of `last` and `nearest_last` the month's last day."""

    dom: int
    dow: int
    both: bool  # the two day fields are joined by AND
    last: int = 0
    nearest: int = 0
    nearest_last: int = 0
    nth: int = 0  # bit 7 * (k - 1) + weekday
    last_dow: int = 0


@dataclass(frozen=True, slots=True)
class Masks:
    """A parsed expression. Bit 0: second, minute and hour 0, January, 1970; `years` 0 means every year.

    `wild`: the minute or the hour begins with `*`, so it follows real time over DST. `hashed`: it has an H; parsed
    without a hash id that H stands for all the values it may take.
    """

    seconds: int
    minutes: int
    hours: int
    months: int
    years: int
    days: Days
    wild: bool
    hashed: bool


def _refuse(field: Field, given: str, why: str) -> ScheduleError:
    shown = given if len(given) <= 60 else given[:60] + "…"
    allowed = f"{field.low} to {field.high}"
    if field is WEEKDAY:
        allowed = "0 to 7 (0 and 7 are Sunday) or sun to sat, also nL and n#k"
    elif field.names:
        allowed += f" or {field.names[0]} to {field.names[-1]}"
    elif field is MONTHDAY:
        allowed += ", L, L-n, nW, LW"
    return ScheduleError(
        f"cron {field.name} field: {shown!r}: {why}; allowed: {allowed}; with * , - / between them",
        field=field.name, given=shown,
    )


def check_text(expr: object, seconds: object) -> None:
    """ScheduleError unless both are text, the expression of bearable length and `seconds` a known word."""
    if not isinstance(expr, str):
        raise ScheduleError(f"cron expression: text is wanted, not {type(expr).__name__}")
    if seconds not in ("first", "last"):
        raise ScheduleError(f"seconds: {seconds!r} is not one of first, last")
    if len(expr) > EXPR_MAX:
        raise ScheduleError(f"cron expression: {len(expr)} characters are given, at most {EXPR_MAX} are allowed")


def split(expr: str, seconds: str = "first") -> list[tuple[Field, str]]:
    """The fields of an expression with their texts in lower case; second and year only if given. No alias is left."""
    check_text(expr, seconds)
    text, shown = expr.strip(" \t\r\n").lower(), repr(expr.strip(" \t\r\n")[:60])
    if not text.isascii() or not text.replace("\t", " ").isprintable():
        raise ScheduleError(f"cron expression {shown}: only printable ASCII on one line is allowed")
    if text.startswith("@"):
        if text not in ALIASES:
            advice = {"@reboot": "; a service has no boot", "@every": "; use Every('5m')"}.get(text.split()[0], "")
            raise ScheduleError(f"cron expression {shown}: no such alias{advice}; allowed: {', '.join(ALIASES)}")
        text = ALIASES[text]
    parts = text.split()
    if parts and ("=" in parts[0] or parts[0].startswith("#")):
        raise ScheduleError(f"cron expression {shown}: a comment or a zone prefix is not allowed; give the zone as tz=")
    if not 5 <= len(parts) <= 7:
        raise ScheduleError(
            f"cron expression {shown}: {len(parts)} fields are given; allowed: 5, 6 (with seconds) or 7 (with the year)"
        )
    fields = [MINUTE, HOUR, MONTHDAY, MONTH, WEEKDAY]
    if len(parts) > 5:
        fields.insert(0 if seconds == "first" else 5, SECOND)
    if len(parts) > 6:
        fields.append(YEAR)
    return list(zip(fields, parts, strict=True))


def _number(field: Field, text: str, item: str) -> int:
    """A number or a name within the field; 7 is allowed for Sunday."""
    if text.isdigit():
        value = int(text[:20])
    elif text in field.names:
        value = field.low + field.names.index(text)
    else:
        raise _refuse(field, item, f"{text!r} is not known here")
    if not field.low <= value <= (7 if field is WEEKDAY else field.high):
        raise _refuse(field, item, f"{text[:20]} is out of range")
    return value


def _step(field: Field, text: str | None, item: str) -> int:
    if text is None:
        return 1
    step = int(text[:20])
    if step == 0:
        raise _refuse(field, item, "a step is 1 or more")
    return step


def _plain_values(field: Field, item: str, found: re.Match[str]) -> range:
    """The values of `*`, `a`, `a-b`, with or without a step; weekday 7 stays 7."""
    low_text, high_text, step_text = found.groups()
    step = _step(field, step_text, item)
    if low_text == "*":
        if high_text is not None:
            raise _refuse(field, item, "* is no end of a range")
        return range(field.low, field.high + 1, step)
    low = _number(field, low_text, item)
    if high_text is not None:
        high = 7 if field is WEEKDAY and high_text == "sun" and low > 0 else _number(field, high_text, item)
    else:
        high = low if step_text is None else field.high
    if low > high:
        raise _refuse(field, item, "it begins behind its end; write a list of two ranges")
    return range(low, high + 1, step)


def _hash_values(field: Field, item: str, found: re.Match[str], hash_id: str | None) -> range:
    """The values of an H item; without a hash id all it might become."""
    if not field.hash_high:
        raise _refuse(field, item, "H has no meaning here")
    low, high = field.low, field.hash_high
    if found[1] is not None:
        low, high = _number(field, found[1], item), _number(field, found[2], item)
        if low > high:
            raise _refuse(field, item, "the range runs backwards")
    if hash_id is None:
        _step(field, found[3], item)
        return range(low, high + 1)
    digest = blake2b(f"{field.name}\0{hash_id}".encode(), digest_size=8, person=_HASH_PERSON).digest()
    drawn = int.from_bytes(digest, "big")
    if found[3] is None:
        start = low + drawn % (high - low + 1)
        return range(start, start + 1)
    step = _step(field, found[3], item)
    return range(low + drawn % min(step, high - low + 1), high + 1, step)


def _simple(field: Field, found: re.Match[str], values: range) -> bool:
    """Whether croniter expands the item as the rule has it: no equal range (it takes that for the whole field) or 7."""
    if found[1] == "*":
        return True
    number = found[2] is None and found[3] is None  # `59/15` is a range of one, which croniter 6 takes for the whole field
    return (number or values.stop - values.start > 1) and (field is not WEEKDAY or values.stop <= 7)


class _Fields:
    """Collects the masks of one expression's fields."""

    def __init__(self, hash_id: str | None) -> None:
        self.hash_id = hash_id
        self.hashed = False
        self.masks: dict[Field, int] = {}
        self.extra = {"last": 0, "nearest": 0, "nearest_last": 0, "nth": 0, "last_dow": 0}
        self.croniter: dict[Field, str] = {}  # fields that croniter expands

    def add(self, field: Field, text: str) -> None:
        """Read one field's text."""
        if text == "?":
            if field not in (MONTHDAY, WEEKDAY):
                raise _refuse(field, text, "? is for the two day fields (of six fields the first is the second)")
            text = "*"
        items = text.split(",")
        mask, simple, compound = 0, text != "*", False
        for item in items:
            found = _PLAIN.fullmatch(item)
            if found:
                values = _plain_values(field, item, found)
                for value in values:
                    mask |= 1 << (value % 7 if field is WEEKDAY else value - field.low)
                simple = simple and _simple(field, found, values) and (item[0] != "*" or len(items) == 1)
                compound = compound or len(items) > 1 or not item.isalnum()
            else:
                simple = False
                mask |= self._special(field, item)
        self.masks[field] = mask
        if simple and compound:
            self.croniter[field] = text

    def _special(self, field: Field, item: str) -> int:
        """Read an item with H, L, W or #: a mask for H, the rest goes to `extra`."""
        if found := _HASHED.fullmatch(item):
            self.hashed = True
            mask = 0
            for value in _hash_values(field, item, found, self.hash_id):
                mask |= 1 << (value % 7 if field is WEEKDAY else value - field.low)
            return mask
        if field is MONTHDAY and (found := _LAST.fullmatch(item)):
            back = int((found[1] or "0")[:20])
            if back > 30:
                raise _refuse(field, item, "no month has so many days before its last")
            self.extra["nearest_last" if found[2] else "last"] |= 1 << back
            return 0
        if field is MONTHDAY and (found := _NEAREST.fullmatch(item)):
            self.extra["nearest"] |= 1 << (_number(field, found[1] or found[2], item) - 1)
            return 0
        if field is WEEKDAY and (found := _LAST_WEEKDAY.fullmatch(item)):
            self.extra["last_dow"] |= 1 << (_number(field, found[1] or found[2], item) % 7)
            return 0
        if field is WEEKDAY and (found := _NTH.fullmatch(item)):
            if not 1 <= int(found[2]) <= 5:
                raise _refuse(field, item, "# takes 1 to 5, the week of the month")
            self.extra["nth"] |= 1 << (7 * (int(found[2]) - 1) + _number(field, found[1], item) % 7)
            return 0
        raise _refuse(field, item, _why_not(field, item))

    def expand(self) -> None:
        """Let croniter expand the fields that are its own."""
        if not self.croniter:
            return
        from croniter import CroniterError, croniter  # noqa: PLC0415 - 40 ms that `import wheelsched` must not cost

        length = max(5, 1 + max(CRONITER_ORDER.index(field) for field in self.croniter))
        text = " ".join(self.croniter.get(field, "*") for field in CRONITER_ORDER[:length])
        try:
            expanded, _ = croniter.expand(text)
        except CroniterError as e:
            raise ScheduleError(f"cron expression {text[:60]!r}: {e}") from None
        for field, values in zip(CRONITER_ORDER, expanded, strict=False):
            if field in self.croniter and values != ["*"]:
                mask = 0
                for value in values:
                    mask |= 1 << (int(value) - field.low)
                self.masks[field] = mask


def _why_not(field: Field, item: str) -> str:
    """A reason for an item that fits no form."""
    if item == "":
        return "an item of the list is empty"
    if item == "l":
        return "L alone is for the day-of-month" + ("; the last Friday is 5L" if field is WEEKDAY else "")
    if "~" in item or re.fullmatch(r"r(\(.*\))?(/\d+)?", item):
        return "random times are not supported; H spreads load and stays the same"
    if "w" in item and field is MONTHDAY:
        return "W goes with one day, as 15W"
    if "#" in item or ("l" in item and field is not MONTHDAY):
        return "# and L go with one weekday, as 5#2 or 5L"
    if "?" in item:
        return "? stands alone"
    return "not a number, a name, a range or a step"


@lru_cache(maxsize=4096)
def parse(expr: str, seconds: str = "first", day_or: bool = True, hash_id: str | None = None) -> Masks:
    """The masks of an expression. ScheduleError names the field, what was given and what is allowed.

    Whether it can ever fire is asked of `can_match` and of the table.
    """
    fields = _Fields(hash_id)
    texts = dict(split(expr, seconds))
    for field, text in texts.items():
        fields.add(field, text)
    fields.expand()
    masks = fields.masks
    both = not day_or or texts[MONTHDAY][0] in "*?" or texts[WEEKDAY][0] in "*?"
    years = 0 if texts.get(YEAR, "*") == "*" else masks[YEAR]
    return Masks(
        seconds=masks.get(SECOND, 1), minutes=masks[MINUTE], hours=masks[HOUR], months=masks[MONTH], years=years,
        days=Days(masks[MONTHDAY], masks[WEEKDAY], both, **fields.extra),
        wild=texts[MINUTE][0] == "*" or texts[HOUR][0] == "*", hashed=fields.hashed,
    )


def days_of_month(days: Days, length: int, first_dow: int) -> int:
    """The mask of matching days of a month with that length whose first day is that weekday (0: Sunday)."""
    all_days = (1 << length) - 1
    dom, week = days.dom & all_days, days.dow << (7 - first_dow) | days.dow >> first_dow
    if days.last or days.nearest or days.nearest_last:
        for day in range(1, length + 1):
            if days.last >> (length - day) & 1:
                dom |= 1 << (day - 1)
            if (days.nearest >> (day - 1) | days.nearest_last >> (length - day)) & 1:
                weekday = (first_dow + day - 1) % 7
                if weekday == 6:
                    day = day - 1 if day > 1 else day + 2  # noqa: PLW2901 - moved to the nearest weekday of the month
                elif weekday == 0:
                    day = day + 1 if day < length else day - 2  # noqa: PLW2901
                dom |= 1 << (day - 1)
    dow = (week & 127) * 0x10204081 & all_days
    if days.nth or days.last_dow:
        for day in range(1, length + 1):
            weekday = (first_dow + day - 1) % 7
            if days.nth >> ((day - 1) // 7 * 7 + weekday) & 1 or (day > length - 7 and days.last_dow >> weekday & 1):
                dow |= 1 << (day - 1)
    return dom & dow if days.both else dom | dow


@lru_cache(maxsize=4096)
def day_table(days: Days) -> bytes:
    """The 28 masks that `_cron.CronTable.add` takes."""
    return struct.pack("=28I", *(days_of_month(days, length, dow) for length in range(28, 32) for dow in range(7)))


def year_table(years: int) -> bytes | None:
    """The year mask that `_cron.CronTable.add` takes."""
    return years.to_bytes(24, "little") if years else None


def can_match(masks: Masks) -> bool:
    """Whether any date matches. (Each weekday begins a month of each length, a leap February too, within 400 years.)"""
    if masks.years:
        for year in range(YEAR_MIN, YEAR_MAX + 1):
            if masks.years >> (year - YEAR_MIN) & 1:
                for month in range(1, 13):
                    if masks.months >> (month - 1) & 1:
                        first = date(year, month, 1)
                        after = date(year + month // 12, month % 12 + 1, 1)
                        if days_of_month(masks.days, (after - first).days, first.isoweekday() % 7):
                            return True
        return False
    lengths = {n for month, some in enumerate(_LENGTHS, 1) if masks.months >> (month - 1) & 1 for n in some}
    return any(days_of_month(masks.days, length, dow) for length in lengths for dow in range(7))


_MONTH_NAMES: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)
_DAY_NAMES: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


def describe(expr: str, seconds: str = "first", day_or: bool = True) -> str:
    """An expression in plain words, as `wheelsched cron explain` shows it. ScheduleError as `parse`."""
    masks = parse(expr, seconds, day_or)
    texts = dict(split(expr, seconds))
    parts = [_describe_time(texts, masks)]
    day, week = texts[MONTHDAY], texts[WEEKDAY]
    if day not in ("*", "?"):
        parts.append("on " + _join(MONTHDAY, day))
    if week not in ("*", "?"):
        joined = "on" if day in ("*", "?") else "if it is" if masks.days.both else "or on"
        parts.append(f"{joined} {_join(WEEKDAY, week)}")
    if day in ("*", "?") and week in ("*", "?") and texts[HOUR] != "*":
        parts.append("every day")
    if texts[MONTH] != "*":
        parts.append("in " + _join(MONTH, texts[MONTH]))
    if texts.get(YEAR, "*") != "*":
        parts.append("in " + _join(YEAR, texts[YEAR]))
    dst = (
        "Over changes of the clock it follows real time." if masks.wild
        else "A time that the clock skips runs right after the gap, one that it repeats runs the first time only."
    )
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}. {dst}"


def _describe_time(texts: dict[Field, str], masks: Masks) -> str:
    """The seconds, minutes and hours."""
    second = texts.get(SECOND, "0")
    if all(re.fullmatch(r"[\d,]+", texts[f]) for f in (MINUTE, HOUR)) and second.isdigit():
        tail = f":{int(second):02}" if int(second) else ""
        hours, minutes = (_bits(mask) for mask in (masks.hours, masks.minutes))
        times = [f"{h:02}:{m:02}{tail}" for h in hours for m in minutes]
        if len(times) <= 12:  # a line's worth
            return "at " + _and(times)
    parts = []
    if not (second.isdigit() and int(second) == 0):
        parts.append(_join(SECOND, second))
    if not (parts and texts[MINUTE] == "*"):
        parts.append(_join(MINUTE, texts[MINUTE]))
    if texts[HOUR] != "*":
        parts.append(_join(HOUR, texts[HOUR]))
    elif texts[MINUTE] != "*" and "/" not in texts[MINUTE]:
        parts.append("every hour")
    return ", ".join(parts)


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _join(field: Field, text: str) -> str:
    """A field's items in words."""
    items = text.split(",")
    words = _and([_describe_item(field, item) for item in items])
    if field in (MONTH, WEEKDAY, YEAR) or not re.match(r"[\d]", words):
        return words
    return f"{'day' if field is MONTHDAY else field.name} {words}"


def _value_name(field: Field, text: str) -> str:
    if field is MONTH:
        return _MONTH_NAMES[_number(field, text, text) - 1]
    return _DAY_NAMES[_number(field, text, text) % 7] if field is WEEKDAY else str(int(text))


def _describe_item(field: Field, item: str) -> str:
    """One item in words; it is known to be valid."""
    unit = "day" if field in (MONTHDAY, WEEKDAY) else field.name
    if found := _PLAIN.fullmatch(item):
        low, high, step = found.groups()
        every = f"every {unit}" if step in (None, "1") else f"every {step} {unit}s"
        if low == "*":
            return every
        if high is None and step is None:
            return _value_name(field, low)
        ends = f"{_value_name(field, low)} to {_value_name(field, high)}" if high else f"{_value_name(field, low)} on"
        return ends if step is None else f"{every} from {ends}"
    if found := _HASHED.fullmatch(item):
        within = f" from {found[1]} to {found[2]}" if found[1] else ""
        if found[3]:
            return f"every {found[3]} {unit}s{within} (spread by the job's name)"
        return f"one {unit}{within} chosen by the job's name"
    if field is MONTHDAY and (found := _LAST.fullmatch(item)):
        back = int(found[1] or 0)
        last = f"the day {back} before the last day of the month" if back else "the last day of the month"
        return f"the weekday nearest to {last}" if found[2] else last
    if found := _NEAREST.fullmatch(item):
        return f"the weekday nearest to day {found[1] or found[2]}"
    if found := _NTH.fullmatch(item):
        return f"the {_ORDINALS[int(found[2]) - 1]} {_value_name(field, found[1])} of the month"
    return f"the last {_value_name(field, item.strip('l'))} of the month"
