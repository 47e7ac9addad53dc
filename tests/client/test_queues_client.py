"""Queues from outside: both clients and the command line against a scripted server, and a real one with a pool."""

from __future__ import annotations

import json
import signal
from itertools import pairwise

import pytest

from tests.rigs.cli import STATS, Scripted
from tests.rigs.client import T0, T0_US, Driven, FakeServer, answering
from tests.rigs.server import Serving, wait_for
from wheelsched import Call, Client, InternalError, InvalidArgumentError, NotFoundError
from wheelsched.protocol import verbs

MAIL = {
    "name": "mail", "settings": {"concurrency": 20, "rate": "100/s", "burst": 5}, "queued": 1_200, "leased": 20, "oldest_us": T0_US,
    "paused": False,
}
IDLE = {"name": "idle", "settings": {}, "queued": 0, "leased": 0, "oldest_us": None, "paused": True}


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path(short_tmp):
    return str(short_tmp / "s")


@pytest.fixture
def server(short_tmp):
    scripted = Scripted(short_tmp)
    scripted.answers |= {
        "queues": [IDLE, MAIL], "queue_set": MAIL, "queue_pause": {**MAIL, "paused": True}, "queue_resume": MAIL, "queue_purge": {"count": 7},
    }
    with FakeServer(scripted.path, scripted.handle):
        yield scripted


def test_every_verb_asks_as_the_specification_says(make, path):
    steps = [
        (lambda ws: ws.queue("mail", concurrency=20, rate="100/s", burst=5), MAIL, "queue_set",
         {"name": "mail", "settings": {"concurrency": 20, "rate": "100/s", "burst": 5}}),
        (lambda ws: ws.queue("mail", key_concurrency=None, key_rate="5/m"), MAIL, "queue_set",
         {"name": "mail", "settings": {"key_concurrency": None, "key_rate": "5/m"}}),
        (lambda ws: ws.queue("mail", weights={"a": 2}), MAIL, "queue_set", {"name": "mail", "settings": {"weights": {"a": 2}}}),
        (lambda ws: ws.queue("mail"), [IDLE, MAIL], "queues", {}),
        (lambda ws: ws.queues(), [IDLE, MAIL], "queues", {}),
        (lambda ws: ws.queue_pause("mail"), {**MAIL, "paused": True}, "queue_pause", {"name": "mail"}),
        (lambda ws: ws.queue_resume("mail"), MAIL, "queue_resume", {"name": "mail"}),
        (lambda ws: ws.queue_purge("mail"), {"count": 7}, "queue_purge", {"name": "mail"}),
    ]
    seen = []
    with FakeServer(path, answering([answer for _, answer, _, _ in steps], seen)), make(path) as ws:
        got = [ask(ws) for ask, _, _, _ in steps]
    for request, (_, _, verb, args) in zip(seen, steps, strict=True):
        assert (request.args.pop("rid", None) is not None) == (verb in verbs.MUTATING)
        assert (request.verb, request.args) == (verb, args)
    assert (got[3].name, got[3].queued, got[3].leased, got[3].oldest, got[3].paused) == ("mail", 1_200, 20, T0, False)
    assert [q.name for q in got[4]] == ["idle", "mail"]
    assert (got[5].paused, got[7]) == (True, 7)
    assert json.loads(json.dumps(got[3].to_dict()))["settings"] == MAIL["settings"]


@pytest.mark.parametrize(("ask", "error"), [
    (lambda ws: ws.queue("a b", concurrency=1), InvalidArgumentError),
    (lambda ws: ws.queue("a", concurency=1), InvalidArgumentError),
    (lambda ws: ws.queue("a", concurrency=0), InvalidArgumentError),
    (lambda ws: ws.queue("a", rate="5"), InvalidArgumentError),
    (lambda ws: ws.queue_pause(5), InvalidArgumentError),
    (lambda ws: ws.queue_purge(""), InvalidArgumentError),
])
def test_what_is_wrong_is_refused_before_it_is_sent(make, path, ask, error):
    seen = []
    with FakeServer(path, answering([], seen)), make(path) as ws, pytest.raises(error):
        ask(ws)
    assert seen == []


@pytest.mark.parametrize("wrong", [[{"name": "q"}], {}, [5], [{**MAIL, "paused": 0}]])
def test_answers_of_another_shape_are_told(make, path, wrong):
    with FakeServer(path, answering([wrong], [])), make(path) as ws, pytest.raises(InternalError):
        ws.queues()


def test_an_unknown_queue_is_not_found(make, path):
    with FakeServer(path, answering([[MAIL]], [])), make(path) as ws, pytest.raises(NotFoundError):
        ws.queue("other")


# The command line


def test_the_verbs_of_the_command_line(server):
    lines = server("queue", "list").stdout.splitlines()
    assert lines[0].split() == ["QUEUE", "STATE", "QUEUED", "LEASED", "OLDEST", "LIMITS"]
    assert lines[1].split() == ["idle", "paused", "0", "0", "none"]
    assert "concurrency 20, rate 100/s, burst 5" in lines[2]
    assert [q["name"] for q in json.loads(server("queue", "list", "-o", "json").stdout)] == ["idle", "mail"]
    done = server("queue", "set", "mail", "--concurrency", "20", "--rate", "100/s", "--burst", "none", "--key-concurrency", "2", "--key-rate", "none")
    assert done.stdout == "mail: active, limits: concurrency 20, rate 100/s, burst 5; 1,200 queued, 20 leased\n", done.output
    assert server.args("queue_set")["settings"] == {
        "concurrency": 20, "rate": "100/s", "burst": None, "key_concurrency": 2, "key_rate": None,
    }
    server("queue", "set", "mail", "--weight", "billing=3", "--weight", "web=1")
    assert server.args("queue_set")["settings"] == {"weights": {"billing": 3, "web": 1}}
    server("queue", "set", "mail", "--weight", "none")
    assert server.args("queue_set")["settings"] == {"weights": None}
    server.answers["queues"] = [{**MAIL, "settings": {"weights": dict.fromkeys("abcdefg", 2)}}]
    assert server("queue", "list").stdout.splitlines()[1].endswith("weight a 2, weight b 2, weight c 2, weight d 2, weight e 2, 2 weights more")
    assert server("queue", "pause", "mail").stdout.startswith("mail: paused")
    assert server("queue", "resume", "mail").stdout.startswith("mail: active")
    assert server("queue", "purge", "mail").stdout == "mail: 7 runs cancelled\n"
    assert json.loads(server("queue", "purge", "mail", "-o", "json").stdout) == {"count": 7}
    server.answers["queues"] = []
    assert "no queues" in server("queue", "list").stderr


@pytest.mark.parametrize("bad", [["set", "q"], ["set", "q", "--concurrency", "0"], ["set", "q", "--burst", "x"], ["set", "q", "--rate", "9"], ["pause"],
                                 ["set", "q", "--weight", "a"], ["set", "q", "--weight", "a=0"], ["set", "q", "--weight", "a=1", "--weight", "a=2"]])
def test_wrong_use_is_2(server, bad):
    assert server("queue", *bad).exit_code == 2, bad


def test_status_says_what_holds_runs_back(server):
    server.answers["stats"] = {
        **STATS, "queues": {"q": {"queued": 5, "leased": 1}}, "paused_queues": ["q"],
        "held_back": [{"task": "t", "queue": "q", "runs": 5, "reason": "queue q is paused"}],
    }
    text = server("status").stdout
    assert "5 queued, 1 leased, PAUSED" in text
    assert "t  waiting: 5 runs: queue q is paused" in text


# A real server


@pytest.mark.slow
def test_limits_hold_over_a_kill_with_a_pool(short_tmp):
    one = Serving(short_tmp, workers=2)
    two = None
    try:
        ws = one.client()
        ws.queue("q", concurrency=1)
        ws.queue_pause("held")
        slow = [ws.enqueue(Call("t.sleep", 0.3), queue="q") for _ in range(3)]
        keyed = [ws.enqueue(Call("t.sleep", 0.1), concurrency_key="k") for _ in range(4)]
        held = ws.enqueue(Call("t.echo", 1), queue="held")
        wait_for(lambda: ws.queue("q").leased == 1)
        one.process.send_signal(signal.SIGKILL)
        one.process.wait(20)
        two = Serving(short_tmp, workers=2)
        ws = two.client()
        runs = [ws.run(r.id) for r in [*slow, *keyed]]
        for run in runs:
            run.result(timeout=30)
        for group in (runs[:3], runs[3:]):
            spans = sorted((r.refresh().started_at, r.ended_at) for r in group)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans
        assert ws.run(held.id).state == "queued"
        told = ws.run(held.id).waiting
        assert (told.reason, told.rank, told.expected_at) == ("queue held is paused", 1, None)
        assert ws.queue_resume("held").paused is False
        assert ws.run(held.id).result(timeout=30) == 1
        held = ws.enqueue(Call("t.echo", 2), queue="held", delay="1h")
        assert ws.queue_purge("held") == 1
        assert ws.run(held.id).state == "cancelled"
        assert ws.queue("q", weights={"a": 3}).settings == {"concurrency": 1, "weights": {"a": 3}}
    finally:
        for server in filter(None, (one, two)):
            for client in server.open:
                client.close()
            server.end()
