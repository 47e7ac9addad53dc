"""Listings of runs: newest first, and by task, queue and namespace; over history and the table, a page at a time. And the CLI's."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.rigs.cli import Scripted, page, wire_job, wire_run
from tests.rigs.client import FakeServer
from tests.rigs.engine import Bench
from wheelsched import Call, InvalidArgumentError, Manual
from wheelsched.model import errors

US = 1_000_000


@pytest.fixture
def server(short_tmp):
    scripted = Scripted(short_tmp)
    with FakeServer(scripted.path, scripted.handle):
        yield scripted


@pytest.fixture
def full(monkeypatch):
    """20 runs that have ended, in history or about to get there, and 10 open ones."""
    monkeypatch.setattr("wheelsched.state.pages.BLOCKS_MAX", 2)
    monkeypatch.setattr("wheelsched.engine.housekeeping.FOLD_ROWS", 3)
    b = Bench()
    b.hello(tasks=["t", "u"])
    for i in range(30):
        job = f"{'team/' if i % 3 else ''}j{i}"
        b.put(job, Manual(), call=Call("u" if i % 2 else "t", 1), queue="mail" if i % 5 == 0 else "default", overlap="allow")
        b.client.trigger(job)
        if i < 20:
            b.finish(b.lease())
    assert b.engine.state.meta.folded > 10
    assert len(b.engine.state.runs) > 10
    return b


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_newest_first_is_the_other_way_round(full, monkeypatch, size):
    monkeypatch.setattr("wheelsched.client.verbs.PAGE", size)
    oldest = [r.job for r in full.client.runs()]
    assert sorted(oldest) == sorted(j.name for j in full.client.jobs())
    assert [r.job for r in full.client.runs(newest=True)] == oldest[::-1]
    assert [r.job for r in full.client.runs(newest=True, limit=4)] == oldest[:-5:-1]
    assert [r.job for r in full.client.runs("team/j1*", newest=True)] == [j for j in reversed(oldest) if j.startswith("team/j1")]


def test_runs_by_task_queue_and_namespace(full):
    number = {r.job: int(r.job.rpartition("j")[2]) for r in full.client.runs()}
    for wanted, fits in [
        ({"task": "u"}, lambda i: i % 2), ({"queue": "mail"}, lambda i: i % 5 == 0), ({"namespace": "team"}, lambda i: i % 3),
        ({"namespace": "default", "task": "t"}, lambda i: i % 3 == 0 and i % 2 == 0), ({"task": "none"}, lambda i: False),
        ({"namespace": "team", "job": "*j1*", "queue": "default"}, lambda i: i % 3 and str(i)[0] == "1" and i % 5),
    ]:
        for newest in (False, True):
            found = {r.job for r in full.client.runs(**wanted, newest=newest)}
            assert found == {job for job, i in number.items() if fits(i)}, (wanted, newest)
    with pytest.raises(InvalidArgumentError, match="task"):
        full.client.runs(task="no task")
    with pytest.raises(InvalidArgumentError):
        full.client.runs(namespace="no namespace")


def test_the_command_line_shows_the_newest_and_says_when_there_are_more(server):
    rows = [wire_run(id=f"{i:032x}") for i in range(3)]
    server.answers |= {"runs": lambda args: page(*rows[: args["limit"]]), "get": errors.NotFoundError("gone")}
    done = server("run", "list", "--limit", "2", "-o", "json")
    assert [r["id"][-1] for r in json.loads(done.stdout)] == ["0", "1"]
    assert done.stderr == "wheelsched: the newest 2 are shown, and there are more: --limit 0 for all, --since for a time\n"
    assert server.args("runs")["newest"] is True
    done = server("run", "list", "--limit", "3", "--oldest", "--task", "t", "--queue", "q", "--namespace", "team")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 4)
    asked = server.args("runs")
    assert (asked["newest"], asked["task"], asked["queue"], asked["namespace"]) == (False, "t", "q", "team")
    assert "the oldest 1 are shown" in server("run", "list", "--limit", "1", "--oldest").stderr
    done = server("run", "list", "--limit", "0", "-o", "jsonl")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 3)


@pytest.mark.parametrize("verb", ["runs", "dead"])
def test_spans_of_time_as_people_write_them(server, verb):
    server.answers |= {"runs": page(), "dead": page(), "get": wire_job(), "queues": []}
    words = ("run", "list") if verb == "runs" else ("dead", "list")

    def asked(*args):
        done = server(*words, *args)
        assert done.exit_code == 0, done.stderr
        return server.args(verb).get("since_us"), server.args(verb).get("until_us")

    def us(text):
        return int(datetime.fromisoformat(text).timestamp()) * US

    assert asked("a", "--since", "2026-11-29", "--until", "2026-11-30") == (us("2026-11-28T23:00Z"), us("2026-11-30T23:00Z")), "in Berlin"
    assert asked("a", "--since", "2026-11-29T10:00") == (us("2026-11-29T09:00Z"), None)
    assert asked("a*", "--since", "2026-11-29T10:00") == (us("2026-11-29T10:00Z"), None)
    assert asked("--since", "2026-11-29T10:00:00+05:00", "--until", "2026-11-30") == (us("2026-11-29T05:00Z"), us("2026-12-01T00:00Z"))
    before = datetime.now(UTC)
    since, until = asked("--since", "1d12h", "--until", "1.5h")
    assert timedelta() <= timedelta(microseconds=since - us("1970-01-01T00:00Z")) - (before - datetime.fromtimestamp(0, UTC) - timedelta(hours=36))
    assert until - since >= 34.5 * 3_600 * US
    for wrong in ("soon", "1x", "2026-02-30", "2026-11-29T25:00"):
        done = server(*words, "--since", wrong)
        assert (done.exit_code, done.stdout) == (2, ""), wrong
        assert "--since: " in done.stderr
