"""Overlap policies, jitter, delays after completion and pausing after failures, on the real engine and a virtual clock."""

from __future__ import annotations

import pytest

from tests.rigs.engine import FAILED, OK, at
from wheelsched import Catchup, Cron, Every, Overlap, Retry


def shown(b, job="j"):
    """(minute of the nominal time, state) of each run and ledger row."""
    return [(r.scheduled_at.hour * 60 + r.scheduled_at.minute, r.state) for r in b.runs(job, skipped=True)]


def test_buffer_latest_keeps_the_newest_one_waiting(b):
    b.put(overlap="buffer_latest")
    b.advance("60s")
    held = b.lease()
    b.work(held, 240)
    runs = b.runs("j", skipped=True)
    assert [(r.state, r.disposition) for r in runs] == [
        ("leased", "fired"), ("skipped", "coalesced"), ("skipped", "coalesced"), ("skipped", "coalesced"), ("scheduled", "fired"),
    ]
    assert runs[-1].missed == 3
    assert b.finish(held) == [1]
    (_, _, _), = held2 = b.lease()
    assert [r.state for r in b.runs("j")] == ["succeeded", "leased"]
    assert b.finish(held2) == [1]


@pytest.mark.parametrize("policy", ["cancel_other", "kill_other"])
def test_a_newer_occurrence_ends_the_active_run(b, policy):
    b.put(overlap=policy)
    b.advance("60s")
    held = b.lease()
    assert b.work(held, 60)["cancel"] == [0]
    assert shown(b) == [(1, "leased"), (2, "scheduled")]
    b.finish(held, FAILED)
    assert shown(b) == [(1, "cancelled"), (2, "queued")]
    b.advance("60s")  # one that no worker has yet is cancelled at once
    assert shown(b) == [(1, "cancelled"), (2, "cancelled"), (3, "queued")]


def test_kill_other_asks_for_a_kill_at_once(b):
    cancels = []
    for policy in ("cancel_other", "kill_other"):
        b.put(policy, overlap=policy)
    b.advance("60s")
    held = b.lease()
    step = b.engine.step

    def watched(*args):
        effects = step(*args)
        cancels.extend(effects.cancels)
        return effects

    b.engine.step = watched
    b.work(held, 60)
    assert sorted(at_once for _, _, at_once in cancels) == [False, True]


def test_an_overlap_names_the_run_in_the_way_in_one_row(b):
    b.put(schedule=Every("1s"))
    b.advance("1s")
    (run_id, _, _), = held = b.lease()
    b.work(held, 10)
    rows = [r for r in b.runs("j", skipped=True) if r.state == "skipped"]
    assert len(rows) == 1
    assert (rows[0].count, rows[0].blocking, rows[0].reason, rows[0].token, rows[0].started_at) == (10, run_id.hex(), "overlap", None, None)
    b.crash()
    b.hello()
    b.work(held, 5)
    rows = [r for r in b.runs("j", skipped=True) if r.state == "skipped"]
    assert sum(r.count for r in rows) == 15


def test_allow_with_a_limit_starts_what_waits_as_far_as_the_limit_goes(b):
    b.put(overlap=Overlap("allow", 2), catchup=Catchup("all", max=5))
    b.advance("60s")
    b.crash(down="5m")
    b.hello()
    states = [r.state for r in b.runs("j")]
    assert states.count("queued") == 2
    b.finish(b.lease())
    b.advance(0)
    assert [r.state for r in b.runs("j")].count("queued") == 2


# Jitter


def test_jitter_is_stable_and_never_past_the_next_nominal_time(b):
    for i in range(200):
        b.put(f"us/{i}", jitter="5m", overlap="allow")
        b.put(f"share/{i}", jitter="50%", overlap="allow")
    armed = {}
    for _ in range(5):
        b.advance("60s")
        for run in b.client.runs():
            if run.next_at is not None:
                armed[run.id] = (run.next_at - run.scheduled_at).total_seconds()
                assert 0 < armed[run.id] < (60 if run.job.startswith("us") else 30.1)
    assert len({round(x, 3) for x in armed.values()}) > 1_000
    b.crash()
    for run in b.client.runs():
        if run.next_at is not None:
            assert (run.next_at - run.scheduled_at).total_seconds() == armed[run.id]


def test_a_jittered_run_starts_at_its_instant_and_keeps_its_nominal_time(b):
    b.put(schedule=Cron("0 * * * *"), jitter="10m")
    b.advance(to="2026-03-02T01:00:00Z")
    (run,) = b.runs("j")
    assert run.state == "scheduled"
    assert run.scheduled_at == at("2026-03-02T01:00")
    b.advance(to=run.next_at)
    (after,) = b.runs("j")
    assert (after.state, after.id, after.queued_at) == ("queued", run.id, run.next_at)


def test_a_late_occurrence_is_not_put_off_again(b):
    b.put(schedule=Cron("0 * * * *"), jitter="10m")
    b.crash(down="70m")
    assert [r.state for r in b.runs("j")] == ["queued"]


# After completion


def test_the_delay_counts_from_the_end_of_the_run(b):
    b.put(schedule=Every("60s", after_completion=True))
    assert b.client.next("j", 5) == [at("2026-03-02T00:01")]
    b.advance("60s")
    held = b.lease()
    b.work(held, 540)
    assert b.client.next("j", 5) == []
    b.finish(held)
    assert b.client.next("j", 5) == [at("2026-03-02T00:11")]
    b.put(schedule=Every("60s", after_completion=True))
    assert b.client.next("j", 5) == [at("2026-03-02T00:11")], "an unchanged put changes nothing"
    b.crash(down="30m")
    assert [r.scheduled_at.minute for r in b.runs("j")] == [1, 11]
    assert b.client.get("j").state == "active"


def test_a_delay_after_completion_survives_pause_trigger_and_a_dead_run(b):
    b.put(schedule=Every("60s", after_completion=True), retry=Retry(attempts=1))
    b.client.pause("j")
    b.advance("5m")
    b.client.resume("j")
    assert b.client.next("j") == [at("2026-03-02T00:06")]
    run = b.client.trigger("j")
    held = b.lease()
    b.work(held, 90)  # due at 00:06, and the triggered run is in the way
    b.finish(held)
    assert b.client.run(run.id).state == "succeeded"
    assert b.client.next("j") == [b.now.replace(microsecond=0) + (at("2026-03-02T00:01") - at("2026-03-02T00:00"))]
    b.advance("60s")
    b.finish(b.lease(), FAILED)
    assert len(b.client.next("j")) == 1


def test_after_completion_ends_with_max_runs(b):
    b.put(schedule=Every("60s", after_completion=True), max_runs=2)
    for _ in range(2):
        b.advance("60s")
        b.finish(b.lease())
    b.advance("5m")
    assert b.client.get("j").state == "finished"
    assert len(b.runs("j")) == 2


# pause_after


def test_a_job_that_fails_again_and_again_is_paused(b):
    b.put(pause_after=3, retry=Retry(attempts=1))
    for outcome in (FAILED, FAILED, OK, FAILED, FAILED, FAILED):
        assert b.client.get("j").state == "active"
        b.advance("60s")
        b.finish(b.lease(), outcome)
    job = b.client.get("j")
    assert job.state == "paused"
    assert "3 dead runs" in job.note
    b.crash()
    b.client.resume("j")
    b.hello()
    b.advance("60s")
    b.finish(b.lease(), FAILED)
    assert b.client.get("j").state == "active", "a resume counts anew"


# Waiting runs and new definitions


def test_a_changed_schedule_replaces_what_only_waits(b):
    b.put(schedule=Cron("0 * * * *"), jitter="30m")
    b.advance(to="2026-03-02T01:00:00Z")
    assert shown(b) == [(60, "scheduled")]
    b.put(schedule=Cron("0 * * * *"), jitter="30m", timeout="5s")
    assert shown(b) == [(60, "scheduled")], "other policies leave it alone"
    b.put(schedule=Cron("30 * * * *"))
    assert [(r.state, r.disposition) for r in b.runs("j", skipped=True)] == [("skipped", "superseded")]
    b.advance(to="2026-03-02T03:00:00Z")
    assert [r.scheduled_at.minute for r in b.runs("j")][:1] == [30]


def test_catch_up_runs_stand_behind_the_fresh_ones(b):
    for i in range(50):
        b.put(f"old/{i}", overlap="allow", catchup=Catchup("all"))
    b.crash(down="10m30s")
    b.hello()
    b.put("fresh", Every("1s"))
    b.advance("1s")
    first = b.lease(n=1)
    name = b.client.run(first[0][0].hex()).job
    assert name == "fresh"


def test_a_hundred_million_missed_occurrences_are_one_range(b):
    b.put(schedule=Every("100ms"), catchup="latest")
    b.crash(down=f"{116 * 86_400}s")
    rows = b.runs("j", skipped=True)
    assert [r.state for r in rows].count("queued") == 1
    missed = next(r for r in rows if r.state == "queued").missed
    assert missed >= 10**8
    assert sum(r.count for r in rows if r.disposition == "coalesced") == missed
    b.advance("1s")
    assert b.client.get("j").next_at > b.now
