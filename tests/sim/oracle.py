"""The dumb scheduler: nominal times of a definition by looking at every minute of a day through zoneinfo, and at every wall minute that a
gap skipped. Calendars in plain Python. It shares no code with the engine's due path, and none with `_cron`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from io import BytesIO
from zoneinfo import ZoneInfo

from tests.rigs.cron_oracle import Expression
from wheelsched.model.nouns import NEVER
from wheelsched.schedules.schedule import schedule_from_wire
from wheelsched.schedules.zonedata import load_zone

US = 1_000_000
MINUTE_US = 60 * US
DAY_US = 86_400 * US
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CORRECTION_US = 3 * 3_600 * US  # jumps from here on are corrections of the clock: nothing is made up for them
LOOK_US = 40 * DAY_US  # how far `next` looks

# Version z2 of the zone data: these countries gave their summer time up, or took another offset.
CHANGED = {"Europe/Berlin": "Africa/Algiers", "America/New_York": "America/Halifax", "Australia/Lord_Howe": "Australia/Brisbane"}


def zone_data(name, version):
    """TZif bytes of a zone in a version of the zone data: z1 (as they are) or z2."""
    return load_zone(CHANGED.get(name, name) if version == "z2" else name)


@cache
def zone(name, version):
    """The same for datetimes."""
    return ZoneInfo.from_file(BytesIO(zone_data(name, version)), key=name)


def local(us, name, version):
    """Wall clock of an instant."""
    return (EPOCH + timedelta(microseconds=us)).astimezone(zone(name, version))


def instant(moment):
    """Microseconds since the epoch of an aware datetime."""
    return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=1_000)
def minutes_of(name, version, day):
    """Every minute of a UTC day: (instant, wall, first, second) where the same wall minute is at `first` and at `second`."""
    tz = zone(name, version)
    out = []
    for us in range(day * DAY_US, (day + 1) * DAY_US, MINUTE_US):
        wall = (EPOCH + timedelta(microseconds=us)).astimezone(tz)
        out.append((us, wall, instant(wall.replace(fold=0)), instant(wall.replace(fold=1))))
    return out


@lru_cache(maxsize=1_000)
def gaps_of(name, version, day):
    """Jumps of the wall clock in the day and the hours before it: (instant after it, size, wall minutes that it skipped)."""
    out, last = [], None
    for before in (day - 1, day):
        for us, wall, _, _ in minutes_of(name, version, before):
            offset = wall.utcoffset() // timedelta(microseconds=1)
            if last is not None and offset > last:
                first = wall.replace(tzinfo=None) - timedelta(microseconds=offset - last)
                out.append((us, offset - last, [first + timedelta(minutes=i) for i in range((offset - last) // MINUTE_US)]))
            last = offset
    return out


@lru_cache(maxsize=20_000)
def cron_day(expr, name, gap, overlap, version, day):
    """(nominal times, {instant that a zone change took: reason}) of a cron expression within a UTC day."""
    expression = Expression(expr)
    days = {}

    def matches(wall):
        if wall.minute not in expression.minutes or wall.hour not in expression.hours:
            return False
        d = wall.date()
        if d not in days:
            days[d] = expression.day_ok(d)
        return days[d]

    overlap = overlap or ("both" if expression.wild else "first")
    grid, lost = set(), {}
    for us, wall, first, second in minutes_of(name, version, day):
        if matches(wall):
            if first == second or overlap == "both" or us == (first if overlap == "first" else second):
                grid.add(us)
            else:
                lost[us] = "dst_overlap"
    for jump, size, walls in gaps_of(name, version, day):
        rule = gap or ("skip" if expression.wild or size >= CORRECTION_US else "run_after")
        for i, wall in enumerate(walls):
            shifted = jump + i * MINUTE_US  # the same distance after the gap as the wall time is into it
            if matches(wall):
                if rule == "skip":
                    lost[shifted] = "dst_gap"
                else:
                    grid.add(jump if rule == "run_after" else shifted)
    low, high = day * DAY_US, (day + 1) * DAY_US
    within = [us for us in grid if low <= us < high]
    spread = [us + s * US for us in within for s in expression.seconds]
    gone = {us + s * US: why for us, why in lost.items() for s in expression.seconds if low <= us < high}
    return tuple(sorted(spread)), gone


@cache
def unhashed(expr, hash_id):
    """An expression whose minute is H, with the minute that the job's name gives."""
    if not expr.startswith("H "):
        return expr
    cron = schedule_from_wire({"kind": "cron", "expr": expr, "tz": "UTC", "dst_gap": None, "dst_overlap": None, "day_or": True, "seconds": "first"})
    return f"{replace(cron, hash_id=hash_id).next(EPOCH, 1)[0].minute} {expr[2:]}"


class Plan:
    """What a definition says, under one version of the zone data."""

    def __init__(self, wire, param, version):
        self.wire, self.param, self.version = wire, param, version
        self.start = -1 if wire["start_us"] is None else wire["start_us"]
        self.end = NEVER if wire["end_us"] is None else wire["end_us"]
        schedule = wire["schedule"]
        self.parts = [(p["schedule"], p["param_us"]) for p in schedule["of"]] if schedule["kind"] == "union" else [(schedule, param)]

    def _bounds(self, after, until):
        return max(after, self.start - 1), min(until, self.end)

    def grid(self, after, until):
        """Nominal times in (after, until], ascending."""
        after, until = self._bounds(after, until)
        if after >= until:
            return []
        found = set()
        for schedule, param in self.parts:
            found.update(self._of(schedule, self.param if param == NEVER else param, after, until))
        return sorted(found)

    def _of(self, schedule, param, after, until):
        kind = schedule["kind"]
        if kind == "at" or schedule.get("after_completion"):
            return [param] if after < param <= until else []
        if kind == "every":
            every = schedule["every_us"]
            first = max(param + every, param + ((after - param) // every + 1) * every)
            return range(first, until + 1, every)
        return [us for day in self._days(after, until) for us in self._cron(schedule, day)[0] if after < us <= until] if kind == "cron" else []

    def _days(self, after, until):
        assert until - after < 800 * DAY_US, "the dumb scheduler looks at every minute"
        return range((after + 1) // DAY_US, until // DAY_US + 1)

    def _cron(self, schedule, day):
        assert (schedule["day_or"], schedule["seconds"]) == (True, "first")
        expr = unhashed(schedule["expr"], self.wire.get("hash_id"))
        return cron_day(expr, schedule["tz"], schedule["dst_gap"], schedule["dst_overlap"], self.version, day)

    def lost(self, after, until):
        """{instant: reason} of wall times in (after, until] that a zone change took away and that are no nominal times."""
        after, until = self._bounds(after, until)
        found = {}
        for schedule, _ in self.parts if after < until else ():
            if schedule["kind"] == "cron" and schedule["tz"] != "UTC":
                for day in self._days(after, until):
                    found |= {us: why for us, why in self._cron(schedule, day)[1].items() if after < us <= until}
        own = set(self.grid(after, until)) if found else ()
        return {us: why for us, why in sorted(found.items()) if us not in own}

    def next(self, after, free=lambda _: True, look_us=LOOK_US):
        """The first nominal time later than an instant for which `free`; NEVER when there is none for a long time."""
        begin, span = max(after, self.start - 1), 3_600 * US
        end = begin + look_us
        while begin < end:
            for us in self.grid(begin, min(begin + span, end)):
                if free(us):
                    return us
            begin, span = begin + span, min(span * 4, DAY_US * 10)
        return NEVER

    @property
    def fixed(self):
        """Zone of a single schedule whose minute and hour are fixed; None for all others."""
        schedule = self.wire["schedule"]
        if schedule["kind"] != "cron" or Expression(unhashed(schedule["expr"], self.wire.get("hash_id"))).wild:
            return None
        return schedule["tz"]


def in_calendar(wire, us, version):
    """Whether an instant is one of a calendar's times."""
    wall = local(us, wire["tz"], version)
    day, time = wall.date(), wall.strftime("%H:%M:%S")
    if day.isoformat() in wire.get("dates", ()) or day.strftime("%m-%d") in wire.get("yearly", ()) or WEEK[day.weekday()] in wire.get("weekdays", ()):
        return True
    if any(w["from_us"] <= us < w["to_us"] for w in wire.get("windows", ())):
        return True
    return any(_in_span(span, day, time) for span in wire.get("daily", ()))


def _in_span(span, day, time):
    begin, end = (f"{span[x]}:00" if len(span[x]) == 5 else span[x] for x in ("from", "to"))
    names = span.get("weekdays", WEEK)
    today, yesterday = WEEK[day.weekday()] in names, WEEK[(day - timedelta(days=1)).weekday()] in names
    if begin < end:
        return today and begin <= time < end
    return (today and time >= begin) or (yesterday and time < end)


def blocked(wires, us, version):
    """Whether any of these calendars keeps an occurrence at an instant from running."""
    return any(in_calendar(w, us, version) == (w["mode"] == "exclude") for w in wires)
