"""The command line about times: why, skip, move, backfill, history, hold, tzdiff, calendars, and the policies that go with them."""

from __future__ import annotations

import json
import os
import pwd
import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.rigs import client as fake_server
from tests.rigs.cli import NOON, NOON_US, RUN_ID, STATS, Scripted, invoke, page, wire_job, wire_run
from tests.rigs.client import FakeServer
from wheelsched.cli.history_rows import definition
from wheelsched.client.times import is_wall, parse_day, parse_moment, parse_wall, schedule_zone
from wheelsched.client.values import JobInfo
from wheelsched.model import errors
from wheelsched.model.nouns import NEVER, Call
from wheelsched.model.policies import Catchup
from wheelsched.protocol.definition import given_from_api
from wheelsched.schedules.schedule import At, Cron, Every, Manual

GAP_US = int(datetime(2026, 3, 29, 1, 30, tzinfo=UTC).timestamp()) * 1_000_000  # 02:30 in Berlin, read by the offset before
PAST_US, FAR_US = 1_000_000_000_000_000, 30_000_000_000_000_000  # 2001 and 2920
FATE = {
    "disposition": "skipped", "reason": "overlap", "run_id": None, "at_us": NOON_US, "text": "It was skipped: a run was active.",
    "scheduled_us": NOON_US, "until_us": NOON_US + 60_000_000, "count": 1_200, "blocking": RUN_ID,
}


@pytest.fixture
def server(short_tmp):
    scripted = Scripted(short_tmp)
    scripted.answers |= {"get": wire_job(), "put": {**wire_job(), "result": "created"}, "why": FATE, "skip": FATE, "stats": STATS}
    with FakeServer(scripted.path, scripted.handle):
        yield scripted


# Times as typed


def test_a_time_on_the_clock_of_a_zone():
    noon = parse_moment("2026-11-29T13:00", "Europe/Berlin")
    assert noon == NOON
    assert parse_moment("2026-11-29 13:00:00.5", "Europe/Berlin") == NOON.replace(microsecond=500_000)
    assert parse_moment("2026-11-29T12:00Z", "Europe/Berlin") == parse_moment("2026-11-29T07:00-05:00", "Asia/Tokyo") == NOON
    assert parse_moment("2026-11-29T12:00:00Z", "Europe/Berlin") == parse_moment("2026-11-29T13:00:00+01:00", "Asia/Tokyo") == NOON
    assert is_wall("2026-03-29T02:30")
    assert not is_wall("2026-03-29T02:30:00Z")


@pytest.mark.parametrize("text", ["soon", "", "2026-11-29", "2026-11-29T8:30", "2026-13-01T00:00", "2026-02-30T00:00", "2026-11-29T12Z", "12:00"])
def test_what_is_no_time(text):
    with pytest.raises(errors.InvalidArgumentError):
        parse_moment(text, "UTC")


@pytest.mark.parametrize(
    ("text", "tz", "shifted", "words"),
    [
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T03:30:00+02:00", "there is no 02:30 on 2026-03-29 in Europe/Berlin"),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-04T02:45:00+11:00", "from +10:30 to +11:00"),
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-31T12:00:00+14:00", "from -10:00 to +14:00"),
    ],
)
def test_a_time_in_a_gap(text, tz, shifted, words):
    wall = parse_wall(text, tz)
    assert (wall.instants, wall.shifted.isoformat()) == ([], shifted)
    assert wall.end <= wall.shifted
    before = (wall.end.astimezone(UTC) - timedelta(seconds=1)).astimezone(wall.end.tzinfo)
    assert before.utcoffset() < wall.end.utcoffset() == wall.shifted.utcoffset()
    assert words in wall.clash
    with pytest.raises(errors.InvalidArgumentError, match="give the instant with its offset"):
        parse_moment(text, tz)


def test_a_time_that_comes_twice():
    wall = parse_wall("2026-10-25T02:30", "Europe/Berlin")
    assert [m.isoformat() for m in wall.instants] == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
    with pytest.raises(errors.InvalidArgumentError, match=r"is twice in Europe/Berlin: 2026-10-25T02:30:00\+02:00 and 2026-10-25T02:30:00\+01:00"):
        parse_moment("2026-10-25T02:30", "Europe/Berlin")
    for exact in ("2026-10-25T01:59:59", "2026-10-25T03:00", "2026-03-29T03:00", "2026-03-29T01:59:59"):
        assert parse_wall(exact, "Europe/Berlin").clash == ""


def test_the_zone_of_a_schedule():
    berlin = Cron("0 0 * * *", tz="Europe/Berlin")
    for schedule, zone in [(berlin, "Europe/Berlin"), (Every("1h"), "UTC"), ([Every("1h"), berlin], "Europe/Berlin"), (Manual(), "UTC")]:
        assert schedule_zone(given_from_api(Call("t"), schedule, {})[0]["schedule"]) == zone


# Why, skip, move


def test_why_takes_a_time_on_the_jobs_clock(server):
    done = server("job", "why", "a", "2026-11-29T13:00")
    assert done.exit_code == 0, done.output
    assert server.args("why") == {"name": "default/a", "at_us": NOON_US}
    lines = done.stdout.splitlines()
    assert lines[0] == FATE["text"]
    for part in ("skipped (overlap)", "2026-11-29 13:00:00 +01:00 (12:00:00Z)", "1,200 occurrences, up to 2026-11-29 13:01:00", RUN_ID):
        assert part in done.stdout
    assert "will run" not in done.stdout
    shown = json.loads(server("job", "why", "a", "2026-11-29T12:00:00Z", "-o", "json").stdout)
    assert (shown["disposition"], shown["blocking"], shown["scheduled_at"]) == ("skipped", RUN_ID, "2026-11-29T12:00:00.000000Z")


def test_why_of_a_time_that_the_clock_skipped_is_answered_with_a_word(server):
    done = server("job", "why", "a", "2026-03-29T02:30")
    assert done.exit_code == 0
    assert server.args("why")["at_us"] == GAP_US
    assert "there is no 02:30 on 2026-03-29 in Europe/Berlin" in done.stderr
    assert "2026-03-29 03:30:00 +02:00* (01:30:00Z)" in done.stderr
    done = server("job", "why", "a", "2026-10-25T02:30")
    assert "twice" in done.stderr
    assert server.args("why")["at_us"] == int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000


def test_why_in_a_gap_where_the_schedule_has_a_time_of_its_own(server):
    server.answers["why"] = {**FATE, "disposition": "pending", "reason": None}
    assert "runs at the end of the gap: `job why ... 2026-03-29T01:00:00Z`" in server("job", "why", "a", "2026-03-29T02:30").stderr
    server.answers["why"] = {**FATE, "disposition": "coalesced", "reason": "dst_gap"}
    assert "runs at" not in server("job", "why", "a", "2026-03-29T02:30").stderr


@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"])
def test_the_ends_of_the_calendar_are_no_traceback(server, tz):
    server.answers |= {"get": wire_job(schedule=Cron("30 2 * * *", tz=tz)), "why": lambda args: {**FATE, "at_us": args["at_us"]}}
    for day in ("9999-12-30", "9999-12-31", "1970-01-01", "0001-01-01"):
        for time in ("00:00", "02:30", "23:59"):
            for offset in ("", ":00Z"):
                done = server("job", "why", "a", f"{day}T{time}{offset}")
                assert done.exit_code in (0, 2), done
                assert done.exit_code == 0 or "out of range" in done.stderr, done.stderr


@pytest.mark.parametrize(("fate", "label"), [
    ({"disposition": "pending", "reason": None}, "will run "), ({"disposition": "pending", "reason": "pause"}, "due  "),
    ({"disposition": "moved", "reason": "manual", "at_us": FAR_US}, "runs at "), ({"disposition": "moved", "reason": None}, "decided "),
    ({"disposition": "coalesced", "reason": "dst_overlap", "at_us": FAR_US}, "runs at "),
    ({"disposition": "coalesced", "reason": "dst_gap"}, "ran instead at "), ({"disposition": "skipped", "reason": "overlap"}, "decided "),
])
def test_what_the_instant_of_an_answer_is(server, fate, label):
    server.answers["why"] = {**FATE, "blocking": None, "count": None, "at_us": PAST_US, **fate}
    lines = server("job", "why", "a", "2026-11-29T12:00:00Z").stdout.splitlines()
    assert lines[-1].startswith(label), lines


def test_in_3m_is_by_the_clock_of_the_server(server, monkeypatch):
    away = NOON - datetime.now(UTC) - timedelta(minutes=3)
    monkeypatch.setitem(fake_server.HELLO, "clock_offset_us", away // timedelta(microseconds=1))
    server.answers |= {
        "next": [NOON_US], "jobs": page(wire_job()), "why": {**FATE, "disposition": "pending", "reason": None}, "run": wire_run("scheduled", next_us=NOON_US),
        "move": wire_run("scheduled"),
    }
    for args in (["next", "a"], ["list"], ["get", "a"], ["put", "a", "t", "--every", "1s"], ["why", "a", "2026-11-29T12:00Z"]):
        done = server("job", *args)
        assert re.search(r"in (3m|2m 59s)", done.stdout), (args, done.output)
    assert re.search(r"in (3m|2m 59s)", server("run", "get", RUN_ID).stdout)
    done = server("job", "move", "a", "2026-11-29T13:00", "--to", "2026-11-29T13:00")
    assert re.search(r"in (3m|2m 59s)", done.stderr)


def test_a_put_that_never_runs_is_not_left_without_a_word(server):
    server.answers["put"] = {**wire_job(), "state": "finished", "next_us": None, "result": "created"}
    assert "a has no time left to run at" in server("job", "put", "a", "t", "--every", "1s").stderr
    server.answers["put"]["result"] = "unchanged"
    assert server("job", "put", "a", "t", "--every", "1s").stderr == ""


def test_pause_and_resume_of_all_that_match(server):
    server.answers |= {
        "jobs": page(wire_job("x/a"), wire_job("x/b")), "pause": lambda args: wire_job(args["name"], state="paused"),
        "resume": lambda args: wire_job(args["name"]),
    }
    assert [line.split() for line in server("job", "pause", "x/*", "--note", "n", "--yes").stdout.splitlines()[1:]] == [["x/a", "paused"], ["x/b", "paused"]]
    assert server.args("pause") == {**server.args("pause"), "name": "x/b", "note": "n"}
    server.answers["jobs"] = page(wire_job("x/a", state="paused"), wire_job("x/b", state="paused"), wire_job("x/c"))
    assert [j["state"] for j in json.loads(server("job", "resume", "x/*", "-y", "-o", "json").stdout)] == ["active", "active"]
    assert server("job", "resume", "x/a").stdout == "x/a: resumed, active\n"


def test_next_tells_of_a_jitter(server):
    server.answers |= {"next": [NOON_US], "get": wire_job(jitter="2h")}
    assert "jitter (2h) puts each start off" in server("job", "next", "a").stderr
    assert server("job", "next", "a", "-o", "json").stderr == ""


def test_a_pause_has_its_own_note(server):
    paused = {**wire_job(), "state": "paused", "note": "holiday", "pause_note": "holiday"}  # the note of the pause hides the job's own
    server.answers |= {"get": paused, "jobs": page(paused)}
    assert server("job", "get", "a").stdout.count("holiday") == server("job", "get", "a").stdout.count("paused (holiday)") == 1
    assert server("job", "list").stdout.splitlines()[1].endswith("0  paused: holiday")
    assert json.loads(server("job", "get", "a", "-o", "json").stdout)["pause_note"] == "holiday"


def test_a_moved_run_in_a_listing(server):
    begun = {"queued_us": NOON_US + 10_000_000, "started_us": NOON_US + 10_500_000, "ended_us": NOON_US + 11_000_000}
    waits = wire_run("scheduled", disposition="moved", next_us=NOON_US + 10_000_000, queued_us=None, started_us=None, ended_us=None)
    server.answers["runs"] = page(wire_run(disposition="moved", **begun), waits)
    ran, waiting = server("run", "list").stdout.splitlines()[1:]
    assert " 500 ms  500 ms  moved to 2026-11-29 13:00:10 +01:00 (12:00:10Z)" in ran
    assert waiting.endswith("-  moved to 2026-11-29 13:00:10 +01:00 (12:00:10Z)"), waiting


def test_why_of_a_job_that_is_gone(server):
    server.answers["get"] = errors.NotFoundError("no job a")
    assert server("job", "why", "a", "2026-11-29T12:00:00Z").exit_code == 0
    assert "2026-11-29 12:00:00Z" in server("job", "why", "a", "2026-11-29T12:00:00Z").stdout
    assert server("job", "why", "a", "2026-11-29T12:00").exit_code == 3


def test_skip_and_move(server):
    server.answers |= {"move": wire_run("scheduled", scheduled_us=NOON_US + 60_000_000)}
    assert server("job", "skip", "a", "2026-11-29T13:00").exit_code == 0
    assert server.args("skip")["undo"] is False
    assert server("job", "skip", "a", "2026-11-29T13:00", "--undo").exit_code == 0
    assert server.args("skip")["undo"] is True
    done = server("job", "move", "a", "2026-11-29T13:00", "--to", "2026-11-29T13:05")
    assert (done.exit_code, done.stdout) == (0, RUN_ID + "\n")
    assert (server.args("move")["at_us"], server.args("move")["to_us"]) == (NOON_US, NOON_US + 300_000_000)
    assert "moved to 2026-11-29 13:05:00 +01:00" in done.stderr
    for verb in (["skip", "a", "2026-03-29T02:30"], ["move", "a", "2026-10-25T02:30", "--to", "2026-10-25T04:30"]):
        done = server("job", *verb)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "give the instant with its offset" in done.stderr
    server.answers["skip"] = errors.FailedPreconditionError("it has fired already")
    assert server("job", "skip", "a", "2026-11-29T13:00").exit_code == 4


def test_a_day_stands_for_its_only_occurrence(server):
    server.answers |= {"move": wire_run("scheduled"), "get": wire_job(schedule=Cron("H 2 * * *", tz="Europe/Berlin"))}
    for verb in (["skip", "a", "2026-12-04"], ["move", "a", "2026-12-04", "--to", "2026-12-04T12:00"], ["why", "a", "2026-12-04"]):
        assert server("job", *verb).exit_code == 0
        [expected] = Cron("H 2 * * *", tz="Europe/Berlin", hash_id="default/a").next(datetime(2026, 12, 4, tzinfo=UTC))
        assert server.args(verb[0])["at_us"] == int(expected.timestamp()) * 1_000_000
    server.answers["get"] = wire_job(schedule=[Cron("0 0 1 * *", tz="Europe/Berlin"), Cron("59 23 * * 5", tz="Europe/Berlin")])
    for day, time in (("2026-12-01", datetime(2026, 11, 30, 23, tzinfo=UTC)), ("2026-12-04", datetime(2026, 12, 4, 22, 59, tzinfo=UTC))):
        assert server("job", "skip", "a", day).exit_code == 0
        assert server.args("skip")["at_us"] == int(time.timestamp()) * 1_000_000
    for day, words in (("2026-12-02", "no occurrence on"), ("2026-02-30", "day is out of range"), ("9999-12-31", "no day after it")):
        done = server("job", "skip", "a", day)
        assert (done.exit_code, words in done.stderr) == (2, True), done.stderr
    server.answers["get"] = wire_job(schedule=Cron("0 * * * *", tz="Europe/Berlin"))
    done = server("job", "skip", "a", "2026-12-04")
    assert done.exit_code == 2
    assert "2026-12-04 00:00:00 +01:00 (2026-12-03 23:00:00Z)" in done.stderr
    server.answers["get"] = errors.NotFoundError("no job a")
    assert server("job", "skip", "a", "2026-12-04").exit_code == 3


def test_a_day_that_begins_behind_a_gap():
    assert parse_day("2026-11-29", "Europe/Berlin") == (datetime(2026, 11, 28, 23, tzinfo=UTC), datetime(2026, 11, 29, 23, tzinfo=UTC))
    begin, end = parse_day("2018-11-04", "America/Sao_Paulo")  # there midnight was skipped
    assert (begin, end - begin) == (datetime(2018, 11, 4, 3, tzinfo=UTC), timedelta(hours=23))
    assert parse_day("2026-11-29T00:00", "UTC") is None


# Backfill


def test_backfill(server):
    server.answers["backfill"] = {
        "count": 12, "existing": 3, "total": 15, "first_us": NOON_US, "last_us": NOON_US + 60_000_000, "ids": [f"{i:032x}" for i in range(12)],
    }
    span = ["--since", "2026-11-29T13:00", "--until", "2026-11-30T12:00:00Z"]
    done = server("job", "backfill", "a", *span)
    assert done.exit_code == 0, done.output
    assert {k: v for k, v in server.args("backfill").items() if k != "rid"} == {
        "name": "default/a", "since_us": NOON_US, "until_us": NOON_US + 86_400_000_000, "dry_run": False, "only": "missing", "overlap": None,
        "backwards": False,
    }
    lines = done.stdout.splitlines()
    assert lines[0] == "a: 12 runs made of 15 occurrences; 3 have a run"
    assert len(lines) == 1 + 2 + 10 + 1
    done = server("job", "backfill", "a", *span, "--dry-run", "--only", "failed", "--backwards", "--overlap", "allow", "--max", "4")
    assert "12 runs would be made" in done.stdout
    assert len(done.stdout.splitlines()) == 3, "no runs are listed that are not there"
    args = server.args("backfill")
    assert (args["dry_run"], args["only"], args["backwards"], args["overlap"]) == (True, "failed", True, {"policy": "allow", "max": 4})
    assert json.loads(server("job", "backfill", "a", *span, "-o", "json").stdout)["count"] == 12
    server("job", "backfill", "a", "--since", "2026-11-28", "--until", "2026-11-29")
    midnight = NOON_US - 13 * 3_600_000_000
    assert (server.args("backfill")["since_us"], server.args("backfill")["until_us"]) == (midnight - 86_400_000_000, midnight + 86_399_999_000)
    for bad in (["--max", "4"], ["--overlap", "skip"], ["--only", "all"], ["--max", "0", "--overlap", "allow"]):
        assert server("job", "backfill", "a", *span, *bad).exit_code == 2
    assert server("job", "backfill", "a", "--until", "2026-11-29T13:00", "--since", "2026-11-29T13:00").exit_code == 2
    server.answers["backfill"] = errors.ResourceExhaustedError("1,000,000,000 occurrences; at most 100,000 are made at once")
    done = server("job", "backfill", "a", *span)
    assert done.exit_code == 1
    assert "at most 100,000" in done.stderr


# History


def test_history(server):
    new = wire_job(timeout="5m")
    old = {"spec": new["spec"], "param_us": NEVER, "state": "active"}
    changed = {**old, "spec": {**new["spec"], "timeout_us": 60_000_000, "calendar": ["c"]}, "state": "paused"}
    server.answers["history"] = [
        {"at_us": NOON_US, "uid": os.getuid(), "what": "put", "version": 2, "old": old, "new": changed, "note": "faster"},
        {"at_us": NOON_US, "uid": 4_000_000, "what": "put", "version": 1, "old": None, "new": old, "note": ""},
        {"at_us": NOON_US, "uid": 2**32 - 1, "what": "paused", "version": 1, "old": old, "new": {**old, "state": "paused"}, "note": ""},
    ]
    done = server("job", "history", "a", "--limit", "3")
    assert server.args("history") == {"name": "default/a", "limit": 3}
    _, first, second, third = done.stdout.splitlines()
    assert pwd.getpwuid(os.getuid()).pw_name in first
    assert 'state: active -> paused, timeout: 5m -> 1m, calendar: none -> ["c"] (faster)' in first
    assert "uid 4000000" in second
    assert second.endswith("0 0 * * * Europe/Berlin, t")
    assert "the server" in third
    shown = json.loads(server("job", "history", "a", "-o", "json").stdout)
    assert shown[0]["changes"]["timeout"] == {"old": "5m", "new": "1m"}
    assert shown[0]["new"]["spec"]["timeout_us"] == 60_000_000
    assert (shown[0]["new"]["param_us"], shown[1]["old"], shown[2]["uid"]) == (None, None, None)


# Policies


def test_the_policies_of_time_as_flags(server):
    done = server(
        "job", "put", "a", "t", "--cron", "0 0 * * *", "--cron", "30 12 * * 1-5", "--tz", "Europe/Berlin", "--jitter", "10%", "--calendar", "b",
        "--calendar", "a", "--late-after", "30s", "--on-missed", "alarm", "--pause-after", "3", "--catchup", "all", "--catchup-max", "7",
        "--overlap", "kill_other", "--version", "4", "--on-success", "b", "--on-failure", "c", "--on-dead", "d",
    )
    assert done.exit_code == 0, done.output
    crons = [Cron("0 0 * * *", tz="Europe/Berlin"), Cron("30 12 * * 1-5", tz="Europe/Berlin")]
    expected, _ = given_from_api(
        Call("t"), crons,
        {"jitter": "10%", "calendar": ["a", "b"], "late_after": "30s", "on_missed": "alarm", "pause_after": 3, "catchup": Catchup("all", max=7),
         "overlap": "kill_other", "on_success": "b", "on_failure": "c", "on_dead": "d"},
    )
    assert (server.args("put")["given"], server.args("put")["version"]) == (expected, 4)
    assert server("job", "put", "a", "t", "--every", "1h", "--after-completion").exit_code == 0
    assert server.args("put")["given"]["schedule"] == Every("1h", after_completion=True).to_wire()
    assert server.args("put")["version"] is None


def test_flags_that_do_not_go_together():
    for flags in (["--manual", "--after-completion"], ["--cron", "* * * * *", "--after-completion"], ["--manual", "--jitter", "5s"],
                  ["--cron", "* * * * *", "--every", "1h"], ["--every", "1h", "--pause-after", "256"], ["--every", "1h", "--late-after", "soon"],
                  ["--every", "1h", "--after-completion", "--catchup", "all"], ["--at", "2026-11-29T12:00:00Z", "--jitter", "5%"],
                  ["--at", "2026-11-29T12:00:00Z", "--start", "2026-11-30T12:00:00Z"], ["--every", "1h", "--on-missed", "a b"],
                  ["--every", "1h", "--catchup", "latest", "--catchup-max", "3"], ["--every", "1h", "--version", "-1"]):
        done = invoke("job", "put", "a", "t", *flags, "--socket", "/nowhere/s")
        assert done.exit_code == 2, (flags, done.output)


def test_a_version_that_is_not_the_jobs_is_a_conflict(server):
    server.answers["put"] = errors.AlreadyExistsError("job a is at version 5, not 4: read it again and repeat", version=5)
    done = server("job", "put", "a", "t", "--manual", "--version", "4")
    assert done.exit_code == 4
    assert "at version 5" in done.stderr


def test_job_get_shows_the_policies_of_time(server):
    union = [Cron("0 0 * * *", tz="Europe/Berlin"), Every("90s")]
    server.answers["get"] = wire_job(
        schedule=union, jitter="30s", calendar=["holidays", "freeze"], late_after="5m", on_missed="ops/alarm", pause_after=3
    )
    text = server("job", "get", "a").stdout
    for part in ("0 0 * * * Europe/Berlin; every 90 s", "jitter       30 s", "freeze, holidays", "late after   5m", "triggers ops/alarm",
                 "3 dead runs", "+01:00"):
        assert part in text, text
    server.answers["get"] = wire_job(schedule=Every("1h", after_completion=True), jitter="30s")
    assert "every 1h after completion" in server("job", "get", "a").stdout
    server.answers["get"] = wire_job(schedule=Every("1h"), jitter="10%")
    assert "10 % of the period" in server("job", "get", "a").stdout
    server.answers["jobs"] = page(wire_job(schedule=union))
    assert "0 0 * * * Europe/Berlin; every 90 s" in server("job", "list").stdout


def test_run_list_late_and_skipped(server):
    skipped = wire_run("skipped", reason="overlap", count=3, started_us=None, late=False, disposition="skipped", blocking=RUN_ID)
    server.answers["runs"] = page(wire_run(late=True, disposition="fired", blocking=None), skipped)
    done = server("run", "list", "--late", "--skipped")
    args = server.args("runs")
    assert (args["state"], args["skipped"], args["late"]) == (None, True, True)
    lines = done.stdout.splitlines()
    assert lines[1].endswith("late")
    assert lines[2].endswith(f"overlap with {RUN_ID} (3 occurrences)")
    server("run", "list", "--late", "--state", "dead")
    assert (server.args("runs")["state"], server.args("runs")["skipped"], server.args("runs")["late"]) == ("dead", False, True)
    server("run", "list", "--skipped")
    assert (server.args("runs")["state"], server.args("runs")["late"]) == ("skipped", False)
    server.answers["runs"] = page()
    assert "nothing late, nothing skipped" in server("run", "list", "--late", "--skipped").stderr
    server.answers["run"] = wire_run("skipped", reason="overlap", late=True, blocking=RUN_ID)
    assert "skipped (overlap), late" in server("run", "get", RUN_ID).stdout


def test_the_export_leaves_alone_what_its_readers_can_not_judge():
    union = definition(JobInfo(wire_job(schedule=[Cron("0 0 * * *"), At(NOON)])))["schedule"]
    assert (union["kind"], len(union["of"])) == ("union", 2)
    delay = definition(JobInfo(wire_job(schedule=Every("1h", after_completion=True))))["schedule"]
    assert (delay["kind"], delay["every_us"]) == ("after_completion", 3_600_000_000)


# Admin and status


def test_hold_and_release(server):
    server.answers |= {"hold": {"held": True, "since_us": NOON_US, "note": "deploy"}, "release": {"held": False, "missed": 1_234}}
    done = server("admin", "hold", "--note", "deploy")
    assert server.args("hold")["note"] == "deploy"
    assert done.stdout == "held since 2026-11-29 12:00:00Z (deploy): no schedule triggers anything until `wheelsched admin release`\n"
    assert done.stderr == ""
    assert "held already" in server("admin", "hold", "--note", "again").stderr
    assert server("admin", "release").stdout == "released; 1,234 jobs came due meanwhile\n"
    assert json.loads(server("admin", "release", "-o", "json").stdout)["missed"] == 1_234
    server.answers["release"] = {"held": False, "missed": 0}
    assert server("admin", "release").stdout == "released; nothing came due meanwhile\n"


def test_status_begins_with_a_hold(server):
    server.answers["stats"] = {**STATS, "held": True, "hold_note": "deploy\x1b[2J"}
    first = server("status").stdout.splitlines()[0]
    assert first.startswith("HELD (deploy")
    assert "`job trigger` still run" in server("status").stdout.splitlines()[1]
    assert "\x1b" not in first
    server.answers["stats"]["held_since_us"] = NOON_US
    assert "since 2026-11-29 12:00:00Z" in server("status").stdout.splitlines()[0]
    assert server("health").stdout == "HELD (deploy\N{REPLACEMENT CHARACTER}[2J) since 2026-11-29 12:00:00Z: `wheelsched admin release` ends it\n"
    server.answers["stats"]["clock_offset_us"] = -29_580_316_123_456
    assert "set off by --clock-offset=-342d8h45m16s123.456ms" in server("status").stdout
    done = server("health")
    assert done.exit_code == 1
    assert "HELD" in done.stdout
    server.answers["stats"] = {**STATS, "held": False, "hold_note": ""}
    assert "HELD" not in server("status").stdout


def test_tzdiff(server):
    columns = {"job": ["default/a", "b/c"], "old_us": [NOON_US, NOON_US], "new_us": [NOON_US + 3_600_000_000, NEVER]}
    server.answers["tzdiff"] = {"old": "2026.1", "new": "2026.2", "at_us": NOON_US, "total": 20_000, "columns": columns}
    done = server("admin", "tzdiff")
    assert done.stdout.splitlines()[1].split() == ["a", "2026-11-29", "12:00:00Z", "2026-11-29", "13:00:00Z"]
    assert "tzdata 2026.1 became 2026.2" in done.stderr
    assert "the first 2 of 20,000" in done.stderr
    assert json.loads(server("admin", "tzdiff", "-o", "json").stdout)["moved"][1] == {"job": "b/c", "old": "2026-11-29T12:00:00.000000Z", "new": None}
    server.answers["tzdiff"] = {"old": "2026.2", "new": "2026.2", "at_us": None, "total": 0, "columns": {}}
    done = server("admin", "tzdiff")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "has not changed" in done.stderr


# Calendars


def test_calendars_are_shown(server):
    wire = {
        "mode": "exclude", "tz": "Europe/Berlin", "dates": ["2026-12-24"], "yearly": ["12-25", "12-26"], "weekdays": ["sat", "sun"],
        "windows": [{"from_us": NOON_US, "to_us": NOON_US + 3_600_000_000}], "daily": [{"weekdays": ["fri"], "from": "22:00", "to": "06:00"}],
    }
    one = {"mode": "include", "tz": "UTC", "daily": [{"from": "08:00", "to": "18:00"}]}
    server.answers |= {
        "calendars": [{"name": "holidays", "calendar": wire, "jobs": 1}, {"name": "office", "calendar": one, "jobs": 0}],
        "calendar_delete": {"name": "office"},
    }
    lines = server("calendar", "list").stdout.splitlines()
    assert lines[0].split() == ["CALENDAR", "MODE", "ZONE", "JOBS", "TIMES"]
    assert lines[2].split() == ["office", "include", "UTC", "0", "daily", "08:00-18:00"]
    text = server("calendar", "get", "holidays").stdout
    for part in ("2026-12-24", "every year 12-25, 12-26", "sat, sun", "from 2026-11-29 12:00:00Z to 2026-11-29 13:00:00Z", "fri 22:00-06:00",
                 "nothing runs at these times", "1 job names it"):
        assert part in text, text
    assert json.loads(server("calendar", "get", "office", "-o", "json").stdout)["definition"] == one
    assert server("calendar", "get", "none").exit_code == 3
    assert server("calendar", "delete", "office").stdout == "office: deleted\n"
    assert server.args("calendar_delete")["name"] == "office"
    server.answers["calendars"] = []
    assert "no calendars" in server("calendar", "list").stderr


def test_calendar_put(server):
    server.answers["calendar_put"] = {"name": "holidays", "calendar": {"mode": "exclude", "tz": "Europe/Berlin", "yearly": ["12-25"]}, "jobs": 2}
    done = server(
        "calendar", "put", "holidays", "--tz", "Europe/Berlin", "--date", "2026-12-24", "--yearly", "12-26", "--yearly", "12-25", "--weekday", "sat",
        "--window", "2026-11-29T12:00:00Z", "2026-11-29T13:00:00Z", "--daily", "22:00-06:00", "--daily", "fri,sat 20:00-24:00",
    )
    assert (done.exit_code, done.stdout) == (0, "holidays: every year 12-25, in Europe/Berlin; 2 jobs name it\n"), done.output
    sent = server.args("calendar_put")["calendar"]
    assert (sent["mode"], sent["yearly"], sent["weekdays"]) == ("exclude", ["12-25", "12-26"], ["sat"])
    assert sent["windows"] == [{"from_us": NOON_US, "to_us": NOON_US + 3_600_000_000}]
    assert {"weekdays": ["fri", "sat"], "from": "20:00", "to": "24:00"} in sent["daily"]
    assert server("calendar", "put", "c", "--include", "--weekday", "mon").exit_code == 0
    assert server.args("calendar_put")["calendar"] == {"mode": "include", "tz": "UTC", "weekdays": ["mon"]}
    for bad in ([], ["--daily", "22:00"], ["--daily", "sat sun 22:00-23:00"], ["--date", "tomorrow"], ["--tz", "X", "--date", "2026-12-24"],
                ["--window", "2026-11-29T12:00:00Z"]):
        assert server("calendar", "put", "c", *bad).exit_code == 2, bad
