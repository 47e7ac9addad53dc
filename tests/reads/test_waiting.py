"""What a run waits for: reason, rank and expected start; the ranks against what workers really get."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK, Bench
from wheelsched import Call, Every, Overlap, Retry, RunTimeout
from wheelsched.model.errors import DeadlineExceededError
from wheelsched.model.nouns import NEVER, US
from wheelsched.simulator.simulator import Simulator


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.hello(tasks=("t", "u"))
        yield bench


def made(b, n, task="t", **policies):
    return [b.client.enqueue(Call(task), **policies).id for _ in range(n)]


def waits(b, run):
    """(reason, rank, seconds until the expected start or None)."""
    told = b.client.run(run).waiting
    if told is None:
        return None
    expected = None if told.expected_at is None else round(told.expected_at.timestamp() - b.now_us / US, 3)
    return told.reason, told.rank, expected


def measure(b, task="t", seconds=10):
    """Let the server learn how long a task takes."""
    (run,) = made(b, 1, task)
    leases = b.lease()
    at = b.now_us
    b.work(leases, seconds)
    ids, tokens = b"".join(x[0] for x in leases), b"".join(x[1].to_bytes(8, "little") for x in leases)
    b.call(50, ("finish", {
        "id": ids, "token": tokens, "outcome": bytes([OK]), "started_us": at.to_bytes(8, "little"),
        "ended_us": (at + seconds * US).to_bytes(8, "little"), "result": [],
    }))
    assert b.client.run(run).state == "succeeded"


# Reasons


def test_what_is_not_in_its_queue_yet(b):
    later = b.client.enqueue(CALL, delay="1h").id
    assert waits(b, later) == ("its time has not come", None, 3_600)
    b.put(overlap=Overlap("buffer_all"))
    b.advance(120)
    first, second = b.runs("j")
    assert waits(b, second.id) == ("an earlier run of its job is open", None, None)
    (lease,) = b.lease()
    assert waits(b, first.id) is None, "a worker has it"
    b.finish([lease], FAILED)
    reason, rank, expected = waits(b, first.id)
    assert (reason, rank) == ("it waits for its next attempt", None)
    assert 10 <= expected <= 15
    b.client.hold(note="moving house")
    b.advance(3_600)
    assert waits(b, later) == ("all triggering is held: moving house", None, None)


def test_no_worker_or_none_that_is_free(b):
    (run,) = made(b, 1, "strange")
    assert waits(b, run) == ("no worker serves task strange", 1, None)
    first, second, third = made(b, 3)
    assert waits(b, first) == ("no worker that serves its task is free", 1, None)
    assert waits(b, second) == ("1 run goes before it in queue default", 2, None)
    assert waits(b, third)[:2] == ("2 runs go before it in queue default", 3)
    b.finish(b.lease())
    assert b.client.run(first).waiting is None
    assert b.client.run(first).to_dict()["waiting"] is None


def test_every_limit_is_named(b):
    b.client.queue("q", concurrency=1)
    b.client.queue("r", rate="1/m")
    b.client.queue_pause("p")
    held = [made(b, 2, queue="q")[1], made(b, 2, concurrency_key="k")[1], made(b, 2, queue="j", concurrency=1)[1]]
    paused, rated = made(b, 1, queue="p")[0], made(b, 1, queue="r")[0]
    b.lease()
    assert [waits(b, run)[:2] for run in held] == [
        ("queue q has 1 run leased, its concurrency is 1", 1),
        ("concurrency key 'k' has all that key_concurrency of queue default allows (1)", 1),
        ("job ~t has 1 run leased, its concurrency is 1", 1),
    ]
    assert waits(b, paused) == ("queue p is paused", 1, None)
    assert waits(b, rated)[:2] == ("queue r starts 1/m", 1)
    b.client.queue("s", key_rate="1/m", key_concurrency=9)
    keyed = made(b, 2, queue="s", concurrency_key="k")
    b.advance(70)
    assert [x[0].hex() for x in b.lease() if x[0].hex() in keyed] == keyed[:1]
    assert waits(b, keyed[1])[:2] == ("queue s starts 1/m of a concurrency key", 1)
    b.engine.draining = True
    assert waits(b, keyed[1])[0] == "the server is stopping"


# Expected starts


def test_expected_by_measured_run_times_workers_and_limits(b):
    b.hello(51, tasks=("t", "u"))
    measure(b)
    runs = made(b, 9)
    assert len(b.lease(n=1) + b.lease(51, n=1)) == 2
    assert [waits(b, run)[2] for run in runs[2:6]] == [10, 15, 20, 25], "two workers with one in hand each, 10 s a run"
    b.client.queue("default", concurrency=1)
    assert waits(b, runs[4])[2] == 40, "one after the other"
    b.client.queue("default", concurrency=None, rate="1/m")
    assert waits(b, runs[2])[2] == 60, "for a token"
    assert waits(b, runs[4])[2] == 180
    b.client.queue("default", rate=None)
    keyed = made(b, 4, concurrency_key="k", priority=9)
    assert len(b.lease(n=1)) == 1
    assert [waits(b, run)[2] for run in keyed[1:]] == [15, 20, 30], "30 s in hand for two; one of a key at a time"
    assert waits(b, made(b, 1, "u")[0])[2] is None, "that task was never measured"
    b.client.queue_pause("default")
    assert waits(b, runs[4])[2] is None


def test_other_queues_take_their_turns(b):
    measure(b)
    runs, other = made(b, 5), made(b, 2, queue="q")
    assert [waits(b, run)[1:] for run in runs] == [(1, 10), (2, 30), (3, 40), (4, 50), (5, 60)]
    assert waits(b, other[1])[1:] == (2, 30)


# Ranks


@pytest.mark.parametrize("seed", range(8))
def test_ranks_are_the_order_in_which_runs_go(b, seed):
    rng = random.Random(seed)
    b.client.queue("q", weights={"a": 3, "b": 2})
    for _ in range(6):
        for _ in range(rng.randint(5, 15)):
            policies = {"priority": rng.choice([4, 5, 5, 6]), "expires_after": rng.choice([None, None, "20h", "30h"])}
            made(b, 1, rng.choice("tu"), queue="q", namespace=rng.choice("aabc"), **policies)
        before = b.engine.state.digest()
        ranks = {r.id: b.client.run(r.id).waiting.rank for r in b.runs() if r.state == "queued"}
        assert sorted(ranks.values()) == list(range(1, len(ranks) + 1))
        assert b.engine.state.digest() == before
        got = b.lease(n=rng.randint(3, 12))
        assert [ranks[x[0].hex()] for x in got] == list(range(1, len(got) + 1)), "asking has moved nothing"
        b.finish(got, rng.choice([OK, NOT_STARTED]))
        b.advance(rng.choice([0.001, 200]))
        if 50 not in b.engine.sessions:
            b.hello(tasks=("t", "u"))


def test_a_rank_beyond_the_bound_is_told_as_such(b, monkeypatch):
    monkeypatch.setattr("wheelsched.reads.waiting.RANKS_MAX", 5)
    runs = made(b, 8)
    assert [waits(b, run)[1] for run in runs] == [1, 2, 3, 4, 5, None, None, None]
    assert waits(b, runs[7]) == ("more than 5 runs of queue default go before it", None, None)


# Cases


def test_starvation_01_a_low_run_starts_within_the_hour_and_says_what_it_waits_for(b):
    """One slot, a steady stream of high-priority runs and one low one."""
    b.client.queue("q", concurrency=1)
    (low,) = made(b, 1, queue="q", priority=0)
    made(b, 3, queue="q", priority=9)
    told = []
    for _ in range(60):
        leases = b.lease()
        assert len(leases) == 1
        told.append(b.client.run(low).waiting)
        made(b, 1, queue="q", priority=9)  # one a minute, as many as go: the line of high ones never gets shorter
        b.work(leases, 60)
        b.finish(leases)
        if b.client.run(low).final:
            break
    run = b.client.run(low)
    assert run.state == "succeeded"
    assert (run.started_at - run.queued_at).total_seconds() <= 3_600
    assert told[0].rank == 3
    assert told[0].reason == "queue q has 1 run leased, its concurrency is 1"


def test_lease_06_a_cancelled_run_whose_lease_ran_out_holds_no_place_of_its_key(b):
    old, new = (b.client.enqueue(CALL, concurrency_key="k", retry=Retry(attempts=5)) for _ in range(2))
    b.lease()
    b.client.cancel(old.id)
    assert waits(b, new.id)[0] == "concurrency key 'k' has all that key_concurrency of queue default allows (1)"
    b.advance(11)
    b.hello(51)
    assert [x[0].hex() for x in b.lease(51)] == [new.id]
    assert b.client.run(old.id).state == "cancelled"


def test_scale_02_runs_that_are_due_at_once_wait_in_line_and_none_is_skipped(b):
    for i in range(200):
        b.put(f"j{i}", Every("1h", anchor=datetime(2026, 3, 2, tzinfo=UTC)))
    b.advance(3_600)
    seen = set()
    for _ in range(20):
        leases = b.lease(n=10)
        seen |= {x[0] for x in leases}
        b.work(leases, 60)
        b.finish(leases)
    assert len(seen) == 200
    with pytest.raises(DeadlineExceededError):
        b.lease(wait_us=NEVER)
    assert {r.state for r in b.runs("j*")} == {"succeeded"}
    assert b.runs("j*", "skipped") == []


def test_a_result_that_does_not_come_says_why():
    with Simulator("2026-03-02T00:00:00Z", tasks={"t": lambda: None}) as sim:
        run = sim.client.enqueue(Call("nosuch"))
        with pytest.raises(RunTimeout, match=r"is queued and nothing more happens in time: no worker serves task nosuch$") as caught:
            run.result()
        assert caught.value.detail["waiting"] == "no worker serves task nosuch"
        later = sim.client.enqueue(Call("t"), delay="1h")
        with pytest.raises(RunTimeout, match=r"is scheduled and nothing more happens in time: its time has not come$"):
            later.result("1s")
