"""Hold and release, calendars, who changed a job, alarms, other zone data: on the real engine."""

from __future__ import annotations

import struct
from datetime import timedelta

import msgpack
import pytest

import wheelsched.simulator.simulator as t
from tests.rigs.engine import Bench, at, fold
from wheelsched import At, Call, Cron, Every, FailedPreconditionError, Job, Manual
from wheelsched.model.errors import WheelschedError

# hold and release


def test_nothing_is_triggered_while_held_and_policies_decide_on_release(b):
    b.put("latest", Every("60s"), overlap="allow")
    b.put("skip", Every("60s"), catchup="skip", overlap="allow")
    run = b.client.enqueue(Call("t", 1), delay="90s")
    b.client.hold("restore check")
    b.advance("5m30s")
    b.crash()
    b.hello()
    b.advance("30s")
    assert b.runs("latest") == b.runs("skip") == []
    assert b.client.run(run.id).state == "scheduled"
    assert b.client.stats()["held"] is True
    assert "held since" in b.client.why("latest", at("2026-03-02T00:02")).text
    b.client.release()
    b.advance(0)
    assert [(r.scheduled_at.minute, r.missed) for r in b.runs("latest")] == [(5, 4), (6, 0)]
    assert [r.scheduled_at.minute for r in b.runs("skip")] == [6]
    assert b.client.run(run.id).state == "queued"


def test_a_new_definition_under_a_hold_leaves_a_reason_for_what_was_missed(b):
    b.put(schedule=Every("60s"))
    b.client.hold()
    b.advance("3m30s")
    b.put(schedule=Every("60s"))
    assert b.runs("j", skipped=True) == [], "an unchanged put decides nothing"
    b.put(schedule=Cron("0 * * * *"))
    assert [(r.reason, r.count) for r in b.runs("j", skipped=True)] == [("pause", 3)]
    b.client.release()
    b.advance(0)
    assert [r.state for r in b.runs("j")] == []


# Calendars


def test_a_calendar_takes_occurrences_away_and_leaves_a_range(b):
    b.client.calendar("weekend", weekdays=["sat", "sun"])
    b.put(schedule=Cron("0 */6 * * *"), calendar="weekend", overlap="allow")
    b.advance(to="2026-03-09T01:00:00Z")
    rows = [r for r in b.runs("j", skipped=True) if r.state == "skipped"]
    assert [(r.reason, r.count, r.scheduled_at) for r in rows] == [("calendar", 8, at("2026-03-07T00:00"))]
    assert b.client.why("j", at("2026-03-08T12:00")).reason == "calendar"
    assert b.client.next("j", 30)[-1].weekday() < 5
    assert all(when.weekday() < 5 for when in b.client.next("j", 100))


def test_a_changed_calendar_is_effective_at_once(b):
    b.client.calendar("off", dates=["2026-03-03"])
    b.put(schedule=Cron("0 12 * * *"), calendar="off", overlap="allow")
    b.put("once-a-day", Cron("0 13 * * *"), calendar=["off"], overlap="allow")
    assert b.client.next("j", 2) == [at("2026-03-02T12:00"), at("2026-03-04T12:00")]
    b.advance(to="2026-03-03T12:30:00Z")
    b.client.calendar("off", dates=["2026-03-04"])
    assert b.client.next("j", 2) == [at("2026-03-05T12:00"), at("2026-03-06T12:00")]
    assert b.client.next("once-a-day", 2) == [at("2026-03-03T13:00"), at("2026-03-05T13:00")]
    assert [(r.reason, r.scheduled_at.day) for r in b.runs("j", skipped=True) if r.state == "skipped"] == [("calendar", 3)]
    with pytest.raises(FailedPreconditionError, match="used by 2 jobs"):
        b.client.calendar_delete("off")
    with pytest.raises(FailedPreconditionError, match="make it first"):
        b.put("x", Cron("0 12 * * *"), calendar="nowhere")
    b.crash()
    assert b.client.next("j", 1) == [at("2026-03-05T12:00")]


def test_a_one_time_job_on_an_excluded_day_is_skipped_with_its_reason(b):
    b.client.calendar("off", dates=["2026-03-03"])
    b.put(schedule=At(at("2026-03-03T12:00")), calendar="off")
    b.advance(to="2026-03-04T00:00:00Z")
    assert [(r.state, r.reason) for r in b.runs("j", skipped=True)] == [("skipped", "calendar")]
    assert b.client.get("j").state == "finished"


def test_missed_occurrences_of_an_excluded_day_are_no_misfires(b):
    b.client.calendar("weekend", weekdays=["sat", "sun"])
    b.put(schedule=Cron("0 12 * * *"), calendar="weekend", catchup="all", overlap="allow")
    b.crash(down="9d")
    rows = b.runs("j", skipped=True)
    assert [r.scheduled_at.day for r in rows if r.state != "skipped"] == [10], "24 h of window"
    assert sorted((r.reason, r.scheduled_at.day, r.count) for r in rows if r.state == "skipped") == [
        ("calendar", 7, 2), ("window", 2, 5), ("window", 9, 1),
    ]


# Who changed it


def test_the_history_of_a_job_tells_who_changed_what(b):
    b.put(schedule=Every("60s"), timeout="5m")
    b.put(schedule=Every("60s"), timeout="6m", note="slow disk")
    b.client.pause("j", "rest")
    fold(b)
    b.client.resume("j")
    b.client.delete("j")
    for _ in range(2):
        log = b.client.history("j")
        assert [c.what for c in log] == ["delete", "resume", "pause", "put", "create"]
        assert [c.version for c in log] == [5, 4, 3, 2, 1]
        assert log[3].note == "slow disk"
        assert list(log[3].changes.values()) == [("5m", "6m")]
        assert log[-1].old is None
        fold(b)
        b.crash()
    assert b.client.history("j", 2)[-1].what == "resume"


# Alarms


def test_a_late_run_is_marked_counted_and_told(b):
    b.put("alarm", Manual(), Call("t", "wake"))
    b.put(schedule=Every("10m"), late_after="30s", on_missed="alarm")
    b.advance("10m29s")
    assert not b.runs("j")[0].late
    b.advance("1s")
    assert b.runs("j")[0].late
    assert b.client.stats()["counters"]["late"] == 1
    (run,) = b.runs("alarm")
    assert run.trigger == "chain"
    assert [r.id for r in b.client.runs(late=True)] == [b.runs("j")[0].id]
    b.crash()
    b.advance("5m")
    assert len(b.runs("alarm")) == 1
    b.finish(b.lease())
    fold(b)
    assert len(list(b.client.runs("j", late=True))) == 1


def test_missed_occurrences_are_told_once_for_all_jobs(b):
    b.put("alarm", Manual(), Call("t", "wake"))
    for i in range(3):
        b.put(f"j{i}", Every("60s"), catchup="skip", on_missed="alarm", overlap="allow")
    b.crash(down="5m30s")
    b.advance(0)
    runs = b.runs("alarm")
    assert len(runs) == 1
    row = b.engine.state.find_run(bytes.fromhex(runs[0].id))
    _, _, headers = msgpack.unpackb(b.engine.state.runs.blobs(row)[0])
    assert headers["cause"] == {
        "reason": "missed", "job": "j0", "jobs": 3, "count": 15, "from_us": 1772409660000000, "until_us": 1772409900000000,
    }
    with pytest.raises(WheelschedError, match="its own alarm"):
        b.put("alarm", Every("60s"), on_missed="alarm")


def test_a_run_that_starts_in_time_is_not_late(b):
    b.put(schedule=Every("10m"), late_after="30s")
    b.advance("10m")
    held = b.lease()
    b.work(held, 60)
    assert not b.runs("j")[0].late


# Other zone data


def shifted(zones, hours):
    """A provider of zone data in which Berlin stands `hours` further east from 2026-03-01 on."""
    def load(name):
        if name != "Europe/Berlin":
            return zones(name)
        body = struct.pack(">q", 1772323200) + b"\1" + struct.pack(">lbb", 3600, 0, 0) + struct.pack(">lbb", 3600 + 3600 * hours, 0, 0) + b"A\0"
        head = b"TZif2" + bytes(15)
        return head + struct.pack(">6l", 0, 0, 0, 0, 1, 2) + struct.pack(">lbb", 0, 0, 0) + b"A\0" + head + \
            struct.pack(">6l", 0, 0, 0, 1, 2, 2) + body + f"\n<X>{-(1 + hours)}\n".encode()

    return load


@pytest.mark.parametrize("hours", [-1, 1])
def test_other_zone_data_moves_next_times_and_fires_no_wall_time_twice(monkeypatch, hours):
    with Bench("2026-03-01T12:00:00Z") as b:
        b.put("midnight", Cron("0 0 * * *", tz="Europe/Berlin"), overlap="allow")
        b.put("utc", Cron("0 0 * * *"), overlap="allow")
        b.put("hourly", Cron("0 * * * *", tz="Europe/Berlin"), overlap="allow")
        b.advance(to="2026-03-01T23:30:00Z")  # Berlin's midnight was at 23:00Z
        monkeypatch.setattr(t, "load_zone", shifted(t.load_zone, hours))
        monkeypatch.setattr(t, "ZONE_VERSION", "2026z")
        b.crash()
        diff = b.client.tzdiff()
        assert diff.new == "2026z"
        assert diff.total == 1
        b.advance(to="2026-03-03T12:00:00Z")
        runs = b.runs("midnight", skipped=True)
        moved = [r for r in runs if r.disposition == "tzdata_moved"]
        assert len(moved) == (1 if hours < 0 else 0)
        days = [(r.scheduled_at + timedelta(hours=1 + hours)).date().day for r in runs if r.state != "skipped"]
        assert len(days[1:]) == len(set(days[1:]))
        assert len([r for r in b.runs("hourly") if r.state != "skipped"]) == 48
        b.crash()
        assert b.client.tzdiff().total == diff.total


def test_a_job_whose_every_occurrence_is_excluded_goes_on_without_a_run(b):
    b.client.calendar("nights", daily=["22:00-06:00"])
    b.put(schedule=Cron("0 0 * * *"), calendar="nights")
    assert b.client.next("j", 3) == []
    b.advance(to="2026-03-05T12:00:00Z")
    assert b.client.why("j", at("2026-03-04T00:00")).reason == "calendar"
    b.client.calendar("nights", daily=["23:00-23:30"])
    b.advance(to="2026-03-07T12:00:00Z")
    assert [(r.state, r.scheduled_at.day, r.count) for r in b.runs("j", skipped=True)][:2] == [("skipped", 3, 3), ("queued", 6, None)]


def test_a_pause_has_a_note_of_its_own_and_history_tells_of_single_occurrences(b):
    b.put(schedule=Cron("0 * * * *"), note="ticket 12")
    b.client.pause("j", "disk")
    assert b.client.get("j").note == "disk"
    b.client.resume("j")
    b.crash()
    assert b.client.get("j").note == "ticket 12"
    b.client.skip("j", at("2026-03-02T02:00"))
    b.client.skip("j", at("2026-03-02T02:00"), undo=True)
    b.client.move("j", at("2026-03-02T03:00"), at("2026-03-02T03:30"))
    b.client.backfill("j", at("2026-03-01T02:00"), at("2026-03-01T04:00"))
    for _ in range(2):
        log = b.client.history("j")
        assert [c.what for c in log] == ["backfill", "move", "undo skip", "skip", "resume", "pause", "create"]
        assert log[0].note == "3 runs, 2026-03-01 02:00:00Z to 2026-03-01 04:00:00Z"
        assert log[1].note == "2026-03-02 03:00:00Z to 2026-03-02 03:30:00Z"
        fold(b)


def test_what_a_hold_stopped_is_told_as_such(b):
    b.put(schedule=Every("60s"), catchup="skip")
    b.client.hold("kernel")
    b.advance("5m30s")
    b.client.hold("again")
    b.client.release()
    b.advance(0)
    assert [(r.reason, r.count) for r in b.runs("j", skipped=True)] == [("pause", 5)]


def test_an_alarm_must_be_there(b):
    with pytest.raises(FailedPreconditionError, match="there is no job nope"):
        b.put(schedule=Every("60s"), on_missed="nope")
    b.client.put_many([Job("j", Call("t"), Every("60s"), on_missed="alarm"), Job("alarm", Call("t"), Manual())])


def test_history_tells_other_arguments(b):
    b.put("flop", Manual(), Call("backup", "--all"))
    b.put("flop", Manual(), Call("backup", "--none"))
    b.put("flop", Manual(), Call("backup", "x" * 9_000))
    for _ in range(2):
        log = b.client.history("flop")
        assert log[1].changes == {"args": (["--all"], ["--none"])}
        assert log[0].changes["args"] == (["--none"], "(long)")
        fold(b)
        b.crash()


def test_one_outage_is_one_alarm(b):
    b.put("alarm", Manual(), Call("t", "wake"))
    b.put(schedule=Every("60s"), on_missed="alarm", late_after="30s")
    b.crash(down="10m30s")
    b.advance(0)
    assert len(b.runs("alarm")) == 1


def test_a_run_that_is_not_started_by_its_deadline_expires(b):
    b.put("alarm", Manual(), Call("t", "wake"))
    b.put(schedule=Cron("0 * * * *"), expires_after="10m", on_missed="alarm", overlap="allow")
    b.put("late", Cron("0 * * * *"), expires_after="10m", overlap="allow", catchup="all")
    b.advance(to="2026-03-02T01:09:59Z")
    assert [r.state for r in b.runs("j")] == ["queued"]
    b.advance("1s")
    (run,) = b.runs("j")
    assert (run.state, run.reason, run.attempts) == ("cancelled", "expired", [])
    assert "within expires_after" in b.client.why("j", at("2026-03-02T01:00")).text
    assert len(b.runs("alarm")) == 1
    assert b.client.stats()["counters"]["expired"] == 2
    b.crash(down="3h52m")
    b.hello()
    assert [(r.scheduled_at.hour, r.state) for r in b.runs("late")] == [(1, "cancelled"), (2, "cancelled"), (3, "cancelled"), (4, "cancelled"), (5, "queued")]
    held = b.lease()
    b.work(held, 900)
    assert {r.state for r in b.runs("late")} == {"cancelled", "leased"}, "a started run does not expire"


def test_a_delayed_call_expires_too(b):
    run = b.client.enqueue(Call("t", 1), delay="1h", expires_after="5m")
    b.crash()
    b.advance("1h4m")
    assert b.client.run(run.id).state == "queued"
    b.advance("1m")
    assert b.client.run(run.id).state == "cancelled"


def test_ledger_rows_beyond_a_clock_that_went_back_are_gone_from_history_too(b):
    b.put(schedule=Every("1s"), overlap="allow")
    b.client.pause("j")
    b.advance("3s")
    b.client.resume("j")
    b.crash()
    fold(b)
    b.step_clock(-150)
    b.advance("5s")
    assert [r.reason for r in b.runs("j", skipped=True) if r.state == "skipped" and r.scheduled_at > b.now] == []
