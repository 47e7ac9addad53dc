"""Heartbeats, checkpoints and completions that come too late: in the simulated engine, with the test as client and worker."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK
from wheelsched import Call, Every, Retry, current_run
from wheelsched.journal.recover import recover
from wheelsched.model.errors import FencedError, InvalidArgumentError, PayloadError
from wheelsched.model.nouns import CHECKPOINT_MAX, PROGRESS_MAX, STALE_MAX
from wheelsched.simulator.simulator import Simulator
from wheelsched.state.state import State


def beat(b, leases, conn=50, started=1, progress=(), checkpoint=()):
    return b.call(conn, ("heartbeat", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(),
        "started": bytes([started] * len(leases)), "progress": [list(p) for p in progress],
        "checkpoint": [[i, msgpack.packb(value)] for i, value in checkpoint],
    }))


def handed(b, conn=50):
    """[(lease, checkpoint or None)] of one lease request."""
    got = b.call(conn, ("lease", {"queues": [], "credits": 10, "wait_us": 0}))
    ids, tokens = got.get("id", b""), np.frombuffer(got.get("token", b""), "<i8").tolist()
    kept = {i: msgpack.unpackb(data) for i, data in got.get("checkpoint", [])}
    return [((ids[16 * i : 16 * i + 16], t, 0), kept.get(i)) for i, t in enumerate(tokens)]


# Progress


def test_progress_is_shown_while_the_attempt_is_open(b):
    run = b.client.enqueue(CALL, retry=Retry(2, 0))
    lease = b.lease()
    beat(b, lease)
    run.refresh()
    assert (run.state, run.progress, run.heartbeat_at) == ("running", None, None), "the worker's heartbeat is not the run's"
    beat(b, lease, progress=[(0, "half")])
    b.advance("2s")
    told = b.now
    beat(b, lease, progress=[(0, "")])
    b.advance("1s")
    beat(b, lease)
    run.refresh()
    assert (run.progress, run.heartbeat_at) == ("half", told), "an empty text is a heartbeat, and leaves the progress"
    assert run.to_dict()["progress"] == "half"
    assert run.to_dict()["heartbeat_at"].startswith("2026-03-02T00:00:02")
    assert [r.progress for r in b.client.runs()] == ["half"]
    assert b.finish(lease, FAILED) == [1]
    assert (run.refresh().progress, run.heartbeat_at) == (None, None)
    assert not b.engine.running.beats


def test_progress_changes_no_digest_and_is_forgotten_with_its_worker(b):
    b.client.enqueue(CALL)
    lease = b.lease()
    before = b.engine.state.digest(), b.engine.state.meta.seq
    beat(b, lease, progress=[(0, "x" * PROGRESS_MAX)])
    assert (b.engine.state.digest(), b.engine.state.meta.seq) == before
    b.advance("11s")
    assert not b.engine.running.beats


@pytest.mark.parametrize(("wrong", "text"), [
    ({"progress": [[0, "x" * (PROGRESS_MAX + 1)]]}, "1001 characters: at most 1000"), ({"progress": [[1, "x"]]}, "progress is a list"),
    ({"progress": [[0, b"x"]]}, "progress is a list"), ({"progress": {}}, "progress is a list"), ({"progress": [[True, "x"]]}, "progress is a list"),
    ({"checkpoint": [[0, b"\xc5\x3f\xfe" + bytes(CHECKPOINT_MAX - 2)]]}, "16385 bytes: at most 16384"),
    ({"checkpoint": [[0, b"\xc1"]]}, "no MessagePack value"), ({"checkpoint": [[0, "x"]]}, "checkpoint is a list"), ({"started": b""}, "started"),
])
def test_heartbeats_that_can_not_be_are_refused(b, wrong, text):
    b.client.enqueue(CALL)
    ((run_id, token, _),) = b.lease()
    args = {"id": run_id, "token": token.to_bytes(8, "little"), "started": b"\1", "progress": [], "checkpoint": []}
    with pytest.raises(InvalidArgumentError, match=text):
        b.call(50, ("heartbeat", {**args, **wrong}))
    assert not b.engine.state.checkpoints


def test_a_checkpoint_of_the_largest_size_is_kept(b):
    b.client.enqueue(CALL)
    lease = b.lease()
    assert beat(b, lease, checkpoint=[(0, bytes(CHECKPOINT_MAX - 3))]) == {"cancel": [], "stale": []}
    assert len(b.engine.state.checkpoints[0]) == CHECKPOINT_MAX


# Checkpoints


def test_the_next_attempt_is_handed_the_last_checkpoint(b):
    run = b.client.enqueue(CALL, retry=Retry(3, 0))
    ((lease, kept),) = handed(b)
    assert kept is None
    beat(b, [lease], checkpoint=[(0, {"page": 1})])
    beat(b, [lease], checkpoint=[(0, {"page": 2})])
    b.finish([lease], FAILED)
    b.crash()
    b.advance(0)
    b.hello()
    ((lease, kept),) = handed(b)
    assert kept == {"page": 2}, "it outlives the attempt and a restart"
    b.finish([lease], NOT_STARTED)
    ((lease, kept),) = handed(b)
    assert kept == {"page": 2}
    b.finish([lease], OK)
    assert run.refresh().state == "succeeded"
    assert not b.engine.state.checkpoints


def test_a_dead_letter_keeps_its_checkpoint_until_it_is_discarded(b):
    runs = [b.client.enqueue(CALL, retry=1) for _ in range(2)]
    leases = b.lease()
    beat(b, leases, checkpoint=[(0, "a"), (1, "b")])
    b.finish(leases, FAILED)
    b.crash()
    b.hello()
    b.client.redrive(ids=[runs[0].id])
    ((lease, kept),) = handed(b)
    assert kept == "a"
    b.client.cancel(runs[0].id)
    b.finish([lease], FAILED)
    b.client.discard(ids=[runs[1].id])
    assert [r.refresh().state for r in runs] == ["cancelled", "dead"]
    assert not b.engine.state.checkpoints
    b.engine.state.check()


def test_checkpoints_are_in_snapshot_and_digest(b):
    [b.client.enqueue(CALL) for _ in range(3)]
    leases = b.lease()
    before = b.engine.state.digest()
    beat(b, leases, checkpoint=[(0, "a"), (2, bytes(9_000))])
    state = b.engine.state
    assert state.digest() != before
    assert state.digest() == recover(b.journal).digest()
    for step in (1, 2**20):
        pieces = [p for part in state.copy(step) for p in part]
        beat(b, leases, checkpoint=[(0, "a")])
        loaded = State.load(iter(pieces))
        loaded.check()
        assert loaded.checkpoints == state.checkpoints
    assert sum(p[:1] == b"C" for p in pieces) == 1


def test_batches_with_checkpoints_are_bounded_in_bytes(b, monkeypatch):
    monkeypatch.setattr("wheelsched.engine.leases.LEASE_BYTES_MAX", 3_000)
    [b.client.enqueue(CALL, retry=Retry(2, 0)) for _ in range(3)]
    leases = b.lease()
    beat(b, leases, checkpoint=[(i, bytes(1_400)) for i in range(3)])
    b.finish(leases, FAILED)
    b.advance("1ms")
    assert [len(handed(b)) for _ in range(3)] == [2, 1, 0]


# Too late


def lost(b, **policies):
    """A run whose worker was silent, and its first lease."""
    run = b.client.enqueue(CALL, **policies)
    lease = b.lease()
    b.advance("11s")
    assert run.refresh().attempts[0].outcome == "lost"
    return run, lease


def test_a_late_completion_is_kept_with_the_run_once(b):
    run, old = lost(b, retry=Retry(3, 0))
    b.hello(51)
    new = b.lease(51)
    at = b.now
    for _ in range(3):
        assert b.finish(old, OK) == [2]
    assert b.finish(old, FAILED) == [2], "another outcome is another completion"
    stale = [{"token": old[0][1], "worker": "w2", "outcome": how, "at": at} for how in ("succeeded", "failed")]
    assert run.refresh().stale == stale
    assert beat(b, old, checkpoint=[(0, "late")]) == {"cancel": [], "stale": [0]}
    assert not b.engine.state.checkpoints, "what a former attempt keeps is not kept"
    b.crash()
    b.hello(51)
    assert b.finish(new, OK, conn=51) == [1]
    assert run.refresh().stale == stale
    assert b.finish(old, OK, conn=51) == [2], "known already"
    assert [a.outcome for a in run.refresh().attempts] == ["lost", "succeeded"]
    b.advance("2m")
    assert b.engine.state.find_run(bytes.fromhex(run.id)) is None
    assert run.refresh().stale == stale, "read back from history"
    assert b.finish(old, NOT_STARTED, conn=51) == [2]


def test_a_late_completion_of_a_run_that_is_over_is_kept(b):
    run, old = lost(b, retry=1)
    assert run.state == "dead"
    assert b.finish(old, OK) == [2]
    assert [(s["token"], s["outcome"]) for s in run.refresh().stale] == [(old[0][1], "succeeded")]
    assert run.to_dict()["stale"][0]["at"].startswith("2026-03-02T00:00:11")


def test_what_once_counted_is_answered_as_then_under_a_newer_token(b):
    run = b.client.enqueue(CALL, retry=Retry(3, 0))
    first = b.lease()
    assert b.finish(first, NOT_STARTED) == [1]
    second = b.lease()
    assert b.finish(second, FAILED) == [1]
    b.advance("1ms")
    third = b.lease()
    assert b.finish(first, NOT_STARTED) == [1]
    assert b.finish(second, FAILED) == [1]
    assert run.refresh().stale == []
    assert b.finish(first, OK) == [2]
    assert b.finish(second, OK) == [2]
    assert [s["token"] for s in run.refresh().stale] == [first[0][1], second[0][1]]
    assert b.finish(third, OK) == [1]


def test_no_more_than_ten_are_kept(b):
    run, old = lost(b, retry=Retry(2, "1h"))
    run_id, token, _ = old[0]
    assert b.finish([(run_id, token - 100 + i, 0) for i in range(8)], OK) == [2] * 8
    assert b.finish([(run_id, token + i, 0) for i in range(8)], OK) == [2] * 8
    assert len(run.refresh().stale) == STALE_MAX
    assert b.engine.state.digest() == recover(b.journal).digest()


def test_a_worker_that_was_silent_for_too_long_goes_on_on_its_connection(b):
    with pytest.raises(Exception, match="no answer"):
        b.call(50, ("lease", {"queues": [], "credits": 1, "wait_us": 2**62}))
    asked = b._last_id
    step, answers = b.engine.step, []
    b.engine.step = lambda now, items: answers.append(step(now, items)) or answers[-1]
    b.advance("11s")
    assert [conn for effects in answers for conn, _ in effects.replies] == [50], "its open request is answered: it is no more among those who wait"
    assert asked
    assert b.client.stats()["workers"][0]["name"] == "simulated"
    assert len(b.client.stats()["workers"]) == 1
    b.client.enqueue(CALL)
    assert b.client.stats()["unserved_tasks"] == {"t": 1}
    assert len(b.lease()) == 1
    assert {w["id"] for w in b.client.stats()["workers"]} == {"w1", "w2"}


def test_lease_05(b):
    """A worker dies right after it was granted a run: the run is handed on though nobody asks for that time again."""
    b.hello(51)
    b.put("j")
    b.advance("60s")
    due = b.now
    assert len(b.lease(51)) == 1
    b.engine.step(b.engine.now, [])
    for _ in range(6):
        b.advance("2s")
        beat(b, [])
    b.advance("15s")
    (run,) = b.runs("j")
    assert (run.state, run.scheduled_at) == ("queued", due)
    assert b.lease()[0][::2] == (bytes.fromhex(run.id), 2)


def test_lease_06(b):
    """A run is cancelled, and its worker never comes back to say so: with the end of the lease it holds no place any more."""
    b.hello(51)
    first, second = (b.client.enqueue(CALL, concurrency_key="k") for _ in range(2))
    lease = b.lease(n=1)
    assert b.client.cancel(first.id).state == "leased"
    b.advance("9s")
    beat(b, [], conn=51)
    assert b.lease(51) == [], "the worker may still be in it"
    b.advance("2s")
    assert first.refresh().state == "cancelled"
    ((_, token, attempt),) = b.lease(51)
    assert (token, attempt) > (lease[0][1], 0)
    assert b.finish([(bytes.fromhex(second.id), token, attempt)], conn=51) == [1]
    assert b.finish(lease) == [2]
    assert [r.refresh().state for r in (first, second)] == ["cancelled", "succeeded"]


def test_a_cancel_of_leased_runs_outlives_a_restart(b):
    """By id and by filter; the worker that comes back is told, and an attempt that fails is not retried, one that is lost neither."""
    runs = [b.client.enqueue(CALL, retry=Retry(5, 0)) for _ in range(3)]
    leases = b.lease()
    beat(b, leases)
    assert b.client.cancel(runs[0].id).state == "running"
    assert b.client.cancel(match="~t", state="running") == 2, "one was asked before"
    b.crash(down="1s")
    b.hello(60)
    assert beat(b, leases, conn=60) == {"cancel": [0, 1, 2], "stale": []}
    assert b.finish(leases[:1], FAILED, conn=60) == [1]
    assert b.finish(leases[1:2], NOT_STARTED, conn=60) == [1]
    b.advance("11s")
    assert [r.refresh().state for r in runs] == ["cancelled"] * 3
    assert [[a.outcome for a in r.attempts] for r in runs] == [["failed"], ["not_started"], ["lost"]]
    b.hello(61)
    assert b.lease(61) == []


@pytest.mark.parametrize("restart", [False, True])
def test_overlap_02(b, restart):
    """A worker dies without a word: its run blocks the job until the end of the lease, and no longer, with a restart or without."""
    b.put("j", schedule=Every("20s"), retry=1)
    b.advance("20s")
    assert len(b.lease()) == 1
    if restart:
        b.crash(down="1s")
    b.advance("12s")
    assert [r.state for r in b.runs("j")] == ["dead"]
    assert b.runs("j")[0].attempts[0].outcome == "lost"
    b.advance("9s")
    assert [r.state for r in b.runs("j")] == ["dead", "queued"]
    assert [r for r in b.client.runs(job="j", skipped=True) if r.reason == "overlap"] == []


def test_lease_07(b):
    """Two workers of one name: what one of them loses is not the other's."""
    b.hello(51)
    old = [b.client.enqueue(CALL) for _ in range(2)]
    held = b.lease(n=1), b.lease(51, n=1)
    b.crash()
    b.hello(60)  # the new process of that name; the old one lives, and says so
    for _ in range(5):
        b.advance("3s")
        beat(b, held[1], conn=60)
    b.advance("1s")
    assert [r.refresh().attempts[0].outcome for r in old] == ["lost", None]
    assert b.finish(held[1], conn=60) == [1]


# Silence


def silent(b, conn=50, **policies):
    run = b.client.enqueue(CALL, heartbeat_timeout="30s", **policies)
    got = b.call(conn, ("lease", {"queues": [], "credits": 10, "wait_us": 0}))
    assert got["specs"][0]["heartbeat_timeout_us"] == 30_000_000
    return run, [(got["id"], int.from_bytes(got["token"], "little"), 1)]


def beats(b, leases, seconds, **more):
    for _ in range(0, seconds, 3):
        b.advance("3s")
        answer = beat(b, leases, **more)
    return answer


def test_an_attempt_that_is_silent_for_too_long_is_ended_by_the_server(b):
    run, lease = silent(b, retry=Retry(2, 0))
    beats(b, lease, 60, started=0)
    assert run.refresh().state == "leased", "it counts from the start of user code"
    beats(b, lease, 60, progress=[(0, "")])
    assert beats(b, lease, 33) == {"cancel": [], "stale": []}
    assert run.refresh().state == "running"
    told = b.now_us
    assert beats(b, lease, 3) == {"cancel": [], "stale": [0]}, "30 s after its own last heartbeat, and 5 for a worker that ends it itself"
    (first, *_) = run.refresh().attempts
    assert (first.outcome, first.error.type) == ("timed_out", "wheelsched.TimedOut")
    assert first.error.message == "timed out: no heartbeat for 30 s"
    assert first.ended_at.timestamp() * 1e6 == told + 2_000_000
    assert b.finish(lease, OK) == [2]
    assert [s["outcome"] for s in run.refresh().stale] == ["succeeded"]
    assert b.finish(b.lease(), OK) == [1]
    assert b.engine.running.wake_us == 2**63 - 1


def test_a_timer_of_its_own_ends_it(b):
    run, lease = silent(b, retry=1)
    beat(b, lease)
    begun = b.now_us
    b.engine.sessions[50].lease_until_us = 2**62
    b.advance("1h")
    assert run.refresh().state == "dead"
    assert run.ended_at.timestamp() * 1e6 == begun + 35_000_000


@pytest.mark.parametrize("restart", [False, True])
def test_a_timeout_that_the_worker_does_not_enforce_is_enforced_by_the_server(b, restart):
    """Whatever the run tells of itself. A new server counts anew, from the first heartbeat that it gets."""
    run = b.client.enqueue(CALL, timeout="60s", retry=Retry(2, 0))
    lease, conn = b.lease(), 50
    begun = b.now_us + 33_000_000  # the first heartbeat that says so
    beats(b, lease, 30, started=0)
    beats(b, lease, 30, progress=[(0, "on and on")])
    if restart:
        b.crash(down="1s")
        conn, begun = 60, b.now_us
        b.hello(conn)
        beat(b, lease, conn)
    beats(b, lease, 63 if restart else 36, conn=conn, progress=[(0, "on and on")])
    assert run.refresh().state == "running"
    assert beats(b, lease, 3, conn=conn) == {"cancel": [], "stale": [0]}
    (first, *_) = run.refresh().attempts
    assert (first.outcome, first.error.message) == ("timed_out", "timed out: its worker did not end it after 60 s")
    assert first.ended_at.timestamp() * 1e6 == begun + 65_000_000
    assert b.finish(lease, OK, conn=conn) == [2]
    assert b.finish(b.lease(conn), OK, conn=conn) == [1]
    assert run.refresh().state == "succeeded"


def test_what_has_ended_is_not_watched(b):
    run, lease = silent(b)
    beat(b, lease)
    assert b.finish(lease, OK) == [1]
    beats(b, [], 60)
    assert run.refresh().state == "succeeded"


def test_what_the_server_resolved_tells_the_limit(b):
    b.hello(50, heartbeat_timeout_us=7_000_000)
    job = b.put("j")
    assert job.spec["heartbeat_timeout_us"] == 7_000_000
    assert b.put("j", heartbeat_timeout="9s").spec["heartbeat_timeout_us"] == 9_000_000


def test_the_simulator_ends_what_is_silent():
    def work(seconds):
        for _ in range(5):
            sim.advance("20s")
            current_run().heartbeat("on")
        sim.advance(seconds)

    with Simulator("2026-03-02T00:00:00Z", tasks={"work": work}) as sim:
        quick = sim.client.enqueue(Call("work", 29), heartbeat_timeout="30s", retry=1)
        sim.advance("5m")
        slow = sim.client.enqueue(Call("work", 31), heartbeat_timeout="30s", retry=1)
        sim.advance("5m")
        assert quick.refresh().state == "succeeded"
        assert (slow.refresh().state, slow.attempts[0].outcome) == ("dead", "timed_out")
        assert slow.error.message == "timed out: no heartbeat for 30 s"
        assert (slow.ended_at - slow.started_at).total_seconds() == 130


# What user code sees


def test_user_code_finds_its_checkpoint_and_is_fenced():
    seen = []

    def work():
        run = current_run()
        seen.append((run.attempt, run.checkpoint))
        run.heartbeat("begun")
        seen.append(sim.client.run(run.id).progress)
        run.heartbeat(checkpoint={"page": run.attempt})
        assert run.checkpoint == {"page": run.attempt}
        if run.attempt == 1:
            raise ValueError("again")
        if run.attempt == 2:
            sim.crash()
            with pytest.raises(FencedError, match="lease is over"):
                run.heartbeat(checkpoint="from beyond")
        return "done"

    with Simulator("2026-03-02T00:00:00Z", tasks={"work": work}) as sim:
        run = sim.client.enqueue(Call("work"), retry=Retry(3, 0))
        sim.advance("1m")
        assert run.refresh().state == "succeeded"
    assert seen == [(1, None), "begun", (2, {"page": 1}), "begun", (3, {"page": 2}), "begun"]


@pytest.mark.parametrize(("value", "text"), [(object(), "checkpoint: object can't be stored"), (bytes(CHECKPOINT_MAX), "16387 bytes: at most 16384")])
def test_what_can_not_be_kept_is_refused_before_it_is_sent(value, text):
    def work():
        current_run().heartbeat(checkpoint=value)

    with Simulator("2026-03-02T00:00:00Z", tasks={"work": work}) as sim:
        run = sim.client.enqueue(Call("work"), retry=1)
        sim.advance(0)
        assert text in run.refresh().error.message
        assert PayloadError.__name__ in run.error.type
