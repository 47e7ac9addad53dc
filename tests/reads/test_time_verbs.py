"""why, skip, move, backfill, history, calendars, hold and on_missed as a user sees them: the client's face on the real engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from wheelsched import (
    At,
    Call,
    Catchup,
    Cron,
    Every,
    FailedPreconditionError,
    InvalidArgumentError,
    Manual,
    NotFoundError,
    ResourceExhaustedError,
    ScheduleError,
    current_run,
)
from wheelsched.simulator.simulator import Simulator

NOON = datetime(2026, 3, 28, 12, tzinfo=UTC)
HOURLY = Every("1h", anchor=NOON)
CAUSES = []


def remember(*_):
    CAUSES.append(current_run().cause)


def fail():
    raise ValueError("no")


@pytest.fixture
def sim():
    CAUSES.clear()
    with Simulator(start=NOON, tasks={"t": remember, "fail": fail}) as it:
        yield it


def hours(n):
    return NOON + timedelta(hours=n)


def test_why_before_and_after(sim):
    ws = sim.client
    ws.put("h", Call("t"), HOURLY)
    coming = ws.why("h", hours(1))
    assert (coming.disposition, coming.run_id, coming.scheduled_at) == ("pending", None, hours(1))
    assert "will fire" in str(coming)
    sim.advance("61m")
    fired = ws.why("h", hours(1))
    [run] = ws.runs("h")
    assert (fired.disposition, fired.run_id, fired.scheduled_at) == ("fired", run.id, hours(1))
    for never in (hours(1) + timedelta(seconds=1), NOON):
        with pytest.raises(NotFoundError):
            ws.why("h", never)
    with pytest.raises(NotFoundError):
        ws.why("nobody", hours(1))


def test_why_of_a_wall_time_that_the_clock_skipped(sim):
    ws = sim.client
    ws.put("night", Call("t"), Cron("30 2 * * *", tz="Europe/Berlin", dst_gap="skip"))
    gap = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    for _ in range(2):
        why = ws.why("night", gap)
        assert (why.disposition, why.reason, why.run_id) == ("skipped", "dst_gap", None)
        sim.advance("24h")


def test_skip_and_its_undo(sim):
    ws = sim.client
    ws.put("h", Call("t"), HOURLY)
    assert (ws.skip("h", hours(1)).disposition, ws.skip("h", hours(2)).reason) == ("skipped", "manual")
    assert ws.skip("h", hours(2), undo=True).disposition == "pending"
    sim.advance("150m")
    assert [r.scheduled_at for r in ws.runs("h")] == [hours(2)]
    assert (ws.why("h", hours(1)).disposition, ws.why("h", hours(1)).reason) == ("skipped", "manual")
    for done in (hours(1), hours(2), hours(3) + timedelta(seconds=1)):
        with pytest.raises(FailedPreconditionError):
            ws.skip("h", done)


def test_move(sim):
    ws = sim.client
    ws.put("h", Call("t"), HOURLY)
    moved = ws.move("h", hours(1), hours(1) + timedelta(minutes=20))
    sim.advance("70m")
    assert moved.refresh().state == "scheduled"
    sim.advance("20m")
    assert (moved.refresh().state, moved.id) == ("succeeded", ws.why("h", hours(1)).run_id)
    assert ws.why("h", hours(1)).disposition == "moved"
    with pytest.raises(FailedPreconditionError):
        ws.move("h", hours(1), hours(5))


def test_backfill_makes_nothing_twice(sim):
    ws = sim.client
    ws.put("h", Call("t"), Every("1h", anchor=NOON - timedelta(hours=10)))
    span = (NOON - timedelta(hours=9), NOON)
    planned = ws.backfill("h", *span, dry_run=True)
    assert (planned.count, planned.existing, planned.total, planned.dry_run) == (10, 0, 10, True)
    assert list(ws.runs("h")) == []
    made = ws.backfill("h", *span, overlap="buffer_all")
    assert (made.count, made.run_ids, made.first, made.last) == (10, planned.run_ids, *span)
    assert ws.backfill("h", *span).count == 0
    sim.advance("1m")
    assert {(r.id, r.trigger, r.state) for r in ws.runs("h")} == {(run_id, "backfill", "succeeded") for run_id in made.run_ids}
    with pytest.raises(ResourceExhaustedError) as caught:
        ws.put("s", Call("t"), Every("100ms", anchor="1970-01-01T00:00:00Z"))
        ws.backfill("s", "2000-01-01T00:00:00Z", NOON)
    assert caught.value.detail["count"] > 10**9
    assert caught.value.detail["limit"] >= 10_000
    with pytest.raises(FailedPreconditionError):
        ws.backfill(ws.put("m", Call("t"), Manual()).name, *span)


def test_backfill_of_what_failed(sim):
    ws = sim.client
    ws.put("h", Call("fail"), HOURLY, retry=1)
    sim.advance("3h")
    dead = [r.id for r in ws.runs("h", "dead")]
    ws.put("h", Call("t"), HOURLY)
    assert ws.backfill("h", hours(1), hours(2)).count == 0
    assert ws.backfill("h", hours(1), hours(2), only="failed", dry_run=True).count == 2
    assert ws.backfill("h", hours(1), hours(2), only="failed").count == 2
    assert len(dead) == 3


def test_history_tells_who_and_what(sim):
    ws = sim.client
    ws.put("h", Call("t"), HOURLY, timeout="5m", note="first")
    ws.put("h", Call("t"), [HOURLY, Cron("0 0 * * *")], timeout="1m", jitter="10s", version=1)
    ws.pause("h", note="lunch")
    ws.delete("h")
    changes = ws.history("h")
    assert [c.version for c in changes] == sorted((c.version for c in changes), reverse=True)
    gone, paused, changed, created = changes
    assert (created.old, created.note) == (None, "first")
    assert changed.changes["timeout"] == ("5m", "1m")
    assert changed.changes["jitter"] == (None, "10s")
    assert changed.changes["schedule"][1].endswith(" | 0 0 * * *")
    assert (paused.changes, paused.note) == ({"state": ("active", "paused")}, "lunch")
    assert gone.changes["state"] == ("paused", "deleted")
    assert [c.what for c in ws.history("h", limit=2)] == [gone.what, paused.what]


def test_a_calendar_blocks_by_name(sim):
    ws = sim.client
    ws.calendar("lunch", daily=["13:00-14:00"])
    ws.put("h", Call("t"), HOURLY, calendar="lunch")
    assert ws.why("h", hours(1)).reason == "calendar"
    sim.advance("150m")
    assert [r.scheduled_at for r in ws.runs("h")] == [hours(2)]
    assert (ws.why("h", hours(1)).disposition, ws.why("h", hours(1)).reason) == ("skipped", "calendar")
    ws.calendar("lunch", daily=["15:00-16:00"])
    sim.advance("1h")
    assert [r.scheduled_at for r in ws.runs("h")] == [hours(2)]
    assert [(c.name, c.jobs) for c in ws.calendars()] == [("lunch", 1)]
    with pytest.raises(FailedPreconditionError):
        ws.calendar_delete("lunch")
    ws.delete("h")
    assert ws.calendar_delete("lunch") == "lunch"
    with pytest.raises(NotFoundError):
        ws.calendar("lunch")
    with pytest.raises((NotFoundError, InvalidArgumentError, FailedPreconditionError)):
        ws.put("h", Call("t"), HOURLY, calendar="lunch")


def test_hold_and_release(sim):
    ws = sim.client
    ws.put("h", Call("t"), HOURLY, catchup=Catchup("all"))
    assert ws.hold("deploy").held
    assert (ws.stats()["held"], ws.stats()["hold_note"]) == (True, "deploy")
    sim.advance("130m")
    assert list(ws.runs("h")) == []
    released = ws.release()
    assert (released.held, released.missed) == (False, 1), "one job"
    assert not ws.stats()["held"]
    sim.advance("1m")
    assert [r.scheduled_at for r in ws.runs("h", "succeeded")] == [hours(1), hours(2)]


def test_somebody_is_told_of_what_was_missed(sim):
    ws = sim.client
    ws.put("alarm", Call("t"), Manual())
    ws.put("h", Call("t"), HOURLY, on_missed="alarm")
    ws.hold()
    sim.advance("250m")
    ws.release()
    sim.advance("1m")
    [cause] = [c for c in CAUSES if c is not None]
    assert (cause["job"], cause["reason"], cause["count"]) == ("h", "missed", 3)
    assert (cause["from"], cause["until"]) == (hours(1), hours(3))
    [alarm] = ws.runs("alarm")
    assert alarm.trigger == "chain"


def test_late_runs_are_marked(sim):
    ws = sim.client
    ws.put("h", Call("nobody.serves.this"), HOURLY, late_after="5m", overlap="allow")
    sim.advance("64m")
    assert list(ws.runs("h", late=True)) == []
    sim.advance("2m")
    assert [(r.scheduled_at, r.late) for r in ws.runs("h", late=True)] == [(hours(1), True)]


def test_a_job_pauses_after_too_many_failures(sim):
    ws = sim.client
    ws.put("h", Call("fail"), HOURLY, retry=1, pause_after=2)
    sim.advance("10h")
    assert (ws.get("h").state, len(list(ws.runs("h", "dead")))) == ("paused", 2)
    assert "2 dead runs" in ws.history("h")[0].note
    assert ws.history("h")[0].user is None


def test_what_could_never_fire_is_refused_by_the_server_too(sim):
    ws = sim.client
    with pytest.raises(ScheduleError):
        ws.put("x", Call("t"), At(NOON), start=hours(1))
    for schedule in ([At(hours(1)), HOURLY], Every("1h", after_completion=True)):
        assert ws.put("y", Call("t"), schedule).state == "active"
        assert ws.get("y").schedule is not None
