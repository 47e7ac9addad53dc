"""Whose turn it is beside moved occurrences, backfills and cancelled runs; and what max_runs counts of what was replaced."""

from __future__ import annotations

import pytest

from tests.rigs.engine import FAILED, Waiting, at
from wheelsched import Cron, Every, Manual

START = "2026-03-02T00:00:00Z"


def test_a_moved_occurrence_is_not_folded_into_the_next_one(b):
    b.put(schedule=Every("1h"), overlap="buffer_latest")
    moved = b.client.move("j", at("2026-03-02T01:00"), at("2026-03-02T05:30"))
    b.advance("4h5m")
    assert b.client.run(moved.id).state == "scheduled"
    assert [r.state for r in b.runs("j") if r.id != moved.id] == ["queued", "scheduled"]


def test_a_moved_occurrence_takes_no_fresh_one_away_beside_a_backfill(b):
    b.put(schedule=Cron("0 * * * *"), overlap="skip")
    b.client.move("j", at("2026-03-02T01:00"), at("2026-03-02T02:30"))
    b.client.backfill("j", at("2026-03-01T00:00"), at("2026-03-01T03:00"))
    b.advance("2h1m")
    assert b.client.why("j", at("2026-03-02T02:00")).disposition == "fired"


@pytest.mark.parametrize(("policy", "wait"), [("buffer_one", 1), ("buffer_latest", 1), ("skip", 1)])
def test_no_more_wait_beside_a_backfill_than_the_policy_allows(b, policy, wait):
    b.put(schedule=Cron("0 * * * *"), overlap=policy)
    b.client.backfill("j", at("2026-03-01T00:00"), at("2026-03-01T03:00"))
    b.advance("3h1m")
    fresh = [r for r in b.runs("j") if r.scheduled_at >= at("2026-03-02T00:00")]
    assert [r.state for r in fresh] == ["scheduled"] * wait


@pytest.mark.parametrize("minutes", [0, 15])  # the hold comes before its instant, or after
def test_a_moved_occurrence_that_waits_during_a_hold_waits_for_its_release(b, minutes):
    b.put(schedule=Every("1h"))
    b.advance("1h")
    held = b.lease()
    moved = b.client.move("j", at("2026-03-02T02:00"), at("2026-03-02T01:10"))
    b.work(held, 60 * minutes)
    b.client.hold()
    b.work(held, 1_200)
    b.finish(held)
    assert b.client.run(moved.id).state == "scheduled"
    b.client.release()
    b.advance(0)
    assert b.client.run(moved.id).state == "queued"


def test_the_cancelled_run_gives_its_place_to_the_one_behind_it(b):
    b.put(schedule=Every("60s"), overlap="buffer_one")
    b.advance("2m1s")
    first, second = b.runs("j")
    assert (first.state, second.state) == ("queued", "scheduled")
    b.client.cancel(first.id)
    assert b.states() == ["cancelled", "queued"]


def test_skipping_the_next_occurrence_of_after_completion_leaves_the_job_alive(b):
    b.put(schedule=Every("60s", after_completion=True))
    following = b.client.next("j", 1)[0]
    b.client.skip("j", following)
    b.advance("10m")
    rows = b.runs("j", skipped=True)
    assert [r.state for r in rows] == ["skipped", "queued"]
    assert rows[0].reason == "manual"


def test_what_is_replaced_uses_nothing_of_max_runs(b):
    b.put(schedule=Every("60s"), overlap="buffer_latest", max_runs=3)
    b.advance("4m1s")
    rows = b.runs("j", skipped=True)
    assert b.client.get("j").state == "active"
    assert len(rows) == 4
    assert [r.state for r in rows] == ["queued", "skipped", "skipped", "scheduled"]


@pytest.mark.parametrize("max_runs", [1, 2, 3])
def test_the_last_run_is_replaced_and_no_further_one_is_made(b, max_runs):
    b.put(schedule=Every("60s"), overlap="buffer_latest", max_runs=max_runs)
    b.advance("8m")
    assert [r.state for r in b.runs("j")] == ["queued", "scheduled"][:max_runs]
    for _ in range(4):
        b.finish(b.lease())
        b.advance("60s")
    assert b.states() == ["succeeded"] * max_runs
    job = b.client.get("j")
    assert (job.state, job.next_at) == ("finished", None)


def test_the_last_run_of_max_runs_that_replaces_nothing_ends_the_job_at_once(b):
    b.put(schedule=Every("60s"), overlap="buffer_latest", max_runs=2)
    b.advance("61s")
    assert (b.client.get("j").state, b.client.get("j").next_at) == ("active", at("2026-03-02T00:02"))
    b.advance("60s")
    assert (b.client.get("j").state, b.client.get("j").next_at) == ("finished", None)
    b.advance("2m")
    assert [r.state for r in b.runs("j", skipped=True)] == ["queued", "scheduled"]


def test_the_wait_for_a_superseded_run_is_answered():
    with Waiting(START) as b:
        b.put(schedule=Every("60s"), overlap="buffer_latest")
        b.advance("2m")
        waiting = b.runs("j")[1]
        assert waiting.state == "scheduled"
        b.wait_for(waiting)
        assert b.answer is None
        b.advance("60s")
        assert b.answer is not None


def test_pause_after_decides_first_what_is_due(b):
    b.put(schedule=Every("60s"), pause_after=1, retry=1, overlap="allow")
    b.advance("60s")
    held = b.lease()
    b.work(held, 55)
    b.now_us += 5_000_000  # the clocks move on; no turn before the report
    b._mono_us += 5_000_000
    b.finish(held, FAILED)
    assert b.client.get("j").state == "paused"
    assert [r.scheduled_at for r in b.runs("j", skipped=True)] == [at("2026-03-02T00:01"), at("2026-03-02T00:02")]


def test_a_trigger_under_a_manual_schedule_waits_for_nothing(b):
    b.put(schedule=Manual())
    b.client.trigger("j")
    assert b.states() == ["queued"]
