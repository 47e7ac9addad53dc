"""The server's table: unions, counts, what a zone change takes away, jitter; against dumb oracles."""
import bisect
import os
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tests.rigs import cron_oracle as brute
from wheelsched.model.errors import ScheduleError
from wheelsched.model.nouns import INSTANT_MAX_US, NEVER
from wheelsched.schedules import table as schedules_module
from wheelsched.schedules import zonedata
from wheelsched.schedules.grids import Grid, count_together, meet, outer
from wheelsched.schedules.jitter import jitter
from wheelsched.schedules.schedule import At, Cron, Every, Manual, as_written, check_union, schedule_from_wire
from wheelsched.schedules.table import KIND_AFTER, KIND_CRON, KIND_EVERY, KIND_UNION, ScheduleTable
from wheelsched.schedules.zones import Zones

LONG = os.environ.get("WHEELSCHED_LONG") == "1"
SEED = int(os.environ.get("WHEELSCHED_SEED", "1"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = 1_767_225_600_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
RULES = [(None, None), ("skip", "first"), ("run_after", "second"), ("shift", "both"), (None, "second"), ("shift", "first"), ("skip", "both")]
ZONES = ["Australia/Lord_Howe", "Asia/Beirut", "America/Havana", "America/Asuncion", "Pacific/Apia", "Pacific/Kwajalein", "Antarctica/Troll",
         "America/New_York", "Europe/London", "UTC"]
YEARS = (1975, 1993, 2005, 2011, 2019, 2025, 2037, 2060, 2450)


def us(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def at(text):
    return us(datetime.fromisoformat(text))


def table():
    return ScheduleTable(Zones(zonedata.load_zone))


def union(*schedules):
    return {"kind": "union", "of": [{"schedule": s.to_wire(), "param_us": s.param_us()} for s in schedules]}


def window(rng, name=None):
    """Three days of minutes, most of them around a change of the clock."""
    while True:
        name, year = rng.choice(ZONES) if name is None else name, rng.choice(YEARS)
        changes = brute.jumps(name, year, year + 2)
        start = rng.choice(changes) - timedelta(hours=rng.randint(1, 60)) if changes else datetime(year, rng.randint(1, 12), 15, tzinfo=UTC)
        start = start.replace(minute=0, second=0)
        try:
            return brute.Window(name, start, 3 * 1440)
        except AssertionError:
            continue  # offsets that are no whole minutes


def near(w):
    """A wall time of the window's middle, for expressions that fall close to the change."""
    return (w.start + (w.end - w.start) / 2).astimezone(brute.zone(w.name))


# Unions

def random_member(rng, w):
    kind = rng.randrange(4)
    if kind == 0:
        return Every(timedelta(milliseconds=rng.choice((60_000, 90_000, 3_600_000, rng.randrange(10_000, 10**8)))),
                     rng.choice((None, w.start - timedelta(hours=rng.randrange(100)))))
    if kind == 1:
        return At(w.start + timedelta(minutes=rng.randrange(3 * 1440)))
    while True:
        try:
            return Cron(brute.random_expression(rng, near=near(w)), w.name, *rng.choice(RULES))
        except ScheduleError:
            continue


def member_times(member, w, anchor):
    """All instants of a member within a window, microseconds; cron by looking at every minute."""
    low, high = us(w.start), us(w.end)
    if isinstance(member, Cron):
        return {s * 1_000_000 for s in w.occurrences(member.expr, member.dst_gap, member.dst_overlap)}
    if isinstance(member, At):
        return {member.param_us()} if low <= member.param_us() < high else set()
    begin = anchor if member.anchor is None else member.param_us()
    times, first = set(), begin + member.every_us
    t = first + max(0, (low - first) // member.every_us) * member.every_us
    while t < high:
        if t >= low:
            times.add(t)
        t += member.every_us
    return times


@pytest.mark.slow
def test_union_is_the_union_of_its_members():
    rng = random.Random(SEED)
    print("seed", SEED)
    for _ in range(400 if LONG else 40):
        w = window(rng)
        low, high = us(w.start), us(w.end)
        for _ in range(3):
            members = [random_member(rng, w) for _ in range(rng.randint(1, 5))]
            anchor = low - rng.randrange(0, 10**9) * 1_000
            t = table()
            kind, a = t.compile(union(*members), "x")
            want = sorted(set().union(*(member_times(m, w, anchor) for m in members)))
            what = (SEED, members, w.name, w.start, anchor)
            assert kind == KIND_UNION, what
            asked = [rng.randrange(low, high) for _ in range(30)] + rng.sample(want, min(10, len(want)))
            out = np.empty(len(asked), np.int64)
            t.next_many(*(np.full(len(asked), v, d) for v, d in ((kind, np.uint8), (a, np.int64), (anchor, np.int64))), np.array(asked), out)
            for after, found in zip(asked, out.tolist(), strict=True):
                i = bisect.bisect_right(want, after)
                assert found == t.next_one(kind, a, anchor, after), what
                assert found == want[i] if i < len(want) else found >= high, (what, after)
                i = bisect.bisect_left(want, after)
                earlier = t.prev_one(kind, a, anchor, after)
                assert earlier == want[i - 1] if i else earlier < low or earlier == NEVER, (what, after)
                until = rng.randrange(after, high)
                inside = [x for x in want if after < x <= until]
                ends = (inside[0], inside[-1]) if inside else (NEVER, NEVER)
                assert t.count_between(kind, a, anchor, after, until, 10**9) == (len(inside), *ends), (what, after, until)
                assert t.count_between(kind, a, anchor, after, until, 3)[0] == min(3, len(inside)), what


def test_unions_are_shared_and_released():
    t = table()
    daily, hourly = Cron("0 0 * * *"), Cron("0 * * * *")
    one = t.compile(union(daily, hourly, Every("90s", START)), "a")
    assert t.compile(union(Every("90s", START), hourly, daily, daily, Cron("@daily")), "b") == one
    assert len(t) == 3
    alone = t.compile(daily.to_wire(), "c")
    other = t.compile(union(daily), "d")
    assert other[1] != one[1]
    t.release(*one)
    t.release(*one)
    assert len(t) == 2  # the daily one, and its union
    with pytest.raises(KeyError):
        t.release(*one)
    with pytest.raises(IndexError):
        t.next_one(*one, 0, START_US)
    t.release(*alone)
    assert t.next_one(*other, 0, START_US) == START_US + DAY_US
    t.release(*other)
    assert len(t) == len(t._table) == 0
    assert t.compile(union(hourly, Every("1h")), "e") == other  # the index is used again


def test_who_needs_an_anchor():
    t = table()
    assert t.needs_anchor(*t.compile(Every("1h").to_wire(), "x"))
    assert t.needs_anchor(*t.compile(union(Cron("0 0 * * *"), Every("1h")), "x"))
    for wire in (union(Cron("0 0 * * *"), Every("1h", START)), Cron("0 0 * * *").to_wire(), At(START).to_wire(), Manual().to_wire(),
                 Every("1h", after_completion=True).to_wire(), union(At(START))):
        assert not t.needs_anchor(*t.compile(wire, "x"))
    both = t.compile(union(Every("1h"), Every("1h", START)), "x")
    assert t.next_one(*both, NEVER, START_US) == START_US + HOUR_US  # without a job's anchor only the other runs
    assert t.next_one(*both, START_US + 1_000, START_US + HOUR_US) == START_US + HOUR_US + 1_000


DAILY = Cron("0 0 * * *")


@pytest.mark.parametrize("wire", [
    union(), union(*[DAILY] * 101), union(DAILY, Manual()), union(DAILY, Every("1h", after_completion=True)), {**union(DAILY), "more": 1},
    {"kind": "union", "of": {}}, {"kind": "union", "of": [DAILY.to_wire()]}, {"kind": "union", "of": [union(DAILY)]}, {"kind": "union"},
    {"kind": "union", "of": [{"schedule": union(DAILY), "param_us": NEVER}]}, {"kind": "union", "of": [{"schedule": None, "param_us": NEVER}]},
    {"kind": "union", "of": [{"schedule": {"kind": "at"}, "param_us": NEVER}]}, {"kind": "union", "of": [{"schedule": DAILY.to_wire(), "param_us": 5}]},
    {"kind": "union", "of": [{"schedule": {"kind": "at"}, "param_us": -1}]}, {"kind": "union", "of": [{"schedule": {"kind": "at"}, "param_us": None}]},
    {"kind": "union", "of": [{"schedule": {**DAILY.to_wire(), "expr": "0 0 31 2 *"}, "param_us": NEVER}]},
    {"kind": "union", "of": [*union(DAILY)["of"], {"schedule": {**DAILY.to_wire(), "tz": "X"}, "param_us": NEVER}]}, [], None, "union",
], ids=lambda w: repr(w)[:60])
def test_bad_unions(wire):
    t = table()
    with pytest.raises(ScheduleError):
        t.compile(wire, "x")
    with pytest.raises(ScheduleError):
        check_union(wire)
    assert len(t) == len(t._table) == 0


def test_union_of_what_never_fires():
    """For one name the day exists, for another it doesn't; a union goes without that member unless it is left empty."""
    rare = Cron("0 0 H(28-31) 2 *")
    t = table()
    names = [f"default/job-{i}" for i in range(40)]
    said = set()
    for name in names:
        try:
            said.add(t.compile(union(rare), name)[0])
        except ScheduleError as e:
            assert "none of the union's members" in e.message
            said.add(None)
        kind, a = t.compile(union(rare, At(START)), name)
        assert t.next_one(kind, a, NEVER, START_US - 1) == START_US
    assert said == {KIND_UNION, None}


def test_as_written():
    for schedule in (DAILY, Every("1h", START), Every("1h", after_completion=True), At(START), Manual()):
        assert as_written(schedule.to_wire(), schedule.param_us()) == schedule
    wire = union(DAILY, Every("1h"), Every("2h", START), At(START))
    assert as_written(wire) == [DAILY, Every("1h"), Every("2h", START), At(START)]
    assert as_written(wire, START_US + 1_000)[1:3] == [Every("1h", START + timedelta(milliseconds=1)), Every("2h", START)]
    assert [s.to_wire() for s in as_written(wire)] == [m for m, _ in check_union(wire)]
    with pytest.raises(ScheduleError):
        schedule_from_wire(wire)


def test_after_completion_is_one_known_time():
    t = table()
    kind, a = t.compile(Every("90s", after_completion=True).to_wire(), "x")
    assert (kind, a) == (KIND_AFTER, 90_000_000)
    assert t.next_one(kind, a, START_US, START_US - 1) == START_US
    assert t.next_one(kind, a, START_US, START_US) == t.next_one(kind, a, NEVER, 0) == NEVER
    assert t.prev_one(kind, a, START_US, START_US + 1) == START_US
    assert t.prev_one(kind, a, START_US, START_US) == NEVER
    assert t.count_between(kind, a, START_US, 0, NEVER - 1, 9) == (1, START_US, START_US)


# Counts

def test_a_hundred_million_occurrences():
    t = table()
    every_second = t.compile(Cron("* * * * * *", "Europe/Berlin").to_wire(), "x")
    assert t.count_between(*every_second, 0, START_US, START_US + 4_000_000_000_000_000, 2**32 - 1)[0] == 4_000_000_000
    all_time = t.compile(Cron("* * * * * *").to_wire(), "x")
    assert t.count_between(*all_time, 0, 0, INSTANT_MAX_US, 2**40)[0] == 253_402_300_799
    nine = t.compile(Cron("0 9 * * mon-fri", "America/New_York").to_wire(), "x")
    assert t.count_between(*nine, 0, us(datetime(2000, 1, 1, tzinfo=UTC)), us(datetime(2400, 1, 1, tzinfo=UTC)), 10**9)[0] == 146_097 * 5 // 7
    first = Cron("30 1 * * *", "America/New_York", dst_overlap="both")
    assert t.count_between(*t.compile(first.to_wire(), "x"), 0, START_US, us(datetime(2027, 1, 1, 5, tzinfo=UTC)), 999)[0] == 366


def test_counts_are_steps_over_years():
    """Over many segments, and in the middle of gaps and folds, also where a segment begins or ends."""
    rng = random.Random(SEED + 1)
    print("seed", SEED)
    for _ in range(1_500 if LONG else 50):
        name, rule = rng.choice(ZONES), rng.choice(RULES)
        text = brute.random_expression(rng, seconds=rng.random() < 0.3)
        try:
            schedule = Cron(text, name, *rule)
        except ScheduleError:
            continue
        t = table()
        kind, a = t.compile(schedule.to_wire(), "x")
        year = rng.choice(YEARS)
        edges = [us(c) + d for c in brute.jumps(name, year, year + 2) for d in (-HOUR_US, -1, 0, HOUR_US // 2, HOUR_US, DAY_US)]
        after = rng.choice([*edges, us(datetime(year, 3, 3, tzinfo=UTC)) + rng.randrange(DAY_US)])
        times, at = [], after
        while len(times) < 1_000 and (at := t.next_one(kind, a, 0, at)) != NEVER:
            times.append(at)
        until = rng.choice([*times, *(x for x in edges if x > after), after + 90 * DAY_US])
        if times and (at == NEVER or until <= times[-1]):
            want = bisect.bisect_right(times, until)
            assert t.count_between(kind, a, 0, after, until, 10**9)[0] == want, (SEED, text, name, rule, after, until)


@pytest.mark.slow
def test_counts_of_unions_are_steps(monkeypatch):
    """The arithmetic, which is else used for large counts only, against the steps of the compiled table."""
    rng = random.Random(SEED + 4)
    print("seed", SEED)
    monkeypatch.setattr(schedules_module, "_FEW", 0)
    for _ in range(1_500 if LONG else 50):
        w = window(rng)
        low = us(w.start) - rng.randrange(3 * DAY_US)
        members = [random_member(rng, w) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.5:
            members.append(Cron(f"{rng.choice(('*', '*/7', '0-29/3'))} {rng.choice(('*', '*/9', '5'))} * * * *", rng.choice(ZONES), *rng.choice(RULES)))
        if rng.random() < 0.5:
            period = rng.choice((1_000, 5_000, 60_000, 100, 1_500, 700))
            members += [Every(timedelta(milliseconds=period), w.start - timedelta(hours=1)), Every(timedelta(milliseconds=3 * period), w.start)]
        t = table()
        kind, a = t.compile(union(*members), "x")
        until = low + rng.choice((HOUR_US, DAY_US, 4 * DAY_US)) + rng.randrange(-1, 2)
        want = t._table.count(kind, a, low, low, until, 10**9)
        assert t.count_between(kind, a, low, low, until, 10**9)[0] == want, (SEED, members, w.name, low, until)


def test_a_large_union_is_not_stepped_through():
    t = table()
    wire = union(Cron("* * * * * *", "Europe/Berlin"), Cron("*/7 * * * * *"), Every("1s", START), Every("1500ms", START), At(START + timedelta(days=400)))
    kind, a = t.compile(wire, "x")
    span = 1_200 * DAY_US
    # Every second, and of each three seconds one half of one.
    assert t.count_between(kind, a, 0, START_US, START_US + span, 2**32 - 1)[0] == 1_200 * 86_400 * 4 // 3


def test_grids_against_sets():
    rng = random.Random(SEED + 5)
    for _ in range(2_000):
        grids = []
        for _ in range(rng.randint(1, 5)):
            first, period = rng.randrange(40), rng.randint(1, 12)
            grids.append(Grid(first, period, first + period * rng.randrange(30)))
        sets = [set(range(g.first, g.last + 1, g.period)) for g in grids]
        assert [g.size for g in grids] == [len(s) for s in sets]
        both = meet(grids[0], grids[-1])
        assert (set() if both is None else set(range(both.first, both.last + 1, both.period))) == sets[0] & sets[-1]
        assert count_together(grids) == count_together(outer(grids)) == len(set().union(*sets)), (SEED, grids)
    assert count_together([Grid(0, p, p * 10**12) for p in range(1_000, 1_100)]) is None


# What a zone change takes away

def taken_away(w, schedule):
    """instant -> (reason, what runs instead, lost) for wall times of a window that don't run where they are; by looking at every minute."""
    gap, overlap, text = schedule.dst_gap, schedule.dst_overlap, schedule.expr
    expression = brute.Expression(text)
    runs = set(w.occurrences(text, gap, overlap))
    fixed = gap is None and not expression.wild
    gap = ("run_after" if fixed else "skip") if gap is None else gap
    overlap = ("both" if expression.wild else "first") if overlap is None else overlap
    out = {}
    for i in w._picked("skipped", expression, True):
        jump, before, size, wall = w.skipped[i]
        instant = round((wall - datetime(1970, 1, 1)).total_seconds()) - before
        moved = gap == "run_after" and not (fixed and size >= 3 * 3600)
        if gap != "shift" and instant not in runs:
            out[instant * 1_000_000] = "dst_gap", jump * 1_000_000 if moved else None, not moved
    walls = {}
    for i in w._picked("real", expression, True):
        u, wall = w.real[i]
        walls.setdefault(wall, []).append(u)
    for instants in walls.values():
        if len(instants) == 2 and overlap != "both":
            kept, left = instants if overlap == "first" else instants[::-1]
            if left not in runs:
                out[left * 1_000_000] = "dst_overlap", kept * 1_000_000, True
    return {u: what for u, what in out.items() if us(w.start) <= u < us(w.end)}


def spread(ranges, want):
    """The instants of `dropped` ranges, from the oracle's instants that each range spans; checks the ranges themselves."""
    out = {}
    for first, last, count, reason in ranges:
        inside = [u for u in want if first <= u <= last]
        assert (len(inside), inside[:1], inside[-1:]) == (count, [first], [last])
        out.update(dict.fromkeys(inside, reason))
    return out


@pytest.mark.slow
def test_dropped_wall_times():
    rng = random.Random(SEED + 2)
    print("seed", SEED)
    seen = set()
    for _ in range(500 if LONG else 20):
        w = window(rng)
        low, high = us(w.start), us(w.end)
        for _ in range(8):
            try:
                schedule = Cron(brute.random_expression(rng, near=near(w)), w.name, *rng.choice(RULES))
            except ScheduleError:
                continue
            what = (SEED, schedule, w.start)
            t = table()
            kind, a = t.compile(schedule.to_wire(), "x")
            away = taken_away(w, schedule)
            want = {u: reason for u, (reason, _, lost) in sorted(away.items()) if lost}
            runs = {s * 1_000_000 for s in w.occurrences(schedule.expr, schedule.dst_gap, schedule.dst_overlap)}
            ranges = t.dropped(kind, a, 0, low - 1, high - 1)
            assert spread(ranges, list(want)) == want, what
            assert ranges == sorted(ranges), what
            assert not any(first <= u <= last for first, last, _, _ in ranges for u in runs), what
            seen.update(want.values())
            after, until = sorted(rng.sample(range(low, high), 2))
            some = {u: reason for u, reason in want.items() if after < u <= until}
            assert spread(t.dropped(kind, a, 0, after, until), list(some)) == some, (what, after, until)
            for at in (rng.randrange(low, high), *rng.sample(sorted(want), min(2, len(want)))):
                begin, end = t.quiet(kind, a, at)
                assert begin <= at <= end, (what, at)
                assert not [u for u in want if begin < u <= end], (what, at)
                assert not t.dropped(kind, a, 0, max(begin, at - 900 * DAY_US), min(end, at + 900 * DAY_US)), (what, at)
            asked = set(rng.sample(range(low, high, 60_000_000), 30)) | set(rng.sample(sorted(away), min(20, len(away))))
            for u in asked | set(rng.sample(sorted(runs), min(5, len(runs)))):
                expected = away[u][:2] if u in away else None
                assert t.wall_fate(kind, a, 0, u) == expected, (what, u)
                assert t.wall_fate(kind, a, 0, u + 1) is None, (what, u)
    assert seen == {"dst_gap", "dst_overlap"}


@pytest.mark.slow
def test_dropped_of_a_union():
    rng = random.Random(SEED + 3)
    print("seed", SEED)
    for _ in range(300 if LONG else 40):
        w = window(rng)
        low, high = us(w.start), us(w.end)
        members = [random_member(rng, w) for _ in range(rng.randint(2, 4))]
        t = table()
        kind, a = t.compile(union(*members), "x")
        runs = set().union(*(member_times(m, w, low) for m in members))
        want = {u for m in members if isinstance(m, Cron) for u, (_, _, lost) in taken_away(w, m).items() if lost} - runs
        ranges = t.dropped(kind, a, low, low - 1, high - 1)
        assert set(spread(ranges, sorted(want))) == want, (SEED, members, w.start)
        assert not any(first <= u <= last for first, last, _, _ in ranges for u in runs), (SEED, members, w.start)
        begin, end = t.quiet(kind, a, low)
        assert not [u for u in want if begin < u <= end]
        for u in rng.sample(sorted(runs), min(5, len(runs))):
            assert t.wall_fate(kind, a, low, u) is None
        for u in rng.sample(sorted(want), min(5, len(want))):
            assert t.wall_fate(kind, a, low, u) is not None


def test_fates_of_new_york():
    t, gap, fold = table(), at("2025-03-09T07:30:00+00:00"), at("2025-11-02T06:30:00+00:00")
    zone = "America/New_York"
    year = (START_US - 365 * DAY_US, START_US)

    def said(schedule, instant):
        compiled = t.compile(schedule.to_wire(), "x")
        return t.dropped(*compiled, 0, *year), t.wall_fate(*compiled, 0, instant)

    assert said(Cron("30 2 * * *", zone), gap) == ([], ("dst_gap", gap - HOUR_US // 2))
    assert said(Cron("30 2 * * *", zone, dst_gap="shift"), gap) == ([], None)
    assert said(Cron("30 2 * * *", zone, dst_gap="skip"), gap) == ([(gap, gap, 1, "dst_gap")], ("dst_gap", None))
    assert said(Cron("*/15 2 * * *", zone), gap)[0] == [(gap - HOUR_US // 2, gap + HOUR_US // 4, 4, "dst_gap")]
    assert said(Cron("*/15 * * * *", zone), gap) == ([], None)
    assert said(Cron("30 1 * * *", zone), fold) == ([(fold, fold, 1, "dst_overlap")], ("dst_overlap", fold - HOUR_US))
    assert said(Cron("30 1 * * *", zone, dst_overlap="second"), fold - HOUR_US)[1] == ("dst_overlap", fold)
    assert said(Cron("30 1 * * *", zone, dst_overlap="both"), fold) == ([], None)
    # Friday, 30 December 2011 did not take place in Apia: noon of it is a correction of the clock, for which nothing is made up.
    friday = t.compile(Cron("0 12 * * fri", "Pacific/Apia").to_wire(), "x")
    lost = at("2011-12-30T22:00:00+00:00")
    assert t.dropped(*friday, 0, lost - 20 * DAY_US, lost + 20 * DAY_US) == [(lost, lost, 1, "dst_gap")]


@pytest.mark.parametrize("schedule", [Every("1h", START), At(START), Manual(), Every("1h", after_completion=True), Cron("* * * * *"),
                                      Cron("30 2 * * *", "Europe/Berlin", "shift", "both")])
def test_what_loses_nothing(schedule):
    t = table()
    compiled = t.compile(schedule.to_wire(), "x")
    assert t.quiet(*compiled, START_US) == (-(2**63), NEVER)
    assert t.dropped(*compiled, START_US, 0, 2 * START_US) == []
    assert t.wall_fate(*compiled, START_US, START_US + 1) is None


# Jitter

def test_jitter_is_frozen():
    """These numbers are in users' dashboards: they never change."""
    key = np.array([0, 1, 2**64 - 1, 0x0123456789ABCDEF], np.uint64)
    nominal = np.array([0, START_US, START_US + 1_000, INSTANT_MAX_US], np.int64)
    assert jitter(key, nominal, np.full(4, 30_000_000, np.int64)).tolist() == FROZEN


FROZEN = [10_888_000, 28_744_000, 7_371_000, 5_968_000]


def test_jitter_stays_in_its_span_and_spreads():
    rng = np.random.default_rng(SEED)
    n = 60_000
    key, span = rng.integers(0, 2**64, n, np.uint64), rng.integers(0, 10**8, n)
    nominal = np.full(n, START_US, np.int64)
    got = jitter(key, nominal, span)
    assert ((got >= 0) & (got <= span)).all()
    assert not (got % 1_000).any()
    assert not jitter(key, nominal, np.full(n, 999, np.int64)).any()
    even = jitter(key, nominal, np.full(n, 59_999_999, np.int64)) // 1_000_000
    counts = np.bincount(even, minlength=60)
    assert counts.min() > 800, (SEED, counts)
    assert counts.max() < 1_200, (SEED, counts)
    one = jitter(np.full(n, 7, np.uint64), nominal + np.arange(n) * 86_400_000_000, np.full(n, 59_999_999, np.int64)) // 1_000_000
    assert np.bincount(one, minlength=60).min() > 800, SEED  # one job over its days
    assert jitter(key, nominal, span).tolist() == got.tolist()


def test_kinds_are_numbers_of_the_journal():
    assert (KIND_CRON, KIND_EVERY, KIND_UNION, KIND_AFTER) == (1, 2, 5, 6)
