"""Queues: concurrency, keys, rates, pauses, purges and ageing on the real engine; a random world against a dumb oracle."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.rigs.engine import CALL, FAILED, NOT_STARTED, OK, Bench
from wheelsched import Call, Manual, Overlap, Retry
from wheelsched.model.errors import DeadlineExceededError, InvalidArgumentError, NotFoundError
from wheelsched.model.nouns import NEVER, US
from wheelsched.protocol.checks import parse_rate
from wheelsched.verbs import cancels


def made(b, n, **policies):
    return [b.client.enqueue(CALL, **policies) for _ in range(n)]


def told(b, name):
    return b.client.queue(name)


# Concurrency and keys


def test_concurrency_of_a_queue(b):
    b.client.queue("q", concurrency=3)
    made(b, 10, queue="q")
    free = made(b, 2)
    first = b.lease()
    assert len(first) == 5, "three of the queue, and all that has no limit"
    assert {r.id for r in free} <= {x[0].hex() for x in first}
    assert (told(b, "q").queued, told(b, "q").leased) == (7, 3)
    assert b.lease() == []
    mine = [x for x in first if x[0].hex() not in {r.id for r in free}]
    b.finish(mine[:1])
    assert len(b.lease()) == 1
    b.finish(mine[1:2], NOT_STARTED)
    assert b.lease()[0][0] == mine[1][0], "a run that was handed back frees its place and keeps its own in the line"
    b.client.queue("q", concurrency=5)
    assert len(b.lease()) == 2, "a higher limit is effective at once"
    b.client.queue("q", concurrency=None)
    assert len(b.lease()) == 4


def test_one_run_of_a_key_at_a_time_unless_the_queue_says_otherwise(b):
    keys = [made(b, 3, concurrency_key=key) for key in ("a", "b")]
    plain = made(b, 3)
    got = b.lease()
    assert {x[0].hex() for x in got} == {keys[0][0].id, keys[1][0].id, *(r.id for r in plain)}
    b.finish([x for x in got if x[0].hex() == keys[0][0].id])
    (nxt,) = b.lease()
    assert nxt[0].hex() == keys[0][1].id
    b.client.queue("default", key_concurrency=2)
    assert {x[0].hex() for x in b.lease()} == {keys[0][2].id, keys[1][1].id}


def test_a_key_counts_within_its_queue_and_across_jobs_priorities_and_tasks(b):
    b.hello(51, tasks=("t", "u"))
    b.client.put("x", CALL, Manual(), concurrency_key="k", priority=9)
    b.client.trigger("x")
    b.client.enqueue(Call("u"), concurrency_key="k")
    other = b.client.enqueue(CALL, concurrency_key="k", queue="elsewhere")
    got = b.lease(51)
    assert len(got) == 2
    assert other.id in {x[0].hex() for x in got}
    assert [r.state for r in b.runs("x")] == ["leased"], "the higher priority has the key"


def test_a_waiting_retry_holds_no_place(b):
    first, second = made(b, 2, concurrency_key="k", retry=Retry(attempts=2, backoff="60s"))
    b.finish(b.lease(), FAILED)
    assert first.refresh().state == "retry_wait"
    assert [x[0].hex() for x in b.lease()] == [second.id]
    b.advance(5)
    assert b.lease() == []


def test_a_cancelled_lease_frees_its_place_when_its_attempt_ends(b):
    first, second = made(b, 2, concurrency_key="k")
    leases = b.lease()
    b.client.cancel(first.id)
    assert b.lease() == [], "the worker still has it"
    b.finish(leases, FAILED)
    assert first.refresh().state == "cancelled"
    assert [x[0].hex() for x in b.lease()] == [second.id]


def test_a_lost_worker_frees_its_places(b):
    b.client.queue("q", concurrency=2)
    made(b, 4, queue="q", retry=Retry(attempts=1))
    assert len(b.lease()) == 2
    b.hello(51)
    assert b.lease(51) == []
    b.advance(30)
    assert told(b, "q").leased == 0
    assert len(b.lease(51)) == 2


def test_limits_and_counts_survive_a_crash_and_a_snapshot(b):
    b.client.queue("q", concurrency=3, key_concurrency=2)
    made(b, 5, queue="q", concurrency_key="k")
    b.client.queue_pause("p")
    leases = b.lease()
    assert len(leases) == 2
    b.crash()
    b.hello(60)
    assert b.lease(60) == [], "what a worker still has counts after a restart"
    queue = told(b, "q")
    assert (queue.settings, queue.leased, queue.queued) == ({"concurrency": 3, "key_concurrency": 2}, 2, 3)
    assert told(b, "p").paused
    state = type(b.engine.state).load(piece for pieces in b.engine.state.copy(1 << 16) for piece in pieces)
    state.check()
    assert state.digest() == b.engine.state.digest()
    assert state.runs.leased(state.queue_numbers["q"]) == 2
    b.finish(leases[:1], conn=60)
    assert len(b.lease(60)) == 1


def test_who_waits_is_woken_when_a_place_frees(b):
    first, second = made(b, 2, concurrency_key="k")
    leases = b.lease()
    b.hello(51)
    with pytest.raises(DeadlineExceededError):
        b.lease(51, wait_us=NEVER)
    b.finish(leases)
    assert second.refresh().state == "leased"
    assert first.refresh().state == "succeeded"


def test_lines_share_what_a_limit_leaves(b):
    b.client.queue("q", concurrency=2)
    big = made(b, 50, queue="q", namespace="big")
    small = made(b, 5, queue="q", namespace="small")
    served = []
    for _ in range(10):
        leases = b.lease(n=1)
        served += [x[0].hex() for x in leases]
        b.finish(leases)
    assert {r.id for r in small} <= set(served), "one namespace's many runs don't keep the other's out"
    assert len({r.id for r in big} & set(served)) == 5


def test_what_one_line_may_not_use_goes_to_the_others(b):
    b.client.queue("q", concurrency=1)
    made(b, 50, queue="q")
    made(b, 50, queue="q", namespace="n")
    made(b, 50)
    assert len(b.lease(n=20)) == 20


# Rates


def starts(b, seconds, step_us=100_000, conn=50, **lease):
    """Leases that a greedy worker gets in that time."""
    got = []
    for _ in range(seconds * US // step_us):
        b.advance(step_us / US)
        leases = b.lease(conn, n=1_000, **lease)
        b.finish(leases, conn=conn)
        got.append(len(leases))
    return got


def test_a_rate_is_kept_and_its_bucket_begins_empty(b):
    b.client.queue("q", rate="10/s", burst=5)
    made(b, 200, queue="q")
    assert b.lease() == []
    got = starts(b, 5)
    assert sum(got) == 50
    assert max(got) == 1
    b.advance(20)
    assert len(b.lease()) == 5, "after a quiet time the burst"


def test_a_restart_does_not_add_to_a_rate(b):
    b.client.queue("q", rate="6/m", burst=3)
    made(b, 50, queue="q")
    total = 0
    for _ in range(12):
        total += sum(starts(b, 5, US))
        b.crash()
        b.hello()
    assert total <= 6
    total = sum(starts(b, 60, US))
    assert total == 6


def test_a_rate_of_each_key(b):
    b.client.queue("q", key_rate="1/s", key_concurrency=100)
    for key in ("a", "b"):
        made(b, 20, queue="q", concurrency_key=key)
    made(b, 20, queue="q")
    assert len(b.lease()) == 20, "what has no key has no such rate"
    assert sum(starts(b, 10)) == 20


def test_buckets_of_keys_are_forgotten_when_full_and_no_sooner(b, monkeypatch):
    monkeypatch.setattr("wheelsched.engine.queues._BUCKETS_MAX", 3)
    b.crash()
    b.hello()
    b.client.queue("q", key_rate="1/s", key_concurrency=100)
    b.advance(30)
    for key in "abcdefgh":
        made(b, 3, queue="q", concurrency_key=key)
    assert sum(len(b.lease(n=3)) for _ in range(20)) == 8, "one of each key: a bucket that nobody asked for has filled"
    b.advance(2)
    assert sum(len(b.lease(n=3)) for _ in range(20)) == 8


def test_a_waiting_worker_is_woken_for_a_token(b):
    b.client.queue("q", rate="2/s")
    runs = made(b, 3, queue="q")
    with pytest.raises(DeadlineExceededError):
        b.lease(wait_us=NEVER)
    assert b._effects.wake_mono_us == b._mono_us + 500_000
    b.advance(0.6)
    assert [r.refresh().state for r in runs] == ["leased", "queued", "queued"]


@pytest.mark.parametrize(("text", "wanted"), [("100/s", (100, US)), ("5/m", (5, 60 * US)), ("10/30s", (10, 30 * US)), ("1/d", (1, 86_400 * US))])
def test_rates_are_read(text, wanted):
    assert parse_rate(text, "rate") == wanted


@pytest.mark.parametrize("text", ["", "0/s", "5", "5/", "-1/s", "1.5/s", "5/0s", "5/y", 5, None, "5 /s"])
def test_other_texts_are_no_rates(text):
    with pytest.raises(InvalidArgumentError, match="is no rate"):
        parse_rate(text, "rate")


# Settings and verbs


def test_settings_are_kept_changed_and_taken_away(b):
    ws = b.client
    assert ws.queue("q", concurrency=5, rate="9/s").settings == {"concurrency": 5, "rate": "9/s"}
    assert ws.queue("q", burst=2).settings == {"burst": 2, "concurrency": 5, "rate": "9/s"}
    assert ws.queue("q", rate=None, burst=None).settings == {"concurrency": 5}
    before = b.engine.state.meta.seq
    ws.queue("q", concurrency=5)
    assert b.engine.state.meta.seq == before + 1, "only the reply is recorded"
    ws.queue("q", concurrency=None)
    assert b.engine.state.queues == {}
    with pytest.raises(NotFoundError):
        ws.queue("q")
    assert ws.queues() == []
    made(b, 1)
    (default,) = ws.queues()
    assert (default.name, default.queued, default.leased, default.paused, default.settings) == ("default", 1, 0, False, {})
    assert default.oldest == b.runs("~t*")[0].queued_at


@pytest.mark.parametrize(("settings", "error"), [
    ({"concurrency": 0}, InvalidArgumentError), ({"concurrency": True}, InvalidArgumentError), ({"rate": "fast"}, InvalidArgumentError),
    ({"burst": 5}, InvalidArgumentError), ({"weights": {"a": 0}}, InvalidArgumentError), ({"weights": {"a b": 1}}, InvalidArgumentError),
    ({"weights": 3}, InvalidArgumentError), ({"weights": dict.fromkeys(map(str, range(5_001)), 2)}, InvalidArgumentError), ({"concurency": 5}, InvalidArgumentError),
    ({"key_concurrency": 2.5}, InvalidArgumentError), ({"key_rate": 3}, InvalidArgumentError),
])
def test_wrong_settings_are_refused(b, settings, error):
    with pytest.raises(error, match=next(iter(settings))[:6]):
        b.client.queue("q", **settings)
    if "concurency" not in settings:
        with pytest.raises(error):
            b.call(1, ("queue_set", {"rid": b.rid(1), "name": "q", "settings": settings}))
    with pytest.raises(InvalidArgumentError):
        b.call(1, ("queue_set", {"rid": b.rid(2), "name": "q", "settings": {"paused": True}}))
    assert b.engine.state.queues == {}


def test_pause_and_resume(b):
    made(b, 2, queue="q")
    (lease,) = b.lease(n=1)
    assert b.client.queue_pause("q").paused
    assert b.lease() == []
    assert b.finish([lease]) == [1], "what is leased goes on"
    assert [h["reason"] for h in b.client.stats()["held_back"]] == ["queue q is paused"]
    with pytest.raises(DeadlineExceededError):
        b.lease(wait_us=NEVER)
    assert not b.client.queue_resume("q").paused
    assert Counter(b.states("~t*")) == {"leased": 1, "succeeded": 1}
    assert b.engine.state.queues == {}


@pytest.mark.parametrize("piece", [2, cancels.PIECE])
def test_purge_cancels_what_no_worker_has_piece_by_piece(b, monkeypatch, piece):
    monkeypatch.setattr(cancels, "PIECE", piece)
    ws = b.client
    ws.put("many", CALL, Manual(), queue="q", overlap=Overlap("buffer_all"), retry=Retry(attempts=3))
    for _ in range(3):
        ws.trigger("many")
    failed, leased, queued = (ws.enqueue(CALL, queue="q", priority=p) for p in (9, 8, 7))
    later = ws.enqueue(CALL, queue="q", delay="1h")
    other = ws.enqueue(CALL)
    leases = b.lease(queues=["q"], n=2)
    b.finish(leases[:1], FAILED)
    assert ws.queue_purge("q") == 6
    assert [r.refresh().state for r in (failed, leased, queued, later, other)] == ["cancelled", "leased", "cancelled", "cancelled", "queued"]
    assert set(b.states("many")) == {"cancelled"}
    assert ws.queue_purge("q") == 0
    with pytest.raises(NotFoundError):
        ws.queue_purge("nobody")
    b.engine.state.check()


def test_status_says_what_holds_runs_back(b):
    b.client.queue("q", concurrency=1)
    b.client.queue("r", rate="1/m")
    made(b, 3, queue="q")
    made(b, 2, queue="r")
    made(b, 2, concurrency_key="k")
    b.lease()
    held = {h["queue"]: (h["task"], h["runs"], h["reason"]) for h in b.client.stats()["held_back"]}
    assert held == {
        "q": ("t", 2, "queue q has 1 run leased, its concurrency is 1"), "r": ("t", 2, "queue r starts 1/m"),
        "default": ("t", 1, "their concurrency keys have all that key_concurrency of queue default allows (1)"),
    }


# Ageing


def test_waiting_lifts_a_run(b):
    old = made(b, 1, priority=3)[0]
    b.advance(895)
    fresh = made(b, 1, priority=6)[0]
    assert b.lease(n=1)[0][0].hex() == fresh.id, "two steps up: not yet"
    b.advance(5)
    newer = made(b, 1, priority=5)[0]
    assert [x[0].hex() for x in b.lease()] == [old.id, newer.id]


# A random world


class World:
    """Three workers, three queues, a few keys, and a dumb oracle: what is leased and what waits, by run id."""

    def __init__(self, bench, rng):
        self.b, self.rng = bench, rng
        self.waiting, self.leased = {}, {}  # id -> (queue, key)
        self.held = {50: [], 51: [], 52: []}  # leases by connection
        self.settings = {}
        for conn in self.held:
            bench.hello(conn)

    def room(self, place):
        queue, key = place
        mine = self.settings.get(queue, {})
        if mine.get("paused") or sum(q == queue for q, _ in self.leased.values()) >= mine.get("concurrency", NEVER):
            return False
        return key is None or sum(p == place for p in self.leased.values()) < mine.get("key_concurrency", 1)

    def enqueue(self, _conn):
        rng, place = self.rng, (self.rng.choice("xyz"), self.rng.choice([None, None, "a", "b", "c"]))
        for _ in range(rng.randint(1, 4)):
            run = self.b.client.enqueue(CALL, queue=place[0], concurrency_key=place[1], priority=rng.randint(0, 9),
                                        namespace=rng.choice(["m", "n"]), retry=Retry(attempts=50, backoff=0))
            self.waiting[run.id] = place

    def lease(self, conn):
        n = self.rng.choice([1, 2, 7, 100])
        leases = self.b.lease(conn, n)
        for run_id in (x[0].hex() for x in leases):
            place = self.waiting.pop(run_id)
            assert self.room(place), (place, "over the limit")
            self.leased[run_id] = place
        self.held[conn] += leases
        stuck = [p for p in self.waiting.values() if self.room(p)] if len(leases) < n else []
        assert not stuck, (stuck, "waits though there is room")

    def finish(self, conn, outcomes=(OK, FAILED)):
        rng, mine = self.rng, self.held[conn]
        some = [mine.pop(rng.randrange(len(mine))) for _ in range(rng.randint(0, len(mine)))]
        outcome = rng.choice(outcomes)
        assert set(self.b.finish(some, outcome, conn)) <= {1}
        for run_id in (x[0].hex() for x in some):
            place = self.leased.pop(run_id)
            if outcome != OK:
                self.waiting[run_id] = place
        self.b.advance(0.01)  # a retry's wait of no time at all

    def give_back(self, conn):
        self.finish(conn, (NOT_STARTED,))

    def kill(self, conn):
        for _ in range(4):
            for other in set(self.held) - {conn}:
                self.b.heartbeat(self.held[other], other)
            self.b.advance(3)
        self.waiting |= {x[0].hex(): self.leased.pop(x[0].hex()) for x in self.held[conn]}
        self.held[conn] = []
        self.b.hello(conn)

    def limit(self, _conn):
        name, rng = self.rng.choice("xyz"), self.rng
        change = {"concurrency": rng.choice([None, 1, 2, 5]), "key_concurrency": rng.choice([None, 1, 2])}
        self.b.client.queue(name, **change)
        mine = {**self.settings.get(name, {}), **change}
        self.settings[name] = {key: value for key, value in mine.items() if value is not None}

    def pause(self, _conn):
        name, paused = self.rng.choice("xyz"), self.rng.random() < 0.3
        (self.b.client.queue_pause if paused else self.b.client.queue_resume)(name)
        self.settings.setdefault(name, {})["paused"] = paused

    def crash(self, _conn):
        self.b.crash()
        for conn in self.held:
            self.b.hello(conn)

    def check(self):
        for conn, leases in self.held.items():
            self.b.heartbeat(leases, conn)
        state = self.b.engine.state
        for queue, number in state.queue_numbers.items():
            assert state.runs.leased(number) == sum(q == queue for q, _ in self.leased.values())
        state.check()


@pytest.mark.parametrize("seed", range(12))
def test_never_more_than_the_limits_and_nothing_waits_while_there_is_room(seed):
    rng = random.Random(seed)
    with Bench("2026-03-02T00:00:00Z") as b:
        world = World(b, rng)
        deeds = [world.enqueue] * 4 + [world.lease] * 3 + [world.finish] * 3 + [world.limit] * 2
        deeds += [world.give_back, world.kill, world.pause, world.crash]
        for turn in range(150):
            deed, conn = rng.choice(deeds), rng.choice(list(world.held))
            try:
                deed(conn)
                world.check()
            except AssertionError as e:
                raise AssertionError(f"seed {seed}, turn {turn}, {deed.__name__}") from e
        assert world.waiting or world.leased
