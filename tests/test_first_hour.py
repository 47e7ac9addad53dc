"""What somebody meets in the first hour: what is off says so, defaults are where one looks, help names what works."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from engine_bench import Bench

from wheelsched import Call, Command, Http, InvalidArgumentError, Retry
from wheelsched.cli.enqueue import enqueue
from wheelsched.cli.group import group
from wheelsched.cli.policies import policies
from wheelsched.cli.root import cli


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
    assert "--allow-commands" in run("status").stdout
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
