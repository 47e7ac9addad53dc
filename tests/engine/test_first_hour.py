"""What somebody meets in the first hour: what is off says so, defaults are where one looks, help names what works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import wheelsched
from tests.rigs.engine import Bench
from tests.rigs.server import wait_for
from wheelsched import AsyncClient, Call, Client, Command, FailedPreconditionError, Http, InvalidArgumentError, NotFoundError, Retry
from wheelsched.cli.enqueue import enqueue
from wheelsched.cli.group import group
from wheelsched.cli.policies import policies
from wheelsched.cli.root import cli
from wheelsched.client.requests import Ask, Session
from wheelsched.model.errors import DeadlineExceededError
from wheelsched.model.policies import MEANINGS
from wheelsched.pool import folder
from wheelsched.pool.folder import WorkerFolder
from wheelsched.protocol.definition import POLICIES

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])


def invoke(*args, env=None):
    return CliRunner().invoke(cli, list(args), env=env, catch_exceptions=False)


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.hello(tasks=("t",))
        yield bench


def test_a_run_of_a_builtin_that_no_worker_may_run_says_which_flag(b):
    for call, flag in ((Command(["true"]), "--allow-commands"), (Http("GET", "http://x.example"), "--allow-http")):
        run = b.client.enqueue(call)
        assert flag in b.client.run(run.id).waiting.reason
    assert b.client.stats()["builtin_tasks"] == []
    b.hello(tasks=("command",))
    assert b.client.stats()["builtin_tasks"] == ["command"]
    assert "--allow" not in b.client.run(b.client.enqueue(Call("other")).id).waiting.reason


def test_put_and_enqueue_warn_of_a_builtin_that_is_off(serving):
    server = serving()
    server.client()

    def run(*args):
        done = invoke("--socket", server.socket, *args)
        assert done.exit_code == 0, done.output
        return done

    jobs = server.folder / "jobs.toml"
    jobs.write_text('[jobs.filed]\ncommand = ["true"]\nmanual = true\n')
    for verb in (["job", "put", "c", "--manual", "command", "--", "true"], ["enqueue", "command", "--", "true"],
                 ["job", "apply", "-f", str(jobs)]):
        assert "no worker serves task command: none runs with --allow-commands" in run(*verb).stderr, verb
    assert "--allow" not in run("job", "put", "e", "--manual", "t.echo", "--args", "[1]").stderr
    wait_for(lambda: "--allow-commands" in run("status").stdout)  # once the worker has begun
    assert "there was no queue mial until now" in run("queue", "pause", "mial").stderr
    assert "until now" not in run("queue", "resume", "mial").stderr
    assert "those of enqueue: `run list '~t.echo'`" in run("run", "list", "t.echo").stderr
    assert "those of enqueue: `run list 'ns/~t.echo'`" in run("run", "list", "--job", "ns/t.echo").stderr
    assert "those of enqueue" not in run("run", "list", "--state", "dead").stderr
    run("job", "pause", "*", "--yes")  # all that have a schedule, and no stop at those of enqueue
    sick = invoke("--socket", server.socket, "health")
    assert (sick.exit_code, sick.stderr, sick.stdout.count("\n")) == (1, "", 1)
    verify = ("admin", "verify", "-o", "json")
    env = {"WHEELSCHED_DATA": str(server.folder / "data")}
    held = invoke(*verify, env=env)
    assert (held.exit_code, "stop it first" in held.stderr) == (4, True), held.output
    assert '"type"' in run("admin", "export").stdout
    server.end()
    done = invoke(*verify, env=env)
    assert json.loads(done.stdout)["ok"] is True, done.output


def test_help_of_one_run_shows_no_policy_that_it_refuses(b):
    hidden = {p.name for p in enqueue.params if getattr(p, "hidden", False)}
    assert hidden == {p.name for p in group.params if getattr(p, "hidden", False)}
    samples = {"overlap": "skip", "catchup": "all", "max_runs": 3, "calendar": ("c",), "pause_after": 3, "on_missed": "j",
               "start": "2026-03-03T00:00:00Z", "end": "2026-03-03T00:00:00Z"}
    for name in hidden - {"catchup_max"}:
        with pytest.raises(InvalidArgumentError, match="an enqueued call runs once"):
            b.client.enqueue(Call("t"), **policies({name: samples.get(name, "1m")}))
    for verb in ("enqueue", "group"):
        shown = invoke(verb, "--help").stdout
        assert "--retry-attempts" in shown
        assert not [name for name in hidden if f"--{name.replace('_', '-')} " in shown]
    assert "--overlap" in invoke("job", "put", "--help").stdout
    assert b.client.enqueue(Call("t"), retry=Retry(2), timeout="1m", queue="q", priority=1, expires_after="1h", concurrency=1).id


def test_the_socket_has_its_default_in_help_and_does_not_follow_data():
    for verb in ("serve", "status"):
        assert "$XDG_RUNTIME_DIR" in invoke(verb, "--help").stdout
    assert "It does not move the socket" in " ".join(invoke("serve", "--help").stdout.split())


def test_help_lists_every_policy():
    for client in (Client, AsyncClient):
        told = [line.strip().partition(":")[0] for line in client.put.__doc__.splitlines()]
        assert set(POLICIES) <= set(told), client
        for method in (client.enqueue, client.group):
            told = {line.strip().partition(":")[0] for line in method.__doc__.splitlines()}
            refused = {"overlap", "catchup", "start", "end", "max_runs", "jitter", "calendar", "pause_after", "late_after", "on_missed"}
            assert told & set(POLICIES) == set(POLICIES) - refused, method
    assert set(MEANINGS) == set(POLICIES)


def test_runs_of_enqueue_have_no_schedule_to_pause(b):
    b.client.enqueue(Call("t"), delay="1h")
    with pytest.raises(FailedPreconditionError, match="pause their queue, `queue pause NAME`"):
        b.client.pause("~t")
    assert b.client.get("~t").state == "active"


def test_purge_knows_no_queue_that_nobody_named(b):
    with pytest.raises(NotFoundError, match="no queue nosuch"):
        b.client.queue_purge("nosuch")
    b.client.queue_pause("named")
    assert b.client.queue_purge("named") == 0
    b.client.enqueue(Call("t"), delay="1h", queue="used")
    assert b.client.queue_purge("used") == 1


@pytest.mark.parametrize("verb", ["why", "skip", "move"])
def test_a_day_is_no_instant(b, verb):
    b.put("j")
    with pytest.raises(InvalidArgumentError, match=r"2026-12-04 is a day, and an instant is wanted"):
        getattr(b.client, verb)("j", "2026-12-04", *(["2026-12-05T00:00:00Z"] if verb == "move" else []))


def test_a_stream_of_events_says_what_a_position_is(b):
    with pytest.raises(InvalidArgumentError, match=r"first column of `wheelsched events`.* and not `oldest`"):
        next(iter(b.client.events("99")))


def test_a_forecast_is_short_to_read(b):
    b.put("j")
    assert len(repr(b.client.forecast("24h"))) < 2_000


@pytest.mark.parametrize(("verb", "args", "hint"), [
    ("enqueue", {"key": None}, True), ("enqueue", {"key": "k"}, False), ("trigger", {"key": None}, True), ("put", {}, False),
])
def test_what_may_have_been_done_is_repeated_with_a_key(verb, args, hint):
    session = Session("me", "/s", 5.0)
    opened = session.begin(Ask(verb, args, lambda value: value))
    with pytest.raises(DeadlineExceededError, match="may have been done") as e:
        session.patience(opened, 10.0, 9.0)
    assert ("give it a key" in e.value.message) is hint


def test_cron_lint_speaks_of_the_file_and_makes_nothing(tmp_path):
    file = tmp_path / "crontab"
    file.write_text("0 0 31 2 * /bin/true\n0 3 * * * /bin/backup\n")
    done = invoke("cron", "lint", str(file))
    assert (done.exit_code, "never fires" in done.stdout, "made a job" in done.output) == (1, True, False), done.output
    assert "1 wrong, 0 remarks" in done.stderr


def test_a_worker_says_that_it_joined_and_a_server_without_tasks_that_it_has_none(short_tmp):
    (short_tmp / "bank.py").write_text("from wheelsched import task\n\n@task('bank.settle')\ndef settle():\n    pass\n")
    (short_tmp / "blank.py").write_text("def settle():\n    pass\n")
    path, log = str(short_tmp / "s"), short_tmp / "log"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(short_tmp), ROOT]), "TMPDIR": str(short_tmp)}
    made = []

    def start(*args):
        with log.open("ab") as out:
            made.append(subprocess.Popen([sys.executable, "-m", "wheelsched", *args, "--socket", path], env=env, stderr=out, stdout=out))

    try:
        start("serve", "--data", str(short_tmp / "d"))
        wait_for(lambda: "ready in" in log.read_text(), 60)
        wait_for(lambda: "no --tasks: its workers serve no task; give --tasks MODULE" in log.read_text(), 60)
        start("worker", "--tasks", "bank", "--tasks", "blank", "--queues", "money", "--mode", "async", "--concurrency", "10")
        wait_for(lambda: f"worker: joined {path} as w" in log.read_text(), 60)
        assert "; 1 process, async, 10 runs at a time; queues: money; tasks: bank.settle\n" in log.read_text()
        assert "the module blank has no function marked @task" in log.read_text()
    finally:
        for process in reversed(made):
            process.kill()
            process.wait()


@pytest.mark.parametrize("verb", ["serve", "worker"])
def test_the_name_of_a_file_is_no_module(short_tmp, verb):
    done = invoke("--socket", str(short_tmp / "s"), verb, "--tasks", "./shop/bank.py")
    assert (done.exit_code, done.stderr) == (78, "wheelsched: tasks: ./shop/bank.py is a file; give the module's name: shop.bank\n")


def test_a_folder_that_a_worker_left_is_removed_without_a_word(short_tmp, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))
    left, living = WorkerFolder(), WorkerFolder()
    os.close(left._lock)  # as a kill does
    assert folder.end_leftovers("boot") == []
    assert (left.path.exists(), living.path.exists()) == (False, True)
    living.close()
