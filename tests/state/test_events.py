"""Events: what each record tells, positions, rows that are used again, restarts, bounds."""

from __future__ import annotations

import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, Bench
from wheelsched import Enqueue, Every, FailedPreconditionError, InvalidArgumentError, Manual, Retry
from wheelsched.engine.housekeeping import FOLD_ROWS
from wheelsched.model.nouns import RETENTION_US, Outcome
from wheelsched.reads import events


@pytest.fixture
def bench():
    with Bench() as made:
        yield made


def told(bench, since="oldest", *args, **options):
    return list(bench.client.events(since, *args, timeout=0, **options))


def kinds(events):
    return [e.kind for e in events]


def test_the_life_of_a_run_is_told_in_order(bench):
    here = bench.client.event_position()
    bench.put("billing/charge", Manual(), retry=Retry(attempts=2, backoff="10s"))
    run = bench.client.trigger("billing/charge")
    first = bench.lease()
    bench.finish(first, FAILED, error="shop.NoMoney")
    bench.work([], 30)
    bench.finish(bench.lease())
    found = told(bench, here)
    of_run = [e for e in found if e.run_id == run.id]
    assert kinds(of_run) == ["run.created", "run.leased", "run.failed", "run.queued", "run.leased", "run.succeeded"]
    assert [e.attempt for e in of_run] == [None, 1, 1, None, 2, 2]
    assert [e.state for e in of_run] == ["queued", "leased", "retry_wait", "queued", "leased", "succeeded"]
    assert {(e.job, e.scheduled_at) for e in of_run} == {("billing/charge", run.scheduled_at)}
    failed = of_run[2]
    assert (failed.outcome, failed.error, failed.message) == ("failed", "shop.NoMoney", "m")
    assert failed.next_at is not None
    assert failed.next_at > failed.at
    assert of_run[1].token == first[0][1]
    assert kinds(e for e in found if e.run_id is None) == ["job.created", "worker.joined"]


def test_jobs_queues_calendars_and_holds_are_told(bench):
    ws = bench.client
    here = ws.event_position()
    bench.put("j", note="new")
    bench.put("j", Every("5m"))
    ws.pause("j", note="why")
    ws.resume("j")
    ws.delete("j")
    bench.put("j")
    ws.queue("mail", concurrency=2)
    ws.calendar("c", yearly=["12-25"])
    ws.hold("stop")
    ws.release()
    found = told(bench, here)
    assert kinds(found) == [
        "job.created", "job.updated", "job.paused", "job.resumed", "job.deleted", "job.created", "queue.changed", "calendar.changed", "held",
        "released",
    ]
    assert [(e.note, e.state) for e in found[:4]] == [("new", "active"), (None, "active"), ("why", "paused"), (None, "active")]
    assert (found[6].name, found[6].settings, found[7].name, found[8].note) == ("mail", {"concurrency": 2}, "c", "stop")


def test_skipped_occurrences_late_expired_and_cancelled_runs(bench):
    ws = bench.client
    here = ws.event_position()
    bench.put("skips", Every("10s"))
    bench.put("late", Every("1h"), late_after="5s", expires_after="20s")
    run = ws.trigger("late", key="k")
    ws.cancel(run.id)
    bench.advance("1h")
    bench.advance(30)
    found = told(bench, here)
    skips = [e for e in found if e.job == "skips"]
    assert kinds(skips)[:3] == ["job.created", "run.created", "run.skipped"]
    assert (skips[2].reason, skips[2].run_id, skips[2].disposition, skips[2].count) == ("overlap", None, "skipped", 1)
    late = [(e.kind, e.reason) for e in found if e.job == "late"]
    assert late == [
        ("job.created", None), ("run.created", "manual"), ("run.cancelled", None), ("run.created", None), ("run.late", None),
        ("run.cancelled", "expired"),
    ]


def test_a_stream_goes_on_from_any_position_and_misses_and_doubles_nothing(bench):
    for i in range(7):
        bench.put(f"n/{i}", Every("10s"), overlap="allow")
    bench.advance(30)
    bench.finish(bench.lease())
    everything = told(bench)
    assert len({e.position for e in everything}) == len(everything) > 50
    for i in range(0, len(everything), 5):
        assert told(bench, everything[i]) == everything[i + 1 :]
    assert told(bench, limit=3) == everything[:3]
    paged = []
    position = "oldest"
    while page := told(bench, position, limit=4):
        paged += page
        position = page[-1].position
    assert paged == everything


def test_filters(bench):
    bench.put("billing/a", Every("10s"))
    bench.put("b", Every("10s"))
    bench.advance(10)
    bench.finish(bench.lease())
    everything = told(bench)
    assert told(bench, match="billing/*") == [e for e in everything if e.job == "billing/a"]
    assert told(bench, match="b") == [e for e in everything if e.job == "b"]
    assert told(bench, kinds=["run.succeeded", "job.*"]) == [e for e in everything if e.kind == "run.succeeded" or e.kind.startswith("job.")]
    assert told(bench, match="b", kinds="run.created") == [e for e in everything if e.job == "b" and e.kind == "run.created"]
    with pytest.raises(InvalidArgumentError, match="fits none of"):
        told(bench, kinds=["run.eaten"])
    for since in ("x", "1.2", "0.1.0", "1.-1.0"):
        with pytest.raises(InvalidArgumentError, match="position"):
            told(bench, since)


def test_rows_that_others_have_now_are_told_as_what_they_were(bench):
    """Runs are folded and their rows used again; positions from before that tell the runs of then."""
    here = bench.client.event_position()
    wanted = []
    for i in range(3):
        for k in range(4):
            name = f"round{i}/{k}"
            bench.put(name, Manual(), retry=Retry(attempts=3, backoff="1s"))
            run = bench.client.trigger(name)
            wanted += [(name, run.id, kind) for kind in ("run.created", "run.leased", "run.failed", "run.queued", "run.leased", "run.succeeded")]
        bench.finish(bench.lease(), FAILED)
        bench.work([], 5)
        bench.finish(bench.lease())
        bench.advance("2m")  # folds
    assert bench.engine.state.meta.folded == 12
    found = told(bench, here, kinds=["run.*"])
    assert sorted((e.job, e.run_id, e.kind) for e in found) == sorted(wanted)
    assert {e.attempt for e in found if e.kind == "run.failed"} == {1}
    assert {e.attempt for e in found if e.kind == "run.succeeded"} == {2}
    bench.crash()
    assert told(bench, here, kinds=["run.*"]) == found


def test_a_job_s_row_that_another_has_now_keeps_its_name_in_the_past(bench):
    here = bench.client.event_position()
    bench.put("old", Every("1s"), overlap="allow")
    bench.advance(2)
    bench.finish(bench.lease())
    bench.client.delete("old")
    bench.advance("2m")
    bench.engine.retention_us = RETENTION_US
    bench.advance("32d")  # the tombstone goes, as on a server whose history is not kept whole
    bench.put("new", Every("1s"), overlap="allow")
    bench.advance(2)
    assert bench.engine.state.trail.any_forgotten
    found = told(bench, here, kinds=["run.created", "job.*"])
    assert [(e.kind, e.job) for e in found] == [
        ("job.created", "old"), ("run.created", "old"), ("run.created", "old"), ("job.deleted", "old"), ("job.created", "new"),
        ("run.created", "new"), ("run.created", "new"),
    ]
    assert [e.run_id for e in found if e.job == "old" and e.run_id] == [r.id for r in bench.client.runs("old")]


def test_a_restart_neither_loses_nor_doubles(bench):
    bench.put("j", Every("10s"), overlap="allow")
    bench.advance(25)
    leases = bench.lease()
    before = told(bench)
    bench.crash()
    bench.hello()
    bench.finish(leases)
    bench.advance(25)
    after = told(bench, before[-1])
    assert after[0].kind == "server.started"
    assert after[0].count == 2
    assert told(bench) == before + after
    assert {e.position.split(".")[0] for e in before + after} == {"1", "2"}


def test_a_lease_that_was_given_back_keeps_its_number(bench):
    bench.put("j", Manual(), retry=Retry(attempts=3, backoff="1s"))
    bench.client.trigger("j")
    bench.finish(bench.lease(), FAILED)
    bench.work([], 5)
    bench.finish(bench.lease(), NOT_STARTED)
    bench.finish(bench.lease(), FAILED)
    bench.work([], 5)
    bench.finish(bench.lease())
    found = told(bench, kinds=["run.leased", "run.failed", "run.succeeded", "run.queued"])
    assert [(e.kind, e.attempt) for e in found] == [
        ("run.leased", 1), ("run.failed", 1), ("run.queued", None), ("run.leased", 2), ("run.queued", None), ("run.leased", 2),
        ("run.failed", 2), ("run.queued", None), ("run.leased", 3), ("run.succeeded", 3),
    ]
    assert [e.reason for e in found if e.kind == "run.queued"] == [None, "given_back", None]


def test_a_lease_that_was_given_back_last_has_the_number_that_the_next_will_have(bench):
    bench.put("j", Manual(), retry=Retry(attempts=3, backoff="1s"))
    bench.client.trigger("j")
    bench.finish(bench.lease(), FAILED)
    bench.work([], 5)
    bench.finish(bench.lease(), NOT_STARTED)
    assert [e.attempt for e in told(bench, kinds=["run.leased"])] == [1, 2]


def test_a_snooze_is_told_and_spends_no_number(bench):
    bench.put("j", Manual(), retry=Retry(attempts=2, backoff="1s"))
    bench.client.trigger("j")
    for seconds in (5, 6):
        [(run, token, _)] = bench.lease()
        at = bench.now_us.to_bytes(8, "little")
        bench.call(50, ("finish", {
            "id": run, "token": token.to_bytes(8, "little"), "outcome": bytes([Outcome.SNOOZED]), "started_us": at, "ended_us": at,
            "result": [[0, {"snooze_us": seconds * 1_000_000, "reason": f"for {seconds}"}]],
        }))
        bench.work([], 10)
    bench.finish(bench.lease(), FAILED)
    bench.work([], 5)
    bench.finish(bench.lease())
    found = told(bench, kinds=["run.*"])
    assert [(e.kind.removeprefix("run."), e.attempt, e.reason) for e in found] == [
        ("created", None, "manual"), ("leased", 1, None), ("snoozed", 1, "for 5"), ("queued", None, None), ("leased", 1, None),
        ("snoozed", 1, "for 6"), ("queued", None, None), ("leased", 1, None), ("failed", 1, None), ("queued", None, None), ("leased", 2, None),
        ("succeeded", 2, None),
    ]


def test_a_refused_completion_is_told_with_its_token_and_attempt(bench):
    bench.put("j", Manual(), retry=Retry(attempts=3, backoff="1s"))
    run = bench.client.trigger("j")
    late = bench.lease()
    bench.advance(30)  # no heartbeat: the lease ends, and the run waits for its next attempt
    bench.lease()
    bench.finish(late)
    [event] = told(bench, kinds=["run.stale"])
    assert (event.run_id, event.token, event.attempt, event.outcome, event.state) == (run.id, late[0][1], 1, "succeeded", None)
    assert [e.attempt for e in told(bench, kinds=["run.leased"])] == [1, 2]
    assert event.worker is not None


def test_a_page_of_what_does_not_fit_ends_before_it_is_long(bench, monkeypatch):
    monkeypatch.setattr(events, "ROWS_MAX", 10)
    for i in range(8):
        bench.put(f"n/{i}", Every("10s"), overlap="allow")
    bench.put("wanted", Manual())
    bench.advance(60)
    pager = events.Pager(bench.engine.state, bench.journal.replay, lambda _: None)
    wanted = events.Wanted({"since": "oldest", "kinds": ["job.deleted"]})
    position = pager.begin(wanted, bench.journal.durable_seq)
    answer, after = pager.page(position, wanted)
    assert answer["n"] == 0
    assert position < after < (bench.journal.durable_seq, 0)
    assert [e.job for e in told(bench, match="wanted")] == ["wanted"]  # a reader is led on all the same


def test_what_is_not_kept_is_refused_with_the_oldest_position(bench):
    bench.put("j", Every("10s"), overlap="allow")
    bench.advance(25)
    old = told(bench)
    bench.engine.state.trail.cut(bench.engine.state.meta.seq - 2)
    with pytest.raises(FailedPreconditionError, match="not kept any more") as e:
        told(bench, old[0])
    oldest = e.value.detail["oldest"]
    assert told(bench, oldest) == told(bench, "oldest")
    with pytest.raises(FailedPreconditionError, match="another past"):
        told(bench, f"1.{bench.engine.state.meta.seq + 2}.0")
    with pytest.raises(FailedPreconditionError, match="another past"):
        told(bench, f"7.{bench.engine.state.meta.seq + 1}.0")


def test_a_position_beyond_what_a_backup_had_is_refused(bench):
    """The journal went back and on another way: record numbers are the same, what they tell isn't."""
    bench.put("j", Every("10s"), overlap="allow")
    bench.advance(10)
    seq = bench.engine.state.meta.seq
    bench.crash()
    start = f"1.{seq + 1}.0"
    assert told(bench, start)[0].kind == "server.started"
    with pytest.raises(FailedPreconditionError, match="another past"):
        told(bench, f"1.{seq + 2}.0")


def test_more_than_a_page_and_more_than_a_fold(bench):
    n = FOLD_ROWS + 1_500
    bench.put("many", Every("1s"), overlap="allow")
    bench.advance(2)
    here = bench.client.event_position()
    bench.client.enqueue_many([Enqueue(CALL, namespace="n")] * n)
    while leases := bench.lease(n=2_000):
        bench.finish(leases)
    bench.advance("3m")
    found = told(bench, here, match="n/*", kinds=["run.*"])
    ids = {kind: [e.run_id for e in found if e.kind == kind] for kind in ("run.created", "run.leased", "run.succeeded")}
    assert all(len(set(x)) == len(x) == n for x in ids.values())
    assert len({frozenset(x) for x in ids.values()}) == 1
