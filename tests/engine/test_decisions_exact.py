"""Catch-up, due times, leases, turns and limits: the neighbours of each limit, one step to either side."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rigs.engine import CALL, FAILED, OK, Bench, Recorded, at
from wheelsched import Catchup, Cron, Every, Manual, Retry
from wheelsched.engine.leases import NAME_MAX, QUEUES_MAX
from wheelsched.model.errors import FailedPreconditionError, InvalidArgumentError
from wheelsched.model.nouns import BATCH_MAX, FRAME_JOBS_MAX, US
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload

START = "2026-03-02T00:00:00Z"
HOURLY = Cron("0 * * * *")


@pytest.fixture
def b():
    with Recorded(START) as bench:
        bench.hello()
        yield bench
        bench.engine.state.check()


def fates(b, job="j"):
    """{time: (disposition, reason)} of single occurrences and of ranges, by their first."""
    return {f"{r.scheduled_at:%H:%M}": (r.disposition, r.reason) for r in b.runs(job, skipped=True)}


def held(b, hours):
    """All triggering is held for so long."""
    b.client.hold()
    b.advance(hours * 3_600)
    b.client.release()
    b.advance(0)


# Catch-up


def test_what_is_folded_into_nothing_is_skipped_since_max_runs_is_used_up(b):
    b.put(schedule=HOURLY, max_runs=1, catchup="latest")
    b.client.move("j", at("2026-03-02T05:00"), at("2026-03-02T00:30"))
    b.advance("31m")
    b.finish(b.lease())
    held(b, 3)
    told = fates(b)
    told.pop("05:00")
    assert {disposition for disposition, _ in told.values()} == {"skipped"}
    assert len(b.runs("j")) == 1
    assert b.client.get("j").state == "finished"


def test_what_is_folded_into_nothing_is_skipped_since_the_job_is_busy(b):
    b.put(schedule=HOURLY, catchup="latest", overlap="skip")
    b.advance("1h")
    held(b, 3)
    assert len(b.runs("j")) == 1
    assert "coalesced" not in [disposition for disposition, _ in fates(b).values()]
    assert b.client.why("j", at("2026-03-02T03:00")).disposition == "skipped"


def test_what_is_folded_into_a_run_is_told_as_folded(b):
    b.put(schedule=HOURLY, catchup="latest", overlap="skip")
    held(b, 3.5)
    assert [disposition for disposition, _ in fates(b).values()] == ["coalesced", "fired"]


@pytest.mark.parametrize("hours", [1.5, 3.5, 4.5])
def test_catch_up_does_not_run_again_when_the_clock_goes_back(b, hours):
    """The cursor stands behind all that was decided, excluded times too."""
    b.client.calendar("two", daily=["01:30-02:30"])
    b.put(schedule=HOURLY, calendar="two", catchup="all", overlap="allow")
    held(b, hours)
    made = [r.scheduled_at.hour for r in b.runs("j")]
    assert made == [h for h in (1, 3, 4) if h <= hours]
    assert b.client.get("j").to_dict()["cursor"] == f"2026-03-02T0{int(hours)}:00:00.000000Z"
    b.step_clock(-1_200)
    b.advance("25m")
    assert [r.scheduled_at.hour for r in b.runs("j")] == made


def test_times_that_a_calendar_took_before_the_first_of_a_catch_up_are_told(b):
    b.client.calendar("early", daily=["00:30-02:30"])
    b.put(schedule=HOURLY, calendar="early")
    b.crash(down="4h30m")
    b.advance(0)
    for hour in (1, 2):
        assert b.client.why("j", at(f"2026-03-02T0{hour}:00")).reason == "calendar"
    assert b.client.why("j", at("2026-03-02T04:00")).disposition == "fired"


def test_a_wall_time_that_a_zone_change_took_before_the_first_of_a_catch_up_is_told():
    with Bench("2026-03-28T12:00:00Z") as b:
        b.put(schedule=Cron("30 2 * * *", tz="Europe/Berlin", dst_gap="skip"))
        b.crash(down="3d")
        b.advance(0)
        assert [(r.scheduled_at.day, r.disposition, r.reason) for r in b.runs("j", skipped=True)] == [
            (29, "skipped", "dst_gap"), (30, "coalesced", "misfire"), (31, "fired", "misfire")]


@pytest.mark.parametrize(("beyond", "runs"), [("1h59m59.999s", 1), ("2h", 1), ("2h0.001s", 0)])
def test_an_occurrence_that_is_as_old_as_the_window_runs(b, beyond, runs):
    b.put(schedule=Cron("0 1 * * *"), catchup=Catchup("latest", window="1h"))
    b.client.hold()
    b.advance(beyond)
    b.client.release()
    b.advance(0)
    assert len(b.runs("j")) == runs


# What is due


def test_a_moved_occurrence_that_was_the_last_one_leaves_none_to_wait(b):
    b.put(schedule=HOURLY, overlap="buffer_all", max_runs=2)
    b.advance("1h")
    b.client.move("j", at("2026-03-02T05:00"), at("2026-03-02T01:30"))
    b.advance("2h")
    assert len(b.runs("j")) == 2
    assert b.client.why("j", at("2026-03-02T02:00")).reason == "limit"


def test_a_job_whose_last_occurrence_replaced_one_is_finished(b):
    b.put(schedule=HOURLY, overlap="buffer_latest", end=at("2026-03-02T03:00"))
    b.advance("3h1m")
    assert [f"{r.scheduled_at:%H:%M}" for r in b.runs("j")] == ["01:00", "03:00"]
    assert b.client.get("j").state == "finished"


def test_what_was_made_and_skipped_is_counted(b):
    before = b.client.stats()["counters"]
    b.put(schedule=HOURLY, overlap="skip")
    b.advance("3h")
    after = b.client.stats()["counters"]
    assert (after["created"] - before["created"], after["skipped"] - before["skipped"]) == (1, 2)


# Turns


@pytest.mark.parametrize("order", [("idle", "busy"), ("busy", "idle")])
def test_a_job_that_is_over_counts_its_delay_though_another_one_tries_again(b, order):
    for name in order:
        b.put(name, schedule=Every("60s", after_completion=True), retry=Retry(2, 600))
    b.advance("60s")
    leases = b.lease()
    failed = bytes.fromhex(b.runs("busy")[0].id)
    n = len(leases)
    b.call(50, ("finish", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(),
        "outcome": bytes([FAILED if x[0] == failed else OK for x in leases]), "started_us": np.full(n, b.now_us, "<i8").tobytes(),
        "ended_us": np.full(n, b.now_us, "<i8").tobytes(), "result": [],
    }))
    b.advance(0)
    assert b.client.get("idle").next_at == at("2026-03-02T00:02")
    assert b.client.get("busy").next_at is None


# Leases


@pytest.mark.parametrize("wait", [-1, True, 1.5, "1"])
def test_a_lease_that_waits_for_no_number_of_microseconds_is_refused(b, wait):
    with pytest.raises(InvalidArgumentError, match="wait_us is a number of microseconds"):
        b.call(50, ("lease", {"queues": [], "credits": 1, "wait_us": wait}))


@pytest.mark.parametrize(("credit", "fits"), [(-1, False), (True, False), (1, True), (BATCH_MAX, True), (BATCH_MAX + 1, False)])
def test_a_lease_asks_for_as_many_runs_as_a_batch_may_have(b, credit, fits):
    asked = ("lease", {"queues": [], "credits": credit, "wait_us": 0})
    if fits:
        assert b.call(50, asked)["n"] == 0
    else:
        with pytest.raises(InvalidArgumentError, match="credits is a whole number"):
            b.call(50, asked)


@pytest.mark.parametrize(("names", "length", "fits"), [(QUEUES_MAX, 1, True), (QUEUES_MAX + 1, 1, False), (1, NAME_MAX, True), (1, NAME_MAX + 1, False)])
def test_a_lease_names_so_many_queues_and_no_longer_names(b, names, length, fits):
    asked = ("lease", {"queues": ["q" * length] * names, "credits": 1, "wait_us": 0})
    if fits:
        assert b.call(50, asked)["n"] == 0
    else:
        with pytest.raises(InvalidArgumentError, match="queues is a list of at most 100 names, each of at most 200 characters"):
            b.call(50, asked)


@pytest.mark.parametrize(("short", "state"), [(1_000, "leased"), (0, "retry_wait")])
def test_a_lease_lasts_to_its_last_instant_and_no_longer(b, short, state):
    run = b.client.enqueue(CALL, retry=Retry(2, 600))
    b.heartbeat(b.lease())
    b.advance((b.engine.lease_us - short) / US)
    assert b.client.run(run.id).state == state


@pytest.mark.parametrize("n", [1, 2, 5])
def test_each_of_several_runs_ends_when_its_worker_does_not_end_it(b, n):
    runs = [b.client.enqueue(CALL, timeout=20) for _ in range(n)]
    leases = b.lease()
    asked = {"id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "started": bytes([1] * n), "progress": []}
    for _ in range(30):
        b.call(50, ("heartbeat", asked))
        b.advance(5)
    assert [b.client.run(run.id).attempts[0].outcome for run in runs] == ["timed_out"] * n


# Queues


@pytest.mark.parametrize("more", [{}, {"concurrency": 50}])
def test_a_queue_whose_rate_was_taken_away_gives_all(b, more):
    b.client.queue("default", rate="1/h", burst=1, **more)
    for _ in range(5):
        b.client.enqueue(CALL)
    b.advance(0)
    assert b.lease() == [], "its bucket fills in an hour"
    b.client.queue("default", rate=None, burst=None)
    assert len(b.lease()) == 5


# Dead letters


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_no_ids_at_all_send_nothing_back_and_leave_no_record(b, verb):
    b.records.clear()
    assert b.ask(verb, {"ids": [], "rid": bytes(16)})["count"] == 0
    assert not {"REDRIVE", "SEND_BACK", "RUNS"} & {kind for kind, _ in b.records}


@pytest.mark.parametrize("ids", ["abc", {"a": 1}, 7, ["00" * 16] * (FRAME_JOBS_MAX + 1)])
def test_ids_of_dead_letters_that_are_no_list_or_too_many_are_refused(b, ids):
    with pytest.raises(InvalidArgumentError, match=f"ids: a list of at most {FRAME_JOBS_MAX} run ids"):
        b.ask("discard", {"ids": ids, "rid": bytes(16)})


# Occurrences


@pytest.mark.parametrize("ran", [False, True])
def test_an_occurrence_that_has_its_run_is_not_moved(b, ran):
    b.put(schedule=HOURLY, overlap="allow")
    if ran:
        b.advance("61m")
        with pytest.raises((FailedPreconditionError, InvalidArgumentError)):
            b.client.move("j", at("2026-03-02T01:00"), at("2026-03-02T03:30"))
    else:
        b.client.move("j", at("2026-03-02T01:00"), at("2026-03-02T03:30"))
    b.advance(to="2026-03-02T04:00:00Z")
    assert [f"{r.scheduled_at:%H:%M}" for r in b.runs("j")].count("01:00") == 1


@pytest.mark.parametrize("max_runs", [1, 2])
def test_no_occurrence_is_moved_beyond_max_runs(b, max_runs):
    b.put(schedule=HOURLY, overlap="allow", max_runs=max_runs)
    b.client.move("j", at("2026-03-02T05:00"), at("2026-03-02T00:30"))
    if max_runs == 1:
        with pytest.raises(FailedPreconditionError, match="max_runs"):
            b.client.move("j", at("2026-03-02T06:00"), at("2026-03-02T00:40"))
    else:
        b.client.move("j", at("2026-03-02T06:00"), at("2026-03-02T00:40"))
    b.advance("9h")
    assert len(b.runs("j")) == max_runs


# Groups


def part(n=1):
    given, _ = given_from_api(CALL, Manual(), {})
    return {"given": [{"task": given["task"]}], "payload": [encode_payload((i,), {}) for i in range(n)], "which": bytes(4 * n)}


def group(b, number, n=1, **more):
    return b.call(60, ("group", {**part(n), "batch": number, "rid": bytes(16), "then": {"which": 0, "payload": encode_payload((), {})}, **more}))


@pytest.fixture
def sender(b):
    b.call(60, ("hello", {"version": 1, "name": "c", "role": "client"}))
    return b


@pytest.mark.parametrize(("number", "made"), [(7, 5), (8, 2)])
def test_a_group_has_the_members_that_were_sent_for_it_and_no_others(sender, number, made):
    assert sender.call(60, ("group_part", {**part(3), "batch": 7}))["staged"] == 3
    assert len(group(sender, number, 2)["id"]) == 16 * made


def test_a_new_batch_takes_the_place_of_the_one_before(sender):
    for number, n, staged in ((7, 3, 3), (7, 1, 4), (8, 2, 2)):
        assert sender.call(60, ("group_part", {**part(n), "batch": number}))["staged"] == staged


@pytest.mark.parametrize(("said", "fits"), [(4, False), (5, True), (6, False)])
def test_a_group_whose_members_are_not_all_here_makes_none(sender, said, fits):
    sender.call(60, ("group_part", {**part(3), "batch": 7}))
    if fits:
        assert len(group(sender, 7, 2, members=said)["id"]) == 16 * 5
    else:
        with pytest.raises(FailedPreconditionError, match=f"5 members are here, not {said}"):
            group(sender, 7, 2, members=said)
        assert sender.runs() == []


@pytest.mark.parametrize(("number", "fits"), [(-1, False), (0, True), (2**63 - 1, True), (2**63, False), (True, False), ("1", False)])
def test_the_number_of_a_batch_is_a_whole_number(sender, number, fits):
    asked = ("group_part", {**part(), "batch": number})
    if fits:
        assert sender.call(60, asked)["staged"] == 1
    else:
        with pytest.raises(InvalidArgumentError, match="batch"):
            sender.call(60, asked)
