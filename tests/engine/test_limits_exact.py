"""Limits and instants to the last one: what a queue lets go, what one frame may say twice, and what is told of times."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK
from wheelsched import Catchup, Cron, Every, Manual
from wheelsched.engine import queues
from wheelsched.engine.alarms import Cause
from wheelsched.engine.late import answer_repeats
from wheelsched.engine.retries import rule_for
from wheelsched.engine.start_times import armed_us
from wheelsched.engine.turn import Disconnect, WorkerGone
from wheelsched.model.nouns import NEVER, Ended, Outcome
from wheelsched.protocol import frames
from wheelsched.protocol.definition import given_from_api
from wheelsched.state.past import unpack_past

HOUR_US = 3_600_000_000


def enqueue(b, n, **policies):
    return [b.client.enqueue(CALL, **policies) for _ in range(n)]


def report(b, leases, outcome=OK, started_us=None, ended_us=None, times=1):
    """One frame of completions with the times that a test wants; the verdicts."""
    leases = leases * times
    n = len(leases)
    column = [np.full(n, b.now_us if us is None else us, "<i8").tobytes() for us in (started_us, ended_us)]
    return list(b.call(50, ("finish", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "outcome": bytes([outcome] * n),
        "started_us": column[0], "ended_us": column[1], "result": [],
    }))["verdict"])


# Rates


def test_each_run_of_a_batch_costs_a_token(b):
    b.client.queue("default", rate="10/s", burst=5)
    enqueue(b, 20)
    b.advance(20)
    assert len(b.lease(n=5)) == 5
    assert b.lease(n=5) == []


def test_a_batch_takes_what_tokens_there_are(b):
    b.client.queue("default", rate="10/s", burst=5)
    enqueue(b, 20)
    b.advance(20)
    assert len(b.lease(n=3)) == 3
    assert len(b.lease(n=20)) == 2
    b.advance(0.1)
    assert len(b.lease(n=20)) == 1


@pytest.mark.parametrize(("rate", "burst"), [("100/s", 10), ("10/s", 1), ("1/s", 1), ("600/m", 1), ("1200/m", 2), ("5/h", 1)])
def test_a_burst_is_a_tenth_of_a_second_unless_told(b, rate, burst):
    b.client.queue("default", rate=rate)
    enqueue(b, 200)
    b.advance("3h")
    assert len(b.lease(n=200)) == burst


def test_a_new_key_rate_counts_for_keys_that_were_known(b):
    b.client.queue("default", key_rate="1/h", key_concurrency=100)
    enqueue(b, 3, concurrency_key="k")
    b.advance("1h")
    assert len(b.lease(n=1)) == 1
    assert b.lease(n=3) == []
    b.client.queue("default", key_rate="1/s", key_concurrency=100)
    b.advance(5)
    assert len(b.lease(n=3)) == 1


def test_a_key_rate_that_stays_keeps_what_was_spent(b):
    b.client.queue("default", key_rate="1/h", key_concurrency=100)
    enqueue(b, 3, concurrency_key="k")
    b.advance("1h")
    assert len(b.lease(n=1)) == 1
    b.client.queue("default", key_rate="1/h", key_concurrency=50)
    b.advance(5)
    assert b.lease(n=3) == []


def test_buckets_that_are_not_full_are_not_forgotten(b, monkeypatch):
    monkeypatch.setattr(queues, "_BUCKETS_MAX", 3)
    b.engine.limits._key_rates_max = 3
    b.client.queue("default", key_rate="1/h", key_concurrency=100)
    b.advance("1h")
    for key in range(8):  # one after another: each new bucket may push out those before it
        enqueue(b, 2, concurrency_key=f"k{key}")
        assert len(b.lease(n=100)) == 1
    assert b.lease(n=100) == []


# One frame that says a thing twice


def test_a_completion_told_twice_in_one_frame_counts_once(b):
    enqueue(b, 1)
    held = b.lease()
    assert report(b, held, times=2) == [1, 1]
    assert b.client.stats()["counters"]["succeeded"] == 1
    assert b.states("~t") == ["succeeded"]


def test_many_completions_told_many_times_in_one_frame(b):
    enqueue(b, 5)
    held = b.lease(n=5)
    assert report(b, held, FAILED, times=3) == [1] * 15
    assert {len(r.attempts) for r in b.runs("~t")} == {1}


def test_one_late_completion_told_often_leaves_room_for_others(b):
    (run,) = enqueue(b, 1)
    (run_id, token, attempt), = held = b.lease()
    late = [(run_id, token + 100, attempt)] * 10 + [(run_id, token + 101, attempt)]
    assert report(b, late) == [2] * 11
    stale = b.engine.state.runs.blobs(b.engine.state.find_run(bytes.fromhex(run.id)))[2]
    assert sorted(c["token"] for c in unpack_past(stale)[1]) == [token + 100, token + 101]
    b.finish(held)


def test_handing_back_again_what_is_history_is_not_late():
    run_id = bytes(16)
    for token, how, late in [(5, 1, False), (7, NOT_STARTED, False), (7, 1, True), (5, NOT_STARTED, False), (5, 2, True)]:
        stale = np.array([True])
        answer_repeats({run_id: {5: 1}}, run_id, np.array([token]), np.array([how]), stale)
        assert bool(stale[0]) is late, (token, how)
    stale = np.array([True])
    answer_repeats({}, run_id, np.array([7]), np.array([int(NOT_STARTED)]), stale)
    assert stale[0]  # nobody knows the run


# Times that workers tell


def test_an_end_in_the_future_is_now(b):
    (run,) = enqueue(b, 1)
    held = b.lease()
    b.advance(2)
    report(b, held, ended_us=b.now_us + HOUR_US)
    assert b.client.run(run.id).ended_at == b.now


def test_an_end_that_was_is_kept(b):
    (run,) = enqueue(b, 1)
    held = b.lease()
    b.advance(2)
    report(b, held, started_us=b.now_us - 1_500_000, ended_us=b.now_us - 500_000)
    got = b.client.run(run.id)
    assert (b.now - got.ended_at).total_seconds() == 0.5
    assert (b.now - got.started_at).total_seconds() == 1.5


def test_a_start_before_the_run_was_made_is_its_making(b):
    b.advance(60)
    (run,) = enqueue(b, 1)
    held = b.lease()
    report(b, held, started_us=b.now_us - 30_000_000)
    got = b.client.run(run.id)
    assert got.created_at <= got.started_at <= got.ended_at


# Workers that are gone


def test_the_runs_of_a_worker_that_left_are_lost_when_its_lease_is_over(b):
    (run,) = enqueue(b, 1, retry=1)
    assert b.lease()
    b.advance(8)
    b._step([Disconnect(50)])
    b.advance(1.9)
    assert b.client.run(run.id).state in ("leased", "running")
    b.advance(1.1)
    assert b.client.run(run.id).state == "dead"


def test_a_worker_that_left_early_is_waited_for_one_lease(b):
    (run,) = enqueue(b, 1, retry=1)
    held = b.lease()
    b.heartbeat(held)
    b._step([Disconnect(50)])
    b.advance(9.9)
    assert b.client.run(run.id).state in ("leased", "running")
    b.advance(0.2)
    assert b.client.run(run.id).state == "dead"


def test_what_a_dead_process_had_finished_without_a_result_has_no_error(b):
    (run,) = enqueue(b, 1, retry=1)
    (_, token, _), = b.lease()
    worker = b.engine.sessions[50].worker
    ended = {token: Ended(int(OK), b.now_us, b.now_us, {})}
    b._step([WorkerGone(worker, token, int(Outcome.LOST), "worker lost", ended=ended)])
    got = b.client.run(run.id)
    assert (got.state, got.error) == ("succeeded", None)


# Jitter, windows, instants


def test_jitter_never_reaches_the_next_nominal_time(b):
    b.put(schedule=Every("60s"), jitter="30s")
    specs = b.engine.specs
    n = 200_000
    spec = np.zeros(n, np.uint32)
    specs.jitter_us[0] = 10**12
    nominal = np.zeros(n, np.int64)
    armed = armed_us(specs, spec, np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15), nominal, nominal + 2_000)
    assert armed.max() < 2_000
    assert armed.max() >= 900


@pytest.mark.parametrize(("policy", "late_s", "made"), [
    ("latest", 300, 1), ("latest", 301, 0), ("earliest", 300, 1), ("earliest", 301, 0), ("all", 300, 1), ("all", 301, 0),
])
def test_the_edge_of_a_catch_up_window(b, policy, late_s, made):
    b.put(schedule=Cron("0 1 * * *"), catchup=Catchup(policy, window="5m"))
    b.advance(to="2026-03-02T00:30:00Z")
    b.crash(down=f"{1_800 + late_s}s")
    b.advance(0)
    assert len(b.runs("j")) == made


@pytest.mark.parametrize(("more_us", "rounded_us"), [(0, 0), (1, 1_000), (999, 1_000), (1_000, 1_000)])
@pytest.mark.parametrize("many", [False, True])
def test_an_instant_is_rounded_up_to_a_millisecond(b, more_us, rounded_us, many):
    wanted = b.now_us + 10_000_000 + more_us
    given, _ = given_from_api(CALL, Manual(), {})
    del given["schedule"]
    payload = frames.encode_payload((1,), {})
    if many:
        b.call(1, ("enqueue_many", {
            "rid": b.rid(7), "given": [given], "unique": [None], "which": bytes(4), "payload": [payload], "at_us": np.array([wanted], "<i8").tobytes(),
            "delay_us": np.array([NEVER], "<i8").tobytes(), "namespace": ["default"],
        }))
    else:
        b.call(1, ("enqueue", {"rid": b.rid(7), "given": given, "payload": payload, "at_us": wanted}))
    (run,) = b.runs("~t")
    assert round(run.scheduled_at.timestamp() * 1e6) == b.now_us + 10_000_000 + rounded_us


# Alarms and causes


def test_what_catch_up_drops_beyond_its_most_raises_the_alarm(b):
    b.put("al", Manual())
    b.put(schedule=Every("60s"), catchup=Catchup("all", max=2), on_missed="al")
    b.advance(1)
    b.crash(down="10m")
    b.advance(1)
    (alarm,) = b.runs("al")
    assert alarm.trigger == "chain"


def test_a_window_and_a_misfire_raise_the_alarm_and_a_pause_does_not(b):
    b.put("al", Manual())
    b.put(schedule=Every("60s"), catchup="skip", on_missed="al")
    b.client.pause("j")
    b.advance("5m")
    b.client.resume("j")
    assert b.runs("al") == []
    b.crash(down="5m")
    b.advance(1)
    assert len(b.runs("al")) == 1


def test_a_cause_spans_all_its_jobs():
    cause = Cause("late", "a", {1}, 1, 100, 200)
    cause.add(2, 1, 150, 160)
    assert (cause.from_us, cause.until_us) == (100, 200)
    cause.add(2, 2, 50, 300)
    assert (cause.from_us, cause.until_us, cause.count) == (50, 300, 4)


def test_an_error_that_fits_both_is_not_retried():
    rules = {"x.E": {"attempts": 9}}
    assert rule_for({"errors": rules, "not_on": ["y.E"]}, {"type": "x.y.E"}) is None
    assert rule_for({"errors": rules, "not_on": ["E"]}, {"type": "x.y.E"}) == {"attempts": 9}  # the nearer name decides
    assert rule_for({"errors": {"E": {"attempts": 9}}, "not_on": ["y.E"]}, {"type": "x.y.E"}) is None


@pytest.mark.parametrize(("size", "goes"), [(8_191, True), (8_192, True), (8_193, False)])
def test_a_value_goes_with_the_cause_up_to_8_192_bytes(b, size, goes):
    b.put("after", Manual())
    b.put("first", Manual(), on_success="after")
    b.client.trigger("first")
    (lease,) = b.lease()
    value = b"x" * (size - 3)
    packed = msgpack.packb(value, use_bin_type=True)
    assert len(packed) == size
    b.call(50, ("finish", {
        "id": lease[0], "token": np.array([lease[1]], "<i8").tobytes(), "outcome": bytes([OK]),
        "started_us": np.array([b.now_us], "<i8").tobytes(), "ended_us": np.array([b.now_us], "<i8").tobytes(),
        "result": [[0, {"value": packed, "stdout": b"", "stderr": b"", "dropped": [0, 0]}]],
    }))
    (row,) = [b.engine.state.find_run(bytes.fromhex(r.id)) for r in b.runs("after")]
    payload = msgpack.unpackb(b.engine.state.runs.blobs(row)[0], raw=False, timestamp=3)
    assert ("value_left_out" in repr(payload)) is not goes
    assert (repr(packed) in repr(payload)) is goes
