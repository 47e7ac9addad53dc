"""The oracle for cron: every minute (or second) of a window of real time through zoneinfo, and a dumb parser.

It shares no code with wheelsched. A window lists all real instants with their wall clock, and all wall times that its
gaps skip; an expression's occurrences are picked from these by looking at each one.
"""
from __future__ import annotations

import calendar
import io
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

import numpy as np

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
ALIASES = {"@daily": "0 0 * * *", "@hourly": "0 * * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
           "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@midnight": "0 0 * * *"}


def zone(name):
    """A ZoneInfo on the tzdata package's bytes, whatever the system has."""
    return ZoneInfo.from_file(io.BytesIO(files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()), key=name)


def zone_names():
    return (files("tzdata") / "zones").read_text().split()


def value(text, low, names):
    return names.index(text) + low if text in names else int(text)


def plain(text, low, high, names=()):
    """The set of values of a field without L, W and #; None for an item that has them."""
    out = set()
    for item in text.lower().split(","):
        body, _, step = item.partition("/")
        if body in ("*", "?"):
            a, b = low, high
        elif "-" in body:
            a, b = (value(x, low, names) for x in body.split("-"))
            if names == DAYS and body.endswith("-sun") and a > 0:
                b = 7
        else:
            a = value(body, low, names)
            b = high if step else a
        assert a <= b
        out.update(range(a, b + 1, int(step or 1)))
    return {v % 7 for v in out} if names == DAYS else out


def nearest(year, month, day, length):
    """The weekday nearest to a day within its month."""
    for delta in (0, -1, 1, -2, 2):
        if 1 <= day + delta <= length and date(year, month, day + delta).weekday() < 5:
            return day + delta
    raise AssertionError


def monthday_ok(text, d):
    length = calendar.monthrange(d.year, d.month)[1]
    for item in text.lower().split(","):
        if item == "l":
            ok = d.day == length
        elif item == "lw":
            ok = d.day == nearest(d.year, d.month, length, length)
        elif item.startswith("l-"):
            ok = d.day == length - int(item[2:])
        elif item.endswith("w"):
            ok = int(item[:-1]) <= length and d.day == nearest(d.year, d.month, int(item[:-1]), length)
        else:
            ok = d.day in plain(item, 1, 31)
        if ok:
            return True
    return False


def weekday_ok(text, d):
    length = calendar.monthrange(d.year, d.month)[1]
    today = d.isoweekday() % 7
    for item in text.lower().split(","):
        if "#" in item:
            day, nth = item.split("#")
            ok = today == value(day, 0, DAYS) % 7 and (d.day - 1) // 7 + 1 == int(nth)
        elif item.endswith("l"):
            ok = today == value(item[:-1], 0, DAYS) % 7 and d.day + 7 > length
        else:
            ok = today in plain(item, 0, 6, DAYS)
        if ok:
            return True
    return False


class Expression:
    """Five to seven fields, seconds first."""

    def __init__(self, text):
        parts = ALIASES.get(text, text).split()
        self.seconds, self.years = {0}, None
        if len(parts) > 5:
            self.seconds = plain(parts.pop(0), 0, 59)
        if len(parts) > 5:
            year = parts.pop()
            self.years = None if year == "*" else plain(year, 1970, 2099)
        minute, hour, self.dom, month, self.dow = parts
        self.minutes, self.hours = plain(minute, 0, 59), plain(hour, 0, 23)
        self.months = plain(month, 1, 12, MONTHS)
        self.wild = minute[0] == "*" or hour[0] == "*"
        self.both = self.dom[0] in "*?" or self.dow[0] in "*?"

    def day_ok(self, d, day_or=True):
        if d.month not in self.months or (self.years is not None and d.year not in self.years):
            return False
        a, b = monthday_ok(self.dom, d), weekday_ok(self.dow, d)
        return (a and b) if self.both or not day_or else (a or b)


class Window:
    """Real time from `start` on: `count` steps of `step_s` seconds (1 or 60), seen through a zone."""

    def __init__(self, name, start, count, step_s=60):
        self.name, self.start, self.step_s = name, start, step_s
        self.end = start + timedelta(seconds=count * step_s)
        tz = zone(name)
        self.real, self.skipped = [], []  # (second since the epoch, wall), (jump, before, size, wall)
        last = None
        s = round((start - EPOCH).total_seconds())
        # Some margin: an overlap's other side may lie outside the window.
        margin = 86_400 if step_s == 60 else 4 * 3600
        for u in range(s - margin, s + count * step_s + margin, step_s):
            wall = (EPOCH + timedelta(seconds=u)).astimezone(tz).replace(tzinfo=None, fold=0)
            offset = round((wall - datetime(1970, 1, 1)).total_seconds()) - u
            assert offset % step_s == 0, "choose a window of whole-minute offsets"
            if last is not None and offset > last:
                for i in range(0, offset - last, step_s):
                    self.skipped.append((u, last, offset - last, wall - timedelta(seconds=offset - last - i)))
            last = offset
            self.real.append((u, wall))
        self.columns = {}
        for which, walls in (("real", [w for _, w in self.real]), ("skipped", [w[3] for w in self.skipped])):
            self.columns[which] = (
                np.array([w.second for w in walls], int), np.array([w.minute for w in walls], int),
                np.array([w.hour for w in walls], int), [w.date() for w in walls],
            )

    def _picked(self, which, expression, day_or):
        second, minute, hour, dates = self.columns[which]
        good = np.isin(second, list(expression.seconds)) & np.isin(minute, list(expression.minutes))
        good &= np.isin(hour, list(expression.hours))
        days = {}
        out = []
        for i in np.flatnonzero(good):
            d = dates[i]
            if d not in days:
                days[d] = expression.day_ok(d, day_or)
            if days[d]:
                out.append(int(i))
        return out

    def occurrences(self, text, gap=None, overlap=None, day_or=True):
        """Seconds since the epoch within [start, end), sorted."""
        expression = Expression(text)
        limited = gap is None
        if gap is None:
            gap = "skip" if expression.wild else "run_after"
        if overlap is None:
            overlap = "both" if expression.wild else "first"
        by_wall = {}
        for i in self._picked("real", expression, day_or):
            u, wall = self.real[i]
            by_wall.setdefault(wall, []).append(u)
        out = set()
        for instants in by_wall.values():
            out.update({"first": instants[:1], "second": instants[-1:], "both": instants}[overlap])
        if gap != "skip":
            for i in self._picked("skipped", expression, day_or):
                jump, before, size, wall = self.skipped[i]
                if limited and size >= 3 * 3600:
                    continue
                shifted = round((wall - datetime(1970, 1, 1)).total_seconds()) - before
                out.add(jump if gap == "run_after" else shifted)
        low, high = ((t - EPOCH).total_seconds() for t in (self.start, self.end))
        return sorted(u for u in out if low <= u < high)


def jumps(name, since, until):
    """Instants between two years at which the zone's offset changes."""
    tz, out = zone(name), []
    t = datetime(since, 1, 1, tzinfo=UTC)
    end = datetime(until, 1, 1, tzinfo=UTC)
    hop = timedelta(days=7)
    while t < end:
        if t.astimezone(tz).utcoffset() != (t + hop).astimezone(tz).utcoffset():
            low, high = t, t + hop
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // 2
                middle = middle.replace(microsecond=0)
                if middle.astimezone(tz).utcoffset() == low.astimezone(tz).utcoffset():
                    low = middle
                else:
                    high = middle
            out.append(high)
        t += hop
    return out


def _items(rng, low, high, names=(), depth=1):
    kind = rng.randrange(7)
    a = rng.randint(low, high)
    b = rng.randint(a, high)
    if names == DAYS and kind == 3 and rng.random() < 0.2:
        return f"{DAYS[rng.randint(1, 6)]}-sun"
    show = (lambda v: rng.choice((names[v - low], names[v - low].upper(), str(v)))) if names else str
    if kind == 0 and depth:
        return ",".join(_items(rng, low, high, names, 0) for _ in range(rng.randint(2, 4)))
    if kind == 1:
        return f"*/{rng.randint(1, high + 2)}"
    if kind == 2:
        return f"{show(a)}-{show(b)}/{rng.randint(1, 9)}"
    if kind == 3:
        return f"{show(a)}-{show(b)}"
    if kind == 4:
        return f"{show(a)}/{rng.randint(1, 20)}"
    if kind == 5 and not depth:
        return "*"
    return show(a)


def random_field(rng, low, high, names=(), star=0.5):
    return "*" if rng.random() < star else _items(rng, low, high, names)


def random_monthday(rng):
    r = rng.random()
    if r < 0.45:
        return rng.choice(("*", "*", "?"))
    if r < 0.75:
        return _items(rng, 1, 31)
    special = ["L", f"L-{rng.randint(1, 30)}", f"{rng.randint(1, 31)}W", "LW", str(rng.randint(1, 31))]
    return ",".join(rng.sample(special, rng.randint(1, 3)))


def random_weekday(rng):
    r = rng.random()
    if r < 0.45:
        return rng.choice(("*", "*", "?"))
    if r < 0.75:
        return rng.choice((_items(rng, 0, 6, DAYS), "7", "6-7", "0-7", "5-7", "7-7"))
    day = rng.choice([*DAYS, *"01234567"])
    special = [f"{day}L", f"{day}#{rng.randint(1, 5)}", str(rng.randint(0, 7)), rng.choice(DAYS)]
    return ",".join(rng.sample(special, rng.randint(1, 3)))


def random_expression(rng, *, seconds=False, near=None):
    """A random expression; `near` (a wall time) makes hour and minute often fall close to it."""
    minute = random_field(rng, 0, 59, star=0.25)
    hour = random_field(rng, 0, 23, star=0.4)
    if near is not None and rng.random() < 0.5:
        hours = sorted({(near.hour + k) % 24 for k in rng.sample((-2, -1, 0, 1, 2), rng.randint(1, 3))})
        hour = ",".join(map(str, hours))
        if rng.random() < 0.5:
            minute = str(rng.choice((0, 1, 15, 29, 30, 31, 59, near.minute)))
    month = random_field(rng, 1, 12, MONTHS, star=0.8)
    text = f"{minute} {hour} {random_monthday(rng)} {month} {random_weekday(rng)}"
    if seconds:
        text = f"{random_field(rng, 0, 59, star=0.3)} {text}"
        if rng.random() < 0.3:
            text += " " + rng.choice(("*", "*/2", "2000-2030", "2024,2025,2026", "1999/3"))
    return text
