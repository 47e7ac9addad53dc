"""What a job's cursor, its ledger and the clock say after catch-up, holds, pauses and steps of the clock."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rigs.engine import at
from wheelsched import At, Catchup, Cron, Every, Manual
from wheelsched.engine import catchup

DAY_S = 86_400


def cursor(b, job="j"):
    state = b.engine.state
    row = state.find_job(f"default/{job}".encode())
    return int(state.jobs.gather(np.array([row], np.uint32))["cursor_us"][0])


@pytest.mark.parametrize(("max_runs", "made", "state"), [(1, 1, "finished"), (2, 2, "finished"), (3, 2, "active")])
def test_a_job_whose_last_run_was_made_in_catch_up_is_finished(b, max_runs, made, state):
    b.put(schedule=Every("60s"), max_runs=max_runs, catchup="all")
    b.client.hold()
    b.advance("2m30s")
    b.client.release()
    b.advance(0)
    job = b.client.get("j")
    assert len(b.runs("j")) == made
    assert (job.state, job.next_at is None) == (state, state == "finished")


def test_a_clock_that_was_ahead_and_is_set_back_counts_from_its_new_time(b):
    b.put(schedule=Every("60s"))
    b.advance("1m")
    b.step_clock(DAY_S)
    b.advance("1m")
    b.step_clock(-DAY_S)
    assert b.engine.state.meta.at_us == b.now_us
    b.crash()
    assert b.engine.state.meta.at_us == b.now_us
    b.advance("5m")
    b.step_clock(-3 * DAY_S)
    assert b.engine.state.meta.at_us == b.now_us


def test_a_run_made_before_the_clock_went_back_is_not_made_again_when_it_has_left_the_table(b):
    """Two steps back: what the first made stays known, though its record is older than the second."""
    b.put(schedule=Cron("*/10 * * * *"), overlap="allow")
    b.step_clock(3 * 3_600)
    b.advance("10m")
    for _ in range(3):
        b.finish(b.lease())
        b.advance("10m")
    b.step_clock(-3 * 3_600)
    b.step_clock(-1_800)
    b.crash()
    b.hello(51)
    for _ in range(30):
        b.advance("10m")
        b.finish(b.lease(51), conn=51)
    pairs = [(r.job, r.scheduled_at) for r in b.runs("j")]
    assert len(pairs) == len(set(pairs))


def test_rows_of_a_calendar_set_no_cursor_back(b):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.advance("3h")
    before = cursor(b)
    b.client.calendar("shut", dates=["2026-03-02"])
    b.put(schedule=Cron("0 * * * *"), calendar=["shut"])
    b.advance("30m")
    b.put(schedule=Cron("0 * * * *"), calendar=["shut"], note="again")
    assert cursor(b) >= before
    fired = [r.scheduled_at for r in b.runs("j")]
    assert len(fired) == len(set(fired)) == 3


def test_a_catch_up_sets_no_cursor_back(b):
    b.put(schedule=Cron("0 * * * *"))
    b.client.calendar("shut", dates=["2026-03-03"])
    b.put(schedule=Cron("0 * * * *"), calendar=["shut"])
    b.advance("1h")
    before = cursor(b)
    b.client.hold()
    b.advance("30h")
    b.client.release()
    b.advance(0)
    assert cursor(b) >= before
    b.put(schedule=Cron("0 * * * *"), note="x", calendar=["shut"])
    fired = [r.scheduled_at for r in b.runs("j", skipped=True) if r.state != "skipped"]
    assert len(fired) == len(set(fired))


def test_a_plan_sets_no_cursor_back(b):
    b.put(schedule=Cron("0 * * * *"))
    b.advance("30m")
    row = b.engine.state.find_job(b"default/j")
    fields = b.engine.state.jobs.gather(np.array([row], np.uint32))[0].copy()
    fields["cursor_us"] = fields["next_us"] + 10 * 3_600_000_000
    rows = catchup.plan(b.engine, row, fields, int(fields["next_us"]) + 1, catchup.SKIP_PAUSED)
    assert {r["cursor"] for r in rows} == {int(fields["cursor_us"])}


def test_what_a_calendar_takes_during_a_hold_is_told_once_and_as_the_calendar_s(b):
    b.client.calendar("shut", dates=["2026-03-02"])
    b.put(schedule=Cron("0 * * * *"), calendar=["shut"])
    b.client.hold()
    b.advance("2h30m")
    assert b.runs("j", skipped=True) == []
    b.put(schedule=Cron("0 * * * *"), calendar=["shut"], note="again")
    rows = [(r.state, r.reason, r.count, r.scheduled_at) for r in b.runs("j", skipped=True)]
    assert rows == [("skipped", "calendar", 2, at("2026-03-02T01:00"))]
    b.client.release()
    assert [(r.state, r.reason, r.count, r.scheduled_at) for r in b.runs("j", skipped=True)] == rows


def test_a_calendar_that_changes_during_a_hold_decides_nothing_before_the_release(b):
    b.client.calendar("shut", dates=["2026-03-02"])
    b.put(schedule=Cron("0 * * * *"), calendar=["shut"], catchup="latest")
    b.client.hold()
    b.advance("2h30m")
    b.client.calendar("shut", dates=["2026-04-01"])
    assert b.runs("j", skipped=True) == []
    b.client.release()
    assert [(r.state, r.scheduled_at) for r in b.runs("j")] == [("queued", at("2026-03-02T02:00"))]


def test_a_paused_one_time_job_put_anew_at_its_very_instant_has_a_row_for_it(b):
    when = at("2026-03-02T00:10")
    b.put("once", At(when), paused=True)
    b.advance(to=when)
    b.put("once", At(at("2026-03-02T01:00")))
    rows = [(r.scheduled_at, r.state, r.reason) for r in b.runs("once", skipped=True)]
    assert (when, "skipped", "pause") in rows


def test_a_paused_one_time_job_put_anew_before_its_instant_owes_nothing(b):
    when = at("2026-03-02T00:10")
    b.put("once", At(when), paused=True)
    b.advance("9m59s")
    b.put("once", At(at("2026-03-02T01:00")))
    assert b.runs("once", skipped=True) == []


def test_the_most_of_catch_up_leaves_a_row_for_the_rest(b):
    b.put(schedule=Every("60s"), catchup=Catchup("all", max=2))
    b.advance(1)
    b.crash(down="10m")
    b.advance(0)
    rows = b.runs("j", skipped=True)
    assert sum(r.count for r in rows if r.reason == "max") == 8
    assert len([r for r in rows if r.state != "skipped"]) == 2


def test_a_manual_job_has_no_next_time_after_any_step(b):
    b.put(schedule=Manual())
    b.step_clock(DAY_S)
    b.step_clock(-DAY_S)
    assert b.client.get("j").next_at is None
