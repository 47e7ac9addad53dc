"""why, skip, move and backfill; hold and release; calendars; who changed a job; other zone data: on the real engine."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.rigs.engine import FAILED, Bench, at, fold
from wheelsched import (
    Catchup,
    Cron,
    Every,
    FailedPreconditionError,
    InvalidArgumentError,
    Manual,
    NotFoundError,
    Overlap,
    ResourceExhaustedError,
    Retry,
)
from wheelsched.journal.memory import Batch
from wheelsched.model.ids import scheduled_run_id

# why


def test_why_of_what_fired_was_skipped_and_is_to_come(b):
    b.put(schedule=Every("1s"))
    b.advance("1s")
    (run_id, _, _), = held = b.lease()
    b.work(held, 5)
    for again in range(2):
        fired = b.client.why("j", at("2026-03-02T00:00:01"))
        assert (fired.disposition, fired.run_id) == ("fired", run_id.hex())
        for second in (2, 4, 6):
            skipped = b.client.why("j", at(f"2026-03-02T00:00:0{second}"))
            assert (skipped.disposition, skipped.reason, skipped.blocking, skipped.run_id) == ("skipped", "overlap", run_id.hex(), None)
            assert run_id.hex() in skipped.text
        if not again:
            b.finish(held)
            b.client.pause("j")
            fold(b)
    assert b.client.why("j", at("2026-03-03T00:00:00")).reason == "pause"
    b.client.resume("j")
    coming = b.client.why("j", at("2026-03-03T00:00:00"))
    assert (coming.disposition, coming.at) == ("pending", at("2026-03-03T00:00:00"))
    assert "will fire" in coming.text


def test_why_names_pause_window_max_misfire_and_deletion(b):
    b.put("skip", Every("60s"), catchup="skip")
    b.put("window", Every("60s"), catchup=Catchup("latest", window="5m"))
    b.put("max", Every("60s"), catchup=Catchup("all", max=3))
    b.put("paused", Every("60s"))
    b.client.pause("paused", "holidays")
    b.crash(down="10m30s")
    minute = at("2026-03-02T00:02")
    assert b.client.why("skip", minute).reason == "misfire"
    assert b.client.why("window", minute).reason == "window"
    assert b.client.why("max", minute).reason == "max"
    assert "holidays" in b.client.why("paused", minute).text
    b.client.resume("paused")
    assert b.client.why("paused", minute).reason == "pause"
    late = b.client.why("window", at("2026-03-02T00:10"))
    assert (late.disposition, late.reason) == ("fired", "misfire")
    assert "standing for" in late.text
    b.client.delete("skip")
    gone = b.client.why("skip", at("2026-03-02T01:00"))
    assert (gone.disposition, gone.reason) == ("skipped", "deleted")


def test_why_refuses_what_is_no_occurrence_and_names_the_nearest(b):
    b.put(schedule=Cron("0 * * * *"))
    with pytest.raises(NotFoundError, match="nearest are 2026-03-02 00:00:00Z and 2026-03-02 01:00:00Z"):
        b.client.why("j", at("2026-03-02T00:30"))
    with pytest.raises(NotFoundError, match="no job"):
        b.client.why("nobody", at("2026-03-02T00:30"))
    b.put("hand", Manual())
    with pytest.raises(NotFoundError, match="triggered"):
        b.client.why("hand", at("2026-03-02T00:30"))
    with pytest.raises(NotFoundError, match="nothing is on record"):
        b.client.why("j", at("2026-03-01T00:00"))
    with pytest.raises(InvalidArgumentError):
        b.ask("why", {"name": "j", "at_us": "now"})


def test_why_speaks_of_daylight_saving():
    with Bench("2025-03-08T12:00:00Z") as b:
        b.put("run-after", Cron("30 2 * * *", tz="America/New_York"))
        b.put("skip", Cron("30 2 * * *", tz="America/New_York", dst_gap="skip"))
        b.put("first", Cron("30 1 * * *", tz="America/New_York"))
        b.advance(to="2025-03-10T12:00:00Z")
        gone = at("2025-03-09T07:30:00")  # 02:30 does not exist
        assert b.client.why("run-after", gone).disposition == "coalesced"
        assert b.client.why("run-after", gone).at == at("2025-03-09T07:00:00")
        assert b.client.why("run-after", at("2025-03-09T07:00:00")).disposition == "fired"
        skipped = b.client.why("skip", gone)
        assert (skipped.disposition, skipped.reason) == ("skipped", "dst_gap")
        rows = [r for r in b.runs("skip", skipped=True) if r.state == "skipped"]
        assert [(r.reason, r.scheduled_at) for r in rows] == [("dst_gap", gone)]
        b.advance(to="2025-11-03T12:00:00Z")
        twice = b.client.why("first", at("2025-11-02T06:30:00"))
        assert (twice.disposition, twice.reason) == ("skipped", "dst_overlap")
        assert [r.reason for r in b.runs("first", skipped=True) if r.state == "skipped" and r.reason != "overlap"] == ["dst_overlap"]


# skip and move


def test_one_occurrence_is_skipped_and_its_neighbours_run(b):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    told = b.client.skip("j", at("2026-03-02T02:00"))
    assert (told.disposition, told.reason) == ("skipped", "manual")
    assert b.client.next("j", 2) == [at("2026-03-02T01:00"), at("2026-03-02T03:00")]
    b.client.skip("j", at("2026-03-02T03:00"))
    b.client.skip("j", at("2026-03-02T03:00"), undo=True)
    b.crash()
    b.advance(to="2026-03-02T03:30:00Z")
    assert [(r.scheduled_at.hour, r.state, r.reason) for r in b.runs("j", skipped=True)] == [
        (1, "queued", None), (2, "skipped", "manual"), (3, "queued", None),
    ]
    assert not b.engine.state.exceptions
    for wrong, error in (("2026-03-02T03:00", "is past"), ("2026-03-02T04:30", "no occurrence")):
        with pytest.raises(FailedPreconditionError, match=error):
            b.client.skip("j", at(wrong))
    with pytest.raises(FailedPreconditionError, match="nothing to undo"):
        b.client.skip("j", at("2026-03-02T05:00"), undo=True)


def test_a_skipped_occurrence_that_is_missed_stays_skipped(b):
    b.put(schedule=Cron("0 * * * *"), catchup="all", overlap="allow")
    b.client.skip("j", at("2026-03-02T02:00"))
    moved = b.client.move("j", at("2026-03-02T03:00"), at("2026-03-02T03:20"))
    b.crash(down="4h30m")
    assert [(r.scheduled_at.hour, r.state, r.disposition) for r in b.runs("j", skipped=True)] == [
        (1, "queued", "fired"), (2, "skipped", "skipped"), (3, "queued", "moved"), (4, "queued", "fired"),
    ]
    assert b.client.run(moved.id).state == "queued"


@pytest.mark.parametrize("to", ["2026-03-02T00:20", "2026-03-02T02:40", "2026-03-02T09:00"])
def test_one_occurrence_is_moved_and_keeps_its_identity(b, to):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    run = b.client.move("j", at("2026-03-02T02:00"), at(to))
    assert (run.state, run.scheduled_at, run.next_at) == ("scheduled", at("2026-03-02T02:00"), at(to))
    assert run.id == scheduled_run_id(b"default/j", 1772416800000000).hex()
    b.advance(to=at(to) - timedelta(seconds=1))
    assert b.client.run(run.id).state == "scheduled"
    b.advance("1s")
    assert b.client.run(run.id).state == "queued"
    b.finish(b.lease())
    fold(b)
    b.crash()
    b.advance(to="2026-03-02T10:00:00Z")
    found = [r for r in b.runs("j", skipped=True) if r.scheduled_at == at("2026-03-02T02:00")]
    assert [(r.id, r.disposition) for r in found] == [(run.id, "moved")]
    assert b.client.why("j", at("2026-03-02T02:00")).disposition == "moved"


def test_a_moved_occurrence_is_moved_again_and_not_skipped(b):
    b.put(schedule=Cron("0 * * * *"))
    run = b.client.move("j", at("2026-03-02T02:00"), at("2026-03-02T02:30"))
    assert b.client.get("j").next_at == at("2026-03-02T01:00")
    for to in ("2026-03-02T02:40", "2026-03-02T02:00", "2026-03-02T02:30"):
        assert b.client.move("j", at("2026-03-02T02:00"), at(to)).next_at == at(to), "it may be moved again, also back"
    assert "to 2026-03-02 02:30" in b.client.why("j", at("2026-03-02T02:00")).text
    with pytest.raises(FailedPreconditionError, match="moved"):
        b.client.skip("j", at("2026-03-02T02:00"))
    with pytest.raises(InvalidArgumentError, match="past"):
        b.client.move("j", at("2026-03-02T03:00"), at("2026-03-01T02:40"))
    assert b.client.cancel(run.id).state == "cancelled"
    b.advance("3h")
    assert [r.scheduled_at.hour for r in b.runs("j", "cancelled")] == [2]
    assert len([r for r in b.runs("j", skipped=True) if r.scheduled_at.hour == 2]) == 1


# backfill


def test_backfill_makes_what_is_missing_and_nothing_twice(b):
    b.put(schedule=Cron("0 * * * *"))
    since, until = at("2026-03-01T12:00"), at("2026-03-01T18:00")
    dry = b.client.backfill("j", since, until, dry_run=True)
    assert (dry.count, dry.existing, dry.total) == (7, 0, 7)
    assert b.runs("j") == []
    made = b.client.backfill("j", since, until)
    assert made.run_ids == dry.run_ids
    order = []
    for _ in range(7):
        assert [r.state for r in b.runs("j")].count("queued") == 1, "one after another"
        (run_id, _, _), = held = b.lease()
        order.append(b.client.run(run_id.hex()).scheduled_at.hour)
        assert b.client.run(run_id.hex()).trigger == "backfill"
        b.finish(held)
    assert order == [12, 13, 14, 15, 16, 17, 18]
    fold(b)
    b.crash()
    again = b.client.backfill("j", since, at("2026-03-01T20:00"))
    assert (again.count, again.existing) == (2, 7)
    assert len({r.id for r in b.runs("j")}) == 9


def test_backfill_of_skipped_occurrences_and_of_failed_ones(b):
    b.put(schedule=Every("60s"), retry=Retry(attempts=1), catchup="skip")
    b.crash(down="5m30s")
    b.hello()
    b.advance("30s")
    b.finish(b.lease(), FAILED)
    until = at("2026-03-02T00:05")
    assert b.client.backfill("j", at("2026-03-02T00:01"), until, backwards=True).count == 5
    order = []
    for _ in range(5):
        (run_id, _, _), = held = b.lease()
        order.append(b.client.run(run_id.hex()).scheduled_at.minute)
        b.finish(held)
    assert order == [5, 4, 3, 2, 1]
    assert b.client.why("j", at("2026-03-02T00:03")).disposition == "fired"
    b.client.pause("j")
    all_of_it = at("2026-03-02T00:01"), at("2026-03-02T00:06")
    assert b.client.backfill("j", *all_of_it).count == 0
    failed = b.client.backfill("j", *all_of_it, only="failed")
    assert (failed.count, failed.existing) == (1, 5)
    assert [r.state for r in b.runs("j", "queued")] == ["queued"]


def test_a_fresh_occurrence_comes_between_the_runs_of_a_backfill(b):
    b.advance(to="2026-03-02T00:00:30Z")
    b.put("old", Cron("* * * * *"))
    b.client.backfill("old", at("2026-03-01T23:00"), at("2026-03-01T23:09"))
    held = [lease for lease in b.lease() if b.client.run(lease[0].hex()).job == "old"]
    assert len(held) == 1
    b.work(held, 35)
    fresh = [r for r in b.runs("old") if r.trigger == "schedule"]
    assert [r.state for r in fresh] == ["scheduled"], "it waits for its turn, it is not skipped"
    b.finish(held)
    assert b.client.run(fresh[0].id).state == "queued"


def test_backfill_with_a_limit_of_its_own(b):
    b.put(schedule=Cron("0 * * * *"))
    b.client.backfill("j", at("2026-03-01T00:00"), at("2026-03-01T10:00"), overlap=Overlap("allow", 3))
    assert len(b.runs("j", "queued")) == 3
    held = b.lease(n=2)
    b.finish(held)
    assert len(b.runs("j", "queued")) == 3
    b.crash()
    b.hello()
    b.finish(b.lease(n=1))
    assert len(b.runs("j", "queued")) == 3


def test_backfill_refuses_what_is_too_much_or_makes_no_sense(b):
    b.put("sec", Cron("* * * * * *"))
    with pytest.raises(ResourceExhaustedError, match=r"1,\d\d\d,\d\d\d,\d\d\d occurrences.*100,000"):
        b.client.backfill("sec", at("1980-01-01T00:00"), at("2020-01-01T00:00"))
    with pytest.raises(InvalidArgumentError, match="still to come"):
        b.client.backfill("sec", at("2026-01-01T00:00"), at("2027-01-01T00:00"))
    with pytest.raises(InvalidArgumentError):
        b.client.backfill("sec", at("2026-02-01T00:00"), at("2026-01-01T00:00"))
    b.put("hand", Manual())
    with pytest.raises(FailedPreconditionError, match="trigger"):
        b.client.backfill("hand", at("2026-01-01T00:00"), at("2026-01-02T00:00"))


def test_a_moved_occurrence_is_in_nobodys_way_and_waits_its_turn(b):
    b.put(schedule=Cron("0 * * * *"))
    run = b.client.move("j", at("2026-03-02T04:00"), at("2026-03-02T02:00:20"))
    for hour in (1, 2):
        b.advance(to=f"2026-03-02T0{hour}:00:00Z")
        held = b.lease()
        assert len(held) == 1, "the waiting one is not in the way"
        if hour == 1:
            b.finish(held)
    b.work(held, 60)
    assert b.client.run(run.id).state == "scheduled", "one at a time"
    b.crash()
    b.hello()
    b.heartbeat(held)
    assert b.client.run(run.id).state == "scheduled"
    b.finish(held)
    assert b.client.run(run.id).state == "queued"


@pytest.mark.parametrize("pieces", [False, True])
def test_s1_a_backfill_beyond_history_is_told(b, monkeypatch, pieces):
    if pieces:
        monkeypatch.setattr("wheelsched.verbs.occurrences.PIECE", 3)
    b.put(schedule=Cron("0 0 * * *"))
    for _ in range(6):
        b.advance("1d")
        b.hello()
        b.finish(b.lease())
    b.client.pause("j")
    fold(b)
    ran = at("2026-03-03T00:00"), at("2026-03-08T00:00")
    whole = b.client.backfill("j", *ran, dry_run=True)
    assert (whole.total, whole.existing, whole.forgotten) == (6, 6, 0), "what history has is known, however old"
    b.journal.append(Batch(drop_history=b.journal.history_range()[1]))
    dry = b.client.backfill("j", *ran, dry_run=True)
    assert (dry.total, dry.count, dry.forgotten) == (6, 6, 6), "what history has dropped, whatever its age"
    before = b.client.backfill("j", at("2026-02-20T00:00"), ran[1], dry_run=True)
    assert (before.total, before.forgotten) == (17, 6), "before the job was there nothing ran"
    done = b.client.backfill("j", *ran)
    assert (done.count, done.forgotten) == (6, 6)
    assert done.to_dict()["forgotten"] == 6
    again = b.client.backfill("j", *ran)
    assert (again.count, again.existing, again.forgotten) == (0, 6, 0)
