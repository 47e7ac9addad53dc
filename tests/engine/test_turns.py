"""Turns: runs of one job that wait for each other. Who is sent back obeys the job's overlap; what a turn costs; who holds an identity."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from tests.rigs.engine import FAILED, Bench, at
from wheelsched import Call, Catchup, Cron, Every, FailedPreconditionError, Overlap
from wheelsched.simulator.simulator import Simulator

START = "2026-03-02T00:00:00Z"


def dead(b, n=3, name="j", **policies):
    """A job with so many dead letters, one a minute; it is paused."""
    b.put(name, retry=1, **policies)
    for _ in range(n):
        b.advance(60)
        b.finish(b.lease(), FAILED)
    b.client.pause(name)
    assert b.states(name) == ["dead"] * n


def sent_back(b, way):
    """Send all dead letters back."""
    if way == "match":
        return b.client.redrive(match="*")
    if way == "ids":
        return b.client.redrive(ids=[r.id for r in reversed(list(b.client.dead()))])
    return b.client.backfill("j", at("2026-03-02T00:00"), b.now, only="failed", overlap="buffer_all")


def ends_in_turn(b, n, limit=1):
    """Work all that is open, never more than the limit at once; the runs in the order in which they were leased."""
    order = []
    for _ in range(3 * n):
        held = b.lease()
        assert len(held) <= limit
        order += [run_id.hex() for run_id, _, _ in held]
        b.finish(held)
        if not any(r.state in ("scheduled", "queued") for r in b.runs("j")):
            break
    return order


@pytest.mark.parametrize("way", ["match", "ids", "backfill"])
@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_latest", "buffer_all", "cancel_other"])
def test_s5_dead_runs_that_are_sent_back_run_one_after_another(b, way, policy):
    dead(b, overlap=policy)
    sent_back(b, way)
    assert b.states() == ["queued", "scheduled", "scheduled"]
    ids = [r.id for r in b.runs("j")]
    assert ends_in_turn(b, 3) == ids  # in nominal order
    assert b.states() == ["succeeded"] * 3


def test_s5_they_wait_for_an_active_run(b):
    dead(b)
    b.client.trigger("j")
    held = b.lease()
    b.client.redrive(match="*")
    assert b.states().count("scheduled") == 3
    assert b.lease() == []
    b.finish(held)
    assert len(b.lease()) == 1


def test_s5_what_allows_some_lets_so_many_go(b):
    dead(b, 5, overlap=Overlap("allow", 2))
    b.client.redrive(match="*")
    assert b.states() == ["queued"] * 2 + ["scheduled"] * 3
    assert len(ends_in_turn(b, 5, limit=2)) == 5


def test_s5_a_backfill_with_a_limit_of_its_own_sends_back_by_it(b):
    dead(b, 5)
    b.client.backfill("j", at("2026-03-02T00:00"), b.now, only="failed", overlap=Overlap("allow", 3))
    assert b.states() == ["queued"] * 3 + ["scheduled"] * 2


def test_s5_enqueued_runs_wait_for_nobody(b):
    for i in range(3):
        b.client.enqueue(Call("t", i), retry=1)
    b.finish(b.lease(), FAILED)
    b.client.redrive(match="*")
    assert len(b.lease()) == 3


def test_s5_at_a_rate_each_waits_for_its_instant_and_for_its_turn(b):
    dead(b)
    b.client.redrive(match="*", rate="1/m")
    assert b.states() == ["queued", "scheduled", "scheduled"]
    held = b.lease()
    b.work(held, 150)
    assert b.states() == ["leased", "scheduled", "scheduled"]
    b.finish(held)
    assert b.states() == ["succeeded", "queued", "scheduled"]
    assert len(ends_in_turn(b, 2)) == 2


def test_s5_their_turns_survive_a_crash_and_a_snapshot(b):
    dead(b, 4)
    b.client.redrive(match="*", rate="1/m")
    b.crash(down=600)
    b.hello()
    ids = [r.id for r in b.runs("j")]
    assert ends_in_turn(b, 4) == ids


def test_s5_of_a_deleted_job_too(b):
    dead(b)
    b.client.delete("j")
    b.client.redrive(match="*")
    assert b.states() == ["queued", "scheduled", "scheduled"]
    assert len(ends_in_turn(b, 3)) == 3


@pytest.mark.parametrize("policy", ["skip", "buffer_latest", "cancel_other", "kill_other", "buffer_one"])
def test_s5_no_later_occurrence_takes_their_place_nor_they_its(b, policy):
    dead(b, overlap=policy)
    b.client.resume("j")
    b.client.redrive(match="*")
    held = b.lease()
    b.work(held, 65)
    assert b.states()[:3] == ["leased", "scheduled", "scheduled"]
    assert b.states()[3:] == ["scheduled"]  # the fresh occurrence waits, it is not dropped
    b.finish(held)
    b.client.pause("j")
    assert len(ends_in_turn(b, 3)) == 3
    assert b.states() == ["succeeded"] * 4


def test_s5_a_new_schedule_leaves_them_alone(b):
    dead(b)
    b.client.redrive(match="*")
    b.put(schedule=Cron("0 3 * * *"))
    assert b.states() == ["queued", "scheduled", "scheduled"]


def test_s5_one_that_was_given_up_stays_so(b):
    dead(b, 1)
    (letter,) = b.client.dead()
    b.client.discard(ids=[letter.id])
    with pytest.raises(FailedPreconditionError, match="no dead letters"):
        b.client.redrive(ids=[letter.id])
    assert b.client.backfill("j", at("2026-03-02T00:00"), b.now, only="failed").count == 0


# Identities


def unique(b, **more):
    return b.client.enqueue(Call("t", 1), unique=True, retry=1, **more)


def two_open(b):
    """A dead letter that was sent back, and a newer run with its identity."""
    first = unique(b)
    b.finish(b.lease(), FAILED)
    b.client.queue_pause("default")
    second = unique(b)
    assert not second.existing
    b.client.redrive(match="*")
    return first, second


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("ended", [0, 1])
def test_s6_an_identity_is_held_by_every_open_run_of_it(b, ended, crash):
    pair = two_open(b)
    assert unique(b).id == pair[1].id
    b.client.cancel(pair[ended].id)
    if crash:
        b.crash()
        b.hello()
    again = unique(b)
    assert (again.existing, again.id) == (True, pair[1 - ended].id)
    b.client.cancel(pair[1 - ended].id)
    assert not unique(b).existing


def test_s6_three_that_died_hold_it_together(b):
    runs = []
    for _ in range(3):
        runs.append(unique(b))
        b.finish(b.lease(), FAILED)
    b.client.queue_pause("default")
    b.client.redrive(match="*")
    for run in reversed(runs):
        again = unique(b)
        assert (again.existing, again.id) == (True, run.id)
        b.client.cancel(run.id)
    assert not unique(b).existing


def test_s6_one_that_was_given_up_holds_nothing(b):
    unique(b)
    b.finish(b.lease(), FAILED)
    b.client.discard(match="*")
    run = unique(b)
    b.client.cancel(run.id)
    b.advance("2m")
    assert not any(key.startswith(b"unique") for key in b.engine.state.keys)


def test_s6_a_snapshot_keeps_all_holders(b):
    first, second = two_open(b)
    b.client.cancel(second.id)
    state = b.engine.state
    pieces = iter([piece for part in state.copy(2**20) for piece in part])
    loaded = type(state).load(pieces)
    (key,) = [key for key in state.keys if key.startswith(b"unique")]
    assert loaded.keys[key] == state.keys[key]
    assert loaded.keys[key].holders(loaded.runs).hex() == first.id
    assert loaded.digest() == state.digest()


# Dead letters of deleted jobs


@pytest.mark.parametrize("deleted", [True, False])
def test_s11_a_dead_letter_that_is_sent_back_gets_all_its_attempts_and_is_one_again(b, deleted):
    b.put(retry=2)
    b.advance(60)
    b.client.pause("j")
    for _ in range(2):
        b.finish(b.lease(), FAILED)
        b.advance(60)
    if deleted:
        b.client.delete("j")
    b.client.redrive(match="*")
    b.finish(b.lease(), FAILED)
    assert b.states() == ["retry_wait"]
    b.advance(60)
    b.finish(b.lease(), FAILED)
    (run,) = b.runs("j")
    assert (run.state, run.attempt) == ("dead", 4)
    assert [letter.id for letter in b.client.dead()] == [run.id]


def test_s11_its_hooks_are_called_when_it_succeeds(b):
    b.put("then", Cron("0 0 1 1 *"))
    dead(b, 1, on_success="then")
    b.client.delete("j")
    b.client.redrive(match="*")
    b.finish(b.lease())
    assert b.states("then") == ["queued"]


def test_s11_what_is_under_way_at_the_delete_is_not_retried(b):
    dead(b, 1)
    b.client.redrive(match="*")
    held = b.lease()
    b.client.delete("j")
    b.finish(held, FAILED)
    assert b.states() == ["cancelled"]


# What a turn costs


def turn_cost(n, runs=20):
    """(rows that walks went by, rows that were read) of each end of a run, with so many waiting."""
    with Bench(START) as b:
        b.hello()
        b.put(schedule=Cron("* * * * *"))
        b.client.pause("j")
        b.advance(60 * n + 30)
        b.client.resume("j")
        assert b.client.backfill("j", b.now - timedelta(minutes=n), b.now - timedelta(seconds=5)).count == n
        b.finish(b.lease())
        before = b.engine.state.runs.passed
        for _ in range(runs):
            held = b.lease()
            assert len(held) == 1
            b.finish(held)
        cost = (b.engine.state.runs.passed - before) / runs
        b.engine.state.check()
        return cost


def test_s8_a_turn_costs_the_same_however_many_wait():
    few, many = turn_cost(100), turn_cost(12_000)
    assert many < few + 40  # the logarithm; a walk past those that wait would be 12,000


def test_s8_other_commands_walk_past_nobody_who_waits(b):
    n = 5_000
    b.put(schedule=Cron("* * * * *"), overlap="buffer_latest")
    b.client.pause("j")
    b.advance(60 * n + 30)
    b.client.resume("j")
    b.client.backfill("j", b.now - timedelta(minutes=n), b.now - timedelta(seconds=5))
    b.finish(b.lease())
    runs = b.engine.state.runs
    for what in (
        lambda: b.advance(60), lambda: b.client.why("j", b.now.replace(second=0)), lambda: b.client.pause("j"), lambda: b.client.resume("j"),
        lambda: b.client.next("j", 5), lambda: b.put(schedule=Cron("*/2 * * * *"), overlap="buffer_latest"),
        lambda: b.client.skip("j", b.client.next("j", 1)[0]), lambda: b.client.cancel(b.runs("j")[-1].id),
        lambda: b.put(schedule=Cron("* * * * *"), overlap="skip"), lambda: b.advance(120),
    ):
        before = runs.passed
        what()
        assert runs.passed - before < 200
    with pytest.raises(FailedPreconditionError, match="busy"):
        b.client.trigger("j")
    assert runs.passed - before < 400


def test_s8_occurrences_that_catch_up_is_in_the_way_of_walk_past_nobody_who_waits():
    with Bench(START) as b:
        b.put(schedule=Cron("* * * * *"), catchup=Catchup("all", window="90d", max=100_000))
        b.crash(down=60 * 6_000)
        b.hello()
        b.advance(0)
        assert b.states().count("scheduled") > 5_900
        held = b.lease()
        assert len(held) == 1
        before = b.engine.state.runs.passed
        b.work(held, 600)
        assert [r.reason for r in b.runs("j", skipped=True)][-1] == "overlap"
        assert b.engine.state.runs.passed - before < 2_000
        b.engine.state.check()


def test_s8_a_large_backfill_and_a_large_catch_up_are_made_in_pieces():
    with Bench(START) as b:
        made = []
        step = b.engine.step

        def watched(*args):
            before = b.engine.counters["created"]
            effects = step(*args)
            made.append(b.engine.counters["created"] - before)
            return effects

        b.put(schedule=Cron("* * * * *"))
        b.client.pause("j")
        b.advance(60 * 10_000 + 30)
        b.client.resume("j")
        b.engine.step = watched
        found = b.client.backfill("j", b.now - timedelta(minutes=10_000), b.now - timedelta(seconds=5), backwards=True)
        assert (found.count, found.total) == (10_000, 10_000)
        assert sum(made) == 10_000
        assert max(made) <= 4_096
        again = b.client.backfill("j", b.now - timedelta(minutes=10_000), b.now - timedelta(seconds=5))
        assert (again.count, again.existing) == (0, 10_000)
        b.engine.state.check()


def test_s8_catch_up_in_pieces_makes_all_of_them_in_order(b):
    b.put(schedule=Cron("* * * * *"), catchup=Catchup("all", window="90d", max=5_000))
    b.crash(down=60 * 7_000)
    b.hello()
    for _ in range(10):
        b.advance(0)
    waiting = [r for r in b.runs("j") if r.state in ("queued", "scheduled")]
    assert 5_000 <= len(waiting) <= 5_001
    times = [r.scheduled_at for r in waiting]
    assert all(later - earlier == timedelta(minutes=1) for earlier, later in pairwise(times))
    rows = [r for r in b.runs("j", skipped=True) if r.state == "skipped"]
    assert [r.reason for r in rows if r.reason != "overlap"] == ["max"]  # one came due meanwhile
    assert sum(r.count for r in rows) + len(waiting) >= 7_000
    assert b.runs("j")[0].state == "queued"


def test_a_line_gives_back_its_runs_in_order_whoever_leaves(b):
    """The heap against a sorted list, with runs that leave from anywhere."""
    b.put(schedule=Cron("* * * * *"))
    b.client.pause("j")
    b.advance(60 * 300 + 30)
    b.client.resume("j")
    b.client.backfill("j", b.now - timedelta(minutes=300), b.now - timedelta(seconds=5), backwards=True)
    rng = np.random.default_rng(7)
    left = [r.id for r in b.runs("j") if r.state == "scheduled"]
    while len(left) > 20:
        run = left.pop(int(rng.integers(len(left))))
        b.client.cancel(run)
        if rng.random() < 0.5:
            b.engine.state.check()
            (run_id, _, _), = held = b.lease()
            b.finish(held)
            (now,) = [r.id for r in b.runs("j") if r.state == "queued"]
            assert now == left.pop()  # the newest of those that are left


def test_s5_and_s6_as_the_simulator_shows_them():
    failing = [1]

    def work():
        if failing:
            raise RuntimeError

    with Simulator(START, tasks={"work": work}) as sim:
        sim.client.put("j", Call("work"), Every("10m"), retry=1, overlap="skip")
        sim.advance("31m")
        failing.clear()
        sim.client.backfill("j", at("2026-03-02T00:00"), sim.now, only="failed", overlap="buffer_all")
        assert [r.state for r in sim.runs("j")] == ["queued", "scheduled", "scheduled"]
        sim.advance("1m")
        assert [r.state for r in sim.runs("j")] == ["succeeded"] * 3
