"""Whose turn it is: weights, deadlines, order and concurrency of jobs, on the real engine against a dumb oracle."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK, Bench
from wheelsched import Call, Cron, Manual, Retry
from wheelsched.model.nouns import NEVER, US


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.hello(tasks=("t", "u", "v"))
        yield bench


def made(b, n, task="t", **policies):
    return [b.client.enqueue(Call(task), **policies).id for _ in range(n)]


def order(b, n=1_000, **lease):
    """Ids that a worker gets, in token order."""
    got = b.lease(n=n, **lease)
    assert [x[1] for x in got] == sorted(x[1] for x in got)
    return [x[0].hex() for x in got]


# Weights


def draw(b, whose, credit, most):
    """Lease with these credits and finish until `most` were leased: namespaces in the order of tokens."""
    got = []
    while len(got) < most:
        leases = b.lease(n=min(credit(), most - len(got)))
        got += [whose[x[0].hex()] for x in leases]
        b.finish(leases)
    return got


@pytest.mark.parametrize("seed", range(4))
def test_shares_follow_weights_exactly_at_every_moment_whatever_the_lines_and_credits(b, seed):
    rng = random.Random(seed)
    weights = {"a": rng.randint(1, 9), "b": rng.choice([2, 3, 50]), "c": 1}
    b.client.queue("q", weights={k: w for k, w in weights.items() if k != "c"})
    whose, lines = {}, {"a": 40, "b": 1, "c": 5}
    for name, n in lines.items():
        for i in range(300):
            key = f"{name}{i % n}" if n > 1 else None
            whose |= dict.fromkeys(made(b, 1, queue="q", namespace=name, concurrency_key=key), name)
    b.client.queue("q", key_concurrency=1_000)
    seen, left = Counter(), Counter(whose.values())
    for name in draw(b, whose, lambda: rng.choice([1, 1, 2, 7, 30]), 500):
        seen[name] += 1
        left[name] -= 1
        if min(left.values()) == 0:
            break
        for x, y in combinations(weights, 2):
            apart = abs(Fraction(seen[x], weights[x]) - Fraction(seen[y], weights[y]))
            assert apart <= Fraction(1, weights[x]) + Fraction(1, weights[y]), (seen, weights)
    assert sum(seen.values()) > 200


def test_nobody_is_passed_over_twice(b):
    names = [f"n{i}" for i in range(20)]
    whose = {run: name for name in names for run in made(b, 20 if name != "n0" else 300, namespace=name)}
    got = draw(b, whose, lambda: 3, 400)
    for i in range(0, 400, 20):
        assert len(set(got[i : i + 20])) == 20, "each once in a round"


def test_who_comes_back_is_next_and_has_saved_up_nothing(b):
    whose = dict.fromkeys(made(b, 300, namespace="big"), "big")
    draw(b, whose, lambda: 10, 100)
    whose |= dict.fromkeys(made(b, 50, namespace="small"), "small")
    got = draw(b, whose, lambda: 1, 60)
    assert got[0] == "small"
    assert Counter(got) == {"small": 30, "big": 30}


def test_weights_change_at_once_and_are_taken_away(b):
    whose = {run: name for name in "ab" for run in made(b, 200, queue="q", namespace=name)}
    for weights, wanted in (({"a": 4}, 80), ({"a": 1, "b": 4}, 20), (None, 50)):
        b.client.queue("q", weights=weights)
        assert abs(Counter(draw(b, whose, lambda: 7, 100))["a"] - wanted) <= 2
    assert b.client.queue("q", weights={"a": 2}).settings == {"weights": {"a": 2}}
    b.crash()
    assert b.engine.state.queues == {"q": {"weights": {"a": 2}}}
    b.hello()
    assert abs(Counter(draw(b, whose, lambda: 7, 60))["a"] - 40) <= 2
    b.client.queue("q", weights={})
    assert b.engine.state.queues == {}


def test_queues_take_turns_and_weights_count_in_their_queue_alone(b):
    b.client.queue("q", weights={"a": 100})
    whose = {run: (queue, name) for queue in "qr" for name in "ab" for run in made(b, 150, queue=queue, namespace=name)}
    got = Counter(draw(b, whose, lambda: 5, 100))
    assert (got["r", "a"], got["r", "b"]) == (25, 25)
    assert got["q", "a"] >= 49


def test_a_namespace_with_a_limit_that_is_used_up_leaves_its_share_to_the_others(b):
    b.client.queue("q", weights={"a": 9}, concurrency=8)
    made(b, 5, queue="q", namespace="a", concurrency_key="k")
    mine = made(b, 20, queue="q", namespace="b")
    got = order(b)
    assert len(got) == 8
    assert len(set(got) & set(mine)) == 7


# Order


def test_priority_then_deadline_then_waiting_across_lines(b):
    late = made(b, 1, "u", expires_after="2h")
    plain = made(b, 2, "t") + made(b, 1, "v")
    soon = made(b, 1, "t", expires_after="1h")
    first = made(b, 1, "v", priority=6)
    more = made(b, 1, "u")
    b.advance(1)
    sooner = made(b, 1, "v", expires_after="30m")
    assert order(b) == [*first, *sooner, *soon, *late, *plain, *more]


def test_a_run_that_was_started_has_no_deadline_any_more_and_hides_none(b):
    retried = made(b, 1, "t", expires_after="1h", retry=Retry(attempts=5, backoff="1s"))
    b.finish(b.lease(), FAILED)
    plain = made(b, 1, "u")
    b.advance(2)
    fresh = made(b, 1, "t", expires_after="1h")
    assert order(b) == [*fresh, *plain, *retried]


def test_a_run_that_was_handed_back_keeps_deadline_and_place(b):
    first, second = made(b, 2, "t", expires_after="1h")
    other = made(b, 1, "u")
    leases = b.lease(n=1)
    assert leases[0][0].hex() == first
    b.finish(leases, NOT_STARTED)
    assert order(b) == [first, second, *other]


def test_what_makes_up_for_the_past_stands_behind(b):
    b.client.put("daily", CALL, Cron("0 * * * *"))
    b.client.backfill("daily", "2026-03-01T20:00:00Z", "2026-03-01T21:00:00Z", overlap="allow")
    fresh = made(b, 2)
    got = order(b)
    assert got[:2] == fresh
    assert len(got) == 4


# Concurrency of a job


def of_job(b, leases, job):
    """Those leases that are of one job's runs."""
    mine = {r.id for r in b.runs(job)}
    return [x for x in leases if x[0].hex() in mine]


def test_concurrency_of_a_job_counts_for_it_alone_and_frees_its_places(b):
    b.put("j", overlap="allow", concurrency=2)
    b.put("free", overlap="allow")
    for _ in range(6):
        b.client.trigger("j")
        b.client.trigger("free")
    leases = b.lease()
    mine = of_job(b, leases, "j")
    assert (len(mine), len(leases)) == (2, 8)
    assert b.lease() == []
    assert [h["reason"] for h in b.client.stats()["held_back"]] == ["job j has 2 runs leased, its concurrency is 2"]
    b.finish(mine[:1])
    more = b.lease()
    assert len(more) == 1, "the place of the one that ended"
    b.finish(more, NOT_STARTED)
    assert [x[0] for x in b.lease()] == [more[0][0]], "one that was handed back freed its place and kept its own"
    b.finish(mine[1:], FAILED)
    assert len(b.lease()) == 1, "one that waits for its retry holds no place"


def test_concurrency_of_a_job_over_crashes_and_snapshots(b):
    b.put("j", overlap="allow", concurrency=2)
    for _ in range(5):
        b.client.trigger("j")
    leases = b.lease(n=1) + b.lease(n=1)
    for _ in range(3):
        b.crash()
        b.hello(60)
        assert b.lease(60) == [], "what a worker may still have counts after a restart"
    state = type(b.engine.state).load(piece for pieces in b.engine.state.copy(1 << 16) for piece in pieces)
    state.check()
    assert state.digest() == b.engine.state.digest()
    b.finish(leases[:1], conn=60)
    assert len(b.lease(60)) == 1


def test_a_limited_job_keeps_its_number_to_itself_and_a_new_one_holds_for_new_runs(b):
    assert b.put("j", overlap="allow", concurrency=1).spec["concurrency"] == 1
    assert "concurrency_of" not in b.client.get("j").spec
    b.put("k", overlap="allow", concurrency=1)
    for _ in range(3):
        b.client.trigger("j")
        b.client.trigger("k")
    assert len(b.lease()) == 2, "two jobs with equal definitions are two"
    b.put("k", overlap="allow", concurrency=3)
    b.client.trigger("k")
    assert b.lease() == [], "while runs with several numbers wait the smallest holds"
    assert next(iter(b.client.history("k"))).changes == {"concurrency": (1, 3)}
    done = b.put("k", overlap="allow", concurrency=3)
    assert done.result == "unchanged"


def test_an_enqueued_run_counts_with_those_of_its_task_and_namespace(b):
    for _ in range(3):
        b.client.enqueue(Call("t"), concurrency=1)
        b.client.enqueue(Call("t"), concurrency=1, namespace="team")
        b.client.enqueue(Call("u"), concurrency=1)
    got = b.lease()
    assert len(got) == 3
    assert {r.job for r in b.runs() if r.id in {x[0].hex() for x in got}} == {"~t", "team/~t", "~u"}


@pytest.mark.parametrize("seed", range(6))
def test_no_job_ever_has_more_leased_than_it_may(b, seed):
    rng, most, held, conn = random.Random(seed), {"a": 1, "b": 3, "c": None}, [], 50
    for name, n in most.items():
        b.put(name, Manual(), overlap="allow", retry=Retry(attempts=9, backoff=0), **({"concurrency": n} if n else {}))
    for _ in range(150):
        what = rng.random()
        if what < 0.4:
            b.client.trigger(rng.choice("abc"))
        elif what < 0.7:
            held += b.lease(conn, n=rng.randint(1, 5))
        elif what < 0.9 and held:
            rng.shuffle(held)
            some, held = held[:2], held[2:]
            b.finish(some, rng.choice([OK, FAILED, NOT_STARTED]), conn=conn)
        elif what > 0.97:
            b.crash()
            conn += 1
            b.hello(conn, tasks=("t", "u", "v"))
        elif what > 0.95:
            b.advance(11)  # the leases of a worker that says nothing run out
            held, conn = [], conn + 1
            b.hello(conn, tasks=("t", "u", "v"))
        leased = Counter(r.job for r in b.runs() if r.state in ("leased", "running"))
        assert all(leased[name] <= n for name, n in most.items() if n), leased
        b.engine.state.check()
    b.advance(1)
    open_now, leased = Counter(r.job for r in b.runs() if not r.final), Counter(r.job for r in b.runs() if r.state == "leased")
    for x in b.lease(conn):
        leased[b.client.run(x[0].hex()).job] += 1
    for name, n in most.items():
        assert leased[name] == min(open_now[name], n or 10_000), "no place is lost either"


class Oracle:
    """One run at a time, all over again: the same rules without any structure."""

    def __init__(self, weights):
        self.weights, self.clocks, self.served = weights, {}, {}
        self.waiting = {}  # id -> (namespace, priority, queued, deadline or NEVER, number)
        self.lines = {}  # id -> what is FIFO

    def pick(self, n, now_us):
        got = []
        while len(got) < n and self.waiting:
            heads = {}
            for run, what in sorted(self.waiting.items(), key=lambda x: x[1][4]):
                heads.setdefault(self.lines[run], (run, what))
            rank = {run: min(9, w[1] + max(0, now_us - w[2]) // (300 * US)) for run, w in heads.values()}
            best = max(rank.values())
            last = self.served.get(best, Fraction(0))
            clock = {w[0]: max(self.clocks.get((best, w[0]), Fraction(0)), last) for run, w in heads.values() if rank[run] == best}
            tops = {}
            for run, what in heads.values():
                key = what[3], what[4]
                if rank[run] == best and (what[0] not in tops or key < tops[what[0]][0]):
                    tops[what[0]] = key, run
            name = min(tops, key=lambda x: (clock[x], self.waiting[tops[x][1]][4]))
            self.served[best] = clock[name]
            self.clocks[best, name] = clock[name] + Fraction(1, self.weights.get(name, 1))
            got.append(tops[name][1])
            del self.waiting[got[-1]]
        return got


@pytest.mark.parametrize("seed", range(10))
def test_every_batch_is_what_the_rules_say(b, seed):
    rng = random.Random(seed)
    weights = {"a": 3, "b": 2}
    b.client.queue("q", weights=weights)
    oracle, number = Oracle(weights), 0
    for _ in range(60):
        if rng.random() < 0.6:
            for _ in range(rng.randint(1, 6)):
                name, task, priority = rng.choice("aabc"), rng.choice("tuv"), rng.choice([4, 5, 5, 5, 6])
                hours = rng.choice([None, None, 20, 30])
                (run,) = made(b, 1, task, queue="q", namespace=name, priority=priority, expires_after=f"{hours}h" if hours else None)
                number += 1
                deadline = NEVER if hours is None else b.now_us + hours * 3_600 * US
                oracle.waiting[run] = name, priority, b.now_us, deadline, number
                oracle.lines[run] = name, task, priority, hours
        else:
            n = rng.choice([1, 2, 5, 30])
            leases = b.lease(n=n)
            assert [x[0].hex() for x in leases] == oracle.pick(n, b.now_us)
            b.finish(leases)
        b.advance(rng.choice([0.001, 1, 200]))
        if 50 not in b.engine.sessions:
            b.hello(tasks=("t", "u", "v"))
    b.engine.state.check()
