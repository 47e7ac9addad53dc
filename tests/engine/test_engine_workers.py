"""Leases, completions, retries, cancels and losses: workers played by the test, in the wire's format."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK, Bench
from wheelsched import At, Call, Every, Manual, Retry
from wheelsched.model.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from wheelsched.model.nouns import DURATION_MAX_US, NEVER, US
from wheelsched.protocol.frames import decode_payload


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


# leases and completions


def test_lease_finish_and_repeat(b):
    b.hello()
    runs = [b.client.enqueue(CALL) for _ in range(3)]
    leases = b.lease(n=2)
    assert [x[0].hex() for x in leases] == [r.id for r in runs[:2]]
    assert leases[1][1] == leases[0][1] + 1
    assert runs[0].refresh().attempt == 1
    assert b.finish(leases) == [1, 1]
    assert b.finish(leases) == [1, 1], "the same again is answered as the first was"
    assert b.finish(leases, FAILED) == [2, 2], "another outcome is late"
    assert b.finish([(leases[0][0], leases[1][1], 1)]) == [2], "a token goes with its run"
    assert b.finish([(b"?" * 16, leases[1][1], 1)]) == [2]
    assert [r.refresh().state for r in runs] == ["succeeded", "succeeded", "queued"]


def test_a_lease_waits_for_work(b):
    b.hello()
    with pytest.raises(DeadlineExceededError):
        b.lease(wait_us=NEVER)
    b.client.enqueue(CALL)
    assert b.runs("~t*")[0].state == "leased"


def test_order_priority_then_fifo(b):
    low, mid, high = (b.client.enqueue(CALL, priority=p) for p in (1, 5, 9))
    mid_2 = b.client.enqueue(CALL, priority=5)
    b.hello()
    assert [x[0].hex() for x in b.lease()] == [high.id, mid.id, mid_2.id, low.id]


def test_queues_and_unknown_tasks(b):
    b.client.enqueue(Call("nobody"))
    b.client.enqueue(CALL, queue="q")
    b.hello()
    assert b.lease(queues=["other"]) == []
    assert b.client.stats()["unserved_tasks"] == {"nobody": 1}
    assert len(b.lease(queues=["q"])) == 1
    assert b.lease() == []


def test_hand_back_costs_no_attempt_and_keeps_the_place(b):
    b.hello()
    first, second = b.client.enqueue(CALL), b.client.enqueue(CALL)
    leases = b.lease(n=1)
    assert b.finish(leases, NOT_STARTED) == [1]
    assert b.finish(leases, NOT_STARTED) == [1]
    assert first.refresh().attempt == 0
    again = b.lease()
    assert [x[0].hex() for x in again] == [first.id, second.id]
    assert again[0][1] > leases[0][1]
    assert again[0][2] == 1
    assert b.finish(leases, OK) == [2]


def test_retry_backoff(b):
    b.hello()
    run = b.client.enqueue(CALL, retry=Retry(4, "10s", 2, "15s"))
    for n, (low, high) in enumerate([(10, 15), (15, 22.5), (15, 22.5)], 1):
        assert b.finish(b.lease(), FAILED) == [1]
        run.refresh()
        assert (run.state, run.attempt) == ("retry_wait", n)
        assert low <= (run.next_at - b.now).total_seconds() <= high
        b.advance(to=run.next_at - timedelta(milliseconds=2))
        assert b.lease() == []
        b.advance("3ms")
        assert run.refresh().state == "queued"
    b.finish(b.lease(), FAILED, error="app.Last")
    run.refresh()
    assert run.state == "dead"
    assert [a.outcome for a in run.attempts] == ["failed"] * 4
    assert all(x.token < y.token for x, y in pairwise(run.attempts))
    assert str(run.error) == "app.Last: m"


@pytest.mark.parametrize("restart", [False, True])
def test_a_long_backoff_is_not_cut(b, restart):
    run = b.client.enqueue(CALL, retry=Retry(2, "3d", 1, "10d"))
    b.hello()
    b.finish(b.lease(), FAILED)
    if restart:
        b.crash()
    b.advance("71h")
    assert run.refresh().state == "retry_wait"
    b.advance("38h")
    assert run.refresh().state == "queued"


def test_the_wall_clock_moves_no_retry(b):
    run = b.client.enqueue(CALL, retry=Retry(2, "100s"))
    b.hello()
    b.finish(b.lease(), FAILED)
    b.step_clock(3_600)
    b.advance("90s")
    assert run.refresh().state == "retry_wait"
    b.step_clock(-7_200)
    b.advance("70s")
    assert run.refresh().state == "queued"


def test_errors_that_are_never_retried(b):
    b.hello()
    for error, state in (("app.Fatal", "dead"), ("Fatal", "dead"), ("app.Other", "retry_wait")):
        run = b.client.enqueue(CALL, retry=Retry(3, not_on=("Fatal",)))
        b.finish(b.lease(), FAILED, error=error)
        assert run.refresh().state == state


def test_dead_redrive_discard(b):
    b.hello()
    runs = [b.client.enqueue(CALL, retry=1, namespace=n) for n in ("a", "a", "b", "default")]
    b.finish(b.lease(), FAILED)
    assert {r.id for r in b.client.dead()} == {r.id for r in runs}
    assert [r.id for r in b.client.dead("a/*")] == [r.id for r in runs[:2]]
    assert b.client.redrive("b/*") == 1
    assert b.client.redrive(ids=[runs[0].id]) == 1
    assert runs[0].refresh().state == "queued"
    with pytest.raises(FailedPreconditionError):
        b.client.redrive(ids=[runs[0].id])
    b.finish(b.lease(n=1), OK)
    assert b.client.discard("*") == 2
    assert list(b.client.dead()) == []
    assert runs[1].refresh().state == "dead"
    b.advance("2m")
    assert runs[1].refresh().state == "dead", "read back from history"
    again = next(r for r in (runs[0].refresh(), runs[2].refresh()) if r.state == "succeeded")
    assert [a.outcome for a in again.attempts] == ["failed", "succeeded"]


# cancel, delete, wait, drain


def test_cancel_in_each_state(b):
    b.hello()
    scheduled, waiting = b.client.enqueue(CALL, delay="1h"), b.client.enqueue(CALL)
    b.finish(b.lease(), FAILED)
    queued = b.client.enqueue(Call("nobody"))
    for run in (scheduled, waiting, queued):
        assert b.client.cancel(run.id).state == "cancelled"
        assert b.client.cancel(run.id).state == "cancelled"
    leased = b.client.enqueue(CALL)
    lease = b.lease()
    assert b.client.cancel(leased.id).state == "leased"
    assert b.heartbeat(lease) == {"cancel": [0], "stale": []}
    assert b.finish(lease, FAILED) == [1]
    assert leased.refresh().state == "cancelled"
    done = b.client.enqueue(CALL)
    b.client.cancel(done.id)
    assert done.refresh().state == "cancelled"
    won = b.client.enqueue(CALL)
    lease = b.lease()
    b.client.cancel(won.id)
    b.finish(lease, OK)
    with pytest.raises(FailedPreconditionError, match="succeeded"):
        b.client.cancel(won.id)
    b.advance("2h")
    assert b.lease() == []


def test_delete_cancels_what_waits(b):
    b.put(overlap="buffer_one")
    b.hello()
    b.advance("115s")
    lease = b.lease()
    b.advance("5s")
    assert b.states() == ["leased", "scheduled"]
    b.client.delete("j")
    assert b.finish(lease, OK) == [1]
    b.advance("5m")
    assert b.states() == ["succeeded", "cancelled"]


def test_each_wait_has_its_own_time(b):
    runs = [b.client.enqueue(CALL) for _ in range(2)]
    for conn, run, seconds in ((60, runs[0], 30), (61, runs[0], 5), (62, runs[1], 10), (63, runs[1], 1)):
        with pytest.raises(DeadlineExceededError):
            b.call(conn, ("wait", {"id": run.id, "timeout_us": seconds * US}))
    began, answered = b.now_us, {}
    step = b.engine.step

    def watched(now, items):
        effects = step(now, items)
        answered.update((conn, now.wall_us - began) for conn, _ in effects.replies)
        return effects

    b.engine.step = watched
    while b.next_event(began + 60 * US):
        pass
    assert answered == {63: US, 61: 5 * US, 62: 10 * US, 60: 30 * US}
    assert b.engine.waiters == {}


def test_wait_answers_at_the_end_or_in_time(b):
    b.hello()
    run = b.client.enqueue(CALL)
    with pytest.raises(DeadlineExceededError):
        b.call(60, ("wait", {"id": run.id, "timeout_us": 5 * US}))
    number = b._last_id
    b.advance("5s")
    assert b._answers[60, number].result["state"] == "queued"
    with pytest.raises(DeadlineExceededError):
        b.call(60, ("wait", {"id": run.id, "timeout_us": DURATION_MAX_US}))
    number = b._last_id
    lease = b.lease()
    inputs = b.engine.step
    answers = []
    b.engine.step = lambda now, items: answers.append(inputs(now, items)) or answers[-1]
    b.finish(lease)
    assert 60 in {conn for effects in answers for conn, _ in effects.replies}
    assert b.call(60, ("wait", {"id": run.id, "timeout_us": 0}))["state"] == "succeeded"
    assert number


def test_draining_grants_nothing(b):
    b.hello()
    b.client.enqueue(CALL)
    with pytest.raises(DeadlineExceededError):
        b.call(51, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": {}}), ("lease", {"credits": 1}))
    b.engine.draining = True
    assert b.call(50, ("lease", {"credits": 1})) == {"n": 0, "stop": True}
    assert b.runs("~t*")[0].state == "queued"


# external workers


def test_credits_0_withdraws_what_waits(b):
    for conn in (51, 52):
        with pytest.raises(DeadlineExceededError):
            b.call(conn, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": {"t": {}}}), ("lease", {"credits": 1}))
    told = []
    reply = b.engine.reply
    b.engine.reply = lambda conn, frame: (told.append(conn), reply(conn, frame))
    assert b.call(51, ("lease", {"credits": 0, "wait_us": 0})) == {"n": 0, "stop": False}
    assert told.count(51) == 2, "what waited is answered too"
    assert [s.conn for s in b.engine.seekers] == [52]


def test_lease_01(b):
    """A silent worker's lease runs out: the late report is refused, the store has two attempts of one run."""
    b.hello(50)
    b.hello(51)
    run = b.client.enqueue(CALL, retry=Retry(3, 0))
    old = b.lease(50)
    for _ in range(5):
        b.advance("2s")
        b.heartbeat([], conn=51)
    b.advance("1ms")
    assert run.refresh().attempts[0].outcome == "lost"
    new = b.lease(51)
    assert new[0][0] == old[0][0]
    assert new[0][1] > old[0][1]
    assert b.finish(old, conn=50) == [2], "it is refused, and not for want of a hello"
    assert b.heartbeat(old, conn=50) == {"cancel": [], "stale": [0]}
    assert b.finish(new, conn=51) == [1]
    assert [a.outcome for a in run.refresh().attempts] == ["lost", "succeeded"]


def test_a_lost_attempt_is_never_answered_as_accepted(b):
    b.hello(50)
    run = b.client.enqueue(CALL, retry=Retry(2, "1h"))
    lease = b.lease(50)
    b.advance("11s")
    assert run.refresh().state == "retry_wait"
    b.hello(52)
    assert b.finish(lease, conn=52) == [2]


def test_nothing_else_need_happen_for_a_lease_to_run_out(b):
    b.hello(50)
    run = b.client.enqueue(CALL, retry=1)
    b.lease(50)
    begun = b.now
    b.advance("1h")
    assert run.refresh().state == "dead"
    assert run.ended_at == begun + timedelta(seconds=10), "a timer of its own, not the next thing that happens by chance"


def test_after_a_stall_heartbeats_are_read_before_leases_are_judged(b):
    b.hello(50)
    run = b.client.enqueue(CALL)
    lease = b.lease(50)
    b._jump(b.now_us + 30 * US)  # the server itself stood still
    assert b.heartbeat(lease) == {"cancel": [], "stale": []}
    assert b.finish(lease) == [1]
    assert run.refresh().state == "succeeded"


def test_overlap_03(b):
    """The running state is read from the durable log: nothing is started while the worker still works, restart or not."""
    b.hello(50)
    b.put(schedule=Every("20s"))
    b.advance("20s")
    lease = b.lease(50)
    b.crash(down="5s")
    b.hello(70)  # the worker comes back and goes on with what it holds
    for _ in range(20):
        b.advance("3s")
        assert b.heartbeat(lease, conn=70) == {"cancel": [], "stale": []}
    assert b.lease(70) == []
    assert b.states() == ["leased"]
    assert b.finish(lease, conn=70) == [1]
    b.advance("20s")
    assert b.states() == ["succeeded", "queued"]


def test_what_a_worker_announces_is_the_default_of_bare_calls(b):
    b.hello(50, retry={"attempts": 7, "backoff_us": 1, "factor": 1.0, "cap_us": 1, "not_on": []}, queue="special")
    job = b.put(schedule=Manual())
    assert (job.spec["retry"]["attempts"], job.queue) == (7, "special")
    assert b.put(schedule=Manual(), queue="mine").queue == "mine"
    with pytest.raises(InvalidArgumentError):
        b.hello(51, queue=5)


def test_payloads_reach_the_worker(b):
    b.hello()
    b.client.enqueue(Call("t", 1, "x", k=[None, b"\0", 2.5]))
    b.put(schedule=At(b.now), call=Call("t", "job"))
    got = b.call(50, ("lease", {"credits": 9, "wait_us": 0}))
    ends = np.frombuffer(got["payload_end"], "<u4").tolist()
    payloads = [decode_payload(got["payload"][i:j]) for i, j in pairwise([0, *ends])]
    assert ([1, "x"], {"k": [None, b"\0", 2.5]}) in payloads
    assert (["job"], {}) in payloads
