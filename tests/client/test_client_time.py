"""why, skip, move, backfill, history, calendars, hold, tzdiff: both clients against a scripted server, and the answers as values."""

from __future__ import annotations

import json
import os
import pwd
import re
from datetime import timedelta

import pytest

from tests.rigs.client import RUN_ID, T0, T0_US, Driven, FakeServer, answering, run_raw
from wheelsched import (
    Call,
    Client,
    Cron,
    Every,
    InternalError,
    InvalidArgumentError,
    Manual,
    NotFoundError,
    Overlap,
    ResourceExhaustedError,
    Why,
)
from wheelsched.client.values import JobInfo, RunInfo, rfc3339
from wheelsched.client.views_time import JobChange, definition_words
from wheelsched.model.nouns import NEVER, US
from wheelsched.protocol import verbs
from wheelsched.protocol.definition import check_given, given_from_api, resolve
from wheelsched.schedules.words import schedule_words

MS_US = T0_US + 544  # nominal times are whole milliseconds
FATE = {
    "disposition": "skipped", "reason": "overlap", "run_id": None, "at_us": T0_US, "text": "skipped: run abc was active", "scheduled_us": MS_US,
    "until_us": MS_US + US, "count": 2, "blocking": RUN_ID,
}
CALENDAR = {"mode": "exclude", "tz": "UTC", "dates": ["2026-12-25"]}


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path(short_tmp):
    return str(short_tmp / "s")


def side(schedule=None, *, state="active", **policies):
    given, param_us = given_from_api(Call("t"), schedule or Every("30s"), policies)
    return {"spec": {**resolve(check_given(given), None), "namespace": "default"}, "param_us": param_us, "state": state}


def every_verb():
    """(what is called, the answer, the verb and the arguments that the specification wants)."""
    backfill = {"count": 2, "existing": 1, "total": 3, "first_us": T0_US, "last_us": T0_US + US, "ids": [RUN_ID]}
    span = {"name": "default/x", "since_us": T0_US, "until_us": T0_US + 60 * US}
    later = T0 + timedelta(minutes=1)
    change = {"at_us": T0_US, "uid": os.getuid(), "what": "put", "version": 2, "old": None, "new": side(), "note": "n"}
    return [
        (lambda ws: ws.why("x", T0), FATE, "why", {"name": "default/x", "at_us": MS_US}),
        (lambda ws: ws.skip("a/b", T0), FATE, "skip", {"name": "a/b", "at_us": MS_US, "undo": False}),
        (lambda ws: ws.skip("x", T0, undo=True), FATE, "skip", {"name": "default/x", "at_us": MS_US, "undo": True}),
        (
            lambda ws: ws.move("x", T0, "2026-11-29T09:00:00+00:00"), run_raw("scheduled"), "move",
            {"name": "default/x", "at_us": MS_US, "to_us": 1_795_942_800_000_000},
        ),
        (
            lambda ws: ws.backfill("x", T0, later), backfill, "backfill",
            {**span, "dry_run": False, "only": "missing", "overlap": None, "backwards": False},
        ),
        (
            lambda ws: ws.backfill("x", T0, later, dry_run=True, only="failed", overlap=Overlap("allow", max=3), backwards=True), backfill,
            "backfill", {**span, "dry_run": True, "only": "failed", "overlap": {"policy": "allow", "max": 3}, "backwards": True},
        ),
        (
            lambda ws: ws.backfill("x", T0, later, overlap="buffer_all"), backfill, "backfill",
            {**span, "dry_run": False, "only": "missing", "overlap": {"policy": "buffer_all", "max": None}, "backwards": False},
        ),
        (lambda ws: ws.history("x"), [change], "history", {"name": "default/x", "limit": 100}),
        (lambda ws: ws.calendar("c"), [{"name": "c", "calendar": CALENDAR, "jobs": 2}], "calendars", {}),
        (lambda ws: ws.calendars(), [{"name": "c", "calendar": CALENDAR, "jobs": 2}], "calendars", {}),
        (lambda ws: ws.calendar_delete("c"), {"name": "c"}, "calendar_delete", {"name": "c"}),
        (lambda ws: ws.hold("deploy"), {"held": True, "since_us": T0_US, "note": "deploy"}, "hold", {"note": "deploy"}),
        (lambda ws: ws.release(), {"held": False, "missed": 7}, "release", {}),
        (
            lambda ws: ws.tzdiff(),
            {"old": "2026.1", "new": "2026.2", "at_us": T0_US, "total": 1,
             "columns": {"job": ["default/x"], "old_us": [T0_US], "new_us": [NEVER]}},
            "tzdiff", {},
        ),
    ]


def test_every_verb_asks_as_the_specification_says(make, path):
    steps = every_verb()
    seen = []
    with FakeServer(path, answering([answer for _, answer, _, _ in steps], seen)), make(path) as ws:
        got = [ask(ws) for ask, _, _, _ in steps]
    rids = set()
    for request, (_, _, verb, args) in zip(seen, steps, strict=True):
        if verb in verbs.MUTATING:
            rids.add(request.args.pop("rid"))
        assert (request.verb, request.args) == (verb, args)
    assert len(rids) == sum(verb in verbs.MUTATING for _, _, verb, _ in steps) == 9
    why, moved, made, dry = got[0], got[3], got[4], got[5]
    assert (why.disposition, why.reason, why.run_id, why.at, why.scheduled_at) == ("skipped", "overlap", None, T0, T0 + timedelta(microseconds=544))
    assert (str(why), why.count, why.blocking) == (FATE["text"], 2, RUN_ID)
    assert (moved.id, moved.state) == (RUN_ID, "scheduled")
    assert (made.count, made.existing, made.total, made.first, made.run_ids, made.dry_run, dry.dry_run) == (2, 1, 3, T0, [RUN_ID], False, True)
    (change,) = got[7]
    assert (change.at, change.user, change.what, change.version) == (T0, pwd.getpwuid(os.getuid()).pw_name, "put", 2)
    assert (got[8].name, got[8].definition, got[8].jobs, got[9]) == ("c", CALENDAR, 2, [got[8]])
    assert got[10] == "c"
    assert (got[11].held, got[11].since, got[11].note, got[12].held, got[12].missed) == (True, T0, "deploy", False, 7)
    assert (got[13].old, got[13].new, got[13].at, got[13].total) == ("2026.1", "2026.2", T0, 1)
    assert [(m.job, m.old, m.new) for m in got[13].moved] == [("x", T0, None)]
    for value in [*got[:3], *got[4:7], change, *got[8:9], *got[11:]]:
        assert json.loads(json.dumps(value.to_dict()))


def test_a_calendar_is_put_in_its_canonical_form(make, path):
    seen = []
    with FakeServer(path, answering([{"name": "c", "calendar": CALENDAR, "jobs": 0}] * 2, seen)), make(path) as ws:
        assert ws.calendar("c", dates=["2026-12-25"]).definition == CALENDAR
        ws.calendar(
            "c", mode="include", tz="Europe/Berlin", weekdays=["sat", "fri"], windows=[(T0, "2026-12-01T00:00:00Z")],
            daily=[{"weekdays": ["mon"], "from": "22:00", "to": "06:00"}], yearly="12-25",
        )
    assert [(r.verb, r.args["name"], len(r.args["rid"])) for r in seen] == [("calendar_put", "c", 16)] * 2
    assert seen[0].args["calendar"] == CALENDAR
    assert seen[1].args["calendar"] == {
        "mode": "include", "tz": "Europe/Berlin", "weekdays": ["fri", "sat"], "yearly": ["12-25"],
        "windows": [{"from_us": T0_US, "to_us": 1_796_083_200_000_000}], "daily": [{"weekdays": ["mon"], "from": "22:00", "to": "06:00"}],
    }


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ({"weekday": ["sat"]}, "did you mean 'weekdays'"),
        ({"zzz": 1}, "mode, tz, dates"),
        ({"mode": "exclude"}, "no entries"),
        ({"dates": ["2026-02-30"]}, "2026-02-30"),
        ({"yearly": ["13-45"]}, "13-45"),
        ({"tz": "No/Where", "dates": ["2026-12-25"]}, "No/Where"),
        ({"daily": ["06:00-06:00"]}, "daily"),
        ({"windows": [(T0, T0)]}, "windows"),
        ({"windows": [(T0.replace(tzinfo=None), T0)]}, "time zone"),
    ],
)
def test_a_calendar_that_can_not_be(make, path, definition, said):
    with make(path) as ws, pytest.raises(InvalidArgumentError, match=re.escape(said)):
        ws.calendar("c", **definition)


def test_a_moved_run_of_which_only_the_id_is_known_is_asked_for(make, path):
    seen = []
    with FakeServer(path, answering([{"id": RUN_ID}, run_raw("scheduled")], seen)), make(path) as ws:
        assert ws.move("x", T0, T0).state == "scheduled"
    assert [r.verb for r in seen] == ["move", "run"]


def test_late_and_skipped_runs_are_asked_for(make, path):
    seen = []
    row = run_raw("skipped", late=True, disposition="coalesced", blocking=RUN_ID)
    with FakeServer(path, answering([{"columns": {k: [v] for k, v in row.items()}, "after": None}], seen)), make(path) as ws:
        (run,) = list(ws.runs("x", skipped=True, late=True))
    assert (seen[0].args["skipped"], seen[0].args["late"]) == (True, True)
    assert (run.late, run.disposition, run.blocking) == (True, "coalesced", RUN_ID)
    assert (run.to_dict()["late"], run.to_dict()["disposition"], run.to_dict()["blocking"]) == (True, "coalesced", RUN_ID)
    old = RunInfo(run_raw())  # of a server that doesn't tell
    assert (old.late, old.disposition, old.blocking) == (False, None, None)


@pytest.mark.parametrize(
    "ask",
    [
        lambda ws: ws.why("a b", T0),
        lambda ws: ws.why("x", T0.replace(tzinfo=None)),
        lambda ws: ws.why("x", "yesterday"),
        lambda ws: ws.skip("x", T0, undo=1),
        lambda ws: ws.move("x", T0, None),
        lambda ws: ws.backfill("x", T0, T0),
        lambda ws: ws.backfill("x", T0, T0 - timedelta(seconds=1)),
        lambda ws: ws.backfill("x", T0, T0 + timedelta(1), only="some"),
        lambda ws: ws.backfill("x", T0, T0 + timedelta(1), only=None),
        lambda ws: ws.backfill("x", T0, T0 + timedelta(1), dry_run=1),
        lambda ws: ws.backfill("x", T0, T0 + timedelta(1), backwards="yes"),
        lambda ws: ws.backfill("x", T0, T0 + timedelta(1), overlap="skip"),
        lambda ws: ws.backfill("x", T0, T0 + timedelta(1), overlap=3),
        lambda ws: ws.history("x", 0),
        lambda ws: ws.history("x", 10_001),
        lambda ws: ws.calendar("a b"),
        lambda ws: ws.calendar_delete("c" * 101),
        lambda ws: ws.hold(3),
        lambda ws: ws.hold("n" * 1_001),
        lambda ws: ws.put("x", Call("t"), Manual(), jitter="30s"),
        lambda ws: ws.put("x", Call("t"), []),
    ],
)
def test_what_the_caller_got_wrong_is_told_without_a_server(make, path, ask):
    with make(path) as ws, pytest.raises(InvalidArgumentError):
        ask(ws)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda ws: ws.why("x", T0), {}),
        (lambda ws: ws.why("x", T0), {"disposition": "fired"}),
        (lambda ws: ws.why("x", T0), [1]),
        (lambda ws: ws.backfill("x", T0, T0 + timedelta(1)), {"count": 1}),
        (lambda ws: ws.history("x"), {}),
        (lambda ws: ws.calendars(), [{"name": "c"}]),
        (lambda ws: ws.hold(), {}),
        (lambda ws: ws.tzdiff(), {"total": 1}),
    ],
)
def test_a_server_that_answers_nonsense_is_told(make, path, ask, answer):
    with FakeServer(path, answering([answer], [])), make(path) as ws, pytest.raises(InternalError):
        ask(ws)


def test_errors_of_the_server_come_through(make, path):
    too_many = ResourceExhaustedError("backfill of 1,000,000,000 occurrences: at most 100,000", count=10**9, limit=100_000)
    with FakeServer(path, answering([too_many, []], [])), make(path) as ws:
        with pytest.raises(ResourceExhaustedError) as caught:
            ws.backfill("x", T0, T0 + timedelta(9_000))
        assert caught.value.detail == {"count": 10**9, "limit": 100_000}
        with pytest.raises(NotFoundError, match="no calendar c"):
            ws.calendar("c")


# values


def test_why_stands_for_its_text():
    why = Why("fired", None, RUN_ID, T0, "fired at once")
    assert (str(why), why.to_dict()["at"], why.to_dict()["until"]) == ("fired at once", rfc3339(T0), None)
    assert Why.from_wire({"disposition": "pending", "text": "will fire"}) == Why("pending", None, None, None, "will fire")


def test_changes_are_told_as_users_write_them():
    old = side(Cron("0 0 * * *", tz="Europe/Berlin"), timeout="5m", overlap="skip", queue="a", on_missed="alarm")
    new = side(
        [Cron("0 0 * * *", tz="Europe/Berlin"), Every("90s")], state="paused", timeout="1h30m", overlap=Overlap("allow", 3), queue="a",
        catchup="all", jitter="10%", calendar="c", end=T0, late_after="30s", pause_after=3,
    )
    change = JobChange(T0, 1, None, "put", 4, old, new)
    assert change.changes == {
        "state": ("active", "paused"), "schedule": ("0 0 * * * Europe/Berlin", "0 0 * * * Europe/Berlin | every 1m30s"),
        "timeout": ("5m", "1h30m"), "overlap": ("skip", "allow:3"), "catchup": ("latest", "all window=1d max=1000"),
        "end": (None, rfc3339(T0)), "on_missed": ("alarm", None), "jitter": (None, "10%"), "calendar": (None, ["c"]), "pause_after": (None, 3),
        "late_after": (None, "30s"),
    }
    assert json.loads(json.dumps(change.to_dict()))["changes"]["timeout"] == {"old": "5m", "new": "1h30m"}
    assert JobChange(T0, 1, None, "put", 4, old, old).changes == {}
    created = JobChange(T0, 1, None, "put", 1, None, old).changes
    assert created["queue"] == (None, "a")
    assert "namespace" not in created
    assert JobChange(T0, 1, None, "purge", 1, old, None).changes["queue"] == ("a", None)
    assert definition_words(side(retry=2))["retry"] == {"attempts": 2, "backoff": "10s", "factor": 2.0, "cap": "1h"}


def test_schedules_in_words():
    every = Every("30s", anchor=T0)
    for schedule, words in [
        (every, "every 30s from 2026-11-29T08:30:00.124000Z"),
        (Every("1h", after_completion=True), "every 1h after completion"),
        (Manual(), "manual"),
        (Cron("0 2 * * *", tz="Europe/Berlin", dst_gap="skip", dst_overlap="both", day_or=False),
         "0 2 * * * Europe/Berlin dst_gap=skip dst_overlap=both day_or=false"),
    ]:
        assert schedule_words(schedule.to_wire(), schedule.param_us()) == words


def test_a_job_with_a_union_gives_a_list():
    made = side([Every("30s", anchor=T0), Cron("0 0 * * *")])
    job = JobInfo({"name": "x", "spec": made["spec"], "param_us": NEVER, "state": "active"})
    assert job.schedule == [Every("30s", anchor=T0), Cron("0 0 * * *")]
    assert json.dumps(job.to_dict())
