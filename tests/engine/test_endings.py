"""How attempts end: RetryAfter, Snooze, Cancel, rules by error; played by the test as a worker, and raised by tasks of a simulator."""

from __future__ import annotations

from datetime import timedelta

import msgpack
import numpy as np
import pytest

from tests.rigs.attempts import end, same_after_restart
from tests.rigs.engine import CALL, FAILED, OK
from wheelsched import At, Cancel, Every, Retry, RetryAfter, RunFailed, RunTimeout, Snooze, task
from wheelsched.client.verbs import unfinished
from wheelsched.engine.retries import rule_for
from wheelsched.engine.turn import WorkerGone
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import US, Outcome
from wheelsched.simulator.simulator import Simulator

CANCELLED, SNOOZED = Outcome.CANCELLED, Outcome.SNOOZED


# On the wire


def test_a_snooze_spends_no_attempt(b):
    run = b.client.enqueue(CALL, retry=Retry(2, 0))
    for n in range(1, 4):
        lease = b.lease()
        assert [x[2] for x in lease] == [1], "always the first attempt"
        assert end(b, lease, SNOOZED, {"snooze_us": 60_000_000, "reason": f"busy {n}"}) == [1]
        assert end(b, lease, SNOOZED, {"snooze_us": 1, "reason": "again"}) == [1], "a repeat is answered as the first was"
        run.refresh()
        assert (run.state, run.attempt, run.snoozed, run.reason) == ("retry_wait", 0, n, f"busy {n}")
        assert run.next_at == b.now + timedelta(seconds=60), "just then"
        assert [(a.attempt, a.outcome, a.reason) for a in run.attempts] == [(1, "snoozed", f"busy {i}") for i in range(1, n + 1)]
        b.advance(59)
        assert b.lease() == []
        b.crash()
        b.advance(1)
    same_after_restart(b)
    assert b.finish(b.lease(), FAILED) == [1]
    b.advance(1)
    assert b.finish(b.lease(), FAILED) == [1]
    run.refresh()
    assert (run.state, run.attempt, run.snoozed) == ("dead", 2, 3)
    assert [(a.attempt, a.outcome) for a in run.attempts] == [(1, "snoozed")] * 3 + [(1, "failed"), (2, "failed")]
    b.advance(120)  # to history
    assert [(a.attempt, a.outcome) for a in b.client.run(run.id).attempts][2:] == [(1, "snoozed"), (1, "failed"), (2, "failed")]
    told = [(e.kind, e.attempt) for e in b.client.events("oldest", timeout=0, kinds=["run.*"]) if e.kind not in ("run.created", "run.queued")]
    assert told == [("run.leased", 1), ("run.snoozed", 1)] * 3 + [("run.leased", 1), ("run.failed", 1), ("run.leased", 2), ("run.dead", 2)]
    assert b.client.run(run.id).snoozed == 3


def test_snoozes_are_counted_for_ever_and_the_latest_kept(b):
    run = b.client.enqueue(CALL)
    for n in range(25):
        assert end(b, b.lease(), SNOOZED, {"snooze_us": 0, "reason": str(n)}) == [1]
        b.advance(0.05)
        assert b.lease() == [], "100 ms at least"
        b.advance(0.05)
    run.refresh()
    assert (run.snoozed, [a.reason for a in run.attempts]) == (25, [str(n) for n in range(5, 25)])
    same_after_restart(b)


def test_a_snoozed_run_was_started(b):
    """Neither late nor expired, however long it waits; and it blocks the next occurrence as an active run does."""
    b.put(schedule=Every("60s"), late_after="5s", expires_after="30s")
    b.advance(60)
    end(b, b.lease(), SNOOZED, {"snooze_us": 90_000_000})
    b.advance(100)
    first, *_ = b.runs("j", skipped=True)
    assert (first.state, first.late, first.attempt) == ("queued", False, 0)
    assert [r.state for r in b.runs("j")] == ["queued"]
    lease = b.lease()
    b.call(50, ("finish", {"id": lease[0][0], "token": np.array([lease[0][1]], "<i8").tobytes(), "outcome": bytes([Outcome.NOT_STARTED]),
                           "started_us": bytes(8), "ended_us": bytes(8), "result": []}))
    b.advance(100)
    assert b.runs("j")[0].refresh().state == "queued", "given back after a snooze: still it was started once"


def test_a_snooze_of_a_cancelled_or_deleted_run_ends_it(b):
    run = b.client.enqueue(CALL)
    lease = b.lease()
    run = b.client.cancel(run.id)
    assert end(b, lease, SNOOZED, {"snooze_us": 1}) == [1]
    assert run.refresh().state == "cancelled"
    b.put("k", At(b.now + timedelta(seconds=1)))
    b.advance(1)
    lease = b.lease()
    b.client.delete("k")
    end(b, lease, SNOOZED, {"snooze_us": 1})
    assert b.states("k") == ["cancelled"]


def test_retry_after_stands_above_backoff_and_cap(b):
    run = b.client.enqueue(CALL, retry=Retry(2, "1s", cap="2s"))
    end(b, b.lease(), FAILED, {"type": "wheelsched.RetryAfter", "message": "429", "retry_us": 3_600_000_000})
    run.refresh()
    assert timedelta(hours=1) <= run.next_at - b.now <= timedelta(hours=1.1)
    assert (run.attempt, run.state, run.error.message) == (1, "retry_wait", "429")
    b.advance(3_599)
    b.crash()
    b.advance(0)
    assert b.lease() == []
    b.advance(361)
    end(b, b.lease(), FAILED, {"type": "wheelsched.RetryAfter", "message": "429", "retry_us": 0})
    assert run.refresh().state == "dead", "an attempt was spent each time"


def test_a_worker_may_end_a_run(b):
    run = b.client.enqueue(CALL, retry=5)
    end(b, b.lease(), CANCELLED, {"reason": "the customer is gone"})
    run.refresh()
    assert (run.state, run.reason, run.error) == ("cancelled", "the customer is gone", None)
    assert list(b.client.dead()) == []
    with pytest.raises(RunFailed, match="is cancelled: the customer is gone"):
        run.result()


@pytest.mark.parametrize(("outcome", "result", "said"), [
    (SNOOZED, {}, "snooze_us"), (SNOOZED, {"snooze_us": -1}, "snooze_us"), (SNOOZED, {"snooze_us": 2**60}, "snooze_us"),
    (SNOOZED, {"value": b"\xc0"}, "snooze_us"), (FAILED, {"retry_us": 1.5}, "retry_us"), (FAILED, {"retry_us": True}, "retry_us"),
    (CANCELLED, {"reason": 5}, "reason"), (CANCELLED, {"reason": "x" * 1_001}, "reason"), (FAILED, {"bases": "A"}, "bases"),
    (FAILED, {"bases": ["A"] * 11}, "bases"), (OK, {"cpu_us": "1"}, "cpu_us"), (9, {}, "1 to 8"),
])
def test_what_a_worker_can_not_say(b, outcome, result, said):
    b.client.enqueue(CALL)
    with pytest.raises(InvalidArgumentError, match=said):
        end(b, b.lease(), outcome, result)


# Rules by error


@pytest.mark.parametrize(("kind", "bases", "rule"), [
    ("requests.exceptions.Timeout", [], "requests.Timeout"),
    ("other.Timeout", [], "Timeout"),
    ("exceptions.requests.Timeout", [], "requests.Timeout"),
    ("requests.exceptions.ReadTimeout", ["requests.exceptions.Timeout", "OSError"], "requests.Timeout"),
    ("ConnectionResetError", ["ConnectionError", "OSError"], None),
    ("FileNotFoundError", ["OSError"], "OSError"),
    ("ValueError", [], "house"),
    ("a.b.Fatal", [], None), ("b.Fatal", [], "b.Fatal"),
    ("", [], "house"),
])
def test_the_nearest_rule_counts(kind, bases, rule):
    names = ("requests.Timeout", "Timeout", "OSError", "b.Fatal")
    retry = {"attempts": "house", "not_on": ["ConnectionError", "a.b.Fatal", "Fatal"], "errors": {n: {"attempts": n} for n in names}}
    found = rule_for(retry, {"type": kind, "bases": bases})
    assert (found and found["attempts"]) == rule


def test_each_error_has_its_attempts_and_waits(b):
    retry = Retry(3, "10s", errors={"app.Busy": Retry(4, "1h"), "ValueError": 1})
    run = b.client.enqueue(CALL, retry=retry)
    assert b.client.get("~t").spec["retry"]["errors"]["ValueError"]["attempts"] == 1
    assert b.finish(b.lease(), FAILED, error="app.sub.Busy") == [1]
    assert timedelta(hours=1) <= run.refresh().next_at - b.now <= timedelta(hours=1.5)
    b.advance(5_401)
    b.finish(b.lease(), FAILED, error="Other")
    assert timedelta(seconds=20) <= run.refresh().next_at - b.now <= timedelta(seconds=30), "the second wait of its own backoff"
    b.advance(31)
    b.finish(b.lease(), FAILED, error="app.Busy")
    assert run.refresh().state == "retry_wait", "of four attempts, three are spent"
    b.advance(4 * 3_600 * 3 // 2)
    b.finish(b.lease(), FAILED, error="Other")
    assert (run.refresh().state, run.attempt) == ("dead", 4), "the policy itself allows three"
    b.client.redrive(ids=[run.id])
    for _ in range(3):
        b.finish(b.lease(), FAILED, error="app.Busy")
        assert run.refresh().state == "retry_wait", "all anew after a redrive"
        b.advance(9 * 3_600)
    b.finish(b.lease(), FAILED, error="ValueError")
    assert (run.refresh().state, run.attempt) == ("dead", 8)


def test_losses_have_rules_too(b):
    run = b.client.enqueue(CALL, retry=Retry(5, errors={"WorkerLost": 1}))
    b.lease()
    b.advance(11)
    assert (run.refresh().state, run.error.type) == ("dead", "wheelsched.WorkerLost")


def test_a_process_s_end_has_a_text_for_each_of_its_runs(b):
    """One that timed out, an innocent one beside it, two of a batch handler, one that was not entered; and rules by their types."""
    rules = Retry(5, errors={"wheelsched.TimedOut": 1, "wheelsched.WorkerLost": 2})
    runs = [b.client.enqueue(CALL, retry=rules) for _ in range(5)]
    tokens = [lease[1] for lease in b.lease()]
    begun = b.now_us
    b.advance(3)
    late = {"type": "wheelsched.TimedOut", "message": "ran longer than its timeout of 1s and did not end when told to (worker 3 was ended by SIGTERM)"}
    lost = {"type": "wheelsched.WorkerLost", "message": "was in a process that was ended because of another run"}
    b._step([WorkerGone(
        b.engine.sessions[50].worker, tokens[3], Outcome.TIMED_OUT, "worker 3 was ended", outcomes={
            tokens[0]: Outcome.TIMED_OUT, tokens[1]: Outcome.INTERRUPTED, tokens[3]: Outcome.TIMED_OUT,
        }, calls=[(tokens[2], tokens[3])], errors={tokens[0]: late, tokens[1]: lost, tokens[3]: late},
        begun={tokens[0]: begun, tokens[1]: begun + US, tokens[3]: begun + 2 * US},
    )])
    assert [run.refresh().state for run in runs] == ["dead", "retry_wait", *["queued"] * 3], "the batch handler's spent no attempt"
    told = [run.attempts[0] for run in runs[:4]]
    assert [a.outcome for a in told] == ["timed_out", "interrupted", "timed_out", "timed_out"]
    assert [(a.error.type, a.error.message) for a in told] == [(e["type"], e["message"]) for e in (late, lost, late, late)]
    assert [int(a.started_at.timestamp() * US) - begun for a in told] == [0, US, 2 * US, 2 * US]
    assert all(a.ended_at is not None for a in told)


def test_definitions_without_rules_are_stored_as_ever(b):
    assert "errors" not in b.put("a", retry=Retry(5)).spec["retry"]
    assert b.put("a", retry=Retry(5, errors={})).result == "unchanged"
    one = b.put("a", retry=Retry(5, errors={"B": 1, "A": Retry(2)}))
    assert (one.result, list(one.spec["retry"]["errors"])) == ("updated", ["A", "B"])
    assert b.put("a", retry=Retry(5, errors={"A": Retry(2), "B": 1})).result == "unchanged"


@pytest.mark.parametrize("errors", [
    {"A": "x"}, {5: 1}, {"A": 0}, {"A": Retry(2, not_on=("B",))}, {"A": Retry(2, errors={"B": 1})}, [("A", 1)], {"": 1},
    {f"E{i}": 1 for i in range(101)}, {"A": True},
])
def test_rules_that_can_not_be(b, errors):
    with pytest.raises(InvalidArgumentError, match=r"retry (errors|attempts)"):
        b.put("a", retry=Retry(5, errors=errors))


# Raised by tasks


class Odd(ConnectionError):
    """With a base class that a rule names."""


@task("endings.say")
def say(what):
    made = {"after": RetryAfter("5m", "429"), "snooze": Snooze(timedelta(minutes=5), "not yet"), "cancel": Cancel("enough"), "odd": Odd("x")}
    raise made[what]


@task("endings.batch", batch=True)
def batch(runs):
    made = {"after": RetryAfter("5m"), "snooze": Snooze(300), "cancel": Cancel(), "fail": ValueError("bad")}
    return [made.get(r.args[0], 7) for r in runs]


@pytest.mark.parametrize(("what", "state", "outcome", "attempt"), [
    ("after", "retry_wait", "failed", 1), ("snooze", "retry_wait", "snoozed", 0), ("cancel", "cancelled", "cancelled", 1),
])
def test_the_simulator_knows_them(what, state, outcome, attempt):
    with Simulator(start="2026-03-02T00:00:00Z", tasks=[say, batch]) as sim:
        for made in (say, batch):
            run = sim.client.enqueue(made.call(what))
            sim.advance(0)
            run.refresh()
            assert (run.state, run.attempt, [a.outcome for a in run.attempts]) == (state, attempt, [outcome])
            if what == "after":
                assert run.error.type == "wheelsched.RetryAfter"
                assert timedelta(minutes=5) <= run.next_at - sim.now <= timedelta(minutes=5.5)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(("error", "said"), [(Mute(), "<no text: RuntimeError in __str__>"), (ValueError("\udc80"), "\\udc80")])
def test_the_simulator_tells_errors_as_a_worker_does(error, said):
    @task("odd")
    def odd():
        raise error

    with Simulator(tasks=[odd]) as sim:
        run = sim.client.enqueue(odd.call(), retry=1)
        sim.advance(1)
        assert (run.refresh().state, run.error.message) == ("dead", said)


def test_a_timeout_has_a_rule_in_the_simulator_too():
    @task("endings.slow", timeout="1s", retry=Retry(5, errors={"wheelsched.TimedOut": 1}))
    def slow():
        sim.advance(seconds=2)

    with Simulator(start="2026-03-02T00:00:00Z", tasks=[slow]) as sim:
        run = sim.client.enqueue(slow.call())
        sim.advance(0)
        assert (run.refresh().state, run.attempts[0].outcome) == ("dead", "timed_out")


def test_rules_know_base_classes():
    with Simulator(start="2026-03-02T00:00:00Z", tasks=[say]) as sim:
        run = sim.client.enqueue(say.call("odd"), retry=Retry(5, errors={"OSError": 1}))
        sim.advance(0)
        assert run.refresh().state == "dead"
        assert "bases" not in run._raw["result"], "it is for the rules alone"
        run = sim.client.enqueue(say.call("odd"), retry=Retry(5, not_on=("ConnectionError",)))
        sim.advance(0)
        assert run.refresh().state == "dead"


def test_a_wait_for_a_snoozed_run_says_so():
    with Simulator(start="2026-03-02T00:00:00Z", tasks=[say]) as sim:
        run = sim.client.enqueue(say.call("snooze"))
        with pytest.raises(RunTimeout, match=r"is retry_wait and nothing more happens in time; it is tried again at 2026-03-02T00:05:00.0*Z: not yet$"):
            run.result("1s")
    assert str(unfinished(run, "after 1 s")).endswith("is retry_wait after 1 s; it is tried again at 2026-03-02T00:05:00.000000Z: not yet")


@pytest.mark.parametrize("make", [lambda: Snooze("-1s"), lambda: Snooze("367d"), lambda: RetryAfter(None), lambda: RetryAfter("soon")])
def test_delays_that_can_not_be(make):
    with pytest.raises(InvalidArgumentError, match="delay"):
        make()


def test_reasons_are_cut_and_can_be_sent():
    assert len(Snooze(1, "x" * 5_000).reason) == 1_000
    assert msgpack.packb(Cancel("\ud800").reason)
    assert str(RetryAfter(1, "why")) == "why"


@pytest.mark.parametrize("ahead_s", [-86_400, -40, -3, 0, 3, 40, 86_400])
def test_s15_a_worker_with_another_clock_tells_how_long_a_run_took(b, ahead_s):
    run = b.client.enqueue(CALL)
    b.advance("2s")
    (lease,) = b.lease()
    started = b.now_us
    b.advance("6s")
    times = {name: np.array([at + ahead_s * US], "<i8").tobytes() for name, at in (("started_us", started), ("ended_us", b.now_us))}
    args = {"id": lease[0], "token": np.array([lease[1]], "<i8").tobytes(), "outcome": bytes([OK]), "result": [], **times}
    assert list(b.call(50, ("finish", args))["verdict"]) == [1]
    (attempt,) = run.refresh().attempts
    assert attempt.ended_at - attempt.started_at == timedelta(seconds=6)
    assert attempt.ended_at == b.now
    same_after_restart(b)


def test_s15_no_run_took_longer_than_it_was_there(b):
    run = b.client.enqueue(CALL)
    b.advance("2s")
    (lease,) = b.lease()
    args = {"id": lease[0], "token": np.array([lease[1]], "<i8").tobytes(), "outcome": bytes([OK]), "result": [],
            "started_us": np.array([b.now_us - 3_600 * US], "<i8").tobytes(), "ended_us": np.array([b.now_us + 3_600 * US], "<i8").tobytes()}
    b.call(50, ("finish", args))
    (attempt,) = run.refresh().attempts
    assert attempt.ended_at - attempt.started_at == timedelta(seconds=2)
    assert attempt.ended_at == b.now
