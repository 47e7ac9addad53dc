"""last_result and last_error: what the attempts of a job leave for its next run."""

from __future__ import annotations

from datetime import timedelta

import msgpack
import numpy as np

from tests.rigs.engine import CALL, FAILED, OK
from wheelsched import Call, Every, Manual, Retry, current_run, task
from wheelsched.journal.recover import recover
from wheelsched.model.nouns import LAST_MAX, Outcome
from wheelsched.simulator.simulator import Simulator
from wheelsched.state.state import State


def end(b, leases, *outcomes):
    """Report each lease with (outcome, result map or None)."""
    at = np.full(len(leases), b.now_us, "<i8").tobytes()
    return list(b.call(50, ("finish", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(),
        "outcome": bytes(outcome for outcome, _ in outcomes), "started_us": at, "ended_us": at,
        "result": [[i, result] for i, (_, result) in enumerate(outcomes) if result is not None],
    }))["verdict"])


def gave(value):
    return OK, {"value": msgpack.packb(value)}


def failed(kind, message="m"):
    return FAILED, {"type": kind, "message": message, "traceback": "t"}


def handed(b, n=10):
    """[(lease, last_result, last_error)] of one lease request."""
    got = b.call(50, ("lease", {"queues": [], "credits": n, "wait_us": 0}))
    ids, tokens = got.get("id", b""), np.frombuffer(got.get("token", b""), "<i8").tolist()
    values, errors = (
        {i: msgpack.unpackb(data) for i, data in got.get(name, [])} for name in ("last_result", "last_error")
    )
    return [((ids[16 * i : 16 * i + 16], t), values.get(i), errors.get(i)) for i, t in enumerate(tokens)]


def next_run(b, name="j"):
    """Trigger the job; its lease and what came with it."""
    b.client.trigger(name)
    (one,) = handed(b)
    return one


def same_after_restart(b):
    live = b.engine.state
    assert recover(b.journal).digest() == live.digest()
    loaded = State.load(p for part in live.copy(64) for p in part)
    assert loaded.digest() == live.digest()
    assert loaded.lasts.of == live.lasts.of


def test_a_value_stays_until_the_next_success(b):
    b.put(schedule=Manual(), retry=Retry(2, 0))
    lease, *left = next_run(b)
    assert left == [None, None]
    end(b, [lease], gave({"page": 7}))
    lease, *left = next_run(b)
    assert left == [{"page": 7}, None]
    end(b, [lease], failed("app.Busy", "x" * 5_000))
    b.advance(0)
    same_after_restart(b)
    b.crash()
    b.hello()
    b.advance(0)
    ((lease, value, error),) = handed(b)
    assert (value, error) == ({"page": 7}, ["app.Busy", "x" * 1_000]), "the next attempt of the same run is told, too"
    end(b, [lease], failed("app.Gone"))
    assert next(iter(b.client.dead())).attempt == 2
    lease, *left = next_run(b)
    assert left == [{"page": 7}, ["app.Gone", "m"]]
    end(b, [lease], (OK, None))
    lease, *left = next_run(b)
    assert left == [None, None], "it returned None, and well"
    assert not b.engine.state.lasts.of
    same_after_restart(b)


def test_runs_of_one_report_count_in_their_order(b):
    for name in ("a", "b", "c"):
        b.put(name, Manual(), overlap="allow", retry=1)
        b.client.trigger(name)
        b.client.trigger(name)
    leases = [lease for lease, *_ in handed(b)]
    names = [b.client.run(lease[0].hex()).job for lease in leases]
    assert sorted(names) == ["a", "a", "b", "b", "c", "c"]
    seen, outcomes = set(), []
    for name in names:
        first, second = {"a": (failed("E"), (OK, None)), "b": (gave(1), failed("F")), "c": (gave(1), gave(2))}[name]
        outcomes.append(second if name in seen else first)
        seen.add(name)
    end(b, leases, *outcomes)
    assert next_run(b, "a")[1:] == (None, None)
    assert next_run(b, "b")[1:] == (1, ["F", "m"])
    assert next_run(b, "c")[1:] == (2, None)


def test_cancelled_and_snoozed_attempts_change_nothing(b):
    b.put(schedule=Manual())
    end(b, [next_run(b)[0]], gave("kept"))
    end(b, [next_run(b)[0]], (Outcome.CANCELLED, {"reason": "no"}))
    lease, *left = next_run(b)
    assert left == ["kept", None]
    end(b, [lease], (Outcome.SNOOZED, {"snooze_us": 1_000_000}))
    b.advance(1)
    assert handed(b)[0][1:] == ("kept", None)


def test_a_lost_worker_is_an_error_too(b):
    b.put(schedule=Manual(), retry=Retry(3, 0))
    next_run(b)
    b.advance(11)
    b.hello()
    assert handed(b)[0][2][0] == "wheelsched.WorkerLost"


def test_enqueued_runs_leave_nothing(b):
    b.client.enqueue(CALL)
    end(b, [handed(b)[0][0]], gave(1))
    b.client.enqueue(CALL)
    assert handed(b)[0][1:] == (None, None)
    assert not b.engine.state.lasts.of


def test_large_values_are_not_kept(b):
    b.put(schedule=Manual())
    end(b, [next_run(b)[0]], gave(b"x" * (LAST_MAX - 3)))
    lease, value, _ = next_run(b)
    assert len(value) == LAST_MAX - 3
    end(b, [lease], gave(b"x" * (LAST_MAX - 2)))
    assert next_run(b)[1:] == (None, None)


def test_a_deleted_job_leaves_nothing(b):
    b.put(schedule=Manual())
    end(b, [next_run(b)[0]], gave(1))
    b.client.delete("j")
    b.put(schedule=Manual())
    assert next_run(b)[1:] == (None, None)
    same_after_restart(b)


def test_a_batch_is_bounded_by_what_is_handed_over(b, monkeypatch):
    monkeypatch.setattr("wheelsched.engine.leases.LEASE_BYTES_MAX", 2 * LAST_MAX)
    for i in range(4):
        b.put(f"j{i}", Manual())
        end(b, [next_run(b, f"j{i}")[0]], gave(b"x" * (LAST_MAX - 3)))
        b.client.pause(f"j{i}")
    for i in range(4):
        b.client.resume(f"j{i}")
        b.client.trigger(f"j{i}")
    assert [len(handed(b)) for _ in range(4)] == [1, 1, 1, 1]


def test_user_code_reads_them():
    seen = []

    @task("lasts.count", retry=Retry(2, "10s"))
    def count():
        run = current_run()
        seen.append((run.last_result, run.last_error and str(run.last_error)))
        if len(seen) == 3:
            raise ValueError("the third one")
        return (run.last_result or 0) + 1

    with Simulator(start="2026-03-02T00:00:00Z", tasks=[count]) as sim:
        sim.client.put("j", Call("lasts.count"), Every("60s"))
        sim.advance(60)
        sim.advance(60)
        sim.advance(60 + 16)
        sim.advance(timedelta(seconds=60))
    assert seen == [(None, None), (1, None), (2, None), (2, "ValueError: the third one"), (3, None)]
