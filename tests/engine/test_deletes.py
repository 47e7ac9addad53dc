"""Deleting a job: nothing of it starts any more; what a worker has goes on, and that attempt is its last."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK, Bench
from wheelsched import At, Call, Cron, Every, Job, Manual, Overlap
from wheelsched.journal.recover import recover
from wheelsched.model.errors import DeadlineExceededError, NotFoundError
from wheelsched.model.nouns import US
from wheelsched.simulator.simulator import Simulator


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def shown(b, job="j"):
    return [(r.state, r.reason) for r in b.runs(job)]


def settled(b):
    """After a restart nothing starts either, and the journal says what the state is."""
    b.engine.state.check()
    b.journal.sync()
    assert recover(b.journal).digest() == b.engine.state.digest()
    b.crash(down="1m")
    b.hello()
    assert b.lease() == []


def test_s3_what_is_queued_never_starts():
    started = []
    with Simulator("2026-03-02T00:00:00Z", tasks={"ok": lambda: started.append(sim.now)}) as sim:
        ws = sim.client
        ws.put("j", Call("ok"), Cron("0 1 * * *"), queue="q")
        ws.queue_pause("q")
        sim.advance("90m")
        gone = ws.delete("j")
        assert (gone.state, gone.cancelled, gone.active) == ("deleted", 1, 0)
        ws.queue_resume("q")
        sim.advance("1d")
        assert started == []
        (run,) = sim.runs("j")
        assert (run.state, run.reason, run.attempt, run.final) == ("cancelled", "deleted", 0, True)
        assert ws.why("j", run.scheduled_at).text == f"j at 2026-03-02 01:00:00Z: run {run.id} (the job was deleted) is cancelled"


@pytest.mark.parametrize("how", ["queued", "buffered", "jittered", "moved", "backfill", "catch-up", "manual", "retry", "given back", "snoozed", "redriven"])
def test_s3_whatever_the_run_waits_for(b, how):
    b.put(schedule=Cron("0 * * * *"), overlap=Overlap("buffer_all", 9), jitter="30m" if how == "jittered" else None, catchup="all",
          retry=1 if how == "redriven" else 3)
    if how == "moved":
        b.client.move("j", b.now.replace(hour=1), b.now.replace(hour=5))
    elif how == "backfill":
        b.advance("61m")
        b.finish(b.lease())
        b.client.backfill("j", b.now - timedelta(hours=5), b.now)
    elif how == "catch-up":
        b.crash(down="3h")
    elif how == "manual":
        b.client.trigger("j")
    elif how != "backfill":
        b.advance("60m" if how == "jittered" else "121m" if how == "buffered" else "61m")
    if how in ("retry", "given back", "snoozed", "redriven"):
        b.finish(b.lease(), NOT_STARTED if how == "given back" else FAILED)
    if how == "redriven":
        b.client.redrive(match="*")
    waiting = [r for r in b.runs("j") if not r.final]
    assert waiting
    gone = b.client.delete("j")
    assert (gone.cancelled, gone.active) == (len(waiting), 0)
    assert {(r.state, r.reason) for r in b.runs("j") if r.id in {w.id for w in waiting}} == {("cancelled", "deleted")}
    b.advance("12h")
    settled(b)


def test_s3_what_a_worker_has_goes_on_and_is_told(b):
    b.put(schedule=Every("60m"), overlap="allow")
    b.hello()
    b.advance("121m")
    lease = b.lease(n=1)
    gone = b.client.delete("j")
    assert (gone.cancelled, gone.active) == (1, 1)
    assert b.heartbeat(lease)["cancel"] == [], "nobody asks the worker to end it"
    assert b.finish(lease, OK) == [1]
    assert sorted(shown(b)) == [("cancelled", "deleted"), ("succeeded", None)]
    settled(b)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("outcome", "attempt"), [(FAILED, 1), (NOT_STARTED, 0)])
def test_s3_the_attempt_that_a_worker_has_is_the_last(b, outcome, attempt, again):
    """Also when a job was put under that name meanwhile."""
    b.put(schedule=Every("60m"))
    b.hello()
    b.advance("61m")
    lease = b.lease()
    b.client.delete("j")
    if again:
        b.put(schedule=Manual())
        b.crash(down="1s")
        b.call(50, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": {"t": {}}}))
    assert b.finish(lease, outcome) == [1]
    (run,) = b.runs("j")
    assert (run.state, run.reason, run.attempt) == ("cancelled", "deleted", attempt)
    b.advance("1h")
    settled(b)


def test_s3_a_worker_that_dies_with_it_starts_nothing(b):
    b.put(schedule=Every("60m"))
    b.hello()
    b.advance("61m")
    assert b.lease()
    b.client.delete("j")
    b.advance("2m")  # its lease is over
    assert shown(b) == [("cancelled", "deleted")]
    settled(b)


def test_s3_it_leaves_nothing_to_the_next_job_of_its_name(b):
    b.put(schedule=Manual())
    b.hello()
    b.client.trigger("j")
    lease = b.lease()
    b.client.delete("j")
    b.put(schedule=Manual(), pause_after=1)
    b.finish(lease, FAILED)
    assert b.client.get("j").state == "active"
    b.client.trigger("j")
    b.hello()
    got = b.call(50, ("lease", {"queues": [], "credits": 1, "wait_us": 0}))
    assert (got["n"], got["last_result"], got["last_error"]) == (1, [], [])


def test_s3_who_waits_for_it_is_answered(b):
    b.put(schedule=Every("60m"))
    b.advance("61m")
    (run,) = b.runs("j")
    with pytest.raises(DeadlineExceededError):  # no answer yet
        b.call(60, ("wait", {"id": run.id, "timeout_us": 3_600 * US}))
    told, step = [], b.engine.step

    def watched(now, items):
        effects = step(now, items)
        told.extend(conn for conn, _ in effects.replies)
        return effects

    b.engine.step = watched
    b.client.delete("j")
    assert 60 in told


def test_s3_a_hook_is_no_business_of_a_delete(b):
    b.put("told", schedule=Manual())
    b.put(schedule=Every("60m"), on_failure="told", on_dead="told")
    b.advance("61m")
    b.client.delete("j")
    b.advance("1m")
    assert b.runs("told") == []


def test_s3_enqueued_runs_of_a_task(b):
    """Their job is only a name: it may be deleted, which ends what waits, and the next enqueue makes it anew."""
    kept = b.client.enqueue(CALL, key="k", unique=True)
    b.client.enqueue(CALL, delay="1h", concurrency_key="c")
    gone = b.client.delete("~t")
    assert (gone.cancelled, gone.active) == (2, 0)
    assert b.client.enqueue(CALL, key="k").existing, "the key is spent"
    fresh = b.client.enqueue(CALL, unique=True, retry=2)
    assert (fresh.existing, fresh.id != kept.id) == (False, True), "the identity is free"
    assert b.client.get("~t").state == "active"
    lease = b.lease()
    assert [x[0].hex() for x in lease] == [fresh.id]
    b.finish(lease, FAILED)
    assert fresh.refresh().state == "retry_wait", "it has all its attempts"


def test_s3_members_of_a_group_end_it(b):
    b.client.group([Call("t", i) for i in range(3)], then=Call("then"))
    b.hello(tasks=("t", "then"))
    lease = b.lease(n=1)
    assert b.client.delete("~t").cancelled == 2
    b.finish(lease)
    (behind,) = b.runs("~then")
    assert behind.state == "queued"
    cause = b.client.run(behind.id).cause
    assert (cause["succeeded"], cause["cancelled"]) == (1, 2)


def test_s3_prune_tells_and_cancels(b):
    ws = b.client
    ws.apply([Job("a/x", CALL, Every("60m")), Job("a/y", CALL, Every("60m")), Job("b", CALL, Every("60m"))])
    b.hello()
    b.advance("61m")
    (lease,) = b.lease(n=1)
    plan = ws.apply([], "a/*", dry_run=True)
    assert (plan.deleted, plan.cancelled, plan.going_on) == (("a/x", "a/y"), 1, 1)
    assert [r.state for r in b.runs("a/*")] == ["leased", "queued"]
    done = ws.apply([], "a/*")
    assert (done.deleted, done.cancelled, done.going_on) == (("a/x", "a/y"), 1, 1)
    assert done.to_dict()["cancelled"] == 1
    assert sorted(r.state for r in b.runs("a/*")) == ["cancelled", "leased"]
    assert [r.state for r in b.runs("b")] == ["queued"]
    b.finish([lease])
    assert [x[0].hex() for x in b.lease()] == [b.runs("b")[0].id]


def test_s3_a_one_time_job_that_is_finished_and_still_queued(b):
    b.put(schedule=At("2026-03-02T00:10:00Z"))
    b.advance("11m")
    assert b.client.get("j").state == "finished"
    assert b.client.delete("j").cancelled == 1
    settled(b)


def test_s3_put_and_pause_leave_what_is_queued(b):
    b.put(schedule=Every("60m"))
    b.advance("61m")
    b.client.pause("j")
    b.put(schedule=Every("90m"))
    assert b.states() == ["queued"]
    assert len(b.lease()) == 1


def test_s3_limits_are_given_back(b):
    b.client.queue("q", concurrency=1)
    b.put(schedule=Every("60m"), queue="q", concurrency=1)
    b.put("k", schedule=Every("60m"), queue="q", concurrency=1)
    b.hello()
    b.advance("61m")
    (lease,) = b.lease()
    b.client.delete("j")
    b.finish([lease], NOT_STARTED)
    assert [x[0].hex() for x in b.lease()] == [b.runs("k")[0].id]


def test_s3_a_deleted_job_is_not_there(b):
    b.put()
    b.client.delete("j")
    with pytest.raises(NotFoundError):
        b.client.delete("j")


def test_s11_a_dead_letter_of_a_deleted_job_is_sent_back_with_all_its_attempts(b):
    b.put(schedule=Every("10m"), retry=2)
    b.advance("11m")
    for _ in range(2):
        b.finish(b.lease(), FAILED)
        b.advance("1m")
    b.client.delete("j")
    b.client.redrive(match="*")
    for state in ("retry_wait", "dead"):
        b.finish(b.lease(), FAILED)
        assert b.states()[0] == state
        b.advance("1m")
    assert [r.job for r in b.client.dead()] == ["j"]
