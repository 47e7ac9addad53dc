"""Other zone data, and clocks that were set back: for each job by itself, and to the last microsecond."""

from __future__ import annotations

import struct
from datetime import timedelta

import pytest

from tests.rigs.engine import Recorded, at
from wheelsched import Cron, Every
from wheelsched.model.nouns import US
from wheelsched.simulator import simulator

START = "2026-03-01T12:00:00Z"
HOUR = 3_600


def zone_data(first, *changes):
    """TZif of a zone that stands `first` hours east, and from each (instant, hours) on at those."""
    hours = [first, *(h for _, h in changes)]
    body = b"".join(struct.pack(">q", int(at(text).timestamp())) for text, _ in changes) + bytes(range(1, len(hours)))
    body += b"".join(struct.pack(">lbb", HOUR * h, 0, 0) for h in hours) + b"A\0"
    head = b"TZif2" + bytes(15)
    return head + struct.pack(">6l", 0, 0, 0, 0, 1, 2) + struct.pack(">lbb", 0, 0, 0) + b"A\0" + head + \
        struct.pack(">6l", 0, 0, 0, len(changes), len(hours), 2) + body + f"\n<X>{-hours[-1]}\n".encode()


@pytest.fixture
def berlin(monkeypatch):
    """Gives Berlin other zone data, and a version of it."""
    real = simulator.load_zone

    def give(version, *data):
        monkeypatch.setattr(simulator, "load_zone", lambda name: zone_data(*data) if name == "Europe/Berlin" else real(name))
        monkeypatch.setattr(simulator, "ZONE_VERSION", version)

    give("2026a", 1)
    return give


def midnight(b, name, **policies):
    b.put(name, Cron("0 0 * * *", tz="Europe/Berlin"), overlap="allow", **policies)


def fates(b, name, since="2026-03-01T23:30"):
    """[(nominal time, disposition)] from an instant on."""
    return [(f"{r.scheduled_at:%d %H:%M}", r.disposition) for r in b.runs(name, skipped=True) if r.scheduled_at >= at(since)]


def west(b, berlin):
    """From here on Berlin stands an hour further west: the midnight of 23:00Z comes again at 00:00Z."""
    berlin("2026z", 1, ("2026-03-01T00:00", 0))
    b.crash()
    b.advance(0)


# Other zone data


@pytest.mark.parametrize("order", [("fired", "anew"), ("anew", "fired")])
def test_a_midnight_that_only_another_job_has_had_is_not_lost(berlin, order):
    """Two jobs of one definition: one had its midnight under the old data, the other was put anew after it."""
    with Recorded("2026-02-20T12:00:00Z") as b:
        for name in order:
            midnight(b, name)
        b.advance("1d")
        b.client.delete("anew")
        b.advance(to="2026-03-01T23:30:00Z")
        midnight(b, "anew")
        west(b, berlin)
        b.advance(to="2026-03-02T12:00:00Z")
        assert fates(b, "fired") == [("02 00:00", "tzdata_moved")]
        assert fates(b, "anew") == [("02 00:00", "fired")]


@pytest.mark.parametrize("order", [("plain", "resumed"), ("resumed", "plain")])
def test_a_midnight_is_not_had_twice_because_another_job_was_resumed_after_it(berlin, order):
    """Two jobs of one definition that decided the same midnight; what comes next differs."""
    with Recorded(START) as b:
        for name in order:
            midnight(b, name)
        b.advance(to="2026-03-02T00:10:00Z")
        b.client.pause("resumed")
        b.client.resume("resumed")
        b.advance("10m")
        west(b, berlin)
        b.advance(to="2026-03-03T12:00:00Z")
        assert [f for f in fates(b, "plain") if f[1] == "fired"] == [("03 00:00", "fired")]
        assert [f for f in fates(b, "resumed") if f[1] == "fired"] == [("03 00:00", "fired")]


def test_an_hour_that_comes_twice_is_had_twice_though_zone_data_changed_elsewhere(berlin):
    """At 00:00Z Berlin goes back from 02:00 to 01:00. Between both 01:30 the server is restarted, and knows of a change in 2030."""
    berlin("2026a", 2, ("2026-03-02T00:00", 1))
    with Recorded(START) as b:
        b.put("twice", Cron("30 1 * * *", tz="Europe/Berlin", dst_overlap="both"), overlap="allow")
        b.put("once", Cron("30 1 * * *", tz="Europe/Berlin", dst_overlap="first"), overlap="allow")
        b.advance(to="2026-03-02T00:10:00Z")
        berlin("2026z", 2, ("2026-03-02T00:00", 1), ("2030-01-01T00:00", 2))
        b.crash()
        b.advance(to="2026-03-02T12:00:00Z")
        assert [f"{r.scheduled_at:%d %H:%M}" for r in b.runs("twice")] == ["01 23:30", "02 00:30"]
        assert [f"{r.scheduled_at:%d %H:%M}" for r in b.runs("once")] == ["01 23:30"]


@pytest.mark.parametrize("anchor", [None, "2026-03-01T00:00:00Z"])
def test_a_schedule_of_an_interval_and_a_wall_time_survives_other_zone_data(berlin, anchor):
    with Recorded(START) as b:
        b.put("both", [Every("6h", anchor=anchor), Cron("0 0 * * *", tz="Europe/Berlin"), Cron("30 0 * * *")], overlap="allow")
        b.advance(to="2026-03-01T23:30:00Z")
        west(b, berlin)
        b.advance(to="2026-03-02T13:00:00Z")  # at 00:00Z the wall time is had again, and the interval is not
        told = [(f"{r.scheduled_at:%H:%M}", r.disposition) for r in b.runs("both", skipped=True)]
        assert told[0:2] == [("18:00", "fired"), ("23:00", "fired")]
        assert [f for f in told[2:] if f[1] == "fired"] == [("00:00", "fired"), ("00:30", "fired"), ("06:00", "fired"), ("12:00", "fired")]


def test_an_interval_with_an_anchor_of_its_own_survives_other_zone_data(berlin):
    """The anchor is not on the grid that the job's own would give."""
    with Recorded(START) as b:
        b.put("both", [Every("6h", anchor="2026-03-01T03:00:00Z"), Cron("0 3 * * *", tz="Europe/Berlin")], overlap="allow")
        b.advance(to="2026-03-02T02:30:00Z")
        west(b, berlin)
        b.advance(to="2026-03-02T04:00:00Z")
        assert fates(b, "both")[-1] == ("02 03:00", "fired")


def test_a_date_that_never_came_before_is_had(berlin):
    """The schedule has decided other times, but none of that member."""
    with Recorded(START) as b:
        b.put("both", [Every("6h"), Cron("0 0 3 2 3 * 2026", tz="Europe/Berlin")], overlap="allow")
        b.advance(to="2026-03-02T00:30:00Z")
        west(b, berlin)
        b.advance(to="2026-03-02T05:00:00Z")
        assert fates(b, "both") == [("02 00:00", "fired"), ("02 03:00", "fired")]


@pytest.mark.parametrize("second", ["0 0 * * *", "0 0 1-31 * *"])
def test_a_wall_time_of_which_all_members_had_it_is_not_had_again(berlin, second):
    with Recorded(START) as b:
        b.put("both", [Cron("0 0 * * *", tz="Europe/Berlin"), Cron(second, tz="Europe/Berlin", dst_overlap="both")], overlap="allow")
        b.advance(to="2026-03-01T23:30:00Z")
        west(b, berlin)
        b.advance(to="2026-03-02T12:00:00Z")
        assert fates(b, "both") == [("02 00:00", "tzdata_moved")]


def test_a_wall_time_that_another_zone_has_for_the_first_time_is_had(berlin):
    with Recorded(START) as b:
        b.put("both", [Cron("0 0 * * *", tz="Europe/Berlin"), Cron("0 0 * * *", tz="Europe/London")], overlap="allow")
        b.advance(to="2026-03-01T23:30:00Z")
        west(b, berlin)
        b.advance(to="2026-03-02T12:00:00Z")
        assert fates(b, "both") == [("02 00:00", "fired")]


@pytest.mark.parametrize("also", [[], [Every("6h")]])
def test_a_time_that_lies_in_a_gap_of_other_zone_data_keeps_no_server_from_its_start(berlin, also):
    with Recorded(START) as b:
        b.put("gap", [Cron("0 30 2 1 6 * 2026", tz="Europe/Berlin", dst_gap="skip"), *also] if also else Cron(
            "0 30 2 1 6 * 2026", tz="Europe/Berlin", dst_gap="skip"), overlap="allow")
        b.advance("7h")
        berlin("2026z", 1, ("2026-06-01T01:00", 2))
        b.crash()
        b.crash()
        b.advance("7h")
        assert len(b.runs("gap")) == 2 * len(also)


def test_zone_data_is_kept_once_for_each_zone_that_is_used(berlin):
    with Recorded(START) as b:
        b.put("utc", Every("1h"))
        assert b.of("ZONES") == []
        midnight(b, "a")
        midnight(b, "b", priority=3)
        assert [list(f["name"]) for f in b.of("ZONES")] == [[b"Europe/Berlin"]]
        assert b.engine.state.zones.keys() == {"Europe/Berlin"}
        b.crash()
        assert len(b.of("ZONES")) == 1, "the same data is not written at each start"
        west(b, berlin)
        assert len(b.of("ZONES")) == 2
        b.crash()
        assert len(b.of("ZONES")) == 2


@pytest.mark.parametrize("state", ["paused", "deleted", "finished"])
def test_other_zone_data_wakes_no_job_that_is_not_active(berlin, state):
    with Recorded(START) as b:
        midnight(b, "j", max_runs=1 if state == "finished" else None)
        b.advance(to="2026-03-01T23:30:00Z")
        if state == "paused":
            b.client.pause("j")
        if state == "deleted":
            b.client.delete("j")
        west(b, berlin)
        b.advance(to="2026-03-04T12:00:00Z")
        assert [r for r in b.runs("j") if r.scheduled_at > at("2026-03-01T23:30")] == []


@pytest.mark.parametrize(("max_runs", "later"), [(1, 0), (2, 1), (3, 2)])
def test_other_zone_data_gives_no_run_beyond_max_runs(berlin, max_runs, later):
    with Recorded(START) as b:
        midnight(b, "j", max_runs=max_runs)
        b.advance(to="2026-03-01T23:30:00Z")
        west(b, berlin)
        b.advance(to="2026-03-05T12:00:00Z")
        assert [f[1] for f in fates(b, "j")].count("fired") == later


# The clock


@pytest.mark.parametrize("ahead", [HOUR, 86_400])
def test_what_comes_due_after_the_clock_went_back_is_in_time(ahead):
    with Recorded(START) as b:
        b.put(schedule=Every("60s"), catchup="skip", overlap="allow")
        b.advance("5m")
        b.step_clock(ahead)
        b.advance(0)
        b.step_clock(-ahead - 120)
        since = b.now
        b.advance("3m")
        b.advance("3m")
        assert [(r.disposition, r.reason) for r in b.runs("j", skipped=True) if since + timedelta(seconds=120) < r.scheduled_at <= b.now] == [("fired", None)] * 4


@pytest.mark.parametrize("how", ["active", "paused", "finished"])
def test_a_delay_after_completion_that_was_counted_on_a_wrong_clock_counts_from_now(how):
    with Recorded(START) as b:
        b.put(schedule=Every("60s", after_completion=True), max_runs=2 if how == "finished" else None)
        b.step_clock(86_400)
        b.advance("60s")
        b.finish(b.lease())
        if how == "finished":
            b.advance("60s")
            b.finish(b.lease())
        if how == "paused":
            b.client.pause("j")
        made = len(b.runs("j"))
        b.step_clock(-86_400)
        b.advance("59s")
        assert len(b.runs("j")) == made
        b.advance("62s")
        assert len(b.runs("j")) == made + (how == "active")
        assert b.client.get("j").state == how


@pytest.mark.parametrize(("back", "sooner"), [(1, 0), (1_000, 0), (1_001, 1_000), (5_000_000, 5_000_000)])
def test_a_delay_after_completion_that_is_longer_than_one_from_now_counts_from_now(back, sooner):
    """A millisecond more is its rounding."""
    with Recorded(START) as b:
        b.put(schedule=Every("1h", after_completion=True))
        b.advance("1h")
        b.finish(b.lease())
        due = b.client.get("j").next_at
        b.step_clock(-back / US)
        assert b.client.get("j").next_at == due - timedelta(microseconds=sooner)


def test_a_job_that_was_over_on_a_wrong_clock_goes_on():
    with Recorded(START) as b:
        b.put(schedule=Cron("0 * * * *"), overlap="allow", end=at("2026-03-01T18:00"))
        b.step_clock(86_400)
        b.advance(0)
        assert b.client.get("j").state == "finished"
        b.step_clock(-86_400)
        assert b.client.get("j").state == "active"
        assert b.client.get("j").next_at == at("2026-03-01T13:00")


@pytest.mark.parametrize("how", ["pause", "delete"])
def test_a_clock_that_goes_back_wakes_no_job_that_was_stopped(how):
    with Recorded(START) as b:
        b.put(schedule=Cron("0 * * * *"), overlap="allow")
        b.step_clock(86_400)
        b.advance("1h")
        getattr(b.client, how)("j")
        made = len(b.runs("j"))
        b.step_clock(-86_400)
        assert [job.state for job in b.client.jobs()] == [f"{how}d"]
        b.advance("3h")
        assert len(b.runs("j")) == made


@pytest.mark.parametrize(("to", "left"), [("12:59:59", 0), ("13:00:00", 1), ("13:00:01", 1), ("14:00:00", 2)])
def test_a_range_that_was_skipped_keeps_what_is_not_beyond_the_new_time(to, left):
    with Recorded(START) as b:
        b.put(schedule=Cron("0 * * * *"), overlap="allow")
        b.client.pause("j")
        b.advance("4h30m")
        b.client.resume("j")
        assert sum(r.count for r in b.runs("j", skipped=True)) == 4
        b.step_clock((at(f"2026-03-01T{to}") - b.now).total_seconds())
        assert sum(r.count for r in b.runs("j", skipped=True)) == left
