"""Runs are named as people name them, several jobs at once are asked about, and tables fit the terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from tests.rigs.cli import NOON_US, RUN_ID, Scripted, page, wire_job, wire_run
from tests.rigs.client import FakeServer
from tests.rigs.server import wait_for
from wheelsched import Call, Cron, Manual
from wheelsched.cli.root import cli
from wheelsched.cli.tables import Head, fitted
from wheelsched.model import errors


@pytest.fixture
def scripted(short_tmp):
    made = Scripted(short_tmp)
    with FakeServer(made.path, made.handle):
        yield made


def run(server, *args, code=0, text=None):
    done = CliRunner().invoke(cli, ["--socket", server.socket, *args], catch_exceptions=False, input=text)
    assert done.exit_code == code, done.output
    return done


def on_a_terminal(server, *args, columns=80, env=None):
    """What a command writes to a terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen([sys.executable, "-m", "wheelsched", "--socket", server.socket, *args], stdout=follower, stdin=follower,
                               stderr=subprocess.DEVNULL, env={**clean, "TERM": "xterm", **(env or {})})
    os.close(follower)
    out = b""
    while True:
        try:
            data = os.read(leader, 65_536)
        except OSError:
            break
        if not data:
            break
        out += data
    os.close(leader)
    process.wait(30)
    return out.decode().replace("\r\n", "\n")


def test_n_b3_every_run_verb_takes_what_people_have(serving):
    server = serving()
    ws = server.client()
    ws.put("shop/cleanup", Call("t.echo", "swept"), Cron("0 3 * * *", tz="Europe/Berlin"), overlap="allow")
    ws.put("shop/idle", Call("t.echo", 1), Manual())
    first, last = ws.trigger("shop/cleanup"), ws.trigger("shop/cleanup")
    assert [r.result(20) for r in (first, last)] == ["swept", "swept"]

    def id_of(ref):
        return json.loads(run(server, "run", "get", ref, "-o", "json").stdout)["id"]

    assert id_of("shop/cleanup") == last.id
    assert id_of(last.id) == last.id
    assert id_of(first.id[:31]) == first.id
    for moment in (f"{first.scheduled_at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", first.scheduled_at.astimezone().isoformat(timespec="milliseconds")):
        assert id_of(f"shop/cleanup@{moment}") == first.id
    shown = [line.split()[1] for line in run(server, "run", "list", "shop/cleanup").stdout.splitlines()[1:]]
    assert [id_of(name) for name in shown] == [last.id, first.id]
    shown = [line.split()[1] for line in run(server, "run", "list", "shop/cleanup", "--time", "utc").stdout.splitlines()[1:]]
    assert [id_of(name) for name in shown] == [last.id, first.id]
    day = f"{first.scheduled_at.astimezone(UTC):%Y-%m-%d}"
    told = run(server, "run", "get", f"shop/cleanup@{day}", "--time", "utc", code=4).stderr
    assert "there are several, give the id of one:" in told
    assert first.id in told
    assert last.id in told
    told = run(server, "run", "wait", first.id[:4], code=4).stderr
    assert first.id in told
    assert run(server, "run", "wait", "shop/cleanup").stdout == '"swept"\n'
    run(server, "run", "logs", "shop/cleanup")
    for ref, why in (("shop/idle", "the job has no run yet"), ("nobody", "no run and no job has that name"), ("ffff0000", "no run has an id that begins so"),
                     ("shop/cleanup@2020-01-01", "no run of shop/cleanup is known for that time")):
        assert why in run(server, "run", "get", ref, code=3).stderr, ref
    later = ws.enqueue(Call("t.echo", 2), delay="1h")
    assert id_of("~t.echo") == later.id
    assert id_of(later.id[:20]) == later.id  # it is made for another time than that of its id
    assert json.loads(run(server, "run", "cancel", "~t.echo", later.id[:31], "-o", "json").stdout)[0]["state"] == "cancelled"
    dead = ws.enqueue(Call("t.once", fail=True), retry=1)
    wait_for(lambda: dead.refresh().state == "dead")
    assert "1 queued again" in run(server, "dead", "redrive", "~t.once").stdout


def test_n_c9_several_jobs_are_shown_and_asked_about(serving):
    server = serving(workers=0)
    ws = server.client()
    for name in ("e/a", "e/b", "e/c", "f/x"):
        ws.put(name, Call("t.echo", 1), Cron("0 3 * * *"))
    ws.enqueue(Call("t.echo"), namespace="e")

    def states():
        return {job.name: job.state for job in ws.jobs() if "~" not in job.name}

    told = run(server, "job", "pause", "e/*", "f/x", code=2).stderr
    assert "would pause 4 jobs: e/a, e/b, e/c, f/x; nothing was done: --yes does it" in told
    assert set(states().values()) == {"active"}
    assert "paused" in run(server, "job", "pause", "e/*", "f/x", "--yes").stdout
    assert set(states().values()) == {"paused"}
    run(server, "job", "resume", "e/a", "e/b", "--yes")
    assert states() == {"e/a": "active", "e/b": "active", "e/c": "paused", "f/x": "paused"}
    assert "no paused jobs match" in run(server, "job", "resume", "g/*", "--yes", code=3).stderr
    run(server, "job", "delete", "e/a", "nobody", "--yes", code=3)
    assert states()["e/a"] == "active", "nothing is done when one of the names is not there"
    told = json.loads(run(server, "job", "trigger", "e/*", "-y", "-o", "json").stdout)
    assert [r["job"] for r in told] == ["e/a", "e/b", "e/c"]
    assert run(server, "job", "delete", "f/x").stdout == "f/x: deleted\n"  # of one by name nothing is asked
    assert [j["name"] for j in json.loads(run(server, "job", "delete", "e/a", "e/b", "e/*", "--yes", "-o", "json").stdout)] == ["e/a", "e/b", "e/c"]
    assert set(states().values()) == {"deleted"}
    run(server, "job", "trigger", "a", "b", "--wait", "--yes", code=3)


def test_n_c9_one_that_fails_does_not_stop_the_others(scripted):
    def delete(args):
        return errors.FailedPreconditionError("no") if args["name"] == "x/a" else wire_job(args["name"], state="deleted")

    scripted.answers |= {"jobs": page(wire_job("x/a"), wire_job("x/b")), "delete": delete}
    done = scripted("job", "delete", "x/*", "--yes")
    assert done.exit_code == 4
    assert "x/a: no" in done.stderr
    assert "x/b" in done.stdout


def test_n_c8_jobs_are_sorted_and_those_of_enqueue_come_last(serving):
    server = serving(workers=0)
    ws = server.client()
    ws.enqueue(Call("t.echo"))
    for name in ("z", "b/2", "a", "b/1"):
        ws.put(name, Call("t.echo", 1), Manual())
    assert [job["name"] for job in json.loads(run(server, "job", "list", "-o", "json").stdout)] == ["a", "b/1", "b/2", "z", "~t.echo"]
    assert [line.split()[0] for line in run(server, "job", "list", "--limit", "2").stdout.splitlines()] == ["NAME", "a", "b/1"]


@pytest.mark.parametrize(("room", "want"), [
    (None, [(0, 10), (1, 6), (2, 30)]), (80, [(0, 10), (1, 6), (2, 30)]), (40, [(0, 10), (1, 6), (2, 20)]), (30, [(0, 10), (1, 6), (2, 10)]),
    (22, [(0, 10), (2, 10)]), (18, [(0, 6), (2, 10)]), (5, [(0, 4), (2, 10)]),
])
def test_n_b4_columns_are_cut_and_then_left_out(room, want):
    heads = [Head("NAME", least=4), Head("N", rank=1), Head("WHY", least=10)]
    assert fitted(heads, [10, 6, 30], room) == want


@pytest.mark.slow
def test_n_b4_tables_fit_the_terminal_and_are_whole_elsewhere(serving):
    server = serving()
    ws = server.client()
    ws.put("billing/a-rather-long-name", Call("t.echo", 1), Cron("*/5 2-4 1-7 * mon", tz="Europe/Berlin"), note="why it is there, in many words " * 2)
    ws.put("billing/paused", Call("t.echo", 1), Cron("0 3 * * *"), paused=True)
    dead = ws.enqueue(Call("t.once", fail=True), retry=1)
    wait_for(lambda: dead.refresh().state == "dead")
    for columns in (60, 120):
        for verb in (("job", "list"), ("run", "list"), ("dead", "list"), ("queue", "list")):
            text = re.sub(r"\x1b\[\d*m", "", on_a_terminal(server, *verb, columns=columns))
            assert text, verb
            assert max(map(len, text.splitlines())) <= columns, (verb, columns, text)
    whole = run(server, "run", "list").stdout
    assert "ValueError: on purpose" in whole
    assert dead.id in whole
    assert dead.id not in on_a_terminal(server, "run", "list", columns=200)
    wide = on_a_terminal(server, "run", "list", "-o", "wide", columns=40)
    assert dead.id in wide
    assert "ValueError: on purpose" in wide
    assert "Z)" in run(server, "job", "list", "-o", "wide").stdout
    assert "Z)" not in on_a_terminal(server, "job", "list", columns=300)
    red, yellow = "\x1b[31mdead", "\x1b[33mpaused"
    assert red in on_a_terminal(server, "run", "list")
    assert yellow in on_a_terminal(server, "job", "list")
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_a_terminal(server, "run", "list", env=env)
    assert "\x1b" not in whole


def test_n_b5_what_runs_shows_for_how_long_and_where(scripted):
    began = int((datetime.now(UTC) - timedelta(seconds=200)).timestamp() * 1_000_000)
    running = wire_run("running", started_us=began, ended_us=None, worker="w7", job="~t.sleep")
    waits = wire_run("retry_wait", started_us=NOON_US, ended_us=NOON_US + 4_000_000, worker="w8", job="~t.sleep")
    scripted.answers |= {"runs": page(running, waits, wire_run(job="~t.echo"))}
    head, first, second, third = scripted("run", "list", "--state", "running").stdout.splitlines()
    assert head.split() == ["ID", "RUN", "STATE", "ATTEMPT", "WORKER", "LAG", "TOOK", "WHY"]
    assert re.search(r" w7 .* 3m (19|20|21|22|23)s\+$", first), first
    assert second.endswith(" 4 s")
    assert " w1 " not in third
    assert RUN_ID in scripted("run", "list", "-o", "wide").stdout
