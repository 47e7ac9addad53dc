"""Calendars against a dumb oracle that looks at one instant at a time through zoneinfo; checks of what is given."""
import os
import random
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import pytest

from tests.rigs import cron_oracle as brute
from wheelsched.model.errors import InvalidArgumentError, ScheduleError
from wheelsched.model.nouns import INSTANT_MAX_US, NEVER
from wheelsched.schedules import zonedata
from wheelsched.schedules.calendars import Calendar, Calendars, calendar_from_api, check_calendar, describe_calendar
from wheelsched.schedules.zones import Zones

LONG = os.environ.get("WHEELSCHED_LONG") == "1"
SEED = int(os.environ.get("WHEELSCHED_SEED", "1"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTE_US = 60_000_000
DAY_US = 1_440 * MINUTE_US
# Half an hour, at midnight, a skipped day, two hours, no change, and rules for ever.
ZONES = ("Australia/Lord_Howe", "Asia/Beirut", "America/Havana", "America/Asuncion", "Pacific/Apia", "Antarctica/Troll",
         "Asia/Kolkata", "America/New_York", "UTC")


def us(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def at(text):
    return us(datetime.fromisoformat(text))


def zones():
    return Zones(zonedata.load_zone)


def compiled(**given):
    return Calendar(calendar_from_api(**given), zones())


def inside(wire, tz, instant):
    """Whether an instant is among a calendar's times; every rule is looked at on its own."""
    wall = (EPOCH + timedelta(microseconds=instant)).astimezone(tz)
    day, clock = wall.date(), wall.strftime("%H:%M:%S")
    before = day - timedelta(days=1)
    if day.isoformat() in wire.get("dates", ()) or day.isoformat()[5:] in wire.get("yearly", ()):
        return True
    if DAYS[day.weekday()] in wire.get("weekdays", ()):
        return True
    if any(w["from_us"] <= instant < w["to_us"] for w in wire.get("windows", ())):
        return True
    for span in wire.get("daily", ()):
        days, low, high = span.get("weekdays", DAYS), span["from"], span["to"]
        if low < high:
            if DAYS[day.weekday()] in days and low <= clock < high:
                return True
        elif (DAYS[day.weekday()] in days and clock >= low) or (DAYS[before.weekday()] in days and clock < high):
            return True
    return False


def blocked(wire, tz, instant):
    return inside(wire, tz, instant) == (wire["mode"] == "exclude")


def random_calendar(rng, around):
    """A calendar whose times lie near an instant."""
    clocks = ["00:00", "01:00", "02:00", "02:30", "03:00", "06:00", "22:00", "23:30", "12:34:56"]
    near = [(EPOCH + timedelta(microseconds=around, days=d)).date().isoformat() for d in range(-4, 5)]
    given = {"mode": rng.choice(("exclude", "include")), "tz": rng.choice(ZONES)}
    parts = {
        "dates": lambda: rng.sample(near, rng.randint(1, 3)),
        "yearly": lambda: [*(d[5:] for d in rng.sample(near, rng.randint(1, 2))), "02-29"],
        "weekdays": lambda: rng.sample(DAYS, rng.randint(1, 3)),
        "windows": lambda: [{"from_us": (low := around + rng.randrange(-3 * DAY_US, 3 * DAY_US)), "to_us": low + rng.randrange(1, DAY_US)}
                            for _ in range(rng.randint(1, 3))],
        "daily": lambda: [{**({"weekdays": rng.sample(DAYS, rng.randint(1, 4))} if rng.random() < 0.6 else {}),
                           **dict(zip(("from", "to"), rng.sample(clocks, 2), strict=True))} for _ in range(rng.randint(1, 3))],
    }
    for key in rng.sample(sorted(parts), rng.randint(1, 3)):
        given[key] = parts[key]()
    return check_calendar(given)


@pytest.mark.slow
def test_against_the_oracle_minute_by_minute():
    """blocked, blocked_until and free_until on a week around a change of the clock, every minute and some odd instants."""
    rng = random.Random(SEED)
    print("seed", SEED)
    for _ in range(600 if LONG else 20):
        name = rng.choice(ZONES)
        year = rng.choice((1995, 2011, 2019, 2024, 2026, 2037, 2090, 2450))
        changes = brute.jumps(name, year, year + 1)
        around = us(rng.choice(changes)) if changes else us(datetime(year, rng.randint(1, 12), 15, tzinfo=UTC))
        wire = random_calendar(rng, around)
        tz = brute.zone(wire["tz"])
        low = around // MINUTE_US * MINUTE_US - 2 * DAY_US
        minutes = np.arange(low, low + 5 * DAY_US, MINUTE_US)
        odd = [w[k] + d for w in wire.get("windows", ()) for k in w for d in (-1, 0)] + [rng.randrange(low, low + 5 * DAY_US) for _ in range(50)]
        instants = np.unique(np.concatenate([minutes, np.array(odd, np.int64)]))
        instants = instants[(instants >= low) & (instants < low + 5 * DAY_US)]
        want = np.array([blocked(wire, tz, t) for t in instants.tolist()])
        calendar, table = Calendar(wire, zones()), Calendars(zones())
        table.put("x", wire)
        assert (calendar.blocked(instants) == want).all(), (SEED, wire, instants[calendar.blocked(instants) != want][:3])
        changed = np.flatnonzero(want[1:] != want[:-1]) + 1
        for i in rng.sample(range(len(instants)), 40):
            later = changed[changed > i]
            t = int(instants[i])
            free, busy = table.blocked_until(("x",), t), table.free_until(("x",), t)
            assert (free == t) == (not want[i]), (SEED, wire, t)
            assert (busy == t) == bool(want[i]), (SEED, wire, t)
            end = free if want[i] else busy
            assert calendar.blocked_until(t) == free, (SEED, wire, t)
            if len(later):  # the minute in which it changes is known, and that it is the exact instant can be asked
                assert instants[later[0] - 1] < end <= instants[later[0]], (SEED, wire, t, end)
            else:
                assert end > instants[-1], (SEED, wire, t, end)
            if end != NEVER and end < INSTANT_MAX_US:
                assert blocked(wire, tz, end) != bool(want[i]), (SEED, wire, t, end)
                assert blocked(wire, tz, end - 1) == bool(want[i]), (SEED, wire, t, end)


@pytest.mark.slow
def test_several_calendars_block_together():
    rng = random.Random(SEED + 1)
    for _ in range(150 if LONG else 8):
        around = at("2026-03-08T07:00:00+00:00")
        wires = [random_calendar(rng, around) for _ in range(rng.randint(2, 4))]
        table = Calendars(zones())
        names = tuple(f"c{i}" for i in range(len(wires)))
        for name, wire in zip(names, wires, strict=True):
            table.put(name, wire)
        instants = np.arange(around - 3 * DAY_US, around + 3 * DAY_US, 7 * MINUTE_US)
        each = [[blocked(w, brute.zone(w["tz"]), t) for t in instants.tolist()] for w in wires]
        want = np.array(each).any(axis=0)
        assert (table.blocked(names, instants) == want).all(), (SEED, wires)
        for i in rng.sample(range(len(instants)), 10):
            t = int(instants[i])
            assert table.blocking(names, t) == next((n for n, col in zip(names, each, strict=True) if col[i]), None)
            free = np.flatnonzero(~want[i:])
            until = table.blocked_until(names, t)
            assert (until > instants[-1]) if not len(free) else (until <= instants[i + free[0]]), (SEED, wires, t)
            assert until == t or bool(want[i])


def test_times_that_come_twice_or_never():
    nights = compiled(tz="America/New_York", daily=["01:00-02:00"])
    autumn = at("2026-11-01T05:00:00+00:00")  # 01:00 in summer time; it comes again an hour later
    assert nights.blocked_until(autumn) == autumn + 120 * MINUTE_US
    gone = compiled(tz="America/New_York", daily=["02:00-03:00"])
    assert not gone.blocked(np.arange(at("2026-03-08T05:00:00+00:00"), at("2026-03-08T12:00:00+00:00"), MINUTE_US)).any()
    skipped = compiled(tz="Pacific/Apia", dates=["2011-12-30"])
    assert not skipped.blocked(np.arange(at("2011-12-28T00:00:00+00:00"), at("2012-01-02T00:00:00+00:00"), MINUTE_US)).any()


@pytest.mark.parametrize("year", [2030, 2450, 2900])
def test_edges_behind_a_change_of_the_clock(year):
    """Also beyond the changes that are written out, which repeat after 400 years."""
    calendar = compiled(mode="include", tz="America/New_York", daily=["08:00-12:00"])
    for change in brute.jumps("America/New_York", year, year + 1):
        asked = us(change) - 12 * 60 * MINUTE_US  # the afternoon before
        morning = (change + timedelta(hours=6)).astimezone(brute.zone("America/New_York")).replace(hour=8, minute=0)
        assert calendar.blocked_until(asked) == us(morning.astimezone(UTC)), change


def test_night_belongs_to_the_day_it_begins_on():
    nights = compiled(daily=[{"weekdays": ["fri"], "from": "22:00", "to": "06:00"}])
    friday = at("2026-11-27T22:00:00+00:00")
    assert nights.blocked(np.array([friday - 1, friday, friday + 480 * MINUTE_US - 1, friday + 480 * MINUTE_US, friday - DAY_US])).tolist() == [
        False, True, True, False, False,
    ]


def test_what_never_ends_and_what_is_far():
    now = at("2026-11-29T12:00:00+00:00")
    past = compiled(mode="include", dates=["2020-01-01"])
    assert past.blocked_until(now) == NEVER
    assert compiled(weekdays=DAYS).blocked_until(now) == NEVER
    assert compiled(mode="include", dates=["2090-01-01"]).blocked_until(now) == at("2090-01-01T00:00:00+00:00")
    leap = compiled(mode="include", yearly=["02-29"], tz="Europe/Berlin")
    assert leap.blocked_until(at("2096-03-01T12:00:00+00:00")) == at("2104-02-28T23:00:00+00:00")
    table = Calendars(zones())
    table.put("a", calendar_from_api("include", daily=["08:00-12:00"]))
    table.put("b", calendar_from_api("include", daily=["12:00-13:00"]))
    assert table.blocked_until(("a", "b"), now) == NEVER  # they have no minute in common
    assert table.free_until((), now) == NEVER
    table.put("c", calendar_from_api(dates=["2026-12-25"]))
    assert table.free_until(("c",), now) == at("2026-12-25T00:00:00+00:00")
    assert table.free_until(("c",), at("2026-12-26T00:00:00+00:00")) == NEVER
    assert table.blocked_until(("c",), INSTANT_MAX_US) == INSTANT_MAX_US


def test_a_changed_calendar_is_followed_at_once():
    table = Calendars(zones())
    now = at("2026-12-25T12:00:00+00:00")
    table.put("holidays", calendar_from_api(dates=["2026-12-25"]))
    assert table.blocked_until(("holidays",), now) == now + DAY_US // 2
    table.put("holidays", calendar_from_api(dates=["2026-12-25", "2026-12-26"]))
    assert table.blocked_until(("holidays",), now) == now + DAY_US * 3 // 2
    assert "holidays" in table
    assert table.wire("holidays")["dates"] == ["2026-12-25", "2026-12-26"]
    table.remove("holidays")
    assert "holidays" not in table
    for ask in (lambda: table.blocked(("holidays",), np.zeros(1, np.int64)), lambda: table.blocked_until(("holidays",), now),
                lambda: table.remove("holidays")):
        with pytest.raises(KeyError):
            ask()


# What users give

def test_ways_to_write_a_calendar():
    low, high = datetime(2026, 12, 1, 8, tzinfo=UTC), datetime(2026, 12, 1, 18, tzinfo=UTC)
    one = calendar_from_api(
        tz="Europe/Berlin", dates=["2026-12-25", date(2026, 12, 24), "2026-12-25"], yearly="01-01", weekdays=["Sunday", "sat", "SUN"],
        windows=[(low, high), ("2026-12-01T08:00:00Z", "2026-12-01T18:00:00Z")],
        daily=["22:00-06:00", (time(22), time(6)), {"weekdays": "fri", "from": "12:00:00", "to": "24:00"}, {"weekdays": DAYS, "from": "22:00", "to": "06:00"}],
    )
    assert one == {
        "mode": "exclude", "tz": "Europe/Berlin", "dates": ["2026-12-24", "2026-12-25"], "yearly": ["01-01"], "weekdays": ["sat", "sun"],
        "windows": [{"from_us": us(low), "to_us": us(high)}],
        "daily": [{"weekdays": ["fri"], "from": "12:00", "to": "24:00"}, {"from": "22:00", "to": "06:00"}],
    }
    assert check_calendar(one) == one
    said = describe_calendar(one)
    assert said.startswith("Nothing runs on 2026-12-24, 2026-12-25; on sat, sun; every year on 01-01; from 2026-12-01T08:00:00Z to ")
    assert said.endswith("fri from 12:00 to 24:00; every day from 22:00 to 06:00 (Europe/Berlin).")
    assert describe_calendar(calendar_from_api("include", dates=[f"2026-01-{d:02}" for d in range(1, 32)])).startswith("Runs only on 2026-01-01")


GOOD = {"mode": "exclude", "tz": "UTC", "dates": ["2026-12-25"]}


@pytest.mark.parametrize("change", [
    {"mode": "only"}, {"mode": None}, {"mode": []}, {"tz": "Mars/Phobos"}, {"tz": None}, {"tz": "../UTC"}, {"more": 1}, {5: 1}, {"dates": []},
    {"dates": "2026-12-25"}, {"dates": ["2026-13-45"]}, {"dates": ["2026-02-29"]}, {"dates": ["1969-12-31"]}, {"dates": [20261225]},
    {"dates": ["20261225"]}, {"dates": ["2026-W01-1"]}, {"dates": [None]}, {"dates": ["0001-01-01"]}, {"dates": ["٢٠٢٦-12-25"]},
    {"yearly": ["13-45"]}, {"yearly": ["02-30"]}, {"yearly": ["1-1"]}, {"yearly": [1]}, {"yearly": ["12-25-2026"]}, {"yearly": {}},
    {"weekdays": ["someday"]}, {"weekdays": [1]}, {"weekdays": ["sat,sun"]}, {"weekdays": [["sat"]]},
    {"windows": [{"from_us": 5, "to_us": 5}]}, {"windows": [{"from_us": 6, "to_us": 5}]}, {"windows": [{"from_us": 5}]}, {"windows": [[5, 6]]},
    {"windows": [{"from_us": -1, "to_us": 5}]}, {"windows": [{"from_us": 0, "to_us": NEVER}]}, {"windows": [{"from_us": True, "to_us": 5}]},
    {"windows": [{"from_us": 0.0, "to_us": 5}]},
    {"daily": [{"from": "08:00", "to": "08:00"}]}, {"daily": [{"from": "24:00", "to": "08:00"}]}, {"daily": [{"from": "8:00", "to": "09:00"}]},
    {"daily": [{"from": "08:60", "to": "09:00"}]}, {"daily": [{"from": "08:00", "to": "24:01"}]}, {"daily": [{"from": "08:00"}]},
    {"daily": [{"from": "08:00", "to": "09:00", "weekdays": []}]}, {"daily": [{"from": "08:00", "to": "09:00", "tz": "UTC"}]},
    {"daily": [{"from": "08:00", "to": "09:00", "weekdays": "sat"}]}, {"daily": ["08:00-09:00"]}, {"daily": [{"from": 8, "to": 9}]},
    {"dates": ["2026-12-25"] * 10_001}, {"daily": [{"from": "08:00", "to": "09:00"}] * 101},
], ids=lambda c: repr(c)[:60])
def test_bad_calendars(change):
    assert check_calendar(GOOD) == GOOD
    with pytest.raises(InvalidArgumentError):
        check_calendar({**GOOD, **change})


@pytest.mark.parametrize("value", [None, [], "sat", 5])
def test_a_calendar_is_a_map(value):
    with pytest.raises(InvalidArgumentError):
        check_calendar(value)


@pytest.mark.parametrize("given", [
    {}, {"dates": [datetime(2026, 12, 25, tzinfo=UTC)]}, {"dates": 5}, {"dates": None}, {"windows": [(datetime(2026, 1, 1), datetime(2026, 1, 2))]},
    {"windows": ["2026-01-01T00:00:00Z"]}, {"daily": ["22:00"]}, {"daily": ["22:00-22:00"]}, {"daily": [(time(22, tzinfo=UTC), time(6))]}, {"daily": [(time(22, 0, 0, 5), time(6))]},
    {"daily": [(datetime(2026, 1, 1, 22), time(6))]}, {"daily": [(date(2026, 1, 1), time(6))]}, {"daily": [5]}, {"weekdays": 6},
    {"daily": [{"from": "08:00", "to": "09:00", "weekdays": 5}]}, {"dates": iter(["2026-12-25"])},
])
def test_bad_calendars_of_users(given):
    with pytest.raises(InvalidArgumentError):
        calendar_from_api(**given)


def test_zone_data_without_the_zone():
    table = Calendars(Zones(lambda _: None))
    with pytest.raises(ScheduleError, match="time zone"):
        table.put("x", GOOD)
    assert "x" not in table
