"""The compiled tables against a dumb model, under random verbs; dumps load back to equal tables."""

import random

import numpy as np
import pytest

from tests.rigs.tables import apply_event, due, i64, put, reload, u8, u32
from wheelsched.model.ids import job_key, scheduled_run_id
from wheelsched.model.nouns import NEVER, TRANSITIONS, Event, JobState, RunState
from wheelsched.tables._jobs import JOB_DTYPE, JobTable
from wheelsched.tables._runs import DEAD_LETTERS, FINISHED, NO_ROW

NONE = 0xFFFFFFFF


def dumps(table):
    return [table.dump(c) for c in range(table.chunk_total)]


def test_jobs_are_found_by_name_and_by_key():
    jobs = JobTable()
    names = [f"team/job-{i}" for i in range(5_000)]
    rows = put(jobs, *names)
    assert rows.tolist() == list(range(5_000))
    raw = [x.encode() for x in reversed(names)]
    assert jobs.find(raw, b"".join(job_key(x) for x in raw)).tolist() == list(reversed(range(5_000)))
    assert jobs.find_key(job_key(b"team/job-7")) == 7
    assert jobs.find([b"team/none"], job_key(b"team/none")).tolist() == [NONE]
    assert jobs.find_key(job_key(b"team/none")) is None
    jobs.check()
    removed = np.arange(0, 5_000, 3, dtype=np.uint32)
    jobs.remove(removed)
    jobs.check()
    assert len(jobs) == 5_000 - len(removed)
    again = put(jobs, "team/new")
    assert again.tolist() == [0], "the lowest free row is taken"
    assert jobs.gather(again)["version"].tolist() == [1]
    jobs.check()


def test_put_again_replaces_and_counts_versions():
    jobs = JobTable()
    row = put(jobs, "a/b")
    assert jobs.same(row, u32(0), i64(NEVER), [b"payload of a/b"]).tolist() == [1]
    assert jobs.same(row, u32(0), i64(NEVER), [b"other"]).tolist() == [0]
    assert jobs.same(row, u32(1), i64(NEVER), [b"payload of a/b"]).tolist() == [0]
    assert put(jobs, "a/b", "a/b").tolist() == [0, 0]
    assert jobs.gather(row)["version"].tolist() == [3]
    assert len(jobs) == 1


def test_the_row_structs_agree_with_numpy():
    assert JOB_DTYPE.itemsize == 96
    jobs = JobTable()
    row = put(jobs, "a/b", at=77)
    f = jobs.gather(row)[0]
    assert (f["next_us"], f["cursor_us"], f["param_us"], f["created_us"], f["state"]) == (1_000_000, -1, NEVER, 77, JobState.ACTIVE)
    with pytest.raises(IndexError):
        jobs.gather(u32(1))


def test_run_ids_are_computable_from_job_and_time(tables):
    jobs, runs, _ = tables
    row = put(jobs, "a/b")
    s = due(runs, int(row[0]), 1_234_000)
    assert runs.text_id(s) == scheduled_run_id(b"a/b", 1_234_000).hex()
    assert runs.find(scheduled_run_id(b"a/b", 1_234_000)).tolist() == [s]
    assert runs.find(scheduled_run_id(b"a/b", 1_235_000)).tolist() == [NO_ROW]
    assert runs.exists(u32(0, 0), i64(1_234_000, 1_235_000)).tolist() == [1, 0]


def test_a_second_record_for_one_occurrence_is_impossible(tables):
    jobs, runs, _ = tables
    put(jobs, "a/b")
    due(runs, 0, 1_234_000)
    with pytest.raises(AssertionError, match="second record"):
        due(runs, 0, 1_234_000)


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("event", list(Event))
def test_every_transition_is_in_the_table_or_refused_without_a_change(tables, state, event):
    """All pairs: the table of model/nouns.py is what the compiled code does."""
    jobs, runs, _ = tables
    put(jobs, "a/b")
    worker_list = runs.new_list()
    if state in (RunState.SKIPPED, RunState.SCHEDULED):
        s = due(runs, 0, 1_000, state)
    else:
        s = due(runs, 0, 1_000)
        path = {
            RunState.QUEUED: [], RunState.LEASED: [Event.GRANT], RunState.RETRY_WAIT: [Event.GRANT, Event.RETRY],
            RunState.SUCCEEDED: [Event.GRANT, Event.SUCCEED], RunState.DEAD: [Event.GRANT, Event.EXHAUST], RunState.CANCELLED: [Event.CANCEL],
        }[state]
        for e in path:
            apply_event(runs, s, e, worker_list)
    assert runs.gather(u32(s))["state"][0] == state
    before = dumps(runs), dumps(jobs)
    target = TRANSITIONS.get((state, event))
    if target is None:
        with pytest.raises(ValueError, match="illegal"):
            apply_event(runs, s, event, worker_list)
        assert (dumps(runs), dumps(jobs)) == before
    else:
        apply_event(runs, s, event, worker_list)
        assert runs.gather(u32(s))["state"][0] == target
    runs.check()


def test_an_illegal_row_in_a_batch_changes_no_row(tables):
    jobs, runs, line = tables
    put(jobs, "a/b")
    a, b = due(runs, 0, 1_000), due(runs, 0, 2_000)
    runs.change(u32(b), Event.CANCEL, 0)
    worker_list = runs.new_list()
    before = dumps(runs)
    with pytest.raises(ValueError, match="illegal"):
        runs.grant(u32(a, b), 1, worker_list, 1, 0)
    assert dumps(runs) == before
    assert runs.peek(line, 10).tolist() == [a]


def test_given_back_runs_keep_their_place_and_their_attempts(tables):
    jobs, runs, line = tables
    put(jobs, "a/b")
    rows = [due(runs, 0, 1_000 * k) for k in range(1, 7)]
    worker_list = runs.new_list()
    runs.grant(u32(*rows[:4]), 1, worker_list, 10, 0)
    runs.give_back(u32(rows[2], rows[1]))
    assert runs.peek(line, 10).tolist() == [rows[1], rows[2], rows[4], rows[5]]
    assert runs.gather(u32(rows[1]))["attempt"].tolist() == [0]
    assert runs.gather(u32(rows[0]))["attempt"].tolist() == [1]
    assert runs.peek(worker_list, 10).tolist() == [rows[0], rows[3]]
    runs.check()


def test_completions_are_matched_by_run_and_token(tables):
    jobs, runs, _ = tables
    put(jobs, "a/b")
    s = due(runs, 0, 1_000)
    worker_list = runs.new_list()
    runs.grant(u32(s), 1, worker_list, 10, 0)
    ids = runs.ids(u32(s))
    assert runs.held(ids + ids + bytes(16), i64(10, 11, 10))[1].tolist() == [1, 2, 2]
    apply_event(runs, s, Event.SUCCEED, worker_list)
    assert runs.held(ids, i64(10))[1].tolist() == [3]


def test_folding_frees_rows_and_the_job_can_go(tables):
    jobs, runs, _ = tables
    put(jobs, "a/b")
    worker_list = runs.new_list()
    rows = [due(runs, 0, 1_000 * k) for k in range(1, 4)]
    runs.grant(u32(*rows), 1, worker_list, 1, 0)
    for s in rows:
        apply_event(runs, s, Event.SUCCEED, worker_list)
    with pytest.raises(AssertionError):
        jobs.remove(u32(0))
    assert runs.peek(FINISHED, 10).tolist() == rows
    runs.fold(3)
    assert len(runs) == 0
    runs.check()
    jobs.remove(u32(0))
    assert len(jobs) == 0


def test_discarded_dead_letters_stay_discarded_after_a_load(tables):
    jobs, runs, line = tables
    put(jobs, "a/b")
    worker_list = runs.new_list()
    rows = [due(runs, 0, 1_000 * k) for k in range(1, 4)]
    runs.grant(u32(*rows), 1, worker_list, 1, 0)
    for s in rows:
        apply_event(runs, s, Event.EXHAUST, worker_list)
    runs.change(u32(rows[1]), Event.DISCARD, 0)
    _, loaded = reload(jobs, runs, line, worker_list)
    assert loaded.peek(DEAD_LETTERS, 9).tolist() == [rows[0], rows[2]]
    assert loaded.peek(FINISHED, 9).tolist() == [rows[1]]


@pytest.mark.parametrize("seed", range(8))
def test_random_verbs_and_reloads(tables, seed):
    """Counts, lists and lookups hold after every step; a dump loads to a table that dumps the same, also while it changes."""
    rng = random.Random(seed)
    jobs, runs, line = tables
    worker_list = runs.new_list()
    put(jobs, *[f"n/{i}" for i in range(300)])
    alive: dict[int, int] = {}
    token = 1
    for step in range(1_500):
        verb = rng.choice(["due", "due", "grant", "end", "end", "wake", "cancel", "fold", "back"])
        of = {state: [s for s, st in alive.items() if st == state] for state in RunState}
        if verb == "due":
            s = due(runs, rng.randrange(300), 1_000 * (step + 1), rng.choice([RunState.QUEUED, RunState.SCHEDULED]))
            alive[s] = int(runs.gather(u32(s))["state"][0])
        elif verb == "grant" and of[RunState.QUEUED]:
            rows = runs.peek(line, rng.randrange(1, 20))
            runs.grant(rows, 1, worker_list, token, 0)
            token += len(rows)
            alive.update(dict.fromkeys(rows.tolist(), RunState.LEASED))
        elif verb == "end" and of[RunState.LEASED]:
            s = rng.choice(of[RunState.LEASED])
            event = rng.choice([Event.SUCCEED, Event.RETRY, Event.EXHAUST])
            zero = np.zeros(1, np.int64)
            runs.finish(u32(s), u8(event), u8(2), zero, zero, zero, {0: b"x" * rng.randrange(30)}, {0: b"h"} if rng.random() < 0.5 else {})
            alive[s] = TRANSITIONS[RunState.LEASED, event]
        elif verb == "wake" and of[RunState.SCHEDULED] + of[RunState.RETRY_WAIT]:
            s = rng.choice(of[RunState.SCHEDULED] + of[RunState.RETRY_WAIT])
            runs.wake(u32(s), 1)
            alive[s] = RunState.QUEUED
        elif verb == "cancel" and of[RunState.QUEUED]:
            s = rng.choice(of[RunState.QUEUED])
            runs.change(u32(s), Event.CANCEL, 0)
            alive[s] = RunState.CANCELLED
        elif verb == "back" and of[RunState.LEASED]:
            s = rng.choice(of[RunState.LEASED])
            runs.give_back(u32(s))
            alive[s] = RunState.QUEUED
        elif verb == "fold":
            rows = runs.peek(FINISHED, rng.randrange(5))
            runs.fold(len(rows))
            for s in rows.tolist():
                del alive[s]
        if step % 100 == 0:
            runs.check()
            jobs.check()
            assert sorted(alive) == runs.slots(), seed
            fields = runs.gather(np.array(sorted(alive), np.uint32))
            assert fields["state"].tolist() == [alive[s] for s in sorted(alive)], seed
            other_jobs, other = reload(jobs, runs, line, worker_list)
            other.check()
            assert dumps(other) == dumps(runs), seed
            assert dumps(other_jobs) == dumps(jobs), seed
            for list_id in (line, FINISHED, DEAD_LETTERS):
                assert other.peek(list_id, 9_999).tolist() == runs.peek(list_id, 9_999).tolist(), seed


def test_a_snapshot_is_of_one_instant_although_rows_go_on_changing():
    jobs = JobTable()
    put(jobs, *[f"n/{i}" for i in range(20_000)])
    expected = dumps(jobs)
    jobs.copy_begin()
    got = dict(jobs.copy_next(1))
    rng = random.Random(3)
    while pieces := jobs.copy_next(1):
        got.update(pieces)
        for _ in range(50):
            put(jobs, f"n/{rng.randrange(20_000)}", f"new/{rng.randrange(10**9)}")
    assert [got[c] for c in sorted(got)] == expected
    jobs.check()


def test_a_snapshot_that_is_dropped_leaves_a_table_that_makes_the_next_one():
    jobs = JobTable()
    put(jobs, *[f"n/{i}" for i in range(20_000)])
    jobs.copy_begin()
    assert jobs.copy_next(1)
    put(jobs, "n/19999", "new/1")  # its chunk is kept for the snapshot
    jobs.copy_drop()
    assert jobs.copy_next(1) == []
    put(jobs, "new/2")
    expected, got = dumps(jobs), {}
    jobs.copy_begin()
    while pieces := jobs.copy_next(1):
        got.update(pieces)
    assert [got[c] for c in sorted(got)] == expected


def test_damaged_dumps_are_refused():
    jobs = JobTable()
    put(jobs, "a/b", "a/c")
    data = jobs.dump(0)
    for bad in (data[:-1], data + b"x", data[:100], b""):
        with pytest.raises(ValueError, match="chunk"):
            JobTable().load(0, bad)
