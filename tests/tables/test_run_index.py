"""Runs are found by id, by job and time, and by token, however many a job has, live and after a load."""

import random

import numpy as np
import pytest

from tests.rigs.tables import apply_event, due, i64, put, reload, u8, u32
from wheelsched.model.ids import job_key, other_run_id, scheduled_run_id
from wheelsched.model.nouns import NEVER, Event, JobState, RunState, Trigger
from wheelsched.tables._runindex import LONG
from wheelsched.tables._runs import FINISHED, NO_ROW

SIZES = [1, LONG - 1, LONG, LONG + 1, 10_000]
WAITS = -1  # `until` of an occurrence that waits for its turn


def at(k):
    return 1_000_000 * (k + 1)


def many(runs, job, first, n, state=RunState.QUEUED, until=0):
    """Occurrences first .. first + n - 1 of a job."""
    full = np.full
    return runs.due(full(n, job, np.uint32), np.array([at(k) for k in range(first, first + n)], np.int64), full(n, state, np.uint8),
                    full(n, 1, np.uint8), full(n, 0, np.uint8), full(n, until, np.int64), full(n, 0, np.uint32), full(n, 0, np.uint32), 7)


def backfill(runs, job, name, times, state=RunState.QUEUED, due_us=0):
    n = len(times)
    return runs.enqueue(np.full(n, job, np.uint32), b"".join(scheduled_run_id(name, t) for t in times), np.zeros(n, np.uint32),
                        np.full(n, Trigger.BACKFILL, np.uint8), np.array(times, np.int64), np.full(n, due_us, np.int64),
                        np.full(n, state, np.uint8), [b""] * n, 7)


def refuse(runs, job, name, times):
    """No second run of these times, neither by schedule nor by a backfill; nothing has changed."""
    assert runs.exists(np.full(len(times), job, np.uint32), np.array(times, np.int64)).all()
    before = len(runs)
    for t in times:
        with pytest.raises(AssertionError, match="second record"):
            due(runs, job, t)
        with pytest.raises(AssertionError, match="second record"):
            backfill(runs, job, name, [t])
    assert len(runs) == before


@pytest.mark.parametrize("how", ["queued", "in line", "backfilled", "backfilled in line"])
@pytest.mark.parametrize("size", SIZES)
def test_a_second_run_of_one_time_is_refused_however_many_runs_a_job_has(tables, size, how):
    jobs, runs, line = tables
    put(jobs, "a/other", "a/b")
    if how == "queued":
        many(runs, 1, 0, size)
    elif how == "in line":
        many(runs, 1, 0, size, RunState.SCHEDULED, WAITS)
    else:
        state = RunState.SCHEDULED if "line" in how else RunState.QUEUED
        backfill(runs, 1, b"a/b", [at(k) for k in range(size)], state, WAITS if "line" in how else 0)
    picked = sorted({0, size // 3, size - 1})
    for _ in range(2):
        runs.check()
        refuse(runs, 1, b"a/b", [at(k) for k in picked])
        assert runs.exists(u32(1, 0), i64(at(size), at(0))).tolist() == [0, 0]
        found = runs.find(b"".join(scheduled_run_id(b"a/b", at(k)) for k in range(size + 1)))
        assert (found[:-1] != NO_ROW).all()
        assert len(set(found[:-1].tolist())) == size
        assert found[-1] == NO_ROW
        assert runs.find(scheduled_run_id(b"a/other", at(0))).tolist() == [NO_ROW]
        jobs, runs = reload(jobs, runs, line)


@pytest.mark.parametrize("size", SIZES)
def test_what_leaves_a_job_of_many_runs_may_come_again_and_what_stays_may_not(tables, size):
    jobs, runs, line = tables
    put(jobs, "a/b")
    rows = many(runs, 0, 0, size)
    runs.change(rows, Event.CANCEL, 0)
    kept = min(3, size - 1)
    runs.fold(size - kept)
    runs.check()
    gone = [at(k) for k in range(size - kept)]
    assert not runs.exists(np.zeros(len(gone), np.uint32), np.array(gone, np.int64)).any()
    refuse(runs, 0, b"a/b", [at(k) for k in range(size - kept, size)])
    again = many(runs, 0, 0, size - kept)
    runs.check()
    refuse(runs, 0, b"a/b", [at(0), at(size - 1)])
    runs.change(again, Event.CANCEL, 0)
    runs.fold(size)
    assert len(runs) == 0
    runs.check()
    many(runs, 0, 0, size)  # the job was empty: it begins anew
    runs.check()
    refuse(reload(jobs, runs, line)[1], 0, b"a/b", [at(0), at(size - 1)])


def test_runs_with_ids_of_their_own_are_found_beside_those_of_the_schedule(tables):
    jobs, runs, line = tables
    put(jobs, "a/b")
    ids = []
    for k in range(40):
        many(runs, 0, k, 1)
        ids += [scheduled_run_id(b"a/b", at(k)), other_run_id(b"a/b", at(k), 9, k)]
        n = len(runs) + 1
        runs.enqueue(u32(0), ids[-1], u32(0), u8(Trigger.ENQUEUE), i64(at(k)), i64(NEVER), u8(RunState.QUEUED), [b"p"], 7)
        assert len(runs) == n
        runs.check()
        with pytest.raises(AssertionError, match="second record"):
            runs.enqueue(u32(0), ids[-1], u32(0), u8(Trigger.ENQUEUE), i64(at(k)), i64(NEVER), u8(RunState.QUEUED), [b"p"], 7)
    for table in (runs, reload(jobs, runs, line)[1]):
        table.check()
        rows = table.find(b"".join(ids))
        assert b"".join(ids) == table.ids(rows)


def test_jobs_whose_keys_are_equal_keep_their_runs_apart(tables):
    jobs, runs, _ = tables
    key = job_key(b"a/first")
    jobs.put([b"a/first", b"a/second"], key + key, [b"", b""], u32(0, 0), i64(NEVER, NEVER), i64(1, 1), i64(-1, -1),
             np.full(2, JobState.ACTIVE, np.uint8), 5)
    many(runs, 0, 0, 3)
    many(runs, 1, 5, LONG)
    for k, job in ((0, 0), (2, 0), (5, 1), (5 + LONG - 1, 1)):
        (row,) = runs.find(scheduled_run_id(b"a/first", at(k)))
        assert runs.gather(u32(row))["job"].tolist() == [job]
    runs.check()


def test_a_token_finds_its_run_while_it_is_leased(tables):
    jobs, runs, line = tables
    put(jobs, *[f"a/{i}" for i in range(2_000)])
    worker_list, first = runs.new_list(), 3 << 32
    rows = runs.due(np.arange(2_000, dtype=np.uint32), np.full(2_000, at(0)), np.full(2_000, RunState.QUEUED, np.uint8),
                    np.ones(2_000, np.uint8), np.zeros(2_000, np.uint8), np.zeros(2_000, np.int64), np.zeros(2_000, np.uint32),
                    np.zeros(2_000, np.uint32), 7)
    runs.grant(rows[:1_500], 1, worker_list, first, 8)
    token = np.arange(first, first + 1_500)
    runs.check()
    assert (runs.held(runs.ids(rows[:1_500]), token)[1] == 1).all()
    assert runs.held(runs.ids(rows[:1_500]), token, 2)[1].tolist() == [4] * 1_500, "another worker's"
    assert runs.held(runs.ids(rows[1:1_500]) + runs.ids(rows[:1]), token)[1].tolist() == [2] * 1_500, "the id is compared all the same"
    runs.give_back(rows[:100])
    runs.change(rows[100:200], Event.CANCEL, 0)
    for s, event in ((200, Event.SUCCEED), (201, Event.RETRY), (202, Event.EXHAUST), (203, Event.SPARE)):
        apply_event(runs, int(rows[s]), event, worker_list)
    runs.check()
    said = runs.held(runs.ids(rows[:204]), token[:204])
    assert said[0].tolist() == rows[:204].tolist()
    assert said[1].tolist() == [3] * 204, "it ended under that token, or was handed back"
    for table in (runs, reload(jobs, runs, line, worker_list)[1]):
        table.check()
        assert (table.held(table.ids(rows[204:1_500]), token[204:])[1] == 1).all()
    runs.grant(rows[:100], 1, worker_list, first + 9_000, 9)
    runs.check()
    assert runs.held(runs.ids(rows[:1]) * 2, i64(first, first + 9_000))[1].tolist() == [2, 1]
    assert runs.held(bytes(32), i64(0, -1))[1].tolist() == [2, 2], "no tokens at all"


def test_tokens_of_two_generations_with_equal_counters(tables):
    jobs, runs, _ = tables
    put(jobs, "a/b")
    worker_list = runs.new_list()
    rows = many(runs, 0, 0, 3_000)
    runs.grant(rows[:1_500], 1, worker_list, 1 << 32, 8)
    runs.grant(rows[1_500:], 1, worker_list, 2 << 32, 8)
    runs.check()
    order = list(range(3_000))
    random.Random(5).shuffle(order)
    for part in (order[:1_000], order[1_000:2_000], order[2_000:]):
        picked = rows[np.array(sorted(part))]
        runs.give_back(np.ascontiguousarray(picked))
        runs.check()
    assert not len(runs.peek(worker_list, 1))


def test_a_token_that_is_none_is_refused_before_anything_changes(tables):
    jobs, runs, line = tables
    put(jobs, "a/b")
    s = due(runs, 0, at(0))
    with pytest.raises(AssertionError, match="token"):
        runs.grant(u32(s), 1, runs.new_list(), 0, 8)
    assert runs.peek(line, 9).tolist() == [s]
    assert runs.peek(FINISHED, 9).tolist() == []
    runs.check()
