"""The engine verb by verb: requests in the wire's format, a virtual clock, workers played by the test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest

from wheelsched import At, Call, Catchup, Cron, Every, Job, Manual, Overlap, Retry
from wheelsched.definition import given_from_api
from wheelsched.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ScheduleError,
    UnimplementedError,
    WheelschedError,
)
from wheelsched.model import DURATION_MAX_US, NEVER, US, Outcome
from wheelsched.protocol import MUTATING, decode_payload, encode_payload
from wheelsched.testing import Simulator

CALL = Call("t", 1)
OK, FAILED, TIMED_OUT, NOT_STARTED = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_STARTED


class Bench(Simulator):
    """A simulator without tasks of its own, where the test plays clients and external workers."""

    def rid(self, number):
        return number.to_bytes(16, "little")

    def hello(self, conn=50, tasks=("t",), **options):
        return self.call(conn, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": dict.fromkeys(tasks, options)}))

    def lease(self, conn=50, n=100, wait_us=0, queues=()):
        """[(run id, token, attempt)] of one lease request."""
        got = self.call(conn, ("lease", {"queues": list(queues), "credits": n, "wait_us": wait_us}))
        if not got["n"]:
            return []
        ids = [got["id"][i : i + 16] for i in range(0, len(got["id"]), 16)]
        return list(zip(ids, np.frombuffer(got["token"], "<i8").tolist(), np.frombuffer(got["attempt"], "<u4").tolist(), strict=True))

    def finish(self, leases, outcome=OK, conn=50, error=None):
        """Report; the verdicts."""
        n = len(leases)
        at = np.full(n, self.now_us, "<i8").tobytes()
        result = [[i, {"type": error or "E", "message": "m"}] for i in range(n)] if outcome in (FAILED, TIMED_OUT) else []
        return list(self.call(conn, ("finish", {
            "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "outcome": bytes([outcome] * n),
            "started_us": at, "ended_us": at, "result": result,
        }))["verdict"])

    def heartbeat(self, leases, conn=50):
        return self.call(conn, ("heartbeat", {
            "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(),
            "started": bytes(len(leases)), "progress": [],
        }))

    def put(self, name="j", schedule=None, call=CALL, **policies):
        return self.client.put(name, call, schedule or Every("60s"), **policies)

    def states(self, job="j"):
        return [r.state for r in self.runs(job)]


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ask_put(name="j", schedule=None, **more):
    given, param_us = given_from_api(CALL, schedule or Every("60s"), {})
    return {"name": name, "given": given, "param_us": param_us, "payload": encode_payload((1,), {}), **more}


# Requests


def test_a_remembered_rid_is_answered_as_at_first_and_does_nothing(b):
    first = b.ask("put", ask_put(rid=b.rid(1)))
    seq = b.engine.state.meta.seq
    assert b.ask("put", ask_put("another", rid=b.rid(1))) == first
    assert b.engine.state.meta.seq == seq
    b.crash()
    assert b.ask("put", ask_put(rid=b.rid(1))) == first
    b.advance("11m")
    assert b.ask("put", ask_put("another", rid=b.rid(1)))["name"] == "another", "forgotten after ten minutes"


@pytest.mark.parametrize("verb", sorted(MUTATING))
@pytest.mark.parametrize("rid", [None, b"short", "text", 5])
def test_a_mutating_verb_without_a_rid_is_refused(b, verb, rid):
    with pytest.raises(InvalidArgumentError, match="rid"):
        b.ask(verb, {**ask_put(), "rid": rid})


def test_errors_are_not_remembered(b):
    with pytest.raises(NotFoundError):
        b.ask("pause", {"name": "j", "rid": b.rid(1)})
    b.put()
    assert b.ask("pause", {"name": "j", "rid": b.rid(1)})["state"] == "paused"


@pytest.mark.parametrize(("verb", "args", "error"), [
    ("nonsense", {}, UnimplementedError),
    ("get", {"name": 5}, InvalidArgumentError),
    ("get", {"name": "none"}, NotFoundError),
    ("next", {"name": "j", "n": 0}, InvalidArgumentError),
    ("next", {"name": "j", "n": 1_001}, InvalidArgumentError),
    ("put", ask_put(payload=b""), InvalidArgumentError),
    ("put", ask_put(payload=b"\xc1"), WheelschedError),
    ("put", ask_put(payload=bytes(300_000)), InvalidArgumentError),
    ("put", ask_put(given=None), InvalidArgumentError),
    ("put", ask_put(given={"task": "t"}), InvalidArgumentError),
    ("put", ask_put(given={"task": "t", "schedule": {"kind": "at"}}, param_us=NEVER), ScheduleError),
    ("put", ask_put(param_us=-1), InvalidArgumentError),
    ("put", ask_put(param_us=2**62), InvalidArgumentError),
    ("put", ask_put(paused=1), InvalidArgumentError),
    ("put", ask_put(note="x" * 1_001), InvalidArgumentError),
    ("put", ask_put("default/~t"), InvalidArgumentError),
    ("put", ask_put("a b"), InvalidArgumentError),
    ("enqueue", {"given": 5, "payload": encode_payload((), {})}, InvalidArgumentError),
    ("enqueue", {"payload": encode_payload((), {})}, InvalidArgumentError),
    ("enqueue", {"given": {"task": "t"}, "payload": encode_payload((), {}), "at_us": 1, "delay_us": 1}, InvalidArgumentError),
    ("enqueue", {"given": {"task": "t"}, "payload": encode_payload((), {}), "key": "k" * 201}, InvalidArgumentError),
    ("resume", {"name": "j", "catchup": "earliest"}, InvalidArgumentError),
    ("resume", {"name": "j", "catchup": ["skip"]}, InvalidArgumentError),
    ("trigger", {"name": "none"}, NotFoundError),
    ("delete", {"name": "none"}, NotFoundError),
    ("cancel", {"id": "xyz"}, InvalidArgumentError),
    ("cancel", {"id": "0" * 32}, NotFoundError),
    ("wait", {"id": None}, InvalidArgumentError),
    ("redrive", {}, InvalidArgumentError),
    ("redrive", {"match": "*", "ids": []}, InvalidArgumentError),
    ("discard", {"ids": "no list"}, InvalidArgumentError),
    ("discard", {"ids": ["0" * 32]}, NotFoundError),
    ("lease", {"credits": 1}, FailedPreconditionError),
    ("finish", {}, FailedPreconditionError),
    ("heartbeat", {}, FailedPreconditionError),
    ("jobs", {"match": 5}, InvalidArgumentError),
    ("jobs", {"state": "odd"}, InvalidArgumentError),
    ("runs", {"job": 5}, InvalidArgumentError),
    ("runs", {"state": ["dead"]}, InvalidArgumentError),
    ("runs", {"since_us": "x"}, InvalidArgumentError),
    ("dead", {"match": 5}, InvalidArgumentError),
])
def test_refusals(b, verb, args, error):
    seq = b.engine.state.meta.seq
    with pytest.raises(error) as e:
        b.ask(verb, {"rid": b.rid(9), **args} if verb in MUTATING else args)
    assert e.value.code != "internal"
    assert b.engine.state.meta.seq <= seq + 1, "nothing was stored, but perhaps a definition"
    assert not list(b.client.jobs())


@pytest.mark.parametrize("args", [
    {"id": b"x"}, {"outcome": b"\0"}, {"outcome": b"\x08"}, {"result": None}, {"result": 5}, {"result": [[0]]}, {"result": [[1, {}]]},
    {"result": [[0, {"x": "y" * 300_000}]]}, {"started_us": b""}, {"token": b"123"},
])
def test_malformed_completions_are_refused_and_change_nothing(b, args):
    b.hello()
    b.client.enqueue(CALL)
    (lease,) = b.lease()
    at_us = b.now_us.to_bytes(8, "little")
    good = {"id": lease[0], "token": lease[1].to_bytes(8, "little"), "outcome": b"\1", "started_us": at_us, "ended_us": at_us, "result": []}
    with pytest.raises(InvalidArgumentError):
        b.call(50, ("finish", {**good, **args}))
    assert b.finish([lease]) == [1]


def test_a_later_request_of_a_turn_is_not_hurt_by_a_malformed_one(b):
    given, _ = given_from_api(CALL, None, {})
    good = {"given": given, "payload": encode_payload((), {})}
    with pytest.raises(InvalidArgumentError):
        b.call(1, ("enqueue", {**good, "rid": b.rid(1)}), ("enqueue", {"given": [], "rid": b.rid(2), "payload": b"x"}))
    assert len(b.runs()) == 1


# put


def test_put_same_changed_and_same_again(b):
    first = b.put(note="n")
    assert (first.result, first.version, first.next_at) == ("created", 1, b.now + timedelta(seconds=60))
    b.advance("30s")
    same = b.put()
    assert (same.result, same.version, same.next_at, same.note) == ("unchanged", 1, first.next_at, "n")
    changed = b.put(schedule=Every("45s"))
    assert (changed.result, changed.version, changed.next_at) == ("updated", 2, b.now + timedelta(seconds=45))
    other_args = b.put(call=Call("t", 2), schedule=Every("45s"))
    assert (other_args.result, other_args.next_at) == ("updated", changed.next_at), "an unchanged period keeps its grid"
    assert b.put(call=Call("t", 2), schedule=Every("45s"), priority=7).result == "updated"


def test_a_re_created_job_never_fires_a_decided_time(b):
    b.hello()
    b.put(schedule=Cron("* * * * *"))
    b.advance("2m")
    assert b.finish(b.lease()) == [1]
    b.client.delete("j")
    with pytest.raises(NotFoundError):
        b.client.get("j")
    again = b.put(schedule=At(b.now))
    assert again.result == "created"
    b.advance("1m")
    assert b.client.get("j").state == "finished", "that nominal time is decided"
    b.client.delete("j")
    b.put(schedule=Cron("* * * * *"))
    b.advance("2m")
    nominal = [r.scheduled_at for r in b.runs("j", skipped=True)]
    assert len(nominal) == len(set(nominal))


def test_version_is_compare_and_set(b):
    with pytest.raises(AlreadyExistsError) as e:
        b.put(version=1)
    assert e.value.detail["version"] == 0
    assert b.put(version=0).version == 1
    with pytest.raises(AlreadyExistsError):
        b.put(version=0)
    assert b.put(schedule=Every("5s"), version=1).version == 2


def test_put_paused_pauses_and_resumes(b):
    assert b.put(paused=True).state == "paused"
    b.advance("5m")
    assert b.runs("j") == []
    assert b.put(paused=None).result == "unchanged"
    assert b.put(paused=False).state == "active"
    assert [(r.reason, r.count) for r in b.runs("j", "skipped")] == [("pause", 5)]
    assert b.put(paused=False).result == "unchanged"
    assert b.put(paused=True).state == "paused"


def test_put_many_is_atomic(b):
    jobs = [Job("a", CALL, Every("5s")), Job("b", CALL, Every("5s")), Job("a", CALL, Every("9s"))]
    with pytest.raises(InvalidArgumentError) as e:
        b.client.put_many(jobs)
    assert e.value.detail["jobs"][0][0] == 2
    assert not list(b.client.jobs())
    assert b.client.put_many(jobs[:2]).counts() == {"unchanged": 0, "created": 2, "updated": 0}
    jobs[1].schedule = Every("6s")
    assert list(b.client.put_many(jobs[:2])) == [("a", "unchanged"), ("b", "updated")]
    given, _ = given_from_api(CALL, Every("5s"), {})
    for wrong in ({"which": b"\5\0\0\0"}, {"names": ["x", "y"]}, {"payload": [b""]}, {"param_us": b""}, {"given": []}, {"names": ["a b"]}):
        args = {"rid": b.rid(7), "given": [given], "names": ["x"], "which": bytes(4), "param_us": NEVER.to_bytes(8, "little"), "payload": [b"\x92\x90\x80"]}
        with pytest.raises(InvalidArgumentError):
            b.ask("put_many", {**args, **wrong})
    assert len(list(b.client.jobs())) == 2


def test_what_is_not_done_yet_is_refused_by_name(b):
    for policy in ({"jitter": "5s"}, {"overlap": "cancel_other"}, {"pause_after": 3}, {"calendar": "c"}):
        with pytest.raises(UnimplementedError, match=next(iter(policy))):
            b.put(**policy)


def test_next_and_get(b):
    b.put(schedule=Cron("*/20 * * * *"))
    assert b.client.next("j", 3) == [at("2026-03-02T00:20"), at("2026-03-02T00:40"), at("2026-03-02T01:00")]
    b.put("once", At(at("2026-03-05T00:00")))
    assert b.client.next("once", 3) == [at("2026-03-05T00:00")]
    assert b.client.get("once").args == [1]
    b.put("by-hand", Manual())
    assert b.client.next("by-hand", 3) == []
    assert b.client.get("by-hand").state == "active"


# pause, resume, catch-up


@pytest.mark.parametrize(("catchup", "nominal", "skipped"), [
    (None, [], [("pause", 3)]), ("skip", [], [("pause", 3)]), ("latest", [13], [("misfire", 2)]), ("all", [11, 12, 13], []),
])
def test_resume(b, catchup, nominal, skipped):
    b.put(schedule=Cron("* * * * *"))
    b.advance(to="2026-03-02T00:10:30Z")
    done = len(b.runs("j", skipped=True))
    b.client.pause("j", note="why")
    assert b.client.get("j").note == "why"
    b.advance("3m")
    b.client.cancel(b.runs("j")[0].id)
    resumed = b.client.resume("j", catchup=catchup)
    assert resumed.state == "active"
    assert resumed.next_at == at("2026-03-02T00:14")
    rows = b.runs("j", skipped=True)[done:]
    assert [r.scheduled_at.minute for r in rows if r.state != "skipped"] == nominal
    assert [(r.reason, r.count) for r in rows if r.state == "skipped"] == skipped
    assert b.client.resume("j").version == resumed.version, "an active job is left alone"


def test_pause_twice_loses_nothing(b):
    b.put(schedule=Cron("* * * * *"))
    b.client.pause("j")
    b.advance("2m")
    b.client.pause("j", note="again")
    b.advance("2m")
    b.client.resume("j")
    assert sum(r.count for r in b.runs("j", "skipped")) == 4
    b.put("once", At(b.now))
    b.advance(0)
    with pytest.raises(FailedPreconditionError, match="finished"):
        b.client.pause("once")


@pytest.mark.parametrize(("catchup", "runs", "skipped"), [
    ("latest", [(10, 9)], [("misfire", 9)]), ("earliest", [(1, 9)], [("misfire", 9)]), ("skip", [], [("misfire", 10)]),
    ("all", [(i, 0) for i in range(1, 11)], []), (Catchup("all", max=3), [(8, 0), (9, 0), (10, 0)], [("max", 7)]),
    (Catchup("latest", window="150s"), [(10, 1)], [("window", 8), ("misfire", 1)]), (Catchup("skip", window="150s"), [], [("window", 8), ("misfire", 2)]),
])
def test_catch_up_policies(b, catchup, runs, skipped):
    b.put(schedule=Cron("* * * * *"), catchup=catchup)
    b.crash(down="10m30s")
    b.advance(0)
    rows = b.runs("j", skipped=True)
    assert [(r.scheduled_at.minute, r.missed) for r in rows if r.state != "skipped"] == runs
    assert [(r.reason, r.count) for r in rows if r.state == "skipped"] == skipped
    assert b.client.get("j").next_at == at("2026-03-02T00:11")
    b.hello()
    order = []
    while leases := b.lease():
        assert len(leases) == 1, "one after another"
        order += leases
        b.finish(leases)
    assert len(order) == len(runs)


# overlap, max_runs


@pytest.mark.parametrize(("overlap", "states", "reasons"), [
    ("skip", ["queued"], ["overlap"] * 4), ("allow", ["queued"] * 5, []), (Overlap("allow", 2), ["queued"] * 2, ["overlap"] * 3),
    ("buffer_one", ["queued", "scheduled"], ["overlap"] * 3), (Overlap("buffer_all", 3), ["queued"] + ["scheduled"] * 3, ["overlap"]),
])
def test_overlap(b, overlap, states, reasons):
    b.put(overlap=overlap)
    b.advance("5m")
    assert b.states() == states
    assert [r.reason for r in b.runs("j", "skipped")] == reasons
    b.hello()
    b.finish(b.lease())
    still = b.states()
    assert still.count("queued") == (1 if "scheduled" in states else 0), "the next in turn"


def test_max_runs_counts_runs_and_not_what_was_skipped(b):
    b.put(max_runs=2)
    b.advance("3m")
    assert b.client.get("j").state == "active", "one run, two skipped"
    b.hello()
    b.finish(b.lease())
    b.advance("1m")
    assert b.client.get("j").state == "finished"
    assert len(b.runs("j")) == 2
    assert b.put(max_runs=2, note="changed").state == "finished"
    assert b.put(max_runs=3).state == "active"


def test_start_and_end(b):
    b.put(schedule=Cron("* * * * *"), start=at("2026-03-02T00:03"), end=at("2026-03-02T00:05"), overlap="allow")
    b.advance("10m")
    assert [r.scheduled_at.minute for r in b.runs("j")] == [3, 4, 5]
    assert b.client.get("j").state == "finished"


# trigger, enqueue


def test_trigger(b):
    b.put(schedule=Manual())
    run = b.client.trigger("j", key="k")
    assert (run.trigger, run.state, run.job) == ("manual", "queued", "j")
    assert b.client.trigger("j", key="k").id == run.id
    with pytest.raises(FailedPreconditionError) as e:
        b.client.trigger("j")
    assert e.value.detail["run_id"] == run.id
    b.put(schedule=Manual(), overlap="buffer_one")
    assert b.client.trigger("j").state == "scheduled"
    b.put(schedule=Manual(), overlap="allow")
    two = [b.client.trigger("j"), b.client.trigger("j")]
    assert len({r.id for r in two}) == 2


def test_enqueue(b):
    now = b.client.enqueue(CALL, key="k")
    assert (now.job, now.trigger, now.state) == ("~t", "enqueue", "queued")
    assert b.client.enqueue(Call("t", 5), key="k").id == now.id
    assert b.client.enqueue(CALL, key="k", namespace="team").id != now.id
    later = b.client.enqueue(CALL, delay="10s")
    assert (later.state, later.next_at) == ("scheduled", b.now + timedelta(seconds=10))
    past = b.client.enqueue(CALL, at=b.now - timedelta(days=1))
    assert past.state == "queued"
    b.advance("9999ms")
    assert later.refresh().state == "scheduled"
    b.advance("1ms")
    assert later.refresh().state == "queued"


def test_keys_are_forgotten_after_a_day_but_not_while_the_run_is_open(b):
    b.hello()
    open_run, done = b.client.enqueue(Call("other"), key="a"), b.client.enqueue(CALL, key="b")
    b.finish(b.lease())
    b.advance("23h")
    assert b.client.enqueue(CALL, key="b").id == done.id
    b.advance("2h")
    assert b.client.enqueue(CALL, key="b").id != done.id
    assert b.client.enqueue(Call("other"), key="a").id == open_run.id


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
    assert [k[0] for k in b._answers] == [] or b.runs("~t")[0].state == "leased"
    assert b.runs("~t")[0].state == "leased"


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
        b.heartbeat([])
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
    assert [r.id for r in b.client.dead()] == [r.id for r in runs]
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
    assert b.lease() == [] if b.hello() else True


def test_delete_cancels_what_waits(b):
    b.put(overlap="buffer_one")
    b.hello()
    b.advance("61s")
    b.heartbeat([])
    lease = b.lease() or (b.hello() and b.lease())
    b.heartbeat(lease)
    b.client.delete("j")
    assert b.finish(lease, OK) == [1]
    b.advance("5m")
    assert b.states() == ["succeeded"]


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
    assert b.runs("~t")[0].state == "queued"


# external workers


def test_a_silent_workers_lease_runs_out(b):
    """lease-01: the late report is refused, the store has two attempts of one run."""
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
    with pytest.raises(FailedPreconditionError):
        b.finish(old, conn=50)
    b.hello(50)
    assert b.finish(old, conn=50) == [2]
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
    b.client.enqueue(CALL, retry=1)
    b.lease(50)
    b.advance("1h")
    assert b.states("~t") == ["dead"]


def test_after_a_stall_heartbeats_are_read_before_leases_are_judged(b):
    b.hello(50)
    run = b.client.enqueue(CALL)
    lease = b.lease(50)
    b._jump(b.now_us + 30 * US)  # the server itself stood still
    assert b.heartbeat(lease) == {"cancel": [], "stale": []}
    assert b.finish(lease) == [1]
    assert run.refresh().state == "succeeded"


def test_an_external_workers_leases_survive_a_restart(b):
    """overlap-03: the running state is read from the durable log; nothing is started while the worker still works."""
    b.hello(50)
    b.put(schedule=Every("20s"))
    b.advance("20s")
    b.hello(50)
    lease = b.lease(50)
    b.journal = b.journal.crash()
    from wheelsched import history
    from wheelsched.engine import Engine
    from wheelsched.state import recover
    from wheelsched.turn import Now

    st = recover(b.journal)
    b.engine = Engine(st, b.engine.specs.schedules.zones if hasattr(b.engine.specs.schedules, "zones") else _zones(), history.pack,
                      Now(b.now_us, b.mono_us), boot_id="x")
    for worker, known in list(st.workers.items()):
        if known.kind == "external":
            b.engine.adopt(worker)
    b.hello(70)
    for _ in range(20):
        b.advance("3s")
        assert b.heartbeat(lease, conn=70) == {"cancel": [], "stale": []}
    assert b.lease(70) == []
    assert [r.state for r in b.runs("j")] == ["leased"]
    assert b.finish(lease, conn=70) == [1]
    b.advance("20s")
    assert len(b.runs("j")) == 2


def _zones():
    from wheelsched.tzif import Zones
    from wheelsched.zonedata import load_zone

    return Zones(load_zone)


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
