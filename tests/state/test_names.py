"""What is remembered, and for how long: names outlive their history, and nothing is forgotten on the word of a clock that is ahead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tests.rigs.engine import CALL, Bench, ask_put
from tests.sim.kept import DAY, KEYED, YEAR, Kept, at
from tests.sim.world import US
from wheelsched import At, Cron, Every, Job, Manual
from wheelsched.cli.history_rows import history_rows
from wheelsched.state.doubles import doubled
from wheelsched.state.records import Blobs

START = datetime(2026, 3, 2, tzinfo=UTC)
ONCE = At(START + timedelta(minutes=10))


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def work(b):
    """What is queued runs, and goes to history."""
    b.finish(b.lease())
    b.advance("2m")


def ran_once(b):
    """The one-time job `once` has run and is history."""
    b.put("once", ONCE)
    b.advance("11m")
    work(b)
    assert [r.state for r in b.runs("once")] == ["succeeded"]
    assert not len(b.engine.state.runs)


# S1: a name outlives its history


def test_s1_a_date_that_is_loaded_at_each_deploy_runs_once(b):
    for _ in range(62):
        b.put("once", ONCE)
        b.advance("1d")
        if b.lease():
            break
    b.crash()
    for _ in range(62):
        assert b.put("once", ONCE).result == "unchanged"
        b.advance("1d")
    assert len(b.runs("once")) == 1


@pytest.mark.parametrize("retention", [7, 30, 90])
def test_s1_no_two_records_are_ever_there_together(retention):
    w = Kept(retention)
    w.put("once", at(w))
    w.days(1)
    made = {w.records()[0][2]}
    for _ in range(110):
        w.put("other", at(w))
        w.days(1)
        records = [r for r in w.records() if r[0] == "once"]
        assert len(records) <= 1
        if w.engine.state.find_job(b"default/once") is None:
            break
        made |= {r[2] for r in records}
    else:
        pytest.fail("the name is never forgotten")
    assert not records, "its history went first"
    assert max(31, retention + 1) <= (w.wall_us - w.start_us) / (DAY * US) <= max(31, retention + 1) + 2
    assert len(made) == 1
    assert w.engine.state.find_job(b"default/other") is not None, "that is put again and again"
    again = w.put("once", at(w))
    assert (again["result"], "days past" in again["said"]) == ("created", True)
    w.days(1)
    assert [r[0] for r in w.records()].count("once") == 1
    assert not w.doubled()


@pytest.mark.parametrize("retention", [7, 90])
def test_s1_tombstones_outlive_their_history_too(retention):
    w = Kept(retention)
    w.put("once", at(w))
    w.days(1)
    w.ask("delete", name="once")
    w.days(max(31, retention) - 1)
    assert w.put("once", at(w))["said"].startswith("its times were decided")
    w.ask("delete", name="once")
    w.days(max(31, retention + 1) - 2)
    assert w.put("once", at(w))["state"] == "finished"
    assert [r[0] for r in w.records()].count("once") <= 1
    assert not w.doubled()


def test_s1_what_ran_later_than_the_name_was_touched_keeps_it():
    w = Kept(30)
    w.ask("queue_pause", name="default")
    w.put("once", at(w))
    w.days(40)
    assert w.engine.state.find_job(b"default/once") is not None, "its run is open"
    w.ask("queue_resume", name="default")
    w.days(29)
    assert len(w.records()) == 1
    assert w.put("once", at(w))["result"] == "unchanged"


def test_s1_an_unchanged_put_renews_names_in_every_verb(b):
    ran_once(b)
    b.client.put_many([Job("m", CALL, ONCE)])
    b.client.put("over", CALL, Every("1h"), end=START + timedelta(hours=2))
    b.client.put("twice", CALL, Every("1m"), max_runs=2, overlap="allow")
    b.client.apply([Job("applied", CALL, ONCE)])
    b.advance("3h")
    work(b)
    b.engine.retention_us = 30 * DAY * US
    for _ in range(4):
        b.advance("25d")
        assert b.put("once", ONCE).result == "unchanged"
        assert b.client.put_many([Job("m", CALL, ONCE)])[0][1] == "unchanged"
        assert b.client.put("over", CALL, Every("1h"), end=START + timedelta(hours=2)).result == "unchanged"
        assert b.client.put("twice", CALL, Every("1m"), max_runs=2, overlap="allow").result == "unchanged"
        assert b.client.apply([Job("applied", CALL, ONCE)]).unchanged == 1
    b.advance("33d")
    assert not [j.name for j in b.client.jobs() if not j.name.startswith("~")], "and now nobody names them any more"


def test_s1_an_unchanged_put_is_seldom_a_record(b):
    ran_once(b)
    b.advance("2h")
    b.put("once", ONCE)
    made = b.engine.state.touched.changed.copy()
    b.advance("10m")
    b.put("once", ONCE)
    assert (b.engine.state.touched.changed == made).all()
    b.advance("1h")
    b.put("once", ONCE)
    assert not (b.engine.state.touched.changed == made).all()


def test_s1_a_job_that_was_made_anew_fires_nothing_that_was_decided(b):
    """Grids go on from now, however long ago their name was forgotten."""
    b.engine.retention_us = 30 * DAY * US
    for name, schedule in {"every": Every("1h"), "cron": Cron("0 * * * *"), "union": [Cron("0 * * * *"), Every("90m")]}.items():
        b.client.put(name, CALL, schedule)
    b.advance("5h")
    work(b)
    for name in ("every", "cron", "union"):
        b.client.delete(name)
    b.advance("70d")
    assert b.engine.state.find_job(b"default/cron") is None
    now = b.now
    for name, schedule in {"every": Every("1h"), "cron": Cron("0 * * * *"), "union": [Cron("0 * * * *"), Every("90m")]}.items():
        made = b.client.put(name, CALL, schedule)
        assert made.said is None
        assert made.next_at > now
    b.advance("3h")
    records = [(r.job, r.scheduled_at) for r in b.client.runs()]
    assert len(records) == len(set(records))


def test_s1_dates_so_long_past_are_told_of(b):
    old, dates = At(START - timedelta(days=40)), [At(START - timedelta(days=40)), At(START + timedelta(days=1))]
    said = "40 days past"
    assert said in b.client.put("a", CALL, old).said
    assert said in b.client.put("b", CALL, dates).said
    assert said in b.client.put("c", CALL, old, paused=True).said
    assert b.client.put("d", CALL, At(START - timedelta(days=30))).said is None
    assert b.client.put("a", CALL, old).said is None, "it is known"
    many = b.client.put_many([Job("m0", CALL, ONCE), Job("m1", CALL, old), Job("a", CALL, old), Job("m2", CALL, dates)])
    assert [name for name, text in many.said if said in text] == ["m1", "m2"]
    applied = b.client.apply([Job("p0", CALL, ONCE), Job("p1", CALL, old), Job("a", CALL, old)], dry_run=True)
    assert [name for name, _ in applied.said] == ["p1"]
    assert [name for name, _ in b.client.apply([Job("p1", CALL, old)]).said] == ["p1"]


def test_s1_a_tombstone_with_marks_stays_and_its_marks_hit_nobody_else():
    w = Kept(7)
    w.put("j", Cron("0 0 * * *"))
    far = (w.start_us // (DAY * US) + 60) * DAY * US
    w.ask("move", name="j", at_us=far, to_us=w.start_us + 3_600 * US)
    w.days(1)
    w.ask("delete", name="j")
    w.days(40)
    row = w.engine.state.find_job(b"default/j")
    assert row is not None
    assert (row, far) in w.engine.state.exceptions
    made = w.put("j", Cron("0 0 * * *"))
    assert made["result"] == "created"
    w.days(25)
    assert [r for r in w.records() if r[1] == far] == [], "it ran before, at another time"


# S2: time that has really passed


@pytest.mark.parametrize("step", [25 * 3_600, 40 * DAY, YEAR])
@pytest.mark.parametrize("stands", ["2m", "20h"])
def test_s2_a_clock_that_is_ahead_forgets_nothing(b, step, stands):
    ran_once(b)
    b.put("gone", Manual())
    b.client.delete("gone")
    key = b.client.enqueue(CALL, key="invoice")
    b.put("m", Manual())
    trigger = b.client.trigger("m", key="k")
    work(b)
    b.step_clock(step)
    b.advance(stands)
    assert b.put("once", ONCE).result == "unchanged"
    b.step_clock(-step)
    b.advance("1m")
    assert b.put("once", ONCE).result == "unchanged"
    again = b.client.enqueue(CALL, key="invoice")
    assert (again.existing, again.id) == (True, key.id)
    again = b.client.trigger("m", key="k")
    assert (again.existing, again.id) == (True, trigger.id)
    assert b.client.put("gone", CALL, Manual()).version > 2, "the tombstone was there"
    assert len(b.runs("once")) == 1


def test_s2_a_clock_that_jumps_to_and_fro(b):
    ran_once(b)
    key = b.client.enqueue(CALL, key="invoice")
    work(b)
    for step in (YEAR, -2 * YEAR, YEAR, DAY, -DAY, 25 * 3_600, -25 * 3_600) * 3:
        b.step_clock(step)
        b.advance("61s")
    assert b.client.enqueue(CALL, key="invoice").id == key.id
    assert b.put("once", ONCE).result == "unchanged"
    assert len(b.runs("once")) == 1


def test_s2_what_was_stored_while_the_clock_was_behind_is_no_older_for_it(b):
    b.step_clock(-YEAR)
    key = b.client.enqueue(CALL, key="invoice")
    first = b.ask("put", ask_put("j", rid=b.rid(1)))
    work(b)
    b.step_clock(YEAR)
    b.advance("2m")
    assert b.client.enqueue(CALL, key="invoice").id == key.id
    assert b.ask("put", ask_put("another", rid=b.rid(1))) == first


def test_s2_what_was_stored_while_it_was_ahead_is_forgotten_in_its_time(b):
    b.step_clock(YEAR)
    b.client.enqueue(CALL, key="invoice")
    b.ask("put", ask_put("j", rid=b.rid(1)))
    work(b)
    b.step_clock(-YEAR)
    b.advance("12m")
    assert not b.engine.state.replies
    b.advance("25h")
    assert not b.engine.state.keys


def test_s2_a_repeated_request_is_answered_as_at_first(b):
    first = b.ask("put", ask_put(rid=b.rid(1)))
    assert first["result"] == "created"
    b.advance("1m")
    b.step_clock(700)
    b.advance("1m")
    b.step_clock(-700)
    assert b.ask("put", ask_put(rid=b.rid(1))) == first
    b.advance("10m")
    assert b.ask("put", ask_put(rid=b.rid(1)))["result"] == "unchanged"


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("wrong", [2 * DAY, YEAR])
def test_s2_a_server_that_starts_with_a_wrong_clock_forgets_nothing(reboot, wrong):
    w = Kept()
    w.put("once", at(w))
    w.put("deleted", at(w))
    w.days(1)
    w.ask("delete", name="deleted")
    first = w.ask("enqueue", **KEYED)
    for stands in (US, 3_600 * US):
        w.crash(reboot=reboot, back_us=-wrong * US)
        w.spawn("pool")
        w.turn()
        w.pass_time(stands)
        w.turn()
        w.pass_time(61 * US)
        w.turn()
        w.set_back(wrong * US)
        w.inputs.append(w.clock_back())
        w.turn()
        assert w.ask("enqueue", **KEYED)["id"] == first["id"]
        assert w.put("once", at(w))["result"] == "unchanged"
        assert w.put("deleted", at(w))["state"] == "finished"
        w.ask("delete", name="deleted")
    assert [r[0] for r in w.records()].count("once") == 1
    assert not w.doubled()


def test_s2_history_goes_by_the_same_clock():
    w = Kept(30)
    w.put("tick", Every("6h"))
    w.days(3)
    before = len(w.records())
    w.wall_us += YEAR * US
    w.days(0.5)
    assert len(w.records()) > before
    w.set_back(YEAR * US)
    w.inputs.append(w.clock_back())
    w.days(25)
    assert min(r[1] for r in w.records()) < w.start_us + DAY * US
    w.days(9)
    first = min(r[2] for r in w.records())
    assert first > w.start_us + 3 * DAY * US, "and is dropped in its time"


def test_s2_machines_that_are_off_for_long_forget_after_a_day():
    w = Kept(30)
    w.put("once", at(w))
    w.days(1)
    w.crash(reboot=True, down_us=100 * DAY * US)
    w.spawn("pool")
    w.days(0.9)
    assert w.engine.state.find_job(b"default/once") is not None
    assert len(w.records()) == 1
    w.days(0.2)
    w.put("tick", Every("1h"))
    w.days(0.2)
    assert w.engine.state.find_job(b"default/once") is None
    assert [r[0] for r in w.records()].count("once") == 0


def test_s2_marks_of_single_occurrences_stay_while_the_clock_is_ahead(b):
    """Else a skipped occurrence would run, and one that was moved to now would run a second time."""
    b.put("j", Cron("0 0 * * *"))
    skipped, moved = START + timedelta(days=3), START + timedelta(days=4)
    b.client.skip("j", skipped)
    b.client.move("j", moved, START + timedelta(hours=1))
    b.client.pause("j")
    b.advance("2h")
    work(b)
    b.step_clock(YEAR)
    b.advance("2m")
    b.step_clock(-YEAR)
    b.client.resume("j")
    b.advance("6d")
    b.lease()
    times = [r.scheduled_at for r in b.runs("j")]
    assert skipped not in times
    assert times.count(moved) == 1


# What sees a doubled record


def forget(b, name):
    """As a fault would."""
    row = np.array([b.engine.state.find_job(f"default/{name}".encode())], np.uint32)
    b.engine.record("FORGET", {"rid": Blobs([]), "key": Blobs([]), "job": row})


def test_s1_a_doubled_record_is_seen(b):
    ran_once(b)
    assert not doubled(b.engine.state, b.journal.history_blocks)
    forget(b, "once")
    b.put("once", ONCE)
    rows = [r for r in history_rows(b.client) if r["type"] == "run" and r["job"] == "once"]
    assert len(rows) == 2
    assert len({r["run_id"] for r in rows}) == 1
    nominal_us = (ONCE.instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert doubled(b.engine.state, b.journal.history_blocks) == [("default/once", nominal_us, 2)]
    work(b)
    assert doubled(b.engine.state, b.journal.history_blocks) == [("default/once", nominal_us, 2)], "both in history"


def test_s1_rows_that_are_no_second_record_are_not_taken_for_one(b):
    """A backfill of what the ledger skipped, a clock that went back, triggers."""
    b.put("j", Cron("* * * * *"), catchup="skip")
    b.client.pause("j")
    b.advance("10m")
    b.client.resume("j")
    b.client.backfill("j", START, START + timedelta(minutes=5))
    for _ in range(8):
        work(b)
    b.step_clock(3_600)
    work(b)
    b.step_clock(-3_600)
    for _ in range(40):
        b.advance("2m")
        work(b)
    assert len(list(b.client.runs("j"))) > 10
    assert not doubled(b.engine.state, b.journal.history_blocks)
