"""put: what a job keeps and what it loses when it is put anew, and instants to the last millisecond."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rigs.engine import CALL, ask_put, at, fold
from wheelsched import At, Cron, Every, Manual
from wheelsched.model.errors import AlreadyExistsError, InvalidArgumentError, ScheduleError
from wheelsched.model.nouns import FRAME_JOBS_MAX, INSTANT_MAX_US, NEVER, TOMBSTONE_US, US, to_datetime
from wheelsched.protocol.definition import given_from_api


def after(hours):
    return Every(hours * 3_600, after_completion=True)


def frame(names, schedule, params):
    """Arguments of put_many."""
    given, _ = given_from_api(CALL, schedule, {})
    n = len(names)
    return {"rid": bytes(16), "names": names, "payload": [ask_put()["payload"]] * n, "given": [given], "which": bytes(4 * n),
            "param_us": np.array(params, "<i8").tobytes()}


# Delays after completion


@pytest.mark.parametrize(("start", "first"), [("01:00", "02:00"), ("02:00", "02:00"), ("03:00", "03:00")])
def test_the_first_delay_ends_neither_before_it_is_over_nor_before_start(b, start, first):
    b.put(schedule=after(2), start=at(f"2026-03-02T{start}"))
    assert b.client.get("j").next_at == at(f"2026-03-02T{first}")


def test_a_job_whose_next_time_is_its_start_keeps_it_when_it_is_changed_shortly_before(b):
    b.put(schedule=after(1), start=at("2026-03-02T02:00"))
    b.advance("90m")
    b.put(schedule=after(1), start=at("2026-03-02T02:00"), priority=3)
    assert b.client.get("j").next_at == at("2026-03-02T02:00")


@pytest.mark.parametrize("before", [1, 0])
def test_a_job_that_is_changed_the_instant_it_comes_due_goes_on(b, before):
    b.put(schedule=after(1))
    b.advance(3_600 - before)
    b.put(schedule=after(1), priority=3)
    job = b.client.get("j")
    assert job.state == "active"
    assert job.next_at == (at("2026-03-02T01:00") if before else at("2026-03-02T02:00"))
    b.advance(before)
    assert b.states() == ["queued"]


# Instants


@pytest.mark.parametrize(("instant", "fits"), [(0, False), (1, True), (2, True), (3, True), (4, False)])
def test_a_one_time_job_may_be_at_its_start_and_at_its_end_and_not_beside(b, instant, fits):
    ends = {"start": at("2026-03-02T01:00:00.001"), "end": at("2026-03-02T01:00:00.003")}
    schedule = At(to_datetime(b.now_us + 3_600 * US + instant * 1_000))
    if not fits:
        with pytest.raises(ScheduleError, match=f"the instant is {'after' if instant else 'before'} (start|end), so it could never fire"):
            b.put(schedule=schedule, **ends)
        return
    b.put(schedule=schedule, **ends)
    b.advance("1h")
    b.advance(1)
    assert len(b.runs("j")) == 1


@pytest.mark.parametrize(("param", "fits"), [(-1, False), (0, True), (INSTANT_MAX_US, True), (INSTANT_MAX_US + 1, False)])
def test_a_frame_takes_each_instant_that_there_is_and_no_other(b, param, fits):
    asked = frame(["a"], At("2026-05-01T00:00:00Z"), [param])
    if fits:
        b.ask("put_many", asked)
        assert [job.name for job in b.client.jobs()] == ["a"]
    else:
        with pytest.raises(InvalidArgumentError, match="param_us is out of range"):
            b.ask("put_many", asked)


@pytest.mark.parametrize(("more", "said"), [(-1, False), (0, False), (86_400 * US, True)])
def test_who_puts_a_frame_with_a_time_so_long_past_that_names_are_forgotten_is_told(b, more, said):
    answer = b.ask("put_many", frame(["a", "b"], At("2026-05-01T00:00:00Z"), [b.now_us + US, b.now_us - TOMBSTONE_US - more]))
    assert [i for i, text in answer.get("said", []) if "days past" in text] == [1] * said


@pytest.mark.parametrize(("n", "fits"), [(0, False), (1, True), (2, True), (FRAME_JOBS_MAX + 1, False)])
def test_a_frame_has_one_job_at_least_and_no_more_than_it_may(b, n, fits):
    asked = frame([f"j{i}" for i in range(n)], Every("1h"), [NEVER] * n)
    if fits:
        assert len(b.ask("put_many", asked)["result"]) == n
    else:
        with pytest.raises(InvalidArgumentError, match=f"1 to {FRAME_JOBS_MAX} jobs a frame, not {n}"):
            b.ask("put_many", asked)


@pytest.mark.parametrize("which", [0, 1, 2**32 - 1])
def test_a_frame_names_no_definition_that_it_does_not_have(b, which):
    asked = {**frame(["a", "b"], Every("1h"), [NEVER] * 2), "which": np.array([0, which], "<u4").tobytes()}
    if which == 0:
        assert b.ask("put_many", asked)["result"] == bytes([1, 1])
        return
    with pytest.raises(InvalidArgumentError, match="which names a row of `given` that is not there"):
        b.ask("put_many", asked)
    assert b.engine.state.find_job(b"default/a") is None


def test_a_frame_with_a_job_twice_stores_none_of_it(b):
    with pytest.raises(InvalidArgumentError, match=r"job 2 of the frame: job default/a|job a is in the frame twice"):
        b.ask("put_many", frame(["a", "b", "a"], Every("1h"), [NEVER] * 3))
    assert b.engine.state.find_job(b"default/b") is None


@pytest.mark.parametrize(("fired", "state"), [(1, "active"), (2, "finished"), (3, "finished")])
def test_a_job_that_has_had_the_max_runs_it_is_given_anew_is_finished(b, fired, state):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.advance(fired * 3_600 + 60)
    b.put(schedule=Cron("0 * * * *"), overlap="allow", max_runs=2)
    job = b.client.get("j")
    assert (job.state, job.next_at is None) == (state, state == "finished")


@pytest.mark.parametrize(("period", "kept"), [("1h", True), ("2h", False)])
def test_an_interval_keeps_its_anchor_as_long_as_it_stays_the_same(b, period, kept):
    b.put(schedule=Every("1h"))
    b.advance("10m")
    b.put(schedule=Every(period), priority=3)
    assert b.client.get("j").next_at == (at("2026-03-02T01:00") if kept else at("2026-03-02T02:10"))


def test_a_manual_job_is_not_finished_though_it_has_no_time(b):
    b.put(schedule=Manual())
    assert b.client.get("j").state == "active"
    b.put(schedule=Manual(), priority=3)
    assert b.client.get("j").state == "active"


@pytest.mark.parametrize("paused", [None, True, False])
def test_a_put_says_whether_a_job_is_paused_or_leaves_it(b, paused):
    b.ask("put", ask_put(rid=bytes(16)))
    b.client.pause("j")
    b.ask("put", ask_put(rid=bytes([1] * 16), paused=paused))
    assert b.client.get("j").state == ("active" if paused is False else "paused")
    assert (b.client.get("j").next_at is None) == (paused is not False)


def test_a_version_that_is_wanted_is_the_one_that_is_there(b):
    b.ask("put", ask_put(version=0, rid=bytes(16)))
    for wrong in (0, 2):
        with pytest.raises(AlreadyExistsError, match=f"is at version 1, not {wrong}"):
            b.ask("put", ask_put(version=wrong, note="x", rid=bytes([wrong] * 15 + [1])))
    assert b.ask("put", ask_put(version=1, note="x", rid=bytes([9] * 16)))["result"] == "updated"


# What a new schedule takes along


def waiting(b):
    """A job with an open run and a waiting one."""
    b.put(schedule=Every("1h", anchor=at("2026-03-02T00:00")), overlap="buffer_one")
    b.advance("2h1m")
    assert b.states() == ["queued", "scheduled"]


@pytest.mark.parametrize(("anchor", "left"), [("00:00", ["queued", "scheduled"]), ("00:30", ["queued"])])
def test_what_waits_for_its_turn_is_superseded_by_another_anchor_only(b, anchor, left):
    waiting(b)
    b.put(schedule=Every("1h", anchor=at(f"2026-03-02T{anchor}")), overlap="buffer_one", priority=3)
    assert b.states() == left


@pytest.mark.parametrize(("bounds", "left"), [({}, 2), ({"start": "2026-03-02T00:00:30"}, 1), ({"end": "2026-03-09T00:00"}, 1)])
def test_what_waits_for_its_turn_is_superseded_by_another_start_or_end(b, bounds, left):
    waiting(b)
    bounds = {key: at(text) for key, text in bounds.items()}
    b.put(schedule=Every("1h", anchor=at("2026-03-02T00:00")), overlap="buffer_one", priority=3, **bounds)
    assert len(b.states()) == left


def test_a_skip_of_a_time_that_the_new_schedule_does_not_have_is_forgotten_and_no_other_mark(b):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.client.skip("j", at("2026-03-02T02:00"))
    b.client.skip("j", at("2026-03-02T04:00"))
    b.client.move("j", at("2026-03-02T03:00"), at("2026-03-02T05:45"))
    b.put(schedule=Cron("0 4-23 * * *"), overlap="allow")
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.advance("5h30m")
    told = [(f"{r.scheduled_at:%H:%M}", r.state) for r in b.runs("j", skipped=True)]
    assert told == [("01:00", "queued"), ("02:00", "queued"), ("03:00", "scheduled"), ("04:00", "skipped"), ("05:00", "queued")]


def test_what_was_moved_to_an_earlier_time_and_ran_does_not_run_again_after_a_schedule_without_it(b):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.client.move("j", at("2026-03-02T05:00"), at("2026-03-02T00:10"))
    b.advance("11m")
    b.finish(b.lease())
    fold(b)
    b.put(schedule=Cron("0 6-23 * * *"), overlap="allow")
    b.put(schedule=Cron("0 4-23 * * *"), overlap="allow")
    b.advance("6h")
    assert [f"{r.scheduled_at:%H:%M}" for r in b.runs("j")] == ["04:00", "05:00", "06:00"]
    assert [f"{r.created_at:%H:%M}" for r in b.runs("j")] == ["04:00", "00:00", "06:00"]


def test_a_skip_of_another_job_is_not_forgotten(b):
    for name in ("j", "k"):
        b.put(name, schedule=Cron("0 * * * *"), overlap="allow")
        b.client.skip(name, at("2026-03-02T01:00"))
    b.put("j", schedule=Cron("30 * * * *"), overlap="allow")
    b.advance("70m")
    assert [r.state for r in b.runs("k", skipped=True)] == ["skipped"]
    assert [c.what for c in b.client.history("k")] == ["skip", "create"]


def test_the_history_of_a_job_has_no_mark_of_another_one(b):
    for name, hour in (("j", 1), ("k", 2)):
        b.put(name, schedule=Cron("0 * * * *"), overlap="allow")
        b.client.skip(name, at(f"2026-03-02T0{hour}:00"))
    b.put("j", schedule=Cron("30 * * * *"), overlap="allow")
    told = [(c.what, c.note) for c in b.client.history("j")]
    assert [what for what, note in told if note and "02:00:00Z" in note] == []
    assert [what for what, note in told if note and "01:00:00Z" in note] == ["undo skip", "skip"]


@pytest.mark.parametrize(("more", "said"), [(0, False), (1_000, True)])
def test_who_puts_several_times_of_which_one_is_so_long_past_is_told(b, more, said):
    schedule = [At(to_datetime(b.now_us + US)), At(to_datetime(b.now_us - TOMBSTONE_US - more))]
    answer = b.ask("put", ask_put(schedule=schedule, rid=bytes(16)))
    assert ("days past" in answer.get("said", "")) == said
