"""max_runs: `next`, `why` and `forecast` tell one story, and the ledger has a row a range."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.rigs.engine import OK, Bench
from wheelsched import Cron, Every
from wheelsched.model.errors import NotFoundError


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def told(b, times, name="j"):
    return [(w.disposition, w.reason) for w in (b.client.why(name, at) for at in times)]


def at(b, hour):
    return b.now.replace(day=2, hour=hour, minute=0, second=0, microsecond=0)


PENDING, LIMIT, FIRED = ("pending", None), ("skipped", "limit"), ("fired", None)


def agree(b, n, name="j"):
    """The three questions about the next two days have one answer, of n starts."""
    coming = b.client.next(name, 100)
    assert len(coming) == n
    assert b.client.forecast("48h").starts == n
    assert set(told(b, coming, name)) <= {PENDING}
    assert b.client.get(name).next_at == (coming[0] if n else None)


@pytest.mark.parametrize("schedule", [Cron("0 * * * *"), Every("1h"), [Cron("0 * * * *"), Cron("30 23 * * *")]], ids=["cron", "every", "union"])
def test_s12_three_are_three(b, schedule):
    b.put(schedule=schedule, max_runs=3)
    agree(b, 3)
    assert told(b, [at(b, h) for h in (1, 2, 3, 4, 9)]) == [PENDING] * 3 + [LIMIT] * 2
    b.hello()
    b.advance("61m")
    b.finish(b.lease(), OK)
    agree(b, 2)
    assert told(b, [at(b, h) for h in (1, 2, 3, 4)]) == [FIRED, PENDING, PENDING, LIMIT]
    assert "earlier occurrences use up the 2 that max_runs leaves" in b.client.why("j", at(b, 4)).text


def run_out(b, **policies):
    b.put(schedule=Cron("0 * * * *"), max_runs=3, **policies)
    b.hello()
    for _ in range(3):
        b.advance("60m")
        b.finish(b.lease(), OK)
    assert b.client.get("j").state == "finished"


@pytest.mark.parametrize("change", [{"priority": 7}, {"timeout": "5m"}, {"note": "x"}, {"jitter": "1m"}])
def test_s12_finished_stays_finished_whatever_else_is_put(b, change):
    run_out(b)
    agree(b, 0)
    assert told(b, [at(b, 4), at(b, 5)]) == [LIMIT, LIMIT]
    b.advance("90m")  # 04:30
    b.put(schedule=Cron("0 * * * *"), max_runs=3, **change)
    assert b.client.get("j").state == "finished"
    assert told(b, [at(b, h) for h in (1, 3, 4, 5, 9)]) == [FIRED, FIRED, LIMIT, LIMIT, LIMIT]
    agree(b, 0)
    b.client.delete("j")
    assert told(b, [at(b, 3), at(b, 4)]) == [FIRED, LIMIT]


def test_s12_what_was_before_the_job_is_on_no_record(b):
    b.advance("90m")
    b.put(schedule=Cron("0 * * * *"), max_runs=1)
    with pytest.raises(NotFoundError):
        b.client.why("j", at(b, 1))
    b.advance("60m")
    with pytest.raises(NotFoundError):
        b.client.why("j", at(b, 1))


def test_s12_more_runs_are_given(b):
    run_out(b)
    b.put(schedule=Cron("0 * * * *"), max_runs=5)
    agree(b, 2)
    assert told(b, [at(b, h) for h in (4, 5, 6)]) == [PENDING, PENDING, LIMIT]


def test_s12_end_start_and_max_runs(b):
    b.put(schedule=Cron("0 * * * *"), max_runs=5, start=at(b, 2), end=at(b, 4))
    agree(b, 3)
    assert told(b, [at(b, h) for h in (1, 2, 4, 5)]) == [LIMIT, PENDING, PENDING, LIMIT]
    b.put(schedule=Cron("0 * * * *"), max_runs=2, start=at(b, 2), end=at(b, 4))
    agree(b, 2)
    assert told(b, [at(b, h) for h in (1, 2, 3, 4, 5)]) == [LIMIT, PENDING, PENDING, LIMIT, LIMIT]


def test_s12_a_calendar_and_a_person_use_nothing(b):
    b.client.calendar("c", windows=[(at(b, 2), at(b, 4))])
    b.put(schedule=Cron("0 * * * *"), max_runs=3, calendar="c")
    b.client.skip("j", at(b, 5))
    assert [t.hour for t in b.client.next("j", 9)] == [1, 4, 6]
    agree(b, 3)
    assert told(b, [at(b, h) for h in range(1, 8)]) == [
        PENDING, ("skipped", "calendar"), ("skipped", "calendar"), PENDING, ("skipped", "manual"), PENDING, LIMIT]


def test_s12_a_moved_occurrence_uses_one(b):
    b.put(schedule=Cron("0 * * * *"), max_runs=2)
    b.client.move("j", at(b, 5), at(b, 6))
    assert [t.hour for t in b.client.next("j", 9)] == [1]
    assert told(b, [at(b, 1), at(b, 2)]) == [PENDING, LIMIT]
    b.put("k", schedule=Cron("0 * * * *"), max_runs=1)
    b.client.move("k", at(b, 5), at(b, 6))
    assert (b.client.next("k", 9), b.client.get("k").next_at) == ([], None)
    assert told(b, [at(b, 1)], "k") == [LIMIT]


def test_s12_paused_and_one_time(b):
    b.put(schedule=Cron("0 * * * *"), max_runs=2)
    b.client.pause("j")
    assert (b.client.next("j", 9), b.client.forecast("48h").starts, b.client.get("j").next_at) == ([], 0, None)
    assert told(b, [at(b, h) for h in (1, 9)]) == [("pending", "pause")] * 2, "until it is resumed nobody knows"
    b.client.resume("j")
    agree(b, 2)


def test_s12_the_jitter_of_the_last_run(b):
    """It has no next time that would bound it: `why` tells where it starts."""
    b.put(schedule=Cron("0 * * * *"), max_runs=1, jitter="10h", overlap="allow")
    wanted = b.client.why("j", at(b, 1)).at
    b.advance(to=at(b, 1) + timedelta(seconds=1))
    (run,) = b.runs("j")
    assert (run.next_at or run.queued_at) == wanted


def test_what_max_runs_cuts_off_a_catch_up_is_one_row(b):
    b.put(schedule=Cron("* * * * *"), max_runs=3, catchup="all", overlap="buffer_all")
    b.crash(down="10h")
    b.advance(0)
    rows = [(r.reason, r.count) for r in b.runs("j", skipped=True) if r.state == "skipped"]
    assert rows == [("limit", 596)]
    assert len(b.runs("j")) == 3
    assert told(b, [at(b, 9)]) == [LIMIT]
    assert b.client.get("j").state == "finished"


def test_an_overlap_range_ends_where_a_calendar_excludes(b):
    """Of occurrences that one run blocks, with excluded ones between them, each stretch has its own row."""
    t = b.now
    b.client.calendar("c", windows=[(t + timedelta(seconds=16), t + timedelta(seconds=24))])
    b.put(schedule=Every("4s"), calendar="c")
    b.hello()
    b.advance("5s")
    held = b.lease()
    b.work(held, 35)
    rows = [(r.reason, (r.scheduled_at - t).seconds, r.count) for r in b.runs("j", skipped=True) if r.state == "skipped"]
    assert sorted(rows, key=lambda r: r[1]) == [("overlap", 8, 2), ("calendar", 16, 2), ("overlap", 24, 5)]
    assert told(b, [t + timedelta(seconds=n) for n in (12, 20, 28)]) == [("skipped", "overlap"), ("skipped", "calendar"), ("skipped", "overlap")]


def test_s12_a_paused_job_whose_last_run_was_moved_says_so(b):
    b.put(schedule=Cron("0 * * * *"), max_runs=1)
    b.client.pause("j")
    assert told(b, [at(b, 9)]) == [("pending", "pause")]
    b.client.move("j", at(b, 5), at(b, 6))
    assert told(b, [at(b, 9)]) == [("skipped", "limit")]
