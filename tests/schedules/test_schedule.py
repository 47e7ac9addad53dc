"""Every, At, Manual, the wire form, and the server's table of schedules."""
import json
import os
import random
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from wheelsched.model.errors import ScheduleError, WheelschedError
from wheelsched.model.nouns import DURATION_MAX_US, INSTANT_MAX_US, NEVER
from wheelsched.schedules import zonedata
from wheelsched.schedules.schedule import At, Cron, Every, Manual, schedule_from_wire
from wheelsched.schedules.table import ScheduleTable
from wheelsched.schedules.zones import Zones

SEED = int(os.environ.get("WHEELSCHED_SEED", "1"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)
START_US = 1_767_225_600_000_000
CRON, EVERY, AT, MANUAL, UNION, AFTER = 1, 2, 3, 4, 5, 6


def us(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def table():
    return ScheduleTable(Zones(zonedata.load_zone))


# What users write

@pytest.mark.parametrize("schedule", [Cron("0 0 * * *"), Every("1h"), Every("1h", START), At(START), Manual()])
@pytest.mark.parametrize("value", [NAIVE, None, 5, "yesterday", "2026-01-01"])
def test_naive_and_odd_instants_are_refused_when_asked(schedule, value):
    with pytest.raises(ScheduleError):
        schedule.next(value)
    with pytest.raises(ScheduleError):
        schedule.prev(value)


@pytest.mark.parametrize("schedule", [Cron("0 0 * * *"), Every("1h"), Every("1h", START), At(START)])
@pytest.mark.parametrize("n", [-1, 1.5, "3", True, None, 10**9])
def test_n_is_checked(schedule, n):
    with pytest.raises(ScheduleError, match="n: "):
        schedule.next(START, n)
    assert schedule.next(START, 0) == []


def test_errors_are_value_errors():
    with pytest.raises(ValueError) as caught:
        Cron("nonsense")
    assert isinstance(caught.value, WheelschedError)
    assert caught.value.code == "invalid_argument"


def test_answers_are_in_the_zone_of_the_schedule():
    (first,) = Cron("0 0 * * *", "Europe/Berlin").next("2026-06-30T12:00:00Z")
    assert first.isoformat() == "2026-07-01T00:00:00+02:00"
    assert first.tzinfo.key == "Europe/Berlin"
    both = Cron("30 1 * * *", "America/New_York", dst_overlap="both").next("2026-11-01T04:00:00Z", 2)
    assert [(d.hour, d.fold) for d in both] == [(1, 0), (1, 1)]
    other = datetime(2026, 6, 30, 21, 0, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert Cron("0 0 * * *", "Europe/Berlin").next(other) == [first]


def test_schedules_are_values():
    assert Cron("0 0 * * *") == Cron("0 0 * * *", "UTC")
    assert len({Every("60s"), Every(60), Every(timedelta(minutes=1)), Every("1m")}) == 1
    assert At("2026-01-01T01:00:00+01:00") == At(START)
    assert Manual() == Manual()
    with pytest.raises(AttributeError):
        Cron("0 0 * * *").expr = "1 0 * * *"


@pytest.mark.parametrize("kwargs", [
    {"dst_gap": "later"}, {"dst_gap": 1}, {"dst_overlap": "none"}, {"dst_overlap": []}, {"day_or": 1}, {"day_or": None},
    {"seconds": "middle"}, {"seconds": None}, {"hash_id": 5}, {"hash_id": b"x"}, {"tz": None}, {"tz": UTC},
    {"tz": "+01:00"},
])
def test_cron_options_are_checked(kwargs):
    with pytest.raises(ScheduleError):
        Cron("0 0 * * *", **kwargs)


# Every

@pytest.mark.parametrize("every", [
    "99ms", 0, -1, "0s", "1", "", None, True, float("nan"), float("inf"), "1w", "100.5ms", 0.1005, 10**12, "-5s",
])
def test_bad_periods(every):
    with pytest.raises(ScheduleError):
        Every(every)


def test_shortest_and_longest_period():
    assert Every("100ms").every_us == 100_000
    assert Every(timedelta(microseconds=DURATION_MAX_US)).every_us == DURATION_MAX_US
    with pytest.raises(ScheduleError):
        Every(timedelta(microseconds=DURATION_MAX_US + 1_000))


def test_every_with_an_anchor():
    schedule = Every("90s", START)
    first, second = START + timedelta(seconds=90), START + timedelta(seconds=180)
    assert schedule.next(START - timedelta(days=1), 2) == [first, second]
    assert schedule.next(first) == [second]
    assert schedule.prev(START + timedelta(seconds=181), 5) == [second, first]
    assert schedule.prev(first) == []
    assert schedule.param_us() == START_US
    assert Every("90s", "2026-01-01T00:00:00.0001Z").param_us() == START_US + 1_000
    for anchor in (NAIVE, 5, "now"):
        with pytest.raises(ScheduleError, match="anchor"):
            Every("90s", anchor)


def test_every_without_an_anchor_starts_where_it_is_asked():
    assert Every("1h").next(START, 2) == [START + timedelta(hours=1), START + timedelta(hours=2)]
    assert Every("1h").prev(START, 2) == []
    assert Every("1h").param_us() == NEVER


def test_every_after_completion_knows_one_time():
    schedule = Every("1h", START, after_completion=True)
    assert schedule.next(START, 5) == [START + timedelta(hours=1)]
    assert schedule.next(START + timedelta(hours=1), 5) == []
    assert schedule.prev(START + timedelta(days=1)) == []
    with pytest.raises(ScheduleError):
        Every("1h", after_completion=1)


def test_every_ends_with_the_year_9999():
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert len(Every("36500d", START).next(START, 1_000)) == 79
    assert Every("100ms", START).next(last) == []
    assert Every("1s", START).next(last - timedelta(seconds=1), 5) == [last.replace(microsecond=0)]


def test_every_agrees_with_counting():
    """The bulk, the scalar and the user's face against adding up periods; also with 10^9 and more of them passed."""
    rng = random.Random(SEED)
    print("seed", SEED)
    t = table()
    for _ in range(400):
        every = rng.choice((100, 250, 1_000, 60_000, 86_400_000, rng.randrange(100, 10**9))) * 1_000
        anchor = rng.randrange(0, 4 * 10**15) // 1_000 * 1_000
        far = rng.choice((0, 0, 10**9, 3 * 10**9)) * every
        if anchor + far > INSTANT_MAX_US // 2:
            far = 0
        grid = [anchor + far + k * every for k in range(1, 12)]
        within = rng.randrange(grid[0], grid[9])
        after = rng.choice((anchor - 5, anchor, grid[0], grid[4], grid[4] - 1, grid[4] + 1, within))
        want = min(g for g in grid if g > after) if far == 0 or after >= anchor + far else None
        if want is None:
            want = anchor + every if after < anchor + every else anchor + ((after - anchor) // every + 1) * every
        assert t.next_one(EVERY, every, anchor, after) == want
        out = np.empty(1, np.int64)
        t.next_many(np.array([EVERY], np.uint8), *(np.array([v], np.int64) for v in (every, anchor, after)), out)
        assert out[0] == want
        before = rng.choice(grid)
        assert t.prev_one(EVERY, every, anchor, before) == (before - every if before - every > anchor else NEVER)
        low, high = sorted((grid[rng.randrange(8)] - rng.randrange(2), grid[rng.randrange(8)]))
        inside = [g for g in ([anchor + k * every for k in range(1, 12)] if far == 0 else grid) if low < g <= high]
        if far == 0 or low >= anchor + far:
            expected = (len(inside), inside[0], inside[-1]) if inside else (0, NEVER, NEVER)
            assert t.count_between(EVERY, every, anchor, low, high, 1_000) == expected


# At and Manual

def test_at_is_rounded_up_to_a_millisecond():
    schedule = At(datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC))
    assert schedule.instant == START + timedelta(milliseconds=1)
    assert schedule.param_us() == START_US + 1_000
    assert schedule.next(START, 5) == [schedule.instant]
    assert schedule.next(schedule.instant) == []
    assert schedule.prev(schedule.instant) == []
    assert schedule.prev(schedule.instant + timedelta(microseconds=1), 5) == [schedule.instant]
    assert At(datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))).param_us() == START_US


@pytest.mark.parametrize("value", [
    NAIVE, None, 0, "2026-01-01", "2026-13-01T00:00:00Z", datetime(1969, 12, 31, tzinfo=UTC),
])
def test_bad_instants(value):
    with pytest.raises(ScheduleError, match="at: "):
        At(value)


def test_manual_never_fires():
    assert Manual().next(START, 3) == Manual().prev(START, 3) == []


# The wire

SCHEDULES = [
    Cron("0 0 * * *"), Cron("*/5  1-3 * *\tmon", "Europe/Berlin", "skip", "both", False), Cron("H H * * *"),
    Cron("0 0 0 1 1 * 2030", seconds="first"), Cron("0 0 1 1 * 30", seconds="last"), Cron("@daily"),
    Every("90s"), Every("1h", START), Every("1h", after_completion=True), At(START), Manual(),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_wire_round_trip(schedule):
    wire = json.loads(json.dumps(schedule.to_wire()))
    back = schedule_from_wire(wire, schedule.param_us())
    assert back.to_wire() == wire
    assert back.param_us() == schedule.param_us()
    assert back == schedule or isinstance(schedule, Cron)  # blanks in an expression are made single
    if not (isinstance(schedule, Cron) and "H" in schedule.expr):
        assert back.next(START, 3) == schedule.next(START, 3)


GOOD = Cron("0 0 * * *").to_wire()
BAD = [
    None, [], "cron", {}, {"kind": None}, {"kind": "hourly"}, {"kind": ["cron"]}, {"kind": "cron"},
    {**GOOD, "more": 1}, {**GOOD, 5: 1},
    *({**GOOD, key: value} for key, value in [
        ("expr", None), ("expr", 5), ("expr", b"0 0 * * *"), ("expr", "x"), ("expr", "0 0 31 2 *"),
        ("expr", "0" * 100_000), ("tz", None),
        ("tz", "X"), ("tz", "../UTC"), ("dst_gap", "x"), ("dst_gap", 0), ("dst_overlap", "x"),
        ("dst_overlap", False), ("day_or", 1),
        ("day_or", None), ("seconds", None), ("seconds", "x"), ("expr", "0 0 H(30-31) 2 *"),
    ]),
    {"kind": "every"}, {"kind": "every", "every_us": 99_999}, {"kind": "every", "every_us": 100_001},
    {"kind": "every", "every_us": -1},
    {"kind": "every", "every_us": True}, {"kind": "every", "every_us": 1e6}, {"kind": "every", "every_us": 2**63},
    {"kind": "every", "every_us": 10**6, "after_completion": 1}, {"kind": "at", "at": 5}, {"kind": "manual", "x": None},
]


@pytest.mark.parametrize("wire", BAD, ids=lambda w: repr(w)[:60])
def test_bad_wire_forms(wire):
    with pytest.raises(ScheduleError):
        schedule_from_wire(wire)
    t = table()
    with pytest.raises(ScheduleError):
        t.compile(wire, "default/x")
    assert len(t) == 0
    assert len(t._table) == 0


def test_bad_instants_on_the_wire():
    with pytest.raises(ScheduleError, match="missing"):
        schedule_from_wire({"kind": "at"})
    for param in (-1, INSTANT_MAX_US + 1, True, 1.5, None, "5"):
        with pytest.raises(ScheduleError):
            schedule_from_wire({"kind": "at"}, param)


# The server's table

def test_compile_shares_and_releases():
    t = table()
    daily = t.compile(Cron("0 0 * * *").to_wire(), "a")
    assert t.compile(Cron("@daily").to_wire(), "b") == daily
    assert t.compile(Cron("0 0 * * *", dst_gap="skip").to_wire(), "b") != daily
    assert t.compile(Cron("0 0 * * *", "Europe/Berlin").to_wire(), "b") != daily
    assert len(t) == 3
    t.release(*daily)
    assert t.next_one(*daily, 0, START_US) == START_US + 86_400_000_000
    t.release(*daily)
    assert len(t) == 2
    with pytest.raises(IndexError):
        t.next_one(*daily, 0, START_US)
    with pytest.raises(KeyError):
        t.release(*daily)
    again = t.compile(Cron("30 0 * * *").to_wire(), "a")
    assert again == daily  # the index is used again
    assert t.next_one(*again, 0, START_US) == START_US + 1_800_000_000


def test_compile_takes_h_from_the_job_name():
    t = table()
    wire = Cron("H H(0-5) * * *", hash_id="ignored on the wire").to_wire()
    kinds = {t.compile(wire, f"default/job-{i}") for i in range(50)}
    assert len(kinds) > 30
    one = t.compile(wire, "default/job-7")
    offline = Cron("H H(0-5) * * *", hash_id="default/job-7").next(START)[0]
    assert t.next_one(*one, 0, START_US) == us(offline)
    # For one name the date exists, for another one it doesn't.
    rare = Cron("0 0 H(28-31) 2 *").to_wire()
    said = set()
    for i in range(40):
        try:
            said.add(t.compile(rare, f"default/job-{i}")[0])
        except ScheduleError:
            said.add(None)
    assert said == {CRON, None}


def test_other_kinds():
    t = table()
    assert t.compile(Every("90s", START).to_wire(), "a") == (EVERY, 90_000_000)
    assert t.compile(At(START).to_wire(), "a") == (AT, 0)
    assert t.compile(Manual().to_wire(), "a") == (MANUAL, 0)
    assert t.compile(Every("90s", after_completion=True).to_wire(), "a") == (AFTER, 90_000_000)
    for kind in (EVERY, AT, MANUAL):
        t.release(kind, 90_000_000)
    assert len(t) == 0


def test_next_many_mixes_kinds():
    rng = random.Random(SEED + 1)
    t = table()
    expressions, zones = ("*/5 * * * *", "0 2 * * *", "0 0 29 2 1"), ("UTC", "America/New_York")
    crons = [t.compile(Cron(e, z).to_wire(), "x") for e in expressions for z in zones]
    rows = []
    for _ in range(2_000):
        kind, a = rng.choice([*crons, (EVERY, rng.randrange(100, 10**8) * 1_000), (AT, 0), (MANUAL, 0)])
        anchor = rng.choice((NEVER, rng.randrange(0, 4 * 10**15), START_US))
        after = rng.choice((anchor - 1, anchor, rng.randrange(0, 4 * 10**15), INSTANT_MAX_US, START_US))
        rows.append((kind, a, anchor, after))
    kinds, *columns = (np.array(c) for c in zip(*rows, strict=True))
    out = np.empty(len(rows), np.int64)
    t.next_many(kinds.astype(np.uint8), *columns, out)
    for row, got in zip(rows, out.tolist(), strict=True):
        assert got == t.next_one(*row), row
        assert got > row[3] or got == NEVER, row


@pytest.mark.parametrize(("kind", "a"), [(0, 0), (5, 0), (CRON, 0), (CRON, -1), (EVERY, 0), (EVERY, -5)])
def test_next_many_refuses_what_is_not_there(kind, a):
    out = np.full(2, 7, np.int64)
    with pytest.raises((IndexError, ValueError)):
        table().next_many(np.array([MANUAL, kind], np.uint8), np.array([0, a], np.int64), out, out, out)
    assert out.tolist() == [7, 7]


def test_count_between():
    t = table()
    hourly = t.compile(Cron("0 * * * *").to_wire(), "x")
    hour = 3_600_000_000
    first, last = START_US + hour, START_US + 10 * hour
    assert t.count_between(*hourly, 0, START_US, last, 100) == (10, first, last)
    assert t.count_between(*hourly, 0, START_US, last - 1, 100) == (9, first, last - hour)
    assert t.count_between(*hourly, 0, START_US, last, 3) == (3, first, last)
    assert t.count_between(*hourly, 0, START_US, START_US + hour - 1, 3) == (0, NEVER, NEVER)
    assert t.count_between(*hourly, 0, START_US, START_US - hour, 3) == (0, NEVER, NEVER)
    assert t.count_between(EVERY, 100_000, 0, 0, INSTANT_MAX_US, 10**18)[0] == INSTANT_MAX_US // 100_000
    assert t.count_between(AT, 0, START_US, START_US - 1, START_US, 9) == (1, START_US, START_US)
    assert t.count_between(AT, 0, START_US, START_US, START_US + 9, 9) == (0, NEVER, NEVER)
    assert t.count_between(MANUAL, 0, NEVER, 0, INSTANT_MAX_US, 9) == (0, NEVER, NEVER)
    assert t.count_between(EVERY, 100_000, NEVER, 0, INSTANT_MAX_US, 9) == (0, NEVER, NEVER)
    assert t.prev_one(*hourly, 0, START_US) == START_US - hour


def test_next_times_of_a_mix_only_rise():
    """Stepping each job of a mix from its own last time never repeats and never goes back."""
    t = table()
    wires = [Cron("*/7 * * * *"), Cron("30 2 * * *", "America/New_York"), Every("137ms")]
    held = [t.compile(s.to_wire(), "x") for s in wires] * 50
    kind = np.array([k for k, _ in held], np.uint8)
    a = np.array([v for _, v in held], np.int64)
    anchor = np.full(len(held), START_US, np.int64)
    now, out = anchor.copy(), np.empty(len(held), np.int64)
    for _ in range(300):
        t.next_many(kind, a, anchor, now, out)
        assert (out > now).all()
        now[:] = out
