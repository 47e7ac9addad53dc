"""The command line: options, output forms, exit codes; against a scripted server where a verb needs one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import click
import pytest

from tests.rigs.cli import NOON, NOON_US, RUN_ID, STATS, Scripted, invoke, page, wire_job, wire_run
from tests.rigs.client import FakeServer
from wheelsched import Catchup, Overlap, Retry
from wheelsched.cli.history_rows import definition, run_row
from wheelsched.cli.root import VERBS, cli
from wheelsched.cli.shell import Verb
from wheelsched.client.values import JobInfo, RunInfo
from wheelsched.model import errors
from wheelsched.model.nouns import Call
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.schedules.schedule import At, Cron, Every, Manual


@pytest.fixture
def server(short_tmp):
    scripted = Scripted(short_tmp)
    with FakeServer(scripted.path, scripted.handle):
        yield scripted


# The tree


def commands(group, path=()):
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


def test_every_verb_has_help_and_takes_the_globals():
    seen = []
    for path, command in commands(cli):
        seen.append(" ".join(path))
        assert command.help, path
        assert {"--socket", "--time", "-o"} <= {o for p in command.params for o in p.opts}, path
        done = invoke(*path, "--help")
        assert done.exit_code == 0, path
        assert "Usage: " in done.output
    wanted = (
        "demo, serve, job put, job list, job get, job next, job pause, job resume, job trigger, job delete, job import crontab, enqueue,"
        " run list, run get, run cancel, run wait, dead list, dead redrive, dead discard, cron explain, cron next, status, health,"
        " admin verify, admin export, bench midnight, bench latency"
    )
    assert set(wanted.split(", ")) <= set(seen)
    assert set(VERBS) == {p.split()[0] for p in seen}


def test_usage_errors_are_2():
    for args in (["nonsense"], ["job"], ["job", "put"], ["cron", "next"], ["-o", "yaml", "status"], ["job", "put", "a", "t"],
                 ["job", "put", "a", "t", "--every", "1s", "--manual"], ["dead", "redrive"], ["dead", "discard", "--match", "*", RUN_ID],
                 ["job", "put", "a", "t", "--every", "1s", "--tz", "UTC"], ["enqueue", "t", "--in", "1s", "--at", "2026-01-01T00:00:00Z"],
                 ["job", "put", "a", "t", "--every", "1s", "--args", "{}"], ["job", "put", "a", "t", "--every", "1s", "--kwargs", "[1"],
                 ["job", "put", "a", "t", "--every", "1s", "--args", "[NaN]"], ["job", "put", "a", "t", "x", "--manual"],
                 ["job", "put", "a", "t", "--every", "1s", "--overlap", "allow:x"]):
        done = invoke("--socket", "/nowhere/s", *args)
        assert done.exit_code == 2, (args, done.output)
        assert not done.stdout or "Usage" in done.stdout, args


def test_without_a_server():
    done = invoke("job", "list", "--socket", "/nowhere/s")
    assert done.exit_code == 5
    assert done.stdout == ""
    assert done.stderr.startswith("wheelsched: no server at /nowhere/s")
    assert invoke("status", env={"WHEELSCHED_SOCKET": "/nowhere/e"}).stderr.startswith("wheelsched: no server at /nowhere/e")


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_the_globals_stand_before_or_behind_the_verb(server, where):
    server.answers["jobs"] = page(wire_job())
    words = {"before": ["-o", "jsonl", "job", "list"], "between": ["job", "-o", "jsonl", "list"], "after": ["job", "list", "-o", "jsonl"]}
    done = server(*words[where])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "a"


def test_top_shows_rates_between_looks(server):
    looks = iter([
        STATS, {**STATS, "uptime_s": 14.5, "counters": {"created": 25, "succeeded": 2}, "queues": {f"q{i:02}": {"queued": i} for i in range(20)}},
        {**STATS, "generation": 5, "uptime_s": 30.0},
    ])
    server.answers["stats"] = lambda _: next(looks)
    done = server("top", "--interval", "100ms", "--count", "3")
    assert done.exit_code == 0, done.output
    first, second, third = done.stdout.split("wheelsched 0.1.0, up ")[1:]
    assert "at the next look" in first
    assert "created 10.0" in second
    assert "succeeded" not in second
    assert "and 4 more" in second
    assert second.index("q19") < second.index("q05")
    assert "at the next look" in third
    assert "\x1b" not in done.stdout
    server.answers["stats"] = STATS
    row = json.loads(server("top", "--count", "1", "-o", "jsonl").stdout)
    assert (row["queued"], row["per_second"]) == (1, {})
    assert server("top", "--interval", "soon").exit_code == 2


# Jobs


def test_job_put_sends_what_was_typed(server):
    server.answers["put"] = {**wire_job(), "result": "created"}
    done = server(
        "job", "put", "billing/charge", "charge", "--cron", "0 0 * * *", "--tz", "Europe/Berlin", "--dst-gap", "skip",
        "--args", '["eu", 1.5]',
        "--kwargs", '{"full": true}', "--timeout", "5m", "--retry-attempts", "4", "--retry-backoff", "1s", "--retry-cap", "1m",
        "--overlap", "allow:3", "--catchup", "all", "--catchup-window", "1h", "--queue", "q", "--priority", "7", "--jitter", "30s",
        "--start", "2026-01-01T00:00:00Z", "--end", "2027-01-01T00:00:00Z", "--max-runs", "9", "--expires-after", "2h",
        "--concurrency-key", "k", "--concurrency", "2", "--paused", "--note", "because",
    )
    assert done.exit_code == 0, done.output
    assert "created" in done.stdout
    args = server.args("put")
    expected, _ = given_from_api(
        Call("charge"), Cron("0 0 * * *", tz="Europe/Berlin", dst_gap="skip"),
        {"timeout": "5m", "retry": Retry(4, "1s", cap="1m"), "overlap": Overlap("allow", 3),
         "catchup": Catchup("all", "1h"), "queue": "q", "priority": 7, "jitter": "30s",
         "start": "2026-01-01T00:00:00Z", "end": "2027-01-01T00:00:00Z", "max_runs": 9, "expires_after": "2h", "concurrency_key": "k",
         "concurrency": 2},
    )
    assert args["given"] == expected
    assert args["payload"] == encode_payload(["eu", 1.5], {"full": True})
    assert (args["name"], args["paused"], args["note"]) == ("billing/charge", True, "because")


@pytest.mark.parametrize(
    ("flags", "schedule"),
    [(["--every", "90s"], Every("90s")), (["--at", "2026-12-01T00:00:00+01:00"], At("2026-11-30T23:00:00Z")), (["--manual"], Manual()),
     (["--in", "10m"], At("2026-11-29T12:10:00Z")), (["--cron", "@daily"], Cron("@daily"))],
)
def test_each_kind_of_schedule(server, flags, schedule):
    server.answers["put"] = {**wire_job(), "result": "created"}
    assert server("job", "put", "a", "t", *flags).exit_code == 0
    args = server.args("put")
    assert (args["given"]["schedule"], args["param_us"]) == (schedule.to_wire(), schedule.param_us())
    assert args["paused"] is None
    assert set(args["given"]) == {"task", "schedule"}


def test_command_behind_two_dashes(server):
    server.answers["put"] = {**wire_job(), "result": "created"}
    assert server("job", "put", "a", "--every", "1h", "command", "--", "ls", "-l", "--color").exit_code == 0
    args = server.args("put")
    assert args["given"]["task"] == "command"
    assert b"--color" in args["payload"]


def test_a_wrong_schedule_is_a_usage_error():
    for flags in (["--cron", "61 * * * *"], ["--cron", "0 0 31 2 *"], ["--cron", "* * * * *", "--tz", "No/Where"], ["--every", "soon"],
                  ["--at", "tomorrow"], ["--every", "1ms"]):
        assert invoke("job", "put", "a", "t", *flags, "--socket", "/nowhere/s").exit_code == 2


def test_job_list_is_aligned_with_both_zones(server):
    server.answers["jobs"] = page(wire_job(), wire_job("billing/x", Every("90s"), state="paused"))
    done = server("job", "list")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TASK", "SCHEDULE", "NEXT", "IN", "OPEN", "NOTE"]
    assert "2026-11-29 13:00:00 +01:00 (12:00:00Z)" in lines[1]
    assert "2026-11-29 12:00:00Z" in lines[2]
    assert lines[0].index("STATE") == lines[1].index("active") == lines[2].index("paused")
    assert "\x1b" not in done.output
    assert "13:00" not in server("job", "list", "--time", "utc").stdout
    everything = json.loads(server("job", "list", "-o", "json").stdout)
    assert [j["name"] for j in everything] == ["a", "billing/x"]
    assert everything[0]["next_at"] == "2026-11-29T12:00:00.000000Z"


def test_an_empty_listing_has_no_data_but_a_message(server):
    server.answers["jobs"] = page()
    done = server("job", "list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no jobs" in done.stderr
    assert json.loads(server("job", "list", "-o", "json").stdout) == []
    assert server("job", "list", "-o", "jsonl").stdout == ""


def test_job_get_and_next_mark_the_day_of_a_clock_change(server):
    us = int(datetime(2027, 3, 28, 1, tzinfo=UTC).timestamp()) * 1_000_000
    server.answers |= {"get": {**wire_job(), "next_us": us}, "next": [us, us + 86_400_000_000]}
    for done in (server("job", "get", "a"), server("job", "next", "a")):
        assert "2027-03-28 03:00:00 +02:00* (01:00:00Z)" in done.stdout
        assert "clock changes" in done.stdout
    assert "2027-03-29 03:00:00 +02:00 (" in server("job", "next", "a").stdout
    assert json.loads(server("job", "next", "a", "-o", "json").stdout) == ["2027-03-28T01:00:00Z", "2027-03-29T01:00:00Z"]


def test_server_errors_become_exit_codes(server):
    server.answers |= {
        "get": errors.NotFoundError("no job x"), "trigger": errors.FailedPreconditionError("busy with run 1"),
        "put": errors.UnimplementedError("calendar: this server doesn't know it yet"), "pause": errors.PermissionDeniedError("not you"),
        "resume": errors.FencedError("newer"), "delete": errors.StorageFullError("full"),
    }
    verbs = {("get",): 3, ("trigger",): 4, ("pause",): 6, ("resume",): 4, ("delete",): 1}
    verbs["put", "t", "--every", "1s", "--calendar", "c"] = 1
    for (verb, *rest), code in verbs.items():
        done = server("job", verb, "x", *rest)
        assert (done.exit_code, done.stdout) == (code, ""), verb
        assert done.stderr.startswith("wheelsched: ")
    assert "calendar" in server("job", "put", "x", "t", "--every", "1s", "--calendar", "c").stderr


# Runs


@pytest.mark.parametrize(("text", "why"), [
    ("", "1 to 10,000 calls"), ('{"task": "t"}\n\n[1]', "line 3"), ("x", "line 1: no JSON"), ('{"args": []}', "line 1"), ('{"task": 1}', "task (a text)"),
    ('{"task": "t", "args": {}}', "args (a list)"), ('{"task": "t", "queue": "q"}', "an object of task"), ("[" * 100_000, "line 1: no JSON"),
])
def test_a_group_of_what_is_no_call(tmp_path, text, why):
    (tmp_path / "calls").write_text(text)
    done = invoke("--socket", "/nowhere/s", "group", str(tmp_path / "calls"), "then")
    assert done.exit_code in (1, 2), done.output
    assert why in " ".join(done.stderr.split())


def test_enqueue_prints_the_run_id_alone(server):
    server.answers["enqueue"] = wire_run("queued")
    done = server("enqueue", "t", "--args", "[1]", "--in", "10m", "--key", "k", "--timeout", "5s")
    assert (done.exit_code, done.stdout) == (0, RUN_ID + "\n")
    args = server.args("enqueue")
    assert (args["delay_us"], args["key"], args["given"]["timeout_us"]) == (600_000_000, "k", 5_000_000)


def test_dead_letters(server):
    server.answers |= {"dead": page(wire_run("dead")), "redrive": {"count": 2}, "discard": {"count": 1}, "get": wire_job()}
    assert RUN_ID in server("dead", "list", "a*").stdout
    assert server("dead", "redrive", "--match", "a*").stdout == "2 queued again\n"
    assert server.args("redrive")["match"] == "a*"
    assert json.loads(server("dead", "discard", RUN_ID, "-o", "json").stdout) == {"count": 1}
    assert server.args("discard")["ids"] == [RUN_ID]


# Status


def test_status_and_health(server):
    text = server("status").stdout
    for part in ("generation 4", "p99 1.2 ms", "default  1 queued", "w1  pool, 1 leased", "1 GiB free"):
        assert part in text
    assert server("health").stdout.startswith("ok: 2 jobs")
    assert json.loads(server("status", "-o", "json").stdout)["generation"] == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [({"unserved_tasks": {"x.y": 4}}, "x.y"), ({"draining": True}, "draining"), ({"workers": []}, "no worker"),
     ({"storage": {**STATS["storage"], "state": "full"}}, "full")],
)
def test_health_says_what_is_wrong(server, change, said):
    server.answers["stats"] = {**STATS, **change}
    done = server("health")
    assert done.exit_code == 1
    assert said in done.stdout
    assert said in server("status").stdout


# Export


def test_definitions_in_the_form_of_the_checker():
    for schedule, expected in [
        (Cron("*/5 * * * *", tz="Europe/Berlin"), {"kind": "cron", "expr": "*/5 * * * *", "tz": "Europe/Berlin", "dst_gap": "vixie",
                                                  "dst_fold": "vixie", "day_mode": "or_vixie", "seconds": "first"}),
        (Cron("0 2 * * *", dst_gap="shift", dst_overlap="both", day_or=False), {"kind": "cron", "expr": "0 2 * * *", "tz": "UTC",
         "dst_gap": "shift_wall", "dst_fold": "both", "day_mode": "and", "seconds": "first"}),
        (Every("90s", anchor=NOON), {"kind": "interval", "every": 90.0, "anchor": "2026-11-29T12:00:00.000000Z", "first": "after"}),
        (At(NOON), {"kind": "once", "at": "2026-11-29T12:00:00.000000Z"}), (Manual(), {"kind": "manual"}),
    ]:
        assert definition(JobInfo(wire_job(schedule=schedule)))["schedule"] == expected
    made = definition(JobInfo(wire_job(overlap="buffer_one", catchup="all", retry=Retry(5), args=[1])))
    assert made["overlap"]["policy"] == "queue"
    assert made["misfire"]["policy"] == "run_all"
    assert (made["max_attempts"], made["payload"], made["paused"]) == (5, [[1], {}], False)
    assert definition(JobInfo(wire_job(state="paused")))["paused"] is True


def test_runs_in_the_form_of_the_checker():
    row = run_row(RunInfo(wire_run()))
    assert row["run_id"] == RUN_ID
    assert (row["state"], row["trigger"], row["attempts"], row["token"]) == ("succeeded", "schedule", 1, 7)
    assert row["finished_at"] == "2026-11-29T12:00:00.003000Z"
    waiting = run_row(RunInfo(wire_run("retry_wait", trigger="enqueue", next_us=NOON_US)))
    assert (waiting["state"], waiting["trigger"], waiting["next_at"]) == ("retrying", "manual", "2026-11-29T12:00:00.000000Z")
    assert "finished_at" not in waiting


def test_export_lists_everything_between_two_marks(server):
    def runs(args):
        return page(wire_run("skipped", reason="overlap", count=2)) if args["skipped"] else page(wire_run())

    server.answers |= {"runs": runs, "jobs": page(wire_job()), "dead": page(wire_run("dead"))}
    done = server("admin", "export", "--history")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["type"] for r in rows] == ["export", "run", "note", "job", "dead_letter", "export"]
    assert rows[0]["phase"] == "begin"
    assert rows[0]["dead_letters"] is True
    assert {r["state"] for r in rows[1:3]} == {"succeeded", "skipped"}
    assert "6 rows" in done.stderr


# The process


def test_python_m_and_version():
    done = subprocess.run([sys.executable, "-m", "wheelsched", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert re.fullmatch(r"wheelsched \d+\.\d+\S*\n", done.stdout)


def test_bad_configuration_is_78(tmp_path):
    (tmp_path / "c.toml").write_text("workers = 'many'\n")
    (tmp_path / "d.toml").write_text("no toml")
    for args in (["--config", str(tmp_path / "c.toml")], ["--config", str(tmp_path / "d.toml")], ["--config", str(tmp_path / "none")],
                 ["--workers", "-1"], ["--clock-check", "soon"], ["--socket", "/" + "x" * 200], ["--tasks", "a b"], ["--drain", "8d"]):
        done = invoke("serve", "--data", str(tmp_path / "data"), *args)
        assert (done.exit_code, done.stdout) == (78, ""), (args, done.output)
        assert done.stderr.startswith("wheelsched: ")
        assert len(done.stderr.splitlines()) == 1
    done = invoke("serve", "--data", str(tmp_path / "data"), env={"WHEELSCHED_WORKERS": "x"})
    assert done.exit_code == 78
    assert not (tmp_path / "data").exists()


def test_a_listing_cut_off_by_its_reader(server):
    server.answers["runs"] = page(*[wire_run() for _ in range(1_000)])
    code = "import sys; from wheelsched.cli import main; main(sys.argv[1:])"
    args = [sys.executable, "-c", code, "--socket", server.path, "run", "list", "-o", "jsonl", "--limit", "0"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": ""}) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait() != 0
    assert b"Traceback" not in said


def test_verbs_are_commands_with_the_globals():
    assert issubclass(Verb, click.Command)


def test_retry_rules_by_error(server):
    retry = Retry(3, not_on=("KeyError",), errors={"ValueError": 1, "requests.Timeout": Retry(8, "1s", cap="1m")})
    server.answers |= {"put": {**wire_job(retry=retry), "result": "created"}, "get": wire_job(retry=retry)}
    server("job", "put", "a", "t", "--manual", "--retry-not-on", "KeyError", "--retry-error", "ValueError=1", "--retry-error",
           "requests.Timeout=8,1s,1m")
    assert server.args("put")["given"]["retry"] == retry.to_wire()
    text = server("job", "get", "a").stdout
    for part in ("KeyError", "after requests.Timeout", "8 attempts", "after ValueError", "1 attempt\n"):
        assert part in text
    for wrong in ("ValueError", "=3", "A=x", "A=1,1s,1m,1h"):
        assert invoke("--socket", "/nowhere/s", "job", "put", "a", "t", "--manual", "--retry-error", wrong).exit_code == 2, wrong
