"""Zone data against zoneinfo, and the compiled table's own rules."""
import io
import os
import random
from array import array
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.rigs import cron_oracle as brute
from wheelsched.model.errors import ScheduleError
from wheelsched.model.nouns import NEVER
from wheelsched.schedules import expressions, zonedata
from wheelsched.schedules._cron import CronTable
from wheelsched.schedules.schedule import Cron
from wheelsched.schedules.zones import Zones

SEED = int(os.environ.get("WHEELSCHED_SEED", "1"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CYCLE_S = 146_097 * 86_400
EVERY_DAY = expressions.day_table(expressions.Days((1 << 31) - 1, 127, True))


def us(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


# Zones

def test_zones_follow_zoneinfo():
    """Every zone, at random instants and around every change, from 1800 to 9999."""
    rng = random.Random(SEED + 5)
    zones = Zones(zonedata.load_zone)
    for name in brute.zone_names():
        zone, peer, table = zones.get(name), brute.zone(name), CronTable()
        number = table.add_zone(zone.at_s, zone.offset_s, zone.cycle)
        every_second = table.add((1 << 60) - 1, (1 << 60) - 1, (1 << 24) - 1, EVERY_DAY, 4095, None, number, 0, 2)
        moments = [rng.randrange(-5_364_662_400, 253_402_214_400) for _ in range(30)]
        moments += [t + d for t in rng.sample(list(zone.at_s), min(10, len(zone.at_s))) for d in (-1, 0, 1)]
        for t in moments:
            i = np.searchsorted(zone.at_s, t, "right")
            if i == len(zone.at_s) and zone.cycle < i:
                i = np.searchsorted(zone.at_s, t - (t - zone.at_s[zone.cycle]) // CYCLE_S * CYCLE_S, "right")
            offset = (EPOCH + timedelta(seconds=t)).astimezone(peer).utcoffset()
            assert zone.offset_s[int(i)] == offset.total_seconds(), (name, t)
            assert table.next_one(every_second, t * 1_000_000 - 1) == t * 1_000_000


def test_no_zone_has_changes_closer_than_their_sizes():
    """What `_cron` relies on at the edges of segments."""
    zones = Zones(zonedata.load_zone)
    for name in brute.zone_names():
        zone = zones.get(name)
        sizes = [abs(b - a) for a, b in zip(zone.offset_s, zone.offset_s[1:], strict=False)]
        for i in range(1, len(sizes)):
            assert zone.at_s[i] - zone.at_s[i - 1] > sizes[i] + sizes[i - 1], (name, zone.at_s[i])


def test_posix_rules():
    """Julian days, odd times and both hemispheres, against zoneinfo."""
    plain = zonedata.load_zone("Etc/UTC")
    head = plain[: plain.rindex(b"\n", 0, -1) + 1]
    for rule in ("AAA3BBB,J60/2,J300/2", "AAA5BBB4:30,M10.1.0/-3,M3.5.6/167", "<+03>-3<+04>,M3.2.4,M11.1.0/1:30:15"):
        data = head + rule.encode() + b"\n"
        peer = ZoneInfo.from_file(io.BytesIO(data))
        zones = Zones({"x": data}.get)
        zone = zones.get("x")
        assert len(zone.at_s) - zone.cycle == 800
        for t in zone.at_s:
            for d in (-1, 0):
                i = int(np.searchsorted(zone.at_s, t + d, "right"))
                if i:
                    moment = (EPOCH + timedelta(seconds=t + d)).astimezone(peer)
                    assert zone.offset_s[i] == moment.utcoffset().total_seconds(), rule


def test_days_of_the_year_from_zero():
    """POSIX counts these with 29 February; zoneinfo is a day early, so the dates are by hand."""
    plain = zonedata.load_zone("Etc/UTC")
    zone = Zones({"x": plain[: plain.rindex(b"\n", 0, -1) + 1] + b"AAA0BBB,59/0,299/24\n"}.get).get("x")
    moments = [(EPOCH + timedelta(seconds=t)).isoformat()[:13] for t in zone.at_s]
    assert moments[2:6] == ["1971-03-01T00", "1971-10-27T23", "1972-02-29T00", "1972-10-26T23"]


def test_damaged_zone_data():
    good = zonedata.load_zone("Europe/Berlin")
    for data in (
        b"", b"TZif", b"nonsense" * 20, good[:200], good[:-5], good.replace(b"CET-1", b"CET?1"),
        good.replace(b"M3.5.0", b"Q3.5.0"), good.replace(b"M3.5.0", b"M0.5.0"),
    ):
        with pytest.raises(ScheduleError, match="'x'"):
            Zones({"x": data}.get).get("x")


@pytest.mark.parametrize("name", [
    "", "../UTC", "/etc/localtime", "Europe/berlin", "Europe", "Europe/", "UTC\0", "utc+1", "zone.tab", "x" * 10_000,
])
def test_unknown_zones(name):
    assert zonedata.load_zone(name) is None
    with pytest.raises(ScheduleError, match="time zone"):
        Cron("0 0 * * *", name)


# The table

def utc_table():
    table = CronTable()
    zone = Zones(zonedata.load_zone).get("UTC")
    assert table.add_zone(zone.at_s, zone.offset_s, zone.cycle) == 0
    return table


def test_table_reuses_what_is_removed():
    table = utc_table()
    others = [expressions.day_table(expressions.Days(1 << d, 0, False)) for d in range(20)]
    for _ in range(50):
        held = [table.add(1, 1, 1, days, 4095, expressions.year_table(1 << 40 + i), 0, 0, 0) for i, days in enumerate(others)]
        assert sorted(held) == list(range(20))
        for i, index in enumerate(held):
            assert table.next_one(index, 0) == us(datetime(2010 + i, 1, 1 + i, tzinfo=UTC))
        for index in held:
            table.remove(index)
        assert len(table) == 0
    with pytest.raises(IndexError):
        table.remove(0)
    with pytest.raises(IndexError):
        table.next_one(3, 0)


def test_table_checks_its_arguments():
    table = utc_table()
    good = [1, 1, 1, EVERY_DAY, 1, None, 0, 0, 0]
    index = table.add(*good)
    for place, bad in (
        (0, 0), (0, 1 << 60), (1, 0), (2, 0), (2, 1 << 24), (3, b"x"), (4, 0), (4, 1 << 12), (5, b"x"), (6, 1), (6, -1),
        (7, 4), (8, 3),
    ):
        with pytest.raises(ValueError):
            table.add(*good[:place], bad, *good[place + 1 :])
    for changes, offsets, cycle in (
        ([1, 1], [0, 0, 0], 2), ([1], [0], 1), ([1], [0, 0], 2), ([], [200_000], 0), ([0, CYCLE_S], [0, 1, 0], 0)
    ):
        with pytest.raises(ValueError):
            table.add_zone(array("q", changes), array("i", offsets), cycle)
    one = np.zeros(1, np.int64)
    table.next_many(np.array([index], np.uint32), one, one)
    with pytest.raises(IndexError):
        table.next_many(np.array([5], np.uint32), one, one)
    with pytest.raises(ValueError):
        table.prev_many(np.array([index], np.uint32), np.zeros(2, np.int64), one)
    empty = np.zeros(0, np.int64)
    table.next_many(np.zeros(0, np.uint32), empty, empty)
    for instant in (-(2**63), 2**63 - 1):
        assert table.next_one(index, instant) in (NEVER, us(datetime(1, 1, 1, tzinfo=UTC)))
        assert table.prev_one(index, instant) in (NEVER, us(datetime(9999, 1, 31, tzinfo=UTC)))


def column(code, *values):
    return array(code, values)


def test_table_checks_its_unions():
    table = utc_table()
    index = table.add(1, 1, 1, EVERY_DAY, 1, None, 0, 0, 0)
    good = [column("B", 1, 2, 3), column("q", index, 5, 0), column("q", NEVER, 0, 7)]
    union = table.add_union(*good)
    assert table.next_row(5, union, 0, 5) == 7
    assert table.next_row(5, union, 0, 7) == 10
    assert table.prev_row(5, union, 0, 7) == 5
    for kinds in ((4,), (5,), (6,), (0,), ()):
        with pytest.raises(ValueError):
            table.add_union(column("B", *kinds), column("q", *([0] * len(kinds))), column("q", *([0] * len(kinds))))
    for kind, a in ((1, 7), (1, -1), (5, 0)):
        with pytest.raises((IndexError, ValueError)):
            table.add_union(column("B", kind), column("q", a), column("q", 0))
    with pytest.raises(ValueError):
        table.add_union(column("B", 2), column("q", 0), column("q", 0))
    with pytest.raises(ValueError):
        table.add_union(column("B", 2, 2), column("q", 5), column("q", 0))
    for ask in (lambda: table.next_row(5, 1, 0, 0), lambda: table.prev_row(5, -1, 0, 0), lambda: table.count(5, 9, 0, 0, 9, 9),
                lambda: table.remove_union(1), lambda: table.lost(9, 0, 1), lambda: table.quiet(-1, 0), lambda: table.fate(9, 0),
                lambda: table.count_beside(column("q", 9), column("q"), column("q"), 0, 1)):
        with pytest.raises(IndexError):
            ask()
    for ask in (lambda: table.next_row(7, 0, 0, 0), lambda: table.count(2, 0, 0, 0, 9, 9), lambda: table.count_beside(column("q"), column("q"), column("q"), 0, 1),
                lambda: table.count_beside(column("q", index), column("q", 0), column("q", 0), 0, 1),
                lambda: table.count_beside(column("q", index), column("q", 0), column("q"), 0, 1)):
        with pytest.raises(ValueError):
            ask()
    table.remove_union(union)
    with pytest.raises(IndexError):
        table.next_row(5, union, 0, 0)
    assert table.add_union(*good) == union
    begin, end = -(2**63), 2**63 - 1
    for a, b in ((begin, end), (end, begin), (begin, begin), (end, end)):
        assert table.count(1, index, 0, a, b, 10**9) == (31 * 9999 if a < b else 0)
        assert table.lost(index, a, b) == []
    for instant in (begin, end):
        assert table.quiet(index, instant) == (begin, end)
        assert table.fate(index, instant) == (0, NEVER)
